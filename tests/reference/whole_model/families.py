"""Forward passes of model families, written by hand with the operations of a frozen run. Weights are read by their names."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from tests.reference.whole_model.frozen import BASELINE, Activation, FrozenRun, Place, Terms

Inputs = dict[str, Tensor]
#: Weight (out, in) and bias of a linear map.
Map = tuple[Tensor, Tensor | None]


# ---- shared pieces ---------------------------------------------------------------------------------------------------


def gelu(x: Tensor) -> Tensor:
    return x * 0.5 * (1 + torch.erf(x / math.sqrt(2)))


def gelu_tanh(x: Tensor) -> Tensor:
    return 0.5 * x * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


def silu(x: Tensor) -> Tensor:
    return x / (1 + torch.exp(-x))


def causal(length: int) -> Tensor:
    return torch.ones(length, length, dtype=torch.bool).tril()


def everywhere(queries: int, keys: int) -> Tensor:
    return torch.ones(queries, keys, dtype=torch.bool)


def split(x: Tensor, heads: int) -> Tensor:
    """(row, position, head width) to (row, head, position, width)."""
    return x.unflatten(-1, (heads, -1)).transpose(1, 2)


def merge(x: Tensor) -> Tensor:
    """The inverse of `split`."""
    return x.transpose(1, 2).flatten(2)


def scores_of(query: Tensor, key: Tensor) -> Tensor:
    return query @ key.transpose(-1, -2)


def map_of(module: Any) -> Map:
    """Weight and bias of a linear module, with a DoRA adapter where it has one."""
    if not hasattr(module, "lora_magnitude_vector"):
        return module.weight, module.bias
    low_rank = module.lora_B["default"].weight @ module.lora_A["default"].weight
    weight = module.base_layer.weight + module.scaling["default"] * low_rank
    magnitude = module.lora_magnitude_vector["default"].weight
    weight = weight * (magnitude / weight.norm(dim=1))[:, None]
    return weight, module.base_layer.bias


def number_of(run: FrozenRun, x: Tensor, position: int, output: Map, token: int, place: Place) -> Tensor:
    """One output at one position, by row."""
    weight, bias = output
    number = x[:, position] @ weight[token]
    if bias is None:
        return number
    return run.add(number, bias[token], place)


@dataclass
class Attention:
    """One attention with maps of its own for queries, keys, values and output."""

    maps: list[Map]
    heads: int
    allowed: Tensor
    scale: float
    place: Place
    edges: str
    bias: Tensor | None = None

    def out(self, run: FrozenRun, x: Tensor, source: Tensor) -> Tensor:
        """The output, before it enters the residual sum."""
        query = split(run.linear(x, *self.maps[0], self.place), self.heads)
        key = split(run.linear(source, *self.maps[1], self.place), self.heads)
        value = split(run.linear(source, *self.maps[2], self.place), self.heads)
        scores = run.product(query, key, scores_of) * self.scale
        if self.bias is not None:
            scores = run.add(scores, self.bias, self.place)
        mixed = run.attend(scores, value, self.allowed, self.place, self.edges)
        return run.linear(merge(mixed), *self.maps[3], self.place)


def two_maps(run: FrozenRun, x: Tensor, first: Map, act: Activation, second: Map, place: Place) -> Tensor:
    """A feed-forward block without a gate."""
    return run.linear(run.activate(run.linear(x, *first, place), act), *second, place)


# ---- families --------------------------------------------------------------------------------------------------------


def bert(run: FrozenRun, model: Any, inputs: Inputs, position: int, token: int) -> Tensor:
    """`BertForMaskedLM`: post-norm, and a head with a norm of its own."""
    site, ids = "encoder", inputs["input_ids"][0]
    n, heads = len(ids), model.config.num_attention_heads
    embeddings, entrance = model.bert.embeddings, (site, 0, BASELINE)
    x = run.look_up(embeddings.word_embeddings.weight, ids, site)
    others = embeddings.position_embeddings.weight[:n] + embeddings.token_type_embeddings.weight[0]
    x = run.layer_norm(run.add(x, others, entrance), embeddings.LayerNorm, entrance)
    for number, layer in enumerate(model.bert.encoder.layer, 1):
        x = run.state(x, site, number)
        place = (site, number, "attention")
        inner, outer = layer.attention.self, layer.attention.output
        maps = [map_of(module) for module in (inner.query, inner.key, inner.value, outer.dense)]
        scale = (model.config.hidden_size // heads) ** -0.5
        attention = Attention(maps, heads, everywhere(n, n), scale, place, site)
        x = run.layer_norm(x + run.block(attention.out(run, x, x), place), outer.LayerNorm, place)
        place = (site, number, "feed_forward")
        out = two_maps(run, x, map_of(layer.intermediate.dense), gelu, map_of(layer.output.dense), place)
        x = run.layer_norm(x + run.block(out, place), layer.output.LayerNorm, place)
    head, place = model.cls.predictions, (site, 0, "head")
    x = run.activate(run.linear(x, *map_of(head.transform.dense), place), gelu)
    x = run.layer_norm(x, head.transform.LayerNorm, place)
    return number_of(run, x, position, map_of(head.decoder), token, place)


def gpt2(run: FrozenRun, model: Any, inputs: Inputs, position: int, token: int) -> Tensor:
    """`GPT2LMHeadModel`: pre-norm; its linear maps have their weights transposed."""
    site, ids, body = "decoder", inputs["input_ids"][0], model.transformer
    n, width, heads = len(ids), model.config.n_embd, model.config.n_head
    x = run.look_up(body.wte.weight, ids, site)
    x = run.add(x, body.wpe.weight[:n], (site, 0, BASELINE))
    for number, layer in enumerate(body.h, 1):
        x = run.state(x, site, number)
        place = (site, number, "attention")
        weights, biases = layer.attn.c_attn.weight.T.split(width), layer.attn.c_attn.bias.split(width)
        maps = [*zip(weights, biases, strict=True), (layer.attn.c_proj.weight.T, layer.attn.c_proj.bias)]
        attention = Attention(maps, heads, causal(n), (width // heads) ** -0.5, place, site)
        y = run.layer_norm(x, layer.ln_1, place)
        x = x + run.block(attention.out(run, y, y), place)
        place = (site, number, "feed_forward")
        y, mlp = run.layer_norm(x, layer.ln_2, place), layer.mlp
        first, second = (mlp.c_fc.weight.T, mlp.c_fc.bias), (mlp.c_proj.weight.T, mlp.c_proj.bias)
        x = x + run.block(two_maps(run, y, first, gelu_tanh, second, place), place)
    place = (site, 0, "head")
    x = run.layer_norm(x, body.ln_f, place)
    return number_of(run, x, position, map_of(model.lm_head), token, place)


def marian(run: FrozenRun, model: Any, inputs: Inputs, position: int, token: int) -> Tensor:
    """`MarianMTModel`: post-norm, biases everywhere, sinusoidal positions."""
    sides = {"encoder": model.model.encoder, "decoder": model.model.decoder}
    ids = {"encoder": inputs["input_ids"][0], "decoder": inputs["decoder_input_ids"][0]}
    n, m = len(ids["encoder"]), len(ids["decoder"])
    reach = {"encoder": everywhere(n, n), "decoder": causal(m)}

    def attend(x: Tensor, source: Tensor, module: Any, norm: Any, allowed: Tensor, place: Place, edges: str) -> Tensor:
        maps = [map_of(part) for part in (module.q_proj, module.k_proj, module.v_proj, module.out_proj)]
        attention = Attention(maps, module.num_heads, allowed, module.scaling, place, edges)
        return run.layer_norm(x + run.block(attention.out(run, x, source), place), norm, place)

    memory = torch.empty(0)
    for site, side in sides.items():
        x = run.look_up(side.embed_tokens.weight * side.embed_scale, ids[site], site)
        x = run.add(x, side.embed_positions.weight[: len(ids[site])], (site, 0, BASELINE))
        for number, layer in enumerate(side.layers, 1):
            x = run.state(x, site, number)
            place, norm = (site, number, "attention"), layer.self_attn_layer_norm
            x = attend(x, x, layer.self_attn, norm, reach[site], place, site)
            if site == "decoder":
                place, norm = (site, number, "cross_attention"), layer.encoder_attn_layer_norm
                x = attend(x, memory, layer.encoder_attn, norm, everywhere(m, n), place, "cross")
            place = (site, number, "feed_forward")
            out = two_maps(run, x, map_of(layer.fc1), gelu, map_of(layer.fc2), place)
            x = run.layer_norm(x + run.block(out, place), layer.final_layer_norm, place)
        memory = x
    output = (model.lm_head.weight, model.final_logits_bias[0])
    return number_of(run, memory, position, output, token, ("decoder", 0, "head"))


def t5(run: FrozenRun, model: Any, inputs: Inputs, position: int, token: int) -> Tensor:
    """`T5ForConditionalGeneration`: relative positions that layers share, no scale, no biases."""
    sides = {"encoder": model.encoder, "decoder": model.decoder}
    ids = {"encoder": inputs["input_ids"][0], "decoder": inputs["decoder_input_ids"][0]}
    n, m = len(ids["encoder"]), len(ids["decoder"])
    reach = {"encoder": everywhere(n, n), "decoder": causal(m)}

    def norm(x: Tensor, module: Any) -> Tensor:
        return run.rms_norm(x, module.weight, module.variance_epsilon)

    memory = torch.empty(0)
    for site, side in sides.items():
        x = run.look_up(side.embed_tokens.weight, ids[site], site)
        bias = side.block[0].layer[0].SelfAttention.compute_bias(len(ids[site]), len(ids[site]))
        for number, block in enumerate(side.block, 1):
            x = run.state(x, site, number)
            place, layer = (site, number, "attention"), block.layer[0]
            maps = [map_of(getattr(layer.SelfAttention, name)) for name in "qkvo"]
            attention = Attention(maps, model.config.num_heads, reach[site], 1.0, place, site, bias)
            y = norm(x, layer.layer_norm)
            x = x + run.block(attention.out(run, y, y), place)
            if site == "decoder":
                place, layer = (site, number, "cross_attention"), block.layer[1]
                maps = [map_of(getattr(layer.EncDecAttention, name)) for name in "qkvo"]
                attention = Attention(maps, model.config.num_heads, everywhere(m, n), 1.0, place, "cross")
                x = x + run.block(attention.out(run, norm(x, layer.layer_norm), memory), place)
            place, layer = (site, number, "feed_forward"), block.layer[-1]
            first, second = map_of(layer.DenseReluDense.wi), map_of(layer.DenseReluDense.wo)
            x = x + run.block(two_maps(run, norm(x, layer.layer_norm), first, torch.relu, second, place), place)
        memory = norm(x, side.final_layer_norm)
    if model.config.tie_word_embeddings:
        memory = memory * model.config.d_model**-0.5
    return number_of(run, memory, position, map_of(model.lm_head), token, ("decoder", 0, "head"))


def xlnet(run: FrozenRun, model: Any, inputs: Inputs, position: int, token: int) -> Tensor:
    """`XLNetLMHeadModel`, content stream: post-norm; the keys of relative positions and of segments are constants."""
    site, ids, segments = "decoder", inputs["input_ids"][0], inputs["token_type_ids"][0]
    n, body = len(ids), model.transformer
    distances = body.relative_positional_encoding(n, n, bsz=1)[:, 0].double()
    shift = n - torch.arange(n)[:, None] + torch.arange(n)  # query i and key j are encoded at n - i + j
    other_segment = (segments[:, None] != segments).long()
    x = run.look_up(body.word_embedding.weight, ids, site)
    for number, layer in enumerate(body.layer, 1):
        x = run.state(x, site, number)
        place, attention = (site, number, "attention"), layer.rel_attn
        weights = (attention.q, attention.k, attention.v)
        query, key, value = (torch.einsum("rih,hnd->rnid", x, weight) for weight in weights)
        scores = run.product(run.add(query, attention.r_w_bias[:, None], place), key, scores_of)
        to_position = run.add(query, attention.r_r_bias[:, None], place)
        position_keys = torch.einsum("ph,hnd->pnd", distances, attention.r)[shift]
        scores = scores + torch.einsum("rnid,ijnd->rnij", to_position, position_keys)
        to_segment = run.add(query, attention.r_s_bias[:, None], place)
        scores = scores + torch.einsum("rnid,ijnd->rnij", to_segment, attention.seg_embed[other_segment])
        mixed = run.attend(scores * attention.scale, value, everywhere(n, n), place, site)
        out = torch.einsum("rnid,hnd->rih", mixed, attention.o)
        x = run.layer_norm(x + run.block(out, place), attention.layer_norm, place)
        place = (site, number, "feed_forward")
        out = two_maps(run, x, map_of(layer.ff.layer_1), gelu, map_of(layer.ff.layer_2), place)
        x = run.layer_norm(x + run.block(out, place), layer.ff.layer_norm, place)
    return number_of(run, x, position, map_of(model.lm_loss), token, (site, 0, "head"))


# ---- Llama and its kin -----------------------------------------------------------------------------------------------


def norm_of(run: FrozenRun, x: Tensor, module: Any) -> Tensor:
    """A root-mean-square norm; Gemma 2 and 3 add one to its weight."""
    name = type(module).__name__
    eps = getattr(module, "variance_epsilon", None) or module.eps
    weight = getattr(module, "weight", 1.0)
    if name in ("Gemma2RMSNorm", "Gemma3RMSNorm"):
        weight = weight + 1
    return run.rms_norm(x, weight, eps)


def rotate(x: Tensor, turn: tuple[Tensor, Tensor]) -> Tensor:
    """Rotary positions: cosine and sine (1, position, width)."""
    cos, sin = turn
    first, second = x.chunk(2, -1)
    return x * cos + torch.cat([-second, first], -1) * sin


def turns_of(body: Any, attention: Any, n: int) -> tuple[Tensor, Tensor]:
    """Cosine and sine of a layer."""
    places, like = torch.arange(n)[None], torch.zeros(1, dtype=torch.float64)
    if type(attention).__name__.startswith("Gemma3"):
        return body.rotary_emb(like, places, attention.layer_type)
    return body.rotary_emb(like, places)


def reach_of(attention: Any, n: int) -> Tensor:
    """Causal, in a window where the layer or the model has one."""
    reach, window = causal(n), getattr(attention.config, "sliding_window", None)
    window = getattr(attention, "sliding_window", window)
    if window is not None:
        reach = reach & ~torch.ones_like(reach).tril(-window)
    return reach


def rotary_attention(
    run: FrozenRun, y: Tensor, body: Any, module: Any, place: Place, shared: dict[str, Any] | None = None
) -> Tensor:
    """Grouped heads with rotary positions; norms of heads and a cap of scores where there are any."""
    config, n = body.config, y.shape[1]
    turn = turns_of(body, module, n)
    query = split(run.linear(y, *map_of(module.q_proj), place), config.num_attention_heads)
    if hasattr(module, "q_norm"):
        query = norm_of(run, query, module.q_norm)
    query = rotate(query, turn)
    if shared and getattr(module, "is_kv_shared_layer", False):
        key, value = shared[module.layer_type]
    else:
        key, value = keys_and_values(run, y, config, module, place, turn)
    if shared is not None:
        shared[module.layer_type] = (key, value)
    scores = run.product(query, key, scores_of) * module.scaling
    cap = getattr(module, "attn_logit_softcapping", None)
    if cap is not None:
        scores = run.activate(scores, lambda z: cap * torch.tanh(z / cap))
    mixed = run.attend(scores, value, reach_of(module, n), place, place[0])
    return run.linear(merge(mixed), *map_of(module.o_proj), place)


def keys_and_values(
    run: FrozenRun, y: Tensor, config: Any, module: Any, place: Place, turn: tuple[Tensor, Tensor]
) -> tuple[Tensor, Tensor]:
    """Keys and values, one for each head."""
    key = split(run.linear(y, *map_of(module.k_proj), place), config.num_key_value_heads)
    value = split(run.linear(y, *map_of(module.v_proj), place), config.num_key_value_heads)
    if hasattr(module, "k_norm"):
        key = norm_of(run, key, module.k_norm)
    if hasattr(module, "v_norm"):
        value = norm_of(run, value, module.v_norm)
    groups = config.num_attention_heads // config.num_key_value_heads
    return rotate(key, turn).repeat_interleave(groups, 1), value.repeat_interleave(groups, 1)


def gated(run: FrozenRun, y: Tensor, module: Any, act: Activation, place: Place) -> Tensor:
    """A feed-forward block with a gate, or experts of that kind."""
    if hasattr(module, "experts"):
        return mixture(run, y, module)
    gate = run.linear(y, *map_of(module.gate_proj), place)
    if getattr(module, "activation_sparsity", 0.0) > 0.0:
        gate = sparse(run, gate, module.activation_sparsity, place)
    up = run.linear(y, *map_of(module.up_proj), place)
    return run.linear(run.gate(act, gate, up), *map_of(module.down_proj), place)


def sparse(run: FrozenRun, x: Tensor, sparsity: float, place: Place) -> Tensor:
    """Gemma 3n's selection: what exceeds mean and deviation; the deviation is a constant."""
    factor = torch.distributions.Normal(0.0, 1.0).icdf(torch.tensor(sparsity))
    deviation = run.hold(x.std(-1, keepdim=True, unbiased=False)) * factor.double()
    exceeding = run.add(x - x.mean(-1, keepdim=True), -deviation, place)
    return run.activate(exceeding, torch.relu)


