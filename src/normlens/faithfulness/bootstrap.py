"""Confidence intervals of a mean: percentile intervals of a seeded bootstrap over items, file by file."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from normlens.errors import InputError

#: Resamples, and the share of them that an interval holds.
RESAMPLES, LEVEL = 2000, 0.95


@dataclass(frozen=True)
class Estimate:
    """A mean over items, averaged over files, with its interval."""

    mean: float
    low: float
    high: float
    count: int

    @property
    def excludes_zero(self) -> bool:
        """Return True if the whole interval lies on one side of zero."""
        return self.low > 0 or self.high < 0

    def __str__(self) -> str:
        return f"{self.mean:.3f} [{self.low:.3f}, {self.high:.3f}]"


def estimate(groups: Sequence[np.ndarray], *, seed: int = 0, resamples: int = RESAMPLES) -> Estimate:
    """The average over groups of each group's mean; items are drawn again inside of each group.

    Items without a number (a tie of everything has no correlation) are left out, and not counted.

    >>> import numpy as np
    >>> estimate([np.array([0.0, 1.0]), np.array([1.0, 1.0])]).mean
    0.75
    """
    kept = [np.asarray(group, dtype=np.float64) for group in groups]
    kept = [group[np.isfinite(group)] for group in kept]
    kept = [group for group in kept if len(group)]
    if not kept:
        raise InputError("no item has a number to average")
    generator = np.random.default_rng(seed)
    drawn = np.zeros(resamples)
    for group in kept:
        drawn += group[generator.integers(0, len(group), (resamples, len(group)))].mean(1)
    low, high = np.quantile(drawn / len(kept), [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    mean = float(np.mean([group.mean() for group in kept]))
    return Estimate(mean, float(low), float(high), sum(map(len, kept)))


def difference(a: Sequence[np.ndarray], b: Sequence[np.ndarray]) -> Estimate:
    """The mean of `a - b`, item by item: both methods saw the same items, so what is hard for both cancels."""
    return estimate([np.asarray(x) - np.asarray(y) for x, y in zip(a, b, strict=True)])
