"""Kobayashi et al. 2020 on an encoder: weights against norms (Tables 1, 2, 4; Figures 3 to 6 and 9 to 12)."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from normlens.corpus.options import PAPER_MEASURES
from normlens.corpus.result import CorpusResult
from normlens.experiments.claims import evaluate
from normlens.experiments.encoder_study import (
    PAIR_CATEGORIES,
    RANK,
    EncoderStudy,
    by_head,
    facts,
    layers_of,
    present,
    ran_on,
    rho_of,
    shares,
    source_line,
)
from normlens.experiments.outcome import Finding, Number, Outcome, Picture, Table
from normlens.experiments.published import PublishedNumbers
from normlens.plots.points import Cloud, plot_points
from normlens.plots.series import Curve, Curves, plot_series
from normlens.plots.style import category_style, numbered_style, ordered_styles, round_up
from normlens.plots.tables import HeadTable, plot_head_tables

NAME = "kobayashi2020-bert"

_EXTREMES = {"largest_cv": "largest CV", "smallest_cv": "smallest CV"}
_STATISTICS = {"mean": "mean", "sd": "SD", "cv": "CV", "max": "max", "min": "min"}
_HEAT_MAPS = {"sep": 4, "cls": 10, "comma_period": 11, "other": 12}  # category -> figure of the paper

#: Categories as the subject of a sentence, with their verbs.
_SUBJECTS = {"sep": "[SEP] takes", "cls": "[CLS] takes", "comma_period": "Comma and period take"}


def run(study: EncoderStudy) -> Outcome:
    """Everything in one pass over the unmasked corpus."""
    done = study.run("unmasked", measures=PAPER_MEASURES, mixing=(), mask=0.0, ranked=True)
    record = study.record([done])
    published = PublishedNumbers.matching(NAME, study, record)
    tables = (
        dispersion_f(done, published),
        dispersion_x(done, published),
        rho_alpha_f(done, published),
        rho_rank(done, published),
        category_shares(done),
        singular_values(study),
        *by_layer_tables(done),
    )
    by_name = {table.name: table for table in tables}
    return Outcome(
        NAME,
        "Attention is not only a weight: what a token receives, by weight and by norm",
        record,
        ran_on(record),
        _summary(by_name["shares"]),
        findings_of(study, by_name),
        tables,
        _pictures(study, done, source_line(record)),
        facts(record),
        _notes(study),
        published.titles(),
        published.own,
    )


# ---- tables -------------------------------------------------------------------------------------------------------


def dispersion_f(done: CorpusResult, published: PublishedNumbers) -> Table:
    """Table 1: the head whose `‖f(x)‖` varies most, the one where it varies least, and the average of all heads."""
    return Table(
        "table-1",
        "How much ‖f(x)‖ varies within a head",
        "Table 1",
        _dispersion_numbers(done, "f_norm", "dispersion_f", published, heads=True),
        {**_EXTREMES, "average": "average of all heads"},
        {"layer": "layer", "head": "head", **_STATISTICS},
        "CV is the standard deviation divided by the mean; the average is over heads.",
    )


def dispersion_x(done: CorpusResult, published: PublishedNumbers) -> Table:
    """Table 4: the same for the vectors `x` that `f` acts on, by layer."""
    return Table(
        "table-4",
        "How much ‖x‖ varies within a layer",
        "Table 4",
        _dispersion_numbers(done, "x_norm", "dispersion_x", published, heads=False),
        {**_EXTREMES, "average": "average of all layers"},
        {"layer": "layer", **_STATISTICS},
    )


def _dispersion_numbers(
    done: CorpusResult, quantity: str, table: str, published: PublishedNumbers, *, heads: bool
) -> tuple[Number, ...]:
    found = {name: by_head(done, quantity, "all", name) for name in _STATISTICS}
    layers, numbers = layers_of(done), list[Number]()

    def add(row: str, column: str, value: float, decimals: int) -> None:
        numbers.append(Number(row, column, value, decimals, published(table, row, column)))

    for row, place in zip(_EXTREMES, (found["cv"].argmax(), found["cv"].argmin()), strict=True):
        layer, head = np.unravel_index(int(place), found["cv"].shape)
        for name, grid in found.items():
            add(row, name, float(grid[layer, head]), 2)
        add(row, "layer", layers[int(layer)], 0)
        if heads:
            add(row, "head", int(head) + 1, 0)
    for name in ("mean", "sd", "cv"):
        add("average", name, float(found[name].mean()), 2)
    return tuple(numbers)


def rho_alpha_f(done: CorpusResult, published: PublishedNumbers) -> Table:
    """Table 2: Spearman's rho of `alpha` and `‖f(x)‖` over all pairs, heads and layers."""
    numbers, rows = [], {}
    for name in present(done, PAIR_CATEGORIES):
        rho, bound, count = rho_of(done, "alpha", "f_norm", name)
        rows[name] = category_style(name).label
        numbers.append(Number(name, "pairs", count, 0, published("rho_alpha_f", name, "pairs")))
        numbers.append(Number(name, "rho", rho, 2, published("rho_alpha_f", name, "rho"), bound))
    return Table(
        "table-2",
        "Rank correlation of attention weight α and ‖f(x)‖",
        "Table 2",
        tuple(numbers),
        rows,
        {"pairs": "pairs", "rho": "Spearman’s ρ"},
        "Over all (query, key, head, layer) pairs, by the key’s category. "
        f"ρ is certain to within {max(n.bound for n in numbers):.4f}.",
    )


