"""The one loop that sees every attention weight, compiled by numba where it is installed.

It does what `CrossedCounts.update` and `Histogram.add` do with PyTorch, in one pass over the weights, not a dozen.
The counts are the same; a test compares them.
"""

from __future__ import annotations

import importlib.util
from functools import cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

from normlens.corpus.histogram import Histogram
from normlens.corpus.ranks import CrossedCounts

#: Fewer weights than this are not worth waiting for a compiler.
WORTH_COMPILING = 200_000


def usable(weights: Tensor) -> bool:
    """Whether the compiled loop may take these weights and is worth it."""
    fits = weights.dtype == torch.float32 and weights.ndim == 4 and bool((weights.amin() >= 0).item())
    return fits and weights.numel() >= WORTH_COMPILING and _installed()


def count_weights(
    counts: CrossedCounts, histogram: Histogram, weights: Tensor, y: Tensor, group: Tensor, rows: Tensor
) -> None:
    """Count (batch, head, query, key) weights against `y` (batch, head, key); `rows` are those of the histogram."""
    at_y = counts.y.bins(y)
    group = group.long()
    y_coarse = ((group * counts.y.coarse.size + at_y.coarse) * counts.x.fine.size).contiguous()
    y_fine = ((group * counts.y.fine.size + at_y.fine) * counts.x.coarse.size).contiguous()
    counts.reserve(weights.numel())
    weights = weights.contiguous()
    undecided = _compiled()(
        weights.view(torch.int32).numpy(),
        counts.x.fine.upper.numpy(),
        counts.x.fine.shift,
        counts.x.coarse_of_fine.numpy(),
        counts.hot_by_x,
        counts.hot_by_y,
        histogram.counts.reshape(-1),
        y_coarse.numpy(),
        y_fine.numpy(),
        (rows.long() * histogram.grid.size).expand(y.shape).contiguous().numpy(),
        counts.x_ties.state,
    )
    if undecided:
        counts.x_ties.update(counts.x.fine.bins(weights).reshape(-1), weights.reshape(-1))
    counts.meet_y(at_y, y, group)


@cache
def _installed() -> bool:
    return importlib.util.find_spec("numba") is not None


@cache
def _compiled() -> Any:
    import numba

    @numba.njit(cache=True)
    def count(
        patterns: Any, table: Any, shift: int, coarse_of: Any, by_x: Any, by_y: Any, histogram: Any,
        y_coarse: Any, y_fine: Any, rows: Any, state: Any,
    ) -> int:  # fmt: skip
        batch, heads, queries, keys = patterns.shape
        undecided = 0
        for b in range(batch):
            for h in range(heads):
                for q in range(queries):
                    for k in range(keys):
                        fine = table[patterns[b, h, q, k] >> shift]
                        coarse = coarse_of[fine]
                        by_x[y_coarse[b, h, k] + fine] += np.int32(1)
                        by_y[y_fine[b, h, k] + coarse] += np.int32(1)
                        histogram[rows[b, h, k] + coarse] += 1
                        undecided |= state[fine] < 2
        return undecided

    return count
