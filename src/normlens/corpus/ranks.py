"""Spearman's rho over billions of pairs in one pass, with a bound on its error that comes from the data itself.

Two tables are counted on fixed grids: fine bins of `x` against coarse bins of `y`, and coarse against fine.
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
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from normlens.corpus.grid import Bins, Scale
from normlens.errors import InputError

#: Above this bound a rho is flagged, and an exact second pass is worth its time.
TOLERANCE = 1e-3

_HOT_LIMIT = 2**31 - 1  # int32 tables are half the memory traffic; they are emptied before any cell can overflow


@dataclass(frozen=True)
class Rho:
    """A rank correlation: the true value lies within `bound` of `rho`, which is certain, not probable."""

    rho: float
    bound: float
    count: int

    @property
    def flagged(self) -> bool:
        """Whether the bound is too wide to quote three decimals."""
        return self.bound > TOLERANCE


class Ties:
    """Which bins hold a single value: in them nothing is hidden, however many pairs they count."""

    def __init__(self, size: int) -> None:
        self.pattern = np.zeros(size, dtype=np.int32)
        self.state = np.zeros(size, dtype=np.uint8)  # 0 empty, 1 one value, 2 several

    def update(self, bins: Int[Tensor, " pair"], values: Float[Tensor, " pair"]) -> None:
        """Record values with their bins."""
        states = torch.from_numpy(self.state).index_select(0, bins)
        if len(bins) == 0 or int(states.min()) == 2:
            return  # the common case once a run has warmed up: every bin met here is known to hold several values
        undecided = (states < 2).numpy()
        self._meet(bins.numpy()[undecided], (values.numpy()[undecided] + np.float32(0.0)).view(np.int32))

    def sparse(self) -> dict[str, np.ndarray]:
        """The bins that were met, with what is known of them."""
        met = np.flatnonzero(self.state)
        return {"bin": compact(met), "pattern": self.pattern[met], "state": self.state[met]}

    def load(self, state: dict[str, np.ndarray]) -> None:
        """Take in what another has seen."""
        bins = state["bin"].astype(np.int64)
        several = bins[state["state"] == 2]
        self.state[several] = 2
        self.pattern[several] = 0
        single = (state["state"] == 1) & (self.state[bins] < 2)
        self._meet(bins[single], state["pattern"][single])

    def tied(self, size: int, groups: list[int]) -> Bool[np.ndarray, " bin"]:
        """Bins of `size` with at most one distinct value over all the given groups."""
        state, pattern = (array.reshape(-1, size)[groups].astype(np.int64) for array in (self.state, self.pattern))
        low = np.where(state == 1, pattern, np.iinfo(np.int64).max).min(axis=0)
        high = np.where(state == 1, pattern, np.iinfo(np.int64).min).max(axis=0)
        return np.asarray(~(state == 2).any(axis=0) & (low >= high))

    def _meet(self, bins: Int[np.ndarray, " pair"], patterns: Int[np.ndarray, " pair"]) -> None:
        order = np.argsort(bins, kind="stable")
        bins, patterns = bins[order], patterns[order]
        starts = np.flatnonzero(np.diff(bins, prepend=-1))
        if not len(starts):
            return
        low, high, at = np.minimum.reduceat(patterns, starts), np.maximum.reduceat(patterns, starts), bins[starts]
        several = (low != high) | ((self.state[at] == 1) & (self.pattern[at] != low))
        self.pattern[at] = np.where(several, 0, low)  # canonical, so that equal data give equal states
        self.state[at] = np.where(several, 2, 1)


class CrossedCounts:
    """One-pass, mergeable Spearman correlation of two quantities within each of `groups` groups.

    >>> from normlens.corpus.grid import NORMS
    >>> counts = CrossedCounts(NORMS, NORMS, groups=1)
    >>> counts.update(torch.tensor([1.0, 2.0, 3.0]), torch.tensor([5.0, 6.0, 9.0]), torch.tensor([0, 0, 0]))
    >>> counts.result([0]).rho
    1.0
    """

    def __init__(self, x: Scale, y: Scale, groups: int) -> None:
        self.x, self.y, self.groups = x, y, groups
        self._by_x = _Counts(groups * y.coarse.size, x.fine.size)  # group, coarse y, fine x
        self._by_y = _Counts(groups * y.fine.size, x.coarse.size)  # group, fine y, coarse x
        # The ties of x are followed over all groups together, which is cheaper and errs on the safe side.
        self.x_ties = Ties(x.fine.size)
        self.y_ties = Ties(groups * y.fine.size)

    def update(
        self,
        x: Float[Tensor, "*shape"],
        y: Float[Tensor, "*shape"],
        group: Int[Tensor, "*shape"],
        keep: Bool[Tensor, "*shape"] | None = None,
        bins: Bins | None = None,
    ) -> None:
        """Count pairs; `y` and `group` broadcast to the shape of `x`, and `keep` selects pairs.

        `bins` are those of `x`, where the caller has them already.
        """
        x, y = x.to(torch.float32), y.to(torch.float32)
        at_x = self.x.bins(x) if bins is None else bins
        at_y = self.y.bins(y)
        group = group.long()
        by_x = at_x.fine + (group * self.y.coarse.size + at_y.coarse) * self.x.fine.size
        by_y = at_x.coarse + (group * self.y.fine.size + at_y.fine) * self.x.coarse.size
        fine = at_x.fine
        if keep is not None:
            keep = keep.expand(x.shape)
            by_x, by_y, fine, x = by_x[keep], by_y[keep], fine[keep], x[keep]
        self._by_x.add(by_x.reshape(-1))
        self._by_y.add(by_y.reshape(-1))
        self.x_ties.update(fine.reshape(-1), x.reshape(-1))
        self.meet_y(at_y, y, group)

    def meet_y(self, at_y: Bins, y: Float[Tensor, "*shape"], group: Int[Tensor, "*shape"]) -> None:
        """Note which bins of y were met, and whether they hold one value."""
        y_group = (at_y.fine + group * self.y.fine.size).reshape(-1)
        self.y_ties.update(y_group, y.expand(group.shape).reshape(-1))

    def reserve(self, pairs: int) -> None:
        """Make room for so many pairs before they are counted from outside."""
        self._by_x.reserve(pairs)
        self._by_y.reserve(pairs)

    @property
    def hot_by_x(self) -> Int[np.ndarray, " cell"]:
        """The first table, flat: (group, coarse y, fine x)."""
        return self._by_x.hot.numpy()

    @property
    def hot_by_y(self) -> Int[np.ndarray, " cell"]:
        """The second table, flat: (group, fine y, coarse x)."""
        return self._by_y.hot.numpy()

    def merge(self, other: CrossedCounts) -> None:
        """Add the counts of another part of the data."""
        if (self.x, self.y, self.groups) != (other.x, other.y, other.groups):
            raise InputError("rank counts merge only when both stand on the same grids and groups")
        self.load(other.state())

    def result(self, groups: list[int]) -> Rho:
        """Rho over the union of the groups; fewer than two pairs, or a constant side, is an error."""
        y_coarse, x_fine, by_x = self._pooled(self._by_x, self._rows()[0], groups, self.y.coarse.size)
        y_fine, x_coarse, by_y = self._pooled(self._by_y, self._rows()[1], groups, self.y.fine.size)
        x = _Side.of(
            np.bincount(x_fine, weights=by_x, minlength=self.x.fine.size),
            self.x.coarse_of_fine.numpy(),
            self.x_ties.tied(self.x.fine.size, [0]),
        )
        y = _Side.of(
            np.bincount(y_fine, weights=by_y, minlength=self.y.fine.size),
            self.y.coarse_of_fine.numpy(),
            self.y_ties.tied(self.y.fine.size, groups),
        )
        return rho_of_tables(Table(x_fine, y_coarse, by_x), Table(y_fine, x_coarse, by_y), x, y)

    def state(self) -> dict[str, np.ndarray]:
        """Everything, as small arrays."""
        tables = zip(("by_x", "by_y"), (self._by_x, self._by_y), self._rows(), strict=True)
        return {
            **{f"{side}.{name}": array for side, table, rows in tables for name, array in table.state(rows).items()},
            **{
                f"{side}.{name}": array
                for side, ties in (("x_ties", self.x_ties), ("y_ties", self.y_ties))
                for name, array in ties.sparse().items()
            },
        }

    def load(self, state: dict[str, np.ndarray]) -> None:
        """Take in a saved state."""
        for name, counts in (("by_x", self._by_x), ("by_y", self._by_y)):
            counts.add_sparse(state[f"{name}.cell"].astype(np.int64), state[f"{name}.count"].astype(np.int64))
        for name, ties in (("x_ties", self.x_ties), ("y_ties", self.y_ties)):
            ties.load({key: state[f"{name}.{key}"] for key in ("bin", "pattern", "state")})

    def _rows(self) -> tuple[Int[np.ndarray, " row"], Int[np.ndarray, " row"]]:
        """The rows of both tables that can hold counts: those of the bins of y that were ever met."""
        fine = np.flatnonzero(self.y_ties.state)
        group, bin_ = np.divmod(fine, self.y.fine.size)
        return np.unique(group * self.y.coarse.size + self.y.coarse_of_fine.numpy()[bin_]), fine

    @staticmethod
    def _pooled(
        counts: _Counts, rows: Int[np.ndarray, " row"], groups: list[int], size: int
    ) -> tuple[Int[np.ndarray, " cell"], Int[np.ndarray, " cell"], Int[np.ndarray, " cell"]]:
        """Occupied cells of some groups: bin of y, bin of x, count."""
        cells, found = counts.sparse(rows[np.isin(rows // size, groups)])
        row, column = np.divmod(cells, counts.width)
        return row % size, column, found


class _Counts:
    """A wide table of counts: a fast int32 part for adding, an int64 part where sums may pass 2^31."""

    def __init__(self, rows: int, width: int) -> None:
        self.width = width
        # calloc'ed by numpy: pages that are never counted into take no memory.
        self.hot = torch.from_numpy(np.zeros(rows * width, dtype=np.int32))
        self.added = 0
        self.cells = np.zeros(0, dtype=np.int64)
        self.counts = np.zeros(0, dtype=np.int64)

    def add(self, index: Int[Tensor, " pair"]) -> None:
        self.reserve(len(index))
        self.hot.scatter_add_(0, index, torch.ones(1, dtype=torch.int32).expand(len(index)))

    def add_sparse(self, cells: Int[np.ndarray, " cell"], counts: Int[np.ndarray, " cell"]) -> None:
        total = int(counts.sum())
        if total > _HOT_LIMIT:
            self._add_cold(cells, counts)
            return
        self.reserve(total)
        self.hot.numpy()[cells] += counts.astype(np.int32)

    def sparse(self, rows: Int[np.ndarray, " row"]) -> tuple[Int[np.ndarray, " cell"], Int[np.ndarray, " cell"]]:
        """Occupied cells of some rows, in order, with their counts."""
        table = self.hot.numpy().reshape(-1, self.width)[rows]
        row, column = np.nonzero(table)
        cells, counts = rows[row] * self.width + column, table[row, column].astype(np.int64)
        if len(self.cells):
            inside = np.isin(self.cells // self.width, rows)
            cells, counts = _summed(
                np.concatenate([cells, self.cells[inside]]), np.concatenate([counts, self.counts[inside]])
            )
        return cells, counts

    def state(self, rows: Int[np.ndarray, " row"]) -> dict[str, np.ndarray]:
        cells, counts = self.sparse(rows)
        return {"cell": compact(cells), "count": compact(counts)}

    def reserve(self, amount: int) -> None:
        if self.added + amount > _HOT_LIMIT:
            hot = np.flatnonzero(self.hot.numpy())
            self._add_cold(hot, self.hot.numpy()[hot].astype(np.int64))
            self.hot.zero_()
            self.added = 0
        self.added += amount

    def _add_cold(self, cells: Int[np.ndarray, " cell"], counts: Int[np.ndarray, " cell"]) -> None:
        self.cells, self.counts = _summed(np.concatenate([self.cells, cells]), np.concatenate([self.counts, counts]))


def compact(numbers: Int[np.ndarray, " number"]) -> Int[np.ndarray, " number"]:
    """The same whole numbers in the smallest type that holds them: states travel and are saved often."""
    return numbers.astype(np.min_scalar_type(int(numbers.max()) if len(numbers) else 0))


def _summed(
    cells: Int[np.ndarray, " cell"], counts: Int[np.ndarray, " cell"]
) -> tuple[Int[np.ndarray, " cell"], Int[np.ndarray, " cell"]]:
    order = np.argsort(cells, kind="stable")
    cells, counts = cells[order], counts[order]
    starts = np.flatnonzero(np.diff(cells, prepend=-1))
    return cells[starts], np.add.reduceat(counts, starts) if len(starts) else counts


@dataclass(frozen=True)
class Table:
    """Occupied cells of a crossed table: fine bin of one side, coarse bin of the other, count."""

    fine: Int[np.ndarray, " cell"]
    coarse: Int[np.ndarray, " cell"]
    count: Int[np.ndarray, " cell"]


def rho_of_tables(by_x: Table, by_y: Table, x: _Side, y: _Side) -> Rho:
    """Rho and its bound from the two crossed tables."""
    if x.total < 2:
        raise InputError(f"a correlation needs at least two pairs, this one has {x.total}: give it more data")
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


@dataclass(frozen=True)
class _Side:
    """Centred, scaled ranks of one quantity."""

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
    ) -> _Side:
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


def _hidden_order(table: Table, weight: Float[np.ndarray, " cell"], own: _Side, other: _Side) -> float:
    """The most that the order within fine bins can add, given where the partners of each bin lie."""
    size = len(own.fine)

    def per_bin(values: Float[np.ndarray, " cell"]) -> Float[np.ndarray, " fine"]:
        return np.bincount(table.fine, weights=weight * values, minlength=size)

    partner = other.coarse[table.coarse]
    mass = np.maximum(per_bin(np.ones_like(weight)), 1e-300)
    mean = per_bin(partner) / mass
    spread = per_bin((partner - mean[table.fine]) ** 2)
    blur = per_bin(other.widest[table.coarse] ** 2)
    return float((np.sqrt(own.hidden) * (np.sqrt(spread) + np.sqrt(blur))).sum())


def _interval(known: float, hidden: float, x: _Side, y: _Side) -> Rho:
    """The widest interval that covariance and variances allow; `rho` is the value if nothing hidden is ordered."""
    if x.variance + x.hidden.sum() <= 0 or y.variance + y.hidden.sum() <= 0:
        raise InputError("a rank correlation needs two quantities that vary; one of these is constant")
    most = (x.variance + x.hidden.sum()) * (y.variance + y.hidden.sum())
    least = x.variance * y.variance
    rho = known / np.sqrt(most)
    ends = [
        (known + sign * hidden) / np.sqrt(product) if product > 0 else sign
        for sign in (-1.0, 1.0)
        for product in (most, least)
    ]
    low, high = max(min(ends), -1.0), min(max(ends), 1.0)
    return Rho(float(np.clip(rho, -1.0, 1.0)), float(max(high - rho, rho - low, 0.0)), x.total)


def rho_of_pairs(
    x: Int[np.ndarray, " pair"], y: Int[np.ndarray, " pair"], count: Int[np.ndarray, " pair"], *, exact: bool
) -> Rho:
    """Rho of distinct pairs with their counts; unless `exact`, equal keys may hide an order and the bound says so."""
    sides = [np.unique(keys, return_inverse=True) for keys in (x, y)]
    (x, x_index), (y, y_index) = sides
    x_side, y_side = (
        (
            _Side.of(
                np.bincount(index, weights=count).astype(np.int64), np.arange(len(keys)), np.full(len(keys), exact)
            )
            for keys, index in ((x, x_index), (y, y_index))
            if len(keys)
        )
        if len(count)
        else (None, None)
    )
    if x_side is None or y_side is None or x_side.total < 2:
        raise InputError(f"a correlation needs at least two pairs, this one has {int(count.sum())}: give it more data")
    weight = count / x_side.total
    known = float(np.sum(weight * x_side.fine[x_index] * y_side.fine[y_index]))
    hidden = np.sqrt(x_side.hidden.sum() * y_side.hidden.sum())
    for own, other, index, partner in ((x_side, y_side, x_index, y_index), (y_side, x_side, y_index, x_index)):
        mass = np.bincount(index, weights=weight)
        mean = np.bincount(index, weights=weight * other.fine[partner]) / mass
        spread = np.bincount(index, weights=weight * (other.fine[partner] - mean[index]) ** 2)
        hidden += float(np.sqrt(own.hidden * spread).sum())
    return _interval(known, float(hidden), x_side, y_side)
