"""The table of protocols: each asks in another way whether the numbers of a method agree with what the model does.

A protocol gives columns, and a column one number per item. `better` says which end of a column is the faithful one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

import numpy as np

from normlens.errors import InputError
from normlens.faithfulness.erasure import erasure, removable, without
from normlens.faithfulness.gradients import gradient_x_input
from normlens.faithfulness.items import Item, probabilities
from normlens.faithfulness.ranking import order, reciprocal_rank
from normlens.faithfulness.samples import Sample
from normlens.faithfulness.sanity import in_double, moved, shuffled
from normlens.options import Removal
from normlens.statistics import spearman

if TYPE_CHECKING:
    from normlens.faithfulness.methods import Method
    from normlens.lens import Lens

#: Shares of tokens: ERASER's bins (DeYoung et al. 2020), and DecompX' top and bottom K (Modarressi et al. 2023).
ERASER_BINS = (0.01, 0.05, 0.10, 0.20, 0.50)
DECOMPX_SHARES = tuple(k / 10 for k in range(10))
#: How many items of a file serve the protocol `sanity`, which runs every method a dozen times.
SANITY_ITEMS = 8


@dataclass(frozen=True)
class Column:
    """One number of the table."""

    name: str
    title: str
    says: str
    better: Literal["high", "low", "neither"]


@dataclass(frozen=True)
class ProtocolInput:
    """The input of a protocol: one file's items, and how tokens are taken away."""

    lens: Lens
    sample: Sample
    how: Removal


#: One method's numbers for each item of a sample.
Scores = Sequence[np.ndarray]
Found = dict[str, np.ndarray]


@dataclass(frozen=True)
class Protocol:
    """One way to ask; `function` takes the numbers of several methods at once, so that what they share is run once."""

    name: str
    columns: tuple[Column, ...]
    function: Callable[[ProtocolInput, Mapping[str, Scores], Mapping[str, Method]], dict[str, Found]]


# ---- evidence --------------------------------------------------------------------------------------------------------


def evidence(asked: ProtocolInput, scores: Mapping[str, Scores], methods: Mapping[str, Method]) -> dict[str, Found]:
    """Reciprocal rank of the tokens that are known to decide, by what speaks for the right word."""
    known = asked.sample.evidence
    if known is None:
        raise InputError(
            f"{asked.sample.name!r} names no evidence, which the protocol `evidence` needs; give files with --evidence"
        )
    return {
        name: {"evidence": np.array([reciprocal_rank(s, k) for s, k in zip(found, known, strict=True)])}
        for name, found in scores.items()
    }


# ---- deletion and insertion ------------------------------------------------------------------------------------------


def deletion(asked: ProtocolInput, scores: Mapping[str, Scores], methods: Mapping[str, Method]) -> dict[str, Found]:
    """Drops of the output's probability when tokens are taken away, most important first, and least important first.

    comprehensiveness  mean over ERASER's bins of p(x) - p(x without the top tokens)
    sufficiency        mean over ERASER's bins of p(x) - p(the top tokens alone)
    aopc_top, aopc_bottom  mean over K = 0, 10, …, 90 % of p(x) - p(x without the top, or bottom, K %)

    A share of n tokens is ⌈share · n⌉ of them, but one token is always left. Nothing is clamped: a drop may be negative.
    """
    lens, how = asked.lens, asked.how
    plans = {
        name: [
            _plan(item, removable(lens, item, how), numbers)
            for item, numbers in zip(asked.sample.items, own, strict=True)
        ]
        for name, own in scores.items()
    }
    changed = [
        {gone: without(lens, item, gone, how) for name in plans for sets in plans[name][i].values() for gone in sets}
        for i, item in enumerate(asked.sample.items)
    ]
    distinct = {
        text: None for item, found in zip(asked.sample.items, changed, strict=True) for text in (item, *found.values())
    }
    chances = dict(zip(distinct, probabilities(lens, list(distinct)).tolist(), strict=True))

    def mean_drop(i: int, sets: Sequence[frozenset[int]]) -> float:
        if not sets:
            return math.nan
        whole = chances[asked.sample.items[i]]
        return float(np.mean([whole - chances[changed[i][gone]] for gone in sets]))

    return {
        name: {c.name: np.array([mean_drop(i, plan[c.name]) for i, plan in enumerate(own)]) for c in _DELETION}
        for name, own in plans.items()
    }


def _plan(item: Item, places: Sequence[int], numbers: np.ndarray) -> dict[str, list[frozenset[int]]]:
    """The sets of tokens that each column takes away; none where no token can be taken away from the others."""
    ranked, n = order(numbers, places), len(places)
    most = n if n < len(item.ids) else n - 1
    if most == 0:
        return {column.name: [] for column in _DELETION}

    def count(share: float) -> int:
        return min(most, math.ceil(round(share * n, 9)))

    return {
        "comprehensiveness": [frozenset(ranked[: count(share)]) for share in ERASER_BINS],
        "sufficiency": [frozenset(ranked[count(share) :]) for share in ERASER_BINS],
        "aopc_top": [frozenset(ranked[: count(share)]) for share in DECOMPX_SHARES],
        "aopc_bottom": [frozenset(ranked[::-1][: count(share)]) for share in DECOMPX_SHARES],
    }