def rho_rank(done: CorpusResult, published: PublishedNumbers) -> Table:
    """Section 4.3: Spearman's rho of a token's frequency rank with its mean weight and its mean `‖f(x)‖`."""
    numbers = []
    for quantity in ("alpha", "f_norm"):
        for definition, covariate in RANK.items():
            rho, bound, _ = rho_of(done, quantity, covariate, "all")
            numbers.append(Number(quantity, definition, rho, 2, published("rho_rank", quantity, "rho"), bound))
    return Table(
        "section-4-3",
        "Rank correlation with a token’s frequency rank",
        "Section 4.3",
        tuple(numbers),
        {"alpha": "rank and α", "f_norm": "rank and ‖f(x)‖"},
        {"code": "ranks as in the authors’ code", "paper": "ranks as in the paper’s words"},
        "Per token: α is averaged over the queries of the sequence, and both over all heads and layers. Rank 1 is the "
        "most frequent token.",
    )


def category_shares(done: CorpusResult) -> Table:
    """The share of each category in weight and contribution, in an average layer."""
    categories = present(done, PAIR_CATEGORIES)
    weight, norm = (shares(done, quantity, categories).mean(axis=1) for quantity in ("alpha", "af_norm"))
    numbers = []
    for place, name in enumerate(categories):
        numbers.append(Number(name, "weight", float(weight[place]), 3))
        numbers.append(Number(name, "contribution", float(norm[place]), 3))
        numbers.append(Number(name, "ratio", float(norm[place] / weight[place]), 2))
    return Table(
        "shares",
        "What each category takes",
        "Figure 3, averaged over layers",
        tuple(numbers),
        {name: category_style(name).label for name in categories},
        {"weight": "of the weight α", "contribution": "of the contribution ‖αf(x)‖", "ratio": "ratio"},
        "Shares of all that a query receives, averaged over sequences and heads within a layer, then over layers.",
    )


def singular_values(study: EncoderStudy) -> Table:
    """Figure 9 in numbers: largest and smallest singular value of `f` in one head of each layer."""
    values = study.lens.singular_values()
    numbers, rows = [], {}
    for layer, head in _drawn_heads(study).items():
        own = values.sel(layer=layer, head=head).to_numpy()
        own = own[np.isfinite(own)]
        row = f"layer {layer}"
        rows[row] = f"layer {layer}, head {head}"
        numbers += [
            Number(row, "max", float(own.max()), 2),
            Number(row, "min", float(own.min()), 2),
            Number(row, "ratio", float(own.max() / own.min()), 1),
        ]
    ratio = values.max("rank") / values.min("rank")
    rows["all"] = "smallest ratio of all heads"
    numbers.append(Number("all", "ratio", float(ratio.min()), 1))
    return Table(
        "figure-09",
        "Singular values of f",
        "Figure 9",
        tuple(numbers),
        rows,
        {"max": "largest", "min": "smallest", "ratio": "largest / smallest"},
        "f as an affine map; one head of each layer, chosen at random with the run’s seed.",
        folded=True,
    )