def mixture(run: FrozenRun, y: Tensor, module: Any) -> Tensor:
    """Mixtral's experts: the router's weights are held fixed."""
    probabilities = torch.softmax(y @ module.gate.weight.T, -1)
    best = probabilities.topk(module.top_k, -1)
    chosen = best.values / best.values.sum(-1, keepdim=True)
    weights = run.hold(torch.zeros_like(probabilities).scatter(-1, best.indices, chosen))
    out = torch.zeros_like(y)
    for number in range(module.experts.num_experts):
        gate, up = (y @ module.experts.gate_up_proj[number].T).chunk(2, -1)
        expert = run.gate(silu, gate, up) @ module.experts.down_proj[number].T
        out = out + expert * weights[..., number, None]
    return out


def llama(run: FrozenRun, model: Any, inputs: Inputs, position: int, token: int) -> Tensor:
    """`LlamaForCausalLM`, also with adapters, Mixtral, Gemma 2 and Gemma 3."""
    if hasattr(model, "get_base_model"):
        model = model.get_base_model()
    site, ids, body = "decoder", inputs["input_ids"][0], model.model
    is_gemma = type(model).__name__.startswith("Gemma")
    table, act = body.embed_tokens.weight, silu
    if is_gemma:
        table, act = table * body.embed_tokens.embed_scale, gelu_tanh
    x = run.look_up(table, ids, site)
    for number, layer in enumerate(body.layers, 1):
        x = run.state(x, site, number)
        place = (site, number, "attention")
        out = rotary_attention(run, norm_of(run, x, layer.input_layernorm), body, layer.self_attn, place)
        if is_gemma:
            out = norm_of(run, out, layer.post_attention_layernorm)
        x = x + run.block(out, place)
        place = (site, number, "feed_forward")
        before = layer.post_attention_layernorm
        if is_gemma:
            before = layer.pre_feedforward_layernorm
        y = norm_of(run, x, before)
        out = gated(run, y, layer.mlp, act, place)
        if is_gemma:
            out = norm_of(run, out, layer.post_feedforward_layernorm)
        x = x + run.block(out, place)
    value = number_of(run, norm_of(run, x, body.norm), position, map_of(model.lm_head), token, (site, 0, "head"))
    return capped(run, value, model.config)


