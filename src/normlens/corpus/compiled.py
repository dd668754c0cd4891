"""The two loops that meet every attention weight, compiled by numba where it is installed.

Each does what plain numpy does, to the last bit: `count_histogram` has both here, `count_weights` is `BinnedRanks.update`
for weights against a norm of their key. Tests compare them.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
from jaxtyping import Bool, Float, Int, UInt8

from normlens.corpus.bins import Bins
from normlens.corpus.ranks import BinnedRanks
from normlens.decompose.process import follow_threads, numba_installed

#: Fewer numbers than this are not worth waiting for a compiler.
WORTH_COMPILING = 200_000


def count_histogram(
    counts: Int[np.ndarray, "category head bin"],
    values: Float[np.ndarray, "batch head *rest"],
    category: UInt8[np.ndarray, "batch position"],
    keep: Bool[np.ndarray, "query key"] | None,
    bins: Bins,
) -> None:
    """Add values to the histogram of their category and head; `keep` selects (query, key) pairs."""
    heads = values.shape[1]
    if keep is None and values.ndim == 4 and usable(values):
        per_thread = np.zeros((follow_threads(), *counts[:, :heads].shape), dtype=np.int64)
        _loops()[0](values.view(np.int32), category, bins.positive_table, bins.shift, per_thread)
        counts[:, :heads] += per_thread.sum(axis=0)
        return
    found = bins.find(values)
    rows = category.astype(np.int64)[:, None] * counts.shape[1] + np.arange(heads)[:, None]
    if values.ndim == 4:
        rows = np.broadcast_to(rows[:, :, None], found.shape)
        if keep is not None:
            rows, found = rows[..., keep], found[..., keep]
    index = (rows * bins.size + found).reshape(-1)
    counts += np.bincount(index, minlength=counts.size).reshape(counts.shape)


def usable(weights: Float[np.ndarray, "batch head query key"]) -> bool:
    """Return True if the compiled loops can take these numbers and are worth it."""
    if weights.dtype != np.float32 or weights.size < WORTH_COMPILING or not weights.flags.c_contiguous:
        return False
    # No sign bit anywhere, not even that of -0: a loop reads a pattern as the number's rank.
    return numba_installed() and bool(weights.view(np.int32).min() >= 0)


def count_weights(
    ranks: BinnedRanks,
    weights: Float[np.ndarray, "batch head query key"],
    y: Float[np.ndarray, "batch head key"],
    group: Int[np.ndarray, "batch head key"],
) -> None:
    """Count weights against the `y` of their key."""
    at_y, x = ranks.y.find(y), ranks.x
    y_coarse = ((group * ranks.y.coarse.size + at_y.coarse) * x.fine.size).reshape(-1)
    y_fine = ((group * ranks.y.fine.size + at_y.fine) * x.coarse.size).reshape(-1)
    for table in (ranks.by_x, ranks.by_y):
        table.reserve(weights.size)
    # One row per sequence, head and key. Keys of one bin of `y` are counted one after the other: they share a row of the
    # tables, which then stays in cache, and threads that take different bins never write to the same place.
    patterns = weights.swapaxes(2, 3).reshape(y.size, -1).view(np.int32)
    order, bounds = _shares(y_coarse, follow_threads())
    undecided = np.zeros(y.size, dtype=bool)
    _loops()[1](
        patterns, order, bounds, x.fine.positive_table, x.fine.shift, x.coarse_of_fine, ranks.by_x.recent,
        ranks.by_y.recent, y_coarse, y_fine, ranks.x_ties.seen, undecided,
    )  # fmt: skip
    if undecided.any():
        open_rows = patterns[undecided].reshape(-1)
        fine = x.fine.positive_table.take(open_rows >> x.fine.shift)
        ranks.x_ties.update(fine, open_rows.view(np.float32))
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
    def histogram(patterns: Any, category: Any, table: Any, shift: int, counts: Any) -> None:
        batch, heads, queries, keys = patterns.shape
        threads = len(counts)
        for thread in numba.prange(threads):
            for n in range(thread * batch * heads // threads, (thread + 1) * batch * heads // threads):
                row, head = n // heads, n % heads
                for query in range(queries):
                    for key in range(keys):
                        counts[thread, category[row, key], head, table[patterns[row, head, query, key] >> shift]] += 1

    @numba.njit(cache=True, parallel=True)
    def weights(
        patterns: Any, order: Any, bounds: Any, table: Any, shift: int, coarse_of_fine: Any, by_x: Any, by_y: Any,
        y_coarse: Any, y_fine: Any, seen: Any, undecided: Any,
    ) -> None:  # fmt: skip
        for share in numba.prange(len(bounds) - 1):
            for n in range(bounds[share], bounds[share + 1]):
                key = order[n]
                x_row, y_row, is_open = by_x[y_coarse[key] :], by_y[y_fine[key] :], False
                for query in range(patterns.shape[1]):
                    fine = table[patterns[key, query] >> shift]
                    x_row[fine] += np.int32(1)
                    y_row[coarse_of_fine[fine]] += np.int32(1)
                    is_open |= seen[fine] < 2
                undecided[key] = is_open

    return histogram, weights