def by_layer_tables(done: CorpusResult) -> list[Table]:
    """Figure 3 in numbers."""
    layers, tables = layers_of(done), []
    for quantity, title in (("alpha", "weight α"), ("af_norm", "‖αf(x)‖")):
        rows = {name: category_style(name).label for name in present(done, PAIR_CATEGORIES)}
        numbers = []
        for name in rows:
            curve = by_head(done, quantity, name, over="sequences").mean(axis=1)
            numbers += [Number(name, str(layer), float(v), 3) for layer, v in zip(layers, curve, strict=True)]
        columns = {str(layer): f"layer {layer}" for layer in layers}
        name = f"figure-03-{'weights' if quantity == 'alpha' else 'norms'}"
        tables.append(
            Table(name, f"Mean {title} by layer and category", "Figure 3", tuple(numbers), rows, columns, folded=True)
        )
    return tables


def _drawn_heads(study: EncoderStudy) -> dict[int, int]:
    rng = np.random.default_rng(study.seed)
    return {site.layer: int(rng.integers(1, site.heads + 1)) for site in study.lens.anatomy.sites}


# ---- figures ------------------------------------------------------------------------------------------------------


def _pictures(study: EncoderStudy, done: CorpusResult, line: str) -> tuple[Picture, ...]:
    return (_by_layer(done, line), *_heat_maps(done, line), _scatter(done, line), _ranks(study, done, line),
            _singular(study, line))  # fmt: skip


def _by_layer(done: CorpusResult, line: str) -> Picture:
    categories, layers = present(done, PAIR_CATEGORIES), layers_of(done)

    def curves(values: np.ndarray) -> tuple[Curve, ...]:
        return tuple(Curve(category_style(name), row) for name, row in zip(categories, values, strict=True))

    means = {
        quantity: np.stack([by_head(done, quantity, name, over="sequences").mean(axis=1) for name in categories])
        for quantity in ("alpha", "af_norm")
    }
    panels = [
        Curves("weight", "α, summed over keys", curves(means["alpha"])),
        Curves("norm", "‖αf(x)‖, summed over keys", curves(means["af_norm"])),
        Curves("share of the norms", "share of ‖αf(x)‖", curves(shares(done, "af_norm", categories))),
    ]
    figure = plot_series(panels, [str(layer) for layer in layers], "layer", provenance=line)
    caption = (
        "What a query receives from the keys of each category, by weight and by the norm of the vectors that really "
        "arrive; mean over queries, sequences and heads. The right panel divides the norms by their sum, so it can be "
        "compared with the weights on the left."
    )
    return Picture("figure-03", "Weight and contribution by layer", "Figure 3", caption, figure)


def _heat_maps(done: CorpusResult, line: str) -> list[Picture]:
    categories = present(done, tuple(_HEAT_MAPS))
    found = {
        name: (by_head(done, "alpha", name, over="sequences"), by_head(done, "f_norm", name, over="sequences"))
        for name in categories
    }
    weight_bar, norm_bar = "mean α, summed over the category’s keys", "mean ‖f(x)‖"
    highs = {weight_bar: 1.0, norm_bar: round_up(max(float(norms.max()) for _, norms in found.values()))}
    pictures = []
    for name, (weights, norms) in found.items():
        label = category_style(name).label
        tables = [HeadTable(f"{label}: weight", weight_bar, weights), HeadTable(f"{label}: norm", norm_bar, norms)]
        figure = plot_head_tables(tables, layers_of(done), highs=highs, provenance=line)
        caption = f"Mean weight on {label} and mean norm of the transformed vectors. Same scales for all categories."
        number = _HEAT_MAPS[name]
        pictures.append(
            Picture(f"figure-{number:02}-{name}", f"Layer by head: {label}", f"Figure {number}", caption, figure)
        )
    return pictures


def _scatter(done: CorpusResult, line: str) -> Picture:
    points = done.pair_sample
    weights, norms = points["alpha"].to_numpy(), points["f_norm"].to_numpy()
    clouds = []
    for name in present(done, PAIR_CATEGORIES):
        own = (points["category"] == name).to_numpy()
        if not own.any():
            continue
        note = f"ρ = {rho_of(done, 'alpha', 'f_norm', name)[0]:+.2f} over all pairs".replace("-", "−")
        style = category_style(name)
        behind = (weights[~own], norms[~own])
        clouds.append(Cloud(style.label, note, style, weights[own], norms[own], behind, "‖f(x)‖"))
    figure = plot_points(clouds, "α", lowest=1e-6, highest=1.0, provenance=line)
    caption = (
        f"A uniform sample of {len(points):,} of all (query, key, head, layer) pairs; the other categories in grey. "
        "Weights below 10⁻⁶ stand on the left edge."
    )
    return Picture("figure-05", "Weight against ‖f(x)‖", "Figure 5", caption, figure)


