"""Loops that PyTorch has no single operation for, compiled by numba where it is installed and pays.

Each has a plain PyTorch form beside its caller, which serves every device and is what the tests compare with. numba is
optional (`pip install normlens[fast]`); compiling takes some seconds once per machine (the result is cached on disk),
so a short text never comes here.
"""

from __future__ import annotations

import importlib.util
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

#: Nobody should wait for a compiler who asks for little: the loops are compiled when this many multiplications came at
#: once, or ten times as many in all. Once they are there, small inputs may use them too.
WORTH_COMPILING = 8_000_000
WORTH_CALLING = 200_000
#: How many queries and keys the quadratic form is worked out for at a time: what they need fits in a core's own caches.
QUERIES, KEYS = 16, 128
_lock = threading.Lock()  # one caller at a time: not every threading layer of numba admits two


def usable(work: int, *tensors: Tensor) -> bool:
    """Whether the compiled loops may take these tensors and are worth it."""
    fits = all(t.device.type == "cpu" and t.dtype in (torch.float32, torch.float64) for t in tensors)
    if not fits or not _installed():
        return False
    if _asked.always:
        return True
    _asked.total += work
    if not _asked.compiled and (work >= WORTH_COMPILING or _asked.total >= 10 * WORTH_COMPILING):
        _asked.compiled = True
    return _asked.compiled and work >= WORTH_CALLING


class _Asked:
    """How much work has come by so far, and whether the loops are compiled by now."""

    total = 0
    compiled = False
    always = False


_asked = _Asked()


@contextmanager
def whatever_the_size() -> Iterator[None]:
    """Inside, the loops take every input that fits: its numbers do not depend on what was asked before, or beside it."""
    before, _asked.always = _asked.always, True
    try:
        yield
    finally:
        _asked.always = before


@cache
def _installed() -> bool:
    return importlib.util.find_spec("numba") is not None


def run(name: str, *arguments: Any) -> Any:
    """Run a compiled loop by name; tensors are handed over as arrays, without a copy."""
    with _lock:
        return getattr(_compiled(), name)(*(a.numpy() if isinstance(a, Tensor) else a for a in arguments))


@cache
def start_threads() -> int:
    """Start numba's threads, as many as PyTorch has; returns their number.

    They are made to go to sleep soon after their work. PyTorch and numba have a pool of threads each, and a thread that
    has just worked waits for more in a busy loop, by default for milliseconds, on a processor that the other pool needs
    by then. The setting is read when a pool's library is loaded, and PyTorch's has been; a user's own setting stands.
    """
    import numba

    mine = {} if {"GOMP_SPINCOUNT", "OMP_WAIT_POLICY"} & os.environ.keys() else {"GOMP_SPINCOUNT": "20000"}
    os.environ.update(mine)
    try:
        threads: int = min(torch.get_num_threads(), numba.get_num_threads())
        numba.set_num_threads(threads)
    finally:
        for name in mine:
            del os.environ[name]
    return threads