def gemma3n(run: FrozenRun, model: Any, inputs: Inputs, position: int, token: int) -> Tensor:
    """`Gemma3nForCausalLM`: streams (row, position, stream, width), of which a layer updates the active one."""
    site, ids, body = "decoder", inputs["input_ids"][0], model.model
    embedded = run.look_up(body.embed_tokens.weight * body.embed_tokens.embed_scale, ids, site, at_entrance=False)
    per_layer = per_layer_inputs(run, embedded, body, ids, site)
    streams = [embedded]
    for projection in body.altup_projections:
        streams.append(rescale(run, embedded @ projection.weight.T, embedded))
    x = torch.stack(streams, 2)
    shared: dict[str, tuple[Tensor, Tensor]] = {}
    for number, layer in enumerate(body.layers, 1):
        x = run.without_positions(x, site, "states", number)
        x = gemma3n_layer(run, x, per_layer[:, :, number - 1], body, layer, number, shared)
    streams = [x[:, :, 0]]
    for stream, projection in enumerate(body.altup_unembed_projections, 1):
        streams.append(rescale(run, x[:, :, stream] @ projection.weight.T, streams[0]))
    x = norm_of(run, torch.stack(streams).mean(0), body.norm)
    value = number_of(run, x, position, map_of(model.lm_head), token, (site, 0, "head"))
    return capped(run, value, model.config)


