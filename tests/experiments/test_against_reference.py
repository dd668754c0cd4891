"""Every table of both experiments, for 20 sequences, against loops that know nothing of normlens."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path

import numpy as np
import pytest
import scipy.stats

from normlens.corpus.run import all_sequences
from normlens.experiments import kobayashi2020_bert, kobayashi2021
from normlens.experiments.encoder_study import MASKED, EncoderStudy
from normlens.experiments.outcome import Outcome
from normlens.lens import load
from tests.reference.papers import SlowBert, tables_2020, tables_2021

MODEL = Path(os.environ.get("NORMLENS_REAL_MODELS", "../models")) / "minilm"


def sequences(study: EncoderStudy, mask: float = 0.0) -> list[tuple[list[int], list[int], list[str]]]:
    """The sequences themselves are the engine's (their masks are random); what they are is said here anew."""
    tokenizer = study.lens.tokenizer
    found = all_sequences(
        study.lens,
        study.sources,
        pairs=True,
        max_length=study.max_length,
        mask=mask,
        seed=study.seed,
        skip=study.skip,
        limit=study.limit,
    )
    items = list(found)
    kinds = {"[CLS]": "cls", "[SEP]": "sep", "[MASK]": "mask", ",": "comma_period", ".": "comma_period"}
    tokens = [tokenizer.convert_ids_to_tokens(item.ids) for item in items]
    return [
        (item.ids.tolist(), item.segments.tolist(), [kinds.get(token, "other") for token in row])
        for item, row in zip(items, tokens, strict=True)
    ]


def close(measured: float, slow: float, tolerance: float = 2e-5) -> bool:
    return abs(measured - slow) <= tolerance * max(1.0, abs(slow))


def check_2020(study: EncoderStudy, outcome: Outcome) -> None:
    items = sequences(study)
    assert len(items) == 20
    slow = tables_2020(SlowBert(study.lens.model), items)
    for name, places in (("table-1", slow["f"]), ("table-4", slow["x"])):
        table = outcome.table(name)
        by_cv = sorted(places, key=lambda place: places[place]["cv"])
        for row, place in (("largest_cv", by_cv[-1]), ("smallest_cv", by_cv[0])):
            assert all(close(table.value(row, s), value) for s, value in places[place].items())
            layer = place[0] if isinstance(place, tuple) else place
            assert table.value(row, "layer") == layer
        for s in ("mean", "sd", "cv"):
            assert close(table.value("average", s), float(np.mean([own[s] for own in places.values()])))
    for category, rho in slow["rho"].items():
        number = outcome.table("table-2").at(category, "rho")
        assert number is not None and abs(number.measured - rho) <= number.bound + 1e-4
        assert outcome.table("table-2").value(category, "pairs") == slow["pairs"][category]
        taken = outcome.table("shares")
        assert close(taken.value(category, "weight"), slow["shares"][category, "weight"])
        assert close(taken.value(category, "contribution"), slow["shares"][category, "norm"])
    for definition, ranks in study.ranks.items():
        kept = [(ranks[token], weight, norm) for token, weight, norm in slow["tokens"] if np.isfinite(ranks[token])]
        rank, weight, norm = zip(*kept, strict=True)
        table = outcome.table("section-4-3")
        assert abs(table.value("alpha", definition) - scipy.stats.spearmanr(rank, weight)[0]) < 1e-4
        assert abs(table.value("f_norm", definition) - scipy.stats.spearmanr(rank, norm)[0]) < 1e-4


def check_2021(study: EncoderStudy, outcome: Outcome) -> None:
    bert = SlowBert(study.lens.model)
    masked = tables_2021(bert, sequences(study, MASKED))
    for method, row in masked["mixing"].items():
        assert all(close(outcome.table("mixing").value(method, s), 100 * value) for s, value in row.items())
    for (category, layer), mean in masked["by_layer"].items():
        if category in ("mask", "cls", "sep"):
            assert close(outcome.table("figure-03").value(category, str(layer)), 100 * mean)
    plain = tables_2021(bert, sequences(study))
    ranks = study.ranks["code"]
    for method in masked["mixing"]:
        for column, left_out in (("all", ()), ("normal", ("cls", "sep"))):
            pairs = [(ranks[t], own[method]) for t, category, own in plain["tokens"] if category not in left_out]
            rho = scipy.stats.spearmanr(*zip(*pairs, strict=True))[0]
            assert abs(outcome.table("table-3").value(method, column) - rho) < 2e-4
    rates = bert.expansion()
    for layer, rate in enumerate(rates, 1):
        assert close(outcome.table("expansion").value(f"layer {layer}", "code"), rate)
    assert close(outcome.table("expansion").value("mean", "code"), float(np.mean(rates)))


def test_2020_tables(study_2020: EncoderStudy, outcome_2020: Outcome) -> None:
    check_2020(study_2020, outcome_2020)


def test_2021_tables(study_2021: EncoderStudy, outcome_2021: Outcome) -> None:
    check_2021(study_2021, outcome_2021)


def test_singular_values(study_2020: EncoderStudy, outcome_2020: Outcome) -> None:
    slow, table = SlowBert(study_2020.lens.model), outcome_2020.table("figure-09")
    every = [slow.singular_values(layer, head) for layer in range(2) for head in range(2)]
    assert close(table.value("all", "ratio"), min(float(values[0] / values[-1]) for values in every))


def test_the_authors_matrix_is_not_the_papers(outcome_2021: Outcome) -> None:
    """The variants must be told apart: with a bias on the output they give different rates."""
    table = outcome_2021.table("expansion")
    assert table.value("mean", "code") != table.value("mean", "paper")


@pytest.mark.real
def test_minilm(tmp_path: Path) -> None:
    """The same on a real model and the sample corpus; sequences are cut short, since the loops are slow."""
    if not MODEL.is_dir():
        pytest.skip(f"needs the real model at {MODEL} (NORMLENS_REAL_MODELS)")
    study = EncoderStudy(load(MODEL), tmp_path / "a", limit=20, max_length=24)
    check_2020(study, kobayashi2020_bert.run(study))
    study = dataclasses.replace(study, out=tmp_path / "b")
    check_2021(study, kobayashi2021.run(study))
