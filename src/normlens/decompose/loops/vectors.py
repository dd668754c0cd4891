"""Norms of vectors that exist once per position, and how far each stage is from the one before: see `decompose.block`."""

from __future__ import annotations

from typing import Any

import numba
import numpy as np

from normlens.decompose.loops.compiling import inner, parallel

#: The rows of the result, squared norms but for the last: at the attention output, at the sum, at the normalized sum.
ATTENTION_GAP, ATTENTION_SIZE, SUM_GAP, SUM_SIZE, NORMALIZED_GAP, NORMALIZED_SIZE = range(6)
CONTEXT, OWN, OWN_WITH_RESIDUAL, NORMALIZED_CONTEXT, NORMALIZED_OWN, INVERSE_SCALE = range(6, 12)
ROWS = 12


@inner
def along(row: Any, directions: Any, first: int) -> Any:
    """The products of a row with four directions."""
    a, b, c, d = directions[first], directions[first + 1], directions[first + 2], directions[first + 3]
    by_a = by_b = by_c = by_d = row.dtype.type(0)
    for k in range(row.shape[0]):
        by_a += row[k] * a[k]
        by_b += row[k] * b[k]
        by_c += row[k] * c[k]
        by_d += row[k] * d[k]
    return by_a, by_b, by_c, by_d


@inner
def row_gap(left: Any, right: Any, before: Any, after: Any, shift: Any) -> Any:
    """Of one row: the squared gap and the squared size; the number of directions is a multiple of four."""
    gap = size = left.dtype.type(0)
    for first in range(0, before.shape[0], 4):
        expected, found = along(left, before, first), along(right, after, first)
        for i in range(4):
            difference = expected[i] + shift[first + i] - found[i]
            gap += difference * difference
            size += found[i] * found[i]
    return gap, size


@parallel
def per_query(
    mixed: Any,
    before: Any,
    after: Any,
    shift: Any,
    summed: Any,
    bias: Any,
    own: Any,
    residual: Any,
    total: Any,
    normalized: Any,
    affine: Any,
    centred: bool,
    eps: float,
    with_norm: bool,
    out: Any,
) -> None:
    """The sums of `decompose.block`, for blocks with nothing on the branch; a row of `out` for each."""
    count, width = summed.shape
    gamma, beta = affine[0], affine[1]
    for n in numba.prange(count):
        z, o, r, y = summed[n], own[n], residual[n], total[n]
        zero, one, size_of = summed.dtype.type(0), summed.dtype.type(1), summed.dtype.type(width)
        size = gap = whole = from_self = from_others = with_residual = zero
        mean = mean_sum = mean_own = mean_residual = zero
        for c in range(width):
            context = z[c] - bias[c] - o[c]
            self_part = o[c] + r[c]
            difference = z[c] + r[c] - y[c]
            size += z[c] * z[c]
            gap += difference * difference
            whole += y[c] * y[c]
            from_self += o[c] * o[c]
            from_others += context * context
            with_residual += self_part * self_part
            mean += y[c]
            mean_sum += z[c] - bias[c]
            mean_own += o[c]
            mean_residual += r[c]
        out[ATTENTION_GAP, n], _ = row_gap(mixed[n], z, before, after, shift)
        out[ATTENTION_SIZE, n], out[SUM_GAP, n], out[SUM_SIZE, n] = size, gap, whole
        out[CONTEXT, n], out[OWN, n], out[OWN_WITH_RESIDUAL, n] = from_others, from_self, with_residual
        if with_norm:
            if centred:
                mean, mean_sum = mean / size_of, mean_sum / size_of
                mean_own, mean_residual = mean_own / size_of, mean_residual / size_of
            else:
                mean, mean_sum, mean_own, mean_residual = zero, zero, zero, zero
            spread = zero
            for c in range(width):
                spread += (y[c] - mean) * (y[c] - mean)
            inverse = one / np.sqrt(spread / size_of + summed.dtype.type(eps))
            gap = whole = from_others = with_residual = zero
            for c in range(width):
                scale = gamma[c] * inverse
                mine = (o[c] - mean_own) * scale
                context = (z[c] - bias[c] - mean_sum) * scale - mine
                self_part = mine + (r[c] - mean_residual) * scale
                difference = (y[c] - mean) * scale + beta[c] - normalized[n, c]
                gap += difference * difference
                whole += normalized[n, c] * normalized[n, c]
                from_others += context * context
                with_residual += self_part * self_part
            out[NORMALIZED_GAP, n], out[NORMALIZED_SIZE, n] = gap, whole
            out[NORMALIZED_CONTEXT, n], out[NORMALIZED_OWN, n] = from_others, with_residual
            out[INVERSE_SCALE, n] = inverse
