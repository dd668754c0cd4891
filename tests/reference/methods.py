"""Methods the slow way: one token, one step, one layer at a time, from the equations; nothing here knows normlens."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

#: The number that a model puts out for word vectors (position, width).
Value = Callable[[Tensor], float]


def value_of(model: Any, output: int, against: int | None, position: int | None) -> Value:
    """The logit of `output`, less that of `against`, for word vectors that are handed in."""

    def value(vectors: Tensor) -> float:
        with torch.no_grad():
            logits = model(inputs_embeds=vectors[None]).logits[0]
        scores = logits if position is None else logits[position]
        return float(scores[output]) - (0.0 if against is None else float(scores[against]))

    return value


def gradient_x_input(value: Value, vectors: Tensor, at: Tensor | None = None, step: float = 1e-3) -> np.ndarray:
    """`x_k · ∂value/∂x_k` by central differences along `x_k`, at `at` (the vectors themselves without it)."""
    point = vectors if at is None else at
    found = []
    for k in range(len(vectors)):
        moved = []
        for sign in (1, -1):
            shifted = point.clone()
            shifted[k] += sign * step * vectors[k]
            moved.append(value(shifted))
        found.append((moved[0] - moved[1]) / (2 * step))
    return np.array(found)


def integrated_gradients(value: Value, vectors: Tensor, steps: int) -> np.ndarray:
    """The mean over midpoints of `[0, 1]` of the above at `t x`."""
    return np.mean([gradient_x_input(value, vectors, vectors * (i + 0.5) / steps) for i in range(steps)], axis=0)


def erasure(model: Any, ids: list[int], output: int, mask: int | None, position: int | None) -> np.ndarray:
    """`value - value without token k`: deleted without a mask, else masked."""

    def value(kept: list[int], place: int | None) -> float:
        with torch.no_grad():
            logits = model(input_ids=torch.tensor([kept])).logits[0]
        return float((logits if place is None else logits[place])[output])

    whole = value(ids, position)
    found = []
    for k in range(len(ids)):
        if mask is None:
            kept, place = ids[:k] + ids[k + 1 :], None if position is None else len(ids) - 2
        else:
            kept, place = [*ids[:k], mask, *ids[k + 1 :]], position
        found.append(whole - value(kept, place))
    return np.array(found)


def attention_rollout(model: Any, ids: list[int], row: int) -> np.ndarray:
    """A row of the product over layers of `½ mean over heads of α + ½ I`."""
    with torch.no_grad():
        layers = model(input_ids=torch.tensor([ids]), output_attentions=True).attentions
    joint = np.eye(len(ids))
    for layer in layers:
        mean = layer[0].double().numpy().mean(0)
        mixed = 0.5 * mean + 0.5 * np.eye(len(ids))
        joint = (mixed / mixed.sum(-1, keepdims=True)) @ joint
    return joint[row]


def _shared(parts: Tensor, bias: Tensor) -> Tensor:
    """Parts (position, token, width) with a bias given to tokens by `|part · bias|`, one position at a time."""
    shared = parts.clone()
    for i in range(parts.shape[0]):
        weights = [abs(float(parts[i, k] @ bias)) for k in range(parts.shape[1])]
        for k, weight in enumerate(weights):
            shared[i, k] += bias * weight / (sum(weights) + 1e-12)
    return shared


def _normed(parts: Tensor, total: Tensor, norm: Any) -> Tensor:
    """Parts through a layer normalization whose denominator is that of the model's own sum."""
    scale = torch.sqrt(total.var(-1, unbiased=False) + norm.eps)
    centred = parts - parts.mean(-1, keepdim=True)
    return _shared(centred / scale[:, None, None] * norm.weight, norm.bias)


