"""The structure of a model: a list of sites, each with the modules and places that matter.

These are plain descriptions. They are made by `normlens.anatomy.reading` and used by `normlens.measures.run`; a site
refers to modules of the model, never copies weights, so a model that is trained further is described by the same site.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from transformers.pytorch_utils import Conv1D

from normlens.anatomy.kinds import Kind, in_order, is_cross
from normlens.anatomy.operations import KeyPath, OperationKey
from normlens.decompose.feed_forward import Node
from normlens.decompose.steps import Normalization, Scaling, Step

Placement = Literal["post", "pre", "branch"]


@dataclass(frozen=True)
class TensorRef:
    """A tensor that can be read during a run: one argument or output of one call of one module.

    Where a value never passes a module's boundary, it is an operand or the result of one `operation` inside the call.
    """

    module: nn.Module
    path: str
    side: Literal["input", "output"]
    key: KeyPath
    occurrence: int
    operation: OperationKey | None = None
    sequence_first: bool = False  # (position, batch, width) instead of (batch, position, width)
    changes: bool = False  # written into afterwards, so that it must be copied when it is read

    def __str__(self) -> str:
        what = f"{self.side} {'.'.join(map(str, self.key)) or '(whole)'}"
        if self.operation is not None:
            what += f" of operation {self.operation.name} {self.operation.segment}.{self.operation.nth}"
        return f"{what} of {self.path}"


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
            weight: Tensor = self.module.weight
            return weight.detach()
        return self._probe_matrix()[0]

    def bias(self) -> Float[Tensor, " output"] | None:
        """`b`, or None where the map has none."""
        if type(self.module) is nn.Linear or isinstance(self.module, Conv1D):
            bias: Tensor | None = self.module.bias
            return None if bias is None else bias.detach()
        return self._probe_matrix()[1]

    def _probe_matrix(self) -> tuple[Tensor, Tensor]:
        # A wrapped projection keeps its weights in its own way; what it does to the unit vectors is its matrix.
        weight = next(self.module.parameters())
        width = int(self.module.in_features)  # type: ignore[arg-type]
        units = torch.eye(width, dtype=weight.dtype, device=weight.device)
        with torch.no_grad():
            bias = self.module(units.new_zeros(1, width))[0]
            return self.module(units) - bias, bias


#: Layouts that depend on how a tensor lies in memory: a reshape gives the same numbers without asking.
_RESHAPES = {"view": "reshape", "_unsafe_view": "reshape", "_reshape_alias": "reshape"}


#: One operation that gives a tensor another layout: its name, its arguments, and which of its results counts.
Layout = tuple[str, tuple[object, ...], int | None]


def laid_out(tensor: Tensor, steps: tuple[Layout, ...]) -> Tensor:
    """The tensor after these operations."""
    for name, arguments, index in steps:
        result = getattr(torch.ops.aten, _RESHAPES.get(name, name))(tensor, *arguments)
        tensor = result if index is None else result[index]
    return tensor


@dataclass(frozen=True)
class ParameterMap:
    """An affine map that no module of its own does: a product with a parameter in the middle of a model's code."""

    module: nn.Module  # in whose code the product stands
    weight: Tensor
    shift: Tensor | None
    steps: tuple[Layout, ...]  # the operations that lay the weight out as (input, output)
    shift_steps: tuple[Layout, ...]
    path: str

    @cached_property
    def width(self) -> tuple[int, int]:
        """The widths of input and output."""
        weight = self.matrix()
        return weight.shape[0], weight.shape[1]

    def matrix(self) -> Float[Tensor, "input output"]:
        """`W`, so that the map is `x @ W + b`."""
        weight = laid_out(self.weight.detach(), self.steps)
        return weight.reshape(weight.shape[-2], weight.shape[-1])

    def bias(self) -> Float[Tensor, " output"] | None:
        """`b`, or None where the map has none."""
        return None if self.shift is None else laid_out(self.shift.detach(), self.shift_steps)


AffineMap = LinearMap | ParameterMap


@dataclass(frozen=True)
class Gate:
    """Numbers that multiply the heads' outputs on their way to the output projection, computed from the input."""

    place: TensorRef
    path: str
    heads_first: bool  # (batch, head, query, …) instead of (batch, query, head, …)
    by_coordinate: bool  # one number per coordinate; otherwise one per query and head, which joins the weights


