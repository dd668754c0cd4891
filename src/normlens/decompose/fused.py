"""Attention by PyTorch's fused kernels: its output, and any single weight, without all weights ever existing.

Fused kernels keep `L_i = log sum_j exp(score_ij)` of each row for a backward pass. With it one weight costs one product,

    alpha_ij = exp(score_ij - L_i),

so mixing ratios, which need `alpha_ii` alone, take memory that is linear in the length.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor

from normlens.decompose.attention import AttentionInputs, Scratch
from normlens.decompose.grams import repeat_values

#: Of a mask's rows, in numbers: what CUDA's kernels ask of what is added to the scores.
_MASK_ALIGNMENT = 8
#: How far a device's kernel may be from explicit weights on the trial: float32, and half precision.
_ALLOWED = {torch.float32: 1e-4, torch.float16: 1e-2, torch.bfloat16: 5e-2}

Kernel = Literal["cpu", "flash", "efficient"]


@dataclass(frozen=True)
class FusedAttention:
    """Inputs and results of a fused kernel (heads that share keys repeated)."""

    query: Float[Tensor, "batch head query width"]
    key: Float[Tensor, "batch head key width"]
    mask: Float[Tensor, "mask_batch mask_head query key"] | None  # added to the scores; None where the mask is causal
    causal: bool
    scaling: float
    output: Float[Tensor, "batch query head value_width"]
    log_sum: Float[Tensor, "batch head query"]

    def diagonal(self) -> Float[Tensor, "batch head query"]:
        """Each position's weight on itself."""
        dtype = self.log_sum.dtype
        scores: Tensor = torch.linalg.vecdot(self.query.to(dtype), self.key.to(dtype)) * self.scaling
        if self.mask is not None:
            scores = scores + self.mask.diagonal(dim1=-2, dim2=-1)
        return (scores - self.log_sum).exp()


def attend_fused(inputs: AttentionInputs, scratch: Scratch | None = None) -> FusedAttention | None:
    """Attention by a fused kernel; None where this device has none that takes these inputs and keeps its sums."""
    query, heads = inputs.query, inputs.query.shape[1]
    same = inputs.value.shape[-1] == inputs.key.shape[-1] and inputs.key.shape[2] == query.shape[2]
    if inputs.bias is not None or inputs.softcap is not None or not same or query.device.type not in ("cpu", "cuda"):
        return None
    key, value = (repeat_values(tensor, heads) for tensor in (inputs.key, inputs.value))
    scratch = Scratch() if scratch is None else scratch
    causal = inputs.mask is not None and scratch.extent(inputs.mask).causal
    mask = None if causal or inputs.mask is None else inputs.mask.expand(-1, -1, query.shape[2], -1)
    kernel = _kernel(query, key, value, mask, causal)
    if kernel is None or (kernel != "cpu" and not _is_right(kernel, query.device, query.dtype, query.shape[-1])):
        return None
    output, log_sum = _run(kernel, query, key, value, mask, causal, inputs.scaling)
    return FusedAttention(query, key, mask, causal, inputs.scaling, output.transpose(1, 2).contiguous(), log_sum)


def _kernel(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, causal: bool) -> Kernel | None:
    """The kernel that PyTorch has for these inputs."""
    if query.device.type == "cpu":
        return "cpu" if hasattr(torch.ops.aten, "_scaled_dot_product_flash_attention_for_cpu") else None
    given = torch.backends.cuda.SDPAParams(query, key, value, mask, 0.0, causal, False)
    # Asked directly, neither pads a head's width to what its kernel takes.
    whole = query.shape[-1] % 8 == 0
    if mask is None and whole and torch.backends.cuda.can_use_flash_attention(given):
        return "flash"
    return "efficient" if whole and torch.backends.cuda.can_use_efficient_attention(given) else None


def _run(
    kernel: Kernel, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, causal: bool, scaling: float
) -> tuple[Float[Tensor, "batch head query width"], Float[Tensor, "batch head query"]]:
    aten = torch.ops.aten
    if kernel == "cpu":
        fused = aten._scaled_dot_product_flash_attention_for_cpu
        output, log_sum = fused(query, key, value, 0.0, causal, attn_mask=mask, scale=scaling)
    elif kernel == "flash":
        output, log_sum = aten._scaled_dot_product_flash_attention(query, key, value, 0.0, causal, scale=scaling)[:2]
    else:
        added = None if mask is None else _aligned(mask.to(query.dtype)).expand(*query.shape[:3], key.shape[2])
        fused = aten._scaled_dot_product_efficient_attention
        output, log_sum = fused(query, key, value, added, True, 0.0, causal, scale=scaling)[:2]
    return output, log_sum[..., : query.shape[2]]  # CUDA's kernels round the rows up


def _aligned(mask: Tensor) -> Tensor:
    """The mask with rows that start where the kernel can read them."""
    if mask.stride(-1) == 1 and all(stride % _MASK_ALIGNMENT == 0 for stride in mask.stride()[:-1]):
        return mask
    keys = mask.shape[-1]
    return torch.nn.functional.pad(mask, (0, -keys % _MASK_ALIGNMENT))[..., :keys]


@cache  # a fact about the device, found once
def _is_right(kernel: Kernel, device: torch.device, dtype: torch.dtype, width: int) -> bool:
    """Try a device's kernel on a small input, and compare output and sums with explicit weights.

    The sums are no promise of PyTorch's interface, so they are checked before they are used.
    """
    drawn = torch.Generator().manual_seed(0)
    query, key, value = (torch.randn(2, 2, 40, width, generator=drawn).to(device, dtype) for _ in range(3))
    mask = None
    if kernel == "efficient":
        mask = torch.zeros(2, 1, 1, 40)
        mask[1, ..., 30:] = torch.finfo(dtype).min
        mask = mask.expand(-1, -1, 40, -1).to(device)
    try:
        output, log_sum = _run(kernel, query, key, value, mask, mask is None, width**-0.5)
    except RuntimeError:  # this build or this card has no such kernel after all
        return False
    scores = query.float() @ key.float().mT * width**-0.5
    if mask is None:
        later = torch.ones(40, 40, dtype=torch.bool).triu(1).to(device)
        scores = scores.masked_fill(later, -torch.inf)
    else:
        scores = scores + mask
    explicit = scores.softmax(-1) @ value.float()
    gaps = torch.stack([(output.float() - explicit).abs().max(), (log_sum - scores.logsumexp(-1)).abs().max()])
    return bool((gaps < _ALLOWED[dtype]).all())