@torch.no_grad()
def decompx_bert(model: Any, ids: list[int], output: int, against: int) -> np.ndarray:
    """DecompX of a BERT classifier, layer by layer, as in Section 3 of the paper with biases shared."""
    bert = model.bert
    states = bert.embeddings(torch.tensor([ids]))[0]
    n, width = states.shape
    parts = torch.zeros(n, n, width, dtype=states.dtype)
    for k in range(n):
        parts[k, k] = states[k]
    for layer in bert.encoder.layer:
        own, out = layer.attention.self, layer.attention.output
        heads, size = own.num_attention_heads, own.attention_head_size
        query, key, value = (f(states).view(n, heads, size) for f in (own.query, own.key, own.value))
        mixed = torch.zeros_like(parts)
        context = torch.zeros(n, heads * size, dtype=states.dtype)
        for h in range(heads):
            rows = slice(h * size, (h + 1) * size)
            alpha = torch.softmax(query[:, h] @ key[:, h].T / size**0.5, -1)
            values = parts @ own.value.weight[rows].T  # position token size
            mixed += torch.einsum("ij,jks->iks", alpha, values) @ out.dense.weight[:, rows].T
            context[:, rows] = alpha @ value[:, h]
        bias = out.dense.weight @ own.value.bias + out.dense.bias
        total = states + out.dense(context)
        parts = _normed(_shared(mixed + parts, bias), total, out.LayerNorm)
        states = out.LayerNorm(total)
        first, last = layer.intermediate.dense, layer.output
        z = first(states)
        active = layer.intermediate.intermediate_act_fn(z)
        inner = _shared(parts @ first.weight.T, first.bias) * (active / z)[:, None]
        branch = _shared(inner @ last.dense.weight.T, last.dense.bias)
        total = states + last.dense(active)
        parts = _normed(parts + branch, total, last.LayerNorm)
        states = last.LayerNorm(total)
    pool = bert.pooler.dense
    z = pool(states[0])
    pooled = _shared((parts[0] @ pool.weight.T)[None], pool.bias) * (torch.tanh(z) / z)
    logits = _shared(pooled @ model.classifier.weight.T, model.classifier.bias)[0]
    return (logits[:, output] - logits[:, against]).numpy()


@torch.no_grad()
def globenc_rollout(maps: np.ndarray, row: int) -> np.ndarray:
    """A row of the product of raw norm maps (layer, query, key), as GlobEnc's released code multiplies them."""
    joint = np.eye(maps.shape[-1])
    for layer in maps:
        joint = layer @ joint
    return joint[row]


@torch.no_grad()
def alti_logit_gpt2(model: Any, ids: list[int], output: int, against: int) -> np.ndarray:
    """ALTI-Logit of a GPT-2 at its last position, by loops over layers, heads and keys."""
    body = model.transformer
    hidden = model(input_ids=torch.tensor([ids]), output_hidden_states=True, output_attentions=True)
    states = hidden.hidden_states
    n, width = len(ids), states[0].shape[-1]
    last: list[Tensor] = []
    handle = body.ln_f.register_forward_pre_hook(lambda module, args: last.append(args[0][0, -1]))
    model(input_ids=torch.tensor([ids]))
    handle.remove()
    scale = torch.sqrt(last[0].var(unbiased=False) + body.ln_f.eps)
    unembedding = model.lm_head.weight[output] - model.lm_head.weight[against]
    direct, maps = [], []
    for layer, block in enumerate(body.h):
        attention = block.attn
        x = block.ln_1(states[layer][0])
        value = x @ attention.c_attn.weight[:, 2 * width :] + attention.c_attn.bias[2 * width :]
        heads = attention.num_heads
        size = width // heads
        parts = torch.zeros(n, n, width, dtype=x.dtype)
        for h in range(heads):
            rows = slice(h * size, (h + 1) * size)
            f = value[:, rows] @ attention.c_proj.weight[rows]
            parts += hidden.attentions[layer][0, h][:, :, None] * f[None]
        given = []
        for j in range(n):
            part = parts[-1, j]
            normed = (part - part.mean()) / scale * body.ln_f.weight
            given.append(float(normed @ unembedding))
        direct.append(np.array(given))
        total = parts.sum(1) + attention.c_proj.bias + states[layer][0]
        shares = np.zeros((n, n))
        for i in range(n):
            for j in range(n):
                part = parts[i, j] + (states[layer][0, i] if i == j else 0)
                shares[i, j] = max(0.0, float(total[i].abs().sum() - (total[i] - part).abs().sum()))
            shares[i] /= shares[i].sum()
        maps.append(shares)
    joint, found = np.eye(n), np.zeros(n)
    for layer in range(len(maps)):
        found += direct[layer] @ joint
        joint = maps[layer] @ joint
    return found
