"""Slow reference for models that read images and sound: maps of attention blocks and terms of one logit, in float64.

No code of normlens and no gradients. Terms come from part vectors (source, position, width) that are carried forward
through the frozen affine map, layer by layer; biases are collected where they are added and carried on in the same way.
What is held fixed (attention weights, denominators, slopes) is read from the sum of all parts, which is the model's own
state. Models are in eval mode and float64, with eager attention.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from tests.reference.whole_model.families import gelu, gelu_tanh, silu
from tests.reference.whole_model.frozen import Activation, quadrature

#: Site, layer and block where a constant is added. Layer 0: `head` (final norms, projections), `baseline`.
Place = tuple[str, int, str]
#: `value`, the terms by source, `biases` (their total) and `places` (biases by place).
Terms = dict[str, Any]

EXACT = 1e-9
#: Llama normalizes in float32 even where the model is in float64.
SINGLE = 1e-5

ACTIVATIONS: dict[str, Activation] = {
    "gelu": gelu,
    "gelu_new": gelu_tanh,
    "gelu_pytorch_tanh": gelu_tanh,
    "quick_gelu": lambda z: z / (1 + torch.exp(-1.702 * z)),
    "relu": lambda z: z.clamp(min=0),
    "silu": silu,
}


def require(gap: float, tolerance: float, subject: str) -> None:
    """Raise an error where a check fails."""
    if not gap <= tolerance:
        raise ArithmeticError(f"{subject}: relative gap {gap:.2e} exceeds {tolerance:.0e}")


def distance(a: Tensor, b: Tensor) -> float:
    """Norm of the difference over the norm."""
    return float((a - b).norm() / b.norm())


# ---- one pass of the model -------------------------------------------------------------------------------------------


class Record:
    """First input and output of every module in one pass."""

    def __init__(self, model: nn.Module, inputs: dict[str, Any]) -> None:
        self.inputs: dict[nn.Module, Any] = {}
        self.outputs: dict[nn.Module, Any] = {}
        hooks = [module.register_forward_hook(self._keep, with_kwargs=True) for module in model.modules()]
        try:
            with torch.no_grad():
                self.output = model(**inputs)
        finally:
            for hook in hooks:
                hook.remove()

    def _keep(self, module: nn.Module, args: Any, kwargs: dict[str, Any], output: Any) -> None:
        first = kwargs.get("hidden_states")
        if args:
            first = args[0]
        self.inputs[module], self.outputs[module] = first, output

    def alpha(self, attention: nn.Module, row: int) -> Tensor:
        """Weights (head, query, key) that the softmax gave."""
        weights = self.outputs[attention][1]
        if weights is None:
            raise ValueError("attention weights are missing; load the model with attn_implementation='eager'")
        return weights[row].double()


# ---- structure -------------------------------------------------------------------------------------------------------


@dataclass
class Attention:
    """A pre-norm attention block; `scale` is a layer scale on the branch."""

    norm: Any
    module: Any
    output: Any
    scale: Tensor | float = 1.0

    @property
    def heads(self) -> int:
        """Number of query heads."""
        return self.module.q_proj.weight.shape[0] // self.module.head_dim

    @property
    def groups(self) -> int:
        """Number of query heads that share a value head."""
        return self.heads * self.module.head_dim // self.module.v_proj.weight.shape[0]


@dataclass
class FeedForward:
    """A pre-norm feed-forward block; with a gate the hidden vector is `act(gate) * up`."""

    norm: Any
    up: Any
    down: Any
    act: Activation
    gate: Any = None
    scale: Tensor | float = 1.0


@dataclass
class Layer:
    """Blocks in order; `module` is the layer itself."""

    module: nn.Module
    attention: Attention
    feed_forward: FeedForward
    cross: Attention | None = None


#: Names of the layers, and in a layer of the first norm, attention, its output, the last norm and the feed-forward block.
VIT = ("layers", "layernorm_before", "attention", "o_proj", "layernorm_after", "mlp")
DINOV2 = ("encoder.layer", "norm1", "attention", "o_proj", "norm2", "mlp")
CLIP = ("encoder.layers", "layer_norm1", "self_attn", "out_proj", "layer_norm2", "mlp")
WHISPER = ("layers", "self_attn_layer_norm", "self_attn", "out_proj", "final_layer_norm", "")
LLAMA = ("layers", "input_layernorm", "self_attn", "o_proj", "post_attention_layernorm", "mlp")
NAMES = {"ViTModel": VIT, "Dinov2Model": DINOV2, "CLIPVisionModel": CLIP, "CLIPTextModel": CLIP}
NAMES |= {"WhisperEncoder": WHISPER, "WhisperDecoder": WHISPER, "LlamaModel": LLAMA}


def layers_of(stack: Any) -> list[Layer]:
    """The layers of a tower, by explicit names."""
    path, first, attention, output, last, feed = NAMES[type(stack).__name__]
    config, found = stack.config, []
    name = config.activation_function if config.model_type == "whisper" else config.hidden_act
    for layer in stack.get_submodule(path):
        inner, mlp = layer.get_submodule(attention), layer.get_submodule(feed)
        block = Attention(layer.get_submodule(first), inner, inner.get_submodule(output))
        if hasattr(mlp, "gate_proj"):
            after = FeedForward(layer.get_submodule(last), mlp.up_proj, mlp.down_proj, ACTIVATIONS[name], mlp.gate_proj)
        else:
            after = FeedForward(layer.get_submodule(last), mlp.fc1, mlp.fc2, ACTIVATIONS[name])
        if type(stack).__name__ == "Dinov2Model":
            block.scale, after.scale = layer.layer_scale1.lambda1, layer.layer_scale2.lambda1
            if after.gate is not None:
                after.act = silu
        found.append(Layer(layer, block, after))
        if hasattr(layer, "encoder_attn"):
            outer = layer.encoder_attn
            found[-1].cross = Attention(layer.encoder_attn_layer_norm, outer, outer.out_proj)
    return found


# ---- maps of attention blocks ----------------------------------------------------------------------------------------


def softmax_weights(block: Attention, x: Tensor, source: Tensor) -> Tensor:
    """`softmax(q k / sqrt(d))` (head, query, key) without a mask."""
    module = block.module
    query = (x @ module.q_proj.weight.T + bias_of(module.q_proj)).unflatten(-1, (block.heads, -1))
    key = (source @ module.k_proj.weight.T + bias_of(module.k_proj)).unflatten(-1, (block.heads, -1))
    scores = torch.einsum("ihd,jhd->hij", query, key) / math.sqrt(query.shape[-1])
    return torch.softmax(scores, -1)


def bias_of(module: Any) -> Tensor | float:
    """The bias, 0 where the module has none."""
    if module.bias is None:
        return 0.0
    return module.bias


def ratio(context: Tensor, own: Tensor) -> Tensor:
    """`‖context‖ / (‖context‖ + ‖self‖)`."""
    return context.norm() / (context.norm() + own.norm())


def block_maps(block: Attention, record: Record, row: int, source: Tensor | None) -> dict[str, Tensor]:
    """Maps of one attention block; `source` are the encoder states in cross-attention."""
    normalized, residual = record.outputs[block.norm][row], record.inputs[block.norm][row]
    x = normalized if source is None else source
    alpha = record.alpha(block.module, row)
    require(distance(softmax_weights(block, normalized, x), alpha), 1e-6, "softmax of scores")
    heads, queries, keys = alpha.shape
    width = residual.shape[-1]
    value, output = block.module.v_proj, block.output
    size = output.weight.shape[1] // heads
    f = torch.zeros(heads, keys, width, dtype=torch.float64)
    for h in range(heads):
        own = slice(h * size, (h + 1) * size)
        for j in range(keys):
            f[h, j] = (x[j] @ value.weight[own].T + value.bias[own]) @ output.weight[:, own].T
    af_norm = torch.zeros(heads, queries, keys, dtype=torch.float64)
    parts = torch.zeros(queries, keys, width, dtype=torch.float64)
    for h in range(heads):
        for i in range(queries):
            for j in range(keys):
                vector = alpha[h, i, j] * f[h, j]
                af_norm[h, i, j] = vector.norm()
                parts[i, j] += vector
    rebuilt = parts.sum(1) + output.bias
    require(distance(rebuilt, record.outputs[output][row]), EXACT, "attention output")
    entering = block.scale * parts
    maps = {"alpha": alpha, "f_norm": f.norm(dim=-1), "af_norm": af_norm, "x_norm": x.norm(dim=-1)}
    maps["attn_n"] = parts.norm(dim=-1)
    ratios = torch.zeros(queries, dtype=torch.float64)
    if source is not None:
        for i in range(queries):
            ratios[i] = ratio(entering[i].sum(0), residual[i])
        return maps | {"attnres_n": entering.norm(dim=-1), "residual_norm": residual.norm(dim=-1), "ratio": ratios}
    attn_ratios = torch.zeros_like(ratios)
    for i in range(queries):
        entering[i, i] += residual[i]
        others = torch.arange(keys) != i
        ratios[i] = ratio(entering[i, others].sum(0), entering[i, i])
        attn_ratios[i] = ratio(parts[i, others].sum(0), parts[i, i])
    maps |= {"attnres_n": entering.norm(dim=-1), "ratio": ratios, "attn_n_ratio": attn_ratios}
    return maps | {"_sum": entering.sum(1) + block.scale * output.bias}


def stacked(maps: list[dict[str, Tensor]]) -> dict[str, Tensor]:
    """Layers on a leading axis."""
    return {name: torch.stack([layer[name] for layer in maps]) for name in maps[0] if name != "_sum"}


@torch.no_grad()
def vit_maps(model: Any, pixel_values: Tensor, image: int = 0) -> dict[str, Tensor]:
    """Maps of `ViTModel`, `Dinov2Model` or `CLIPVisionModel` on one image.

    Returns:
        `alpha`, `af_norm` (layer head query key), `f_norm` (layer head key), `x_norm` (layer key), `attn_n`,
        `attnres_n` (layer query key), `ratio` of `attnres_n` and `attn_n_ratio` (layer query).
    """
    record = Record(model, {"pixel_values": pixel_values})
    maps = []
    for layer in layers_of(model):
        found = block_maps(layer.attention, record, image, None)
        entered = record.inputs[layer.feed_forward.norm][image]
        require(distance(found["_sum"], entered), EXACT, "residual sum")
        maps.append(found)
    return stacked(maps)


@torch.no_grad()
def whisper_cross(model: Any, input_features: Tensor, decoder_input_ids: Tensor, row: int = 0) -> dict[str, Tensor]:
    """Maps of the cross-attention of `WhisperModel` or `WhisperForConditionalGeneration`.

    Returns:
        `alpha`, `af_norm` (layer head query key), `f_norm` (layer head key), `x_norm` (layer key), `attn_n`,
        `attnres_n` (layer query key; source parts only), `residual_norm` and `ratio` (layer query).
    """
    body = getattr(model, "model", model)
    record = Record(model, {"input_features": input_features, "decoder_input_ids": decoder_input_ids})
    source = record.outputs[body.encoder.layer_norm][row]
    layers = layers_of(body.decoder)
    return stacked([block_maps(layer.cross, record, row, source) for layer in layers if layer.cross is not None])


# ---- parts carried forward -------------------------------------------------------------------------------------------


@dataclass
class Carried:
    """Part vectors of every source position and of every constant, at every position."""

    parts: dict[str, Tensor] = field(default_factory=dict)  # source position width
    biases: dict[Place, Tensor] = field(default_factory=dict)  # position width

    def whole(self) -> Tensor:
        """The model's state: the sum of everything."""
        return sum([part.sum(0) for part in self.parts.values()]) + sum(self.biases.values())

    def through(self, linear: Callable[[Tensor], Tensor]) -> Carried:
        """A linear map of (..., position, width), applied to each part."""
        parts = {name: torch.stack([linear(vector) for vector in part]) for name, part in self.parts.items()}
        return Carried(parts, {place: linear(bias) for place, bias in self.biases.items()})

    def plus(self, other: Carried) -> Carried:
        """The sum, part by part."""
        parts, biases = dict(self.parts), dict(self.biases)
        for name, part in other.parts.items():
            parts[name] = parts.get(name, 0) + part
        for place, bias in other.biases.items():
            biases[place] = biases.get(place, 0) + bias
        return Carried(parts, biases)

    def add(self, constant: Tensor | None, place: Place) -> Carried:
        """A constant, added at every position."""
        if constant is None:
            return self
        return self.plus(Carried({}, {place: torch.zeros_like(self.whole()) + constant}))


