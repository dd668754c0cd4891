"""Kobayashi et al. 2021: how much a block mixes, with residual and normalization (tables, Figures 1, 3, 4, rates)."""

from __future__ import annotations

import numpy as np

from normlens.corpus.plan import MIXING
from normlens.corpus.result import CorpusResult
from normlens.errors import InputError
from normlens.experiments.claims2021 import findings_of
from normlens.experiments.outcome import Number, Outcome, Picture, Table
from normlens.experiments.published import Shelf
from normlens.experiments.reading import by_head, layers_of, present, rho_of, whole
from normlens.experiments.setup import MASKED, RANK, Setup
from normlens.measures import MAPS
from normlens.plots import plot_maps
from normlens.plots.categories import Look, category_look
from normlens.plots.labels import label_of
from normlens.plots.points import Cloud, plot_points
from normlens.plots.series import Curve, Curves, plot_series

NAME = "kobayashi2021"

#: Figure 3's kinds of tokens: all of them, the masked ones, the two special ones, and the rest.
KINDS = ("all", "mask", "cls", "sep", "normal")

#: Figure 1 is drawn from this sentence, its third word masked.
EXAMPLE = "The old {mask} stands on a hill above the harbour, and its light can be seen for miles."

_METHOD_COLOURS = ("#56b4e9", "#e69f00", "#0072b2", "#d55e00", "#009e73")


def run(setup: Setup) -> Outcome:
    """One pass over the masked corpus for the ratios, one over the unmasked for frequency; the weights for rates."""
    if getattr(setup.lens.tokenizer, "mask_token", None) is None:
        raise InputError(
            "the 2021 paper studies masked language models: this model's tokenizer has no mask token; use "
            "`normlens corpus` for its mixing ratios"
        )
    masked = setup.run("masked", measures=(), mixing=None, mask=MASKED, ranked=False)
    plain = setup.run("unmasked", measures=(), mixing=None, mask=0.0, ranked=True)
    record = {**setup.record([masked, plain]), "masked_share": MASKED}
    shelf = Shelf.of(NAME, setup, record)
    tables = (mixing(masked, shelf), by_layer(masked, shelf), rho_rank(plain, shelf), expansion(setup, shelf))
    by_name = {table.name: table for table in tables}
    line = f"{record['model']['name']} · {record['data']}, {record['sequences']} sequences · normlens"
    line += f" {record['versions']['normlens']}"
    return Outcome(
        NAME,
        "How much a block mixes: attention, residual connection and normalization together",
        "kobayashi2021",
        record,
        _summary(by_name["mixing"]),
        findings_of(setup, by_name, layers_of(masked)),
        tables,
        (_maps(setup, line), _curves(masked, line), _all_curves(masked, line), _ranks(setup, plain, line),
         _rates(by_name["expansion"], line)),
        _notes(setup),
        shelf.titles(),
    )  # fmt: skip


# ---- tables -------------------------------------------------------------------------------------------------------


def mixing(done: CorpusResult, shelf: Shelf) -> Table:
    """Mean, largest and smallest mixing ratio of each method over all tokens and layers, in per cent."""
    numbers = [
        Number(name, s, 100 * whole(done, MIXING + name, "all", s), 1, shelf("mixing", name, s))
        for name in MAPS
        for s in ("mean", "max", "min")
    ]
    return Table(
        "mixing",
        "Mixing ratio, %",
        "mixing-ratio table",
        tuple(numbers),
        {name: label_of(name).name for name in MAPS},
        {"mean": "mean", "max": "max", "min": "min"},
        f"Over all tokens and layers; {MASKED:.0%} of the tokens are masked. 100: everything comes from other "
        "positions, 0: nothing does.",
    )


