"""Gram matrices of transformed vectors, and what each position gives itself: see `decompose.grams`."""

from __future__ import annotations

from typing import Any

import numba
import numpy as np

from normlens.decompose.loops.compiling import inner, parallel


@inner
def between(a: Any, b: Any, c: Any, x: Any, y: Any, z: Any) -> Any:
    """The nine products of three vectors with three others."""
    ax = ay = az = bx = by = bz = cx = cy = cz = a.dtype.type(0)
    for k in range(a.shape[0]):
        ax += a[k] * x[k]
        ay += a[k] * y[k]
        az += a[k] * z[k]
        bx += b[k] * x[k]
        by += b[k] * y[k]
        bz += b[k] * z[k]
        cx += c[k] * x[k]
        cy += c[k] * y[k]
        cz += c[k] * z[k]
    return (ax, ay, az), (bx, by, bz), (cx, cy, cz)


@inner
def among(a: Any, b: Any, c: Any, summed: bool, by_a: Any, by_b: Any, by_c: Any, total: Any) -> Any:
    """The six products of three vectors with each other; on the way their weighted sum is added to `total`, if wanted."""
    aa = ba = bb = ca = cb = cc = a.dtype.type(0)
    for k in range(a.shape[0]):
        aa += a[k] * a[k]
        ba += b[k] * a[k]
        bb += b[k] * b[k]
        ca += c[k] * a[k]
        cb += c[k] * b[k]
        cc += c[k] * c[k]
        if summed:
            total[k] += by_a * a[k] + by_b * b[k] + by_c * c[k]
    return aa, ba, bb, ca, cb, cc


@inner
def triangle(f: Any, row: int, out: Any, lengths: Any, key: int, summed: bool, share: Any, total: Any) -> None:
    """The Gram matrix of one row's vectors, three heads by three; below the diagonal products count twice.

    If the vectors' sum is wanted too, weighted by `share`, it is added to `total`. Where heads run out, the last one stands
    in for them, with a share of zero.
    """
    heads, last = f.shape[0], f.shape[0] - 1
    zero, two = f.dtype.type(0), f.dtype.type(2)
    for h in range(0, heads, 3):
        h1, h2 = min(h + 1, last), min(h + 2, last)
        a, b, c = f[h, row], f[h1, row], f[h2, row]
        for g in range(0, h, 3):
            of_a, of_b, of_c = between(a, b, c, f[g, row], f[g + 1, row], f[g + 2, row])
            for i in range(3):
                out[h, g + i, key] = two * of_a[i]
                out[h1, g + i, key] = two * of_b[i]
                out[h2, g + i, key] = two * of_c[i]
        by_b, by_c = share[h1] if h1 > h else zero, share[h2] if h2 > h1 else zero
        aa, ba, bb, ca, cb, cc = among(a, b, c, summed, share[h], by_b, by_c, total)
        if h2 > h1:
            out[h2, h1, key], out[h2, h, key] = two * cb, two * ca
        if h1 > h:
            out[h1, h, key] = two * ba
        out[h, h, key], lengths[h, key] = aa, np.sqrt(aa)
        out[h1, h1, key], lengths[h1, key] = bb, np.sqrt(bb)
        out[h2, h2, key], lengths[h2, key] = cc, np.sqrt(cc)


@inner
def changed_by(f: Any, row: int, centred: bool, factor: Any, out: Any) -> None:
    """One row's vectors after a step: `factor * (vector - its mean, if centred)`."""
    heads, _, width = f.shape
    for h in range(heads):
        vector, to = f[h, row], out[h, 0]
        mean = f.dtype.type(0)
        if centred:
            for k in range(width):
                mean += vector[k]
            mean /= f.dtype.type(width)
        for k in range(width):
            to[k] = (vector[k] - mean) * factor[k]


@inner
def add_all(f: Any, row: int, share: Any, total: Any) -> None:
    """The weighted sum of one row's vectors."""
    for h in range(f.shape[0]):
        vector, weight = f[h, row], share[h]
        for k in range(f.shape[2]):
            total[k] += weight * vector[k]


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
        stepped = np.empty((heads if changed.any() else 0, 1, width), f.dtype)
        summing = key < owned
        share, mine = (diagonal[b, :, key], own[b, key]) if summing else (diagonal[0, :, 0], own[0, 0])
        if summing:
            mine[:] = f.dtype.type(0)
        for t in range(lower.shape[0]):
            if changed[t]:
                changed_by(f, row, centred[t], factors[t], stepped)
                triangle(stepped, 0, lower[t, b], lengths[t, b], key, False, share, mine)
            else:
                triangle(f, row, lower[t, b], lengths[t, b], key, summing, share, mine)
                summing = False
        if summing:  # nobody has looked at the vectors as they are
            add_all(f, row, share, mine)
