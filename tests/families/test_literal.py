"""Ten structurally different families against loops: the parts themselves, not only their sum.

Each family's weights, values and attention are read by name from the model's own modules and from the attention weights
that it returns, without anything of normlens; the maps are then written out vector by vector.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from normlens import Lens
from normlens.families.tiny import tiny_inputs, tiny_model


@dataclass
class Literal:
    """One attention block of one sequence, written out."""

    alpha: Tensor  # head query key
    values: Tensor  # head key width
    weight: Tensor  # head width model
    residual: Tensor  # query model
    gate: Tensor | None = None  # query head width: multiplies the heads' outputs
    scale: float = 1.0  # on the branch
    norm: nn.LayerNorm | None = None  # after the sum
    total: Tensor | None = None  # what enters that normalization
    streams: Tensor | None = None  # query stream: how much of the branch is added to each residual stream


def literal_maps(block: Literal) -> dict[str, Tensor]:
    """`attn_n` and `attnresln_n` by loops over queries, keys and heads."""
    heads, queries, keys = block.alpha.shape
    attn_n, last = torch.zeros(queries, keys), torch.zeros(queries, keys)
    for i in range(queries):
        for j in range(keys):
            part = torch.zeros(block.weight.shape[-1], dtype=torch.float64)
            for h in range(heads):
                value = block.values[h, j].double()
                if block.gate is not None:
                    value = value * block.gate[i, h].double()
                part += block.alpha[h, i, j].double() * (value @ block.weight[h].double())
            attn_n[i, j] = part.norm()
            if block.streams is not None:
                part = torch.cat([weight.double() * part for weight in block.streams[i]])
            part = part * block.scale + (block.residual[i].double() if i == j else 0.0)
            if block.norm is not None:
                assert block.total is not None
                y = block.total[i].double()
                s = ((y - y.mean()).square().mean() + block.norm.eps).sqrt()
                part = block.norm.weight.double() * (part - part.mean()) / s
            last[i, j] = part.norm()
    return {"attn_n": attn_n, "attnresln_n": last}


class Seen:
    """What went into and came out of each module, last call."""

    def __init__(self, model: nn.Module) -> None:
        self.inputs: dict[nn.Module, Tensor] = {}
        self.outputs: dict[nn.Module, Tensor] = {}
        for module in model.modules():
            module.register_forward_hook(self._note, with_kwargs=True)

    def _note(self, module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
        given = args[0] if args else next((v for v in kwargs.values() if isinstance(v, Tensor)), None)
        if isinstance(given, Tensor):
            self.inputs[module] = given
        self.outputs[module] = output[0] if isinstance(output, tuple) else output


def by_head(weight: Tensor, heads: int) -> Tensor:
    """Rows of `W_O` by head, from a Linear's weight."""
    return weight.detach().T.reshape(heads, -1, weight.shape[0])


