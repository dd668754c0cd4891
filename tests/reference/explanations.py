"""Explanations the slow way: every position's vector is carried through the model, layer by layer, without gradients.

Beside each vector of the model stand its parts: one for each input position, and one for all that belongs to no input. Every
step is written out from the table of the design; nothing here knows normlens. Weights are read by their names.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

Activation = Callable[[Tensor], Tensor]


@dataclass
class Vectors:
    """Vectors of positions (position, width) and their parts (input + 1, position, width); the last part is no input's."""

    whole: Tensor
    parts: Tensor

    @staticmethod
    def entering(whole: Tensor, inputs: int, first: int = 0, own: Tensor | None = None) -> Vectors:
        """Input vectors: each is its own part; with `own`, that much of it, and the rest is no input's."""
        parts = torch.zeros(inputs + 1, *whole.shape, dtype=torch.float64)
        for position in range(whole.shape[0]):
            parts[first + position, position] = whole[position] if own is None else own[position]
            parts[-1, position] = 0.0 if own is None else whole[position] - own[position]
        return Vectors(whole, parts)

    def __add__(self, other: Vectors) -> Vectors:
        return Vectors(self.whole + other.whole, self.parts + other.parts)

    def by(self, factor: Any) -> Vectors:
        """Multiplied by what is held fixed."""
        return Vectors(self.whole * factor, self.parts * factor)

    def linear(self, weight: Tensor, bias: Tensor | None = None) -> Vectors:
        """`x W^T + b`."""
        out = Vectors(self.whole @ weight.T, self.parts @ weight.T)
        return out if bias is None else out.shifted(bias)

    def shifted(self, bias: Tensor) -> Vectors:
        """A constant belongs to no input."""
        parts = self.parts.clone()
        parts[-1] += bias
        return Vectors(self.whole + bias, parts)

    def layer_norm(self, module: nn.Module) -> Vectors:
        """The denominator is held fixed."""
        centred = self.whole - self.whole.mean(-1, keepdim=True)
        scale = torch.sqrt(centred.square().mean(-1, keepdim=True) + module.eps)
        parts = (self.parts - self.parts.mean(-1, keepdim=True)) / scale * module.weight
        return Vectors(centred / scale * module.weight, parts).shifted(module.bias)

    def rms_norm(self, weight: Tensor, eps: float) -> Vectors:
        """As above, without a mean and a shift."""
        scale = torch.sqrt(self.whole.square().mean(-1, keepdim=True) + eps)
        return self.by(weight / scale)

    def activated(self, act: Activation) -> Vectors:
        """Slope `g(z)/z`; `z` is never exactly zero here."""
        return self.by(act(self.whole) / self.whole)

    def gate(self, act: Activation, other: Vectors) -> Vectors:
        """`act(a) b`: a part gets `a_k b (act(a) - c)/a + b_k c`."""
        c = mean_activation(act, self.whole)
        to_self = other.whole * (act(self.whole) - c) / self.whole
        return Vectors(act(self.whole) * other.whole, self.parts * to_self + other.parts * c)

    def heads(self, count: int) -> list[Vectors]:
        """The vectors of each head."""
        return [Vectors(w, p) for w, p in zip(self.whole.chunk(count, -1), self.parts.chunk(count, -1), strict=True)]


def beyond_mean(table: Tensor, ids: Tensor, mean: bool) -> Tensor | None:
    """What words have beyond the average word of their table, where that is asked for."""
    return table[ids] - table.mean(0) if mean else None


def joined(heads: list[Vectors]) -> Vectors:
    """Heads side by side."""
    return Vectors(torch.cat([h.whole for h in heads], -1), torch.cat([h.parts for h in heads], -1))


def mean_activation(act: Activation, a: Tensor) -> Tensor:
    """`∫₀¹ act(t a) dt` by 400 Gauss points."""
    nodes, weights = np.polynomial.legendre.leggauss(400)
    return sum(act(a * (x + 1) / 2) * w / 2 for x, w in zip(nodes, weights, strict=True))  # type: ignore[return-value]


