"""Give each attention its kind and its layer number, from what happened and not from names or lengths.

Where images or sound and text meet, a stack of layers over one of them is named after it: `vision`, `audio`, `text`.
A site is `cross` where its values come neither from its own residual stream nor from all inputs that its queries come from.
Where there are such sites, self-attention is `encoder` if they read what it made, and `decoder` otherwise; where there are
none it is `decoder` if no position sees a later one, and `encoder` otherwise.
The layer is the execution position in the stack: an ALBERT module that runs twelve times is twelve layers, and a
hybrid stack leaves gaps where a layer has no attention.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from torch import nn

from normlens.anatomy.inputs import modality_of
from normlens.anatomy.kinds import Kind, with_part
from normlens.anatomy.operations import LAYOUT
from normlens.anatomy.trace import AttentionEvent, Trace, Value
from normlens.errors import AnatomyError


def kinds_of(trace: Trace, residuals: Sequence[int | None]) -> list[Kind]:
    """The kind of each attention; `residuals` are the values to which their outputs are added."""
    sequences = _sequence_inputs(trace)
    made_of = [trace.ancestors(event.output) for event in trace.attentions]
    read = [trace.ancestors(event.value) for event in trace.attentions]
    cross: list[bool] = []
    known: dict[int, bool] = {}  # values that a layer may take from an earlier one
    for event, residual, made, given in zip(trace.attentions, residuals, made_of, read, strict=True):
        values = _laid_out(trace, event.value)[-1]
        square = event.alpha.shape[-2] == event.alpha.shape[-1]
        own = residual is None or any(value in given for value in _laid_out(trace, residual))
        cross.append(known.setdefault(values, not square or bool(sequences & made - given) or not own))
    kinds: list[Kind] = []
    for event, is_cross in zip(trace.attentions, cross, strict=True):
        if is_cross:
            kinds.append("cross")
        elif any(cross):
            sources = [given for given, other in zip(read, cross, strict=True) if other]
            kinds.append("encoder" if any(event.output in given for given in sources) else "decoder")
        else:
            kinds.append(_direction(event))
    return kinds


@dataclass(frozen=True)
class SiteName:
    """The name of an attention's kind of site, and whether its queries and its keys are positions of text."""

    kind: Kind
    of_text: tuple[bool, bool]


def site_names(trace: Trace, kinds: Sequence[Kind]) -> list[SiteName]:
    """Name each attention: by its kind, or after the tower that it belongs to.

    Decided by which of the model's inputs a stack of layers was computed from, not by the names of its modules.
    """
    inputs = {number: modality_of(str(path[-1])) for path, number in trace.calls[0].inputs}
    given = {number: modality for number, modality in inputs.items() if modality is not None}
    beyond_text = {*given.values()} - {"text", "target"}
    stacks = [_stack_of(event, trace) for event in trace.attentions]
    made_of: dict[str, set[str]] = {}
    for stack, event in zip(stacks, trace.attentions, strict=True):
        ancestors = trace.ancestors(event.output)
        made_of.setdefault(stack, set()).update(given[number] for number in given if number in ancestors)
    several = len({*given.values()} - {"target"}) > 1
    towers = _tower_names(stacks, made_of) if several else {}
    names = []
    for stack, kind, event in zip(stacks, kinds, trace.attentions, strict=True):
        cross = kind == "cross"
        if stack in towers:
            kind = f"{towers[stack]}_cross" if cross else towers[stack]
        read = {given[number] for number in given if number in trace.ancestors(event.value)}
        text = not beyond_text or not made_of[stack] <= beyond_text
        names.append(SiteName(kind, (text, not beyond_text or not read <= beyond_text if cross else text)))
    return _apart(trace, stacks, names) if beyond_text else names


def _apart(trace: Trace, stacks: Sequence[str], names: Sequence[SiteName]) -> list[SiteName]:
    """Give attentions of one name that are over other positions names of their own: stages, and stacks of another tower."""
    groups: dict[str, list[tuple[object, ...]]] = {}
    found = []
    for event, stack, name in zip(trace.attentions, stacks, names, strict=True):
        form = (stack, *event.alpha.shape[:1], *event.alpha.shape[-2:])
        known = groups.setdefault(name.kind, [])
        if form not in known:
            known.append(form)
        number = known.index(form) + 1
        found.append(name if number == 1 else replace(name, kind=with_part(name.kind, f"stack{number}")))
    return found


def _tower_names(stacks: Sequence[str], made_of: Mapping[str, set[str]]) -> dict[str, str]:
    """The names of stacks that were computed from one kind of input alone; a second one of a kind has a number."""
    names: dict[str, str] = {}
    for stack in dict.fromkeys(stacks):
        if len(made_of[stack]) == 1 and "target" not in made_of[stack]:
            (tower,) = made_of[stack]
            before = sum(name.split("_")[0] == tower for name in names.values()) if stack else 0
            names[stack] = with_part(tower, f"stack{before + 1}") if before else tower
    return names


def _stack_of(event: AttentionEvent, trace: Trace) -> str:
    """The path of the list of layers in which an attention stands; of one in no list, the path of the nearest module."""
    for index in event.parents:
        container, _, name = trace.calls[index].path.rpartition(".")
        if name.isdigit():
            return container
    return ""


def _laid_out(trace: Trace, value: int) -> list[int]:
    """The value, and before it the same numbers in other layouts, back to where they were computed."""
    found = [value]
    while found[-1] in trace.producer:
        made = trace.operations[trace.producer[found[-1]]]
        if made.name not in LAYOUT or not made.inputs:
            break
        found.append(made.inputs[0])
    return found


def _direction(event: AttentionEvent) -> Kind:
    alpha = event.alpha
    if int(alpha.ne(0).flatten(0, -2).any(0).sum()) < 2:
        raise too_short(event.path)
    return "decoder" if not alpha.triu(1).any() else "encoder"


def too_short(path: str) -> AnatomyError:
    """The error for a foreign module that is read on a single position."""
    return AnatomyError(
        f"{path} was read on one position, which does not show whether it looks ahead; analyse an input of two or "
        "more positions first"
    )


def _sequence_inputs(trace: Trace) -> set[int]:
    """The model's inputs that hold sequences: ids that are looked up, and vectors; not masks, not positions."""
    found = set()
    for path, number in trace.calls[0].inputs:
        if any(word in str(path[-1]) for word in ("mask", "position", "bias")):
            continue
        tensor = trace.tensors[number]
        if (tensor.is_floating_point() and tensor.ndim >= 3) or _looked_up(trace, number):
            found.add(number)
    return found


def _looked_up(trace: Trace, number: int) -> bool:
    """Return True if a value, laid out as it may be, is what an embedding is asked for."""
    waiting, seen = [number], set()
    while waiting:
        value = waiting.pop()
        seen.add(value)
        for index in trace.consumers[value]:
            operation = trace.operations[index]
            if operation.name == "aten::embedding" and operation.operands[1] == Value(value):
                return True
            if operation.name in LAYOUT:
                waiting += [output for output in operation.outputs if output not in seen]
    return False


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
