"""Spearman's rho from counts, with a bound on its error that comes from the data itself.

Two tables are counted on fixed bins: fine bins of `x` against coarse bins of `y`, and coarse against fine.
Rank means of bins are exact; what a bin hides is only the order within it. Write the centred rank of pair `i` as
`R = r + d + delta`: the mean rank of its coarse bin, the fine bin's deviation from that, and what is hidden within the
fine bin; likewise `S = s + e + epsilon`. Then

    sum R S = sum (r + d) s + sum r e + sum d e   + sum delta (s + e) + sum (r + d) epsilon + sum delta epsilon

The first two sums stand in the tables. `sum d e` is known in each coarse cell up to the covariance within the cell. The
other three are bounded by Cauchy-Schwarz with `sum delta^2 <= n (n^2 - 1) / 12` per fine bin of `n` pairs, and with 0
for a bin that holds one value only. See docs/corpus.md for the derivation.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from jaxtyping import Bool, Float, Int

from normlens.corpus.bins import Binning, BinNumbers
from normlens.errors import InputError

#: Above this bound a rho is flagged, and an exact second pass is worth its time.
TOLERANCE = 1e-3
_INT32_LIMIT = 2**31 - 1
_COMPACT = 1 << 18  # pairs that wait before they are sorted in


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
    """Return rho and its bound from the two tables."""
    check_count(x.total)
    # Ranks are divided by the count, so that products of a billion pairs stay far from float64's limits.
    x_weight, y_weight = by_x.count / x.total, by_y.count / x.total
    known = float((x_weight * x.fine[by_x.fine] * y.coarse[by_x.coarse]).sum())
    known += float((y_weight * y.deviation[by_y.fine] * x.coarse[by_y.coarse]).sum())
    cells = len(x.coarse) * len(y.coarse)
    x_cell = x.parent[by_x.fine] * len(y.coarse) + by_x.coarse
    y_cell = by_y.coarse * len(y.coarse) + y.parent[by_y.fine]
    mass = np.bincount(x_cell, weights=x_weight, minlength=cells)
    held = mass > 0

    def cell_sum(cell: np.ndarray, values: np.ndarray) -> np.ndarray:
        return np.bincount(cell, weights=values, minlength=cells)[held]

    mass = mass[held]
    x_sum = cell_sum(x_cell, x_weight * x.deviation[by_x.fine])
    x_square = cell_sum(x_cell, x_weight * x.deviation[by_x.fine] ** 2)
    y_sum = cell_sum(y_cell, y_weight * y.deviation[by_y.fine])
    y_square = cell_sum(y_cell, y_weight * y.deviation[by_y.fine] ** 2)
    known += float((x_sum * y_sum / mass).sum())
    within = np.maximum(x_square - x_sum**2 / mass, 0.0) * np.maximum(y_square - y_sum**2 / mass, 0.0)
    hidden = float(np.sqrt(within).sum())
    hidden += _hidden_order(by_x, x_weight, x, y) + _hidden_order(by_y, y_weight, y, x)
    hidden += float(np.sqrt(x.hidden.sum() * y.hidden.sum()))
    return _interval(known, hidden, x, y)


def rho_of_pairs(
    x: Int[np.ndarray, " pair"], y: Int[np.ndarray, " pair"], count: Int[np.ndarray, " pair"], *, exact: bool
) -> RankCorrelation:
    """Return rho of distinct pairs with their counts; unless `exact`, equal keys may hide an order."""
    check_count(int(count.sum()))
    x_side, x_index = _ranked(x, count, exact)
    y_side, y_index = _ranked(y, count, exact)
    weight = count / x_side.total
    known = float(np.sum(weight * x_side.fine[x_index] * y_side.fine[y_index]))
    hidden = float(np.sqrt(x_side.hidden.sum() * y_side.hidden.sum()))
    for own, other, index, partner in ((x_side, y_side, x_index, y_index), (y_side, x_side, y_index, x_index)):
        hidden += float(np.sqrt(own.hidden * _spread(index, weight, other.fine[partner])).sum())
    return _interval(known, hidden, x_side, y_side)


def _ranked(keys: np.ndarray, count: np.ndarray, exact: bool) -> tuple[RankedBins, np.ndarray]:
    distinct, index = np.unique(keys, return_inverse=True)
    counts = np.bincount(index, weights=count)
    return RankedBins.of(counts, np.arange(len(distinct)), np.full(len(distinct), exact)), index


def check_count(total: int) -> None:
    """Raise an error for one pair, or none."""
    if total < 2:
        raise InputError(f"a correlation needs at least two pairs, got {total}")


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
    most = (x.variance + x.hidden.sum()) * (y.variance + y.hidden.sum())
    least = x.variance * y.variance
    if most <= 0:
        raise InputError("a rank correlation needs two quantities that vary, one is constant")
    rho = known / np.sqrt(most)
    ends = []
    for sign in (-1.0, 1.0):
        ends.append((known + sign * hidden) / np.sqrt(most))
        ends.append((known + sign * hidden) / np.sqrt(least) if least > 0 else sign)
    low, high = max(min(ends), -1.0), min(max(ends), 1.0)
    return RankCorrelation(float(np.clip(rho, -1.0, 1.0)), float(max(high - rho, rho - low, 0.0)), x.total)


# ---- accumulators ------------------------------------------------------------------------------------------------------


class BinnedRanks:
    """Spearman's rho of two quantities within each of `groups` groups, from counts in bins.

    >>> from normlens.corpus.bins import NORM_BINS
    >>> ranks = BinnedRanks(NORM_BINS, NORM_BINS, groups=1)
    >>> ranks.update(np.array([1.0, 2.0, 3.0]), np.array([5.0, 6.0, 9.0]), np.array([0, 0, 0]))
    >>> ranks.result([0]).rho
    1.0
    """

    def __init__(self, x: Binning, y: Binning, groups: int) -> None:
        self.x, self.y, self.groups = x, y, groups
        self.by_x = CountTable(groups * y.coarse.size, x.fine.size)  # group, coarse y, fine x
        self.by_y = CountTable(groups * y.fine.size, x.coarse.size)  # group, fine y, coarse x
        # The ties of x are followed over all groups together, which is cheaper and errs on the safe side.
        self.x_ties = TiedBins(x.fine.size)
        self.y_ties = TiedBins(groups * y.fine.size)

    def update(
        self,
        x: Float[np.ndarray, "*shape"],
        y: Float[np.ndarray, "*#shape"],
        group: Int[np.ndarray, "*#shape"],
        keep: Bool[np.ndarray, "*#shape"] | None = None,
        bins: BinNumbers | None = None,
    ) -> None:
        """Count pairs.

        Args:
            x: The first quantity.
            y: The second, which broadcasts to the shape of `x`.
            group: The group of each pair.
            keep: The pairs that count; all by default.
            bins: The bins of `x`, where the caller has them.
        """
        at_x = self.x.find(x) if bins is None else bins
        at_y = self.y.find(y)
        group = group.astype(np.int64)
        by_x = at_x.fine + (group * self.y.coarse.size + at_y.coarse) * self.x.fine.size
        by_y = at_x.coarse + (group * self.y.fine.size + at_y.fine) * self.x.coarse.size
        fine = at_x.fine
        if keep is not None:
            keep = np.broadcast_to(keep, x.shape)
            by_x, by_y, fine, x = by_x[keep], by_y[keep], fine[keep], x[keep]
        self.by_x.update(by_x.reshape(-1))
        self.by_y.update(by_y.reshape(-1))
        self.x_ties.update(fine.reshape(-1), x.reshape(-1))
        self.update_y_ties(at_y, y, group)

    def update_y_ties(
        self, at_y: BinNumbers, y: Float[np.ndarray, "*#shape"], group: Int[np.ndarray, "*#shape"]
    ) -> None:
        """Record the bins of y, and whether they hold one value."""
        bins = at_y.fine + group * self.y.fine.size
        self.y_ties.update(bins.reshape(-1), np.broadcast_to(y, bins.shape).reshape(-1))

    def result(self, groups: Sequence[int]) -> RankCorrelation:
        """Return rho over the union of the groups; fewer than two pairs, or a constant side, is an error."""
        y_coarse, x_fine, by_x = self._pooled(self.by_x, groups, self.y.coarse.size)
        y_fine, x_coarse, by_y = self._pooled(self.by_y, groups, self.y.fine.size)
        x_counts = np.bincount(x_fine, weights=by_x, minlength=self.x.fine.size)
        y_counts = np.bincount(y_fine, weights=by_y, minlength=self.y.fine.size)
        x = RankedBins.of(x_counts, self.x.coarse_of_fine, self.x_ties.tied(self.x.fine.size, [0]))
        y = RankedBins.of(y_counts, self.y.coarse_of_fine, self.y_ties.tied(self.y.fine.size, groups))
        return rho_of_tables(CrossTable(x_fine, y_coarse, by_x), CrossTable(y_fine, x_coarse, by_y), x, y)

    @staticmethod
    def _pooled(table: CountTable, groups: Sequence[int], size: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Occupied cells of some groups: bin of y, bin of x, count."""
        cells, counts = table.occupied()
        row, column = np.divmod(cells, table.width)
        inside = np.isin(row // size, list(groups))
        return row[inside] % size, column[inside], counts[inside]

    def state(self) -> dict[str, np.ndarray]:
        """Return everything, as arrays."""
        state: dict[str, np.ndarray] = {}
        for part in self._PARTS:
            for name, array in getattr(self, part).state().items():
                state[f"{part}.{name}"] = array
        return state

    def merge(self, state: Mapping[str, np.ndarray]) -> None:
        """Take in the state of another part of the data."""
        for part in self._PARTS:
            own = {name.removeprefix(f"{part}."): state[name] for name in state if name.startswith(f"{part}.")}
            getattr(self, part).merge(own)

    _PARTS: ClassVar = ("by_x", "by_y", "x_ties", "y_ties")


class TiedBins:
    """Which bins hold a single value: in them no order is hidden, however many pairs they count."""

    def __init__(self, size: int) -> None:
        self.pattern = np.zeros(size, dtype=np.int32)  # the bits of the single value
        self.seen = np.zeros(size, dtype=np.uint8)  # 0 nothing, 1 one value, 2 several

    def update(self, bins: Int[np.ndarray, " pair"], values: Float[np.ndarray, " pair"]) -> None:
        """Record values with their bins."""
        seen = self.seen.take(bins)
        if not len(bins) or seen.min() == 2:
            return  # the common case in the middle of a run
        undecided = seen < 2
        # Adding 0 turns -0 into 0, so that equal numbers have equal bits.
        patterns = (values[undecided].astype(np.float32) + np.float32(0.0)).view(np.int32)
        self._record(bins[undecided], patterns)

    def state(self) -> dict[str, np.ndarray]:
        """Return the bins that hold anything."""
        met = np.flatnonzero(self.seen)
        return {"bin": smallest_type(met), "pattern": self.pattern[met], "state": self.seen[met]}

    def merge(self, state: Mapping[str, np.ndarray]) -> None:
        """Take in the state of another part of the data."""
        bins = state["bin"].astype(np.int64)
        several = bins[state["state"] == 2]
        self.seen[several] = 2
        self.pattern[several] = 0
        single = (state["state"] == 1) & (self.seen[bins] < 2)
        self._record(bins[single], state["pattern"][single])

    def tied(self, size: int, groups: Sequence[int]) -> Bool[np.ndarray, " bin"]:
        """Return the bins of `size` with at most one distinct value over all the given groups."""
        seen = self.seen.reshape(-1, size)[list(groups)]
        pattern = self.pattern.reshape(-1, size)[list(groups)].astype(np.int64)
        low = np.where(seen == 1, pattern, np.iinfo(np.int64).max).min(axis=0)
        high = np.where(seen == 1, pattern, np.iinfo(np.int64).min).max(axis=0)
        return np.asarray(~(seen == 2).any(axis=0) & (low >= high))

    def _record(self, bins: Int[np.ndarray, " pair"], patterns: Int[np.ndarray, " pair"]) -> None:
        order = np.argsort(bins, kind="stable")
        bins, patterns = bins[order], patterns[order]
        starts = np.flatnonzero(np.diff(bins, prepend=-1))
        if not len(starts):
            return
        low, high, at = np.minimum.reduceat(patterns, starts), np.maximum.reduceat(patterns, starts), bins[starts]
        several = (low != high) | ((self.seen[at] == 1) & (self.pattern[at] != low))
        self.pattern[at] = np.where(several, 0, low)  # canonical, so that equal data give equal states
        self.seen[at] = np.where(several, 2, 1)


class CountTable:
    """A wide table of counts: an int32 part that is quick to add to, an int64 part for sums beyond 2^31."""

    def __init__(self, rows: int, width: int) -> None:
        self.width = width
        # numpy asks for zeroed pages: those that are never counted into take no memory.
        self.recent = np.zeros(rows * width, dtype=np.int32)
        self._in_recent = 0
        self._cells = np.zeros(0, dtype=np.int64)
        self._counts = np.zeros(0, dtype=np.int64)
        self._occupied: tuple[np.ndarray, np.ndarray] | None = None  # as of the last count

    def update(self, cells: Int[np.ndarray, " pair"]) -> None:
        """Count each cell once for every time that it is named."""
        self.reserve(len(cells))
        np.add.at(self.recent, cells, np.int32(1))

    def reserve(self, amount: int) -> None:
        """Make room for so many counts before they are added to `recent`."""
        if self._in_recent + amount > _INT32_LIMIT:
            self._cells, self._counts = self.occupied()
            self.recent[:] = 0
            self._in_recent = 0
        self._in_recent += amount
        self._occupied = None

    def occupied(self) -> tuple[Int[np.ndarray, " cell"], Int[np.ndarray, " cell"]]:
        """Return the occupied cells, in order, with their counts."""
        if self._occupied is None:
            cells = np.flatnonzero(self.recent)
            counts = self.recent[cells].astype(np.int64)
            if len(self._cells):
                cells, counts = _summed(np.concatenate([cells, self._cells]), np.concatenate([counts, self._counts]))
            self._occupied = cells, counts
        return self._occupied

    def state(self) -> dict[str, np.ndarray]:
        """Return the occupied cells, as gaps between them, and their counts."""
        cells, counts = self.occupied()
        return {"gap": smallest_type(np.diff(cells, prepend=0)), "count": smallest_type(counts)}

    def merge(self, state: Mapping[str, np.ndarray]) -> None:
        """Add the counts of another part of the data."""
        cells, counts = np.cumsum(state["gap"], dtype=np.int64), state["count"].astype(np.int64)
        total = int(counts.sum())
        if total > _INT32_LIMIT:
            self._cells, self._counts = _summed(
                np.concatenate([self._cells, cells]), np.concatenate([self._counts, counts])
            )
            self._occupied = None
            return
        self.reserve(total)
        self.recent[cells] += counts.astype(np.int32)


class DistinctPairs:
    """Spearman's rho within each of up to 256 groups, exact up to `capacity` distinct pairs and bounded beyond.

    Pairs of float32 bit patterns are counted as they are. When more than `capacity` distinct pairs are held, the last bit
    of both patterns is dropped until they fit. A larger set never has fewer distinct pairs than its parts, so the number of
    dropped bits does not depend on how the data was divided.

    >>> ranks = DistinctPairs()
    >>> ranks.update(np.array([1.0, 2.0, 3.0]), np.array([9.0, 8.0, 1.0]), np.array([0, 0, 1]))
    >>> ranks.result([0, 1]).rho, ranks.result([0, 1]).bound
    (-1.0, 0.0)
    """

    _COLUMNS = ("x", "y", "group", "count")

    def __init__(self, capacity: int = 1 << 20) -> None:
        self.capacity = capacity
        self.dropped = 0  # trailing bits of both sides
        kinds = (np.int32, np.int32, np.uint8, np.int64)
        self._pairs: tuple[np.ndarray, ...] = tuple(np.zeros(0, dtype=kind) for kind in kinds)
        self._waiting: list[tuple[np.ndarray, ...]] = []

    def update(
        self, x: Float[np.ndarray, " pair"], y: Float[np.ndarray, " pair"], group: Int[np.ndarray, " pair"]
    ) -> None:
        """Count pairs, taken as float32."""
        keys = (_ordered_bits(x) >> self.dropped, _ordered_bits(y) >> self.dropped, group.astype(np.uint8))
        self._waiting.append((*keys, np.ones(len(x), dtype=np.int64)))
        if sum(len(part[0]) for part in self._waiting) > _COMPACT:
            self._compact()

    def result(self, groups: Sequence[int]) -> RankCorrelation:
        """Return rho over the union of the groups; fewer than two pairs, or a constant side, is an error."""
        self._compact()
        x, y, group, count = self._pairs
        inside = np.isin(group, list(groups))
        return rho_of_pairs(x[inside], y[inside], count[inside], exact=self.dropped == 0)

    def state(self) -> dict[str, np.ndarray]:
        """Return everything, as arrays."""
        self._compact()
        return {**dict(zip(self._COLUMNS, self._pairs, strict=True)), "dropped": np.array([self.dropped])}

    def merge(self, state: Mapping[str, np.ndarray]) -> None:
        """Take in the state of another part of the data."""
        self._compact()
        dropped = int(state["dropped"][0])
        self._drop(dropped - self.dropped)
        extra = self.dropped - dropped
        self._waiting.append((state["x"] >> extra, state["y"] >> extra, state["group"], state["count"]))
        self._compact()

    def _compact(self) -> None:
        if not self._waiting:
            return
        columns = zip(self._pairs, *self._waiting, strict=True)
        self._pairs = _distinct(*(np.concatenate(column) for column in columns))
        self._waiting = []
        while len(self._pairs[0]) > self.capacity:
            self._drop(1)

    def _drop(self, bits: int) -> None:
        if bits > 0:
            x, y, group, count = self._pairs
            self._pairs = _distinct(x >> bits, y >> bits, group, count)
            self.dropped += bits


def _ordered_bits(values: Float[np.ndarray, " value"]) -> Int[np.ndarray, " value"]:
    """Integers in the order of the float32 numbers."""
    bits = (values.astype(np.float32) + np.float32(0.0)).view(np.int32)
    return np.where(bits >= 0, bits, bits ^ np.int32(0x7FFFFFFF))


def _distinct(x: np.ndarray, y: np.ndarray, group: np.ndarray, count: np.ndarray) -> tuple[np.ndarray, ...]:
    """Equal pairs as one, with their counts added."""
    order = np.lexsort((y, x, group))
    x, y, group, count = x[order], y[order], group[order], count[order]
    if not len(x):
        return x, y, group, count
    new = np.ones(len(x), dtype=bool)
    new[1:] = (x[1:] != x[:-1]) | (y[1:] != y[:-1]) | (group[1:] != group[:-1])
    starts = np.flatnonzero(new)
    return x[starts], y[starts], group[starts], np.add.reduceat(count, starts)


def smallest_type(numbers: Int[np.ndarray, " number"]) -> Int[np.ndarray, " number"]:
    """Return the same whole numbers in the smallest type that holds them."""
    return numbers.astype(np.min_scalar_type(int(numbers.max()) if len(numbers) else 0))


def _summed(cells: np.ndarray, counts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Equal cells as one, with their counts added, in order."""
    order = np.argsort(cells, kind="stable")
    cells, counts = cells[order], counts[order]
    starts = np.flatnonzero(np.diff(cells, prepend=-1))
    if not len(starts):
        return cells, counts
    return cells[starts], np.add.reduceat(counts, starts)
