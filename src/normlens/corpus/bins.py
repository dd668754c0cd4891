"""Fixed bins over the float32 numbers.

Float32 bit patterns are ordered like the numbers that they stand for, so the bin of a value is one look-up on its leading
bits. Nothing about the bins is estimated from data: a value has the same bin in every range and every process, and counts
merge exactly.
"""

from __future__ import annotations

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

    `segments` lists adjoining `(low, high, bits)`: every octave `[2^e, 2^(e+1))` with `low <= e < high` is divided into
    `2^bits` equal bins. Four more bins hold the rest: negative numbers, zero, smaller numbers, larger numbers.

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
        """The largest number of bits of any octave."""
        return max(bits for _, _, bits in self.segments)

    @cached_property
    def size(self) -> int:
        """The number of bins."""
        return 4 + sum((high - low) << bits for low, high, bits in self.segments)

    @cached_property
    def edges(self) -> Float[np.ndarray, " edge"]:
        """Lower edge of every bin, then the upper edge of the last: `size + 1` rising numbers."""
        edges = [-(2.0**128), 0.0, 2.0**-149]
        for low, high, bits in self.segments:
            for exponent in range(low, high):
                edges += (2.0**exponent * (1.0 + np.arange(1 << bits) / (1 << bits))).tolist()
        return np.array([*edges, 2.0 ** self.segments[-1][1], 2.0**128])

    @property
    def shift(self) -> int:
        """The number of trailing bits that the look-up ignores."""
        return _MANTISSA - self.resolution

    @cached_property
    def table(self) -> Int[np.ndarray, " pattern"]:
        """Bin of each leading part of a bit pattern; the index is the pattern, shifted, plus half the table."""
        half = 1 << (8 + self.resolution)
        table = np.zeros(2 * half, dtype=np.int32)  # negative patterns come first: bin 0
        table[0] = 1  # -0.0 is zero
        table[half] = 1  # zero, with the subnormals that share its pattern
        table[half + 1 : half + ((self.segments[0][0] + _BIAS) << self.resolution)] = 2
        start = 3
        for low, high, bits in self.segments:
            count = (high - low) << bits
            at = half + ((low + _BIAS) << self.resolution)
            numbers = np.arange(start, start + count, dtype=np.int32)
            table[at : at + ((high - low) << self.resolution)] = np.repeat(numbers, 1 << (self.resolution - bits))
            start += count
        table[half + ((self.segments[-1][1] + _BIAS) << self.resolution) :] = start
        return table

    @cached_property
    def positive_table(self) -> Int[np.ndarray, " pattern"]:
        """The half of the table for numbers without a sign bit, indexed by the shifted pattern itself."""
        return self.table[1 << (8 + self.resolution) :]

    def find(self, values: Float[np.ndarray, "*shape"]) -> Int[np.ndarray, "*shape"]:
        """Return the bin of each value, from 0 to `size - 1`; NaN must have been refused before."""
        index = np.ascontiguousarray(values, dtype=np.float32).view(np.int32) >> self.shift
        if index.size and index.min() < 0:
            return self.table.take(index + (1 << (8 + self.resolution)))
        return self.positive_table.take(index)


@dataclass(frozen=True)
class BinNumbers:
    """The fine and the coarse bin of each value."""

    fine: Int[np.ndarray, "*shape"]
    coarse: Int[np.ndarray, "*shape"]


@dataclass(frozen=True)
class Binning:
    """The bins of one kind of quantity: `fine` for ranks, `coarse` for histograms and the ranks of a partner."""

    fine: Bins
    coarse: Bins

    @cached_property
    def coarse_of_fine(self) -> Int[np.ndarray, " bin"]:
        """The coarse bin of each fine bin."""
        if not np.isin(self.coarse.edges, self.fine.edges).all():
            raise ValueError("every edge of the coarse bins must be an edge of the fine bins")
        found = np.searchsorted(self.coarse.edges, self.fine.edges[:-1], side="right") - 1
        return found.astype(np.int32)

    def find(self, values: Float[np.ndarray, "*shape"]) -> BinNumbers:
        """Return the fine and the coarse bin of each value."""
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
    """A quantile, interpolated within its bin, and the edges between which the true one lies."""

    value: float
    low: float
    high: float


@dataclass(frozen=True)
class Distribution:
    """The number of values in each bin; without a single value it is an error."""

    counts: Int[np.ndarray, " bin"]
    edges: Float[np.ndarray, " edge"]

    def __post_init__(self) -> None:
        if not self.counts.any():
            raise InputError("an empty distribution has no quantiles")

    def quantile(self, q: float, *, low: float, high: float) -> Quantile:
        """Return the value at rank `q (n - 1)`, as numpy's linear quantile.

        Args:
            q: The quantile, from 0 to 1.
            low: The smallest value, exactly.
            high: The largest value, exactly.

        Returns:
            The quantile. Its bin is certain; its place within the bin is interpolated.
        """
        total = int(self.counts.sum())
        rank = q * (total - 1)
        first, left = self._place(int(np.floor(rank)), low, high)
        last, right = self._place(int(np.ceil(rank)), low, high)
        value = left + (rank % 1) * (right - left)
        return Quantile(value, float(max(self.edges[first], low)), float(min(self.edges[last + 1], high)))

    @cached_property
    def _cumulative(self) -> Int[np.ndarray, " bin"]:
        return np.cumsum(self.counts)

    def _place(self, rank: int, low: float, high: float) -> tuple[int, float]:
        """The bin of the value at a rank, and the value as if bins were evenly filled."""
        found = int(np.searchsorted(self._cumulative, rank, side="right"))
        if rank == 0:
            return found, low
        if rank == self._cumulative[-1] - 1:
            return found, high
        inside = (rank - (self._cumulative[found] - self.counts[found]) + 0.5) / self.counts[found]
        floor, ceiling = max(self.edges[found], low), min(self.edges[found + 1], high)
        return found, float(floor + inside * (ceiling - floor))
