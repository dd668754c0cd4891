"""From the output projection into the residual stream."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, replace

from torch import Tensor

from normlens.anatomy.graph import ADD, DIVIDE, MULTIPLY, Graph
from normlens.anatomy.norms import norm_taking
from normlens.anatomy.operations import LAYOUT
from normlens.anatomy.trace import Call, Operation, Value
from normlens.decompose.steps import Normalization, Scaling, Shift, Step

_NORMALIZES = {
    f"aten::{name}"
    for name in ["native_layer_norm", "rsqrt", "sqrt", "var", "var_mean", "native_group_norm", "_fused_rms_norm"]
}
_MAPS = {f"aten::{name}" for name in ["mm", "addmm", "bmm", "convolution", "embedding"]}


@dataclass(frozen=True)
class Joined:
    """The path of the projected output into the residual stream."""

    steps: tuple[Step, ...]
    others: tuple[int, ...]
    residual: int | None
    residual_steps: tuple[Step, ...]
    total: int
    stream_weights: int | None = None  # what writes the branch into several residual streams (hyper-connections)


@dataclass(frozen=True)
class _Way:
    """The state of following the projected output."""

    value: int
    steps: tuple[Step, ...] = ()
    others: tuple[int, ...] = ()
    stream_weights: int | None = None


def follow_to_sum(graph: Graph, given: int) -> Joined:
    """The shortest way from the projected output to a sum with a value that attention itself came from."""
    trace = graph.trace
    upstream = trace.ancestors(graph.event.output)
    width = trace.tensors[given].shape[-1]
    ways: deque[_Way] = deque([_Way(given)])
    seen: set[int] = set()
    met: list[str] = []
    own_branch = False
    while ways:
        way = ways.popleft()
        value = way.value
        if value in seen:
            continue
        seen.add(value)
        norms = norm_taking(graph, value, (width,)) if way.stream_weights is None else []
        ways.extend(replace(way, value=call.outputs[0][1], steps=(*way.steps, norm)) for call, norm in norms)
        for index in trace.consumers[value]:
            if any(call.start <= index < call.end for call, _ in norms):
                continue
            operation = trace.operations[index]
            step = constant_step(graph, operation, value, width)
            other = other_operand(operation, value)
            if operation.name in LAYOUT and operation.operands[0] == Value(value):
                if same_numel(graph, operation.outputs[0], value):
                    ways.append(replace(way, value=operation.outputs[0]))
            elif step is not None and (way.stream_weights is None or isinstance(step, Scaling)):
                ways.append(replace(way, value=operation.outputs[0], steps=(*way.steps, step)))
            elif operation.name in ADD and isinstance(other, Value) and same_numel(graph, other.number, value):
                found = _residual(graph, other.number, upstream, width)
                if found is not None:
                    total, beside = _with_later_branches(graph, operation.outputs[0])
                    return Joined(way.steps, (*way.others, *beside), *found, total, way.stream_weights)
                if given in trace.ancestors(other.number):
                    own_branch = True
                    met.append("a branch that itself comes from the attention output")
                    continue
                ways.append(replace(way, value=operation.outputs[0], others=(*way.others, other.number)))
            elif way.stream_weights is None and _is_written_to_streams(graph, operation, way, width, given):
                assert isinstance(other, Value)
                ways.append(replace(way, value=operation.outputs[0], stream_weights=other.number))
            else:
                met.append(operation.name.removeprefix("aten::"))
    if own_branch and graph.has_learned_queries():
        # Pooling attention: the stream begins with what it gives.
        return Joined((), (), None, (), given)
    raise graph.stopped(
        "the projected output must be added to the residual",
        f"no such addition was met (on the way: {', '.join(dict.fromkeys(met)) or 'nothing takes it'})",
    )


def _is_written_to_streams(graph: Graph, operation: Operation, way: _Way, width: int, given: int) -> bool:
    """Return True if the branch is multiplied by numbers that the input decided, one per position and residual stream."""
    other, trace = other_operand(operation, way.value), graph.trace
    if operation.name not in MULTIPLY or not isinstance(other, Value) or way.others:
        return False
    weights, written = trace.tensors[other.number], trace.tensors[operation.outputs[0]]
    if weights.ndim == 0 or weights.shape[-1] != 1 or written.shape[-1] != width:
        return False
    return weights.numel() * width == written.numel() and given not in trace.ancestors(other.number)


def _with_later_branches(graph: Graph, total: int) -> tuple[int, tuple[int, ...]]:
    """The sum together with branches that are added to it afterwards and do not come from it (a parallel MLP)."""
    trace = graph.trace
    beside: list[int] = []
    while len(trace.consumers[total]) == 1:
        operation = trace.operations[trace.consumers[total][0]]
        other = other_operand(operation, total)
        if operation.name not in ADD or not isinstance(other, Value) or not same_numel(graph, other.number, total):
            break
        if total in trace.ancestors(other.number):
            break
        beside.append(other.number)
        total = operation.outputs[0]
    return total, tuple(beside)


def _residual(graph: Graph, value: int, upstream: set[int], width: int) -> tuple[int, tuple[Step, ...]] | None:
    """The value that attention came from, at the origin of an operand of the sum, and the constants between the two."""
    steps: list[Step] = []
    while value not in upstream:
        if value not in graph.trace.producer:
            return None
        operation = graph.trace.operations[graph.trace.producer[value]]
        tensors = [number for number in operation.inputs if same_numel(graph, number, value)]
        if len(tensors) != 1 or operation.outputs[0] != value:
            return None
        step = constant_step(graph, operation, tensors[0], width)
        if step is not None:
            steps.append(step)
        elif operation.name not in LAYOUT:
            return None
        value = tensors[0]
    return value, tuple(reversed(steps))


def constant_step(graph: Graph, operation: Operation, value: int, width: int) -> Step | None:
    """The operation as a step on the branch: a constant that multiplies or divides, or a bias that is added."""
    if operation.name not in ADD | MULTIPLY | DIVIDE or Value(value) not in operation.operands[:2]:
        return None
    constant = graph.constant(other_operand(operation, value), width)
    if constant is None:
        return None
    if operation.name in MULTIPLY:
        return Scaling(constant)
    if operation.name in DIVIDE:
        return Scaling(1.0 / constant) if operation.operands[0] == Value(value) else None
    return Shift(constant) if isinstance(constant, Tensor) else None


def other_operand(operation: Operation, value: int) -> object:
    """The other one of an operation's first two operands."""
    if len(operation.operands) < 2:
        return None
    left, right = operation.operands[:2]
    return right if left == Value(value) else left


