"""Give each attention its kind and its layer number, from what happened and not from names.

A site is `cross` where the keys are not the positions of the queries, `decoder` where no position sees a later one,
`encoder` otherwise. The traced inputs make this unambiguous: source and target have different lengths.
The layer is the execution position in the stack: an ALBERT module that runs twelve times is twelve layers, and a
hybrid stack leaves gaps where a layer has no attention.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import nn

from normlens.anatomy.description import Kind
from normlens.anatomy.trace import AttentionEvent, Trace


def kind_of(event: AttentionEvent) -> Kind:
    """The kind of one attention."""
    alpha = event.alpha
    if alpha.shape[-2] != alpha.shape[-1]:
        return "cross"
    return "decoder" if not alpha.triu(1).any() else "encoder"


def layer_numbers(trace: Trace, kinds: Sequence[Kind]) -> list[int]:
    """The layer of each attention, from 1."""
    stacks = _ListMembers(trace)
    numbers = [0] * len(kinds)
    for kind in set(kinds):
        chosen = [i for i, k in enumerate(kinds) if k == kind]
        positions = [stacks.positions(trace.attentions[i]) for i in chosen]
        depth = 0
        # Go inwards until each layer holds at most one attention of a kind (ALBERT groups hold several).
        while len({p[: depth + 1] for p in positions}) < len(positions) and depth < max(map(len, positions), default=0):
            depth += 1
        for order, (i, position) in enumerate(zip(chosen, positions, strict=True)):
            if depth == 0 and position:
                numbers[i] = position[0]
            else:
                numbers[i] = order + 1
    return numbers


class _ListMembers:
    """Calls of modules that stand in a list (a stack of layers), each with its place in the order of execution."""

    def __init__(self, trace: Trace) -> None:
        self._trace = trace
        containers: dict[str, nn.Module] = {call.path: call.module for call in trace.calls}
        lists = {
            f"{path}.{name}" if path else name
            for path, module in containers.items()
            for name, child in module.named_children()
            if isinstance(child, nn.ModuleList | nn.Sequential)
        }
        counts: dict[tuple[str, int], int] = {}
        self._place: dict[int, int] = {}
        for call in trace.calls:
            container = call.path.rpartition(".")[0]
            if container in lists:
                key = (container, call.parents[-1] if call.parents else -1)
                counts[key] = counts.get(key, 0) + 1
                self._place[call.index] = counts[key]

    def positions(self, event: AttentionEvent) -> tuple[int, ...]:
        """The places of the list members that hold this attention, outermost first."""
        return tuple(self._place[i] for i in event.parents if i in self._place)
