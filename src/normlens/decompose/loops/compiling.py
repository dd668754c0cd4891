"""Compiler settings of the loops.

Sums may be reordered and multiplications fused, infinities and NaN stay what they are. Constants are made in the arrays'
own type (`dtype.type(0)`): a plain 0 would turn every sum into float64.
"""

from __future__ import annotations

import numba

_QUICK = {"contract", "reassoc", "nsz", "arcp"}
parallel = numba.njit(parallel=True, fastmath=_QUICK, cache=True)
inner = numba.njit(fastmath=_QUICK, cache=True)
