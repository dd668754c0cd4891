"""What follows attention in each family's layers, by explicit attribute names, and the maps that look so far, with loops.

`tests.reference.measures` gives the parts of the attention block as vectors; here they go on through the feed-forward
block one pair after the other, by the equations: a slope `(g(z) - g(0)) / z` for an activation, `a_k b (g(a) - c) / a +
b_k c` with `c` the mean of `g` between zero and `a` for a gated unit, a denominator that is held for a normalization.
"""

from __future__ import annotations

import copy
import math
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from tests.reference.blocks import Array, Norm, _array, _layer_norm, _linear, _Watch
from tests.reference.measures import Parts, linear_part, scale_of

Affine = tuple[Array, Array]
Act = Callable[[Array], Array]


def gelu(z: Array) -> Array:
    return z * 0.5 * (1 + np.vectorize(math.erf)(z / math.sqrt(2)))


def gelu_tanh(z: Array) -> Array:
    return 0.5 * z * (1 + np.tanh(math.sqrt(2 / math.pi) * (z + 0.044715 * z**3)))


def silu(z: Array) -> Array:
    return z / (1 + np.exp(-z))


def relu(z: Array) -> Array:
    return np.maximum(z, 0)


@dataclass
class Layer:
    """The rest of one layer after its last attention; `parallel`: the feed-forward block reads the layer's input."""

    kind: str
    layer: int
    up: Affine
    down: Affine
    act: Act
    out: Array  # batch query width: what the model holds at the end of the layer
    gate: Affine | None = None
    own_norm: Norm | None = None
    branch_norm: Norm | None = None
    post_norm: Norm | None = None
    parallel: bool = False


def layers(family: str, model: nn.Module, inputs: dict[str, Tensor]) -> list[Layer]:
    """The rest of every layer of a model on a batch, in float64."""
    model = copy.deepcopy(model).eval()
    model.set_attn_implementation("eager")
    watch = _Watch()
    watch.on(model)
    with torch.no_grad():
        model(**inputs)
    return list(_READERS[family](model, watch))


def _rms(module: Any, offset: float = 0.0) -> Norm:
    eps = getattr(module, "variance_epsilon", getattr(module, "eps", None))
    return Norm(False, offset + _array(module.weight), np.zeros(module.weight.shape[0]), eps)


def _conv(module: Any) -> Affine:
    return _array(module.weight), _array(module.bias)


def _bert(model: Any, watch: _Watch) -> Iterator[Layer]:
    for i, layer in enumerate(model.encoder.layer):
        norm = layer.output.LayerNorm
        up, down = _linear(layer.intermediate.dense), _linear(layer.output.dense)
        yield Layer("encoder", i + 1, up, down, gelu, _array(watch.outputs[norm][0]), post_norm=_layer_norm(norm))


def _distilbert(model: Any, watch: _Watch) -> Iterator[Layer]:
    for i, layer in enumerate(model.transformer.layer):
        norm = layer.output_layer_norm
        up, down = _linear(layer.ffn.lin1), _linear(layer.ffn.lin2)
        yield Layer("encoder", i + 1, up, down, gelu, _array(watch.outputs[norm][0]), post_norm=_layer_norm(norm))


