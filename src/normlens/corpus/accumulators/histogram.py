"""Fixed bins over the float32 numbers, and histograms on them.

Float32 bit patterns are ordered like the numbers that they stand for, so a value's bin is one look-up on its top bits.
Nothing about the bins is estimated from data: a value falls into the same bin in every worker, whatever came before it,
and counts are whole numbers that merge exactly.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from jaxtyping import Float, Int

from normlens.errors import InputError

_MANTISSA = 23
_BIAS = 127


@dataclass(frozen=True)
class Bins:
    """A partition of the float32 numbers into adjoining bins.

    `segments` lists adjoining `(low, high, bits)`: every octave `[2^e, 2^(e+1))` with `low <= e < high` is cut into
    `2^bits` equal bins. Four more bins hold what lies outside: negative numbers, zero, what is smaller, what is larger.

    >>> bins = Bins(((-2, 0, 2),))
    >>> bins.size
    12
    >>> bins.find(np.array([0.0, 0.25, 0.5, 0.55, 0.63, 7.0])).tolist()
    [1, 3, 7, 7, 8, 11]
    """

    segments: tuple[tuple[int, int, int], ...]

    def __post_init__(self) -> None:
        for (_, high, _), (low, _, _) in zip(self.segments, self.segments[1:], strict=False):
            if high != low:
                raise ValueError(f"segments must adjoin in rising order, got {self.segments}")

    @cached_property
    def resolution(self) -> int:
        """The most bits that any octave has: so much of the mantissa is looked at."""
        return max(bits for _, _, bits in self.segments)

    @cached_property
    def size(self) -> int:
        """How many bins there are."""
        return 4 + sum((high - low) << bits for low, high, bits in self.segments)

    @cached_property
    def edges(self) -> Float[np.ndarray, " edge"]:
        """Lower edge of every bin, then the upper edge of the last: `size + 1` rising numbers."""
        inner = [
            2.0**exponent * (1.0 + step / (1 << bits))
            for low, high, bits in self.segments
            for exponent in range(low, high)
            for step in range(1 << bits)
        ]
        return np.array([-(2.0**128), 0.0, 2.0**-149, *inner, 2.0 ** self.segments[-1][1], 2.0**128])

    @property
    def shift(self) -> int:
        """How many trailing bits of a pattern the look-up ignores."""
        return _MANTISSA - self.resolution

    @cached_property
    def table(self) -> Int[np.ndarray, " pattern"]:
        """Bin of each top part of a bit pattern; the index is the pattern, shifted, plus half the table."""
        half = 1 << (8 + self.resolution)
        table = np.zeros(2 * half, dtype=np.int32)  # negative patterns come first: bin 0
        table[0] = 1  # -0.0 is zero
        table[half] = 1  # zero, with the subnormals that share its pattern
        table[half + 1 : half + ((self.segments[0][0] + _BIAS) << self.resolution)] = 2
        start = 3
        for low, high, bits in self.segments:
            count = (high - low) << bits
            at = half + ((low + _BIAS) << self.resolution)
            table[at : at + ((high - low) << self.resolution)] = np.repeat(
                np.arange(start, start + count, dtype=np.int32), 1 << (self.resolution - bits)
            )
            start += count
        table[half + ((self.segments[-1][1] + _BIAS) << self.resolution) :] = start
        return table

    @cached_property
    def positive_table(self) -> Int[np.ndarray, " pattern"]:
        """The half of the table that positive numbers need, indexed by the shifted pattern itself."""
        return self.table[1 << (8 + self.resolution) :]

    def find(self, values: Float[np.ndarray, "*shape"]) -> Int[np.ndarray, "*shape"]:
        """Bin of each value, from 0 to `size - 1`; the values must be numbers (NaN is for the caller to refuse)."""
        index = np.ascontiguousarray(values, dtype=np.float32).view(np.int32) >> self.shift
        if index.size and index.min() < 0:
            return self.table.take(index + (1 << (8 + self.resolution)))
        return self.positive_table.take(index)

    def coarsening(self, coarse: Bins) -> Int[np.ndarray, " bin"]:
        """For each of these bins the bin of `coarse` that holds it whole."""
        if not np.isin(coarse.edges, self.edges).all():
            raise ValueError("coarse bins need edges that are edges of the fine bins too")
        return np.searchsorted(coarse.edges, self.edges[:-1], side="right") - 1


@dataclass(frozen=True)
class BinNumbers:
    """The fine and the coarse bin of each value."""

    fine: Int[np.ndarray, "*shape"]
    coarse: Int[np.ndarray, "*shape"]


@dataclass(frozen=True)
class Binning:
    """The bins of one kind of quantity: `fine` for its own ranks, `coarse` for its partner's ranks and histograms."""

    fine: Bins
    coarse: Bins

    @cached_property
    def coarse_of_fine(self) -> Int[np.ndarray, " bin"]:
        """The coarse bin of each fine bin."""
        return self.fine.coarsening(self.coarse).astype(np.int32)

    @cached_property
    def both_bins(self) -> Int[np.ndarray, " pattern"]:
        """As `fine.positive_table`, with the fine bin in the lower 16 bits and the coarse one above: one look-up."""
        if self.fine.size > 1 << 16 or self.coarse.size > 1 << 15:
            raise ValueError(f"too many bins for 16 bits each: {self.fine.size} fine, {self.coarse.size} coarse")
        fine = self.fine.positive_table
        return np.asarray(fine | (self.coarse_of_fine[fine] << 16))

    def find(self, values: Float[np.ndarray, "*shape"]) -> BinNumbers:
        """Fine and coarse bin of each value."""
        fine = self.fine.find(values)
        return BinNumbers(fine, self.coarse_of_fine.take(fine))