def entrance(name: str, x: Tensor, measured: Tensor | None = None) -> Carried:
    """Vectors (position, width) that enter a first layer, each a source of its own.

    `measured` is what is explained of each vector (baseline `mean`: `w_k - mean of the table`), the rest is a constant.
    """
    own = x if measured is None else measured
    parts = torch.zeros(len(x), *x.shape, dtype=torch.float64)
    for k in range(len(x)):
        parts[k, k] = own[k]
    carried = Carried({name: parts})
    if measured is not None:
        carried = carried.plus(Carried({}, {(name, 0, "baseline"): x - measured}))
    return carried


def from_mean(baseline: str, table: nn.Embedding, ids: Tensor) -> Tensor | None:
    """What is explained of looked-up vectors: `w_k - mean of the table`, or everything (None) from baseline zero."""
    if baseline == "zero":
        return None
    return table.weight[ids] - table.weight.mean(0)


def linear(x: Carried, module: Any, place: Place) -> Carried:
    """`x W^T + b`."""
    return x.through(lambda v: v @ module.weight.T).add(module.bias, place)


def normalize(x: Carried, norm: Any, place: Place) -> Carried:
    """Layer norm, or RMS norm, with its denominator held fixed."""
    whole = x.whole()
    if isinstance(norm, nn.LayerNorm):
        size = (whole.var(-1, unbiased=False, keepdim=True) + norm.eps).sqrt()
        return x.through(lambda v: (v - v.mean(-1, keepdim=True)) / size * norm.weight).add(norm.bias, place)
    size = (whole.square().mean(-1, keepdim=True) + norm.variance_epsilon).sqrt()
    return x.through(lambda v: v / size * norm.weight)


