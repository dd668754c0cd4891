"""The one loop that sees every attention weight, compiled by numba where it is installed.

It does what `BinnedSpearman.update`, `Histogram.update` and `QuerySums.of_pairs` do with numpy, in one pass over the
weights, not a dozen. Counts and sums are the same to the last bit; tests compare them.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
from jaxtyping import Float, Int

from normlens.corpus.accumulators.histogram import Histogram
from normlens.corpus.accumulators.spearman_binned import BinnedSpearman
from normlens.corpus.counting.batches import QuerySums
from normlens.decompose.process import follow_threads, numba_installed

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
) -> QuerySums:
    """Count weights against the `y` of their key; `rows` are those of the histogram. Returns sums over the queries."""
    at_y, x = ranks.y.find(y), ranks.x
    y_coarse = ((group * ranks.y.coarse.size + at_y.coarse) * x.fine.size).reshape(-1)
    y_fine = ((group * ranks.y.fine.size + at_y.fine) * x.coarse.size).reshape(-1)
    for table in (ranks.by_x, ranks.by_y):
        table.reserve(weights.size)
    # One row per sequence, head and key. Keys of one bin of `y` are counted one after the other: they share a row of the
    # tables, which then stays in cache, and threads that take different bins never write to the same place.
    columns = weights.swapaxes(2, 3).reshape(y.size, -1)
    order, bounds = _shares(y_coarse, follow_threads())
    histograms = np.zeros((len(bounds) - 1, histogram.counts.size), dtype=np.int64)
    sums, extremes = np.empty((2, y.size)), np.empty((2, y.size), dtype=np.int32)
    undecided = np.zeros(y.size, dtype=bool)
    count, follow = _loops()
    count(
        columns, columns.view(np.int32), order, bounds, x.both_bins, x.fine.shift, x.coarse.size, ranks.by_x.recent,
        ranks.by_y.recent, histograms, y_coarse, y_fine, (rows * histogram.bins.size).reshape(-1), ranks.x_ties.seen,
        undecided, sums, extremes,
    )  # fmt: skip
    histogram.counts += histograms.sum(axis=0).reshape(histogram.counts.shape)
    if undecided.any():
        patterns = columns.view(np.int32)[undecided]
        follow(patterns, x.fine.positive_table, x.fine.shift, ranks.x_ties.seen, ranks.x_ties.pattern)
    ranks.update_y_ties(at_y, y, group)
    total, square = sums.reshape(2, *y.shape)
    low, high = extremes.view(np.float32).astype(np.float64).reshape(2, *y.shape)
    return QuerySums(np.full(weights.shape[3], weights.shape[2]), total, square, low, high)


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
        columns: Any, patterns: Any, order: Any, bounds: Any, bins_of: Any, shift: int, coarse_bins: int, by_x: Any,
        by_y: Any, histograms: Any, y_coarse: Any, y_fine: Any, rows: Any, seen: Any, undecided: Any, sums: Any,
        extremes: Any,
    ) -> None:  # fmt: skip
        for share in numba.prange(len(bounds) - 1):
            histogram, of_key = histograms[share], np.zeros(coarse_bins, dtype=np.int32)
            for n in range(bounds[share], bounds[share + 1]):
                key = order[n]
                x_row, y_row, row = by_x[y_coarse[key] :], by_y[y_fine[key] :], histogram[rows[key] :]
                low, high, total, square, is_open = patterns[key, 0], patterns[key, 0], 0.0, 0.0, False
                for query in range(patterns.shape[1]):
                    pattern, weight = patterns[key, query], columns[key, query]
                    both = bins_of[pattern >> shift]
                    fine = both & 0xFFFF
                    x_row[fine] += np.int32(1)
                    of_key[both >> 16] += np.int32(1)
                    is_open |= seen[fine] < 2
                    low, high = min(low, pattern), max(high, pattern)  # patterns are ordered like their numbers
                    total += np.float64(weight)
                    square += np.float64(weight * weight)
                first, last = bins_of[low >> shift] >> 16, bins_of[high >> shift] >> 16
                for coarse in range(first, last + 1):
                    y_row[coarse] += of_key[coarse]
                    row[coarse] += of_key[coarse]
                    of_key[coarse] = 0
                undecided[key] = is_open
                sums[0, key], sums[1, key], extremes[0, key], extremes[1, key] = total, square, low, high

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
