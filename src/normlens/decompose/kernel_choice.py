"""Whether the fused kernel (`decompose.quadratic_kernel`) does a device's work: only where it is right and clearly quicker.

Nothing needs it. Where Triton is installed, the first long sequence on a CUDA device tries both ways on a made-up block of
the same heads: the kernel is taken if it gives the same norms and takes at most `CLEARLY` of PyTorch's time, so that noise
does not decide. The choice holds for the process. `torch.use_deterministic_algorithms(True)` rules the kernel out: then the
same input gives the same bits in every process.
"""

from __future__ import annotations

import importlib
import importlib.util
import logging
import statistics
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor

from normlens.decompose.attention import AttentionInputs, Scratch, attend
from normlens.decompose.fused import attend_fused
from normlens.decompose.grams import Grams

#: Weights of a batch from which on the kernel is thought of: below, a device waits for the host anyway, and nobody should
#: wait for a compiler.
WORTH_NUMBERS = 1 << 26
#: A tile holds all heads at once.
MOST_HEADS = 32
#: The share of PyTorch's time that the kernel may take.
CLEARLY = 0.8
#: How far norms may differ, relative to the largest.
ALLOWED = 1e-5
#: Positions and width of the made-up block, and rounds in which the two ways take turns.
_LENGTH, _MODEL, _ROUNDS = 1024, 64, 5

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Trial:
    """What a device showed: seconds of both ways, and how far the kernel's norms are off (relative to the largest)."""

    plain: float
    kernel: float
    gap: float

    @property
    def won(self) -> bool:
        """Whether the kernel is to be used."""
        return self.gap <= ALLOWED and self.kernel <= CLEARLY * self.plain


def takes_kernel(inputs: AttentionInputs, stages: int) -> bool:
    """Whether the norms of this attention's pairs are the kernel's work."""
    batch, heads, queries, width = inputs.query.shape
    device = inputs.query.device
    if device.type != "cuda" or batch * heads * queries * inputs.key.shape[2] < WORTH_NUMBERS or heads > MOST_HEADS:
        return False
    if inputs.bias is not None or inputs.softcap is not None or torch.are_deterministic_algorithms_enabled():
        return False
    return importlib.util.find_spec("triton") is not None and tried(device, inputs.query.dtype, heads, width, stages)


@cache
def tried(device: torch.device, dtype: torch.dtype, heads: int, width: int, stages: int) -> bool:
    """Whether the kernel won its trial; one that cannot be compiled for this device has not."""
    try:
        found = trial(device, dtype, heads, width, stages)
    except Exception as error:  # a compiler's own, of any kind: the plain way does not need it
        _log.info("the fused kernel is not used on %s: %s: %s", device, type(error).__name__, error)
        return False
    _log.info("fused kernel on %s, %d heads of %d: %s", device, heads, width, found)
    return found.won


def trial(
    device: torch.device, dtype: torch.dtype, heads: int, width: int, stages: int, length: int = _LENGTH
) -> Trial:
    """Both ways on the same made-up block, in turns."""
    kernel: Any = importlib.import_module("normlens.decompose.quadratic_kernel")
    drawn = torch.Generator().manual_seed(0)

    def draw(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=drawn).to(device, dtype)

    query, key, value = (draw(1, heads, length, width) for _ in range(3))
    inputs = AttentionInputs(query, key, value, None, width**-0.5)
    scratch = Scratch()
    weight = (draw(heads, width, _MODEL) / width**0.5).float()
    grams = Grams(value.float(), (weight,), [()] * stages, scratch=scratch)
    grams.reach(length, 0)
    norms = [weight.new_zeros(stages, 1, length, length) for _ in range(2)]
    mean = weight.new_zeros(1, length, length)

    def plain() -> None:
        def feed(alpha: Tensor, start: int) -> None:
            alpha = alpha.float()
            mean[:, start : start + alpha.shape[2]] = alpha.mean(1)
            grams.norms(alpha, start, norms[0])
            grams.digits_lost()  # as a real pass asks

        attend(inputs, feed, scratch)

    def fused() -> None:
        found = attend_fused(inputs, scratch)
        if found is None:
            raise RuntimeError("this device has no fused attention that keeps its sums")
        grams.fused_norms(found, kernel.pair_norms, norms[1], mean)

    times: dict[Callable[[], None], list[float]] = {plain: [], fused: []}
    for work in times:
        work()  # compiled, and its memory fetched
    gap = float((norms[0] - norms[1]).abs().max() / norms[0].abs().max())
    for _ in range(_ROUNDS):
        for work, taken in times.items():
            taken.append(seconds(work, device))
    return Trial(statistics.median(times[plain]), statistics.median(times[fused]), gap)


def seconds(work: Callable[[], object], device: torch.device) -> float:
    """What a work takes on a CUDA device, by its own clock."""
    first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    with torch.cuda.device(device):
        first.record()
        work()
        last.record()
        last.synchronize()
    return float(first.elapsed_time(last)) / 1e3
