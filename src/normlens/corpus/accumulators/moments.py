"""Means, variances, extremes and linear correlations of many cells at once, in float64.

Parts are combined by the update of Chan et al. 1979, which is stable where values hardly vary around a large mean.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Self

import numpy as np
from jaxtyping import Bool, Float, Int

from normlens.errors import InputError


@dataclass(frozen=True)
class Summary:
    """What one cell of `Moments` says; `sd` divides by the count, as the papers' dispersion tables do."""

    count: int
    mean: float
    variance: float
    low: float
    high: float

    @property
    def sd(self) -> float:
        """Standard deviation."""
        return float(np.sqrt(self.variance))

    @property
    def cv(self) -> float:
        """Coefficient of variation, `sd / mean`; NaN where the mean is zero."""
        return self.sd / self.mean if self.mean else float("nan")


class _Cells(ABC):
    """Arrays with one entry per cell; cells are independent of each other."""

    FIELDS: ClassVar[tuple[str, ...]]
    count: Int[np.ndarray, "*shape"]

    @abstractmethod
    def __init__(self, shape: tuple[int, ...]) -> None: ...

    @abstractmethod
    def _combine(self, *arrays: np.ndarray) -> None:
        """Take in another part of the data, given as `FIELDS`; cells of count 0 change nothing."""

    def merge(self, other: Self) -> None:
        """Take in another part of the data."""
        self.load(other.state())

    def pooled(self, rows: Sequence[int]) -> Self:
        """The cells of several rows pooled: what one accumulator would hold that had seen all their values."""
        out = type(self)(self.count.shape[1:])
        for row in rows:
            out._combine(*(getattr(self, name)[row] for name in self.FIELDS))
        return out

    def state(self) -> dict[str, np.ndarray]:
        """Everything, as arrays."""
        return {name: getattr(self, name) for name in self.FIELDS}

    def load(self, state: Mapping[str, np.ndarray]) -> None:
        """Take in a saved state."""
        if state["count"].shape != self.count.shape:
            raise InputError(
                f"cells merge one to one: these have shape {self.count.shape}, the others {state['count'].shape}"
            )
        self._combine(*(state[name] for name in self.FIELDS))


class Moments(_Cells):
    """Count, mean, variance and extremes of `shape` independent cells.

    >>> moments = Moments((1,))
    >>> moments.update(np.array([[1.0, 2.0, 3.0]]))
    >>> moments.result((0,)).mean, moments.result((0,)).high
    (2.0, 3.0)
    """

    FIELDS = ("count", "mean", "square", "low", "high")

    def __init__(self, shape: tuple[int, ...]) -> None:
        self.count = np.zeros(shape, dtype=np.int64)
        self.mean = np.zeros(shape)
        self.square = np.zeros(shape)  # sum of squared deviations from the mean
        self.low = np.full(shape, np.inf)
        self.high = np.full(shape, -np.inf)

    @classmethod
    def of(
        cls,
        count: Int[np.ndarray, "*shape"],
        mean: Float[np.ndarray, "*shape"],
        square: Float[np.ndarray, "*shape"],
        low: Float[np.ndarray, "*shape"],
        high: Float[np.ndarray, "*shape"],
    ) -> Moments:
        """Moments that were computed elsewhere; `square` is the sum of squared deviations from the mean."""
        out = cls(mean.shape)
        out._combine(count, mean, square, low, high)
        return out

    def update(self, values: Float[np.ndarray, "*shape value"]) -> None:
        """Take in values along the last axis, one row per cell."""
        if not values.shape[-1]:
            return
        values = values.astype(np.float64)
        mean = values.mean(axis=-1)
        square = ((values - mean[..., None]) ** 2).sum(axis=-1)
        self._combine(np.full(mean.shape, values.shape[-1]), mean, square, values.min(axis=-1), values.max(axis=-1))

    def result(self, cell: tuple[int, ...]) -> Summary:
        """The summary of one cell; an empty cell is an error."""
        if not self.count[cell]:
            raise InputError(f"a statistic of nothing has no value: cell {cell} has not seen a single number")
        return Summary(
            int(self.count[cell]),
            float(self.mean[cell]),
            float(self.square[cell] / self.count[cell]),
            float(self.low[cell]),
            float(self.high[cell]),
        )

    def _combine(self, *arrays: np.ndarray) -> None:
        count, mean, square, low, high = arrays
        total = self.count + count
        share = np.divide(count, total, out=np.zeros(total.shape), where=total > 0)
        delta = np.where(count > 0, mean - self.mean, 0.0)
        self.square = self.square + np.where(count > 0, square + delta**2 * self.count * share, 0.0)
        self.mean = self.mean + delta * share
        self.count = total
        self.low = np.where(count > 0, np.minimum(self.low, low), self.low)
        self.high = np.where(count > 0, np.maximum(self.high, high), self.high)