# ---- agreement -------------------------------------------------------------------------------------------------------


def agreement(asked: ProtocolInput, scores: Mapping[str, Scores], methods: Mapping[str, Method]) -> dict[str, Found]:
    """Spearman with erasure and with gradient x input, over the tokens of each item.

    Numbers without a sign are compared with absolute values. Leave-one-out sees no interactions: agreement with it is
    no proof of being right.
    """
    lens, items = asked.lens, asked.sample.items
    beside = {
        "erasure": scores["erasure"] if "erasure" in scores else erasure(lens, items, asked.how),
        "gradient": scores["gradient_x_input"] if "gradient_x_input" in scores else gradient_x_input(lens, items),
    }
    places = [removable(lens, item, asked.how) for item in items]
    results: dict[str, Found] = {}
    for name, found in scores.items():
        results[name] = {}
        for other, theirs in beside.items():
            pairs = []
            for own, a, b in zip(places, found, theirs, strict=True):
                x, y = np.asarray(a)[list(own)], np.asarray(b)[list(own)]
                pairs.append(spearman(x, y if methods[name].signed else np.abs(y), fewest=3))
            results[name][f"agreement_{other}"] = np.array(pairs)
    return results


# ---- sanity ----------------------------------------------------------------------------------------------------------


def sanity(asked: ProtocolInput, scores: Mapping[str, Scores], methods: Mapping[str, Method]) -> dict[str, Found]:
    """Do the numbers change when the weights are shuffled (they must), by padding, batch or type (they must not)?

    The layers are shuffled one after the other from the last to the first; `randomized` is the mean over these stages of
    the absolute Spearman with the numbers of the model as it is. A handful of items, as stated, serves this protocol.
    """
    few = asked.sample.items[:SANITY_ITEMS]
    results: dict[str, Found] = {}
    stages = shuffled(asked.lens)
    for name, method in methods.items():
        own = scores[name][: len(few)]
        rhos = []
        for stage in stages():
            rhos.append([abs(spearman(a, b, fewest=3)) for a, b in zip(own, method.scores(stage, few), strict=True)])
        alone = [method.scores(asked.lens, [item])[0] for item in few]
        results[name] = {
            "randomized": np.nanmean(np.array(rhos), 0),
            "padding": moved(own, method.scores(asked.lens, [replace(item, padding=3) for item in few])),
            "batch": moved(own, alone),
            "double": moved(own, method.scores(in_double(asked.lens), few)),
        }
    return results


# ---- the table -------------------------------------------------------------------------------------------------------

_DELETION = (
    Column("comprehensiveness", "comprehensiveness", "drop of probability without the top tokens", "high"),
    Column("sufficiency", "sufficiency", "drop of probability with the top tokens alone", "low"),
    Column("aopc_top", "AOPC, top", "drop of probability without the top 0 to 90 %", "high"),
    Column("aopc_bottom", "AOPC, bottom", "drop of probability without the bottom 0 to 90 %", "low"),
)

PROTOCOLS: dict[str, Protocol] = {
    protocol.name: protocol
    for protocol in (
        Protocol(
            "evidence",
            (Column("evidence", "evidence, MRR", "mean reciprocal rank of the words that decide", "high"),),
            evidence,
        ),
        Protocol("deletion", _DELETION, deletion),
        Protocol(
            "agreement",
            (
                Column("agreement_erasure", "ρ, erasure", "Spearman with erasure", "neither"),
                Column("agreement_gradient", "ρ, gradient", "Spearman with gradient x input", "neither"),
            ),
            agreement,
        ),
        Protocol(
            "sanity",
            (
                Column(
                    "randomized",
                    "ρ, shuffled weights",
                    "Spearman with the numbers of the same model, shuffled",
                    "neither",
                ),
                Column("padding", "change by padding", "largest change by padding, over the largest number", "low"),
                Column("batch", "change by batch", "largest change by neighbours in a batch", "low"),
                Column("double", "change by dtype", "largest change in double precision", "low"),
            ),
            sanity,
        ),
    )
}


def find_protocols(names: Sequence[str]) -> list[Protocol]:
    """Protocols by their names."""
    unknown = [name for name in names if name not in PROTOCOLS]
    if unknown:
        raise InputError(f"protocol must be one of {', '.join(PROTOCOLS)}, got {', '.join(map(repr, unknown))}")
    return [PROTOCOLS[name] for name in names]
