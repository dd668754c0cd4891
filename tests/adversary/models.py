"""Odd models of the adversary's own: one small torch module whose every part is drawn.

The module writes down what it computed (`record`), so the reference needs nothing of normlens: run in float64, each
attention leaves an `Attention` for the loops of `tests.reference.measures`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from random import Random
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from tests.reference.blocks import Array, Attention, Norm

VOCABULARY = 40
POSITIONS = 24


@dataclass(frozen=True)
class Recipe:
    """What a drawn model is made of."""

    width: int
    heads: int
    kv_heads: int
    key_width: int
    value_width: int
    layers: int
    shared: bool  # one layer that runs several times
    norm: str
    placement: str
    biases: tuple[bool, bool, bool]  # of query and key, of value, of output
    fused: bool  # one linear map for query, key and value
    style: str  # how attention is written
    causal: bool
    window: int | None
    sink: bool
    softcap: float | None
    position_bias: bool
    gate: str
    inner_norm: str
    layer_scale: bool
    branch_scale: float
    residual_scale: float
    sum_scale: float
    parallel: bool
    cross: bool
    feed_forward: str
    final_norm: bool

    @classmethod
    def drawn(cls, random: Random) -> Recipe:
        """Any combination that can be written down."""
        heads = random.choice((1, 2, 3, 4))
        style = random.choice(("softmax", "softmax", "einsum", "bmm", "sdpa"))
        plain = style == "sdpa"
        sometimes = lambda chance=0.25: random.random() < chance  # noqa: E731
        return cls(
            width=random.choice((12, 16, 24)),
            heads=heads,
            kv_heads=random.choice([n for n in (1, 2, heads) if heads % n == 0]),
            key_width=random.choice((3, 4, 8)),
            value_width=random.choice((3, 4, 8)),
            layers=random.choice((1, 2, 3)),
            shared=sometimes(0.15),
            norm=random.choice(("layer", "layer without bias", "rms", "rms plus one", "torch rms", "no weights")),
            placement=random.choice(("pre", "pre", "post", "post", "branch", "sandwich", "none")),
            biases=(sometimes(0.5), sometimes(0.5), sometimes(0.5)),
            fused=sometimes(),
            style=style,
            causal=sometimes(0.5),
            window=random.choice((None, None, None, 1, 3)),
            sink=sometimes() and not plain,
            softcap=random.choice((None, None, None, 2.0)) if not plain else None,
            position_bias=sometimes(),
            gate=random.choice(("", "", "", "coordinate", "head", "query")),
            inner_norm=random.choice(("", "", "", "all", "head")),
            layer_scale=sometimes(),
            branch_scale=random.choice((1.0, 1.0, 0.3)),
            residual_scale=random.choice((1.0, 1.0, 1.0, 0.7)),
            sum_scale=random.choice((1.0,) * 9 + (0.5,)),
            parallel=sometimes(),
            cross=sometimes(0.2),
            feed_forward=random.choice(("plain", "plain", "gated", "experts")),
            final_norm=sometimes(0.4),
        )


class RootMeanSquare(nn.Module):
    """An RMS normalization, with the weight or with one plus the weight."""

    def __init__(self, width: int, offset: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width) - offset)
        self.offset, self.eps = offset, 1e-3

    def forward(self, x: Tensor) -> Tensor:
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps) * (self.offset + self.weight)


def make_norm(kind: str, width: int) -> nn.Module:
    if kind == "layer":
        return nn.LayerNorm(width, eps=1e-2)
    if kind == "layer without bias":
        return nn.LayerNorm(width, eps=1e-5, bias=False)
    if kind == "torch rms":
        return nn.RMSNorm(width, eps=1e-4)
    if kind == "no weights":
        return nn.LayerNorm(width, elementwise_affine=False)
    return RootMeanSquare(width, 1.0 if kind == "rms plus one" else 0.0)


def norm_of(module: nn.Module, width: int) -> Norm:
    """The same normalization for the reference."""
    weight, bias = getattr(module, "weight", None), getattr(module, "bias", None)
    gamma = np.ones(width) if weight is None else array(weight) + getattr(module, "offset", 0.0)
    eps = float(getattr(module, "eps"))  # noqa: B009
    return Norm(isinstance(module, nn.LayerNorm), gamma, np.zeros(width) if bias is None else array(bias), eps)


def array(tensor: Tensor) -> Array:
    found: Array = tensor.detach().double().numpy()
    return found


def asked(module: nn.Module, width: int) -> tuple[Array, Array]:
    """`W` and `b` of whatever affine map this is, adapters and hooks included: what it does to zero and to units."""
    like = next(module.parameters())
    with torch.no_grad():
        bias = module(torch.zeros(1, 1, width, dtype=like.dtype))
        weight = module(torch.eye(width, dtype=like.dtype).unsqueeze(0)) - bias
    return array(weight[0]), array(bias[0, 0])


class OddAttention(nn.Module):
    """One attention, with everything that may stand between its heads and its output projection."""

    record: dict[str, Any] | None = None  # what it computed, where somebody asks

    def __init__(self, recipe: Recipe, cross: bool) -> None:
        super().__init__()
        r = self.recipe = recipe
        self.cross = cross
        first, value, output = r.biases
        sizes = (r.heads * r.key_width, r.kv_heads * r.key_width, r.kv_heads * r.value_width)
        self.fused = r.fused and not cross
        if self.fused:
            self.qkv = nn.Linear(r.width, sum(sizes), bias=first)
        else:
            self.q = nn.Linear(r.width, sizes[0], bias=first)
            self.k = nn.Linear(r.width, sizes[1], bias=first)
            self.v = nn.Linear(r.width, sizes[2], bias=value)
        self.sizes = sizes
        self.o = nn.Linear(r.heads * r.value_width, r.width, bias=output)
        self.sink = nn.Parameter(torch.zeros(r.heads)) if r.sink else None
        self.distances = nn.Embedding(2 * POSITIONS, r.heads) if r.position_bias else None
        count = {"coordinate": r.heads * r.value_width, "head": r.heads, "query": 1}.get(r.gate)
        self.gate = None if count is None else nn.Linear(r.width, count)
        inner = {"all": r.heads * r.value_width, "head": r.value_width}.get(r.inner_norm)
        self.inner_norm = None if inner is None else RootMeanSquare(inner, 0.0)

    def forward(self, h: Tensor, keys: Tensor, visible: Tensor) -> Tensor:
        """`h` and `keys` are (batch, position, width), `visible` broadcasts to (batch, head, query, key)."""
        r = self.recipe
        batch, n, m = h.shape[0], h.shape[1], keys.shape[1]
        if self.fused:
            q, k, v = self.qkv(h).split(self.sizes, dim=-1)
        else:
            q, k, v = self.q(h), self.k(keys), self.v(keys)
        q = q.view(batch, n, r.heads, r.key_width).transpose(1, 2)
        k = k.view(batch, m, r.kv_heads, r.key_width).transpose(1, 2).repeat_interleave(r.heads // r.kv_heads, dim=1)
        v = v.view(batch, m, r.kv_heads, r.value_width).transpose(1, 2).repeat_interleave(r.heads // r.kv_heads, dim=1)
        mask = torch.zeros(visible.shape, dtype=h.dtype).masked_fill(~visible, torch.finfo(h.dtype).min)
        if self.distances is not None:
            apart = torch.arange(m) - torch.arange(n).unsqueeze(1) + POSITIONS
            mask = mask + self.distances(apart).permute(2, 0, 1)
        if r.style == "sdpa" and self.record is None:
            o = nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        else:
            o = self._written_out(q, k, v, mask)
        o = o.transpose(1, 2)  # batch query head width
        heads = o
        if self.inner_norm is not None:
            o = self.inner_norm(o.flatten(2)).view(o.shape) if r.inner_norm == "all" else self.inner_norm(o)
        gate = None if self.gate is None else torch.sigmoid(self.gate(h))
        if gate is not None:
            o = (o.flatten(2) * gate).view(o.shape) if r.gate == "coordinate" else o * gate.unsqueeze(-1)
        if self.record is not None:
            self.record |= {"x": array(keys), "factor": self._factor(heads, gate), "gate": self._gate(heads, gate)}
        result: Tensor = self.o(o.flatten(2))
        return result

    def _written_out(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
        r = self.recipe
        scale = 1 / math.sqrt(r.key_width)
        if r.style == "einsum":
            scores = torch.einsum("bhqd,bhkd->bhqk", q, k) * scale
        elif r.style == "bmm":
            shape = (*q.shape[:3], k.shape[2])
            scores = torch.bmm(q.flatten(0, 1), k.flatten(0, 1).transpose(1, 2)).view(shape) * scale
        else:
            scores = (q * scale) @ k.transpose(-1, -2)
        if r.softcap is not None:
            scores = r.softcap * torch.tanh(scores / r.softcap)
        scores = scores + mask
        if self.sink is not None:
            column = self.sink.view(1, -1, 1, 1).expand(*scores.shape[:3], 1)
            alpha = torch.softmax(torch.cat([scores, column], dim=-1), dim=-1)[..., :-1]
        else:
            alpha = torch.softmax(scores, dim=-1)
        if self.record is not None:
            self.record["alpha"] = array(alpha)
        if r.style == "bmm":
            return torch.bmm(alpha.flatten(0, 1), v.flatten(0, 1)).view(*q.shape[:3], -1)
        return torch.einsum("bhqk,bhkd->bhqd", alpha, v) if r.style == "einsum" else alpha @ v

    def _factor(self, heads: Tensor, gate: Tensor | None) -> Array:
        """(batch, head, query): a norm's denominator, and a gate with one number per head or query."""
        factor = np.ones(heads.shape[:3])
        if self.inner_norm is not None:
            whole = heads.flatten(2).unsqueeze(2) if self.recipe.inner_norm == "all" else heads
            factor = factor * array(torch.rsqrt(whole.pow(2).mean(-1) + self.inner_norm.eps))
        if gate is not None and self.recipe.gate != "coordinate":
            factor = factor * array(gate)
        return factor.transpose(0, 2, 1)

    def _gate(self, heads: Tensor, gate: Tensor | None) -> Array | None:
        return array(gate.view(heads.shape)) if gate is not None and self.recipe.gate == "coordinate" else None

    def maps(self) -> dict[str, Array]:
        """The four weights, by query head; the gamma of a norm before the projection belongs to `W_O`."""
        r = self.recipe
        if self.fused:
            weight, bias = asked(self.qkv, r.width)
            weight, bias = weight[:, -self.sizes[2] :], bias[-self.sizes[2] :]
        else:
            weight, bias = asked(self.v, r.width)
        group = [h * r.kv_heads // r.heads for h in range(r.heads)]
        output, output_bias = asked(self.o, r.heads * r.value_width)
        output = output.reshape(r.heads, r.value_width, -1)
        if self.inner_norm is not None:
            output = output * array(self.inner_norm.weight).reshape(-1, r.value_width, 1)
        return {
            "value_weight": weight.reshape(r.width, r.kv_heads, -1).transpose(1, 0, 2)[group],
            "value_bias": bias.reshape(r.kv_heads, -1)[group],
            "output_weight": output,
            "output_bias": output_bias,
        }


class OddBlock(nn.Module):
    """An attention and how its output joins the residual stream."""

    def __init__(self, recipe: Recipe, cross: bool) -> None:
        super().__init__()
        r = self.recipe = recipe
        self.cross = cross
        self.attention = OddAttention(r, cross)
        self.first = make_norm(r.norm, r.width) if r.placement in ("pre", "sandwich") else None
        self.branch = make_norm(r.norm, r.width) if r.placement in ("branch", "sandwich") else None
        self.last = make_norm(r.norm, r.width) if r.placement == "post" else None
        self.scale = nn.Parameter(torch.ones(r.width)) if r.layer_scale else None
        self.beside = nn.Sequential(nn.Linear(r.width, 8), nn.Tanh(), nn.Linear(8, r.width)) if r.parallel else None

    def forward(self, x: Tensor, memory: Tensor | None, visible: Tensor, record: list[Attention] | None) -> Tensor:
        r = self.recipe
        self.attention.record = None if record is None else {}
        h = x if self.first is None else self.first(x)
        branch = self.attention(h, h if memory is None else memory, visible)
        if self.branch is not None:
            branch = self.branch(branch)
        if self.scale is not None:
            branch = branch * self.scale
        if r.branch_scale != 1.0:
            branch = branch * r.branch_scale
        residual = x if r.residual_scale == 1.0 else x * r.residual_scale
        total = residual + branch
        others = None if self.beside is None else self.beside(h)
        if others is not None:
            total = total + others
        if r.sum_scale != 1.0 and self.last is not None:  # which nobody can call a part of the block's last stage
            total = total * r.sum_scale
        after = total if self.last is None else self.last(total)
        if record is not None:
            record.append(self._block(len(record), residual, others, after))
        return after

    def _block(self, n: int, residual: Tensor, others: Tensor | None, after: Tensor) -> Attention:
        r, record = self.recipe, self.attention.record or {}
        scale = 1.0 if self.scale is None else array(self.scale)
        self.attention.record = None
        return Attention(
            "cross" if self.cross else "self",
            n,
            alpha=record["alpha"],
            x=record["x"],
            **self.attention.maps(),
            residual=array(residual),
            after=array(after),
            branch_norm=None if self.branch is None else norm_of(self.branch, r.width),
            post_norm=None if self.last is None else norm_of(self.last, r.width),
            branch_scale=scale * r.branch_scale,
            others=None if others is None else array(others),
            factor=record["factor"],
            gate=record["gate"],
        )


class Gated(nn.Module):
    """A gated unit, `silu(a) · b`."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.gate, self.up = nn.Linear(width, 8), nn.Linear(width, 8, bias=False)
        self.down = nn.Linear(8, width)

    def forward(self, x: Tensor) -> Tensor:
        output: Tensor = self.down(nn.functional.silu(self.gate(x)) * self.up(x))
        return output


class Experts(nn.Module):
    """The two best of three experts, weighted by a router."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.router = nn.Linear(width, 3)
        self.experts = nn.ModuleList(feed_forward("plain", width) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        tokens = x.reshape(-1, x.shape[-1])
        best, which = torch.topk(torch.softmax(self.router(tokens), -1), 2)
        output = torch.zeros_like(tokens)
        for number, expert in enumerate(self.experts):
            places, slots = torch.where(which == number)
            output.index_add_(0, places, expert(tokens[places]) * best[places, slots, None])
        return output.view(x.shape)


def feed_forward(kind: str, width: int) -> nn.Module:
    if kind == "gated":
        return Gated(width)
    if kind == "experts":
        return Experts(width)
    return nn.Sequential(nn.Linear(width, 8), nn.GELU(), nn.Linear(8, width))


class OddLayer(nn.Module):
    """Self-attention, perhaps attention to a memory, and a feed-forward network."""

    def __init__(self, recipe: Recipe) -> None:
        super().__init__()
        self.own = OddBlock(recipe, False)
        self.other = OddBlock(recipe, True) if recipe.cross else None
        self.norm = make_norm(recipe.norm, recipe.width)
        self.feed_forward = feed_forward(recipe.feed_forward, recipe.width)

    def forward(
        self, x: Tensor, visible: Tensor, memory: Tensor | None, seen: Tensor, record: list[Attention] | None
    ) -> Tensor:
        x = self.own(x, None, visible, record)
        if self.other is not None:
            x = self.other(x, memory, seen, record)
        output: Tensor = x + self.feed_forward(self.norm(x))
        return output


class OddModel(nn.Module):
    """A whole model; takes ids or vectors, masks of several kinds, positions, and a memory."""

    def __init__(self, recipe: Recipe) -> None:
        super().__init__()
        self.recipe = recipe
        self.words = nn.Embedding(VOCABULARY, recipe.width)
        self.places = nn.Embedding(POSITIONS, recipe.width)
        self.dropout = nn.Dropout(0.1)
        self.layers = nn.ModuleList(OddLayer(recipe) for _ in range(1 if recipe.shared else recipe.layers))
        self.final = make_norm(recipe.norm, recipe.width) if recipe.final_norm else None

    def forward(
        self,
        input_ids: Tensor | None = None,
        vectors: Tensor | None = None,
        attention_mask: Tensor | None = None,
        pair_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        memory: Tensor | None = None,
        record: list[Attention] | None = None,
    ) -> Tensor:
        r = self.recipe
        x = self.words(input_ids) if vectors is None else vectors
        n = x.shape[1]
        places = torch.arange(n).unsqueeze(0) if position_ids is None else position_ids
        x = self.dropout(x + self.places(places))
        apart = torch.arange(n).unsqueeze(1) - torch.arange(n)
        visible = torch.ones(n, n, dtype=torch.bool) if not r.causal else apart >= 0
        if r.window is not None:
            visible = visible & (apart.abs() <= r.window)
        visible = visible.view(1, 1, n, n)
        if attention_mask is not None:
            visible = visible & (attention_mask > 0).view(len(x), 1, 1, n)
        if pair_mask is not None:
            shown = pair_mask if pair_mask.dtype == torch.bool else pair_mask > -1.0
            visible = visible & (shown.unsqueeze(1) if shown.ndim == 3 else shown)
        seen = torch.ones(1, 1, 1, 1 if memory is None else memory.shape[1], dtype=torch.bool)
        for n_layer in range(r.layers):
            x = self.layers[0 if r.shared else n_layer](x, visible, memory, seen, record)
        return x if self.final is None else self.final(x)


def odd_model(random: Random) -> OddModel:
    """A model with telling weights."""
    recipe = Recipe.drawn(random)
    model = OddModel(recipe)
    generator = torch.Generator().manual_seed(random.randrange(2**31))
    with torch.no_grad():
        for parameter in model.parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            if parameter.ndim == 1:
                parameter.add_(0.3 * noise)
            else:
                parameter.copy_(noise / math.sqrt(parameter.shape[-1]))
    return model.eval()
