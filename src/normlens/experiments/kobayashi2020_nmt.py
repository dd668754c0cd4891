"""Kobayashi et al. 2020 on a translation model: word alignment from the norms of cross-attention, scored by AER.

For any translation model, sentence pairs and gold alignments: AER of attention weights against norms, layer by layer
and head by head, in both settings; how a head's mean norm goes with its AER; the automatic choice of layers; gradient
baselines on the same model; other aligners from their output files.
"""

from __future__ import annotations

import numpy as np

from normlens.alignment.extraction import argmax_links, row_shares
from normlens.alignment.layer_choice import SETTINGS
from normlens.experiments.claims import evaluate
from normlens.experiments.outcome import Finding, Number, Outcome, Picture, Table, facts_of
from normlens.experiments.published import PublishedNumbers, document
from normlens.experiments.translation_study import AlignmentErrors, Quantity, TranslationStudy
from normlens.plots import alignment as plots
from normlens.types import JsonMapping

NAME = "kobayashi2020-nmt"


_SETTINGS = {"awi": "word taken in (awi)", "awo": "word put out (awo)"}
_ROWS: dict[str, str] = {setting: setting for setting in SETTINGS}
_QUANTITIES: dict[Quantity, str] = {"weights": "weights α", "norms": "norms ‖αf(x)‖"}
_GRADIENTS = {"li": "Li et al. 2016", "ding": "gradient x input, Ding et al. 2019"}
#: The paper's figures of single sentence pairs, filled with the first pairs of a readable length.
_FIGURES = (7, 8, 13, 14, 15, 16, 17)
_SHORTEST, _LONGEST = 5, 14


def run(study: TranslationStudy) -> Outcome:
    """Every layer and head on every pair in one pass; gradients and other aligners where they are asked for."""
    errors = study.errors()
    record = study.record(errors.max_proof_error)
    layers_chosen = {s: {"best": c.best_layer, "auto": list(c.auto_layers)} for s, c in errors.chosen.items()}
    # The authors' models were not released: their numbers are shown, and compared with nothing.
    published = PublishedNumbers(NAME, "europarl-de-en", "rwth", own=False)
    tables = (
        aer_by_layer(errors, published),
        norms_and_errors(errors, published),
        chosen_layers(errors),
        *other_aligners(study),
        agreement(errors),
        *by_head(errors),
    )
    return Outcome(
        NAME,
        "Attention is not only a weight: word alignments by weight and by norm",
        {**record, "layers_chosen": layers_chosen},
        f"Model {record['model']['name']} on {record['data']}: {record['pairs']:,} sentence pairs with gold alignments "
        f"from {record['gold']}. AER in per cent, lower is better.",
        _summary(errors),
        findings_of(errors),
        tables,
        _pictures(study, errors, record),
        facts_of(record, {"pairs": f"{record['pairs']:,}, of them too long or empty: {record['without_links']:,}"}),
        _notes(study, errors),
        published.titles(),
    )


# ---- tables -------------------------------------------------------------------------------------------------------


def aer_by_layer(errors: AlignmentErrors, published: PublishedNumbers) -> Table:
    """AER of weights and norms, heads added, layer by layer."""
    alike = len(errors.layers) == document()["models"][published.model]["layers"]  # else a layer has no counterpart
    numbers, rows = [], {}
    for setting in SETTINGS:
        for quantity in _QUANTITIES:
            row, values = f"{setting} {quantity}", errors.by_layer[setting][quantity]
            rows[row] = f"{setting}, {quantity}"
            for layer, value in zip(errors.layers, values, strict=True):
                known = published("aer_by_layer", row, f"layer {layer}") if alike else ()
                numbers.append(Number(row, f"layer {layer}", float(value), 1, known))
            for column, value in (("best", values.min()), ("mean", values.mean())):
                numbers.append(Number(row, column, float(value), 1, published("aer_by_layer", row, column)))
    columns = {f"layer {layer}": f"layer {layer}" for layer in errors.layers}
    return Table(
        "aer-by-layer",
        "AER by layer, %",
        "Section 5, Table 3",
        tuple(numbers),
        rows,
        {"best": "best layer", "mean": "mean of layers", **columns},
        "Heads are added before the norm is taken. A decoder’s row is read with the word that it takes in (awi) or with "
        "the word that it puts out (awo).",
    )


