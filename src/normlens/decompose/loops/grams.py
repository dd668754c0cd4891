"""Gram matrices of transformed vectors, and what each position gives itself: see `decompose.grams`."""

from __future__ import annotations

from typing import Any

import numba
import numpy as np

from normlens.decompose.loops.compiling import inner, parallel


@inner
def triangle(f: Any, row: int, out: Any, lengths: Any, key: int) -> None:
    """The Gram matrix of one row's vectors, nine products at a time; below the diagonal they count twice."""
    heads, _, width = f.shape
    zero, two = f.dtype.type(0), f.dtype.type(2)
    last = heads - 1
    for h in range(0, heads, 3):
        h1, h2 = min(h + 1, last), min(h + 2, last)
        a, b, c = f[h, row], f[h1, row], f[h2, row]
        for g in range(0, h + 1, 3):
            g1, g2 = min(g + 1, last), min(g + 2, last)
            x, y, z = f[g, row], f[g1, row], f[g2, row]
            ax = ay = az = bx = by = bz = cx = cy = cz = zero
            for k in range(width):
                ax += a[k] * x[k]
                ay += a[k] * y[k]
                az += a[k] * z[k]
                bx += b[k] * x[k]
                by += b[k] * y[k]
                bz += b[k] * z[k]
                cx += c[k] * x[k]
                cy += c[k] * y[k]
                cz += c[k] * z[k]
            if g < h:
                out[h, g, key], out[h, g1, key], out[h, g2, key] = two * ax, two * ay, two * az
                out[h1, g, key], out[h1, g1, key], out[h1, g2, key] = two * bx, two * by, two * bz
                out[h2, g, key], out[h2, g1, key], out[h2, g2, key] = two * cx, two * cy, two * cz
            else:  # a tile on the diagonal; where heads run out, its rows are the last one again
                if h2 > h1:
                    out[h2, h1, key], out[h2, h, key] = two * cy, two * cx
                if h1 > h:
                    out[h1, h, key] = two * bx
                out[h, h, key], lengths[h, key] = ax, np.sqrt(ax)
                out[h1, h1, key], lengths[h1, key] = by, np.sqrt(by)
                out[h2, h2, key], lengths[h2, key] = cz, np.sqrt(cz)


@inner
def mean_of(vector: Any) -> Any:
    total = vector.dtype.type(0)
    for k in range(vector.shape[0]):
        total += vector[k]
    return total / vector.dtype.type(vector.shape[0])


@inner
def add_two(one: Any, by_one: Any, two: Any, by_two: Any, first: bool, out: Any) -> Any:
    """Adds two weighted vectors to `out` (the first ones are put there), and returns their means."""
    width = one.shape[0]
    size, sum_one, sum_two = one.dtype.type(width), one.dtype.type(0), one.dtype.type(0)
    if first:
        for k in range(width):
            out[k] = by_one * one[k] + by_two * two[k]
            sum_one += one[k]
            sum_two += two[k]
    else:
        for k in range(width):
            out[k] += by_one * one[k] + by_two * two[k]
            sum_one += one[k]
            sum_two += two[k]
    return sum_one / size, sum_two / size


@parallel
def grams(
    f: Any,
    factors: Any,
    centred: Any,
    changed: Any,
    start: int,
    first: int,
    count: int,
    lower: Any,
    lengths: Any,
    diagonal: Any,
    owned: int,
    own: Any,
) -> None:
    """See `grams.Grams`: `f` is (head, row, model), a row is a key of a sequence."""
    heads, rows, width = f.shape
    for row in numba.prange(rows):
        b, key = (start + row) // count, first + (start + row) % count
        means, vectors = np.zeros(heads, f.dtype), np.empty((heads, 1, width), f.dtype)
        if key < owned:
            mine = own[b, key]
            for h in range(0, heads, 2):  # an odd last head is taken twice, with a weight of zero
                g = min(h + 1, heads - 1)
                near, far = diagonal[b, h, key], diagonal[b, g, key] if g > h else f.dtype.type(0)
                means[h], means[g] = add_two(f[h, row], near, f[g, row], far, h == 0, mine)
        elif centred.any():
            for h in range(heads):
                means[h] = mean_of(f[h, row])
        for t in range(lower.shape[0]):
            if changed[t]:
                factor = factors[t]
                for h in range(heads):
                    vector, to = f[h, row], vectors[h, 0]
                    mean = means[h] if centred[t] else f.dtype.type(0)
                    for k in range(width):
                        to[k] = (vector[k] - mean) * factor[k]
                triangle(vectors, 0, lower[t, b], lengths[t, b], key)
            else:
                triangle(f, row, lower[t, b], lengths[t, b], key)
