"""The layers of a model: members of its outermost lists of modules, in the order in which a pass calls them.

Lists that run beside another one (a norm for each layer, say) are its companions and have no layers of their own.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

from torch import nn

from normlens.anatomy.examine import few_tokens, trace_pass
from normlens.anatomy.interface import clone_inputs, run_arguments
from normlens.anatomy.operations import all_tensors
from normlens.anatomy.scope import PassScope
from normlens.anatomy.trace import Recorder
from normlens.errors import AnatomyError
from normlens.types import ModelInputs

_LISTS = (nn.ModuleList, nn.Sequential, nn.ModuleDict)
#: Arguments of a layer to those with which it shall run.
Begin = Callable[[Any, Any], tuple[Any, Any] | None]


@dataclass(frozen=True)
class Member:
    """A module that runs as a layer: whose list it is in, which list, and where in it."""

    parent: int
    list: int
    index: int


@dataclass(frozen=True)
class LayerCall:
    """One call of a layer; `attends` says that softmax weights meet values in it."""

    module: nn.Module
    attends: bool


def layer_members(model: nn.Module) -> dict[nn.Module, Member]:
    """Members of the outermost lists that hold at least two matrices."""
    found: dict[nn.Module, Member] = {}

    def visit(module: nn.Module) -> None:
        for child in module.children():
            if not isinstance(child, _LISTS):
                visit(child)
                continue
            for index, member in enumerate(_flattened(child)):
                if sum(p.ndim >= 2 for p in member.parameters()) >= 2:
                    found.setdefault(member, Member(id(module), id(child), index))
                else:
                    visit(member)

    visit(model)
    return found


def _flattened(modules: nn.Module) -> Iterator[nn.Module]:
    """Yield the members of a list, and those of lists in it: a list is not called itself."""
    for member in modules.children():
        if isinstance(member, nn.ModuleList | nn.ModuleDict):
            yield from _flattened(member)
        else:
            yield member


class LayerFollower:
    """Follows the calls of layers in a pass.

    Args:
        model: The model whose layers are followed.
        begin: Takes the arguments of a layer that begins and returns those with which it shall run; None where no vectors
            enter, so that it is no layer.
    """

    def __init__(self, model: nn.Module, begin: Begin) -> None:
        self.calls: list[nn.Module] = []  # in their order
        self.skipped: set[nn.Module] = set()
        self.continues = False  # whether another layer of the same list ran before the one that begins
        self.beginning = 0  # the list of the layer that begins
        self.module: nn.Module | None = None  # the layer that begins
        self._members, self._begin = layer_members(model), begin
        self._depth = 0
        self._companions: set[int] = set()
        self._leading: dict[int, Member] = {}

    @property
    def members(self) -> Iterable[nn.Module]:
        """The modules that may run as layers."""
        return self._members

    def lists_of(self, modules: Collection[nn.Module]) -> set[int]:
        """The lists that hold these modules."""
        return {self._members[module].list for module in modules if module in self._members}

    @property
    def inside(self) -> bool:
        """True while a member runs."""
        return self._depth > 0

    def watch(self, scope: PassScope) -> None:
        """Follow what runs in the scope."""
        for module, member in self._members.items():
            # Not a hook: some families call a layer's `forward` themselves.
            scope.replace(module, "forward", partial(self._follow, module=module, member=member))

    def _follow(self, forward: Callable[..., Any], module: nn.Module, member: Member) -> Callable[..., Any]:
        def layer(*args: Any, **kwargs: Any) -> Any:
            self._depth += 1
            try:
                if self._depth == 1 and not self._is_companion(member):
                    self.beginning, self.module = member.list, module
                    leading = self._leading.get(member.parent)
                    self.continues = (
                        leading is not None and leading.list == member.list and member.index > leading.index
                    )
                    changed = self._begin(args, kwargs)
                    if changed is None:
                        self.skipped.add(module)
                    else:
                        self.calls.append(module)
                        self._leading[member.parent] = member
                        args, kwargs = changed
                return forward(*args, **kwargs)
            finally:
                self._depth -= 1

        return layer

    def _is_companion(self, member: Member) -> bool:
        """Return True for a member of a list that runs beside a list of layers."""
        leading = self._leading.get(member.parent)
        if leading is not None and leading.list != member.list and leading.index == 0:
            self._companions.add(member.list)
        return member.list in self._companions


def trace_layers(model: nn.Module, inputs: ModelInputs | None) -> tuple[LayerCall, ...]:
    """The calls of layers in a pass over `inputs` (a few tokens where none are given), from a trace."""
    begun: list[int] = []
    recorder = Recorder(model)

    def begin(args: Any, kwargs: Any) -> Any:
        if not any(x.is_floating_point() and x.ndim >= 3 for x in all_tensors((args, kwargs))):
            return None
        begun.append(recorder.trace.products)
        return args, kwargs

    layers = LayerFollower(model, begin)
    try:
        trace_pass(model, inputs, recorder, layers)
        products = [*begun[1:], recorder.trace.products]
        attends = [after > before for before, after in zip(begun, products, strict=True)]
    except AnatomyError:  # attention that cannot be followed: the layers are there all the same
        layers = LayerFollower(model, lambda args, kwargs: begin(args, kwargs))
        with PassScope(model) as scope:
            layers.watch(scope)
            model(**run_arguments(model, few_tokens(model) if inputs is None else clone_inputs(dict(inputs))))
        attends = [False] * len(layers.calls)
    return tuple(map(LayerCall, layers.calls, attends))
