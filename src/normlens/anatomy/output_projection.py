"""From the end of an attention to its output projection."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from normlens.anatomy.description import Gate, InnerStep
from normlens.anatomy.graph import MULTIPLY, Graph, Linear
from normlens.anatomy.norms import norm_taking
from normlens.anatomy.operations import LAYOUT
from normlens.anatomy.pieces import added_heads
from normlens.anatomy.trace import Value
from normlens.decompose.steps import Scaling


@dataclass
class Projection:
    """The output projection and what stands in front of it."""

    linear: Linear
    steps: tuple[InnerStep, ...]
    rows: Tensor | None = field(default=None)
    groups: tuple[float, ...] = ()  # factors of the groups of heads that are added up first


def find_projection(graph: Graph) -> Projection:
    """The one linear map whose input is the attention output, its heads side by side."""
    trace, event = graph.trace, graph.event
    found: list[Projection] = []
    start, groups = added_heads(graph) or (event.output, ())
    heads = trace.tensors[start] if groups else event.heads
    stack: list[tuple[int, tuple[InnerStep, ...]]] = [(start, ())]
    seen: set[int] = set()
    met: list[str] = []
    width = heads.shape[-1] * heads.shape[-2]
    while stack:
        value, steps = stack.pop()
        if value in seen:
            continue
        seen.add(value)
        linear = graph.linear_taking(value)
        found.extend(Projection(one, steps) for one in linear)
        norms = norm_taking(graph, value, (width, heads.shape[-1]))
        stack.extend((call.outputs[0][1], (*steps, norm)) for call, norm in norms)
        inside = [(one.start, one.end) for one in linear] + [(call.start, call.end) for call, _ in norms]
        for index in trace.consumers[value]:
            operation = trace.operations[index]
            if index < event.end or any(start <= index < end for start, end in inside):
                continue
            if operation.name in LAYOUT and operation.operands[0] == Value(value):
                stack.append((operation.outputs[0], steps))
            elif operation.name in MULTIPLY:
                step = _factor(graph, heads, operation.operands, value)
                stack.append((operation.outputs[0], (*steps, step)))
            else:
                met.append(operation.name.removeprefix("aten::"))
    if len(found) != 1:
        what = "nothing took it" if not met and not found else f"{len(found)} did (on the way: {', '.join(met) or '-'})"
        raise graph.stopped("exactly one linear map must take the attention output", what)
    chosen = found[0]
    chosen.groups = groups
    if not chosen.steps:
        chosen.rows = _rows(graph, heads, trace.tensors[chosen.linear.taken])
    return chosen


def _factor(graph: Graph, of: Tensor, operands: tuple[object, ...], value: int) -> InnerStep:
    factor = operands[1] if operands[0] == Value(value) else operands[0]
    if isinstance(factor, int | float):
        return Scaling(float(factor))
    assert isinstance(factor, Value), "a product has two tensors or a tensor and a number"
    constant = graph.constant(factor, of.shape[-1] * of.shape[-2])
    if constant is not None:
        return Scaling(constant)
    place = graph.visible(factor.number, "a gate between attention and the output projection")
    shape = graph.trace.tensors[factor.number].shape
    queries, heads = of.shape[1:3]
    if heads == queries and len(shape) >= 3 and shape[-3:-1] == (heads, queries):
        raise graph.stopped(
            "a gate's heads and queries must be told apart",
            f"there are {heads} of each; analyse an input of another length first",
        )
    return Gate(
        place,
        place.path,
        heads_first=len(shape) >= 3 and shape[-3:-1] == (heads, queries),
        by_coordinate=shape.numel() > queries * heads,
    )


def _rows(graph: Graph, heads: Tensor, taken: Tensor) -> Tensor | None:
    """The row of the projection for each coordinate of the heads; None where they stand side by side."""
    if taken.numel() != heads.numel():
        raise graph.stopped(
            "the output projection must take all heads and nothing else",
            f"it takes {tuple(taken.shape)} where the heads are {tuple(heads.shape)}",
        )
    if torch.equal(heads.reshape(taken.shape), taken):
        return None
    flat = taken.reshape(heads.shape[0] * heads.shape[1], -1)
    by_content = {_bytes(column): i for i, column in enumerate(flat.T)}
    rows = [by_content.get(_bytes(column)) for column in heads.flatten(0, 1).flatten(1).T]
    if None in rows:
        raise graph.stopped("the output projection must take the heads side by side", "it takes something else")
    return torch.tensor(rows)


def _bytes(column: Tensor) -> bytes:
    return column.float().contiguous().numpy(force=True).tobytes()
