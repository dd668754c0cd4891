"""Spearman's rho from counts, with a bound on its error that comes from the data itself.

Two tables are counted on fixed bins: fine bins of `x` against coarse bins of `y`, and coarse against fine.
Rank means of bins are exact; what a bin hides is only the order within it. Write the centred rank of pair `i` as
`R = r + d + delta`: the mean rank of its coarse bin, the fine bin's deviation from that, and what is hidden within the
fine bin; likewise `S = s + e + epsilon`. Then

    sum R S = sum (r + d) s + sum r e + sum d e   + sum delta (s + e) + sum (r + d) epsilon + sum delta epsilon

The first two sums stand in the tables. `sum d e` is known in each coarse cell up to the covariance within the cell. The
other three are bounded by Cauchy-Schwarz with `sum delta^2 <= n (n^2 - 1) / 12` per fine bin of `n` pairs, and with 0
for a bin that has been seen to hold one value only. See docs/corpus.md for the derivation.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float, Int

from normlens.errors import InputError

#: Above this bound a rho is flagged, and an exact second pass is worth its time.
TOLERANCE = 1e-3
CONSTANT = "a rank correlation needs two quantities that vary; one of these is constant"


@dataclass(frozen=True)
class RankCorrelation:
    """Spearman's rho: the true value lies within `bound` of `rho`, which is certain, not probable."""

    rho: float
    bound: float
    count: int

    @property
    def flagged(self) -> bool:
        """Whether the bound is too wide to quote three decimals."""
        return self.bound > TOLERANCE


@dataclass(frozen=True)
class RankedBins:
    """Ranks of one quantity, centred and divided by the count, as far as its bins tell them."""

    total: int
    parent: Int[np.ndarray, " fine"]  # the coarse bin of each fine bin
    fine: Float[np.ndarray, " fine"]  # mean rank of each fine bin
    coarse: Float[np.ndarray, " coarse"]
    deviation: Float[np.ndarray, " fine"]  # fine minus its coarse bin
    widest: Float[np.ndarray, " coarse"]  # the largest |deviation| within a coarse bin
    hidden: Float[np.ndarray, " fine"]  # the most that the squared ranks within a fine bin can add, per pair of all
    variance: float  # of the fine bins' mean ranks

    @classmethod
    def of(
        cls, counts: Float[np.ndarray, " fine"], parent: Int[np.ndarray, " fine"], tied: Bool[np.ndarray, " fine"]
    ) -> RankedBins:
        """From the number of pairs in each fine bin; a `tied` bin holds one value, so that no order is hidden in it."""
        total = int(counts.sum())
        scale = max(total, 1)
        fine = (np.cumsum(counts) - counts / 2.0) / scale - 0.5
        coarse_counts = np.bincount(parent, weights=counts, minlength=int(parent.max()) + 1)
        coarse = (np.cumsum(coarse_counts) - coarse_counts / 2.0) / scale - 0.5
        deviation = np.where(counts > 0, fine - coarse[parent], 0.0)
        widest = np.zeros(len(coarse))
        np.maximum.at(widest, parent, np.abs(deviation))
        share = counts / scale
        hidden = np.where(tied, 0.0, share * (share**2 - (1.0 / scale) ** 2) / 12.0)
        return cls(total, parent, fine, coarse, deviation, widest, np.maximum(hidden, 0.0), float(share @ fine**2))


@dataclass(frozen=True)
class CrossTable:
    """Occupied cells of a table: fine bin of one quantity, coarse bin of the other, number of pairs."""

    fine: Int[np.ndarray, " cell"]
    coarse: Int[np.ndarray, " cell"]
    count: Int[np.ndarray, " cell"]


