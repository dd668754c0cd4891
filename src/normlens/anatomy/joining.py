"""From the output projection into the residual stream."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from torch import Tensor

from normlens.anatomy.description import Norm, Place, Scale, Step
from normlens.anatomy.graph import ADD, DIVIDE, MULTIPLY, SAME, Graph
from normlens.anatomy.norms import norm_taking
from normlens.anatomy.trace import Call, Operation, Value
from normlens.errors import AnatomyError


@dataclass(frozen=True)
class Joined:
    """How the projected output joins the residual stream."""

    steps: tuple[Step, ...]
    others: tuple[int, ...]
    residual: int
    total: int


def follow_to_sum(graph: Graph, given: int) -> Joined:
    """The shortest way from the projected output to a sum with a value that attention itself came from."""
    trace = graph.trace
    upstream = trace.ancestors(graph.event.output)
    width = trace.tensors[given].shape[-1]
    ways: deque[tuple[int, tuple[Step, ...], tuple[int, ...]]] = deque([(given, (), ())])
    seen: set[int] = set()
    met: list[str] = []
    refused: AnatomyError | None = None
    while ways:
        value, steps, others = ways.popleft()
        if value in seen:
            continue
        seen.add(value)
        norms = norm_taking(graph, value, (width,))
        ways.extend((call.outputs[0][1], (*steps, norm), others) for call, norm in norms)
        for index in trace.consumers[value]:
            if any(call.start <= index < call.end for call, _ in norms):
                continue
            operation = trace.operations[index]
            if operation.name in SAME and operation.operands[0] == Value(value):
                if trace.tensors[operation.outputs[0]].numel() == trace.tensors[value].numel():
                    ways.append((operation.outputs[0], steps, others))
            elif operation.name in MULTIPLY | DIVIDE:
                try:
                    scale = Scale(_constant(graph, operation, value))
                except AnatomyError as error:
                    refused = error
                    continue
                ways.append((operation.outputs[0], (*steps, scale), others))
            elif operation.name in ADD:
                other = _other(operation, value)
                if not isinstance(other, Value):
                    continue
                if other.number in upstream and _alike(graph, other.number, value):
                    return Joined(steps, others, other.number, operation.outputs[0])
                if _alike(graph, other.number, value):
                    ways.append((operation.outputs[0], steps, (*others, other.number)))
            else:
                met.append(operation.name.removeprefix("aten::"))
    raise refused or graph.stopped(
        "the projected output must be added to the residual",
        f"no such addition was met (on the way: {', '.join(dict.fromkeys(met)) or 'nothing takes it'})",
    )


def _other(operation: Operation, value: int) -> object:
    left, right = operation.operands[:2]
    return right if left == Value(value) else left


def _alike(graph: Graph, one: int, other: int) -> bool:
    return graph.trace.tensors[one].numel() == graph.trace.tensors[other].numel()


def _constant(graph: Graph, operation: Operation, value: int) -> float | Tensor:
    factor = _other(operation, value)
    if operation.name in DIVIDE:
        if isinstance(factor, int | float) and operation.operands[0] == Value(value):
            return 1.0 / float(factor)
        raise graph.stopped("only a constant may scale the branch", "it is divided by something computed")
    if isinstance(factor, int | float):
        return float(factor)
    if isinstance(factor, Value):
        number = factor.number
        while number in graph.trace.producer:
            made = graph.trace.operations[graph.trace.producer[number]]
            if made.name not in SAME or len(made.inputs) != 1:
                break
            number = made.inputs[0]
        tensor = graph.trace.tensors[number]
        if number not in graph.trace.producer:
            if tensor.numel() == 1:
                return float(tensor)
            if tensor.numel() == graph.trace.tensors[value].shape[-1]:
                return tensor.detach().reshape(-1)
    raise graph.stopped("only a constant may scale the branch", f"{operation.name} by something computed")


def find_residual(graph: Graph, value: int) -> tuple[Place, float]:
    """Where the residual input can be read, and the constant that multiplies it on the way to the sum."""
    found = graph.at_boundary(value)
    if found is not None:
        return found, 1.0
    operation = graph.trace.operations[graph.trace.producer[value]]
    if operation.name in MULTIPLY and isinstance(operation.operands[1], int | float):
        before = graph.at_boundary(operation.inputs[0])
        if before is not None:
            return before, float(operation.operands[1])
    return graph.visible(value, "the residual input"), 1.0


def post_norm(graph: Graph, total: int, width: int) -> tuple[Call, Norm] | None:
    """The normalization that all readers of the sum stand behind, if it belongs to the same block."""
    trace = graph.trace
    while len(trace.consumers[total]) == 1 and not trace.taken_by[total]:
        operation = trace.operations[trace.consumers[total][0]]
        if operation.name not in SAME:
            break
        total = operation.outputs[0]
    for call, norm in norm_taking(graph, total, (width,)):
        # In a pre-norm block the sum itself lives on: somebody else than the normalization takes it too.
        elsewhere = [i for i in trace.consumers[total] if not call.start <= i < call.end]
        if not elsewhere and set(call.parents) & set(graph.event.parents[1:]) and _same_block(graph, call):
            return call, norm
    _refuse_hidden_norm(graph, total)
    return None


def _refuse_hidden_norm(graph: Graph, total: int) -> None:
    """A normalization that could not be read must not pass for none."""
    trace = graph.trace
    readers = {trace.operations[i].name for i in trace.consumers[total]}
    if readers != {"aten::native_layer_norm"}:
        return
    if all(_same_block(graph, trace.calls[trace.operations[i].scope]) for i in trace.consumers[total]):
        raise graph.stopped("a normalization after the residual sum must be readable", "it is not")


def _same_block(graph: Graph, call: Call) -> bool:
    """Whether a call stands inside the layer that holds this attention, not behind the whole stack."""
    parents = graph.event.parents
    layers = [index for index in parents if graph.trace.calls[index].path.rpartition(".")[2].isdigit()]
    return not layers or layers[0] in call.parents
