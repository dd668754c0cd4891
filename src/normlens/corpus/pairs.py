"""Rank correlation of one number per token with another: exact while distinct pairs fit, bounded when they do not.

Pairs of float32 bit patterns are counted as they are. When more than `capacity` distinct pairs have been seen, the last
bit of both patterns is dropped, again and again until they fit. A larger set never has fewer distinct pairs than its
parts, so the number of dropped bits at the end does not depend on how or in which order the data came.
"""

from __future__ import annotations

import numpy as np
from jaxtyping import Float, Int

from normlens.corpus.ranks import Rho, rho_of_pairs
from normlens.errors import InputError

_COMPACT = 1 << 18  # pairs that wait before they are sorted in


class PairCounts:
    """One-pass, mergeable Spearman correlation within each of up to 256 groups.

    >>> pairs = PairCounts()
    >>> pairs.update(np.array([1.0, 2.0, 3.0]), np.array([9.0, 8.0, 1.0]), np.array([0, 0, 1]))
    >>> pairs.result([0, 1]).rho, pairs.result([0, 1]).bound
    (-1.0, 0.0)
    """

    def __init__(self, capacity: int = 1 << 20) -> None:
        self.capacity = capacity
        self.dropped = 0
        self._x = np.zeros(0, dtype=np.int32)
        self._y = np.zeros(0, dtype=np.int32)
        self._group = np.zeros(0, dtype=np.uint8)
        self._count = np.zeros(0, dtype=np.int64)
        self._waiting: list[tuple[np.ndarray, ...]] = []

    def update(
        self, x: Float[np.ndarray, " token"], y: Float[np.ndarray, " token"], group: Int[np.ndarray, " token"]
    ) -> None:
        """Count pairs, taken as float32."""
        keys = (ordered(x) >> self.dropped, ordered(y) >> self.dropped, group.astype(np.uint8))
        self._waiting.append((*keys, np.ones(len(x), dtype=np.int64)))
        if sum(len(part[0]) for part in self._waiting) > _COMPACT:
            self._compact()

    def merge(self, other: PairCounts) -> None:
        """Add another part of the data."""
        if self.capacity != other.capacity:
            raise InputError("pair counts merge only with the same capacity")
        other._compact()
        self._compact()
        level = max(self.dropped, other.dropped)
        self._drop(level - self.dropped)
        extra = level - other.dropped
        self._waiting.append((other._x >> extra, other._y >> extra, other._group, other._count))
        self._compact()

    def result(self, groups: list[int]) -> Rho:
        """Rho over the union of the groups; fewer than two pairs, or a constant side, is an error."""
        self._compact()
        inside = np.isin(self._group, groups)
        return rho_of_pairs(self._x[inside], self._y[inside], self._count[inside], exact=self.dropped == 0)

    def state(self) -> dict[str, np.ndarray]:
        """Everything, as arrays."""
        self._compact()
        return {
            "x": self._x, "y": self._y, "group": self._group, "count": self._count, "dropped": np.array(self.dropped)
        }  # fmt: skip

    def load(self, state: dict[str, np.ndarray]) -> None:
        """Take in a saved state."""
        other = PairCounts(self.capacity)
        other._x, other._y, other._group, other._count = (state[name] for name in ("x", "y", "group", "count"))
        other.dropped = int(state["dropped"])
        self.merge(other)

    def _compact(self) -> None:
        if not self._waiting:
            return
        parts = [(self._x, self._y, self._group, self._count), *self._waiting]
        self._waiting = []
        self._x, self._y, self._group, self._count = _distinct(
            *(np.concatenate(column) for column in zip(*parts, strict=True))
        )
        while len(self._x) > self.capacity:
            self._drop(1)

    def _drop(self, bits: int) -> None:
        if bits:
            self._x, self._y, self._group, self._count = _distinct(
                self._x >> bits, self._y >> bits, self._group, self._count
            )
            self.dropped += bits


def ordered(values: Float[np.ndarray, " value"]) -> Int[np.ndarray, " value"]:
    """Integers in the order of the float32 numbers."""
    bits = (values.astype(np.float32) + np.float32(0.0)).view(np.int32)
    return np.where(bits >= 0, bits, bits ^ np.int32(0x7FFFFFFF))


def _distinct(
    x: Int[np.ndarray, " pair"],
    y: Int[np.ndarray, " pair"],
    group: Int[np.ndarray, " pair"],
    count: Int[np.ndarray, " pair"],
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    order = np.lexsort((y, x, group))
    x, y, group, count = x[order], y[order], group[order], count[order]
    if not len(x):
        return x, y, group, count
    new = np.ones(len(x), dtype=bool)
    new[1:] = (x[1:] != x[:-1]) | (y[1:] != y[:-1]) | (group[1:] != group[:-1])
    starts = np.flatnonzero(new)
    return x[starts], y[starts], group[starts], np.add.reduceat(count, starts)
