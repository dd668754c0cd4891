"""The input of `f`: the vectors from which the values are made, and the affine map that makes them."""

from __future__ import annotations

import torch
from torch import Tensor

from normlens.anatomy.description import TensorRef, ValueMap
from normlens.anatomy.graph import Graph, Linear


def find_values(graph: Graph) -> tuple[TensorRef, ValueMap | None]:
    """The input of the first linear map on the way to the values, and that way if it is one affine map."""
    own = _own_start(graph)
    chain: list[Linear] = []
    value = graph.event.value
    # The last map may stand in an earlier layer (layers that share their values); maps before it only in this one.
    while (linear := _linear_before(graph, value, own if chain else 0)) is not None:
        chain.append(linear)
        value = linear.taken
    if not chain:
        raise graph.stopped("the values must come from a linear map", "none was met")
    first = chain[-1]
    taken = graph.trace.tensors[first.taken]
    if taken.numel() // taken.shape[-1] != graph.event.alpha.shape[0] * graph.event.alpha.shape[-1]:
        raise graph.stopped(
            "the values of all keys must come from one linear map",
            f"the map takes {taken.numel() // taken.shape[-1]} vectors for {graph.event.alpha.shape[-1]} keys",
        )
    columns = _columns(graph, first) if len(chain) == 1 else None
    x = graph.copy_at_boundary(first.input, first.taken, onwards=False)
    return x, None if columns is None else ValueMap(first.map, columns)


def _own_start(graph: Graph) -> int:
    calls = graph.trace.calls
    for index in reversed(graph.event.parents):
        if calls[index].module is graph.event.module:
            return calls[index].start
    return calls[graph.event.parents[-1]].start


def _linear_before(graph: Graph, value: int, start: int) -> Linear | None:
    stack, seen = [value], set()
    while stack:
        current = stack.pop()
        linear = graph.linear_giving(current)
        if linear is not None:
            return linear if linear.start >= start else None
        if current in seen or current not in graph.trace.producer:
            continue
        seen.add(current)
        operation = graph.trace.operations[graph.trace.producer[current]]
        if operation.index >= start:
            stack.extend(reversed(operation.inputs))
    return None


def _columns(graph: Graph, linear: Linear) -> Tensor | None:
    """The columns of a (perhaps fused) map that are the values: compared number by number, so any layout will do."""
    computed = graph.trace.tensors[linear.given]
    values = graph.event.values.transpose(1, 2)  # batch key kv_head width
    computed = computed.reshape(-1, computed.shape[-1])
    if computed.shape[0] != values.shape[0] * values.shape[1]:
        return None
    by_content = {column: i for i, column in enumerate(_by_column(computed))}
    found = [by_content.get(column) for column in _by_column(values.flatten(0, 1).flatten(1))]
    return None if None in found else torch.tensor(found).view(values.shape[2], values.shape[3])


def _by_column(matrix: Tensor) -> list[bytes]:
    """The numbers of each column."""
    columns = matrix.float().T.contiguous().numpy(force=True)
    whole, size = columns.tobytes(), columns.itemsize * columns.shape[1]
    return [whole[start : start + size] for start in range(0, len(whole), size)]
