"""Where a pass is: the layers of a model as it runs them, and the parts of a layer.

A *layer* is a call of a member of an outermost list of modules. Lists that run beside another one (a norm for each layer,
say) are its companions and have no layers of their own.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from normlens.anatomy.scope import PassScope

#: Takes the arguments of a layer and gives those with which it shall run; None where no vectors enter.
Begin = Callable[[Any, Any], Any]


@dataclass
class Place:
    """Where something happened: the layer (as the model runs them), the part of it, and whether inside of a layer."""

    layer: int
    inside: bool
    unit: str
    kind: str | None  # of the block in whose branch it stood
    blocks: int  # how many blocks had entered the stream before
    on_stream: bool = False  # whether the stream goes on with it: a normalization after a block, not in front of one


@dataclass(frozen=True)
class _Member:
    """A module that runs as a layer: whose list it is in, which list, and where in it."""

    parent: int
    list: int
    index: int


class Layers:
    """Follows one pass through the layers of a model."""

    def __init__(self, model: nn.Module) -> None:
        self.number = 0  # the layer that runs, from 1; 0 before the first
        self._members = _members(model)
        self._depth = 0
        self._units: list[str] = []  # the parts of a layer that run, outermost first
        self._orders: dict[int, list[tuple[str, bool]]] = {}  # the parts of each layer as they ran; whether a norm
        self._kinds: dict[tuple[int, str], str] = {}
        self._companions: set[int] = set()
        self._leading: dict[int, _Member] = {}

    def watch(self, scope: PassScope, begin: Begin) -> None:
        """Follow the layers of the scope's model, and which of their parts runs."""
        for module, member in self._members.items():
            # Not a hook: some families call a layer's `forward` themselves.
            scope.replace(module, "forward", functools.partial(self._as_layer, member=member, begin=begin))
            for name, unit in _units_of(module):
                scope.before(unit, self._enter(name, _is_norm(unit)))
                scope.after(unit, self._leave, always=True)

    def place(self, kind: str | None, blocks: int) -> Place:
        """Where the pass is."""
        return Place(self.number, self._depth > 0, self._units[0] if self._units else "", kind, blocks)

    def mark(self, kind: str) -> None:
        """The part that runs is a block of this kind."""
        if self._units:
            self._kinds[self.number, self._units[0]] = kind

    def block_at(self, place: Place) -> str:
        """The kind of block to which a place in a layer belongs.

        A normalization that stands directly in the layer belongs to the part that it feeds, or, where the residual stream
        goes on normalized, to the part that it follows; on a branch it belongs to that branch.
        """
        order, unit = self._orders.get(place.layer, []), place.unit
        is_norm = dict(order).get(unit, True)
        if is_norm and place.kind is not None:
            return place.kind
        if is_norm and unit:
            index = [name for name, _ in order].index(unit)
            before, after = ([n for n, norm in some if not norm] for some in (order[:index], order[index + 1 :]))
            near = (before[::-1] or after) if place.on_stream or not after else after
            unit = near[0] if near else unit
        return self._kinds.get((place.layer, unit), "feed_forward")

    # ---- hooks -------------------------------------------------------------------------------------------------------

    def _as_layer(self, forward: Any, member: _Member, begin: Begin) -> Any:
        def layer(*args: Any, **kwargs: Any) -> Any:
            self._depth += 1
            try:
                changed = begin(args, kwargs) if self._begins(member) else None
                if changed is not None:
                    self._leading[member.parent] = member
                    args, kwargs = changed
                return forward(*args, **kwargs)
            finally:
                self._depth -= 1

        return layer

    def _begins(self, member: _Member) -> bool:
        """Whether a layer begins here, and not inside of another or beside one."""
        if self._depth > 1 or not torch.is_grad_enabled() or member.list in self._companions:
            return False
        leading = self._leading.get(member.parent)
        if leading is not None and leading.list != member.list and leading.index == 0:
            self._companions.add(member.list)
            return False
        return True

    def _enter(self, name: str, is_norm: bool) -> Callable[..., None]:
        def enter(module: nn.Module, args: Any, kwargs: Any) -> None:
            self._units.append(name)
            self._orders.setdefault(self.number, []).append((name, is_norm))

        return enter

    def _leave(self, module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
        if self._units:
            self._units.pop()


def _members(model: nn.Module) -> dict[nn.Module, _Member]:
    """Members of the outermost lists that hold a matrix."""
    found: dict[nn.Module, _Member] = {}

    def visit(module: nn.Module) -> None:
        for child in module.children():
            if isinstance(child, nn.ModuleList | nn.Sequential | nn.ModuleDict):
                for index, member in enumerate(child.children()):
                    if isinstance(member, nn.ModuleList | nn.ModuleDict):  # a list of lists: these are not called
                        visit(nn.ModuleList([member]))
                    elif sum(p.ndim >= 2 for p in member.parameters()) >= 2:
                        found.setdefault(member, _Member(id(module), id(child), index))
                    else:
                        visit(member)
            else:
                visit(child)

    visit(model)
    return found


def _units_of(layer: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """The parts of a layer: its children, and the members of its lists."""
    for name, child in layer.named_children():
        if isinstance(child, nn.ModuleList):
            for number, member in enumerate(child):
                yield f"{name}.{number}", member
        else:
            yield name, child


def _is_norm(module: nn.Module) -> bool:
    """Whether a part has vectors for weights and no matrix."""
    weights = list(module.parameters())
    return bool(weights) and all(weight.ndim < 2 for weight in weights)
