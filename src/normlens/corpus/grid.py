"""Fixed grids over the float32 line: a value falls into the same bin in every worker, whatever came before it.

Float32 bit patterns are ordered like the numbers they stand for, so a bin is one look-up on the pattern's top bits.
Nothing of a grid is estimated from data, hence counts on a grid are integers that merge exactly, in any order.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

_MANTISSA = 23
_BIAS = 127


@dataclass(frozen=True)
class Grid:
    """A monotone partition of the float32 numbers.

    `segments` lists adjoining `(low, high, bits)`: every octave `[2^e, 2^(e+1))` with `low <= e < high` is cut into
    `2^bits` equal bins. Four more bins hold what lies outside: negative numbers, zero, what is smaller, what is larger.

    >>> grid = Grid(((-2, 0, 2),))
    >>> grid.size
    12
    >>> grid.bins(torch.tensor([0.0, 0.25, 0.5, 0.55, 0.63, 7.0])).tolist()
    [1, 3, 7, 7, 8, 11]
    """

    segments: tuple[tuple[int, int, int], ...]

    def __post_init__(self) -> None:
        for (_, high, _), (low, _, _) in zip(self.segments, self.segments[1:], strict=False):
            if high != low:
                raise ValueError(f"segments must adjoin in rising order, got {self.segments}")

    @cached_property
    def resolution(self) -> int:
        """The most bits that any octave has, hence how much of the mantissa the look-up reads."""
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

    @cached_property
    def table(self) -> Int[Tensor, " pattern"]:
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
        return torch.from_numpy(table)

    def bins(self, values: Float[Tensor, "*shape"]) -> Int[Tensor, "*shape"]:
        """Bin of each value, from 0 to `size - 1`; the values must be numbers (NaN is for the caller to refuse)."""
        patterns = values.to(torch.float32).contiguous().view(torch.int32).reshape(-1)
        index = patterns.bitwise_right_shift(self.shift)
        if len(index) and int(index.min()) < 0:
            index += 1 << (8 + self.resolution)
            return self.table.index_select(0, index).view(values.shape)
        return self.upper.index_select(0, index).view(values.shape)

    @property
    def shift(self) -> int:
        """How many trailing bits of a pattern the look-up ignores."""
        return _MANTISSA - self.resolution

    @cached_property
    def upper(self) -> Int[Tensor, " pattern"]:
        """The half of the table that positive numbers need, indexed by the shifted pattern itself."""
        return self.table[1 << (8 + self.resolution) :]

    def coarsening(self, coarse: Grid) -> Int[np.ndarray, " bin"]:
        """For each bin of this grid the bin of `coarse` that holds it whole."""
        if not np.isin(coarse.edges, self.edges).all():
            raise ValueError("a coarse grid needs edges that are edges of the fine grid too")
        return np.searchsorted(coarse.edges, self.edges[:-1], side="right") - 1


@dataclass(frozen=True)
class Scale:
    """The grids of one kind of quantity: `fine` for its own ranks, `coarse` for its partner's ranks and histograms."""

    fine: Grid
    coarse: Grid

    @cached_property
    def coarse_of_fine(self) -> Int[Tensor, " bin"]:
        """The coarse bin of each fine bin."""
        return torch.from_numpy(self.fine.coarsening(self.coarse).astype(np.int32))

    def bins(self, values: Float[Tensor, "*shape"]) -> Bins:
        """Fine and coarse bin of each value."""
        fine = self.fine.bins(values)
        return Bins(fine, self.coarse_of_fine.index_select(0, fine.reshape(-1)).view(fine.shape))


@dataclass(frozen=True)
class Bins:
    """Where values lie on the two grids of a scale."""

    fine: Int[Tensor, "*shape"]
    coarse: Int[Tensor, "*shape"]


#: Attention weights are shares: half of them lie in the upper twelve octaves, a long tail reaches below 2^-100.
WEIGHTS = Scale(
    fine=Grid(((-126, -48, 3), (-48, -16, 7), (-16, -8, 9), (-8, 0, 10), (0, 1, 0))),
    coarse=Grid(((-80, -48, 0), (-48, -16, 1), (-16, -8, 3), (-8, 0, 4), (0, 1, 0))),
)

#: Norms crowd within an octave or two of their mean: they need many bins, but in few octaves.
NORMS = Scale(
    fine=Grid(((-16, -4, 8), (-4, 7, 12), (7, 16, 8))),
    coarse=Grid(((-16, -4, 2), (-4, 7, 5), (7, 16, 2))),
)

#: Contributions are products of weights and norms: the weights' long tail, and a few octaves above 1.
CONTRIBUTIONS = Scale(
    fine=Grid(((-126, -48, 3), (-48, -16, 7), (-16, 10, 9))),
    coarse=Grid(((-80, -48, 0), (-48, -16, 1), (-16, 10, 3))),
)
