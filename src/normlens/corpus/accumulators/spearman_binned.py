"""Spearman's rho of billions of pairs in one pass: pairs are counted in two tables of bins (see `spearman`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from jaxtyping import Bool, Float, Int

from normlens.corpus.accumulators.histogram import Binning, BinNumbers
from normlens.corpus.accumulators.spearman import CrossTable, RankCorrelation, RankedBins, rho_of_tables
from normlens.errors import InputError

_INT32_LIMIT = 2**31 - 1  # int32 tables are half the memory traffic; they are emptied before any cell can overflow


class BinnedSpearman:
    """Spearman's rho of two quantities within each of `groups` groups, from counts in bins.

    >>> from normlens.corpus.accumulators.histogram import NORM_BINS
    >>> ranks = BinnedSpearman(NORM_BINS, NORM_BINS, groups=1)
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
        """Count pairs; `y` and `group` broadcast to the shape of `x`, and `keep` selects pairs.

        `bins` are those of `x`, where the caller has them already.
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
        """Note which bins of y were met, and whether they hold one value."""
        bins = at_y.fine + group * self.y.fine.size
        self.y_ties.update(bins.reshape(-1), np.broadcast_to(y, bins.shape).reshape(-1))

    def merge(self, other: BinnedSpearman) -> None:
        """Add the counts of another part of the data."""
        if (self.x, self.y, self.groups) != (other.x, other.y, other.groups):
            raise InputError("rank counts merge only when both have the same bins and groups")
        self.load(other.state())

    def result(self, groups: Sequence[int]) -> RankCorrelation:
        """Rho over the union of the groups; fewer than two pairs, or a constant side, is an error."""
        y_coarse, x_fine, by_x = _pooled(self.by_x, self._rows()[0], groups, self.y.coarse.size)
        y_fine, x_coarse, by_y = _pooled(self.by_y, self._rows()[1], groups, self.y.fine.size)
        x = RankedBins.of(
            np.bincount(x_fine, weights=by_x, minlength=self.x.fine.size),
            self.x.coarse_of_fine,
            self.x_ties.tied(self.x.fine.size, [0]),
        )
        y = RankedBins.of(
            np.bincount(y_fine, weights=by_y, minlength=self.y.fine.size),
            self.y.coarse_of_fine,
            self.y_ties.tied(self.y.fine.size, groups),
        )
        return rho_of_tables(CrossTable(x_fine, y_coarse, by_x), CrossTable(y_fine, x_coarse, by_y), x, y)

    def state(self) -> dict[str, np.ndarray]:
        """Everything, as small arrays."""
        x_rows, y_rows = self._rows()
        parts = {
            "by_x": self.by_x.state(x_rows), "by_y": self.by_y.state(y_rows),
            "x_ties": self.x_ties.state(), "y_ties": self.y_ties.state(),
        }  # fmt: skip
        return {f"{part}.{name}": array for part, arrays in parts.items() for name, array in arrays.items()}

    def load(self, state: Mapping[str, np.ndarray]) -> None:
        """Take in a saved state."""
        parts: dict[str, dict[str, np.ndarray]] = {}
        for path, array in state.items():
            part, _, name = path.partition(".")
            parts.setdefault(part, {})[name] = array
        for part in ("by_x", "by_y", "x_ties", "y_ties"):
            getattr(self, part).load(parts[part])

    def _rows(self) -> tuple[Int[np.ndarray, " row"], Int[np.ndarray, " row"]]:
        """The rows of both tables that can hold counts: those of the bins of y that were ever met."""
        fine = np.flatnonzero(self.y_ties.seen)
        group, bin_ = np.divmod(fine, self.y.fine.size)
        return np.unique(group * self.y.coarse.size + self.y.coarse_of_fine[bin_]), fine


class TiedBins:
    """Which bins hold a single value: in them nothing is hidden, however many pairs they count."""

    def __init__(self, size: int) -> None:
        self.pattern = np.zeros(size, dtype=np.int32)  # the bits of the single value
        self.seen = np.zeros(size, dtype=np.uint8)  # 0 nothing, 1 one value, 2 several

    def update(self, bins: Int[np.ndarray, " pair"], values: Float[np.ndarray, " pair"]) -> None:
        """Record values with their bins."""
        seen = self.seen.take(bins)
        if not len(bins) or seen.min() == 2:
            return  # the common case once a run has warmed up: every bin met here is known to hold several values
        undecided = seen < 2
        # Adding 0 turns -0 into 0, so that equal numbers have equal bits.
        patterns = (values[undecided].astype(np.float32) + np.float32(0.0)).view(np.int32)
        self._meet(bins[undecided], patterns)

    def state(self) -> dict[str, np.ndarray]:
        """The bins that were met, with what is known of them."""
        met = np.flatnonzero(self.seen)
        return {"bin": _smallest_type(met), "pattern": self.pattern[met], "state": self.seen[met]}

    def load(self, state: Mapping[str, np.ndarray]) -> None:
        """Take in what another has seen."""
        bins = state["bin"].astype(np.int64)
        several = bins[state["state"] == 2]
        self.seen[several] = 2
        self.pattern[several] = 0
        single = (state["state"] == 1) & (self.seen[bins] < 2)
        self._meet(bins[single], state["pattern"][single])

    def tied(self, size: int, groups: Sequence[int]) -> Bool[np.ndarray, " bin"]:
        """Bins of `size` with at most one distinct value over all the given groups."""
        seen, pattern = (array.reshape(-1, size)[list(groups)].astype(np.int64) for array in (self.seen, self.pattern))
        low = np.where(seen == 1, pattern, np.iinfo(np.int64).max).min(axis=0)
        high = np.where(seen == 1, pattern, np.iinfo(np.int64).min).max(axis=0)
        return np.asarray(~(seen == 2).any(axis=0) & (low >= high))

    def _meet(self, bins: Int[np.ndarray, " pair"], patterns: Int[np.ndarray, " pair"]) -> None:
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
    """A wide table of counts: an int32 part that is quick to add to, an int64 part where sums may pass 2^31."""

    def __init__(self, rows: int, width: int) -> None:
        self.width = width
        # numpy asks for zeroed pages: those that are never counted into take no memory.
        self.recent = np.zeros(rows * width, dtype=np.int32)
        self._in_recent = 0
        self._cells = np.zeros(0, dtype=np.int64)
        self._counts = np.zeros(0, dtype=np.int64)

    def update(self, cells: Int[np.ndarray, " pair"]) -> None:
        """Count each cell once for every time that it is named."""
        self.reserve(len(cells))
        np.add.at(self.recent, cells, np.int32(1))

    def reserve(self, amount: int) -> None:
        """Make room for so many counts before they are added to `recent`."""
        if self._in_recent + amount > _INT32_LIMIT:
            cells = np.flatnonzero(self.recent)
            self._add_large(cells, self.recent[cells].astype(np.int64))
            self.recent[:] = 0
            self._in_recent = 0
        self._in_recent += amount

    def occupied(self, rows: Int[np.ndarray, " row"]) -> tuple[Int[np.ndarray, " cell"], Int[np.ndarray, " cell"]]:
        """Occupied cells of some rows, in order, with their counts."""
        table = self.recent.reshape(-1, self.width)[rows]
        row, column = np.nonzero(table)
        cells, counts = rows[row] * self.width + column, table[row, column].astype(np.int64)
        if len(self._cells):
            inside = np.isin(self._cells // self.width, rows)
            cells, counts = _summed(
                np.concatenate([cells, self._cells[inside]]), np.concatenate([counts, self._counts[inside]])
            )
        return cells, counts

    def state(self, rows: Int[np.ndarray, " row"]) -> dict[str, np.ndarray]:
        """The occupied cells of the rows that can hold any."""
        cells, counts = self.occupied(rows)
        return {"cell": _smallest_type(cells), "count": _smallest_type(counts)}

    def load(self, state: Mapping[str, np.ndarray]) -> None:
        """Add a saved state."""
        cells, counts = state["cell"].astype(np.int64), state["count"].astype(np.int64)
        total = int(counts.sum())
        if total > _INT32_LIMIT:
            self._add_large(cells, counts)
            return
        self.reserve(total)
        self.recent[cells] += counts.astype(np.int32)

    def _add_large(self, cells: Int[np.ndarray, " cell"], counts: Int[np.ndarray, " cell"]) -> None:
        self._cells, self._counts = _summed(
            np.concatenate([self._cells, cells]), np.concatenate([self._counts, counts])
        )


def _pooled(
    table: CountTable, rows: Int[np.ndarray, " row"], groups: Sequence[int], size: int
) -> tuple[Int[np.ndarray, " cell"], Int[np.ndarray, " cell"], Int[np.ndarray, " cell"]]:
    """Occupied cells of some groups: bin of y, bin of x, count."""
    cells, found = table.occupied(rows[np.isin(rows // size, list(groups))])
    row, column = np.divmod(cells, table.width)
    return row % size, column, found


def _smallest_type(numbers: Int[np.ndarray, " number"]) -> Int[np.ndarray, " number"]:
    """The same whole numbers in the smallest type that holds them: states travel and are saved often."""
    return numbers.astype(np.min_scalar_type(int(numbers.max()) if len(numbers) else 0))


def _summed(
    cells: Int[np.ndarray, " cell"], counts: Int[np.ndarray, " cell"]
) -> tuple[Int[np.ndarray, " cell"], Int[np.ndarray, " cell"]]:
    order = np.argsort(cells, kind="stable")
    cells, counts = cells[order], counts[order]
    starts = np.flatnonzero(np.diff(cells, prepend=-1))
    return cells[starts], np.add.reduceat(counts, starts) if len(starts) else counts
