"""Histograms on fixed grids, and the quantiles that they imply."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from normlens.corpus.grid import Grid
from normlens.errors import InputError


@dataclass(frozen=True)
class Quantile:
    """A quantile: interpolated within its bin, and the bin's edges between which the true one lies for certain."""

    value: float
    low: float
    high: float


class Histogram:
    """Counts of `rows` independent histograms on one grid.

    >>> from normlens.corpus.grid import NORMS
    >>> histogram = Histogram(NORMS.coarse, rows=1)
    >>> histogram.add(torch.zeros(4, dtype=torch.long), NORMS.coarse.bins(torch.tensor([1.0, 1.0, 2.0, 4.0])))
    >>> histogram.quantile(0, 1.0, low=1.0, high=4.0).value
    4.0
    """

    def __init__(self, grid: Grid, rows: int) -> None:
        self.grid, self.rows = grid, rows
        self.counts = np.zeros((rows, grid.size), dtype=np.int64)

    def add(self, row: Int[Tensor, "*shape"], bins: Int[Tensor, "*shape"]) -> None:
        """Count bins; `row` broadcasts to the shape of `bins`."""
        index = (bins + row.long() * self.grid.size).reshape(-1)
        ones = torch.ones(1, dtype=torch.int64).expand(len(index))
        torch.from_numpy(self.counts).view(-1).scatter_add_(0, index, ones)

    def merge(self, other: Histogram) -> None:
        """Add the counts of another part of the data."""
        if self.grid != other.grid or self.rows != other.rows:
            raise InputError("histograms merge only when both stand on the same grid")
        self.counts += other.counts

    def quantile(self, row: int, q: float, *, low: float, high: float) -> Quantile:
        """The `q`-quantile of a row whose exact extremes are known; an empty row is an error."""
        return quantile_of_counts(self.counts[row], self.grid.edges, q, low, high)

    def state(self) -> dict[str, np.ndarray]:
        """Everything, as arrays: the occupied cells and their counts."""
        cells = np.flatnonzero(self.counts)
        return {"cell": cells, "count": self.counts.reshape(-1)[cells], "rows": np.array(self.rows)}

    def load(self, state: dict[str, np.ndarray]) -> None:
        """Add a saved state."""
        self.counts.reshape(-1)[state["cell"]] += state["count"]


def quantile_of_counts(
    counts: Int[np.ndarray, " bin"], edges: Float[np.ndarray, " edge"], q: float, low: float, high: float
) -> Quantile:
    """The value at rank `q (n - 1)` (as numpy's linear quantile): its bin is certain, the place is interpolated."""
    total = int(counts.sum())
    if not total:
        raise InputError("a quantile of nothing has no value: this histogram is empty")
    below = np.cumsum(counts)

    def place(rank: int) -> tuple[int, float]:
        """The bin of the value at a rank, and about where it lies in there: bins are taken to be evenly filled."""
        found = int(np.searchsorted(below, rank, side="right"))
        if rank in (0, total - 1):
            return found, low if rank == 0 else high
        inside = (rank - (below[found] - counts[found]) + 0.5) / counts[found]
        floor, ceiling = max(edges[found], low), min(edges[found + 1], high)
        return found, float(floor + inside * (ceiling - floor))

    rank = q * (total - 1)
    (first, left), (last, right) = place(int(np.floor(rank))), place(int(np.ceil(rank)))
    value = left + (rank % 1) * (right - left)
    return Quantile(value, float(max(edges[first], low)), float(min(edges[last + 1], high)))
