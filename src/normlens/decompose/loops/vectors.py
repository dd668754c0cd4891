"""Norms of the vectors that exist once per position, and comparisons of rows: see `decompose.vectors` and `.sketch`."""

from __future__ import annotations

from typing import Any

import numba
import numpy as np

from normlens.decompose.loops.compiling import inner, parallel


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
def row_gap(left: Any, right: Any, before: Any, behind: Any, shift: Any) -> Any:
    """Of one row: the squared gap and the squared size; the number of directions is a multiple of four."""
    gap = size = left.dtype.type(0)
    for first in range(0, before.shape[0], 4):
        expected, found = along(left, before, first), along(right, behind, first)
        for i in range(4):
            difference = expected[i] + shift[first + i] - found[i]
            gap += difference * difference
            size += found[i] * found[i]
    return gap, size


@parallel
def gaps(left: Any, right: Any, before: Any, behind: Any, shift: Any, out: Any) -> None:
    """See `decompose.sketch`."""
    for n in numba.prange(left.shape[0]):
        out[0, n], out[1, n] = row_gap(left[n], right[n], before, behind, shift)


@parallel
def vectors(
    mixed: Any,
    before: Any,
    behind: Any,
    shift: Any,
    summed: Any,
    bias: Any,
    own: Any,
    residual: Any,
    total: Any,
    normalized: Any,
    gamma: Any,
    beta: Any,
    centred: bool,
    eps: float,
    with_norm: bool,
    carried: bool,
    out: Any,
) -> None:
    """The sums of `decompose.vectors`, for blocks with nothing on the branch; a row of `out` for each.

    `own` stands behind the centring and `gamma` of the normalization already if it is `carried`; what is said of it at the
    places before that has no meaning then.
    """
    count, width = summed.shape
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
        out[0, n], _ = row_gap(mixed[n], z, before, behind, shift)
        out[1, n], out[2, n], out[3, n] = size, gap, whole
        out[6, n], out[7, n], out[8, n] = from_others, from_self, with_residual
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
                mine = o[c] * inverse if carried else (o[c] - mean_own) * scale
                context = (z[c] - bias[c] - mean_sum) * scale - mine
                self_part = mine + (r[c] - mean_residual) * scale
                difference = (y[c] - mean) * scale + beta[c] - normalized[n, c]
                gap += difference * difference
                whole += normalized[n, c] * normalized[n, c]
                from_others += context * context
                with_residual += self_part * self_part
            out[4, n], out[5, n], out[9, n], out[10, n] = gap, whole, from_others, with_residual
            out[11, n] = inverse
