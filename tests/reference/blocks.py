"""What each family's attention blocks are made of, by explicit attribute names: nothing here knows normlens.

A model is run once with its eager attention and ordinary hooks; weights are read from the modules. Each block is handed
to `tests.reference.measures`, which takes it apart with loops.
"""

from __future__ import annotations

import copy
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

Array = np.ndarray


@dataclass
class Norm:
    """`gamma * (y - mean) / s + beta`; without the mean for an RMS normalization."""

    centred: bool
    gamma: Array
    beta: Array
    eps: float


@dataclass
class Attention:
    """One block of one layer, in float64; the first axis of the activations is the batch."""

    kind: str
    layer: int
    x: Array  # batch key width: what the value map is given
    alpha: Array  # batch head query key
    value_weight: Array  # head width value
    value_bias: Array  # head value
    output_weight: Array  # head value width
    output_bias: Array  # width
    residual: Array  # batch query width
    after: Array  # batch query width: what the model holds after the block
    branch_norm: Norm | None = None
    post_norm: Norm | None = None
    branch_scale: Array | float = 1.0  # a constant after the branch's norm: one number, or one per coordinate
    others: Array | None = None  # batch query width: branches beside attention, which belong to no part
    factor: Array | None = None  # batch head query: what a norm before the projection multiplies a query's heads by
    gate: Array | None = None  # batch query head value: what a gate multiplies the heads' outputs by