def norms_and_errors(errors: AlignmentErrors, published: PublishedNumbers) -> Table:
    """The correlation of a head's mean norm with its AER, and the AER of the head with the largest mean norm."""
    layer, head = errors.largest_norm_head
    numbers = []
    for setting in SETTINGS:
        known = published("norms_and_errors", setting, "spearman")
        numbers += [
            Number(setting, "spearman", errors.spearman(setting), 3, known),
            Number(setting, "layer", layer, 0),
            Number(setting, "head", head, 0),
            Number(
                setting,
                "aer",
                errors.head_error(setting, layer, head),
                1,
                published("norms_and_errors", setting, "aer"),
            ),
            Number(setting, "whole_layer", errors.layer_error(setting, layer), 1),
        ]
    return Table(
        "norms-and-errors",
        "Mean norm and AER of the heads",
        "Section 5",
        tuple(numbers),
        _ROWS,
        {
            "spearman": "Spearman’s ρ of mean norm and AER",
            "layer": "largest mean norm: layer",
            "head": "head",
            "aer": "its AER, %",
            "whole_layer": "its layer’s AER, %",
        },
        "Mean of ‖αf(x)‖ over all cells. A negative ρ means that heads with large norms align better.",
    )


def chosen_layers(errors: AlignmentErrors) -> Table:
    """The layers that `normlens align` would choose."""
    numbers = []
    for setting, chosen in errors.chosen.items():
        numbers += [
            Number(setting, "best_layer", chosen.best_layer, 0),
            Number(setting, "best", chosen.best, 1),
            Number(setting, "auto_layers", len(chosen.auto_layers), 0),
            Number(setting, "auto", chosen.auto, 1),
        ]
    joined = "; ".join(f"{s}: {', '.join(map(str, chosen.auto_layers))}" for s, chosen in errors.chosen.items())
    return Table(
        "chosen-layers",
        "Layers chosen without gold, by norms",
        "not in the paper",
        tuple(numbers),
        _ROWS,
        {"best_layer": "one layer", "best": "its AER, %", "auto_layers": "several: how many", "auto": "their AER, %"},
        f"By the agreement of the two readings. The several layers are {joined}.",
    )


def other_aligners(study: TranslationStudy) -> tuple[Table, ...]:
    """Gradient baselines on the same model, and the output of other aligners; nothing where none was asked for."""
    numbers, rows = [], {}
    for method, found in study.gradient_errors().items():
        rows[method] = _GRADIENTS.get(method, method)
        for column, value, decimals in (
            ("aer", found.aer, 1),
            ("pairs", found.pairs, 0),
            ("samples", found.samples, 0),
        ):
            numbers.append(Number(method, column, value, decimals))
    for name, value in study.other_errors().items():
        rows[name] = name
        numbers += [Number(name, "aer", value, 1), Number(name, "pairs", len(study.pairs), 0)]
    table = Table(
        "other-aligners",
        "Gradients and other aligners",
        "Table 3",
        tuple(numbers),
        rows,
        {"aer": "AER, %", "pairs": "pairs", "samples": "noisy samples"},
        "Gradients are of this model, and read with the word that is put out; with several samples they are smoothed.",
    )
    return (table,) if rows else ()


def agreement(errors: AlignmentErrors) -> Table:
    """The agreement of each layer's reading with another layer's other reading: the basis of the choice of layers."""
    numbers = [
        Number(str(layer), setting, value, 3)
        for setting in SETTINGS
        for layer, value in errors.agreement.scores(setting).items()
    ]
    rows = {str(layer): f"layer {layer}" for layer in errors.layers}
    return Table(
        "agreement", "Agreement of the two readings (F1)", "not in the paper", tuple(numbers), rows, _ROWS,
        folded=True,
    )  # fmt: skip


def by_head(errors: AlignmentErrors) -> list[Table]:
    """AER of every head, in both settings, and its mean norm."""
    grids = {
        f"heads-{setting}-{quantity}": (f"AER of every head, %: {_SETTINGS[setting]}, {_QUANTITIES[quantity]}", 1, grid)
        for setting, own in errors.by_head.items()
        for quantity, grid in own.items()
    }
    grids["heads-mean-norm"] = ("Mean ‖αf(x)‖ of every head", 3, errors.mean_norm)
    rows = {str(layer): f"layer {layer}" for layer in errors.layers}
    columns = {str(head): f"head {head}" for head in range(1, errors.mean_norm.shape[1] + 1)}
    return [
        Table(
            name,
            title,
            "Section 5",
            tuple(
                Number(row, column, float(value), decimals)
                for row, values in zip(rows, grid, strict=True)
                for column, value in zip(columns, values, strict=True)
            ),
            rows,
            columns,
            folded=True,
        )
        for name, (title, decimals, grid) in grids.items()
    ]


# ---- figures ------------------------------------------------------------------------------------------------------


