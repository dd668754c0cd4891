"""Mean of a map by relative position: where does a position look, from where it stands?"""

from __future__ import annotations

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from normlens.errors import InputError


class RelativeMeans:
    """Mean of each row's map at offset `key - query`, from `-reach` to `reach`; the two ends hold all that is beyond.

    >>> means = RelativeMeans(rows=1, reach=1)
    >>> means.add(torch.eye(3)[None, None])
    >>> means.result(0).tolist()
    [0.0, 1.0, 0.0]
    """

    def __init__(self, rows: int, reach: int) -> None:
        self.reach = reach
        self.total = np.zeros((rows, 2 * reach + 1))
        self.count = np.zeros(2 * reach + 1, dtype=np.int64)

    def add(self, maps: Float[Tensor, "batch row query key"], keep: Bool[Tensor, "query key"] | None = None) -> None:
        """Take in maps over the same positions as queries and keys; `keep` selects the pairs that count."""
        batch, _, queries, keys = maps.shape
        summed = maps.sum(0, dtype=torch.float64)
        kept = torch.ones(1, queries, keys, dtype=torch.float64) if keep is None else keep.double()[None]
        if keep is not None:
            summed = summed * kept
        self.total += self._clipped(_diagonals(summed), queries)
        self.count += (batch * self._clipped(_diagonals(kept), queries)[0]).round().astype(np.int64)

    def merge(self, other: RelativeMeans) -> None:
        """Add another part of the data."""
        if self.total.shape != other.total.shape:
            raise InputError("means by relative position merge only with the same rows and reach")
        self.total += other.total
        self.count += other.count

    def result(self, row: int) -> Float[np.ndarray, " offset"]:
        """Means of one row, NaN at an offset that never occurred; nothing at all is an error."""
        if not self.count.any():
            raise InputError("a mean of nothing has no value: no map has been taken in")
        means = np.full(len(self.count), np.nan)
        np.divide(self.total[row], self.count, out=means, where=self.count > 0)
        return means

    def state(self) -> dict[str, np.ndarray]:
        """Everything, as arrays."""
        return {"total": self.total, "count": self.count}

    def load(self, state: dict[str, np.ndarray]) -> None:
        """Add a saved state."""
        self.total += state["total"]
        self.count += state["count"]

    def _clipped(self, diagonals: Float[np.ndarray, "row offset"], queries: int) -> Float[np.ndarray, "row offset"]:
        offsets = np.clip(np.arange(diagonals.shape[1]) - (queries - 1), -self.reach, self.reach) + self.reach
        out = np.zeros((len(diagonals), 2 * self.reach + 1))
        starts = np.flatnonzero(np.diff(offsets, prepend=-1))
        out[:, offsets[starts]] = np.add.reduceat(diagonals, starts, axis=1)
        return out


def _diagonals(maps: Float[Tensor, "row query key"]) -> Float[np.ndarray, "row offset"]:
    """Sum of each diagonal, from `key - query = -(queries - 1)` to `keys - 1`."""
    rows, queries, keys = maps.shape
    # Mirrored rows that are read back with a stride one short slide against each other: diagonals become columns.
    width = queries + keys
    slid = torch.zeros(rows, queries * width, dtype=maps.dtype)
    slid.view(rows, queries, width)[:, :, :keys] = maps.flip(-1)
    columns = slid[:, : queries * (width - 1)].view(rows, queries, width - 1)
    return columns.sum(1).flip(-1).numpy()
