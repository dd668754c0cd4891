"""Pearson's r of two quantities in many cells at once, in float64, mergeable."""

from __future__ import annotations

import numpy as np
from jaxtyping import Float, Int

from normlens.errors import InputError


class Pearson:
    """Co-moments of `shape` independent cells.

    >>> pearson = Pearson((1,))
    >>> pearson.add_values(np.array([[1.0, 2.0, 3.0]]), np.array([[2.0, 4.0, 6.0]]))
    >>> round(pearson.result((0,)), 12)
    1.0
    """

    _FIELDS = ("count", "x", "y", "xx", "yy", "xy")

    def __init__(self, shape: tuple[int, ...]) -> None:
        self.count = np.zeros(shape, dtype=np.int64)
        self.x, self.y = np.zeros(shape), np.zeros(shape)  # means
        self.xx, self.yy, self.xy = np.zeros(shape), np.zeros(shape), np.zeros(shape)  # sums of centred products

    def add_values(self, x: Float[np.ndarray, "*shape value"], y: Float[np.ndarray, "*shape value"]) -> None:
        """Take in pairs along the last axis, one row per cell."""
        count = np.full(x.shape[:-1], x.shape[-1])
        x, y = x.astype(np.float64), y.astype(np.float64)
        self.add_sums(count, x.sum(-1), y.sum(-1), (x * x).sum(-1), (y * y).sum(-1), (x * y).sum(-1))

    def add_sums(
        self,
        count: Int[np.ndarray, "*shape"],
        x: Float[np.ndarray, "*shape"],
        y: Float[np.ndarray, "*shape"],
        xx: Float[np.ndarray, "*shape"],
        yy: Float[np.ndarray, "*shape"],
        xy: Float[np.ndarray, "*shape"],
    ) -> None:
        """Take in plain sums of one chunk of data."""
        scale = np.maximum(count, 1)
        x, y = x / scale, y / scale
        self._add(count, x, y, xx - scale * x * x, yy - scale * y * y, xy - scale * x * y)

    def merge(self, other: Pearson) -> None:
        """Take in another accumulator."""
        self._add(*(getattr(other, name) for name in self._FIELDS))

    def result(self, cell: tuple[int, ...]) -> float:
        """Pearson's r of one cell; fewer than two pairs, or a constant side, is an error."""
        if self.count[cell] < 2:
            raise InputError(f"a correlation needs at least two pairs, this one has {self.count[cell]}")
        if self.xx[cell] <= 0 or self.yy[cell] <= 0:
            raise InputError("a correlation needs two quantities that vary; one of these is constant")
        return float(np.clip(self.xy[cell] / np.sqrt(self.xx[cell] * self.yy[cell]), -1.0, 1.0))

    def pooled(self, cells: list[tuple[int, ...]]) -> Pearson:
        """One cell that holds the pairs of several."""
        out = Pearson((1,))
        for cell in cells:
            out._add(*(getattr(self, name)[cell][None] for name in self._FIELDS))
        return out

    def state(self) -> dict[str, np.ndarray]:
        """Everything, as arrays."""
        return {name: getattr(self, name) for name in self._FIELDS}

    def load(self, state: dict[str, np.ndarray]) -> None:
        """Take in a saved state."""
        self._add(*(state[name] for name in self._FIELDS))

    def _add(
        self,
        count: Int[np.ndarray, "*shape"],
        x: Float[np.ndarray, "*shape"],
        y: Float[np.ndarray, "*shape"],
        xx: Float[np.ndarray, "*shape"],
        yy: Float[np.ndarray, "*shape"],
        xy: Float[np.ndarray, "*shape"],
    ) -> None:
        total = self.count + count
        share = np.divide(count, total, out=np.zeros(np.shape(total)), where=total > 0)
        dx, dy = np.where(count > 0, x - self.x, 0.0), np.where(count > 0, y - self.y, 0.0)
        both = self.count * share
        self.xx = self.xx + np.where(count > 0, xx + dx * dx * both, 0.0)
        self.yy = self.yy + np.where(count > 0, yy + dy * dy * both, 0.0)
        self.xy = self.xy + np.where(count > 0, xy + dx * dy * both, 0.0)
        self.x, self.y = self.x + dx * share, self.y + dy * share
        self.count = total
