"""Norms of the vectors that exist once per query, and how far each place is from what the one before it makes of it.

For mixing ratios: `‖context‖` and `‖self‖` at each place. For the proof: at the residual sum the gap between
`attention output + residual` and the model's sum, at the normalized sum the gap between the normalization of the
model's sum and the model's result.
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
from normlens.decompose.steps import Normalizing, apply

if TYPE_CHECKING:
    from normlens.decompose.block import Block

PerQuery = Float[Tensor, "batch query"]


@dataclass(frozen=True)
class VectorNorms:
    """One number per query for each thing; `gaps` and `size` are squared."""

    size: PerQuery  # of the attention output
    gaps: Mapping[PlaceName, tuple[PerQuery, PerQuery]]  # difference and whole
    mixing: Mapping[PlaceName, tuple[PerQuery, PerQuery]]  # ‖context‖ and ‖self‖; empty where nobody asked
    scales: Mapping[PlaceName, PerQuery]  # what normalizations multiply each query's parts by, where they do


def vector_norms_of(block: Block) -> VectorNorms:
    """All of them, in one compiled pass where the block is plain and large enough."""
    t = block.tensors
    plain = not t.branch and t.others is None and (t.norm is None or isinstance(t.norm, Normalizing))
    wants_mixing = t.pairs.diagonal is not None
    if plain and wants_mixing and kernels.usable(32 * t.total.numel(), t.total, t.projected):
        return _compiled(block)
    gaps: dict[PlaceName, tuple[Tensor, Tensor]] = {}
    whole = t.projected if t.bias is None else t.projected - t.bias
    gaps["res"] = _gap(block.rebuilt("res", whole), t.total)
    if t.norm is not None:
        gaps["ln"] = _gap(apply(t.norm, t.total), block.observed["ln"])
    mixing: dict[PlaceName, tuple[Tensor, Tensor]] = {}
    if wants_mixing:
        for place in block.places:
            mixing[place] = (block.context_vectors(place).norm(dim=-1), block.self_vectors(place).norm(dim=-1))
        mixing.setdefault("ln", mixing["res"])
    scales = {
        place: passage.scale.squeeze(-1) for place, passage in block.passages.items() if passage.scale is not None
    }
    return VectorNorms(t.projected.square().sum(-1), gaps, mixing, scales)


def _gap(rebuilt: Tensor, observed: Tensor) -> tuple[Tensor, Tensor]:
    return (rebuilt - observed).square().sum(-1), observed.square().sum(-1)


def _compiled(block: Block) -> VectorNorms:
    t = block.tensors
    width = t.total.shape[-1]
    norm = t.norm if isinstance(t.norm, Normalizing) else None
    nothing, ones = t.total.new_zeros(width), t.total.new_ones(width)
    own = block.own if t.self_attends else torch.zeros_like(t.total)
    out = t.total.new_zeros(t.total.shape[0] * t.total.shape[1], 11)
    kernels.run(
        "vectors",
        t.projected.flatten(0, 1).contiguous(),
        nothing if t.bias is None else t.bias.contiguous(),
        own.flatten(0, 1).contiguous(),
        t.residual.flatten(0, 1).contiguous(),
        t.total.flatten(0, 1).contiguous(),
        (t.total if t.normalized is None else t.normalized).flatten(0, 1).contiguous(),
        ones if norm is None or norm.gamma is None else norm.gamma.contiguous(),
        nothing if norm is None or norm.beta is None else norm.beta.contiguous(),
        norm is not None and norm.centred,
        0.0 if norm is None else norm.eps,
        norm is not None,
        out,
    )
    by_query = out.view(*t.total.shape[:2], -1).unbind(-1)
    roots = out.sqrt().view(*t.total.shape[:2], -1).unbind(-1)
    gaps: dict[PlaceName, tuple[Tensor, Tensor]] = {"res": (by_query[1], by_query[2])}
    mixing: dict[PlaceName, tuple[Tensor, Tensor]] = {"attn": (roots[3], roots[4]), "res": (roots[3], roots[5])}
    mixing["ln"] = mixing["res"]
    scales: dict[PlaceName, Tensor] = {}
    if norm is not None:
        scales["ln"] = by_query[10]
        gaps["ln"] = (by_query[6], by_query[7])
        mixing["ln"] = (roots[8], roots[9])
    return VectorNorms(by_query[0], gaps, mixing, scales)
