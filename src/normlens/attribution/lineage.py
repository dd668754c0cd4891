"""Annotations of tensors in a frozen pass."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from normlens.attribution.layers import OpSite

_NAME = "_normlens_lineage"


@dataclass(frozen=True)
class Chain:
    """A tensor that is an element-wise function of one other: `g(z)`, however many operations spell it out.

    `source` is `z`; `key` names `g` where it has no weights of its own; `bent` says that `g` is no multiple of `z`.
    """

    source: Tensor
    function: Callable[[Tensor], Tensor]
    key: Hashable | None
    bent: bool

    def at_zero(self) -> Tensor | None:
        """`g(0)`, or None where it is zero."""
        if self.key is not None:
            if self.key not in _zeros:
                _zeros[self.key] = float(self.function(torch.zeros((), dtype=torch.float64)))
            found = _zeros[self.key]
            return None if found == 0 else torch.tensor(found, dtype=self.source.dtype, device=self.source.device)
        zero = self.function(torch.zeros_like(self.source.detach())).detach()
        return zero if bool(zero.any()) else None

    def slope_at_zero(self) -> Tensor:
        """`g'(0)`."""
        # Its own hooks: the replay drops what is saved for a backward pass.
        with torch.enable_grad(), torch.autograd.graph.saved_tensors_hooks(lambda x: x, lambda x: x):
            like = torch.zeros((), dtype=torch.float64) if self.key is not None else self.source.detach()
            zero = torch.zeros_like(like).requires_grad_()
            value = self.function(zero).sum()
            if not value.requires_grad:  # a function by steps
                return torch.zeros_like(zero)
            (slope,) = torch.autograd.grad(value, zero)
        return slope


_zeros: dict[Hashable, float] = {}


class Lineage:
    """The origin of a tensor, and its role in the model."""

    __slots__ = ("alias", "born", "chain", "kind", "parts", "replaced", "shadow", "shifts", "side", "stream", "weights")

    def __init__(self, born: int, side: int | None) -> None:
        self.born = born  # the layer, as the model runs them, in which it was made
        self.side = side  # the stack whose input vectors it descends from
        self.chain: Chain | None = None
        self.kind: str | None = None  # the block in whose branch it stands: attention, cross_attention, mixer
        self.stream = False  # whether it is the residual stream itself
        self.parts: tuple[Tensor, ...] | None = None  # summands that are outputs of blocks of their own
        self.shifts: tuple[OpSite, ...] = ()  # where constants were added to the stream since the last block
        self.weights: Any = None  # attention weights: how they came from their scores
        self.shadow: Tensor | None = None  # the stream without its branches, for `direct`
        self.replaced: Tensor | None = None  # the leaf that took the place of these input vectors
        self.alias: tuple[int, Tensor] | None = None  # the same tensor as a later layer took it

    def take(self, other: Lineage) -> None:
        """Be to the model what another tensor is: on the stream, or in a branch."""
        self.stream, self.kind, self.parts = other.stream, other.kind, other.parts
        self.shadow, self.shifts = other.shadow, other.shifts


def lineage_of(tensor: Tensor) -> Lineage | None:
    """The annotation of a tensor."""
    found: Lineage | None = tensor.__dict__.get(_NAME)
    return found


def remember(tensor: Tensor, lineage: Lineage) -> None:
    """Attach a lineage."""
    tensor.__dict__[_NAME] = lineage
