"""Textbook attention, a block of queries at a time, so that the weights never need to exist all at once."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

#: Up to so many weights are computed at once.
WHOLE_NUMBERS = 4_000_000
#: Weights per block where there are more: little enough to stay in caches, and to see little behind a causal mask.
BLOCK_NUMBERS = 2_000_000

Feed = Callable[[Float[Tensor, "batch head block key"], int], None]


@dataclass(frozen=True)
class AttentionInputs:
    """What textbook attention is made of: `softmax(softcap(q k^T scaling) + bias + mask) v`, with an optional sink."""

    query: Float[Tensor, "batch head query width"]
    key: Float[Tensor, "batch kv_head key width"]
    value: Float[Tensor, "batch kv_head key value_width"]
    mask: Float[Tensor, "mask_batch mask_head mask_query key"] | None  # added to the scores
    scaling: float
    bias: Float[Tensor, "bias_batch head bias_query key"] | None = None  # relative positions
    softcap: float | None = None


def attend(inputs: AttentionInputs, feed: Feed | None = None) -> Float[Tensor, "batch query head value_width"]:
    """The attention output; each block of weights is given to `feed` on the way."""
    batch, heads, queries, _ = inputs.query.shape
    keys = inputs.key.shape[2]
    row = max(1, batch * heads * keys)
    step = queries if row * queries <= WHOLE_NUMBERS else max(16, BLOCK_NUMBERS // row)
    output = inputs.query.new_empty(batch, heads, queries, inputs.value.shape[-1])
    for start in range(0, queries, step):
        stop = min(queries, start + step)
        seen = _seen(inputs.mask, start, stop, keys)
        alpha = _weights(inputs, start, stop, seen)
        output[:, :, start:stop] = _grouped(alpha, inputs.value[:, :, :seen])
        if feed is not None:
            feed(alpha, start)
    return output.transpose(1, 2).contiguous()


def _weights(inputs: AttentionInputs, start: int, stop: int, seen: int) -> Float[Tensor, "batch head block key"]:
    scores = _grouped(inputs.query[:, :, start:stop] * inputs.scaling, inputs.key[:, :, :seen].transpose(-1, -2))
    if inputs.softcap is not None:
        scores = scores.div_(inputs.softcap).tanh_().mul_(inputs.softcap)
    for term in (inputs.bias, inputs.mask):
        if term is not None:
            rows = (term if term.shape[-2] == 1 else term[..., start:stop, :])[..., :seen]
            # The keys before a block are hidden by nothing, as a rule: a mask of zeros need not be added to every head.
            first = start if term is inputs.mask and not bool(rows[..., :start].any()) else 0
            scores[..., first:] += rows[..., first:]
    return torch.softmax(scores, dim=-1, dtype=torch.promote_types(scores.dtype, torch.float32)).to(scores.dtype)


def _grouped(
    left: Float[Tensor, "batch head rows inner"], right: Float[Tensor, "batch kv_head inner columns"]
) -> Float[Tensor, "batch head rows columns"]:
    """A matrix product in which the heads of one group share the right-hand side; nothing is repeated."""
    batch, heads, rows, inner = left.shape
    groups = right.shape[1]
    if groups == heads:
        return left @ right
    return (left.reshape(batch, groups, -1, inner) @ right).view(batch, heads, rows, -1)


def _seen(mask: Tensor | None, start: int, stop: int, keys: int) -> int:
    """How many keys this block of queries can see at all: behind them a causal mask leaves nothing to compute."""
    if mask is None or mask.shape[-2] == 1:
        return keys
    floor = torch.finfo(mask.dtype).min / 2
    last = mask[..., stop - 1, :]
    # Cheap test on the block's last row first: only a mask that ends somewhere is looked at as a whole.
    visible = (last > floor).flatten(0, -2).any(0)
    beyond = int(visible.nonzero().max()) + 1 if bool(visible.any()) else keys
    if beyond == keys:
        return keys
    hidden = bool((mask[..., start:stop, beyond:] <= floor).all())
    return beyond if hidden else keys


def attend_diagonal(
    inputs: AttentionInputs,
) -> tuple[Float[Tensor, "batch query head value_width"], Float[Tensor, "batch head query"]] | None:
    """The output and each position's weight on itself, at the price of fused attention; None where that cannot be had.

    Fused kernels keep `log sum_j exp(score_ij)` of each row, and `alpha_ii = exp(score_ii - that)`: for mixing ratios no
    weight of another pair has to exist, so the memory of a long sequence stays linear.
    """
    query, key, value = inputs.query, inputs.key, inputs.value
    if (
        query.device.type != "cpu"
        or inputs.bias is not None
        or inputs.softcap is not None
        or value.shape[-1] != key.shape[-1]
        or key.shape[2] != query.shape[2]
        or not hasattr(torch.ops.aten, "_scaled_dot_product_flash_attention_for_cpu")
    ):
        return None
    group = query.shape[1] // key.shape[1]
    key, value = (t.repeat_interleave(group, dim=1) if group > 1 else t for t in (key, value))
    causal = inputs.mask is not None and _is_causal(inputs.mask)
    mask = None if causal or inputs.mask is None else inputs.mask.expand(-1, -1, query.shape[2], -1)
    output, log_sum = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
        query, key, value, 0.0, causal, attn_mask=mask, scale=inputs.scaling
    )
    scores = torch.linalg.vecdot(query.to(log_sum.dtype), key.to(log_sum.dtype)) * inputs.scaling
    if mask is not None:
        scores = scores + mask.diagonal(dim1=-2, dim2=-1)
    return output.transpose(1, 2).contiguous(), (scores - log_sum).exp()


def _is_causal(mask: Tensor) -> bool:
    """Whether a mask hides exactly the later keys, and nothing else; looked at in blocks, since it is quadratic."""
    if mask.shape[-2] != mask.shape[-1]:
        return False
    floor, length = torch.finfo(mask.dtype).min / 2, mask.shape[-1]
    position = torch.arange(length, device=mask.device)
    for start in range(0, length, 1024):
        rows = mask[..., start : start + 1024, :]
        later = position > position[start : start + 1024, None]
        if not bool(torch.where(later, rows <= floor, rows == 0).all()):
            return False
    return True
