"""Count, mean, variance and extremes of many cells at once, in float64, mergeable."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Int

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


class Moments:
    """Moments of `shape` independent cells.

    >>> moments = Moments((1,))
    >>> moments.add_values(np.array([[1.0, 2.0, 3.0]]))
    >>> moments.result((0,)).mean, moments.result((0,)).high
    (2.0, 3.0)
    """

    def __init__(self, shape: tuple[int, ...]) -> None:
        self.count = np.zeros(shape, dtype=np.int64)
        self.mean = np.zeros(shape)
        self.square = np.zeros(shape)  # sum of squared deviations from the mean
        self.low = np.full(shape, np.inf)
        self.high = np.full(shape, -np.inf)

    def add_values(self, values: Float[np.ndarray, "*shape value"]) -> None:
        """Take in values along the last axis, one row per cell."""
        count = values.shape[-1]
        if not count:
            return
        values = values.astype(np.float64)
        mean = values.mean(axis=-1)
        square = ((values - mean[..., None]) ** 2).sum(axis=-1)
        self.add(np.full(mean.shape, count), mean, square, values.min(axis=-1), values.max(axis=-1))

    def add(
        self,
        count: Int[np.ndarray, "*shape"],
        mean: Float[np.ndarray, "*shape"],
        square: Float[np.ndarray, "*shape"],
        low: Float[np.ndarray, "*shape"],
        high: Float[np.ndarray, "*shape"],
    ) -> None:
        """Take in the moments of another part of the data (Chan et al.'s update); cells of count 0 change nothing."""
        total = self.count + count
        share = np.divide(count, total, out=np.zeros(total.shape), where=total > 0)
        delta = np.where(count > 0, mean - self.mean, 0.0)
        self.square += np.where(count > 0, square + delta**2 * self.count * share, 0.0)
        self.mean += delta * share
        self.count = total
        self.low = np.where(count > 0, np.minimum(self.low, low), self.low)
        self.high = np.where(count > 0, np.maximum(self.high, high), self.high)

    def merge(self, other: Moments) -> None:
        """Take in another accumulator."""
        self.add(other.count, other.mean, other.square, other.low, other.high)

    def pooled(self, axis: int) -> Moments:
        """The moments when the cells along an axis are thrown together."""
        out = Moments(tuple(np.delete(self.count.shape, axis)))
        for index in range(self.count.shape[axis]):
            out.add(*(np.take(array, index, axis) for array in self._arrays))
        return out

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

    def state(self) -> dict[str, np.ndarray]:
        """Everything, as arrays."""
        return {"count": self.count, "mean": self.mean, "square": self.square, "low": self.low, "high": self.high}

    def load(self, state: dict[str, np.ndarray]) -> None:
        """Take in a saved state."""
        self.add(state["count"], state["mean"], state["square"], state["low"], state["high"])

    @property
    def _arrays(self) -> tuple[np.ndarray, ...]:
        return self.count, self.mean, self.square, self.low, self.high