def same_numel(graph: Graph, one: int, other: int) -> bool:
    """Return True if two values have as many numbers."""
    return graph.trace.tensors[one].numel() == graph.trace.tensors[other].numel()


def post_norm(graph: Graph, total: int, width: int) -> tuple[Call, Normalization] | None:
    """The normalization that the sum goes through before anybody else reads it, if it belongs to the same block."""
    trace = graph.trace
    summed = trace.operations[trace.producer[total]].scope
    while len(trace.consumers[total]) == 1 and not trace.taken_by[total]:
        operation = trace.operations[trace.consumers[total][0]]
        if operation.name not in LAYOUT:
            break
        total = operation.outputs[0]
    for call, norm in norm_taking(graph, total, (width,)):
        # In a pre-norm block the sum itself lives on: somebody else than the normalization takes it too.
        elsewhere = [i for i in trace.consumers[total] if not call.start <= i < call.end]
        if not elsewhere and _same_block(graph, call, summed):
            return call, norm
    _refuse_hidden_norm(graph, total, summed)
    _refuse_late_norm(graph, total, width, summed)
    return None


def _refuse_late_norm(graph: Graph, total: int, width: int, summed: int) -> None:
    """A constant between the sum and its normalization must not make the block pass for one without."""
    trace = graph.trace
    while len(trace.consumers[total]) == 1:
        operation = trace.operations[trace.consumers[total][0]]
        if operation.name not in LAYOUT and constant_step(graph, operation, total, width) is None:
            return
        total = operation.outputs[0]
        for call, _ in norm_taking(graph, total, (width,)):
            elsewhere = [i for i in trace.consumers[total] if not call.start <= i < call.end]
            if not elsewhere and _same_block(graph, call, summed):
                raise graph.stopped(
                    "a normalization after the residual sum must follow it directly",
                    f"something stands between the sum and {call.path}",
                )


def _refuse_hidden_norm(graph: Graph, total: int, summed: int) -> None:
    """A normalization that could not be read must not pass for none: something small that alone takes the sum."""
    trace = graph.trace
    scopes = {trace.operations[i].scope for i in trace.consumers[total]}
    if len(scopes) != 1:
        return
    call = trace.calls[scopes.pop()]
    names = {operation.name for operation in trace.operations[call.start : call.end]}
    alone = all(_NORMALIZES & {trace.operations[i].name} for i in trace.consumers[total])
    small = bool(_NORMALIZES & names) and not _MAPS & names and call.start >= graph.event.end
    if (small or alone) and _same_block(graph, call, summed):
        raise graph.stopped("a normalization after the residual sum must be readable", f"{call.path} is not")


def _same_block(graph: Graph, call: Call, summed: int) -> bool:
    """Return True if a call stands in the code that made the sum or in the same layer of a list, not after all layers."""
    parents = graph.event.parents
    layers = [index for index in parents if graph.trace.calls[index].path.rpartition(".")[2].isdigit()]
    return summed in (*call.parents, call.index) or (bool(layers) and layers[0] in call.parents)