def by_layer(done: CorpusResult, shelf: Shelf) -> Table:
    """Figure 3 in numbers."""
    numbers, rows = [], {}
    for kind in _kinds(done):
        rows[kind] = category_look(kind).label
        curve = 100 * by_head(done, MIXING + "attnresln_n", kind)[:, 0]
        numbers += [
            Number(kind, str(layer), float(value), 1, shelf("mixing_by_layer", kind, str(layer)))
            for layer, value in zip(layers_of(done), curve, strict=True)
        ]
    columns = {str(layer): f"layer {layer}" for layer in layers_of(done)}
    return Table(
        "figure-03", "Mixing ratio of ATTNRESLN-N by layer and kind of token, %", "Figure 3", tuple(numbers), rows,
        columns, folded=True,
    )  # fmt: skip


def rho_rank(done: CorpusResult, shelf: Shelf) -> Table:
    """Table 3: Spearman's rho of a token's frequency rank and its mixing ratio, averaged over layers."""
    numbers = []
    for name in MAPS:
        for category in ("all", "normal"):
            rho, bound, _ = rho_of(done, MIXING + name, RANK["code"], category)
            numbers.append(Number(name, category, rho, 2, shelf("rho_rank", name, category), bound))
    return Table(
        "table-3",
        "Rank correlation of frequency rank and mixing ratio",
        "Table 3",
        tuple(numbers),
        {name: label_of(name).name for name in MAPS},
        {"all": "all tokens", "normal": "without [CLS] and [SEP]"},
        "Nothing is masked here. A negative ρ means that frequent tokens mix more.",
    )


def expansion(setup: Setup, shelf: Shelf) -> Table:
    """How much f stretches a vector, from the weights alone, by the authors' matrix and by the 2020 paper's."""
    numbers, rows = [], {}
    for variant in ("code", "paper"):
        try:
            rates = setup.lens.expansion_rate(variant)
        except InputError:  # the authors' matrix exists only where the heads together are as wide as the model
            continue
        # The published rates are those of the authors' matrix, and of no other.
        known = shelf if variant == "code" else Shelf(NAME, None, None)
        values = {
            f"layer {layer}": float(rate) for layer, rate in zip(rates["layer"].values, rates.values, strict=True)
        }
        values |= {"mean": float(rates.mean()), "min": float(rates.min()), "max": float(rates.max())}
        for row, value in values.items():
            rows[row] = row
            numbers.append(Number(row, variant, value, 3, known("expansion", row, "rate")))
    titles = {"code": "authors’ code", "paper": "2020 paper, Appendix B"}
    present_variants = {n.column for n in numbers}
    return Table(
        "expansion",
        "Expansion rate of f",
        "Section 4.4",
        tuple(numbers),
        rows,
        {name: title for name, title in titles.items() if name in present_variants},
        "Below 1, f shrinks a vector on average. Both matrices are computed; “definition” chooses the one that the "
        "finding uses.",
    )


def _kinds(done: CorpusResult) -> tuple[str, ...]:
    return ("all", *present(done, KINDS[1:4]), "normal")


# ---- figures ------------------------------------------------------------------------------------------------------


def _maps(setup: Setup, line: str) -> Picture:
    text = EXAMPLE.format(mask=setup.lens.tokenizer.mask_token)
    analysis = setup.lens.analyze(text, measures=list(MAPS))
    figure = plot_maps(analysis.sites["encoder"], list(MAPS), provenance=line.split(" · ")[0] + " · one sentence")
    caption = (
        f"“{text}” The diagonal is what a token keeps of itself: without residual connection and normalization (left) "
        "it looks small, with them (right) it dominates."
    )
    return Picture("figure-01", "The five methods on one sentence", "Figure 1", caption, figure)


def _curve_set(done: CorpusResult, name: str) -> tuple[Curve, ...]:
    return tuple(Curve(category_look(kind), by_head(done, MIXING + name, kind)[:, 0]) for kind in _kinds(done))


def _curves(done: CorpusResult, line: str) -> Picture:
    panels = [Curves("ATTNRESLN-N", "mixing ratio", _curve_set(done, "attnresln_n"))]
    figure = plot_series(panels, _places(done), "layer", size=(4.6, 2.3), provenance=line)
    caption = "Mean mixing ratio of the whole block by layer and kind of token, on masked input."
    return Picture("figure-03", "Mixing ratio by layer and kind of token", "Figure 3", caption, figure)


