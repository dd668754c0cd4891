"""Two loops that PyTorch has no single operation for, compiled by numba where it is installed and pays.

Both have a plain PyTorch form beside them in `decompose.heads`, which serves every device and is what the tests
compare with. numba is optional (`pip install normlens[fast]`); compiling takes a few seconds once per machine (the
result is cached on disk), so a short text never comes here.
"""

from __future__ import annotations

import importlib.util
import threading
from collections.abc import Sequence
from functools import cache
from typing import Any

import torch
from torch import Tensor

#: Below this many multiplications PyTorch's own operations are quick enough, and nobody should wait for a compiler.
WORTH_COMPILING = 8_000_000
#: What the loops write where digits were lost; norms are never negative.
LOST = -1.0
_lock = threading.Lock()  # one caller at a time: not every threading layer of numba admits two


def usable(work: int, *tensors: Tensor) -> bool:
    """Whether the compiled loops may take these tensors and are worth it."""
    fits = all(t.device.type == "cpu" and t.dtype in (torch.float32, torch.float64) for t in tensors)
    return work >= WORTH_COMPILING and fits and _installed()


@cache
def _installed() -> bool:
    return importlib.util.find_spec("numba") is not None


def quadratic_norms(
    alpha: Tensor, grams: Sequence[Tensor], norms: Sequence[Tensor], outs: Sequence[Tensor], cancellation: float
) -> None:
    """`sqrt(a^T G_j a)` into each of `outs` for every pair, `LOST` where the heads cancel too far."""
    with _lock:
        for gram, norm, out in zip(grams, norms, outs, strict=True):
            _compiled()[0](alpha.numpy(), gram.numpy(), norm.numpy(), cancellation, out.numpy())


def row_dots(left: Tensor, right: Tensor, out: Tensor) -> None:
    """`out[n, g] = left[n, g] . right[n, g]`."""
    with _lock:
        _compiled()[1](left.numpy(), right.numpy(), out.numpy())


@cache
def _compiled() -> Any:
    import numba
    import numpy as np

    numba.set_num_threads(min(torch.get_num_threads(), numba.config.NUMBA_NUM_THREADS))
    parallel = numba.njit(parallel=True, fastmath={"contract", "reassoc", "nsz", "arcp"}, cache=True)

    @parallel  # type: ignore[untyped-decorator]
    def quadratic(alpha: Any, gram: Any, norms: Any, cancellation: float, out: Any) -> None:
        batch, heads, queries, keys = alpha.shape
        for item in numba.prange(batch * queries):
            b, i = item // queries, item % queries
            inner = np.empty(keys, alpha.dtype)
            total = np.zeros(keys, alpha.dtype)
            most = np.zeros(keys, alpha.dtype)
            for h in range(heads):
                row, norm = alpha[b, h, i], norms[b, h]
                inner[:] = 0
                for g in range(h):
                    other, weight = alpha[b, g, i], gram[b, h, g]
                    for j in range(keys):
                        inner[j] += weight[j] * other[j]
                own = gram[b, h, h]
                for j in range(keys):
                    total[j] += row[j] * (2 * inner[j] + own[j] * row[j])
                    most[j] += abs(row[j]) * norm[j]
            for j in range(keys):
                lost = total[j] < cancellation * most[j] * most[j]
                out[b, i, j] = -1.0 if lost else np.sqrt(total[j])

    @parallel  # type: ignore[untyped-decorator]
    def dots(left: Any, right: Any, out: Any) -> None:
        rows, heads, width = left.shape
        for n in numba.prange(rows):
            for g in range(heads):
                total = left[n, g, 0] * right[n, g, 0]
                for c in range(1, width):
                    total += left[n, g, c] * right[n, g, c]
                out[n, g] = total

    return quadratic, dots
