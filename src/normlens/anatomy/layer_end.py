"""From the end of an attention block to the end of its layer: the sum that the feed-forward block's output joins.

The same rule as for attention: follow the stream to the addition with a branch that itself came from the stream, and look
whether the sum goes through a normalization before anything else sees it. Where another attention stands in between, the
feed-forward block belongs to that one.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from normlens.anatomy.graph import ADD, Graph
from normlens.anatomy.joining import constant_step, other_operand, post_norm, same_numel
from normlens.anatomy.operations import LAYOUT
from normlens.anatomy.trace import Call, Value
from normlens.decompose.steps import Normalization, Step


@dataclass(frozen=True)
class Ended:
    """The sum of the stream and a branch that came from it: the branch, the sum, and what normalizes it."""

    branch: int
    stream_steps: tuple[Step, ...]  # constants on the stream's own way to the sum
    total: int
    norm: tuple[Call, Normalization] | None


def follow_to_end(graph: Graph, stream: int) -> Ended:
    """The first sum of the stream with a branch that came from it; raises `AnatomyError` where there is none."""
    trace = graph.trace
    width = trace.tensors[stream].shape[-1]
    ways: deque[tuple[int, tuple[Step, ...]]] = deque([(stream, ())])
    seen: set[int] = set()
    while ways:
        value, steps = ways.popleft()
        if value in seen:
            continue
        seen.add(value)
        for index in trace.consumers[value]:
            operation = trace.operations[index]
            other = other_operand(operation, value)
            step = constant_step(graph, operation, value, width)
            if operation.name in LAYOUT and operation.operands[0] == Value(value):
                if same_numel(graph, operation.outputs[0], value):
                    ways.append((operation.outputs[0], steps))
            elif step is not None:
                ways.append((operation.outputs[0], (*steps, step)))
            elif operation.name in ADD and isinstance(other, Value) and same_numel(graph, other.number, value):
                if not trace.comes_from(other.number, stream):
                    continue
                _refuse_attention(graph, other.number)
                total = operation.outputs[0]
                return Ended(other.number, steps, total, post_norm(graph, total, width))
    raise graph.stopped(
        "the output of the feed-forward block must be added to the stream", "no such addition was met after attention"
    )


def _refuse_attention(graph: Graph, branch: int) -> None:
    for event in graph.trace.attentions:
        if event.begin >= graph.event.end and graph.trace.comes_from(branch, event.output):
            raise graph.stopped(
                "the feed-forward block must follow attention in the same layer",
                f"another attention stands in between ({event.path})",
            )
