"""Position of a frozen pass: the layer that runs (see `normlens.anatomy.layers`), and the part of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from torch import nn

from normlens.anatomy.layers import Begin, LayerFollower
from normlens.anatomy.scope import PassScope


@dataclass
class OpSite:
    """A place in a pass: the layer (as the model runs them), the part of it, and whether inside of a layer."""

    layer: int
    inside: bool
    unit: str
    kind: str | None  # of the block in whose branch it stood
    blocks: int  # how many blocks had entered the stream before
    on_stream: bool = False  # whether the stream goes on with it: a normalization after a block, not in front of one


class Layers:
    """Follows one pass through the layers of a model."""

    def __init__(self, model: nn.Module, begin: Begin) -> None:
        self.number = 0  # the layer that runs, from 1; 0 before the first
        self.followed = LayerFollower(model, begin)
        self.attending: set[int] = set()  # layers in which softmax weights met values
        self._units: list[str] = []  # the parts of a layer that run, outermost first
        self._orders: dict[int, list[tuple[str, bool]]] = {}  # the parts of each layer as they ran; whether a norm
        self._kinds: dict[tuple[int, str], str] = {}

    def watch(self, scope: PassScope) -> None:
        """Follow the layers of the scope's model, and which of their parts runs."""
        self.followed.watch(scope)
        for module in self.followed.members:
            for name, unit in _units_of(module):
                scope.before(unit, self._enter(name, _is_norm(unit)))
                scope.after(unit, self._leave, always=True)

    def place(self, kind: str | None, blocks: int) -> OpSite:
        """The present place of the pass."""
        return OpSite(self.number, self.followed.inside, self._units[0] if self._units else "", kind, blocks)

    def mark(self, kind: str) -> None:
        """The part that runs is a block of this kind."""
        if kind in ("attention", "cross_attention"):
            self.attending.add(self.number)
        if self._units:
            self._kinds[self.number, self._units[0]] = kind

    def block_at(self, place: OpSite) -> str:
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

    def _enter(self, name: str, is_norm: bool) -> Callable[..., None]:
        def enter(module: nn.Module, args: Any, kwargs: Any) -> None:
            self._units.append(name)
            self._orders.setdefault(self.number, []).append((name, is_norm))

        return enter

    def _leave(self, module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
        if self._units:
            self._units.pop()


def _units_of(layer: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """The parts of a layer: its children, and the members of its lists."""
    for name, child in layer.named_children():
        if isinstance(child, nn.ModuleList):
            for number, member in enumerate(child):
                yield f"{name}.{number}", member
        else:
            yield name, child


def _is_norm(module: nn.Module) -> bool:
    """Return True if a part has vectors for weights and no matrix."""
    weights = list(module.parameters())
    return bool(weights) and all(weight.ndim < 2 for weight in weights)