InnerStep = Normalization | Scaling | Gate


@dataclass(frozen=True)
class ValueMap:
    """The affine map from `x` to the value vectors: columns of what one module computes."""

    linear: AffineMap
    columns: Int[Tensor, "kv_head value_width"]


@dataclass(frozen=True)
class FeedForward:
    """The feed-forward block of a layer: how its tree is made from the weights, and what is read of it in a run."""

    build: Callable[[torch.dtype], Node]
    places: tuple[TensorRef, ...]  # what the tree names
    output: TensorRef  # what its last linear map gave
    branch: tuple[Step, ...]  # between that and the sum
    stream: tuple[Step, ...]  # on the stream's own way to the sum
    parallel: bool  # it reads the layer's input and stands beside attention
    routed: bool  # a router decides what runs


@dataclass(frozen=True)
class LayerEnd:
    """The end of a layer after its attention block: the last residual sum, and the normalization that follows it.

    Where the feed-forward block stands beside attention the layer ends with the attention block's own sum.
    """

    total: TensorRef
    norm: Normalization | None
    normalized: TensorRef | None
    feed_forward: FeedForward | str  # a sentence where it could not be read


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
    standard: bool  # the attention is the plain one, which may be computed block by block
    inner: tuple[InnerStep, ...]  # between attention and the output projection
    projection: AffineMap
    groups: tuple[float, ...]  # factors of equal groups of heads that are added up before the projection; (): none are
    rows: Int[Tensor, " heads_width"] | None  # which row of the projection each coordinate of the heads meets
    projected: TensorRef  # what the output projection gave
    branch: tuple[Step, ...]  # between the projection and the residual sum
    residual: TensorRef | None  # None where the attention output joins nothing (Zamba): the residual is zero
    residual_steps: tuple[Step, ...]  # between the residual and the sum
    others: tuple[TensorRef, ...]  # branches added beside attention (a parallel MLP): they belong to no part
    total: TensorRef  # the residual sum
    norm: Normalization | None  # the normalization that follows the sum
    normalized: TensorRef | None
    x: TensorRef  # the vectors that f acts on
    value_map: ValueMap | None  # None where the values are no affine function of x
    #: Numbers by position and residual stream that write the branch into the streams (hyper-connections); None: one stream.
    stream_weights: TensorRef | None = None
    gated: bool = False  # a gate by coordinate makes f depend on the query: it has no norm of its own
    calls: int = 1  # of the attention function, each over a part of the values' width
    followed: bool = False  # attention in the family's own code, met by following the data
    #: Whether queries and keys are positions of text, of which padding masks speak; patches and frames are not.
    of_text: tuple[bool, bool] = (True, True)
    end: LayerEnd | str = "it was not read"  # where the layer ends; a sentence where that could not be read

    @property
    def is_cross(self) -> bool:
        """Return True for cross-attention, whose keys are not its queries."""
        return is_cross(self.kind)

    @property
    def placement(self) -> Placement:
        """The position of the normalization."""
        if self.norm is not None:
            return "post"
        return "branch" if any(isinstance(step, Normalization) for step in self.branch) else "pre"

    @property
    def places(self) -> tuple[TensorRef, ...]:
        """The tensors that are read: projected output, residual, other branches, the sum, its norm, and `x`."""
        read = (self.projected, self.residual, *self.others, self.total, self.normalized, self.x)
        return tuple(place for place in read if place is not None)

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
        """The kinds of site that the model has, in the order in which they are listed."""
        return in_order(site.kind for site in self.sites)

    @property
    def holds_numbers(self) -> bool:
        """Return True if numbers that the model computed from its weights stand in the description, good for these alone."""
        steps = [step for site in self.sites for step in (*site.inner, *site.branch, *site.residual_steps)]
        numbers = any(isinstance(step, Scaling) and isinstance(step.factor, float) for step in steps)
        return numbers or any(site.groups for site in self.sites)

    def of(self, kind: Kind) -> tuple[Site, ...]:
        """The sites of one kind, by layer."""
        return tuple(site for site in self.sites if site.kind == kind)

    def layers(self, kind: Kind) -> tuple[int, ...]:
        """The layers that have a site of this kind."""
        return tuple(site.layer for site in self.of(kind))
