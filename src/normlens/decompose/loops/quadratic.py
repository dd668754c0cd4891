"""Quadratic forms with Gram matrices, for every pair of query and key: see `decompose.grams`.

A few queries by a few keys at a time, four heads by four. Rows of `KEYS` numbers stand one after the other in flat arrays,
so that the compiler knows the distances between them and turns the loops over keys into vector instructions.
"""

from __future__ import annotations

from typing import Any

import numba
import numpy as np

from normlens.decompose.loops.compiling import inner, parallel

#: How many queries and keys are worked out at a time: what they need fits in a core's own caches.
QUERIES, KEYS = 16, 128


@inner
def tile(weights: Any, h: int, g: int, w: Any, queries: int, many: int, totals: Any) -> None:
    """For each query adds `sum_hg a_h w_hg a_g`, over four heads from `h` and four from `g` on, at the first `many` keys."""
    k = KEYS
    for i in range(queries):
        a, b, total = weights[i, h * k : (h + 4) * k], weights[i, g * k : (g + 4) * k], totals[i]
        for j in range(many):
            b0, b1, b2, b3 = b[j], b[k + j], b[2 * k + j], b[3 * k + j]
            row0 = w[j] * b0 + w[k + j] * b1 + w[2 * k + j] * b2 + w[3 * k + j] * b3
            row1 = w[4 * k + j] * b0 + w[5 * k + j] * b1 + w[6 * k + j] * b2 + w[7 * k + j] * b3
            row2 = w[8 * k + j] * b0 + w[9 * k + j] * b1 + w[10 * k + j] * b2 + w[11 * k + j] * b3
            row3 = w[12 * k + j] * b0 + w[13 * k + j] * b1 + w[14 * k + j] * b2 + w[15 * k + j] * b3
            total[j] += a[j] * row0 + a[k + j] * row1 + a[2 * k + j] * row2 + a[3 * k + j] * row3


@inner
def corner(weights: Any, h: int, w: Any, length: Any, queries: int, many: int, totals: Any, bounds: Any) -> None:
    """The same over four heads and themselves, a lower triangle; and adds `sum_h |a_h| length_h` to the bounds."""
    k = KEYS
    for i in range(queries):
        a, total, most = weights[i, h * k : (h + 4) * k], totals[i], bounds[i]
        for j in range(many):
            a0, a1, a2, a3 = a[j], a[k + j], a[2 * k + j], a[3 * k + j]
            row1 = w[4 * k + j] * a0 + w[5 * k + j] * a1
            row2 = w[8 * k + j] * a0 + w[9 * k + j] * a1 + w[10 * k + j] * a2
            row3 = w[12 * k + j] * a0 + w[13 * k + j] * a1 + w[14 * k + j] * a2 + w[15 * k + j] * a3
            total[j] += a0 * w[j] * a0 + a1 * row1 + a2 * row2 + a3 * row3
            near = abs(a0) * length[j] + abs(a1) * length[k + j]
            far = abs(a2) * length[2 * k + j] + abs(a3) * length[3 * k + j]
            most[j] += near + far


@parallel
def quadratic(alpha: Any, lower: Any, lengths: Any, cancellation: float, start: int, norms: Any, lost: Any) -> None:
    """See `Grams.norms`: the norms of queries from `start` on; lost pairs become negative and are counted.

    A few queries by a few keys at a time, four heads by four, whose numbers are laid side by side first: rows of a
    long sequence lie at such distances that they push each other out of the nearest cache.
    """
    batch, heads, queries, keys = alpha.shape
    number = alpha.dtype.type
    zero, one, minus, least = number(0), number(1), number(-1), number(cancellation)
    padded = (heads + 3) // 4 * 4  # heads beyond the last have weights of zero
    groups = (queries + QUERIES - 1) // QUERIES
    for item in numba.prange(batch * groups):
        b, first = item // groups, item % groups * QUERIES
        count = min(QUERIES, queries - first)
        weights = np.zeros((QUERIES, padded * KEYS), alpha.dtype)  # query, head and key
        pair = np.zeros(16 * KEYS, alpha.dtype)  # of `lower`: head head key
        length = np.zeros(4 * KEYS, alpha.dtype)
        totals, bounds = np.empty((QUERIES, KEYS), alpha.dtype), np.empty((QUERIES, KEYS), alpha.dtype)
        lost[b, first : first + count] = 0
        for at in range(0, keys, KEYS):
            wide = min(KEYS, keys - at)
            many = (wide + 7) // 8 * 8  # whole vectors; nobody looks at what comes after `wide`
            for i in range(count):
                for h in range(heads):
                    weights[i, h * KEYS : h * KEYS + wide] = alpha[b, h, first + i, at : at + wide]
            for t in range(lower.shape[0]):
                totals[:], bounds[:] = zero, zero
                for h in range(0, heads, 4):
                    here = min(4, heads - h)
                    for g in range(0, h + 1, 4):
                        pair[4 * here * KEYS :] = zero
                        for x in range(here):
                            for y in range(min(4, h + x + 1 - g)):
                                to = (4 * x + y) * KEYS
                                pair[to : to + wide] = lower[t, b, h + x, g + y, at : at + wide]
                        if g < h:
                            tile(weights, h, g, pair, count, many, totals)
                    length[here * KEYS :] = zero
                    for x in range(here):
                        length[x * KEYS : x * KEYS + wide] = lengths[t, b, h + x, at : at + wide]
                    corner(weights, h, pair, length, count, many, totals, bounds)
                for i in range(count):
                    square, bound = totals[i], bounds[i]
                    out = norms[t, b, start + first + i, at : at + wide]
                    missing = zero  # counted as a number, which vectorizes
                    for j in range(wide):
                        bad = square[j] < least * bound[j] * bound[j]
                        missing += one if bad else zero
                        out[j] = minus if bad else np.sqrt(square[j])
                    lost[b, first + i] += np.int64(missing)
