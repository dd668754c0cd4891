"""Read tensors in the middle of a run that pass no module's boundary, and attention that no interface reports.

The dispatcher is watched only inside the calls where something is to be read, so a family whose tensors all pass a
boundary pays nothing. Operations are counted as in the trace: the `nth` of a name after the call began `segment`
others.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from normlens.anatomy.description import TensorRef
from normlens.anatomy.follow import AttentionProduct, SoftmaxFollower
from normlens.anatomy.operations import OpenCall, OperationKey, tensors_in
from normlens.anatomy.scope import PassScope, unfused

Seen = Callable[[TensorRef, Tensor], None]
Attended = Callable[[nn.Module, AttentionProduct], None]


def _ignore(*_: object) -> None:
    """Ignore what is reported."""


@dataclass
class _Frame:
    """One open call of a module, and what is looked for in it."""

    module: nn.Module
    wanted: dict[OperationKey, list[TensorRef]]
    follower: SoftmaxFollower | None
    watching: bool
    call: OpenCall = field(default_factory=OpenCall)


class InternalTensorReader(TorchDispatchMode):
    """Hands each wanted value to `seen` and each followed attention to `attended`, as they appear."""

    def __init__(self, places: Collection[TensorRef], followed: Collection[nn.Module], batch: int) -> None:
        super().__init__()
        self._wanted: dict[tuple[nn.Module, int], dict[OperationKey, list[TensorRef]]] = defaultdict(
            lambda: defaultdict(list)
        )
        for place in places:
            if place.operation is not None:
                self._wanted[place.module, place.occurrence][place.operation].append(place)
        self._followed = set(followed)
        self._batch = batch
        self._seen: Seen = _ignore
        self._attended: Attended = _ignore
        self._frames: list[_Frame] = []
        self._occurrences: dict[nn.Module, int] = defaultdict(int)
        self._paused = False

    def watch(self, scope: PassScope, seen: Seen, attended: Attended) -> None:
        """Hook every module of the model, since calls are counted; no attention is fused, so that its softmax is seen."""
        self._seen, self._attended = seen, attended
        scope.enter(unfused())
        scope.on_exit(self._close)
        for module in scope.model.modules():
            scope.before(module, self._enter, prepend=True)
            scope.after(module, self._leave, always=True)

    def _close(self) -> None:
        """Leave the dispatcher, and drop the listeners: they hold this reader.

        No hook runs when a module is interrupted by Ctrl-C, so that calls may still be open here.
        """
        if self._watching:
            self.__exit__(None, None, None)
        self._frames.clear()
        self._seen = self._attended = _ignore

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Run our own computation, which is neither followed nor counted."""
        before, self._paused = self._paused, True
        try:
            yield
        finally:
            self._paused = before

    def _enter(self, module: nn.Module, args: Any, kwargs: Any) -> None:
        if self._frames:
            self._frames[-1].call.call()
        wanted = self._wanted.get((module, self._occurrences[module]), {})
        self._occurrences[module] += 1
        follower = SoftmaxFollower(self._batch) if module in self._followed else None
        watching = bool(wanted) or follower is not None
        outer = self._watching
        self._frames.append(_Frame(module, wanted, follower, watching))
        if watching and not outer:  # a mode that is entered twice would see every operation twice
            self.__enter__()

    @property
    def _watching(self) -> bool:
        return any(frame.watching for frame in self._frames)

    def _leave(self, module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
        if self._frames and self._frames[-1].module is module:
            frame = self._frames.pop()
            if frame.watching and not self._watching:
                self.__exit__(None, None, None)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if self._paused:
            return result
        name = func.overloadpacket._qualified_op_name
        frame = self._frames[-1]
        if frame.wanted:
            for place in frame.wanted.get(frame.call.operation(name), ()):
                self._read(place, args, result)
        for outer in self._frames:
            product = outer.follower.see(name, args, result) if outer.follower is not None else None
            if product is not None and outer is self._innermost():
                self._attended(outer.module, product)
        return result

    def _innermost(self) -> _Frame | None:
        return next((frame for frame in reversed(self._frames) if frame.follower is not None), None)

    def _read(self, place: TensorRef, args: Any, result: Any) -> None:
        index = place.key[0]
        given = args if place.side == "input" else [tensor for _, tensor in tensors_in(result)]
        self._seen(place, given[index])
