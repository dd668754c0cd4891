"""Rules for attention: weights that a softmax gave, fused attention, and PyTorch's own module."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.nn import functional as nnf

from normlens.attribution.edges import FusedWeights, scores_of
from normlens.attribution.elementwise import held
from normlens.attribution.integrated import IntegratedAttention, Weights, replayed
from normlens.attribution.operands import Function, OpCall, is_live
from normlens.errors import AnatomyError
from normlens.types import Kwargs

if TYPE_CHECKING:
    from normlens.attribution.frozen import FrozenPass


def softmax(run: FrozenPass, call: OpCall) -> Any:
    """Weights over keys or experts. Those that meet values in a product are attention weights."""
    out = held(run, call)
    axis = call.argument(1, "dim")
    plain = isinstance(out, Tensor) and axis in (-1, out.ndim - 1) and out.dtype == call.args[0].dtype
    run.mark_attention(out, call.args[0], lambda scores: call.on(scores), plain)
    return out


def attend(run: FrozenPass, alpha: Tensor, weights: Weights, values: Tensor, multiply: Function) -> Tensor:
    """Attention weights meet values: held as they are, or both as parts (`attention="integrated"`)."""
    scores = weights.scores
    out: Tensor
    if scores is None or not is_live(scores):
        out = multiply(alpha, values)
    elif run.replaying:
        out = replayed(run.freeze(lambda: ()), scores, values, multiply)
    else:
        run.freeze(lambda: (scores.detach(), values.detach(), weights.function))
        out = IntegratedAttention.apply(scores, values, alpha, weights, multiply)
    run.attended(out, values, alpha)
    return out


def fused_attention(run: FrozenPass, call: OpCall) -> Any:
    """Scaled dot-product attention: with queries and keys detached, its gradient is that of the values alone."""
    names = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal")
    given = call.named(*names)
    query, key, value, mask = given["query"], given["key"], given["value"], given.get("attn_mask")
    options = {k: given[k] for k in ("is_causal", "scale", "enable_gqa") if given.get(k) is not None}
    if run.integrated or not is_live(value):
        with run:
            return _spelled_out(query, key, value, mask, options)
    # Queries and keys are held, not the weights: memory stays linear in the length.
    q0, k0, m0 = run.freeze(lambda: (query.detach(), key.detach(), mask if mask is None else mask.detach()))
    out = call.function(q0, k0, value, attn_mask=m0, **options)
    run.attended(out, value, FusedWeights(q0, k0, m0, options))
    return out


def _spelled_out(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, options: Kwargs) -> Tensor:
    scores = scores_of(query, key, mask, options)
    hidden = torch.isneginf(scores.detach()).all(-1, keepdim=True)
    if bool(hidden.any()):  # a row of padding that sees nothing: scaled dot-product attention gives 0 there
        weights = torch.softmax(scores.masked_fill(hidden, 0.0), -1) * (~hidden)
    else:
        weights = torch.softmax(scores, -1)
    if options.get("enable_gqa"):
        value = value.repeat_interleave(query.shape[-3] // value.shape[-3], dim=-3)
    return torch.matmul(weights, value)


def multi_head(run: FrozenPass, call: OpCall) -> Any:
    """`torch.nn.MultiheadAttention`, spelled out so that its parts are seen."""
    names = (
        "query", "key", "value", "embed_dim_to_check", "num_heads", "in_proj_weight", "in_proj_bias", "bias_k",
        "bias_v", "add_zero_attn", "dropout_p", "out_proj_weight", "out_proj_bias",
    )  # fmt: skip
    given = call.named(*names)
    if given["bias_k"] is not None or given["add_zero_attn"]:
        raise AnatomyError(
            "`multi_head_attention_forward` with added keys has no rule, so this model cannot be explained"
        )
    with run:
        query, key, value = given["query"], given["key"], given["value"]
        if given.get("use_separate_proj_weight"):
            weights = tuple(given[f"{name}_proj_weight"] for name in "qkv")
        else:
            weights = given["in_proj_weight"].chunk(3)
        biases = (None,) * 3 if given["in_proj_bias"] is None else given["in_proj_bias"].chunk(3)
        heads = given["num_heads"]
        length, rows, width = query.shape
        q, k, v = (
            nnf.linear(x, w, b).view(x.shape[0], rows, heads, width // heads).permute(1, 2, 0, 3)
            for x, w, b in zip((query, key, value), weights, biases, strict=True)
        )
        mask, padding = given.get("attn_mask"), given.get("key_padding_mask")
        if mask is not None and mask.dtype == torch.bool:
            mask = torch.zeros_like(mask, dtype=q.dtype).masked_fill(mask, float("-inf"))
        if mask is not None and mask.ndim == 3:  # one for each row and head
            mask = mask.unflatten(0, (rows, heads))
        if padding is not None:
            if padding.dtype == torch.bool:
                padding = torch.zeros_like(padding, dtype=q.dtype).masked_fill(padding, float("-inf"))
            padding = padding[:, None, None, :]
            mask = padding if mask is None else mask + padding
        out = nnf.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        out = out.permute(2, 0, 1, 3).reshape(length, rows, width)
        return nnf.linear(out, given["out_proj_weight"], given["out_proj_bias"]), None