def _albert(model: Any, watch: _Watch) -> Iterator[Layer]:
    config, number = model.config, 0
    calls: dict[nn.Module, int] = defaultdict(int)
    for repeat in range(config.num_hidden_layers):
        group = model.encoder.albert_layer_groups[repeat * config.num_hidden_groups // config.num_hidden_layers]
        for layer in group.albert_layers:
            norm, number = layer.full_layer_layer_norm, number + 1
            out = _array(watch.outputs[norm][calls[layer]])
            calls[layer] += 1
            up, down = _linear(layer.ffn), _linear(layer.ffn_output)
            yield Layer("encoder", number, up, down, gelu_tanh, out, post_norm=_layer_norm(norm))


def _gpt2(model: Any, watch: _Watch) -> Iterator[Layer]:
    for i, layer in enumerate(model.h):
        up, down = _conv(layer.mlp.c_fc), _conv(layer.mlp.c_proj)
        out = _array(watch.outputs[layer][0])
        yield Layer("decoder", i + 1, up, down, gelu_tanh, out, own_norm=_layer_norm(layer.ln_2))


def _llama(model: Any, watch: _Watch) -> Iterator[Layer]:
    for i, layer in enumerate(model.layers):
        up, gate, down = (_linear(m) for m in (layer.mlp.up_proj, layer.mlp.gate_proj, layer.mlp.down_proj))
        norm, out = _rms(layer.post_attention_layernorm), _array(watch.outputs[layer][0])
        yield Layer("decoder", i + 1, up, down, silu, out, gate=gate, own_norm=norm)


def _gemma2(model: Any, watch: _Watch) -> Iterator[Layer]:
    for i, layer in enumerate(model.layers):
        up, gate, down = (_linear(m) for m in (layer.mlp.up_proj, layer.mlp.gate_proj, layer.mlp.down_proj))
        before, after = _rms(layer.pre_feedforward_layernorm, 1.0), _rms(layer.post_feedforward_layernorm, 1.0)
        out = _array(watch.outputs[layer][0])
        yield Layer("decoder", i + 1, up, down, gelu_tanh, out, gate=gate, own_norm=before, branch_norm=after)


def _t5(model: Any, watch: _Watch) -> Iterator[Layer]:
    for kind, stack in (("encoder", model.encoder), ("cross", model.decoder)):
        for i, block in enumerate(stack.block):
            feed = block.layer[-1]
            up, down = _linear(feed.DenseReluDense.wi), _linear(feed.DenseReluDense.wo)
            out = _array(watch.outputs[feed][0])
            yield Layer(kind, i + 1, up, down, relu, out, own_norm=_rms(feed.layer_norm))


def _marian(model: Any, watch: _Watch) -> Iterator[Layer]:
    for kind, stack in (("encoder", model.encoder), ("cross", model.decoder)):
        for i, layer in enumerate(stack.layers):
            norm, up, down = layer.final_layer_norm, _linear(layer.fc1), _linear(layer.fc2)
            yield Layer(kind, i + 1, up, down, gelu, _array(watch.outputs[norm][0]), post_norm=_layer_norm(norm))


_READERS = {
    "bert": _bert,
    "roberta": _bert,
    "distilbert": _distilbert,
    "albert": _albert,
    "albert_inner": _albert,
    "gpt2": _gpt2,
    "llama": _llama,
    "llama_bias": _llama,
    "gemma2": _gemma2,
    "t5": _t5,
    "marian": _marian,
}


# ---- one query after the other ---------------------------------------------------------------------------------------


@dataclass
class Further:
    """The vectors of one sequence after the attention block, as `Parts` has them up to there."""

    output: Array  # query width: what the attention block gave
    parts: dict[str, Array]  # query key width
    residual: dict[str, Array]
    bias: dict[str, Array]
    value_zeroing: Array  # query key


def mean_activation(act: Act, a: Array) -> Array:
    """The mean of the activation between zero and `a`, by a fine midpoint rule on Gauss points."""
    nodes, weights = np.polynomial.legendre.leggauss(120)
    total = np.zeros_like(a)
    for node, weight in zip(nodes, weights, strict=True):
        total += 0.5 * weight * act(0.5 * (node + 1) * a)
    return total


def feed_forward(layer: Layer, e: Array) -> Array:
    """The feed-forward block as the model computes it, of one vector."""
    up = e @ layer.up[0] + layer.up[1]
    hidden = layer.act(up) if layer.gate is None else layer.act(e @ layer.gate[0] + layer.gate[1]) * up
    return hidden @ layer.down[0] + layer.down[1]


def carried(layer: Layer, e: Array, part: Array, c: Array | None, *, bias: bool) -> Array:
    """What the feed-forward block makes of a part of its input `e`; with `bias`, of a part that has its biases too.

    `c` is the mean of a gate's activation between zero and what enters it.
    """
    b_up, b_down = (layer.up[1], layer.down[1]) if bias else (0.0, 0.0)
    z, zero = e @ layer.up[0] + layer.up[1], np.zeros(layer.up[0].shape[1])
    z_part = part @ layer.up[0] + b_up
    if layer.gate is None:
        hidden = z_part * (layer.act(z) - layer.act(zero)) / z + (layer.act(zero) if bias else 0.0)
    else:
        a, a_part = e @ layer.gate[0] + layer.gate[1], part @ layer.gate[0] + (layer.gate[1] if bias else 0.0)
        hidden = a_part * z * (layer.act(a) - c) / a + z_part * c
    return hidden @ layer.down[0] + b_down


def normalized(norm: Norm | None, y: Array) -> Array:
    return y if norm is None else linear_part(norm, y, scale_of(norm, y)) + norm.beta


def further(block: Any, layer: Layer | None, found: Parts, row: int, queries: Array) -> Further:
    """Everything of one sequence; without a layer, what the attention block's own output is needed for."""
    width, shape = found.f.shape[-1], found.parts["attnresln_n"].shape
    names = ("enc_n", "ff_n", "ffres_n", "ffresln_n")
    parts = {name: np.zeros(shape) for name in names}
    residual = {name: np.zeros((shape[0], width)) for name in names}
    bias = {name: np.zeros((shape[0], width)) for name in names}
    distances, outputs = np.zeros(shape[:2]), np.zeros((shape[0], width))
    for i, query in enumerate(queries):
        mine, beside, constant = (x["attnresln_n"][i] for x in (found.parts, found.residual, found.bias))
        outputs[i] = mine.sum(0) + constant + (beside if found.cross else 0)
        if layer is None:
            continue
        y = outputs[i]
        e, s = y, 1.0
        if layer.own_norm is not None:
            s = scale_of(layer.own_norm, y)
            e = linear_part(layer.own_norm, y, s) + layer.own_norm.beta

        def entering(part: Array, s: float = s) -> Array:
            return part if layer.own_norm is None else linear_part(layer.own_norm, part, s)

        c = None if layer.gate is None else mean_activation(layer.act, e @ layer.gate[0] + layer.gate[1])

        def through(part: Array, e: Array = e, c: Array | None = c) -> Array:
            return carried(layer, e, entering(part), c, bias=False)

        beta = 0 if layer.own_norm is None else layer.own_norm.beta
        fed = feed_forward(layer, e)
        fed_bias = carried(layer, e, entering(constant) + beta, c, bias=True)
        fed_parts = np.stack([through(part) for part in mine])
        fed_beside = through(beside)
        parts["ff_n"][i], bias["ff_n"][i], residual["ff_n"][i] = fed_parts, fed_bias, fed_beside
        branch, branch_bias, branch_beside = fed_parts, fed_bias, fed_beside
        if layer.branch_norm is not None:
            s_branch = scale_of(layer.branch_norm, fed)
            branch = np.stack([linear_part(layer.branch_norm, part, s_branch) for part in fed_parts])
            branch_bias = linear_part(layer.branch_norm, fed_bias, s_branch) + layer.branch_norm.beta
            branch_beside = linear_part(layer.branch_norm, fed_beside, s_branch)
        arrived = normalized(layer.branch_norm, fed)
        res, res_bias, res_beside = branch + mine, branch_bias + constant, branch_beside + beside
        parts["ffres_n"][i], bias["ffres_n"][i], residual["ffres_n"][i] = res, res_bias, res_beside
        total = y + arrived
        s_end = 1.0 if layer.post_norm is None else scale_of(layer.post_norm, total)

        def ending(part: Array, s_end: float = s_end) -> Array:
            return part if layer.post_norm is None else linear_part(layer.post_norm, part, s_end)

        last_beta = 0 if layer.post_norm is None else layer.post_norm.beta
        parts["ffresln_n"][i] = np.stack([ending(part) for part in res])
        bias["ffresln_n"][i], residual["ffresln_n"][i] = ending(res_bias) + last_beta, ending(res_beside)
        parts["enc_n"][i] = np.stack([ending(part) for part in mine])
        residual["enc_n"][i] = ending(beside)
        whole = normalized(layer.post_norm, total)
        for j in range(shape[1]):
            changed = _without(block, found, row, i, j, query)
            again = changed + normalized(layer.branch_norm, feed_forward(layer, normalized(layer.own_norm, changed)))
            again = normalized(layer.post_norm, again)
            distances[i, j] = 1 - again @ whole / (np.linalg.norm(again) * np.linalg.norm(whole))
    return Further(outputs, parts, residual, bias, distances)


def _without(block: Any, found: Parts, row: int, i: int, j: int, query: int) -> Array:
    """What the attention block would give with the value vector of key `j` set to zero in every head."""
    attention = block.output_bias.copy()
    for h in range(len(found.alpha)):
        for k in range(found.alpha.shape[2]):
            if k != j:
                attention = attention + found.by_head[h, i, k]
    y = normalized(block.branch_norm, attention) * block.branch_scale + block.residual[row, query]
    if block.others is not None:
        y = y + block.others[row, query]
    return normalized(block.post_norm, y)


def alti(found: Parts, y: Array) -> tuple[Array, Array]:
    """`max(0, ‖y‖₁ - ‖y - part‖₁)` by its row's sum, in cross-attention with the residual as one more column."""
    parts, beside = found.parts["attnresln_n"], found.residual["attnresln_n"]
    shares, residual = np.zeros(parts.shape[:2]), np.zeros(len(parts))
    for i in range(len(parts)):
        size = np.abs(y[i]).sum()
        for j in range(parts.shape[1]):
            shares[i, j] = max(0.0, size - np.abs(y[i] - parts[i, j]).sum())
        residual[i] = max(0.0, size - np.abs(y[i] - beside[i]).sum()) if found.cross else 0.0
        total = shares[i].sum() + residual[i]
        if total > 0:
            shares[i], residual[i] = shares[i] / total, residual[i] / total
    return shares, residual


def projection(found: Parts, y: Array) -> Array:
    """`part · y / ‖y‖²`."""
    parts = found.parts["attnresln_n"]
    return np.array([[parts[i, j] @ y[i] / (y[i] @ y[i]) for j in range(parts.shape[1])] for i in range(len(parts))])


def ratios(parts: Array, beside: Array, cross: bool) -> Array:
    """`‖context‖ / (‖context‖ + ‖self‖)` of vectors (query key width)."""
    out = np.zeros(len(parts))
    for i in range(len(parts)):
        own = beside[i] if cross else parts[i, i]
        context = sum((parts[i, j] for j in range(parts.shape[1]) if cross or j != i), np.zeros(parts.shape[-1]))
        out[i] = np.linalg.norm(context) / (np.linalg.norm(context) + np.linalg.norm(own))
    return out
