"""Kobayashi et al. 2021: how much a block mixes, with residual and normalization (tables, Figures 1, 3, 4, rates)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from normlens.corpus.result import CorpusResult
from normlens.errors import InputError
from normlens.experiments.claims import evaluate
from normlens.experiments.encoder_study import (
    MASKED,
    RANK,
    EncoderStudy,
    by_head,
    facts,
    layers_of,
    present,
    ran_on,
    rho_of,
    source_line,
    whole,
)
from normlens.experiments.outcome import Finding, Number, Outcome, Picture, Table, printed
from normlens.experiments.published import PublishedNumbers, published_text
from normlens.measures.table import BLOCK_MAPS, MEASURES, MIXING
from normlens.plots import plot_maps
from normlens.plots.points import Cloud, plot_points
from normlens.plots.series import Curve, Curves, plot_series
from normlens.plots.style import category_style, numbered_style

NAME = "kobayashi2021"

#: Figure 3's kinds of tokens: all of them, the masked ones, the two special ones, and the rest.
KINDS = ("all", "mask", "cls", "sep", "normal")

#: Figure 1 is drawn from this sentence, its third word masked.
EXAMPLE = "The old {mask} stands on a hill above the harbour, and its light can be seen for miles."


def run(study: EncoderStudy) -> Outcome:
    """One pass over the masked corpus for the ratios, one over the unmasked for frequency; the weights for rates."""
    if getattr(study.lens.tokenizer, "mask_token", None) is None:
        raise InputError(
            "the 2021 paper studies masked language models: this model's tokenizer has no mask token; use "
            "`normlens corpus` for its mixing ratios"
        )
    masked = study.run("masked", measures=(), mixing=None, mask=MASKED, ranked=False)
    plain = study.run("unmasked", measures=(), mixing=None, mask=0.0, ranked=True)
    record = {**study.record([masked, plain]), "masked_share": MASKED}
    published = PublishedNumbers.matching(NAME, study, record)
    tables = (
        mixing(masked, published),
        by_layer(masked, published),
        rho_rank(plain, published),
        expansion(study, published),
    )
    by_name = {table.name: table for table in tables}
    line = source_line(record)
    return Outcome(
        NAME,
        "How much a block mixes: attention, residual connection and normalization together",
        record,
        ran_on(record),
        _summary(by_name["mixing"]),
        findings_of(study, by_name, layers_of(masked)),
        tables,
        (_maps(study, line), _curves(masked, line), _all_curves(masked, line), _ranks(study, plain, line),
         _rates(by_name["expansion"], line)),
        facts(record),
        _notes(study),
        published.titles(),
        published.own,
    )  # fmt: skip


# ---- tables -------------------------------------------------------------------------------------------------------


def mixing(done: CorpusResult, published: PublishedNumbers) -> Table:
    """Mean, largest and smallest mixing ratio of each method over all tokens and layers, in per cent."""
    numbers = [
        Number(name, s, 100 * whole(done, MIXING + name, "all", s), 1, published("mixing", name, s))
        for name in BLOCK_MAPS
        for s in ("mean", "max", "min")
    ]
    return Table(
        "mixing",
        "Mixing ratio, %",
        "mixing-ratio table",
        tuple(numbers),
        {name: MEASURES[name].title for name in BLOCK_MAPS},
        {"mean": "mean", "max": "max", "min": "min"},
        f"Over all tokens and layers; {MASKED:.0%} of the tokens are masked. 100: everything comes from other "
        "positions, 0: nothing does.",
    )


def by_layer(done: CorpusResult, published: PublishedNumbers) -> Table:
    """Figure 3 in numbers."""
    numbers, rows = [], {}
    for kind in _kinds(done):
        rows[kind] = category_style(kind).label
        curve = 100 * by_head(done, MIXING + "attnresln_n", kind)[:, 0]
        numbers += [
            Number(kind, str(layer), float(value), 1, published("mixing_by_layer", kind, str(layer)))
            for layer, value in zip(layers_of(done), curve, strict=True)
        ]
    columns = {str(layer): f"layer {layer}" for layer in layers_of(done)}
    return Table(
        "figure-03", "Mixing ratio of ATTNRESLN-N by layer and kind of token, %", "Figure 3", tuple(numbers), rows,
        columns, folded=True,
    )  # fmt: skip


def rho_rank(done: CorpusResult, published: PublishedNumbers) -> Table:
    """Table 3: Spearman's rho of a token's frequency rank and its mixing ratio, averaged over layers."""
    numbers = []
    for name in BLOCK_MAPS:
        for category in ("all", "normal"):
            rho, bound, _ = rho_of(done, MIXING + name, RANK["code"], category)
            numbers.append(Number(name, category, rho, 2, published("rho_rank", name, category), bound))
    return Table(
        "table-3",
        "Rank correlation of frequency rank and mixing ratio",
        "Table 3",
        tuple(numbers),
        {name: MEASURES[name].title for name in BLOCK_MAPS},
        {"all": "all tokens", "normal": "without [CLS] and [SEP]"},
        "Nothing is masked here. A negative ρ means that frequent tokens mix more.",
    )


def expansion(study: EncoderStudy, published: PublishedNumbers) -> Table:
    """The expansion rate of f, from the weights alone, by the authors' matrix and by the 2020 paper's."""
    numbers, rows = [], {}
    for variant in ("code", "paper"):
        try:
            rates = study.lens.expansion_rate(variant)
        except InputError:  # the authors' matrix exists only where the heads together are as wide as the model
            continue
        # The published rates are those of the authors' matrix, and of no other.
        known = published if variant == "code" else PublishedNumbers(NAME)
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


def _maps(study: EncoderStudy, line: str) -> Picture:
    text = EXAMPLE.format(mask=study.lens.tokenizer.mask_token)
    analysis = study.lens.analyze(text, measures=list(BLOCK_MAPS))
    figure = plot_maps(analysis.sites["encoder"], list(BLOCK_MAPS), provenance=line.split(" · ")[0] + " · one sentence")
    caption = (
        f"“{text}” The diagonal is what a token keeps of itself: without residual connection and normalization (left) "
        "it looks small, with them (right) it dominates."
    )
    return Picture("figure-01", "The five methods on one sentence", "Figure 1", caption, figure)


def _curve_set(done: CorpusResult, name: str) -> tuple[Curve, ...]:
    return tuple(Curve(category_style(kind), by_head(done, MIXING + name, kind)[:, 0]) for kind in _kinds(done))


def _curves(done: CorpusResult, line: str) -> Picture:
    panels = [Curves("ATTNRESLN-N", "mixing ratio", _curve_set(done, "attnresln_n"))]
    figure = plot_series(panels, _places(done), "layer", size=(4.6, 2.3), provenance=line)
    caption = "Mean mixing ratio of the whole block by layer and kind of token, on masked input."
    return Picture("figure-03", "Mixing ratio by layer and kind of token", "Figure 3", caption, figure)


def _all_curves(done: CorpusResult, line: str) -> Picture:
    panels = [Curves(MEASURES[name].title, "mixing ratio", _curve_set(done, name)) for name in BLOCK_MAPS]
    figure = plot_series(panels, _places(done), "layer", shared=True, provenance=line)
    caption = "The same for all five methods, on one scale."
    return Picture("figure-03-methods", "Mixing ratio by layer, all methods", "Figure 3, extended", caption, figure)


def _ranks(study: EncoderStudy, done: CorpusResult, line: str) -> Picture:
    covariate = RANK["code"]
    points = done.token_sample
    normal = ~points["category"].isin(["cls", "sep", "mask", "special"]).to_numpy()
    rank = points[covariate].to_numpy()
    clouds = []
    for number, name in enumerate(BLOCK_MAPS):
        ratio = points[MIXING + name].to_numpy()
        both = [f"{rho_of(done, MIXING + name, covariate, c)[0]:+.2f}".replace("-", "−") for c in ("all", "normal")]
        note = f"ρ = {both[0]} (without special tokens {both[1]})"
        label = MEASURES[name].title
        behind = (rank[~normal], ratio[~normal])
        clouds.append(
            Cloud(
                label, note, numbered_style(label, number), rank[normal], ratio[normal], behind, "mixing ratio", top=1.0
            )
        )
    figure = plot_points(
        clouds, "frequency rank (1: most frequent)", lowest=1.0, highest=float(np.nanmax(rank)) * 1.1, median=True,
        across=3, size=(2.1, 1.7), provenance=line,
    )  # fmt: skip
    caption = (
        "Each point is a token, its ratio averaged over the layers; [CLS] and [SEP] in grey; the line runs through "
        f"medians of equal numbers of tokens. Ranks from {study.ranks_from}."
    )
    return Picture("figure-04", "Frequency rank against mixing ratio", "Figure 4", caption, figure)


def _rates(table: Table, line: str) -> Picture:
    layers = [row for row in table.rows if row.startswith("layer ")]
    curves = tuple(
        Curve(numbered_style(title, number), np.array([table.value(row, variant) for row in layers]))
        for number, (variant, title) in enumerate(table.columns.items())
    )
    panel = Curves("all heads of a layer together", "expansion rate", curves, level=1.0)
    places = [row.removeprefix("layer ") for row in layers]
    figure = plot_series([panel], places, "layer", size=(4.2, 2.0), provenance=line)
    caption = "How much f stretches a vector on average, from the weights alone; at 1 it keeps lengths."
    return Picture("expansion", "Expansion rate by layer", "Section 4.4", caption, figure)


def _places(done: CorpusResult) -> list[str]:
    return [str(layer) for layer in layers_of(done)]


# ---- claims ---------------------------------------------------------------------------------------------------------


def findings_of(study: EncoderStudy, tables: Mapping[str, Table], layers: Sequence[int]) -> tuple[Finding, ...]:
    """Every claim, in the order of the paper."""
    curves, rates = tables["figure-03"], tables["expansion"]
    chosen, twelve = middle(layers), middle(range(1, 13))
    numbers = {}
    for kind in curves.rows:
        numbers[f"middle/{kind}"] = _level(curves, kind, chosen)
        numbers[f"end/{kind}"] = _level(curves, kind, layers[-1:])
    numbers["middle/half of normal"] = 0.5 * numbers["middle/normal"]
    variant = study.definition if study.definition in rates.columns else next(iter(rates.columns))
    of_layers = [rates.value(row, variant) for row in rates.rows if row.startswith("layer ")]
    numbers["expansion layers below one"] = sum(rate < 1 for rate in of_layers)
    words = {
        "first": chosen[0],
        "last": chosen[-1],
        "end": layers[-1],
        "layers": len(of_layers),
        "variant": variant,
        "paper_mask": f"{_paper_level('mask', twelve)} and {_paper_level('normal', twelve)} in layers 4 to 9",
        "paper_sep": f"{_paper_level('sep', twelve)} and {_paper_level('normal', twelve)} in layers 4 to 9",
        "paper_cls": f"{_paper_level('cls', [12])} and {_paper_level('normal', [12])} in layer 12",
    }
    return evaluate(NAME, list(tables.values()), words, numbers)


def middle(layers: Sequence[int]) -> list[int]:
    """The middle half of the layers, at least one: 4 to 9 of 12."""
    quarter = len(layers) // 4
    return list(layers[quarter : len(layers) - quarter])


def _level(curves: Table, kind: str, layers: Sequence[int]) -> float:
    """The mean ratio of a kind of token over some layers, as it is printed."""
    return printed(float(np.mean([curves.value(kind, str(layer)) for layer in layers])), 1)


def _paper_level(kind: str, layers: Sequence[int]) -> str:
    values = [float(published_text(NAME, "mixing_by_layer", kind, str(layer))) for layer in layers]
    return f"{np.mean(values):.0f} %"


# ---- words --------------------------------------------------------------------------------------------------------


def _summary(table: Table) -> str:
    weights, whole_block = table.value("attn_w", "mean"), table.value("attnresln_n", "mean")
    return (
        f"By attention weights {weights:.1f} % of a token’s new vector seems to come from other tokens; with the "
        f"vectors, the residual connection and the normalization taken into account it is {whole_block:.1f} %."
    )


def _notes(study: EncoderStudy) -> tuple[str, ...]:
    return (
        f"The mixing-ratio table and Figure 3 are on masked input: int({MASKED} n) of the n tokens of a sequence other "
        "than special ones, at least one, become [MASK]; which ones depends on the seed and the sequence.",
        f"Frequency ranks come from {study.ranks_from} and are taken as they are; the input is not masked, a token’s "
        "ratio is averaged over the layers first.",
        "The expansion rate of the paper’s words and of the authors’ code use different matrices: the code multiplies "
        f"b_O into the last column. The published rates are the code’s; the finding uses “{study.definition}”.",
    )