def attend(query: Vectors, key: Vectors, value: Vectors, bias: Tensor, scale: float, chosen: bool) -> Vectors:
    """One head. `bias` is added to the scores (masks too)."""
    scores = query.whole @ key.whole.T * scale + bias
    alpha = torch.softmax(scores, -1)
    whole = alpha @ value.whole
    if not chosen:
        return Vectors(whole, torch.stack([alpha @ part for part in value.parts]))
    allowed = torch.isfinite(scores)
    given = torch.stack(
        [(q @ key.whole.T + query.whole @ k.T) / 2 * scale for q, k in zip(query.parts, key.parts, strict=True)]
    )
    given[-1] += torch.where(allowed, bias, 0.0)
    given = torch.where(allowed, given, 0.0)
    parts = torch.zeros(len(value.parts), *whole.shape, dtype=torch.float64)
    nodes, weights = np.polynomial.legendre.leggauss(400)
    for x, w in zip(nodes, weights, strict=True):
        t = float(x + 1) / 2
        at = torch.softmax(torch.where(allowed, t * scores, -torch.inf), -1)
        change = at * (given - (at * given).sum(-1, keepdim=True))  # how the weights move with each part of the scores
        parts += w / 2 * (at @ value.parts + t * (change @ value.whole))
    return Vectors(whole, parts)


def causal(length: int) -> Tensor:
    return torch.full((length, length), -torch.inf, dtype=torch.float64).triu(1)


@dataclass
class Explained:
    """The number, what each input gave, and what belongs to none."""

    value: float
    tokens: np.ndarray
    biases: float

    @staticmethod
    def of(state: Vectors, position: int, direction: Tensor, shift: float = 0.0) -> Explained:
        given = state.parts[:, position] @ direction
        return Explained(float(state.whole[position] @ direction) + shift, given[:-1].numpy(), float(given[-1]) + shift)


# ---- families --------------------------------------------------------------------------------------------------------


def gelu(x: Tensor) -> Tensor:
    return x * 0.5 * (1 + torch.erf(x / math.sqrt(2)))


def gelu_new(x: Tensor) -> Tensor:
    return 0.5 * x * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


def silu(x: Tensor) -> Tensor:
    return x / (1 + torch.exp(-x))


def _attention(
    x: Vectors,
    maps: list[tuple[Tensor, Tensor | None]],
    heads: int,
    bias: Any,
    scale: float,
    chosen: bool,
    source: Vectors | None = None,
) -> Vectors:
    query = x.linear(*maps[0])
    key, value = ((x if source is None else source).linear(*m) for m in maps[1:3])
    biases = bias if isinstance(bias, list) else [bias] * heads
    rows = zip(query.heads(heads), key.heads(heads), value.heads(heads), biases, strict=True)
    return joined([attend(q, k, v, b, scale, chosen) for q, k, v, b in rows]).linear(*maps[3])


def _weights(*modules: nn.Module) -> list[tuple[Tensor, Tensor | None]]:
    return [(m.weight, m.bias) for m in modules]  # type: ignore[misc]


