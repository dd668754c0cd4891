"""One attention block taken apart: what each position gives, at each of the three places where one can look.

The places are the attention output (`attn`), the residual sum (`res`) and the normalized sum (`ln`). At each of them
the model's vector is `sum_j part_ij + bias`, where the part of position `j` in query `i` is

    part_ij = scale_i * linear(sum_h alpha_hij f_h(x_j))   (+ the residual's own contribution where i = j)

Since `linear` is the same for every pair it is given to `W_O` once, and all norms follow from `decompose.heads`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from normlens.decompose.heads import head_gram, repeat_values, summed_norm, vector_norms
from normlens.decompose.steps import Passage, Step, through

PlaceName = Literal["attn", "res", "ln"]
PLACES: tuple[PlaceName, ...] = ("attn", "res", "ln")


@dataclass(frozen=True)
class BlockTensors:
    """All that one site computed, as plain tensors."""

    alpha: Float[Tensor, "batch head query key"]
    values: Float[Tensor, "batch kv_head key width"]
    weight: Float[Tensor, "head width model"]  # W_O by head
    bias: Float[Tensor, " model"] | None  # b_O
    projected: Float[Tensor, "batch query model"]  # the attention output, b_O included
    branch: tuple[Step, ...]
    residual: Float[Tensor, "batch query model"]  # as it enters the sum
    others: Float[Tensor, "batch query model"] | None  # branches beside attention
    total: Float[Tensor, "batch query model"]
    norm: Step | None
    normalized: Float[Tensor, "batch query model"] | None
    x: Float[Tensor, "batch key model"]
    self_attends: bool  # False for cross-attention, where no key is the query
    #: Which keys count as the query itself: its own word's subwords. None: the position alone.
    together: Bool[Tensor, "query key"] | None = None


class Block:
    """The decomposition of one site; each quantity is computed when it is first asked for."""

    def __init__(self, tensors: BlockTensors) -> None:
        self.tensors = tensors
        self.heads = tensors.alpha.shape[1]
        self._by_steps: dict[tuple[Step, ...], _Projected] = {}

    # ---- passages to the three places ----------------------------------------------------------------------------

    @cached_property
    def passages(self) -> dict[PlaceName, Passage]:
        """How a vector of the attention output arrives at each place."""
        t = self.tensors
        attn = Passage(shift=t.bias)
        res = through(t.branch, t.projected, attn)
        if t.others is not None:
            res = Passage(res.steps, res.scale, t.others if res.shift is None else t.others + res.shift)
        ln = res if t.norm is None else res.after(t.norm, t.total)
        return {"attn": attn, "res": res, "ln": ln}

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

    # ---- vectors per query: O(n d) memory ------------------------------------------------------------------------

    @cached_property
    def values_by_head(self) -> Float[Tensor, "batch head key width"]:
        """The value vectors by query head."""
        return repeat_values(self.tensors.values, self.heads)

    @cached_property
    def summed(self) -> Float[Tensor, "batch query model"]:
        """`sum_j sum_h alpha_hij f_h(x_j)`, rebuilt from weights and values."""
        return self._project(self.tensors.alpha @ self.values_by_head)

    @cached_property
    def own(self) -> Float[Tensor, "batch query model"]:
        """`sum_h alpha_hii f_h(x_i)`, what each position's attention takes from itself (or from its own word)."""
        if self.tensors.together is not None:
            return self._project((self.tensors.alpha * self.tensors.together) @ self.values_by_head)
        diagonal = self.tensors.alpha.diagonal(dim1=-2, dim2=-1)
        return self._project(diagonal.unsqueeze(-1) * self.values_by_head)

    def _project(self, by_head: Float[Tensor, "batch head query width"]) -> Float[Tensor, "batch query model"]:
        return by_head.transpose(1, 2).flatten(2) @ self.tensors.weight.flatten(0, 1)

    def rebuilt(self, place: PlaceName) -> Float[Tensor, "batch query model"]:
        """Parts, residual and biases added up: what the model must have computed at this place."""
        passage, residual = self.passages[place], self.residuals[place]
        vectors = passage.carry(self.summed)
        if residual is not None:
            vectors = vectors + residual
        return vectors if passage.shift is None else vectors + passage.shift

    def self_vectors(self, place: PlaceName) -> Float[Tensor, "batch query model"]:
        """What each position contributes to itself, the residual included. In cross-attention: the residual alone."""
        residual = self.residuals[place]
        if not self.tensors.self_attends:
            return torch.zeros_like(self.tensors.projected) if residual is None else residual
        vectors = self.passages[place].carry(self.own)
        return vectors if residual is None else vectors + residual

    def context_vectors(self, place: PlaceName) -> Float[Tensor, "batch query model"]:
        """The sum of what all *other* positions contribute (cross-attention: all source positions)."""
        others = self.tensors.projected if self.tensors.bias is None else self.tensors.projected - self.tensors.bias
        if self.tensors.self_attends:
            others = others - self.own
        return self.passages[place].carry(others)

    # ---- norms per pair ------------------------------------------------------------------------------------------

    @cached_property
    def vector_norms(self) -> Float[Tensor, "batch head key"]:
        """`‖f_h(x_j)‖`."""
        return vector_norms(self._projected("attn").gram)

    def part_norms(self, place: PlaceName) -> Float[Tensor, "batch query key"]:
        """`‖part_ij‖` at a place."""
        passage = self.passages[place]
        norms = self._projected(place).norms
        if passage.scale is not None:
            norms = norms * passage.scale.abs()
        if self.tensors.self_attends and self.residuals[place] is not None:
            norms = norms.clone()
            norms.diagonal(dim1=-2, dim2=-1).copy_(self._diagonal(place).norm(dim=-1))
        return norms

    def _diagonal(self, place: PlaceName) -> Float[Tensor, "batch query model"]:
        """The vector of the pair (i, i), the residual included."""
        if self.tensors.together is None:
            return self.self_vectors(place)
        return Block(replace(self.tensors, together=None)).self_vectors(place)

    def _projected(self, place: PlaceName) -> _Projected:
        passage = self.passages[place]
        if passage.steps not in self._by_steps:
            weight = passage.linear(self.tensors.weight)
            self._by_steps[passage.steps] = _Projected(self.tensors.alpha, self.values_by_head, weight)
        return self._by_steps[passage.steps]


@dataclass(frozen=True)
class _Projected:
    """The Gram form for one version of the output projection, shared by the places that see the same one."""

    alpha: Tensor
    values: Tensor
    weight: Tensor

    @cached_property
    def gram(self) -> Float[Tensor, "batch key head head"]:
        return head_gram(self.values, self.weight)

    @cached_property
    def norms(self) -> Float[Tensor, "batch query key"]:
        return summed_norm(self.alpha, self.gram, self.values, self.weight)