@dataclass
class _Watch:
    """The tensors that go into and come out of modules, call by call."""

    inputs: dict[nn.Module, list[Tensor]] = field(default_factory=lambda: defaultdict(list))
    outputs: dict[nn.Module, list[Tensor]] = field(default_factory=lambda: defaultdict(list))

    def on(self, model: nn.Module) -> None:
        for module in model.modules():
            module.register_forward_hook(self._note, with_kwargs=True)

    def _note(self, module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
        given = args[0] if args else kwargs.get("hidden_states")
        if isinstance(given, Tensor):
            self.inputs[module].append(given)
        self.outputs[module].append(output[0] if isinstance(output, tuple) else output)


def _array(tensor: Tensor) -> Array:
    return tensor.detach().double().numpy()


def _layer_norm(module: nn.LayerNorm) -> Norm:
    return Norm(True, _array(module.weight), _array(module.bias), module.eps)


def _linear(module: nn.Linear) -> tuple[Array, Array]:
    """`W` and `b` of `x W + b`."""
    weight = _array(module.weight).T
    return weight, np.zeros(weight.shape[1]) if module.bias is None else _array(module.bias)


def _columns_by_head(weight: Array, bias: Array, heads: int) -> tuple[Array, Array]:
    width = weight.shape[1] // heads
    split = [slice(h * width, (h + 1) * width) for h in range(heads)]
    return np.stack([weight[:, s] for s in split]), np.stack([bias[s] for s in split])


def _rows_by_head(weight: Array, heads: int) -> Array:
    width = weight.shape[0] // heads
    return np.stack([weight[h * width : (h + 1) * width] for h in range(heads)])


def _maps(value: nn.Linear, output: nn.Linear, heads: int, kv_heads: int | None = None) -> dict[str, Array]:
    """The four weights of a block whose value and output projections are Linear modules."""
    kv_heads = kv_heads or heads
    value_weight, value_bias = _columns_by_head(*_linear(value), kv_heads)
    shared = [h * kv_heads // heads for h in range(heads)]  # query head h reads the values of this group
    output_weight, output_bias = _linear(output)
    return {
        "value_weight": value_weight[shared],
        "value_bias": value_bias[shared],
        "output_weight": _rows_by_head(output_weight, heads),
        "output_bias": output_bias,
    }


def blocks(family: str, model: nn.Module, inputs: dict[str, Tensor]) -> list[Attention]:
    """All blocks of a model on a batch, in float64."""
    model = copy.deepcopy(model).eval()
    model.set_attn_implementation("eager")
    watch = _Watch()
    watch.on(model)
    with torch.no_grad():
        output = model(**inputs, output_attentions=True)
    return list(_READERS[family](model, watch, output))


def _bert(model: Any, watch: _Watch, output: Any) -> Iterator[Attention]:
    for i, layer in enumerate(model.encoder.layer):
        attention = layer.attention
        x = _array(watch.inputs[attention.self.value][0])
        yield Attention(
            "encoder",
            i + 1,
            x=x,
            alpha=_array(output.attentions[i]),
            **_maps(attention.self.value, attention.output.dense, model.config.num_attention_heads),
            residual=x,
            after=_array(watch.outputs[attention.output.LayerNorm][0]),
            post_norm=_layer_norm(attention.output.LayerNorm),
        )


def _distilbert(model: Any, watch: _Watch, output: Any) -> Iterator[Attention]:
    for i, layer in enumerate(model.transformer.layer):
        x = _array(watch.inputs[layer.attention.v_lin][0])
        yield Attention(
            "encoder",
            i + 1,
            x=x,
            alpha=_array(output.attentions[i]),
            **_maps(layer.attention.v_lin, layer.attention.out_lin, model.config.n_heads),
            residual=x,
            after=_array(watch.outputs[layer.sa_layer_norm][0]),
            post_norm=_layer_norm(layer.sa_layer_norm),
        )


def _albert(model: Any, watch: _Watch, output: Any) -> Iterator[Attention]:
    config, number = model.config, 0
    calls: dict[nn.Module, int] = defaultdict(int)
    for repeat in range(config.num_hidden_layers):
        group = model.encoder.albert_layer_groups[repeat * config.num_hidden_groups // config.num_hidden_layers]
        for layer in group.albert_layers:
            attention, call = layer.attention, calls[layer]
            calls[layer] += 1
            x = _array(watch.inputs[attention.value][call])
            yield Attention(
                "encoder",
                number + 1,
                x=x,
                alpha=_array(output.attentions[number]),
                **_maps(attention.value, attention.dense, config.num_attention_heads),
                residual=x,
                after=_array(watch.outputs[attention.LayerNorm][call]),
                post_norm=_layer_norm(attention.LayerNorm),
            )
            number += 1


def _gpt2(model: Any, watch: _Watch, output: Any) -> Iterator[Attention]:
    heads, width = model.config.n_head, model.config.n_embd
    for i, layer in enumerate(model.h):
        fused, fused_bias = _array(layer.attn.c_attn.weight), _array(layer.attn.c_attn.bias)  # query, key, value
        value_weight, value_bias = _columns_by_head(fused[:, 2 * width :], fused_bias[2 * width :], heads)
        yield Attention(
            "decoder",
            i + 1,
            x=_array(watch.outputs[layer.ln_1][0]),
            alpha=_array(output.attentions[i]),
            value_weight=value_weight,
            value_bias=value_bias,
            output_weight=_rows_by_head(_array(layer.attn.c_proj.weight), heads),
            output_bias=_array(layer.attn.c_proj.bias),
            residual=_array(watch.inputs[layer.ln_1][0]),
            after=_array(watch.inputs[layer.ln_2][0]),
        )


def _llama(model: Any, watch: _Watch, output: Any) -> Iterator[Attention]:
    config = model.config
    for i, layer in enumerate(model.layers):
        attention = layer.self_attn
        yield Attention(
            "decoder",
            i + 1,
            x=_array(watch.outputs[layer.input_layernorm][0]),
            alpha=_array(output.attentions[i]),
            **_maps(attention.v_proj, attention.o_proj, config.num_attention_heads, config.num_key_value_heads),
            residual=_array(watch.inputs[layer.input_layernorm][0]),
            after=_array(watch.inputs[layer.post_attention_layernorm][0]),
        )


def _gemma2(model: Any, watch: _Watch, output: Any) -> Iterator[Attention]:
    config = model.config
    for i, layer in enumerate(model.layers):
        attention, norm = layer.self_attn, layer.post_attention_layernorm
        yield Attention(
            "decoder",
            i + 1,
            x=_array(watch.outputs[layer.input_layernorm][0]),
            alpha=_array(output.attentions[i]),
            **_maps(attention.v_proj, attention.o_proj, config.num_attention_heads, config.num_key_value_heads),
            residual=_array(watch.inputs[layer.input_layernorm][0]),
            after=_array(watch.inputs[layer.pre_feedforward_layernorm][0]),
            branch_norm=Norm(False, 1 + _array(norm.weight), np.zeros(norm.weight.shape[0]), norm.eps),
        )


def _t5(model: Any, watch: _Watch, output: Any) -> Iterator[Attention]:
    heads = model.config.num_heads

    def attention(kind: str, number: int, module: Any, norm: Any, after_norm: Any, alpha: Tensor) -> Attention:
        return Attention(
            kind,
            number,
            # T5 may call the value map on the encoder's states: they are what f acts on in cross-attention.
            x=_array(watch.inputs[module.v][0]),
            alpha=_array(alpha),
            **_maps(module.v, module.o, heads),
            residual=_array(watch.inputs[norm][0]),
            after=_array(watch.inputs[after_norm][0]),
        )

    for i, block in enumerate(model.encoder.block):
        own, feed = block.layer
        yield attention(
            "encoder", i + 1, own.SelfAttention, own.layer_norm, feed.layer_norm, output.encoder_attentions[i]
        )
    for i, block in enumerate(model.decoder.block):
        own, cross, feed = block.layer
        yield attention(
            "decoder", i + 1, own.SelfAttention, own.layer_norm, cross.layer_norm, output.decoder_attentions[i]
        )
        yield attention(
            "cross", i + 1, cross.EncDecAttention, cross.layer_norm, feed.layer_norm, output.cross_attentions[i]
        )


def _marian(model: Any, watch: _Watch, output: Any) -> Iterator[Attention]:
    config = model.config

    def attention(kind: str, number: int, module: Any, norm: Any, residual: Tensor, alpha: Tensor) -> Attention:
        heads = config.encoder_attention_heads if kind == "encoder" else config.decoder_attention_heads
        return Attention(
            kind,
            number,
            x=_array(watch.inputs[module.v_proj][0]),
            alpha=_array(alpha),
            **_maps(module.v_proj, module.out_proj, heads),
            residual=_array(residual),
            after=_array(watch.outputs[norm][0]),
            post_norm=_layer_norm(norm),
        )

    for i, layer in enumerate(model.encoder.layers):
        own = layer.self_attn
        yield attention(
            "encoder", i + 1, own, layer.self_attn_layer_norm, watch.inputs[own.v_proj][0], output.encoder_attentions[i]
        )
    for i, layer in enumerate(model.decoder.layers):
        own, cross = layer.self_attn, layer.encoder_attn
        yield attention(
            "decoder", i + 1, own, layer.self_attn_layer_norm, watch.inputs[own.v_proj][0], output.decoder_attentions[i]
        )
        between = watch.outputs[layer.self_attn_layer_norm][0]
        yield attention("cross", i + 1, cross, layer.encoder_attn_layer_norm, between, output.cross_attentions[i])


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
