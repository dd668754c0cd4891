"""Order and rank, with the rules for ties in one place.

Ranks: tokens with the same number share the mean of their ranks. Order (which token is taken away first): the earlier token
goes first among equals. Both are stated with every result (`TIES`).
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np

TIES = "ranks: mean of the tied; order: earlier first"


def ranks(numbers: np.ndarray) -> np.ndarray:
    """Rank 1 for the largest; ties share the mean of their ranks.

    >>> ranks(np.array([3.0, 1.0, 3.0])).tolist()
    [1.5, 3.0, 1.5]
    """
    values = np.asarray(numbers, dtype=np.float64)
    above = (values[None, :] > values[:, None]).sum(1)
    equal = (values[None, :] == values[:, None]).sum(1)
    return np.asarray(above + (equal + 1) / 2)


def reciprocal_rank(numbers: np.ndarray, wanted: Collection[int]) -> float:
    """One over the best rank of the wanted tokens, among those that are not wanted too.

    >>> reciprocal_rank(np.array([0.2, 0.9, 0.5]), {2})
    0.5
    """
    values = np.asarray(numbers, dtype=np.float64)
    best = max(values[k] for k in wanted)
    others = np.delete(values, list(wanted))
    return float(1 / (1 + (others > best).sum() + (others == best).sum() / 2))


def order(numbers: np.ndarray, places: Sequence[int]) -> list[int]:
    """The places, largest number first; the earlier one first among equals."""
    return sorted(places, key=lambda k: (-float(numbers[k]), k))