def grouped(values: Tensor, heads: int) -> Tensor:
    """(key, kv_head * width) to (head, key, width): neighbouring heads share their values."""
    kv_heads = values.shape[-1] // 8
    split = values.view(values.shape[0], kv_heads, 8)
    return torch.stack([split[:, h * kv_heads // heads] for h in range(heads)])


def bloom(model: Any, seen: Seen, alpha: Tensor) -> Literal:
    layer = model.h[0]
    fused = seen.outputs[layer.self_attention.query_key_value][0].view(-1, 4, 3, 8)
    values = fused[:, :, 2].transpose(0, 1)
    return Literal(alpha, values, by_head(layer.self_attention.dense.weight, 4), seen.inputs[layer.input_layernorm][0])


def falcon(model: Any, seen: Seen, alpha: Tensor) -> Literal:
    layer = model.h[0]
    fused = seen.outputs[layer.self_attention.query_key_value][0].view(-1, 6, 8)  # four queries, one key, one value
    values = fused[:, 5].expand(4, -1, -1)
    return Literal(alpha, values, by_head(layer.self_attention.dense.weight, 4), seen.inputs[layer.input_layernorm][0])


def llama_like(model: Any, seen: Seen, alpha: Tensor) -> Literal:
    layer = model.layers[0]
    values = grouped(seen.outputs[layer.self_attn.v_proj][0], 4)
    weight = by_head(layer.self_attn.o_proj.weight, 4)
    return Literal(alpha, values, weight, seen.inputs[layer.input_layernorm][0])


def granite(model: Any, seen: Seen, alpha: Tensor) -> Literal:
    block = llama_like(model, seen, alpha)
    block.scale = model.config.residual_multiplier
    return block


def bitnet(model: Any, seen: Seen, alpha: Tensor) -> Literal:
    block = llama_like(model, seen, alpha)
    norm = model.layers[0].self_attn.attn_sub_norm
    heads = seen.inputs[norm][0].double()  # query, heads side by side
    s = (heads.square().mean(-1, keepdim=True) + norm.variance_epsilon).sqrt()
    block.gate = (norm.weight.double() / s).view(-1, 4, 8)
    return block


def gated(model: Any, seen: Seen, alpha: Tensor) -> Literal:
    layer = model.layers[1]  # the first one has no attention
    values = grouped(seen.outputs[layer.self_attn.v_proj][0], 4)
    both = seen.outputs[layer.self_attn.q_proj][0].view(-1, 4, 16)  # query and gate, head by head
    return Literal(
        alpha,
        values,
        by_head(layer.self_attn.o_proj.weight, 4),
        seen.inputs[layer.input_layernorm][0],
        gate=both[..., 8:].sigmoid(),
    )


def gpt_neox(model: Any, seen: Seen, alpha: Tensor) -> Literal:
    layer = model.layers[0]
    fused = seen.outputs[layer.attention.query_key_value][0].view(-1, 4, 3, 8)
    values = fused[:, :, 2].transpose(0, 1)
    return Literal(alpha, values, by_head(layer.attention.dense.weight, 4), seen.inputs[layer.input_layernorm][0])


def deepseek(model: Any, seen: Seen, alpha: Tensor) -> Literal:
    layer = model.layers[0]
    both = seen.outputs[layer.self_attn.kv_b_proj][0].view(-1, 4, 8 + 6)  # key part and value, head by head
    values = both[..., 8:].transpose(0, 1)
    return Literal(alpha, values, by_head(layer.self_attn.o_proj.weight, 4), seen.inputs[layer.input_layernorm][0])


def deberta(model: Any, seen: Seen, alpha: Tensor) -> Literal:
    attention = model.encoder.layer[0].attention
    values = seen.outputs[attention.self.value_proj][0].view(-1, 4, 8).transpose(0, 1)
    norm = attention.output.LayerNorm
    weight = by_head(attention.output.dense.weight, 4)
    return Literal(
        alpha, values, weight, seen.inputs[attention.self.value_proj][0], norm=norm, total=seen.inputs[norm][0]
    )


def xlnet(model: Any, seen: Seen, alpha: Tensor) -> Literal:
    attention = model.layer[0].rel_attn
    x = seen.inputs[attention][:, 0]  # positions first
    values = torch.einsum("ih,hnd->nid", x, attention.v)
    weight = torch.stack([attention.o[:, n].T for n in range(4)])
    norm = attention.layer_norm
    return Literal(alpha, values, weight.detach(), x, norm=norm, total=seen.inputs[norm][:, 0])


def hyper_connected(model: Any, seen: Seen, alpha: Tensor) -> Literal:
    layer = model.layers[0]
    both = seen.outputs[layer.self_attn.kv_b_proj][0, 0].view(9, 4, -1)  # key part and value, head by head
    width = layer.self_attn.v_head_dim
    gate = seen.outputs[layer.self_attn.gate_proj][0].view(9, 4, width).sigmoid()
    streams = seen.inputs[layer.attn_hc][0].flatten(1)
    weight = by_head(layer.self_attn.o_proj.weight, 4)
    return Literal(
        alpha,
        both[..., -width:].transpose(0, 1),
        weight,
        streams,
        gate,
        streams=seen.outputs[layer.attn_hc][0],
    )


def differential(model: Any, seen: Seen, alpha: Tensor) -> Literal:
    attention = model.layers[0].self_attn
    split = seen.outputs[attention.v_proj][0].view(9, -1, 8)
    half = split.shape[1] // 2  # a head looks at one value head of each half
    groups = [h * 2 * half // 4 % half for h in range(4)]
    values = torch.stack([torch.cat([split[:, g], split[:, half + g]], dim=-1) for g in groups])
    first, second = ((q * k).sum().exp() for q, k in _lambdas(attention))
    weight = by_head(attention.o_proj.weight, 2)
    summed = seen.inputs[attention.groupnorm][0].double()
    s = (summed.square().mean(-1, keepdim=True) + attention.groupnorm.eps).sqrt()
    gate = ((1 - attention.lambda_init) / s).repeat(1, 2, 16)
    minus = first - second + attention.lambda_init
    both = torch.cat([weight, -minus.detach() * weight])
    return Literal(alpha, values, both, seen.inputs[model.layers[0].input_layernorm][0], gate)


def _lambdas(attention: Any) -> list[tuple[Tensor, Tensor]]:
    return [(attention.lambda_q1, attention.lambda_k1), (attention.lambda_q2, attention.lambda_k2)]


READERS: dict[str, Callable[[Any, Seen, Tensor], Literal]] = {
    "bloom": bloom,  # own code, query, key and value fused head by head
    "falcon": falcon,  # own code, one value head for all, parallel feed-forward
    "gpt_oss": llama_like,  # attention sinks
    "granite": granite,  # a constant on the branch
    "bitnet": bitnet,  # a normalization in front of the output projection
    "qwen3_5_text": gated,  # a gate there, in a hybrid stack
    "gpt_neox": gpt_neox,  # parallel feed-forward, fused
    "deepseek_v3": deepseek,  # values of another width than keys, through a narrow map
    "deberta-v2": deberta,  # own code, post-norm
    "xlnet": xlnet,  # own code, parameters without modules, positions first
    "llama": llama_like,  # grouped values
    "diffllama": differential,  # one head minus another, values in two halves
    "hy_v4": hyper_connected,  # several residual streams
}


@pytest.mark.parametrize("family", READERS)
def test_maps_are_the_literal_ones(family: str) -> None:
    model = tiny_model(family)
    if family == "granite":
        for module in model.modules():
            if hasattr(module, "residual_multiplier"):
                module.residual_multiplier = 0.7
        model.config.residual_multiplier = 0.7
    inputs = tiny_inputs(model, padded=False)
    layer = 2 if family == "qwen3_5_text" else 1
    analysis = Lens(model).analyze_inputs(inputs)[0]
    body = model.base_model
    seen = Seen(body)
    with torch.no_grad():
        attentions = [a for a in body(**inputs, output_attentions=True).attentions if a is not None]
    expected = literal_maps(READERS[family](body, seen, attentions[0][0]))
    site = next(iter(analysis.sites.values()))
    for name, values in expected.items():
        found = torch.tensor(site[name].sel(layer=layer).values)
        torch.testing.assert_close(found, values.float(), rtol=1e-4, atol=1e-5)