def _all_curves(done: CorpusResult, line: str) -> Picture:
    panels = [Curves(label_of(name).name, "mixing ratio", _curve_set(done, name)) for name in MAPS]
    figure = plot_series(panels, _places(done), "layer", shared=True, provenance=line)
    caption = "The same for all five methods, on one scale."
    return Picture("figure-03-methods", "Mixing ratio by layer, all methods", "Figure 3, extended", caption, figure)


def _ranks(setup: Setup, done: CorpusResult, line: str) -> Picture:
    covariate = RANK["code"]
    points = done.token_sample
    normal = ~points["category"].isin(["cls", "sep", "mask", "special"]).to_numpy()
    rank = points[covariate].to_numpy()
    clouds = []
    for name, colour in zip(MAPS, _METHOD_COLOURS, strict=True):
        ratio = points[MIXING + name].to_numpy()
        both = [f"{rho_of(done, MIXING + name, covariate, c)[0]:+.2f}".replace("-", "−") for c in ("all", "normal")]
        note = f"ρ = {both[0]} (without special tokens {both[1]})"
        label = label_of(name).name
        behind = (rank[~normal], ratio[~normal])
        clouds.append(
            Cloud(label, note, Look(label, colour), rank[normal], ratio[normal], behind, "mixing ratio", top=1.0)
        )
    figure = plot_points(
        clouds, "frequency rank (1: most frequent)", lowest=1.0, highest=float(np.nanmax(rank)) * 1.1, median=True,
        across=3, size=(2.1, 1.7), provenance=line,
    )  # fmt: skip
    caption = (
        "Each point is a token, its ratio averaged over the layers; [CLS] and [SEP] in grey; the line runs through "
        f"medians of equal numbers of tokens. Ranks from {setup.ranks_from}."
    )
    return Picture("figure-04", "Frequency rank against mixing ratio", "Figure 4", caption, figure)


def _rates(table: Table, line: str) -> Picture:
    layers = [row for row in table.rows if row.startswith("layer ")]
    curves = tuple(
        Curve(
            Look(title, colour, marker, dashed=marker == "x"), np.array([table.value(row, variant) for row in layers])
        )
        for (variant, title), colour, marker in zip(table.columns.items(), ("#0072b2", "#d55e00"), "ox", strict=False)
    )
    panel = Curves("all heads of a layer together", "expansion rate", curves, level=1.0)
    places = [row.removeprefix("layer ") for row in layers]
    figure = plot_series([panel], places, "layer", size=(4.2, 2.0), provenance=line)
    caption = "How much f stretches a vector on average, from the weights alone; at 1 it keeps lengths."
    return Picture("expansion", "Expansion rate by layer", "Section 4.4", caption, figure)


def _places(done: CorpusResult) -> list[str]:
    return [str(layer) for layer in layers_of(done)]


# ---- words --------------------------------------------------------------------------------------------------------


def _summary(table: Table) -> str:
    weights, whole_block = table.value("attn_w", "mean"), table.value("attnresln_n", "mean")
    return (
        f"By attention weights {weights:.1f} % of a token’s new vector seems to come from other tokens; with the "
        f"vectors, the residual connection and the normalization taken into account it is {whole_block:.1f} %."
    )


def _notes(setup: Setup) -> tuple[str, ...]:
    return (
        f"The mixing-ratio table and Figure 3 are on masked input: int({MASKED} n) of the n tokens of a sequence other "
        "than special ones, at least one, become [MASK]; which ones depends on the seed and the sequence.",
        f"Frequency ranks come from {setup.ranks_from} and are taken as they are; the input is not masked, a token’s "
        "ratio is averaged over the layers first.",
        "The expansion rate of the paper’s words and of the authors’ code use different matrices: the code multiplies "
        f"b_O into the last column. The published rates are the code’s; the finding uses “{setup.definition}”.",
    )