def _pictures(study: TranslationStudy, errors: AlignmentErrors, record: JsonMapping) -> tuple[Picture, ...]:
    model, version = record["model"]["name"], record["versions"]["normlens"]
    line = f"{model} · {record['pairs']} pairs · normlens {version}"
    curves = plots.layer_curves(
        {setting: {what: list(values) for what, values in own.items()} for setting, own in errors.by_layer.items()},
        errors.layers,
        provenance=line,
    )
    heads = plots.head_tables(errors.by_head["awi"]["norms"], errors.mean_norm, errors.layers, provenance=line)
    return (
        Picture("aer-by-layer", "AER by layer", "Section 5", "Weights against norms, heads added.", curves),
        Picture("heads", "AER and mean norm of the heads", "Section 5", "Each head by itself, read as awi.", heads),
        *_examples(study, errors, line),
    )


def _examples(study: TranslationStudy, errors: AlignmentErrors, line: str) -> list[Picture]:
    """The first pairs of a readable length: weights beside norms in the layer that is chosen without gold."""
    fitting = [
        index
        for index, pair in enumerate(study.pairs)
        if pair.problem is None and all(_SHORTEST <= len(side.words) <= _LONGEST for side in (pair.source, pair.target))
    ]
    layer = errors.chosen["awi"].best_layer
    found = []
    for number, index in zip(_FIGURES, fitting, strict=False):
        pair, gold = study.pairs[index], study.gold_links[index]
        maps = {}
        for quantity in _QUANTITIES:
            by_layer = errors.maps[quantity][index]
            assert by_layer is not None, "a pair without a problem has its maps"
            maps[str(quantity)] = row_shares(by_layer[errors.layers.index(layer)])
        figure = plots.soft_alignments(
            maps,
            pair.source.words,
            pair.target.words,
            {what: argmax_links(scores) for what, scores in maps.items()},
            gold.sure,
            gold.possible,
            provenance=f"line {index + 1} · awi · layer {layer} · {line}",
        )
        caption = f"Line {index + 1}, layer {layer}: a dot is an extracted link, a frame a gold link."
        title = f"Weights and norms on one sentence pair, line {index + 1}"
        found.append(Picture(f"figure-{number:02}", title, f"as Figure {number}", caption, figure))
    return found


# ---- claims ---------------------------------------------------------------------------------------------------------


def findings_of(errors: AlignmentErrors) -> tuple[Finding, ...]:
    """Every claim, in the order of the paper."""
    numbers = {}
    for setting in SETTINGS:
        for what, values in errors.by_layer[setting].items():
            numbers[f"{setting}/{what}/best"] = float(np.min(values))
            numbers[f"{setting}/{what}/mean"] = float(np.mean(values))
        numbers[f"best layer/{setting}"] = errors.layers[int(np.argmin(errors.by_layer[setting]["norms"]))]
        numbers[f"rho/{setting}"] = errors.spearman(setting)
    layer, head = errors.largest_norm_head
    numbers["largest norm/aer"] = errors.head_error("awi", layer, head)
    numbers["largest norm/mean of heads"] = float(errors.by_head["awi"]["norms"].mean())
    return evaluate(NAME, (), {"layer": layer, "head": head}, numbers)


# ---- words --------------------------------------------------------------------------------------------------------


def _summary(errors: AlignmentErrors) -> str:
    best = {what: float(np.min(errors.by_layer["awi"][what])) for what in _QUANTITIES}
    return (
        f"Read with the word that the decoder takes in, the best layer has an alignment error rate of {best['norms']:.1f} "
        f"by norms and {best['weights']:.1f} by weights; the layers that are chosen without gold reach "
        f"{errors.chosen['awi'].auto:.1f} together."
    )


def _notes(study: TranslationStudy, errors: AlignmentErrors) -> tuple[str, ...]:
    v1 = PublishedNumbers(NAME, "wmt16-de-en", "rwth")
    rows = {"weights": "best", "norms": "best", "SmoothGrad (Li)": "aer", "SmoothGrad (Ding)": "aer", "fast_align": "aer",
            "GIZA++": "aer"}  # fmt: skip
    known = ", ".join(f"{row} {v1('aligners', row, column)[0].value}" for row, column in rows.items())
    return (
        "A word’s subwords: source columns are added, target rows averaged; the source’s special tokens share a column "
        "of their own, and a word whose largest value stands there has no link.",
        f"Layers are chosen on {errors.agreement.pairs:,} pairs by the agreement of the two readings, without gold.",
        f"Published in v1 of the paper, Table 3, for {document()['models'][v1.model]['title']} on "
        f"{document()['data'][v1.data]}: {known} (AER; weights and norms in the best layer).",
        *(f"{name} is read from {path.name}." for name, (path, _) in study.others.items()),
    )
