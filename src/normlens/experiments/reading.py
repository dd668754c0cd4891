"""Numbers out of a corpus run, in the shapes that the papers report."""

from __future__ import annotations

import numpy as np
import pandas as pd
from jaxtyping import Float

from normlens.corpus.result import CorpusResult

#: The papers' categories that both report, in their order.
PAIR_CATEGORIES = ("cls", "sep", "comma_period", "other")


def present(done: CorpusResult, wanted: tuple[str, ...]) -> tuple[str, ...]:
    """Those of the categories that the corpus has tokens of."""
    table = done.categories.set_index("category")["tokens"]
    return tuple(name for name in wanted if table.get(name, 0) > 0)


def layers_of(done: CorpusResult) -> list[int]:
    """The layers that were measured."""
    return sorted(int(layer) for layer in done.statistics["layer"].dropna().unique())


def by_head(
    done: CorpusResult, quantity: str, category: str, statistic: str = "mean", over: str = "values"
) -> Float[np.ndarray, "layer head"]:
    """A statistic for each layer and head (one column for a quantity without heads)."""
    return done.grid(quantity, category, statistic, over).to_numpy(dtype=np.float64)


def whole(done: CorpusResult, quantity: str, category: str, statistic: str) -> float:
    """A statistic over all values of all layers."""
    rows = done.statistics
    found = rows[
        rows["layer"].isna()
        & (rows["quantity"] == quantity)
        & (rows["category"] == category)
        & (rows["statistic"] == statistic)
    ]
    return float(found["value"].iloc[0])


def rho_of(done: CorpusResult, x: str, y: str, category: str) -> tuple[float, float, int]:
    """Spearman's rho, a certain bound on its error, and how many pairs or tokens it is over."""
    row: pd.Series = done.rho(x, y, category)
    return float(row["value"]), float(row["bound"]), int(row["count"])


def shares(done: CorpusResult, quantity: str, categories: tuple[str, ...]) -> Float[np.ndarray, "category layer"]:
    """The share of each category in what a layer's queries receive, heads averaged as the authors do.

    For `alpha` the categories add up to 1 by themselves; norms are divided by their sum.
    """
    means = np.stack([by_head(done, quantity, name, over="sequences").mean(axis=1) for name in categories])
    received: Float[np.ndarray, "category layer"] = means / means.sum(axis=0)
    return received
