"""Norms of pairs by the Triton kernel, and a trial of it against PyTorch on one device.

The kernel (`quadratic_kernel`) has been compiled and run in Triton's interpreter, but not measured on hardware. Until
somebody does, normlens does not use it.
"""

from __future__ import annotations

import importlib
import statistics
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from normlens.decompose.attention import AttentionInputs, Scratch, attend
from normlens.decompose.fused import FusedAttention, attend_fused
from normlens.decompose.grams import CANCELLATION, Grams
from normlens.decompose.steps import linear

#: The share of PyTorch's time that the kernel may take to win.
CLEARLY = 0.8
#: The largest difference of norms, relative to the largest norm.
ALLOWED = 1e-5
#: Positions and width of the random block, and rounds in which the two take turns.
_LENGTH, _MODEL, _ROUNDS = 1024, 64, 5


def fused_norms(
    grams: Grams, fused: FusedAttention, kernel: Callable[..., Tensor], out: Tensor, mean: Tensor | None
) -> None:
    """Write the norms of all pairs to `out` and the mean weights to `mean`; pairs that lost digits are recomputed."""
    lost = kernel(fused, grams._matrices, grams._lengths, CANCELLATION, out, mean)
    if not bool(lost):
        return
    heads, groups = grams._w_o.shape[0], grams._values.shape[1]
    kv_head = torch.arange(heads, device=out.device) // (heads // groups)
    matrix = grams._w_o.cpu().double().flatten(0, 1)
    for steps, norms in zip(grams._stages, out, strict=True):
        on_host = [step.to(torch.float64, torch.device("cpu")) for step in steps]
        for pairs in (norms < 0).nonzero().split(256):
            batch, query, key = pairs.unbind(-1)
            v = grams._values[batch[:, None], kv_head, key[:, None]].cpu().double()
            a = weights_at(fused, batch, query, key).cpu().double()
            norms[batch, query, key] = linear(on_host, (a.unsqueeze(-1) * v).flatten(1) @ matrix).norm(dim=-1).to(norms)


def weights_at(fused: FusedAttention, batch: Tensor, query: Tensor, key: Tensor) -> Tensor:
    """The weights of a few pairs (pair, head), which the mask must show."""
    dtype = fused.log_sum.dtype
    q, k = fused.query[batch, :, query].to(dtype), fused.key[batch, :, key].to(dtype)
    scores: Tensor = torch.linalg.vecdot(q, k) * fused.scaling
    if fused.mask is not None:
        scores = scores + fused.mask.expand(len(fused.query), -1, -1, -1)[batch, :, query, key]
    return (scores - fused.log_sum[batch, :, query]).exp()


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


def trial(
    device: torch.device, dtype: torch.dtype, heads: int, width: int, stages: int, length: int = _LENGTH
) -> Trial:
    """Both ways on the same made-up block, in turns."""
    kernel: Any = importlib.import_module("experimental.triton.quadratic_kernel")
    drawn = torch.Generator().manual_seed(0)

    def draw(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=drawn).to(device, dtype)

    query, key, value = (draw(1, heads, length, width) for _ in range(3))
    inputs = AttentionInputs(query, key, value, None, width**-0.5)
    scratch = Scratch()
    weight = (draw(heads, width, _MODEL) / width**0.5).float()
    grams = Grams(value.float(), weight, [()] * stages, scratch=scratch)
    grams.extend_to(length, 0)
    norms = [weight.new_zeros(stages, 1, length, length) for _ in range(2)]
    mean = weight.new_zeros(1, length, length)

    def plain() -> None:
        def feed(alpha: Tensor, start: int) -> None:
            alpha = alpha.float()
            mean[:, start : start + alpha.shape[2]] = alpha.mean(1)
            grams.norms(alpha, start, norms[0])
            grams.has_cancellation()  # as in a real pass

        attend(inputs, feed, scratch)

    def fused() -> None:
        found = attend_fused(inputs, scratch)
        if found is None:
            raise RuntimeError("this device has no fused attention that keeps its sums")
        fused_norms(grams, found, kernel.pair_norms, norms[1], mean)

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
