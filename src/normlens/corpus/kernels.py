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
from jaxtyping import Int
from torch import Tensor

from normlens.corpus.histogram import Histogram
from normlens.corpus.ranks import CrossedCounts
from normlens.decompose.kernels import start_threads

#: Fewer weights than this are not worth waiting for a compiler.
WORTH_COMPILING = 200_000


def usable(weights: Tensor) -> bool:
    """Whether the compiled loop may take these weights and is worth it."""
    fits = weights.dtype == torch.float32 and weights.ndim == 4 and weights.numel() >= WORTH_COMPILING
    # No sign bit anywhere, not even that of -0: the loop reads a pattern as the number's rank.
    return fits and _installed() and bool((weights.contiguous().view(torch.int32).amin() >= 0).item())


def count_weights(
    counts: CrossedCounts, histogram: Histogram, weights: Tensor, y: Tensor, group: Tensor, rows: Tensor
) -> None:
    """Count (batch, head, query, key) weights against `y` (batch, head, key); `rows` are those of the histogram."""
    at_y = counts.y.bins(y)
    group = group.long()
    y_coarse = ((group * counts.y.coarse.size + at_y.coarse) * counts.x.fine.size).contiguous()
    y_fine = ((group * counts.y.fine.size + at_y.fine) * counts.x.coarse.size).contiguous()
    counts.reserve(weights.numel())
    by_key = weights.transpose(2, 3).reshape(y.numel(), -1)  # one row per sequence, head and key
    # Keys of one bin of `y` are counted one after the other: they share a row of the tables, which then stays in cache,
    # and threads that take different bins never write to the same place.
    order, bounds = _shares(y_coarse.reshape(-1).numpy(), start_threads())
    histograms = np.zeros((len(bounds) - 1, histogram.counts.size), dtype=np.int64)
    patterns = by_key.view(torch.int32).numpy()
    count, follow = _compiled()
    undecided = count(
        patterns,
        order,
        bounds,
        counts.x.fine.upper.numpy(),
        counts.x.fine.shift,
        counts.x.coarse_of_fine.numpy(),
        counts.hot_by_x,
        counts.hot_by_y,
        histograms,
        y_coarse.reshape(-1).numpy(),
        y_fine.reshape(-1).numpy(),
        (rows.long() * histogram.grid.size).expand(y.shape).reshape(-1).numpy(),
        counts.x_ties.state,
    )
    histogram.counts += histograms.sum(axis=0).reshape(histogram.counts.shape)
    if undecided:
        follow(patterns, counts.x.fine.upper.numpy(), counts.x.fine.shift, counts.x_ties.state, counts.x_ties.pattern)
    counts.meet_y(at_y, y, group)


def _shares(bins: Int[np.ndarray, " key"], threads: int) -> tuple[Int[np.ndarray, " key"], Int[np.ndarray, " bound"]]:
    """Keys ordered by bin, and where each thread's share begins: near equal parts that divide no bin."""
    order = np.argsort(bins, kind="stable")
    ordered = bins[order]
    cuts = np.searchsorted(ordered, ordered[np.arange(1, threads) * len(bins) // threads])
    return order, np.concatenate([[0], cuts, [len(bins)]])


@cache
def _installed() -> bool:
    return importlib.util.find_spec("numba") is not None


@cache
def _compiled() -> tuple[Any, Any]:
    import numba

    @numba.njit(cache=True, parallel=True)
    def count(
        patterns: Any, order: Any, bounds: Any, table: Any, shift: int, coarse_of: Any, by_x: Any, by_y: Any,
        histograms: Any, y_coarse: Any, y_fine: Any, rows: Any, state: Any,
    ) -> int:  # fmt: skip
        undecided = 0
        for share in numba.prange(len(bounds) - 1):
            histogram = histograms[share]
            open_bins = 0
            for n in range(bounds[share], bounds[share + 1]):
                key = order[n]
                x_row, y_row, row = by_x[y_coarse[key] :], by_y[y_fine[key] :], histogram[rows[key] :]
                for pattern in patterns[key]:
                    fine = table[pattern >> shift]
                    coarse = coarse_of[fine]
                    x_row[fine] += np.int32(1)
                    y_row[coarse] += np.int32(1)
                    row[coarse] += 1
                    open_bins |= state[fine] < 2
            undecided += open_bins
        return undecided

    @numba.njit(cache=True)
    def follow(patterns: Any, table: Any, shift: int, state: Any, single: Any) -> None:
        """What `Ties.update` does: a bin with one value remembers it, a bin that meets another one forgets it."""
        for row in patterns:
            for pattern in row:
                fine = table[pattern >> shift]
                if state[fine] == 0:
                    state[fine], single[fine] = 1, pattern
                elif state[fine] == 1 and single[fine] != pattern:
                    state[fine], single[fine] = 2, 0

    return count, follow
