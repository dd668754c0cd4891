"""What a model looks like to normlens: a list of sites, each with the modules and places that matter.

These are plain descriptions. They are made by `normlens.anatomy.reading` and used by `normlens.capture`; a site
refers to modules of the model, never copies weights, so a model that is trained further is described by the same site.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from transformers.pytorch_utils import Conv1D

from normlens.anatomy.trace import KeyPath

Kind = Literal["encoder", "decoder", "cross"]
KINDS: tuple[Kind, ...] = ("encoder", "decoder", "cross")

Placement = Literal["post", "pre", "branch"]


@dataclass(frozen=True)
class Place:
    """A tensor that can be read during a run: one argument or output of one call of one module."""

    module: nn.Module
    path: str
    side: Literal["input", "output"]
    key: KeyPath
    occurrence: int

    def __str__(self) -> str:
        return f"{self.side} {'.'.join(map(str, self.key)) or '(whole)'} of {self.path}"


@dataclass(frozen=True)
class LinearMap:
    """An affine map `x W + b` done by one module: Linear, Conv1D, or anything that behaves like them (LoRA, say)."""

    module: nn.Module
    path: str

    @cached_property
    def width(self) -> tuple[int, int]:
        """The widths of input and output."""
        weight = self.matrix()
        return weight.shape[0], weight.shape[1]

    def matrix(self) -> Float[Tensor, "input output"]:
        """`W`, so that the map is `x @ W + b`."""
        if type(self.module) is nn.Linear:
            return self.module.weight.detach().T
        if isinstance(self.module, Conv1D):
            return self.module.weight.detach()
        return self._asked()[0]

    def bias(self) -> Float[Tensor, " output"] | None:
        """`b`, or None where the map has none."""
        if type(self.module) is nn.Linear or isinstance(self.module, Conv1D):
            bias: Tensor | None = self.module.bias
            return None if bias is None else bias.detach()
        return self._asked()[1]

    def _asked(self) -> tuple[Tensor, Tensor]:
        # A wrapped projection keeps its weights in its own way; what it does to the unit vectors is its matrix.
        weight = next(self.module.parameters())
        width = self.module.in_features
        units = torch.eye(width, dtype=weight.dtype, device=weight.device)
        with torch.no_grad():
            bias = self.module(units.new_zeros(1, width))[0]
            return self.module(units) - bias, bias


@dataclass(frozen=True)
class Norm:
    """A normalization: `gamma * (y - mean(y) if centred) / s(y) + beta`, with gamma = `offset` + weight."""

    module: nn.Module
    path: str
    centred: bool
    offset: float
    weight: Tensor | None
    bias: Tensor | None
    eps: float

    def gamma(self) -> Tensor | None:
        """The scale, or None where the normalization has none."""
        return None if self.weight is None else self.weight.detach() + self.offset

    def beta(self) -> Tensor | None:
        """The shift, or None where the normalization has none."""
        return None if self.bias is None else self.bias.detach()


@dataclass(frozen=True)
class Scale:
    """A constant on the branch: one number, or one number per coordinate (layer scale)."""

    factor: float | Tensor


Step = Norm | Scale


@dataclass(frozen=True)
class ValueMap:
    """The affine map from `x` to the value vectors: columns of what one module computes."""

    linear: LinearMap
    columns: Int[Tensor, "kv_head value_width"]


@dataclass(frozen=True)
class Site:
    """One attention block in one layer, and how its output joins the residual stream."""

    kind: Kind
    layer: int
    attention: nn.Module
    path: str
    heads: int
    kv_heads: int
    value_width: int
    textbook: bool  # the attention is the plain one, which may be computed block by block
    projection: LinearMap
    projected: Place  # what the output projection gave
    branch: tuple[Step, ...]  # between the projection and the residual sum
    residual: Place
    residual_scale: float
    others: tuple[Place, ...]  # branches added beside attention (a parallel MLP): they belong to no part
    total: Place  # the residual sum
    norm: Norm | None  # the normalization that follows the sum
    normalized: Place | None
    x: Place  # the vectors that f acts on
    value_map: ValueMap | None  # None where the values are no affine function of x

    @property
    def placement(self) -> Placement:
        """Where the normalization stands."""
        if self.norm is not None:
            return "post"
        return "branch" if any(isinstance(step, Norm) for step in self.branch) else "pre"

    @property
    def width(self) -> int:
        """The width of the residual stream."""
        return self.projection.width[1]

    def __str__(self) -> str:
        return f"{self.kind} layer {self.layer} ({self.path})"


@dataclass(frozen=True)
class Anatomy:
    """All sites of one model, in the order in which they run."""

    family: str
    sites: tuple[Site, ...]

    @property
    def kinds(self) -> tuple[Kind, ...]:
        """The kinds of site that the model has, in the order encoder, decoder, cross."""
        return tuple(kind for kind in KINDS if any(site.kind == kind for site in self.sites))

    def of(self, kind: Kind) -> tuple[Site, ...]:
        """The sites of one kind, by layer."""
        return tuple(site for site in self.sites if site.kind == kind)

    def layers(self, kind: Kind) -> tuple[int, ...]:
        """The layers that have a site of this kind."""
        return tuple(site.layer for site in self.of(kind))
