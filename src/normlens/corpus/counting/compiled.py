"""The one loop that sees every attention weight, compiled by numba where it is installed.

It does what `BinnedSpearman.update` and `Histogram.update` do with numpy, in one pass over the weights, not a dozen.
The counts are the same; a test compares them.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
from jaxtyping import Float, Int

from normlens.corpus.accumulators.histogram import Histogram
from normlens.corpus.accumulators.spearman_binned import BinnedSpearman
from normlens.decompose.process import numba_installed, start_threads

#: Fewer weights than this are not worth waiting for a compiler.
WORTH_COMPILING = 200_000


def usable(weights: Float[np.ndarray, "batch head query key"]) -> bool:
    """Whether the compiled loop may take these weights and is worth it."""
    fits = weights.dtype == np.float32 and weights.ndim == 4 and weights.size >= WORTH_COMPILING
    # No sign bit anywhere, not even that of -0: the loop reads a pattern as the number's rank.
    return fits and numba_installed() and bool(np.ascontiguousarray(weights).view(np.int32).min() >= 0)


def count_weights(
    ranks: BinnedSpearman,
    histogram: Histogram,
    weights: Float[np.ndarray, "batch head query key"],
    y: Float[np.ndarray, "batch head key"],
    group: Int[np.ndarray, "batch head key"],
    rows: Int[np.ndarray, "batch head key"],
) -> None:
    """Count weights against the `y` of their key; `rows` are those of the histogram."""
    at_y, x = ranks.y.find(y), ranks.x
    y_coarse = ((group * ranks.y.coarse.size + at_y.coarse) * x.fine.size).reshape(-1)
    y_fine = ((group * ranks.y.fine.size + at_y.fine) * x.coarse.size).reshape(-1)
    for table in (ranks.by_x, ranks.by_y):
        table.reserve(weights.size)
    # One row per sequence, head and key. Keys of one bin of `y` are counted one after the other: they share a row of the
    # tables, which then stays in cache, and threads that take different bins never write to the same place.
    patterns = weights.swapaxes(2, 3).reshape(y.size, -1).view(np.int32)
    order, bounds = _shares(y_coarse, start_threads())
    histograms = np.zeros((len(bounds) - 1, histogram.counts.size), dtype=np.int64)
    count, follow = _loops()
    undecided = count(
        patterns, order, bounds, x.fine.positive_table, x.fine.shift, x.coarse_of_fine, ranks.by_x.recent,
        ranks.by_y.recent, histograms, y_coarse, y_fine, (rows * histogram.bins.size).reshape(-1), ranks.x_ties.seen,
    )  # fmt: skip
    histogram.counts += histograms.sum(axis=0).reshape(histogram.counts.shape)
    if undecided:
        follow(patterns, x.fine.positive_table, x.fine.shift, ranks.x_ties.seen, ranks.x_ties.pattern)
    ranks.update_y_ties(at_y, y, group)


def _shares(bins: Int[np.ndarray, " key"], threads: int) -> tuple[Int[np.ndarray, " key"], Int[np.ndarray, " bound"]]:
    """Keys ordered by bin, and where each thread's share begins: near equal parts that divide no bin."""
    order = np.argsort(bins, kind="stable")
    ordered = bins[order]
    cuts = np.searchsorted(ordered, ordered[np.arange(1, threads) * len(bins) // threads])
    return order, np.concatenate([[0], cuts, [len(bins)]])


@cache
def _loops() -> tuple[Any, Any]:
    import numba

    @numba.njit(cache=True, parallel=True)
    def count(
        patterns: Any, order: Any, bounds: Any, table: Any, shift: int, coarse_of: Any, by_x: Any, by_y: Any,
        histograms: Any, y_coarse: Any, y_fine: Any, rows: Any, seen: Any,
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
                    open_bins |= seen[fine] < 2
            undecided += open_bins
        return undecided

    @numba.njit(cache=True)
    def follow(patterns: Any, table: Any, shift: int, seen: Any, single: Any) -> None:
        """What `TiedBins.update` does: a bin with one value remembers it, a bin that meets another one forgets it."""
        for row in patterns:
            for pattern in row:
                fine = table[pattern >> shift]
                if seen[fine] == 0:
                    seen[fine], single[fine] = 1, pattern
                elif seen[fine] == 1 and single[fine] != pattern:
                    seen[fine], single[fine] = 2, 0

    return count, follow
