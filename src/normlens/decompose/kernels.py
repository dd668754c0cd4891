"""Two loops that PyTorch has no single operation for, compiled by numba where it is installed and pays.

Each has a plain PyTorch form beside its caller, which serves every device and is what the tests compare with. numba is
optional (`pip install normlens[fast]`); compiling takes some seconds once per machine (the result is cached on disk),
so a short text never comes here.
"""

from __future__ import annotations

import importlib.util
import threading
from functools import cache
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

#: Nobody should wait for a compiler who asks for little: the loops are compiled when this many multiplications came at
#: once, or ten times as many in all. Once they are there, small inputs may use them too.
WORTH_COMPILING = 8_000_000
WORTH_CALLING = 200_000
_lock = threading.Lock()  # one caller at a time: not every threading layer of numba admits two


def usable(work: int, *tensors: Tensor) -> bool:
    """Whether the compiled loops may take these tensors and are worth it."""
    fits = all(t.device.type == "cpu" and t.dtype in (torch.float32, torch.float64) for t in tensors)
    if not fits or not _installed():
        return False
    _asked.total += work
    if not _asked.compiled and (work >= WORTH_COMPILING or _asked.total >= 10 * WORTH_COMPILING):
        _asked.compiled = True
    return _asked.compiled and work >= WORTH_CALLING


class _Asked:
    """How much work has come by so far, and whether the loops are compiled by now."""

    total = 0
    compiled = False


_asked = _Asked()


@cache
def _installed() -> bool:
    return importlib.util.find_spec("numba") is not None


def run(name: str, *arguments: Any) -> Any:
    """Run a compiled loop by name; tensors are handed over as arrays, without a copy."""
    with _lock:
        return getattr(_compiled(), name)(*(a.numpy() if isinstance(a, Tensor) else a for a in arguments))


@cache
def _compiled() -> SimpleNamespace:
    import numba
    import numpy as np

    numba.set_num_threads(min(torch.get_num_threads(), numba.get_num_threads()))
    parallel = numba.njit(parallel=True, fastmath={"contract", "reassoc", "nsz", "arcp"}, cache=True)

    @parallel
    def quadratic(alpha: Any, grams: Any, lengths: Any, cancellation: float, start: int, norms: Any, lost: Any) -> None:
        """See `heads.summed_norms`: the norms of queries from `start` on; lost pairs become negative and are counted."""
        batch, heads, queries, keys = alpha.shape
        for item in numba.prange(batch * queries):
            b, i = item // queries, item % queries
            inner = np.empty(keys, alpha.dtype)
            total = np.empty(keys, alpha.dtype)
            most = np.empty(keys, alpha.dtype)
            missing = 0
            for t in range(grams.shape[0]):
                total[:] = 0
                most[:] = 0
                for h in range(heads):
                    row, length = alpha[b, h, i], lengths[t, b, h]
                    inner[:] = 0
                    for g in range(h):
                        other, weight = alpha[b, g, i], grams[t, b, h, g]
                        for j in range(keys):
                            inner[j] += weight[j] * other[j]
                    own = grams[t, b, h, h]
                    for j in range(keys):
                        total[j] += row[j] * (2 * inner[j] + own[j] * row[j])
                        most[j] += abs(row[j]) * length[j]
                out = norms[t, b, start + i]
                for j in range(keys):
                    bad = total[j] < cancellation * most[j] * most[j]
                    missing += bad
                    out[j] = -1.0 if bad else np.sqrt(total[j])
            lost[b, i] = missing

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
        """The twelve sums of `decompose.vectors`, for blocks with nothing on the branch."""
        count, width = summed.shape
        for n in numba.prange(count):
            z, o, r, y = summed[n], own[n], residual[n], total[n]
            size = gap = whole = from_self = from_others = with_residual = z[0] * 0
            mean = mean_context = mean_self = z[0] * 0
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
                    mean, mean_context, mean_self = mean / width, mean_context / width, mean_self / width
                else:
                    mean, mean_context, mean_self = z[0] * 0, z[0] * 0, z[0] * 0
                spread = z[0] * 0
                for c in range(width):
                    spread += (y[c] - mean) * (y[c] - mean)
                inverse = 1 / np.sqrt(spread / width + eps)
                gap = whole = from_others = with_residual = z[0] * 0
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

    return SimpleNamespace(quadratic=quadratic, vectors=vectors)
