"""The claims of Kobayashi et al. 2021, as checks with stated rules."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from normlens.experiments.outcome import Finding, Table, formatted
from normlens.experiments.published import reference
from normlens.experiments.setup import Setup
from normlens.measures import MAPS

_EXPERIMENT = "kobayashi2021"
CLEAR = 0.3  # a rank correlation at least this far from 0
HALF = 0.5


def findings_of(setup: Setup, tables: Mapping[str, Table], layers: Sequence[int]) -> tuple[Finding, ...]:
    """Every claim, in the order of the paper."""
    mixing, curves = tables["mixing"], tables["figure-03"]
    found = [_lowest(mixing), _residual(mixing), _normalization(mixing), _weights_mislead(mixing)]
    found += [check(curves, layers) for name, check in (("mask", _mask), ("sep", _sep), ("cls", _cls))
              if name in curves.rows]  # fmt: skip
    found += [_frequency(tables["table-3"], name) for name in ("attnres_n", "attnresln_n")]
    found += [_frequency_weights(tables["table-3"]), _shrinks(tables["expansion"], setup)]
    return tuple(found)


def _published(table: str, row: str, column: str) -> str:
    return reference(_EXPERIMENT, table, row, column)


def _mean(table: Table, name: str) -> float:
    return table.value(name, "mean")


def _lowest(table: Table) -> Finding:
    means = {name: _mean(table, name) for name in MAPS}
    lowest = min(means, key=lambda name: means[name])
    return Finding(
        "lowest",
        "Of the five methods, the one for the whole block (ATTNRESLN-N) gives the lowest mean mixing ratio.",
        "Section 4.1",
        lowest == "attnresln_n",
        "Mean mixing ratios: " + ", ".join(f"{table.rows[n]} {v:.1f} %" for n, v in means.items()) + ".",
        "holds if ATTNRESLN-N has the smallest mean",
        f"{_published('mixing', 'attnresln_n', 'mean')} %",
        means,
    )


def _residual(table: Table) -> Finding:
    without, with_ = _mean(table, "attn_n"), _mean(table, "attnres_n")
    return Finding(
        "residual",
        "The residual connection dominates: with it a token mostly keeps itself.",
        "Section 4.1",
        with_ < 100 * HALF and with_ < without,
        f"The mean ratio falls from {without:.1f} % (ATTN-N) to {with_:.1f} % (ATTNRES-N).",
        "holds if ATTNRES-N is below ATTN-N and below 50 %",
        f"from {_published('mixing', 'attn_n', 'mean')} % to {_published('mixing', 'attnres_n', 'mean')} %",
        {"attn_n": without, "attnres_n": with_},
    )


def _normalization(table: Table) -> Finding:
    before, after = _mean(table, "attnres_n"), _mean(table, "attnresln_n")
    return Finding(
        "normalization",
        "The normalization lowers the mixing further.",
        "Section 4.1",
        after < before,
        f"The mean ratio goes from {before:.1f} % (ATTNRES-N) to {after:.1f} % (ATTNRESLN-N).",
        "holds if ATTNRESLN-N is below ATTNRES-N",
        f"from {_published('mixing', 'attnres_n', 'mean')} % to {_published('mixing', 'attnresln_n', 'mean')} %",
        {"attnres_n": before, "attnresln_n": after},
    )


def _weights_mislead(table: Table) -> Finding:
    weights, norms = _mean(table, "attnres_w"), _mean(table, "attnres_n")
    return Finding(
        "weights_mislead",
        "Adding the residual to attention weights with equal shares overstates the mixing.",
        "Section 4.1",
        norms < weights,
        f"ATTNRES-W says {weights:.1f} %, the vectors themselves (ATTNRES-N) {norms:.1f} %.",
        "holds if ATTNRES-N is below ATTNRES-W",
        f"{_published('mixing', 'attnres_w', 'mean')} % and {_published('mixing', 'attnres_n', 'mean')} %",
        {"attnres_w": weights, "attnres_n": norms},
    )


def middle(layers: Sequence[int]) -> list[int]:
    """The middle half of the layers, at least one: 4 to 9 of 12."""
    count = len(layers)
    start, end = count // 4, count - count // 4
    return list(layers[start:end])


def _level(curves: Table, kind: str, layers: Sequence[int]) -> float:
    return float(np.mean([curves.value(kind, str(layer)) for layer in layers]))


def _paper_level(kind: str, layers: Sequence[int]) -> str:
    values = [float(_published("mixing_by_layer", kind, str(layer))) for layer in layers]
    return f"{np.mean(values):.0f} %"


def _mask(curves: Table, layers: Sequence[int]) -> Finding:
    chosen = middle(layers)
    mask, normal = _level(curves, "mask", chosen), _level(curves, "normal", chosen)
    twelve = middle(range(1, 13))
    return Finding(
        "mask",
        "In the middle layers [MASK] draws more from other tokens than ordinary tokens do.",
        "Section 4.2, Figure 3",
        mask > normal,
        f"In layers {chosen[0]} to {chosen[-1]} the ratio is {mask:.1f} % for [MASK] and {normal:.1f} % for ordinary "
        "tokens.",
        "holds if the mean over the middle half of the layers is higher for [MASK]",
        f"{_paper_level('mask', twelve)} and {_paper_level('normal', twelve)} in layers 4 to 9",
        {"mask": mask, "normal": normal},
    )


def _sep(curves: Table, layers: Sequence[int]) -> Finding:
    chosen = middle(layers)
    sep, normal = _level(curves, "sep", chosen), _level(curves, "normal", chosen)
    twelve = middle(range(1, 13))
    return Finding(
        "sep",
        "In the middle layers [SEP] mostly keeps itself.",
        "Section 4.2, Figure 3",
        sep < HALF * normal,
        f"In layers {chosen[0]} to {chosen[-1]} the ratio is {sep:.1f} % for [SEP] and {normal:.1f} % for ordinary "
        "tokens.",
        "holds if the mean over the middle half of the layers is less than half that of ordinary tokens",
        f"{_paper_level('sep', twelve)} and {_paper_level('normal', twelve)} in layers 4 to 9",
        {"sep": sep, "normal": normal},
    )


def _cls(curves: Table, layers: Sequence[int]) -> Finding:
    last = layers[-1]
    cls, normal = _level(curves, "cls", [last]), _level(curves, "normal", [last])
    return Finding(
        "cls",
        "In the last layer [CLS] gathers from the other tokens.",
        "Section 4.2, Figure 3",
        cls > normal,
        f"In layer {last} the ratio is {cls:.1f} % for [CLS] and {normal:.1f} % for ordinary tokens.",
        "holds if the ratio in the last layer is higher for [CLS]",
        f"{_paper_level('cls', [12])} and {_paper_level('normal', [12])} in layer 12",
        {"cls": cls, "normal": normal},
    )


def _frequency(table: Table, name: str) -> Finding:
    rho, plain = table.value(name, "all"), table.value(name, "normal")
    return Finding(
        f"frequency_{name}",
        f"Frequent tokens mix more, by {table.rows[name]}: the ratio falls with the frequency rank.",
        "Section 4.3, Table 3",
        rho <= -CLEAR,
        f"ρ of frequency rank and {table.rows[name]} ratio is {formatted(rho, 2)} "
        f"({formatted(plain, 2)} without special tokens).",
        f"holds if ρ over all tokens is at most −{CLEAR}",
        f"{_published('rho_rank', name, 'all')} ({_published('rho_rank', name, 'normal')})",
        {"rho": rho, "rho_normal": plain},
    )


def _frequency_weights(table: Table) -> Finding:
    weights, norms = table.value("attnres_w", "all"), table.value("attnres_n", "all")
    return Finding(
        "frequency_weights",
        "Attention weights show less of this relation to frequency than the vectors do.",
        "Section 4.3, Table 3",
        abs(weights) < abs(norms),
        f"ρ is {formatted(weights, 2)} for ATTNRES-W and {formatted(norms, 2)} for ATTNRES-N.",
        "holds if |ρ| is smaller for ATTNRES-W",
        f"{_published('rho_rank', 'attnres_w', 'all')} and {_published('rho_rank', 'attnres_n', 'all')}",
        {"attnres_w": weights, "attnres_n": norms},
    )


def _shrinks(table: Table, setup: Setup) -> Finding:
    variant = setup.definition if setup.definition in table.columns else next(iter(table.columns))
    mean, below = table.value("mean", variant), sum(
        table.value(row, variant) < 1 for row in table.rows if row.startswith("layer ")
    )  # fmt: skip
    count = sum(row.startswith("layer ") for row in table.rows)
    return Finding(
        "shrinks",
        "f shrinks what attention brings in, which is one reason why a token mostly keeps itself.",
        "Section 4.4",
        mean < 1,
        f"The expansion rate is {mean:.3f} on average (below 1 in {below} of {count} layers; {variant} variant).",
        "holds if the mean rate is below 1",
        f"{_published('expansion', 'mean', 'rate')}",
        {"mean": mean, "layers_below_one": float(below)},
    )