def _ranks(study: EncoderStudy, done: CorpusResult, line: str) -> Picture:
    covariate = RANK[study.definition]
    points = done.token_sample.dropna(subset=[covariate])
    rank = points[covariate].to_numpy()
    clouds, outside = [], {}
    for number, (quantity, name) in enumerate((("alpha", "α"), ("f_norm", "‖f(x)‖"))):
        note = f"ρ = {rho_of(done, quantity, covariate, 'all')[0]:+.2f}".replace("-", "−")
        values = points[quantity].to_numpy()
        top = round_up(float(np.quantile(values, 0.98)) * 1.2)  # a few special tokens would flatten all the others
        outside[name] = int((values > top).sum())
        clouds.append(Cloud(name, note, numbered_style(name, number), rank, values, None, f"mean {name}", top))
    figure = plot_points(
        clouds, "frequency rank (1: most frequent)", lowest=1.0, highest=float(rank.max()) * 1.1, shared=False,
        median=True, size=(2.6, 1.9), provenance=line,
    )  # fmt: skip
    caption = (
        f"Each point is a token of the corpus, averaged over heads and layers; the line runs through medians of equal "
        f"numbers of tokens. Ranks from {study.ranks_from}, definition “{study.definition}”. Above the upper ends lie "
        + " and ".join(f"{count:,} of {len(rank):,} points ({name})" for name, count in outside.items())
        + "."
    )
    return Picture("figure-06", "Frequency rank against weight and norm", "Figure 6", caption, figure)


def _singular(study: EncoderStudy, line: str) -> Picture:
    values = study.lens.singular_values()
    heads = _drawn_heads(study)
    curves = tuple(
        Curve(style, values.sel(layer=layer, head=head).to_numpy())
        for (layer, head), style in zip(
            heads.items(), ordered_styles([f"layer {layer}" for layer in heads]), strict=True
        )
    )
    places = [str(rank) for rank in values["rank"].to_numpy()]
    figure = plot_series(
        [Curves("one head of each layer", "singular value of f", curves)], places, "rank of the singular value",
        size=(4.6, 2.2), markers=False, provenance=line,
    )  # fmt: skip
    caption = "Were all singular values of a head equal, f would keep the order of the norms of its inputs."
    return Picture("figure-09", "Singular values of f", "Figure 9", caption, figure)


def findings_of(study: EncoderStudy, tables: Mapping[str, Table]) -> tuple[Finding, ...]:
    """Every claim, in the order of the paper."""
    words = {"definition": study.definition, "ranks_from": study.ranks_from}
    return evaluate(NAME, list(tables.values()), words)


# ---- words --------------------------------------------------------------------------------------------------------


def _summary(taken: Table) -> str:
    parts = []
    for name, takes in _SUBJECTS.items():
        if name in taken.rows:
            weight, contribution = taken.value(name, "weight"), taken.value(name, "contribution")
            parts.append(f"{takes} {weight:.2f} of the weight and {contribution:.2f} of the contribution")
    return "; ".join(parts) + "."


def _notes(study: EncoderStudy) -> tuple[str, ...]:
    return (
        f"Frequency ranks come from {study.ranks_from}. Definition “code” takes them as they are; definition “paper” "
        "leaves out special tokens and single characters and puts comma, period, [SEP] and [CLS] first. Both are "
        f"computed; findings and Figure 6 use “{study.definition}”.",
        "Figures 3, 4 and 10 to 12 aggregate as the authors’ code does: per sequence and head, α and ‖αf(x)‖ are "
        "summed over the keys of a category and averaged over the queries, ‖f(x)‖ is averaged over the category’s "
        "keys; then sequences are averaged, then (Figure 3) heads. A sequence without a category’s tokens gives 0 to "
        "its sums and nothing to its norms.",
    )