def bert(model: Any, ids: Tensor, position: int, token: int, chosen: bool, mean: bool = False) -> Explained:
    """`BertForMaskedLM` in float64."""
    own = None
    if mean:  # the norm after the sum of embeddings has its denominator held, like every other
        e = model.bert.embeddings
        words = e.word_embeddings.weight
        summed = words[ids] + e.position_embeddings.weight[: len(ids)] + e.token_type_embeddings.weight[0]
        deviation = torch.sqrt(summed.var(-1, unbiased=False, keepdim=True) + e.LayerNorm.eps)
        beyond = words[ids] - words.mean(0)
        own = (beyond - beyond.mean(-1, keepdim=True)) / deviation * e.LayerNorm.weight
    x = Vectors.entering(model.bert.embeddings(ids[None])[0], len(ids), own=own)
    zero = torch.zeros(len(ids), len(ids), dtype=torch.float64)
    heads = model.config.num_attention_heads
    for layer in model.bert.encoder.layer:
        inner, outer = layer.attention.self, layer.attention.output
        maps = _weights(inner.query, inner.key, inner.value, outer.dense)
        scale = (model.config.hidden_size // heads) ** -0.5
        x = (x + _attention(x, maps, heads, zero, scale, chosen)).layer_norm(outer.LayerNorm)
        middle = x.linear(layer.intermediate.dense.weight, layer.intermediate.dense.bias).activated(gelu)
        x = (x + middle.linear(layer.output.dense.weight, layer.output.dense.bias)).layer_norm(layer.output.LayerNorm)
    head = model.cls.predictions
    x = (
        x.linear(head.transform.dense.weight, head.transform.dense.bias)
        .activated(gelu)
        .layer_norm(head.transform.LayerNorm)
    )
    return Explained.of(x, position, head.decoder.weight[token], float(head.decoder.bias[token]))


def gpt2(model: Any, ids: Tensor, position: int, token: int, chosen: bool, mean: bool = False) -> Explained:
    """`GPT2LMHeadModel` in float64; its linear maps have their weights the other way round."""
    body = model.transformer
    n, width, heads = len(ids), model.config.n_embd, model.config.n_head
    x = Vectors.entering(body.wte.weight[ids] + body.wpe.weight[:n], n, own=beyond_mean(body.wte.weight, ids, mean))
    for layer in body.h:
        y = x.layer_norm(layer.ln_1)
        rows, shifts = layer.attn.c_attn.weight.T.split(width), layer.attn.c_attn.bias.split(width)
        maps = [*zip(rows, shifts, strict=True), (layer.attn.c_proj.weight.T, layer.attn.c_proj.bias)]
        x = x + _attention(y, maps, heads, causal(n), (width // heads) ** -0.5, chosen)
        y = x.layer_norm(layer.ln_2).linear(layer.mlp.c_fc.weight.T, layer.mlp.c_fc.bias).activated(gelu_new)
        x = x + y.linear(layer.mlp.c_proj.weight.T, layer.mlp.c_proj.bias)
    return Explained.of(x.layer_norm(body.ln_f), position, model.lm_head.weight[token])


def llama(model: Any, ids: Tensor, position: int, token: int, chosen: bool, mean: bool = False) -> Explained:
    """`LlamaForCausalLM` in float64: grouped heads, rotary positions, a gated unit."""
    config = model.config
    n, heads, groups, width = len(ids), config.num_attention_heads, config.num_key_value_heads, config.head_dim
    table = model.model.embed_tokens.weight
    x = Vectors.entering(table[ids], n, own=beyond_mean(table, ids, mean))
    base = config.rope_parameters["rope_theta"]
    frequency = base ** (-torch.arange(0, width, 2, dtype=torch.float64) / width)
    angle = torch.arange(n, dtype=torch.float64)[:, None] * torch.cat([frequency, frequency])
    cos, sin = angle.cos(), angle.sin()

    def turned(v: Vectors) -> Vectors:
        def turn(t: Tensor) -> Tensor:
            half = width // 2
            return t * cos + torch.cat([-t[..., half:], t[..., :half]], -1) * sin

        return Vectors(turn(v.whole), turn(v.parts))

    for layer in model.model.layers:
        y = x.rms_norm(layer.input_layernorm.weight, config.rms_norm_eps)
        attention = layer.self_attn
        query = y.linear(attention.q_proj.weight, attention.q_proj.bias).heads(heads)
        key = y.linear(attention.k_proj.weight, attention.k_proj.bias).heads(groups)
        value = y.linear(attention.v_proj.weight, attention.v_proj.bias).heads(groups)
        found = []
        for head in range(heads):
            group = head // (heads // groups)
            found.append(attend(turned(query[head]), turned(key[group]), value[group], causal(n), width**-0.5, chosen))
        x = x + joined(found).linear(attention.o_proj.weight, attention.o_proj.bias)
        y = x.rms_norm(layer.post_attention_layernorm.weight, config.rms_norm_eps)
        gate, up = y.linear(layer.mlp.gate_proj.weight), y.linear(layer.mlp.up_proj.weight)
        x = x + gate.gate(silu, up).linear(layer.mlp.down_proj.weight)
    x = x.rms_norm(model.model.norm.weight, config.rms_norm_eps)
    return Explained.of(x, position, model.lm_head.weight[token])


def _t5_bias(attention: Any, queries: int, keys: int) -> list[Tensor]:
    return list(attention.compute_bias(queries, keys)[0])


def t5(
    model: Any, ids: Tensor, target: Tensor, position: int, token: int, chosen: bool, mean: bool = False
) -> Explained:
    """`T5ForConditionalGeneration` in float64: relative positions, no scale, no biases."""
    n, m = len(ids), len(target)
    heads = model.config.num_heads

    def norm(v: Vectors, module: Any) -> Vectors:
        return v.rms_norm(module.weight, module.variance_epsilon)

    def attention(v: Vectors, a: Any, bias: Any, source: Vectors | None = None) -> Vectors:
        maps = [(p.weight, None) for p in (a.q, a.k, a.v, a.o)]
        return _attention(v, maps, heads, bias, 1.0, chosen, source)

    def feed_forward(v: Vectors, block: Any) -> Vectors:
        inner = norm(v, block.layer_norm).linear(block.DenseReluDense.wi.weight).activated(torch.relu)
        return v + inner.linear(block.DenseReluDense.wo.weight)

    x = Vectors.entering(model.shared.weight[ids], n + m, own=beyond_mean(model.shared.weight, ids, mean))
    bias = _t5_bias(model.encoder.block[0].layer[0].SelfAttention, n, n)
    for block in model.encoder.block:
        first, second = block.layer
        x = x + attention(norm(x, first.layer_norm), first.SelfAttention, bias)
        x = feed_forward(x, second)
    memory = norm(x, model.encoder.final_layer_norm)
    y = Vectors.entering(model.shared.weight[target], n + m, n, beyond_mean(model.shared.weight, target, mean))
    bias = [b + causal(m) for b in _t5_bias(model.decoder.block[0].layer[0].SelfAttention, m, m)]
    zero = torch.zeros(m, n, dtype=torch.float64)
    for block in model.decoder.block:
        first, second, third = block.layer
        y = y + attention(norm(y, first.layer_norm), first.SelfAttention, bias)
        y = y + attention(norm(y, second.layer_norm), second.EncDecAttention, zero, memory)
        y = feed_forward(y, third)
    y = norm(y, model.decoder.final_layer_norm)
    direction = model.lm_head.weight[token]
    if model.config.tie_word_embeddings:
        direction = direction * model.config.d_model**-0.5
    return Explained.of(y, position, direction)


def marian(
    model: Any, ids: Tensor, target: Tensor, position: int, token: int, chosen: bool, mean: bool = False
) -> Explained:
    """`MarianMTModel` in float64: post-norm, biases everywhere."""
    body = model.model
    n, m = len(ids), len(target)
    scale = math.sqrt(model.config.d_model) if model.config.scale_embedding else 1.0

    def attention(v: Vectors, a: Any, bias: Tensor, source: Vectors | None = None) -> Vectors:
        return _attention(
            v, _weights(a.q_proj, a.k_proj, a.v_proj, a.out_proj), a.num_heads, bias, a.scaling, chosen, source
        )

    def feed_forward(v: Vectors, layer: Any, act: Activation) -> Vectors:
        inner = v.linear(layer.fc1.weight, layer.fc1.bias).activated(act)
        return (v + inner.linear(layer.fc2.weight, layer.fc2.bias)).layer_norm(layer.final_layer_norm)

    act = {"gelu": gelu, "swish": silu, "silu": silu, "relu": torch.relu}[model.config.activation_function]
    places = body.encoder.embed_positions.weight
    words = body.encoder.embed_tokens.weight * scale
    x = Vectors.entering(words[ids] + places[:n], n + m, own=beyond_mean(words, ids, mean))
    zero = torch.zeros(n, n, dtype=torch.float64)
    for layer in body.encoder.layers:
        x = (x + attention(x, layer.self_attn, zero)).layer_norm(layer.self_attn_layer_norm)
        x = feed_forward(x, layer, act)
    words = body.decoder.embed_tokens.weight * scale
    y = Vectors.entering(words[target] + places[:m], n + m, n, beyond_mean(words, target, mean))
    across = torch.zeros(m, n, dtype=torch.float64)
    for layer in body.decoder.layers:
        y = (y + attention(y, layer.self_attn, causal(m))).layer_norm(layer.self_attn_layer_norm)
        y = (y + attention(y, layer.encoder_attn, across, x)).layer_norm(layer.encoder_attn_layer_norm)
        y = feed_forward(y, layer, act)
    return Explained.of(y, position, model.lm_head.weight[token], float(model.final_logits_bias[0, token]))


REFERENCES: dict[str, Any] = {"bert": bert, "gpt2": gpt2, "llama": llama, "t5": t5, "marian": marian}
