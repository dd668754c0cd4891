"""One attention block taken apart: what each position gives, at each of the three places where one can look.

The places are the attention output (`attn`), the residual sum (`res`) and the normalized sum (`ln`). At each of them
the model's vector is `sum_j part_ij + bias`, where the part of position `j` in query `i` is

    part_ij = scale_i * linear(sum_h alpha_hij f_h(x_j))   (+ the residual's own contribution where i = j)

Since `linear` is the same for every pair it is given to the vectors `f_h(x_j)` (`projections`), and all norms follow
from their Gram matrices (`decompose.grams`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from normlens.decompose.heads import Projection, repeat_values
from normlens.decompose.pairs import PLACES, Pairs, PlaceName
from normlens.decompose.sketch import Sketch
from normlens.decompose.steps import Passage, Step, apply, through
from normlens.decompose.vectors import VectorNorms, vector_norms_of


def projections_of(
    weight: Float[Tensor, "head width model"], branch: tuple[Step, ...], norm: Step | None
) -> dict[PlaceName, Projection]:
    """The output projection as each place sees it; places with the same steps share one."""
    attn = Projection(weight)
    res = attn if not branch else Projection(weight, branch)
    ln = res if norm is None else Projection(weight, (*branch, norm))
    return {"attn": attn, "res": res, "ln": ln}


@dataclass(frozen=True)
class BlockTensors:
    """All that one site computed, as plain tensors."""

    pairs: Pairs
    values: Float[Tensor, "batch kv_head key width"]
    projections: Mapping[PlaceName, Projection]  # W_O by head, carried to each place
    bias: Float[Tensor, " model"] | None  # b_O
    projected: Float[Tensor, "batch query model"]  # the attention output, b_O included
    branch: tuple[Step, ...]
    residual: Float[Tensor, "batch query model"]  # as it enters the sum
    others: Float[Tensor, "batch query model"] | None  # branches beside attention
    total: Float[Tensor, "batch query model"]
    norm: Step | None
    normalized: Float[Tensor, "batch query model"] | None
    x: Float[Tensor, "batch key input"]  # as wide as the model, except where something is laid beside it (Zamba)
    self_attends: bool  # False for cross-attention, where no key is the query
    #: Of the output projection, for many positions; None: the attention output is rebuilt whole.
    output_sketch: Sketch | None = None
    #: Finds keys that are mixed up in weights and values alike; None where the values are no affine function of x.
    value_sketch: Sketch | None = None
    #: Which keys count as the query itself: its own word's subwords. None: the position alone.
    together: Bool[Tensor, "query key"] | None = None
    #: A gate on the heads' outputs with a number for each query and coordinate: see `decompose.gated`.
    gate: Float[Tensor, "batch query head width"] | None = None

    @property
    def heads(self) -> int:
        """The number of (query) heads."""
        return self.projections["attn"].weight.shape[0]


class Block:
    """The decomposition of one site; each quantity is computed when it is first asked for."""

    def __init__(self, tensors: BlockTensors) -> None:
        self.tensors = tensors

    # ---- passages to the three places ----------------------------------------------------------------------------

    @cached_property
    def passages(self) -> dict[PlaceName, Passage]:
        """How a vector of the attention output arrives at each place."""
        t = self.tensors
        res = through(t.branch, t.projected)
        return {"attn": Passage(), "res": res, "ln": res if t.norm is None else res.after(t.norm, t.total)}

    @cached_property
    def residuals(self) -> dict[PlaceName, Tensor | None]:
        """The residual's own contribution at each place; none at the attention output."""
        t = self.tensors
        ln = t.residual if t.norm is None else Passage().after(t.norm, t.total).carry(t.residual)
        return {"attn": None, "res": t.residual, "ln": ln}

    @cached_property
    def observed(self) -> dict[PlaceName, Tensor]:
        """What the model itself computed at each place."""
        t = self.tensors
        return {"attn": t.projected, "res": t.total, "ln": t.total if t.normalized is None else t.normalized}

    @property
    def places(self) -> tuple[PlaceName, ...]:
        """The places that differ: without a normalization behind the sum there are two."""
        return PLACES if self.tensors.norm is not None else PLACES[:2]

    # ---- vectors per query: O(n d) memory ------------------------------------------------------------------------

    @cached_property
    def values_by_head(self) -> Float[Tensor, "batch head key width"]:
        """The value vectors by query head."""
        return repeat_values(self.tensors.values, self.tensors.heads)

    @cached_property
    def own(self) -> Float[Tensor, "batch query model"]:
        """`sum_h alpha_hii f_h(x_i)`, what each position's attention takes from itself (or from its own word)."""
        pairs = self.tensors.pairs
        if self.tensors.together is not None:
            assert pairs.alpha is not None, "words need the weights"
            return self.project(((pairs.alpha * self.tensors.together) @ self.values_by_head).transpose(1, 2))
        return self._diagonal_part

    @cached_property
    def _diagonal_part(self) -> Float[Tensor, "batch query model"]:
        pairs = self.tensors.pairs
        if pairs.own is not None and pairs.seen_by is None:
            return pairs.own
        assert pairs.diagonal is not None, "the diagonal must have been asked for"
        diagonal = pairs.diagonal.transpose(1, 2).unsqueeze(-1)
        return self.project(diagonal * self.values_by_head.transpose(1, 2))

    def project(self, by_head: Float[Tensor, "batch query head width"]) -> Float[Tensor, "batch query model"]:
        """Vectors by head, carried through the gate, where there is one, and `W_O`, and added."""
        if self.tensors.gate is not None:
            by_head = by_head * self.tensors.gate
        return by_head.flatten(2) @ self.tensors.projections["attn"].weight.flatten(0, 1)

    def rebuilt(
        self, place: PlaceName, summed: Float[Tensor, "batch query model"]
    ) -> Float[Tensor, "batch query model"]:
        """Parts (whose sum at the attention output is `summed`), residual and biases added up, at a place."""
        t = self.tensors
        vectors, y = summed if t.bias is None else summed + t.bias, t.projected
        if place == "attn":
            return vectors
        for step in t.branch:
            vectors, y = apply(step, vectors, y), apply(step, y)
        vectors = vectors + t.residual if t.others is None else vectors + t.residual + t.others
        return vectors if place == "res" or t.norm is None else apply(t.norm, vectors, t.total)

    def self_vectors(self, place: PlaceName) -> Float[Tensor, "batch query model"]:
        """What each position contributes to itself, the residual included. In cross-attention: the residual alone."""
        residual = self.residuals[place]
        if not self.tensors.self_attends:
            return torch.zeros_like(self.tensors.projected) if residual is None else residual
        return self._with_residual(self.own_behind(place), place)

    def _with_residual(self, behind: Tensor, place: PlaceName) -> Float[Tensor, "batch query model"]:
        """Vectors that went through a place's steps but for their scale, with the residual's contribution there."""
        residual, scale = self.residuals[place], self.passages[place].scale
        vectors = behind if scale is None else behind * scale
        return vectors if residual is None else vectors + residual

    def own_behind(self, place: PlaceName) -> Float[Tensor, "batch query model"]:
        """`own` behind the steps to a place, not yet scaled."""
        t = self.tensors
        if t.pairs.own is not None and t.pairs.seen_by is t.projections[place] and t.together is None:
            return t.pairs.own
        return self.passages[place].linear(self.own)

    def context_vectors(self, place: PlaceName) -> Float[Tensor, "batch query model"]:
        """The sum of what all *other* positions contribute (cross-attention: all source positions)."""
        t, passage = self.tensors, self.passages[place]
        vectors = passage.linear(t.projected if t.bias is None else t.projected - t.bias)
        if t.self_attends:
            vectors = vectors - self.own_behind(place)
        return vectors if passage.scale is None else vectors * passage.scale

    @property
    def self_places(self) -> tuple[PlaceName, ...]:
        """The places that differ and at which the own part is known without another product of the width squared."""
        t = self.tensors
        return tuple(p for p in self.places if t.pairs.seen_by is None or t.projections[p] is t.pairs.seen_by)

    # ---- norms ---------------------------------------------------------------------------------------------------

    @cached_property
    def vectors(self) -> VectorNorms:
        """The norms and differences of all vectors that have one per query."""
        return vector_norms_of(self)

    def part_norms(self, place: PlaceName) -> Float[Tensor, "batch query key"]:
        """`‖part_ij‖` at a place."""
        norms, scale = self.tensors.pairs.norms[place], self.vectors.scales.get(place)
        # Several places may share these norms, so they are changed in a copy.
        norms = norms.clone() if scale is None else norms * scale.abs().unsqueeze(-1)
        if self.tensors.self_attends and place != "attn":
            if self.tensors.together is None:
                own = self.vectors.mixing[place][1]
            else:
                own = self._with_residual(self.passages[place].linear(self._diagonal_part), place).norm(dim=-1)
            norms.diagonal(dim1=-2, dim2=-1).copy_(own)
        return norms
