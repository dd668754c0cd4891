"""Textbook attention, a block of queries at a time, so that the weights never need to exist all at once."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

#: Weights per block: enough to keep the machine busy, little enough to stay in its caches.
BLOCK_NUMBERS = 2_000_000

Feed = Callable[[Float[Tensor, "batch head block key"], int], None]


@dataclass(frozen=True)
class AttentionInputs:
    """What textbook attention is made of: `softmax(softcap(q k^T scaling) + bias + mask) v`, with an optional sink."""

    query: Float[Tensor, "batch head query width"]
    key: Float[Tensor, "batch kv_head key width"]
    value: Float[Tensor, "batch kv_head key value_width"]
    mask: Float[Tensor, "batch_or_1 head_or_1 query key"] | None  # added to the scores
    scaling: float
    bias: Float[Tensor, "batch_or_1 head query key"] | None = None  # relative positions
    softcap: float | None = None


def attend(inputs: AttentionInputs, feed: Feed | None = None) -> Float[Tensor, "batch query head value_width"]:
    """The attention output; each block of weights is given to `feed` on the way."""
    batch, heads, queries, _ = inputs.query.shape
    keys = inputs.key.shape[2]
    step = max(16, min(queries, BLOCK_NUMBERS // max(1, batch * heads * keys)))
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
            rows = term if term.shape[-2] == 1 else term[..., start:stop, :]
            scores += rows[..., :seen]
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
