"""Statistics that several rooms need: rank correlation with ties by their mean rank."""

from __future__ import annotations

import numpy as np
import pandas as pd
from jaxtyping import Float


def spearman(x: Float[np.ndarray, " item"], y: Float[np.ndarray, " item"], fewest: int = 2) -> float:
    """Rank correlation, ties by their mean rank.

    Args:
        x: Numbers.
        y: As many numbers.
        fewest: The number of items below which there is no correlation.

    Returns:
        The correlation; not a number where one side is all ties, or there are too few items.

    Example:
        >>> spearman(np.array([1.0, 2.0, 3.0]), np.array([10.0, 30.0, 20.0]))
        0.5
    """
    a, b = (pd.Series(np.asarray(values, dtype=np.float64)).rank().to_numpy() for values in (x, y))
    a, b = a - a.mean(), b - b.mean()
    size = float(np.sqrt((a @ a) * (b @ b)))
    if len(a) < fewest or not size > 0:
        return float("nan")
    return round(float(a @ b) / size, 12)
