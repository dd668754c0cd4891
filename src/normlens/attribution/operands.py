"""Operands of an operation: tensors in arguments, however deep, and whether they depend on the input vectors."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from torch import Tensor

from normlens.types import Kwargs

Function = Callable[..., Any]


class OpCall(NamedTuple):
    """One call of an operation."""

    name: str
    function: Function
    args: tuple[Any, ...]
    kwargs: Kwargs

    def __call__(self) -> Any:
        """Run the operation as it was called."""
        return self.function(*self.args, **self.kwargs)

    def on(self, x: Any) -> Any:
        """Run the operation with another first operand."""
        return self.function(x, *self.args[1:], **self.kwargs)

    def argument(self, position: int, name: str, default: Any = None) -> Any:
        """An argument that may be given by position or by name."""
        if len(self.args) > position:
            return self.args[position]
        return self.kwargs.get(name, default)

    def named(self, *names: str) -> Kwargs:
        """All arguments by name."""
        return dict(zip(names, self.args, strict=False)) | self.kwargs


def is_live(x: Any) -> bool:
    """Return True if a value depends on the input vectors."""
    return isinstance(x, Tensor) and x.requires_grad


def tensors(*structures: Any) -> Iterator[Tensor]:
    """Every tensor in arguments, lists and tuples included."""
    for x in structures:
        if isinstance(x, Tensor):
            yield x
        elif isinstance(x, list | tuple):
            yield from tensors(*x)
        elif isinstance(x, dict):
            yield from tensors(*x.values())


def mapped(structure: Any, change: Callable[[Tensor], Any]) -> Any:
    """The same structure with every tensor changed."""
    if isinstance(structure, Tensor):
        return change(structure)
    if isinstance(structure, tuple) and hasattr(structure, "_fields"):
        return type(structure)(*(mapped(x, change) for x in structure))
    if isinstance(structure, list | tuple):
        return type(structure)(mapped(x, change) for x in structure)
    if isinstance(structure, dict):
        return {name: mapped(x, change) for name, x in structure.items()}
    return structure


def detached(structure: Any) -> Any:
    """The same structure, cut off from the input vectors."""
    return mapped(structure, lambda x: x.detach())


def zeroed(structure: Any) -> Any:
    """The same operands with zeros, which take no memory, in place of what is live."""
    return mapped(structure, lambda x: x.detach().new_zeros(()).expand(x.shape) if x.requires_grad else x)


def as_number(x: Any) -> float | None:
    """A constant of one number."""
    if isinstance(x, Tensor):
        return float(x) if x.numel() == 1 and not x.requires_grad else None
    return float(x) if isinstance(x, int | float) else None