def per_layer_inputs(run: FrozenRun, embedded: Tensor, body: Any, ids: Tensor, site: str) -> Tensor:
    """Vectors (row, position, layer, width) that a layer takes in after its blocks, from a table of their own."""
    table = body.embed_tokens_per_layer.weight * body.embed_tokens_per_layer.embed_scale
    looked_up = run.look_up(table, ids, site, at_entrance=False)
    shape = (len(body.layers), -1)
    projected = embedded @ body.per_layer_model_projection.weight.T * body.per_layer_projection_scale
    projected = norm_of(run, projected.unflatten(-1, shape), body.per_layer_projection_norm)
    return (projected + looked_up.unflatten(-1, shape)) * body.per_layer_input_scale


def rescale(run: FrozenRun, x: Tensor, like: Tensor) -> Tensor:
    """A vector with the size of another: a normalization, its factor is held fixed."""
    size = x.square().mean(-1, keepdim=True).clamp(min=1e-5).sqrt()
    target = like.square().mean(-1, keepdim=True).sqrt()
    return x * run.hold(target / size)


def gemma3n_layer(
    run: FrozenRun, x: Tensor, per_layer: Tensor, body: Any, layer: Any, number: int, shared: dict[str, Any]
) -> Tensor:
    """AltUp's prediction, the layer's blocks beside Laurel, AltUp's correction, and what the layer looks up."""
    place, count = ("decoder", number, "attention"), x.shape[2]
    altup, active = layer.altup, body.config.altup_active_idx
    coefficients = routed(run, x[:, :, active], altup) @ altup.prediction_coefs.weight.T
    coefficients = coefficients.unflatten(-1, (count, count))
    predicted = x + run.product(coefficients, x, torch.matmul)
    current = predicted[:, :, active]
    y = norm_of(run, current, layer.input_layernorm)
    laurel = y @ layer.laurel.linear_left.weight.T @ layer.laurel.linear_right.weight.T
    laurel = y + norm_of(run, laurel, layer.laurel.post_laurel_norm)
    out = rotary_attention(run, y, body, layer.self_attn, place, shared)
    current = current + run.block(norm_of(run, out, layer.post_attention_layernorm), place)
    current = (current + laurel) / math.sqrt(2)
    place = ("decoder", number, "feed_forward")
    out = gated(run, norm_of(run, current, layer.pre_feedforward_layernorm), layer.mlp, gelu_tanh, place)
    current = current + run.block(norm_of(run, out, layer.post_feedforward_layernorm), place)
    coefficients = routed(run, current, altup) @ altup.correction_coefs.weight.T
    coefficients = run.add(coefficients, 1.0, place)[..., None]
    innovation = (current - predicted[:, :, active])[:, :, None]
    corrected = predicted + run.product(coefficients, innovation)
    first = corrected[:, :, active]
    if body.config.altup_correct_scale:
        first = first * altup.correct_output_scale
    first = run.gate(gelu_tanh, first @ layer.per_layer_input_gate.weight.T, per_layer)
    first = norm_of(run, first @ layer.per_layer_projection.weight.T, layer.post_per_layer_input_norm)
    return torch.cat([corrected[:, :, :1], corrected[:, :, 1:] + first[:, :, None]], 2)


