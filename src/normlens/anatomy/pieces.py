"""An attention that is computed in pieces: the same weights over parts of the values, and heads that are added up.

Differential attention does both. It looks twice, with the same weights, once for each half of the values' width; and it
adds the second half of its heads, times a constant, to the first before the output projection. A head's part in that
sum is its own: `f` of a head holds its group's constant, and `alpha` stays what its softmax gave.
"""

from __future__ import annotations

from dataclasses import replace

import torch

from normlens.anatomy.graph import ADD, MULTIPLY, SPLITS, SUBTRACT, Graph
from normlens.anatomy.operations import LAYOUT
from normlens.anatomy.trace import AttentionEvent, Operation, Trace, Value


def merge_split_attention(trace: Trace) -> list[AttentionEvent]:
    """The attentions of a trace; calls with the same weights whose outputs are laid side by side are one of them."""
    found: list[AttentionEvent] = []
    for event in trace.attentions:
        joined = _side_by_side(trace, found[-1], event) if found else None
        if joined is None:
            found.append(event)
        else:
            found[-1] = joined
    return found


def _side_by_side(trace: Trace, first: AttentionEvent, second: AttentionEvent) -> AttentionEvent | None:
    if first.parents != second.parents or first.followed or second.followed:
        return None
    if first.alpha.shape != second.alpha.shape or not torch.equal(first.alpha, second.alpha):
        return None
    for index in trace.consumers[second.output]:
        operation = trace.operations[index]
        if operation.name != "aten::cat" or operation.inputs != (first.output, second.output):
            continue
        heads = trace.tensors[operation.outputs[0]]
        if heads.shape[-1] == first.heads.shape[-1] + second.heads.shape[-1]:
            return replace(
                first,
                output=operation.outputs[0],
                values=torch.cat([first.values, second.values], dim=-1),
                heads=heads,
                end=index + 1,
                standard=False,
                calls=first.calls + second.calls,
            )
    return None


def added_heads(graph: Graph) -> tuple[int, tuple[float, ...]] | None:
    """The sum of equal groups of heads that goes on to the projection, and each group's factor; None: there is none."""
    trace, event = graph.trace, graph.event
    waiting, seen = [event.output], set()
    while waiting:
        value = waiting.pop()
        seen.add(value)
        for operation in (trace.operations[index] for index in trace.consumers[value]):
            groups = operation.outputs
            shape = (*event.heads.shape[:2], event.heads.shape[2] // max(1, len(groups)), event.heads.shape[3])
            if operation.name in SPLITS and len(groups) > 1 and all(trace.tensors[g].shape == shape for g in groups):
                return _sum_of(graph, operation)
            if operation.name in LAYOUT:
                waiting += [output for output in operation.outputs if output not in seen]
    return None


def _sum_of(graph: Graph, split: Operation) -> tuple[int, tuple[float, ...]] | None:
    trace, groups = graph.trace, split.outputs
    terms: dict[int, dict[int, float]] = {value: {value: 1.0} for value in groups}  # a value as factors of the groups
    for operation in trace.operations[split.index + 1 : trace.calls[split.scope].end]:
        found = _combined(graph, operation, terms)
        if found is None:
            continue
        terms[operation.outputs[0]] = found
        if set(found) == set(groups):
            factors = tuple(found[value] for value in groups)
            total = trace.tensors[operation.outputs[0]]
            rebuilt = sum(factor * trace.tensors[value] for factor, value in zip(factors, groups, strict=True))
            close = bool(torch.isclose(torch.as_tensor(rebuilt), total, rtol=1e-4, atol=1e-6).all())
            return (operation.outputs[0], factors) if close else None
    return None


def _combined(graph: Graph, operation: Operation, terms: dict[int, dict[int, float]]) -> dict[int, float] | None:
    """The result of an operation on sums of groups."""
    operands = [operand.number if isinstance(operand, Value) else operand for operand in operation.operands[:2]]
    known = [terms.get(operand) if isinstance(operand, int) else None for operand in operands]
    if operation.name in LAYOUT and known[0] is not None:
        kept = graph.trace.tensors[operation.outputs[0]].shape == graph.trace.tensors[operation.inputs[0]].shape
        return known[0] if kept else None
    if len(known) < 2 or operation.name not in ADD | SUBTRACT | MULTIPLY:
        return None
    left, right = known
    if operation.name in MULTIPLY:
        one, other = (left, 1) if left is not None else (right, 0)
        factor = graph.fixed_number(operation.operands[other]) if one is not None else None
        return None if one is None or factor is None else {value: factor * share for value, share in one.items()}
    if left is None or right is None or set(left) & set(right):
        return None
    sign = -1.0 if operation.name in SUBTRACT else 1.0
    return left | {value: sign * share for value, share in right.items()}