@cache
def _compiled() -> SimpleNamespace:
    import numba
    import numpy as np

    start_threads()
    quick = {"contract", "reassoc", "nsz", "arcp"}
    parallel = numba.njit(parallel=True, fastmath=quick, cache=True)

    # Constants are made in the arrays' own type (`dtype.type(0)`): a plain 0 would turn every sum into float64.

    @numba.njit(fastmath=quick, cache=True)
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

    @numba.njit(fastmath=quick, cache=True)
    def mean_of(vector: Any) -> Any:
        total = vector.dtype.type(0)
        for k in range(vector.shape[0]):
            total += vector[k]
        return total / vector.dtype.type(vector.shape[0])

    @numba.njit(fastmath=quick, cache=True)
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

    # In the next three, rows of `KEYS` numbers stand one behind the other in flat arrays, so that the compiler knows the
    # distances between them and turns the loops over keys into vector instructions.

    @numba.njit(fastmath=quick, cache=True)
    def tile(a: Any, b: Any, w: Any, many: int, total: Any) -> None:
        """Adds `sum_hg a_h w_hg b_g` over four heads and four earlier ones, at each of the first `many` keys."""
        k = KEYS
        for j in range(many):
            b0, b1, b2, b3 = b[j], b[k + j], b[2 * k + j], b[3 * k + j]
            row0 = w[j] * b0 + w[k + j] * b1 + w[2 * k + j] * b2 + w[3 * k + j] * b3
            row1 = w[4 * k + j] * b0 + w[5 * k + j] * b1 + w[6 * k + j] * b2 + w[7 * k + j] * b3
            row2 = w[8 * k + j] * b0 + w[9 * k + j] * b1 + w[10 * k + j] * b2 + w[11 * k + j] * b3
            row3 = w[12 * k + j] * b0 + w[13 * k + j] * b1 + w[14 * k + j] * b2 + w[15 * k + j] * b3
            total[j] += a[j] * row0 + a[k + j] * row1 + a[2 * k + j] * row2 + a[3 * k + j] * row3

    @numba.njit(fastmath=quick, cache=True)
    def corner(a: Any, w: Any, length: Any, many: int, total: Any, most: Any) -> None:
        """The same over four heads and themselves, a lower triangle; and adds `sum_h |a_h| length_h` to `most`."""
        k = KEYS
        for j in range(many):
            a0, a1, a2, a3 = a[j], a[k + j], a[2 * k + j], a[3 * k + j]
            row1 = w[4 * k + j] * a0 + w[5 * k + j] * a1
            row2 = w[8 * k + j] * a0 + w[9 * k + j] * a1 + w[10 * k + j] * a2
            row3 = w[12 * k + j] * a0 + w[13 * k + j] * a1 + w[14 * k + j] * a2 + w[15 * k + j] * a3
            total[j] += a0 * w[j] * a0 + a1 * row1 + a2 * row2 + a3 * row3
            near, far = (
                abs(a0) * length[j] + abs(a1) * length[k + j],
                abs(a2) * length[2 * k + j] + abs(a3) * length[3 * k + j],
            )
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
            weights = np.zeros(QUERIES * padded * KEYS, alpha.dtype)  # query head key
            pair = np.zeros(16 * KEYS, alpha.dtype)  # of `lower`: head head key
            length = np.zeros(4 * KEYS, alpha.dtype)
            total, most = np.empty(QUERIES * KEYS, alpha.dtype), np.empty(QUERIES * KEYS, alpha.dtype)
            lost[b, first : first + count] = 0
            for at in range(0, keys, KEYS):
                wide = min(KEYS, keys - at)
                many = (wide + 7) // 8 * 8  # whole vectors; nobody looks at what stands behind `wide`
                for i in range(count):
                    for h in range(heads):
                        to = (i * padded + h) * KEYS
                        weights[to : to + wide] = alpha[b, h, first + i, at : at + wide]
                for t in range(lower.shape[0]):
                    total[:], most[:] = zero, zero
                    for h in range(0, heads, 4):
                        here = min(4, heads - h)
                        for g in range(0, h + 1, 4):
                            pair[4 * here * KEYS :] = zero
                            for x in range(here):
                                for y in range(min(4, h + x + 1 - g)):
                                    to = (4 * x + y) * KEYS
                                    pair[to : to + wide] = lower[t, b, h + x, g + y, at : at + wide]
                            if g < h:
                                for i in range(count):
                                    row = i * padded
                                    tile(
                                        weights[(row + h) * KEYS : (row + h + 4) * KEYS],
                                        weights[(row + g) * KEYS : (row + g + 4) * KEYS],
                                        pair,
                                        many,
                                        total[i * KEYS : (i + 1) * KEYS],
                                    )
                        length[here * KEYS :] = zero
                        for x in range(here):
                            length[x * KEYS : x * KEYS + wide] = lengths[t, b, h + x, at : at + wide]
                        for i in range(count):
                            row = i * padded
                            corner(
                                weights[(row + h) * KEYS : (row + h + 4) * KEYS],
                                pair,
                                length,
                                many,
                                total[i * KEYS : (i + 1) * KEYS],
                                most[i * KEYS : (i + 1) * KEYS],
                            )
                    for i in range(count):
                        square, bound = total[i * KEYS : i * KEYS + wide], most[i * KEYS : i * KEYS + wide]
                        out = norms[t, b, start + first + i, at : at + wide]
                        missing = zero  # counted as a number, which vectorizes
                        for j in range(wide):
                            bad = square[j] < least * bound[j] * bound[j]
                            missing += one if bad else zero
                            out[j] = minus if bad else np.sqrt(square[j])
                        lost[b, first + i] += np.int64(missing)

    @parallel
    def vectors(
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
        out: Any,
    ) -> None:
        """The sums of `decompose.vectors`, for blocks with nothing on the branch."""
        count, width = summed.shape
        for n in numba.prange(count):
            z, o, r, y = summed[n], own[n], residual[n], total[n]
            zero, one, size_of = summed.dtype.type(0), summed.dtype.type(1), summed.dtype.type(width)
            size = gap = whole = from_self = from_others = with_residual = zero
            mean = mean_context = mean_self = zero
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
                mean_context += context
                mean_self += self_part
            out[n, 0], out[n, 1], out[n, 2] = size, gap, whole
            out[n, 3], out[n, 4], out[n, 5] = from_others, from_self, with_residual
            if with_norm:
                if centred:
                    mean, mean_context, mean_self = mean / size_of, mean_context / size_of, mean_self / size_of
                else:
                    mean, mean_context, mean_self = zero, zero, zero
                spread = zero
                for c in range(width):
                    spread += (y[c] - mean) * (y[c] - mean)
                inverse = one / np.sqrt(spread / size_of + summed.dtype.type(eps))
                gap = whole = from_others = with_residual = zero
                for c in range(width):
                    scale = gamma[c] * inverse
                    context = (z[c] - bias[c] - o[c] - mean_context) * scale
                    self_part = (o[c] + r[c] - mean_self) * scale
                    difference = (y[c] - mean) * scale + beta[c] - normalized[n, c]
                    gap += difference * difference
                    whole += normalized[n, c] * normalized[n, c]
                    from_others += context * context
                    with_residual += self_part * self_part
                out[n, 6], out[n, 7], out[n, 8], out[n, 9] = gap, whole, from_others, with_residual
                out[n, 10] = inverse

    @numba.njit(fastmath=quick, cache=True)
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

    @parallel
    def gaps(left: Any, right: Any, before: Any, behind: Any, shift: Any, out: Any) -> None:
        """See `decompose.sketch`; the number of directions is a multiple of four."""
        for n in numba.prange(left.shape[0]):
            gap = size = left.dtype.type(0)
            for first in range(0, before.shape[0], 4):
                expected, found = along(left[n], before, first), along(right[n], behind, first)
                for i in range(4):
                    difference = expected[i] + shift[first + i] - found[i]
                    gap += difference * difference
                    size += found[i] * found[i]
            out[0, n], out[1, n] = gap, size

    return SimpleNamespace(grams=grams, quadratic=quadratic, vectors=vectors, gaps=gaps)
