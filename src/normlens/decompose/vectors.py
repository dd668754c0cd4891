"""Norms of the vectors that exist once per query, and how far each place is from what the one before it makes of it.

For mixing ratios: `‖context‖` and `‖self‖` at each place. For the proof: at the attention output the gap between
`sum_j sum_h alpha f + b_O` and the model's vector, at the residual sum the gap between `attention output + residual` and
the model's sum, at the normalized sum the gap between the normalization of the model's sum and the model's result.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from jaxtyping import Float
from torch import Tensor

from normlens.decompose import kernels
from normlens.decompose.pairs import PlaceName
from normlens.decompose.sketch import Sketch
from normlens.decompose.steps import Normalizing, apply

if TYPE_CHECKING:
    from normlens.decompose.block import Block

PerQuery = Float[Tensor, "batch query"]
#: Up to this many positions the attention output is rebuilt whole; above, it is compared along random directions.
WHOLE_POSITIONS = 64


@dataclass(frozen=True)
class VectorNorms:
    """One number per query for each thing."""

    gaps: Float[Tensor, "place 2 batch query"]  # squared: difference and whole, at the places that differ
    mixing: Mapping[PlaceName, tuple[PerQuery, PerQuery]]  # ‖context‖ and ‖self‖, where somebody asked
    scales: Mapping[PlaceName, PerQuery]  # what normalizations multiply each query's parts by, where they do


def vector_norms_of(block: Block) -> VectorNorms:
    """All of them, in one compiled pass where the block is plain and large enough."""
    t = block.tensors
    plain = not t.branch and t.others is None and (t.norm is None or isinstance(t.norm, Normalizing))
    wants_mixing = t.pairs.diagonal is not None
    fits = plain and wants_mixing and kernels.usable(32 * t.total.numel(), t.total, t.projected)
    # Whether directions are enough is no question here: a sequence's ratios must not depend on what shares its pass.
    if fits and t.output_sketch is not None:
        return _compiled(block, t.output_sketch)
    whole = t.projected if t.bias is None else t.projected - t.bias
    gaps = [_attention_gap(block), _gap(block.rebuilt("res", whole), t.total)]
    if t.norm is not None:
        gaps.append(_gap(apply(t.norm, t.total), block.observed["ln"]))
    mixing: dict[PlaceName, tuple[Tensor, Tensor]] = {}
    if wants_mixing:
        for place in block.self_places:
            mixing[place] = (block.context_vectors(place).norm(dim=-1), block.self_vectors(place).norm(dim=-1))
        if t.norm is None:
            mixing["ln"] = mixing["res"]
    scales = {
        place: passage.scale.squeeze(-1) for place, passage in block.passages.items() if passage.scale is not None
    }
    return VectorNorms(torch.stack(gaps), mixing, scales)


def _gap(rebuilt: Tensor, observed: Tensor) -> Float[Tensor, "2 batch query"]:
    return torch.stack([(rebuilt - observed).square().sum(-1), observed.square().sum(-1)])


def _directions_for(block: Block) -> Sketch | None:
    """The directions along which the attention output is compared; None: it is rebuilt whole.

    Rebuilding it whole costs one more product of the model's width squared. For many positions the difference is seen
    along random directions instead, where it has its size on average; an error that hides from them at every position
    does not exist in practice.
    """
    t = block.tensors
    return t.output_sketch if t.projected.shape[0] * t.projected.shape[1] > WHOLE_POSITIONS else None


def _attention_gap(block: Block) -> Float[Tensor, "2 batch query"]:
    t = block.tensors
    mixed = t.pairs.mixed.flatten(2)
    sketch = _directions_for(block)
    if sketch is not None:
        return torch.stack([sketch.gaps(mixed, t.projected)[0], t.projected.square().sum(-1)])
    summed = mixed @ t.projections["attn"].weight.flatten(0, 1)
    return _gap(block.rebuilt("attn", summed), t.projected)


def _compiled(block: Block, sketch: Sketch) -> VectorNorms:
    t = block.tensors
    width = t.total.shape[-1]
    norm = t.norm if isinstance(t.norm, Normalizing) else None
    nothing, ones = t.total.new_zeros(width), t.total.new_ones(width)
    carried = t.self_attends and "attn" not in block.self_places  # the own part went through the norm's linear half
    mine = block.own_behind("ln") if carried else block.own if t.self_attends else torch.zeros_like(t.total)
    out = t.total.new_empty(12, *t.total.shape[:2])
    kernels.run(
        "vectors",
        t.pairs.mixed.flatten(2).flatten(0, 1).contiguous(),
        sketch.before,
        sketch.behind,
        sketch.shift,
        t.projected.flatten(0, 1).contiguous(),
        nothing if t.bias is None else t.bias.contiguous(),
        mine.flatten(0, 1).contiguous(),
        t.residual.flatten(0, 1).contiguous(),
        t.total.flatten(0, 1).contiguous(),
        (t.total if t.normalized is None else t.normalized).flatten(0, 1).contiguous(),
        ones if norm is None or norm.gamma is None else norm.gamma.contiguous(),
        nothing if norm is None or norm.beta is None else norm.beta.contiguous(),
        norm is not None and norm.centred,
        0.0 if norm is None else norm.eps,
        norm is not None,
        carried,
        out.flatten(1),
    )
    gaps = out[: 2 * len(block.places)].unflatten(0, (-1, 2))
    if _directions_for(block) is None:
        gaps[0] = _attention_gap(block)
    context, own_norm, with_residual, context_behind, self_behind = out[6:11].sqrt().unbind(0)
    mixing: dict[PlaceName, tuple[Tensor, Tensor]] = {}
    if not carried:
        mixing = {"attn": (context, own_norm), "res": (context, with_residual)}
    mixing["ln"] = mixing["res"] if norm is None else (context_behind, self_behind)
    return VectorNorms(gaps, mixing, {} if norm is None else {"ln": out[11]})