def routed(run: FrozenRun, x: Tensor, altup: Any) -> Tensor:
    """AltUp's router: an activation."""
    y = norm_of(run, x, altup.router_norm) * altup.router_input_scale
    return run.activate(y @ altup.modality_router.weight.T, torch.tanh)


def capped(run: FrozenRun, value: Tensor, config: Any) -> Tensor:
    """Gemma's cap of logits: an activation."""
    cap = getattr(config, "final_logit_softcapping", None)
    if cap is None:
        return value
    return run.activate(value, lambda z: cap * torch.tanh(z / cap))


FAMILIES = {
    "bert": bert,
    "gpt2": gpt2,
    "llama": llama,
    "llama_bias": llama,
    "llama_dora": llama,
    "mixtral": llama,
    "gemma2": llama,
    "gemma3": llama,
    "gemma3n": gemma3n,
    "marian": marian,
    "t5": t5,
    "xlnet": xlnet,
}
#: The site of the number, if it is not the decoder. With the streams of Gemma 3n nothing is direct.
OUTPUT_SITES = {"bert": "encoder", "gemma3n": ""}


def explain(
    family: str, model: Any, inputs: Inputs, position: int, token: int, integrated: bool, mean: bool
) -> tuple[float, Terms]:
    """The number and all terms of its explanation, for one row of inputs without padding."""
    run = FrozenRun(integrated, mean, OUTPUT_SITES.get(family, "decoder"))
    return run.explain(lambda: FAMILIES[family](run, model, inputs, position, token))
