"""A seeded uniform sample that does not depend on the order of the data, nor on how it was split.

Every candidate has a priority, uniform in [0, 1), that is a function of the seed and of the candidate alone; the sample
is the `size` candidates with the lowest priorities.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from jaxtyping import Float, Int

from normlens.errors import InputError


class Sample:
    """The `size` rows of lowest priority, as columns of numbers."""

    def __init__(self, size: int) -> None:
        self.size = size
        self._parts: list[dict[str, np.ndarray]] = []
        self._waiting = 0
        self.threshold = 1.0  # a candidate at or above this can no longer enter

    def add(self, columns: dict[str, np.ndarray]) -> None:
        """Offer rows; `columns["priority"]` decides."""
        keep = columns["priority"] < self.threshold
        if not keep.any():
            return
        self._parts.append({name: column[keep] for name, column in columns.items()})
        self._waiting += int(keep.sum())
        if self._waiting > self.size:
            self._compact()

    def merge(self, other: Sample) -> None:
        """Offer everything that another part of the data kept."""
        if self.size != other.size:
            raise InputError("samples merge only with the same size")
        for part in other._parts:
            self.add(part)

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

    def load(self, state: dict[str, np.ndarray]) -> None:
        """Offer a saved state."""
        if state:
            self.add(state)

    def _compact(self) -> None:
        if not self._parts:
            return
        columns = {name: np.concatenate([part[name] for part in self._parts]) for name in self._parts[0]}
        # Equal priorities mean equal sequences; the other columns only fix an order among their equal rows.
        order = np.lexsort([*(columns[name] for name in sorted(columns) if name != "priority"), columns["priority"]])
        order = order[: self.size]
        self._parts = [{name: column[order] for name, column in columns.items()}]
        self._waiting = 0
        if len(order) == self.size:
            self.threshold = float(np.nextafter(self._parts[0]["priority"][-1], 2.0))


def lowest(rng: np.random.Generator, population: int, threshold: float, limit: int) -> Iterator[
    tuple[Float[np.ndarray, " draw"], Int[np.ndarray, " draw"]]
]:  # fmt: skip
    """Members of a population with their priorities in rising order, as far as they lie below the threshold.

    Only the order statistics that may matter are drawn: the gap from the `k`-th to the next of `n` uniform priorities
    is exponential with rate `n - k` on the scale `-log(1 - u)`. A prefix of the draws is the same for any threshold.
    """
    block, drawn, level = 64, 0, 0.0
    taken: set[int] = set()
    limit = min(limit, population)
    while drawn < limit:
        gaps = rng.standard_exponential(block) / np.maximum(population - drawn - np.arange(block), 1)
        levels = level + np.cumsum(gaps)
        candidates = rng.integers(population, size=2 * block)
        fresh: list[int] = []
        for member in candidates.tolist():
            if member not in taken and len(fresh) < block:
                taken.add(member)
                fresh.append(member)
        while len(fresh) < min(block, population - drawn):
            member = int(rng.integers(population))
            if member not in taken:
                taken.add(member)
                fresh.append(member)
        count = min(len(fresh), limit - drawn)
        priorities = -np.expm1(-levels[:count])
        inside = int(np.searchsorted(priorities, threshold))
        yield priorities[:inside], np.array(fresh[:inside], dtype=np.int64)
        if inside < count:
            return
        drawn += count
        level = float(levels[count - 1])