#: Attention weights are shares: half of them lie in the upper twelve octaves, a long tail reaches below 2^-100.
WEIGHT_BINS = Binning(
    fine=Bins(((-126, -48, 3), (-48, -16, 7), (-16, -8, 9), (-8, 0, 10), (0, 1, 0))),
    coarse=Bins(((-80, -48, 0), (-48, -16, 1), (-16, -8, 3), (-8, 0, 4), (0, 1, 0))),
)

#: Norms crowd within an octave or two of their mean: they need many bins, but in few octaves.
NORM_BINS = Binning(
    fine=Bins(((-16, -4, 8), (-4, 7, 12), (7, 16, 8))),
    coarse=Bins(((-16, -4, 2), (-4, 7, 5), (7, 16, 2))),
)

#: Contributions are products of weights and norms: the weights' long tail, and a few octaves above 1.
CONTRIBUTION_BINS = Binning(
    fine=Bins(((-126, -48, 3), (-48, -16, 7), (-16, 10, 9))),
    coarse=Bins(((-80, -48, 0), (-48, -16, 1), (-16, 10, 3))),
)


@dataclass(frozen=True)
class Quantile:
    """A quantile: interpolated within its bin, and the bin's edges between which the true one lies for certain."""

    value: float
    low: float
    high: float


@dataclass(frozen=True)
class Distribution:
    """How many values lie in each bin."""

    counts: Int[np.ndarray, " bin"]
    edges: Float[np.ndarray, " edge"]

    def quantile(self, q: float, *, low: float, high: float) -> Quantile:
        """The value at rank `q (n - 1)`, as numpy's linear quantile; `low` and `high` are the exact extremes.

        The bin is certain; the place within it is interpolated, as if bins were evenly filled.
        """
        total, below = int(self.counts.sum()), np.cumsum(self.counts)

        def place(rank: int) -> tuple[int, float]:
            found = int(np.searchsorted(below, rank, side="right"))
            if rank in (0, total - 1):
                return found, low if rank == 0 else high
            inside = (rank - (below[found] - self.counts[found]) + 0.5) / self.counts[found]
            floor, ceiling = max(self.edges[found], low), min(self.edges[found + 1], high)
            return found, float(floor + inside * (ceiling - floor))

        rank = q * (total - 1)
        (first, left), (last, right) = place(int(np.floor(rank))), place(int(np.ceil(rank)))
        value = left + (rank % 1) * (right - left)
        return Quantile(value, float(max(self.edges[first], low)), float(min(self.edges[last + 1], high)))


class Histogram:
    """Counts of `rows` independent histograms on the same bins.

    >>> histogram = Histogram(NORM_BINS.coarse, rows=1)
    >>> histogram.update(np.zeros(4, dtype=int), NORM_BINS.coarse.find(np.array([1.0, 1.0, 2.0, 4.0])))
    >>> histogram.result([0]).quantile(1.0, low=1.0, high=4.0).value
    4.0
    """

    def __init__(self, bins: Bins, rows: int) -> None:
        self.bins, self.rows = bins, rows
        self.counts = np.zeros((rows, bins.size), dtype=np.int64)

    def update(self, row: Int[np.ndarray, "*shape"], bins: Int[np.ndarray, "*shape"]) -> None:
        """Count values by their bins; `row` broadcasts to the shape of `bins`."""
        index = (bins + np.asarray(row, dtype=np.int64) * self.bins.size).reshape(-1)
        self.counts += np.bincount(index, minlength=self.counts.size).reshape(self.counts.shape)

    def merge(self, other: Histogram) -> None:
        """Add the counts of another part of the data."""
        if self.bins != other.bins or self.rows != other.rows:
            raise InputError("histograms merge only when both have the same bins and rows")
        self.counts += other.counts

    def result(self, rows: Sequence[int]) -> Distribution:
        """The distribution over several rows together; without a single value it is an error."""
        counts = self.counts[list(rows)].sum(axis=0)
        if not counts.any():
            raise InputError("a distribution of nothing has no quantiles: this histogram is empty")
        return Distribution(counts, self.bins.edges)

    def state(self) -> dict[str, np.ndarray]:
        """Everything, as arrays: the occupied cells and their counts."""
        cells = np.flatnonzero(self.counts)
        return {"cell": cells, "count": self.counts.reshape(-1)[cells], "rows": np.array(self.rows)}

    def load(self, state: Mapping[str, np.ndarray]) -> None:
        """Add a saved state."""
        self.counts.reshape(-1)[state["cell"]] += state["count"]
