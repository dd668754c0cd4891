"""The recorded cases: every measure, ratio, explanation term, alignment, corpus table and reproduced number.

A case is a function that yields `(name, array)`. Errors are results too: their class is recorded.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import torch
from benchmarks.explain_real import CASES as REAL_MODELS

import normlens
from normlens.errors import NormlensError
from normlens.families.tiny import families, tiny_inputs, tiny_model
from normlens.lens import Lens
from normlens.measures.table import MAPS, MEASURES

Results = Iterator[tuple[str, np.ndarray]]
Case = Callable[[], Results]

#: The options of an explanation by the names under which their results are recorded.
RULES = {
    "fixed-mean": {"attention": "fixed", "baseline": "mean"},
    "fixed-zero": {"attention": "fixed", "baseline": "zero"},
    "integrated-mean": {"attention": "integrated", "baseline": "mean"},
}
PARTS = ["tokens", "states", "edges", "heads", "blocks", "direct", "biases"]
MODELS = Path(os.environ.get("NORMLENS_REAL_MODELS", "../models"))


def analysis_results(analysis: normlens.Analysis) -> Results:
    """Every array of an analysis."""
    for kind, site in analysis.sites.items():
        for name in site.data_vars:
            if name != "proof":
                yield f"{kind}/{name}", np.asarray(site[name].values)


def explanation_results(explanation: normlens.Explanation) -> Results:
    """Every array of an explanation, and the number itself."""
    yield "value", np.asarray(explanation.value, dtype=float)
    for kind, site in explanation.sites.items():
        for name, array in site.items():
            yield f"{kind}/{name}", np.asarray(array.values, dtype=float)


def error_result(error: Exception) -> tuple[str, np.ndarray]:
    """The class of an error as an array of its characters."""
    return f"error {type(error).__name__}", np.zeros(0)


def recorded(name: str, results: Callable[[], Results]) -> Results:
    """Results under a prefix; an error of normlens is one of them."""
    try:
        for inner, array in results():
            yield f"{name}/{inner}", array
    except NormlensError as error:
        inner, array = error_result(error)
        yield f"{name}/{inner}", array


def family_case(family: str) -> Case:
    """Analyses and explanations of a tiny model of one family, without and with padding."""

    def run() -> Results:
        try:
            model = tiny_model(family)
        except Exception:
            return
        lens = Lens(model)
        for padded in (False, True):
            inputs = tiny_inputs(model, padded=padded)
            shape = "padded" if padded else "one"
            for label, measures in (("standard", None), ("all", list(MEASURES))):
                yield from recorded(f"{shape}/{label}", lambda m=measures, i=inputs: _analyses(lens, i, m))
            for rule, options in RULES.items():
                yield from recorded(f"{shape}/{rule}", lambda o=options, i=inputs: _explanations(lens, i, o))

    return run


def _analyses(lens: Lens, inputs: dict[str, torch.Tensor], measures: list[str] | None) -> Results:
    for n, analysis in enumerate(lens.analyze_inputs(inputs, measures=measures)):
        for name, array in analysis_results(analysis):
            yield f"{n}/{name}", array


def _explanations(lens: Lens, inputs: dict[str, torch.Tensor], options: dict[str, str]) -> Results:
    try:
        explanations = lens.explain_inputs(inputs, output=17, position=2, parts=PARTS, **options)
    except NormlensError:
        explanations = lens.explain_inputs(inputs, output=17, position=2, **options)
    for n, explanation in enumerate(explanations):
        for name, array in explanation_results(explanation):
            yield f"{n}/{name}", array


# ---- texts, alignments, corpora, experiments -------------------------------------------------------------------------

TEXTS = ["The man went to the store, where he bought a gallon of milk.", "It rained.", "Nobody knows why they left."]


def embedded_texts() -> Results:
    """The embedded model on texts: batches, pairs, words."""
    lens = normlens.load()
    calls = {
        "batch": lambda: lens.analyze(TEXTS),
        "pair": lambda: [lens.analyze(TEXTS[0], pair=TEXTS[1])],
        "norms": lambda: [lens.analyze(TEXTS[0], words="norms")],
        "vectors": lambda: [lens.analyze(TEXTS[0], words="vectors", measures=["attnresln_n", "attn_n", "af_norm"])],
        "float64": lambda: [lens.analyze(TEXTS[0], precision="float64")],
        "ratios": lambda: [lens.analyze(TEXTS[0], measures=[], mixing=list(MAPS))],
        "layers": lambda: [lens.analyze(TEXTS[0], layers=[2, 5], measures=list(MEASURES))],
    }
    for name, call in calls.items():
        for n, analysis in enumerate(call()):
            for inner, array in analysis_results(analysis):
                yield f"{name}/{n}/{inner}", array
    yield "rollout", np.asarray(lens.analyze(TEXTS[0]).rollout().values)
    yield "singular values", np.asarray(lens.singular_values().values)
    yield "expansion rate", np.asarray(lens.expansion_rate().values)


def alignments() -> Results:
    """Links and strengths of a tiny translation model."""
    from normlens.alignment.aligner import Aligner
    from tests.alignment.models_for_tests import SENTENCES
    from tests.alignment.models_for_tests import lens as tiny_lens

    settings = {
        "cross": {"layer": 1},
        "head": {"measure": "af_norm", "head": 2, "layer": 1, "combine": "mean", "extract": "argmax"},
        "setting": {"setting": "awi", "layer": 2},
    }
    for name, options in settings.items():
        for n, pair in enumerate(Aligner(tiny_lens("marian"), **options).align(SENTENCES)):
            links = sorted((*link, strength) for link, strength in pair.confidences.items())
            yield f"{name}/{n}", np.array(links, dtype=float)


def corpus_tables() -> Results:
    """Every table of a small corpus."""
    from tests.corpus.conftest import RANKS, paragraphs, tiny_bert, tiny_tokenizer

    with tempfile.TemporaryDirectory() as folder:
        text = Path(folder) / "text.txt"
        text.write_text("\n".join(paragraphs(40, seed=3)) + "\n")
        lens = Lens(tiny_bert(), tiny_tokenizer(), name="tiny")
        result = lens.corpus(text, Path(folder) / "out", covariates={"rank": RANKS}, sample=50)
        for name in ("statistics", "correlations", "relative", "categories", "histograms"):
            yield from _frame(name, getattr(result, name, None))


def reproduced_numbers() -> Results:
    """The numbers of the experiments on a tiny BERT."""
    from normlens.experiments import kobayashi2020_bert, kobayashi2021, kobayashi2024
    from normlens.experiments.encoder_study import EncoderStudy
    from tests.corpus.conftest import paragraphs, tiny_bert, tiny_tokenizer

    with tempfile.TemporaryDirectory() as folder:
        text = Path(folder) / "text.txt"
        text.write_text("\n".join(["= A heading =", *paragraphs(40, seed=3)]) + "\n")
        lens = Lens(tiny_bert(), tiny_tokenizer(), name="tiny")
        for module in (kobayashi2020_bert, kobayashi2021):
            study = EncoderStudy(lens, Path(folder) / module.__name__, (text,), max_length=24)
            yield from _outcome(module.__name__.rpartition(".")[2], module.run(study))
        study_2024 = kobayashi2024.LayerStudy(lens, (text,), 6, 24, None)
        yield from _outcome("kobayashi2024", kobayashi2024.run(study_2024))


def _outcome(name: str, outcome: object) -> Results:
    for table in outcome.tables:  # type: ignore[attr-defined]
        for n, number in enumerate(table.numbers):
            yield f"{name}/{table.name}/{n}", np.asarray(number.measured, dtype=float)
    verdicts = [str(finding.verdict) for finding in outcome.findings]  # type: ignore[attr-defined]
    yield f"{name}/verdicts {json.dumps(verdicts)}", np.zeros(0)


def _frame(name: str, frame: object) -> Results:
    if frame is None:
        return
    numbers = frame.select_dtypes("number")  # type: ignore[attr-defined]
    for column in numbers.columns:
        yield f"{name}/{column}", numbers[column].to_numpy(dtype=float)


# ---- real models -----------------------------------------------------------------------------------------------------


def real_case(folder: str) -> Case:
    """Analyses and explanations of one real model."""

    def run() -> Results:
        load = next(case.load for case in REAL_MODELS if case.folder == folder)
        lens = normlens.load(MODELS / folder, **load)
        two_sided = getattr(lens.model.config, "is_encoder_decoder", False)
        target = {"target": "Il est parti."} if two_sided else {}
        yield from recorded("standard", lambda: analysis_results(lens.analyze(TEXTS[0], **target)))
        yield from recorded("all", lambda: analysis_results(lens.analyze(TEXTS[1], measures=list(MEASURES), **target)))
        for rule, options in RULES.items():
            where = {"position": 1} if not two_sided else {}
            call = {"output": 1, "parts": PARTS} | where | options
            yield from recorded(rule, lambda c=call: explanation_results(lens.explain(TEXTS[1], **target, **c)))

    return run


REAL_FOLDERS = tuple(case.folder for case in REAL_MODELS)

CASES: dict[str, Case] = {
    **{f"family {name}": family_case(name) for name in families()},
    "embedded texts": embedded_texts,
    "alignments": alignments,
    "corpus tables": corpus_tables,
    "reproduced numbers": reproduced_numbers,
}
REAL_CASES: dict[str, Case] = {f"real {name}": real_case(name) for name in REAL_FOLDERS}