class Pearson(_Cells):
    """Pearson's r of two quantities in `shape` independent cells.

    >>> pearson = Pearson((1,))
    >>> pearson.update(np.array([[1.0, 2.0, 3.0]]), np.array([[2.0, 4.0, 6.0]]))
    >>> round(pearson.result((0,)), 12)
    1.0
    """

    FIELDS = ("count", "x", "y", "xx", "yy", "xy")

    def __init__(self, shape: tuple[int, ...]) -> None:
        self.count = np.zeros(shape, dtype=np.int64)
        self.x, self.y = np.zeros(shape), np.zeros(shape)  # means
        self.xx, self.yy, self.xy = np.zeros(shape), np.zeros(shape), np.zeros(shape)  # sums of centred products

    @classmethod
    def of(
        cls,
        count: Int[np.ndarray, "*shape"],
        x: Float[np.ndarray, "*shape"],
        y: Float[np.ndarray, "*shape"],
        xx: Float[np.ndarray, "*shape"],
        yy: Float[np.ndarray, "*shape"],
        xy: Float[np.ndarray, "*shape"],
    ) -> Pearson:
        """From plain sums over pairs: their count, `Σ x`, `Σ y`, `Σ x²`, `Σ y²`, `Σ x y`."""
        out = cls(x.shape)
        scale = np.maximum(count, 1)
        x, y = x / scale, y / scale
        out._combine(count, x, y, xx - scale * x * x, yy - scale * y * y, xy - scale * x * y)
        return out

    def update(self, x: Float[np.ndarray, "*shape value"], y: Float[np.ndarray, "*shape value"]) -> None:
        """Take in pairs along the last axis, one row per cell."""
        x, y = x.astype(np.float64), y.astype(np.float64)
        count = np.full(x.shape[:-1], x.shape[-1])
        self.merge(Pearson.of(count, x.sum(-1), y.sum(-1), (x * x).sum(-1), (y * y).sum(-1), (x * y).sum(-1)))

    def result(self, cell: tuple[int, ...]) -> float:
        """Pearson's r of one cell; fewer than two pairs, or a constant side, is an error."""
        if self.count[cell] < 2:
            raise InputError(f"a correlation needs at least two pairs, this one has {self.count[cell]}")
        if self.xx[cell] <= 0 or self.yy[cell] <= 0:
            raise InputError("a correlation needs two quantities that vary; one of these is constant")
        return float(np.clip(self.xy[cell] / np.sqrt(self.xx[cell] * self.yy[cell]), -1.0, 1.0))

    def _combine(self, *arrays: np.ndarray) -> None:
        count, x, y, xx, yy, xy = arrays
        total = self.count + count
        share = np.divide(count, total, out=np.zeros(total.shape), where=total > 0)
        dx, dy = np.where(count > 0, x - self.x, 0.0), np.where(count > 0, y - self.y, 0.0)
        both = self.count * share
        self.xx = self.xx + np.where(count > 0, xx + dx * dx * both, 0.0)
        self.yy = self.yy + np.where(count > 0, yy + dy * dy * both, 0.0)
        self.xy = self.xy + np.where(count > 0, xy + dx * dy * both, 0.0)
        self.x, self.y = self.x + dx * share, self.y + dy * share
        self.count = total


class RelativePositionMeans:
    """Mean of each row's map at offset `key - query`, from `-reach` to `reach`; the two ends hold all that is beyond.

    >>> means = RelativePositionMeans(rows=1, reach=1)
    >>> means.update(np.eye(3)[None, None])
    >>> means.result(0).tolist()
    [0.0, 1.0, 0.0]
    """

    def __init__(self, rows: int, reach: int) -> None:
        self.reach = reach
        self.total = np.zeros((rows, 2 * reach + 1))
        self.count = np.zeros(2 * reach + 1, dtype=np.int64)

    def update(
        self, maps: Float[np.ndarray, "batch row query key"], keep: Bool[np.ndarray, "query key"] | None = None
    ) -> None:
        """Take in maps over the same positions as queries and keys; `keep` selects the pairs that count."""
        batch, _, queries, keys = maps.shape
        kept = np.ones((queries, keys), dtype=bool) if keep is None else keep
        offset = np.clip(np.arange(keys) - np.arange(queries)[:, None], -self.reach, self.reach) + self.reach
        chosen, size = offset[kept], len(self.count)
        self.count += batch * np.bincount(chosen, minlength=size)
        for row, summed in enumerate(maps.sum(axis=0, dtype=np.float64)):
            self.total[row] += np.bincount(chosen, weights=summed[kept], minlength=size)

    def merge(self, other: RelativePositionMeans) -> None:
        """Add another part of the data."""
        if self.total.shape != other.total.shape:
            raise InputError("means by relative position merge only with the same rows and reach")
        self.load(other.state())

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

    def load(self, state: Mapping[str, np.ndarray]) -> None:
        """Add a saved state."""
        self.total += state["total"]
        self.count += state["count"]
