"""All that normlens sets or keeps for the whole process, in one place: compiled loops, their threads, the heap, TF32.

The loops stand in `decompose.loops`: work that PyTorch has no single operation for, compiled by numba where it is
installed (`pip install normlens[fast]`). Each has a plain PyTorch form beside its caller, which serves every device and
is what the tests compare with. Which of the two runs depends on the shape of one sequence, its dtype and its device
alone: the same input gives the same bits, whatever the process did before and whatever shares its batch.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import cache
from typing import Any

import torch
from torch import Tensor

#: From this many positions on the loops are used. Loading them takes a second (compiling, once per machine, several),
#: which nobody should wait for who asks about a sentence.
COMPILED_LENGTH = 64
#: Just below 32 MiB, the largest block whose release moves glibc's thresholds.
_THRESHOLD_BYTES = 2**25 - 2**16
_lock = threading.Lock()  # one caller at a time: not every threading layer of numba admits two


def fits_compiled(like: Tensor) -> bool:
    """Return True if the compiled loops can take tensors like this one."""
    return like.device.type == "cpu" and like.dtype in (torch.float32, torch.float64) and numba_installed()


@cache
def numba_installed() -> bool:
    """Return True if loops can be compiled here at all."""
    return importlib.util.find_spec("numba") is not None


def run_compiled(name: str, **arguments: Any) -> None:
    """Run one of `decompose.loops`; tensors are handed over as arrays, without a copy."""
    loop = getattr(compiled_loops(), name)
    arrays = {name: a.numpy() if isinstance(a, Tensor) else a for name, a in arguments.items()}
    with _lock:
        follow_threads()
        loop(**arrays)


@cache
def compiled_loops() -> Any:
    """The package of compiled loops."""
    _start_threads()
    return importlib.import_module("normlens.decompose.loops")


def follow_threads() -> int:
    """Have numba use as many threads as PyTorch has now, but no more than it has started; returns their number."""
    import numba

    threads = min(torch.get_num_threads(), _start_threads())
    if numba.get_num_threads() != threads:
        numba.set_num_threads(threads)
    return threads


@cache
def _start_threads() -> int:
    """Start numba's threads, as many as there are processors for it; returns their number. PyTorch's number stays.

    They are made to go to sleep soon after their work. PyTorch and numba have a pool of threads each, and a thread that
    has just worked waits for more in a busy loop, by default for milliseconds, on a processor that the other pool needs
    by then. The setting is read when a pool's library is loaded, and PyTorch's is loaded already; a user's own setting
    stands.
    """
    import numba

    before = torch.get_num_threads()  # starting another OpenMP pool resets it
    mine = {} if {"GOMP_SPINCOUNT", "OMP_WAIT_POLICY"} & os.environ.keys() else {"GOMP_SPINCOUNT": "20000"}
    os.environ.update(mine)
    try:
        threads: int = numba.get_num_threads()  # of all that it has, nobody having asked for fewer yet
        numba.set_num_threads(min(before, threads))
    finally:
        torch.set_num_threads(before)
        for name in mine:
            del os.environ[name]
    return threads


@cache
def raise_mmap_threshold() -> None:
    """Ask once for a large block, and let it go untouched.

    glibc returns the top of its heap to the system as soon as enough of it is free, which in a model is so in every
    layer, and the next tensors come back page by page: up to a fifth of a pass. "Enough" is twice the largest block that
    was mapped and released so far (`M_MMAP_THRESHOLD` in mallopt(3)); other allocators do not notice this call.
    """
    torch.empty(_THRESHOLD_BYTES, dtype=torch.uint8)


class SharedSetting:
    """A setting of the whole process, on while any pass needs it: two threads must not put it back for each other."""

    def __init__(self, turn_on: Callable[[ExitStack], None]) -> None:
        self._turn_on, self._lock, self._users, self._undo = turn_on, threading.Lock(), 0, ExitStack()

    @contextmanager
    def __call__(self) -> Iterator[None]:
        with self._lock:
            if self._users == 0:
                self._turn_on(self._undo)
            self._users += 1
        try:
            yield
        finally:
            with self._lock:
                self._users -= 1
                if self._users == 0:
                    self._undo.close()


def _products_in_full(undo: ExitStack) -> None:
    undo.callback(setattr, torch.backends.cuda.matmul, "fp32_precision", torch.backends.cuda.matmul.fp32_precision)
    torch.backends.cuda.matmul.fp32_precision = "ieee"


#: Inside the block products are not rounded to ten bits.
products_in_full = SharedSetting(_products_in_full)
