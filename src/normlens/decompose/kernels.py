"""Loops that PyTorch has no single operation for, compiled by numba where it is installed and pays.

They stand in `decompose.loops`. Each has a plain PyTorch form beside its caller, which serves every device and is what
the tests compare with. numba is optional (`pip install normlens[fast]`); compiling takes some seconds once per machine
(the result is cached on disk), so a short text never comes here.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import torch
from torch import Tensor

#: Nobody should wait for a compiler who asks for little: the loops are compiled when this many multiplications came at
#: once, or ten times as many in all. Once they are there, they are the quickest way for small inputs too.
WORTH_COMPILING = 8_000_000
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
    return _asked.compiled


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
        return getattr(_loops(), name)(*(a.numpy() if isinstance(a, Tensor) else a for a in arguments))


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
def _loops() -> Any:
    start_threads()
    return importlib.import_module("normlens.decompose.loops")
