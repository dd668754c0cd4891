"""PyTorch's operations as a pass runs them: which only lay numbers out anew, and how one is found again in a later pass."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

#: Where a tensor stands in the arguments or in the output of a module call, such as ("args", 0) or ("last", 1).
KeyPath = tuple[Any, ...]

#: Operations that hand a tensor on with the same numbers in another shape, layout or dtype.
LAYOUT = {
    "aten::" + name
    for name in (
        *("view", "_unsafe_view", "reshape", "_reshape_alias", "unflatten", "flatten", "squeeze", "unsqueeze"),
        *("transpose", "permute", "t", "expand", "slice", "select"),
        *("clone", "contiguous", "alias", "detach", "lift_fresh", "to", "_to_copy", "dropout"),
    )
}


@dataclass(frozen=True)
class OperationKey:
    """One operation inside one call of a module: the `nth` of its name after the call began `segment` others."""

    segment: int
    name: str
    nth: int


@dataclass
class OpenCall:
    """A call of a module that has not ended: numbers the operations and calls inside of it, the same way in every pass."""

    segment: int = 0
    _counts: dict[tuple[int, str], int] = field(default_factory=lambda: defaultdict(int))

    def call(self) -> None:
        """Another module is called inside of this call."""
        self.segment += 1

    def operation(self, name: str) -> OperationKey:
        """The key of the operation that runs now."""
        nth = self._counts[self.segment, name]
        self._counts[self.segment, name] += 1
        return OperationKey(self.segment, name, nth)


def all_tensors(structure: Any) -> list[Tensor]:
    """Every tensor inside nested tuples, lists and dictionaries, in order; a traced pass asks this twice per operation."""
    if isinstance(structure, Tensor):
        return [structure]
    if isinstance(structure, dict):
        structure = structure.values()
    elif not isinstance(structure, tuple | list):
        return []
    return [tensor for item in structure if item is not None for tensor in all_tensors(item)]


def tensors_in(structure: Any, path: KeyPath = ()) -> Iterator[tuple[KeyPath, Tensor]]:
    """Every tensor inside nested tuples, lists and dictionaries, with its key path."""
    if isinstance(structure, Tensor):
        yield path, structure
    elif isinstance(structure, dict):
        for key, item in structure.items():
            yield from tensors_in(item, (*path, key))
    elif isinstance(structure, tuple | list):
        for position, item in enumerate(structure):
            yield from tensors_in(item, (*path, position))