def rho_of_tables(by_x: CrossTable, by_y: CrossTable, x: RankedBins, y: RankedBins) -> RankCorrelation:
    """Rho and its bound from the two tables."""
    check_count(x.total)
    # Ranks are divided by the count, so that products of a billion pairs stay far from float64's limits.
    x_weight, y_weight = by_x.count / x.total, by_y.count / x.total
    known = float((x_weight * x.fine[by_x.fine] * y.coarse[by_x.coarse]).sum())
    known += float((y_weight * y.deviation[by_y.fine] * x.coarse[by_y.coarse]).sum())
    cells = len(x.coarse) * len(y.coarse)
    x_cell = x.parent[by_x.fine] * len(y.coarse) + by_x.coarse
    y_cell = by_y.coarse * len(y.coarse) + y.parent[by_y.fine]
    mass = np.bincount(x_cell, weights=x_weight, minlength=cells)
    x_sum, x_square, y_sum, y_square = (
        np.bincount(cell, weights=weight * side.deviation[table.fine] ** power, minlength=cells)
        for cell, weight, side, table in ((x_cell, x_weight, x, by_x), (y_cell, y_weight, y, by_y))
        for power in (1, 2)
    )
    held = mass > 0
    mass, x_sum, x_square, y_sum, y_square = (array[held] for array in (mass, x_sum, x_square, y_sum, y_square))
    known += float((x_sum * y_sum / mass).sum())
    within = np.maximum(x_square - x_sum**2 / mass, 0.0) * np.maximum(y_square - y_sum**2 / mass, 0.0)
    hidden = float(np.sqrt(within).sum())
    hidden += _hidden_order(by_x, x_weight, x, y) + _hidden_order(by_y, y_weight, y, x)
    hidden += float(np.sqrt(x.hidden.sum() * y.hidden.sum()))
    return _interval(known, hidden, x, y)


def rho_of_pairs(
    x: Int[np.ndarray, " pair"], y: Int[np.ndarray, " pair"], count: Int[np.ndarray, " pair"], *, exact: bool
) -> RankCorrelation:
    """Rho of distinct pairs with their counts; unless `exact`, equal keys may hide an order and the bound says so."""
    check_count(int(count.sum()))
    (x, x_index), (y, y_index) = (np.unique(keys, return_inverse=True) for keys in (x, y))
    x_side, y_side = (
        RankedBins.of(np.bincount(index, weights=count), np.arange(len(keys)), np.full(len(keys), exact))
        for keys, index in ((x, x_index), (y, y_index))
    )
    weight = count / x_side.total
    known = float(np.sum(weight * x_side.fine[x_index] * y_side.fine[y_index]))
    hidden = float(np.sqrt(x_side.hidden.sum() * y_side.hidden.sum()))
    for own, other, index, partner in ((x_side, y_side, x_index, y_index), (y_side, x_side, y_index, x_index)):
        hidden += float(np.sqrt(own.hidden * _spread(index, weight, other.fine[partner])).sum())
    return _interval(known, hidden, x_side, y_side)


def check_count(total: int) -> None:
    """One pair, or none, has no correlation."""
    if total < 2:
        raise InputError(f"a correlation needs at least two pairs, this one has {total}: give it more data")


def _spread(
    bins: Int[np.ndarray, " cell"],
    weight: Float[np.ndarray, " cell"],
    values: Float[np.ndarray, " cell"],
    size: int = 0,
) -> Float[np.ndarray, " bin"]:
    """Weighted squared deviations of the values from their mean in each bin, summed."""
    mass = np.maximum(np.bincount(bins, weights=weight, minlength=size), 1e-300)
    mean = np.bincount(bins, weights=weight * values, minlength=size) / mass
    return np.bincount(bins, weights=weight * (values - mean[bins]) ** 2, minlength=size)


def _hidden_order(table: CrossTable, weight: Float[np.ndarray, " cell"], own: RankedBins, other: RankedBins) -> float:
    """The most that the order within fine bins can add, given where the partners of each bin lie."""
    size = len(own.fine)
    spread = _spread(table.fine, weight, other.coarse[table.coarse], size)
    blur = np.bincount(table.fine, weights=weight * other.widest[table.coarse] ** 2, minlength=size)
    return float((np.sqrt(own.hidden) * (np.sqrt(spread) + np.sqrt(blur))).sum())


def _interval(known: float, hidden: float, x: RankedBins, y: RankedBins) -> RankCorrelation:
    """The widest interval that covariance and variances allow; `rho` is the value if nothing hidden is ordered."""
    if x.variance + x.hidden.sum() <= 0 or y.variance + y.hidden.sum() <= 0:
        raise InputError(CONSTANT)
    most = (x.variance + x.hidden.sum()) * (y.variance + y.hidden.sum())
    least = x.variance * y.variance
    rho = known / np.sqrt(most)
    ends = [
        (known + sign * hidden) / np.sqrt(product) if product > 0 else sign
        for sign in (-1.0, 1.0)
        for product in (most, least)
    ]
    low, high = max(min(ends), -1.0), min(max(ends), 1.0)
    return RankCorrelation(float(np.clip(rho, -1.0, 1.0)), float(max(high - rho, rho - low, 0.0)), x.total)