def derivative_at_zero(act: Activation) -> Tensor:
    """Central difference."""
    step = torch.tensor(1e-4, dtype=torch.float64)
    return (act(step) - act(-step)) / (2 * step)


def activate(x: Carried, act: Activation) -> Carried:
    """Slope `g(z)/z`, at zero `g'(0)`; `g(0)` is 0."""
    z = x.whole()
    slope = torch.where(z == 0, derivative_at_zero(act), act(z) / z)
    return x.through(lambda v: v * slope)


def gated(gate: Carried, up: Carried, act: Activation) -> Carried:
    """`act(a) b`: a part gets `a_k b (act(a) - c)/a + b_k c`, `c` the mean of `act` between 0 and `a`."""
    a, b = gate.whole(), up.whole()
    c = torch.zeros_like(a)
    for t, weight in quadrature():
        c += weight * act(t * a)
    slope = torch.where(a == 0, derivative_at_zero(act) / 2, (act(a) - c) / a)
    return gate.through(lambda v: v * b * slope).plus(up.through(lambda v: v * c))


def attend(block: Attention, keys: Carried, alpha: Tensor, place: Place) -> Carried:
    """Attention output: values of `keys` mixed with fixed weights (head, query, key)."""

    def mix(v: Tensor) -> Tensor:
        by_head = v.unflatten(-1, (block.heads // block.groups, -1)).repeat_interleave(block.groups, dim=-2)
        return torch.einsum("hij,jhd->ihd", alpha, by_head).flatten(-2)

    values = linear(keys, block.module.v_proj, place)
    return linear(values.through(mix), block.output, place).through(lambda v: v * block.scale)


def layer_output(layer: Layer, x: Carried, record: Record, row: int, place: tuple[str, int], memory: Any) -> Carried:
    """One pre-norm layer; `memory` is what the encoder puts out, None without cross-attention."""
    site, number = place
    entered = record.inputs[layer.module][row]
    require(distance(x.whole(), entered), SINGLE, f"entrance of {site} layer {number}")
    block, here = layer.attention, (site, number, "attention")
    x = x.plus(attend(block, normalize(x, block.norm, here), record.alpha(block.module, row), here))
    if layer.cross is not None:
        here = (site, number, "cross_attention")
        x = x.plus(attend(layer.cross, memory, record.alpha(layer.cross.module, row), here))
    feed, here = layer.feed_forward, (site, number, "feed_forward")
    inner = normalize(x, feed.norm, here)
    up = linear(inner, feed.up, here)
    if feed.gate is None:
        hidden = activate(up, feed.act)
    else:
        hidden = gated(linear(inner, feed.gate, here), up, feed.act)
    return x.plus(linear(hidden, feed.down, here).through(lambda v: v * feed.scale))


def states(
    layers: Iterable[Layer], x: Carried, record: Record, site: str, row: int = 0, memory: Carried | None = None
) -> list[Carried]:
    """The state that enters the first layer and those after each layer."""
    found = [x]
    for number, layer in enumerate(layers, 1):
        found.append(layer_output(layer, found[-1], record, row, (site, number), memory))
    return found


def read(x: Carried, number: Callable[[Tensor], Tensor], constant: Tensor | None, place: Place) -> Terms:
    """Terms of one number, a linear function of vectors (position, width) plus a constant."""
    places = {where: float(number(bias)) for where, bias in x.biases.items()}
    if constant is not None:
        places[place] = places.get(place, 0.0) + float(constant)
    terms: Terms = {name: torch.stack([number(vector) for vector in part]) for name, part in x.parts.items()}
    return terms | {"places": places, "biases": sum(places.values())}


def complete(terms: Terms, value: Tensor, tolerance: float = EXACT) -> Terms:
    """Terms with the model's own number, to which they must add up."""
    found = [x for x in terms.values() if isinstance(x, Tensor)]
    total = sum([float(x.sum()) for x in found]) + terms["biases"]
    size = sum([float(x.abs().sum()) for x in found]) + sum([abs(x) for x in terms["places"].values()])
    require(abs(total - float(value)) / size, tolerance, "sum of terms")
    return {"value": float(value), "gap": abs(total - float(value)) / size} | terms


# ---- models ----------------------------------------------------------------------------------------------------------


@torch.no_grad()
def vit_tokens(model: Any, pixel_values: Tensor, label: int, image: int = 0) -> Terms:
    """Terms of one logit of `ViTForImageClassification` or `Dinov2ForImageClassification`.

    Returns:
        `value`, `tokens` (position; CLS first), `biases`, `places`, `gap`.
    """
    record = Record(model, {"pixel_values": pixel_values})
    weight, head = model.classifier.weight[label], ("encoder", 0, "head")
    body = model.base_model
    layers = layers_of(body)

    def number(v: Tensor) -> Tensor:
        if hasattr(model, "vit"):
            return v[0] @ weight
        return torch.cat([v[0], v[1:].mean(0)]) @ weight

    x = entrance("tokens", record.inputs[layers[0].module][image])
    x = states(layers, x, record, "encoder", image)[-1]
    terms = read(normalize(x, body.layernorm, head), number, model.classifier.bias[label], head)
    return complete(terms, record.output.logits[image, label])


@torch.no_grad()
def clip_tokens(
    model: Any,
    input_ids: Tensor,
    attention_mask: Tensor | None,
    pixel_values: Tensor,
    image: int = 0,
    text: int = 0,
    baseline: str = "zero",
) -> Terms:
    """Terms of `logits_per_image[image, text]` of `CLIPModel`; `baseline` is that of words, patches have zero.

    Returns:
        `value`, `vision` (position; CLS first), `text` (position), `biases`, `places`, `gap`.
    """
    inputs = {"input_ids": input_ids, "attention_mask": attention_mask, "pixel_values": pixel_values}
    record = Record(model, inputs)
    vision, words = model.vision_model, model.text_model

    layers = layers_of(vision)
    x = entrance("vision", record.inputs[layers[0].module][image])
    x = states(layers, x, record, "vision", image)[-1].through(lambda v: v[:1])
    x = normalize(x, vision.post_layernorm, ("vision", 0, "head"))
    u = linear(x, model.visual_projection, ("vision", 0, "head"))

    layers, ids = layers_of(words), input_ids[text]
    is_end = ids == words.eos_token_id
    if words.eos_token_id == 2:
        is_end = ids == ids.max()
    end = int(is_end.int().argmax())
    table = words.embeddings.token_embedding
    x = entrance("text", record.inputs[layers[0].module][text], from_mean(baseline, table, ids))
    x = normalize(states(layers, x, record, "text", text)[-1], words.final_layer_norm, ("text", 0, "head"))
    v = linear(x.through(lambda v: v[end : end + 1]), model.text_projection, ("text", 0, "head"))

    whole_u, whole_v = u.whole()[0], v.whole()[0]
    scale = model.logit_scale.exp() / (whole_u.norm() * whole_v.norm()) / 2
    of_image = read(u, lambda part: scale * (part[0] @ whole_v), None, ("vision", 0, "head"))
    of_text = read(v, lambda part: scale * (whole_u @ part[0]), None, ("text", 0, "head"))
    places = of_image["places"] | of_text["places"]
    terms = of_image | of_text | {"places": places, "biases": sum(places.values())}
    return complete(terms, record.output.logits_per_image[image, text])


@torch.no_grad()
def whisper_tokens(
    model: Any,
    input_features: Tensor,
    decoder_input_ids: Tensor,
    position: int,
    token: int,
    row: int = 0,
    baseline: str = "zero",
) -> Terms:
    """Terms of one logit of `WhisperForConditionalGeneration`; `baseline` is that of decoder tokens.

    Returns:
        `value`, `encoder` (audio position), `decoder` (position), `biases`, `places`, `gap`.
    """
    body = model.model
    record = Record(model, {"input_features": input_features, "decoder_input_ids": decoder_input_ids})
    layers = layers_of(body.encoder)
    x = entrance("encoder", record.inputs[layers[0].module][row])
    memory = states(layers, x, record, "encoder", row)[-1]
    memory = normalize(memory, body.encoder.layer_norm, ("encoder", 0, "head"))
    layers = layers_of(body.decoder)
    measured = from_mean(baseline, body.decoder.embed_tokens, decoder_input_ids[row])
    x = entrance("decoder", record.inputs[layers[0].module][row], measured)
    x = states(layers, x, record, "decoder", row, memory)[-1]
    head = ("decoder", 0, "head")
    x = normalize(x, body.decoder.layer_norm, head)
    terms = read(x, lambda v: v[position] @ model.proj_out.weight[token], None, head)
    return complete(terms, record.output.logits[row, position, token])


def image_features(model: Any, record: Record, image: int) -> Carried:
    """Projected features of one image, carried from the entrance of the vision tower's first layer."""
    tower, projector, config = model.model.vision_tower, model.model.multi_modal_projector, model.config
    layers = layers_of(tower)
    entered = record.inputs[layers[0].module][image]
    after = states(layers, entrance(f"image {image}", entered), record, "vision", image)
    chosen = config.vision_feature_layer
    if isinstance(chosen, int):
        chosen = [chosen]
    features, width = Carried(), entered.shape[-1]
    for slot, index in enumerate(chosen):
        before, behind = slot * width, (len(chosen) - slot - 1) * width
        features = features.plus(after[index].through(lambda v, pad=(before, behind): nn.functional.pad(v, pad)))
    if config.vision_feature_select_strategy == "default":
        features = features.through(lambda v: v[1:])
    place = ("projector", 0, "head")
    hidden = activate(linear(features, projector.linear_1, place), ACTIVATIONS[config.projector_hidden_act])
    return linear(hidden, projector.linear_2, place)


@torch.no_grad()
def llava_tokens(
    model: Any,
    input_ids: Tensor,
    pixel_values: Tensor,
    position: int,
    token: int,
    through: str | None = None,
    baseline: str = "zero",
    tolerance: float = SINGLE,
) -> Terms:
    """Terms of one next-token logit of `LlavaForConditionalGeneration` (CLIP and Llama), a batch of one row.

    Args:
        through: None explains the entrance of the language model; "vision" carries image positions on to the patches.
        baseline: That of words; images have zero.
        tolerance: Larger than elsewhere, since Llama's norms compute in float32.

    Returns:
        `value`, `tokens` (position; with "vision" 0 at image positions), `biases`, `places`, `gap`; with "vision" also
        `patches` (image, position of the vision tower; CLS first).
    """
    record = Record(model, {"input_ids": input_ids, "pixel_values": pixel_values})
    body, ids = model.model.language_model, input_ids[0]
    layers, is_image = layers_of(body), ids == model.config.image_token_id
    entered = record.inputs[layers[0].module][0]
    measured = from_mean(baseline, body.embed_tokens, ids)
    if measured is not None:
        measured[is_image] = entered[is_image]
    x = entrance("tokens", entered, measured)
    if through == "vision":
        x.parts["tokens"][is_image] = 0
        slots, count = is_image.nonzero()[:, 0], len(pixel_values)
        for image, own in enumerate(slots.chunk(count)):
            features = image_features(model, record, image)
            empty = torch.zeros_like(entered)
            x = x.plus(features.through(lambda v, empty=empty, own=own: empty.index_copy(0, own, v)))
    x = normalize(states(layers, x, record, "decoder")[-1], body.norm, ("decoder", 0, "head"))
    terms = read(x, lambda v: v[position] @ model.lm_head.weight[token], None, ("decoder", 0, "head"))
    if through == "vision":
        terms["patches"] = torch.stack([terms.pop(f"image {image}") for image in range(len(pixel_values))])
    return complete(terms, record.output.logits[0, position, token], tolerance)
