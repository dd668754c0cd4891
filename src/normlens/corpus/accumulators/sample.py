"""A seeded uniform sample that does not depend on the order of the data, nor on how it was split.

Every candidate has a priority, uniform in [0, 1), that is a function of the seed and of the candidate alone; the sample
is the `size` candidates with the lowest priorities.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from jaxtyping import Float, Int

from normlens.errors import InputError


class UniformSample:
    """The `size` rows of lowest priority, as columns of numbers."""

    def __init__(self, size: int) -> None:
        self.size = size
        self._parts: list[dict[str, np.ndarray]] = []
        self._waiting = 0
        self.threshold = 1.0  # a candidate at or above this can no longer enter

    def update(self, columns: Mapping[str, np.ndarray]) -> None:
        """Offer rows; `columns["priority"]` decides."""
        keep = columns["priority"] < self.threshold
        if not keep.any():
            return
        self._parts.append({name: column[keep] for name, column in columns.items()})
        self._waiting += int(keep.sum())
        if self._waiting > self.size:
            self._compact()

    def merge(self, other: UniformSample) -> None:
        """Offer everything that another part of the data kept."""
        if self.size != other.size:
            raise InputError("samples merge only with the same size")
        for part in other._parts:
            self.update(part)

    def result(self) -> dict[str, np.ndarray]:
        """The sample's columns in order of priority; an empty sample is an error."""
        self._compact()
        if not self._parts:
            raise InputError("a sample of nothing has no rows: nothing has been offered")
        return self._parts[0]

    def state(self) -> dict[str, np.ndarray]:
        """Everything, as arrays."""
        self._compact()
        return dict(self._parts[0]) if self._parts else {}

    def load(self, state: Mapping[str, np.ndarray]) -> None:
        """Offer a saved state."""
        if state:
            self.update(state)

    def _compact(self) -> None:
        if not self._parts:
            return
        columns = {name: np.concatenate([part[name] for part in self._parts]) for name in self._parts[0]}
        # Equal priorities come from equal sequences and so from equal rows: their order does not show.
        order = np.argsort(columns["priority"], kind="stable")[: self.size]
        self._parts = [{name: column[order] for name, column in columns.items()}]
        self._waiting = 0
        if len(order) == self.size:
            self.threshold = float(np.nextafter(self._parts[0]["priority"][-1], 2.0))


def lowest_priorities(
    rng: np.random.Generator, population: int, threshold: float, limit: int
) -> tuple[Float[np.ndarray, " draw"], Int[np.ndarray, " draw"]]:
    """The members of a population with priorities below the threshold, lowest first, at most `limit`.

    Only what may matter is drawn: the gap from the `k`-th to the next of `n` uniform priorities is exponential with
    rate `n - k` on the scale `-log(1 - u)`. A lower threshold gives a prefix of what a higher one gives.
    """
    limit = min(limit, population)
    gaps, members = (np.random.Generator(np.random.Philox(key=rng.integers(2**63, size=2))) for _ in range(2))
    ceiling = -np.log1p(-threshold) if threshold < 1.0 else np.inf
    levels = np.zeros(0)
    while len(levels) < limit and (not len(levels) or levels[-1] < ceiling):
        start = len(levels)
        step = min(max(64, start), limit - start)
        drawn = gaps.standard_exponential(step) / (population - np.arange(start, start + step))
        levels = np.append(levels, (levels[-1] if start else 0.0) + np.cumsum(drawn))
    count = int(np.searchsorted(levels, ceiling))
    return -np.expm1(-levels[:count]), _distinct(members, population, limit, count)


def _distinct(rng: np.random.Generator, population: int, limit: int, count: int) -> Int[np.ndarray, " draw"]:
    """The first `count` different numbers of an endless uniform stream."""
    if population <= 2 * limit:  # decided by what is asked for, not by what this call happens to need
        return rng.permutation(population)[:count]
    stream = np.zeros(0, dtype=np.int64)
    first = stream
    while len(first) < count:
        stream = np.append(stream, (rng.random(count + 64) * population).astype(np.int64))
        first = np.sort(np.unique(stream, return_index=True)[1])
    return stream[first[:count]]
