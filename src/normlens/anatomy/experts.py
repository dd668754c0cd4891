"""Read the experts of a router: a module that is given vectors, a choice of experts for each, and their weights.

transformers keeps the experts of a layer as two parameters with the expert in front, whatever the family, and hands them
to one of several kernels. What a single expert does is found by asking: a few vectors go in with a chosen expert and the
weight 1, and the candidate (gated or not, gate and up side by side or in turn, either layout of the matrices) that explains
what comes out is taken.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass
from itertools import product

import torch
from torch import Tensor, nn

from normlens.anatomy.description import TensorRef
from normlens.anatomy.graph import Graph
from normlens.anatomy.trace import Call

Activation = Callable[[Tensor], Tensor]
_TOLERANCE = 1e-4


@dataclass(frozen=True)
class ExpertWeights:
    """The experts as they ran: what they took, where choice and weights are read, and what one expert does."""

    taken: int
    module: nn.Module
    chosen: TensorRef
    weights: TensorRef
    act: Activation
    key: Hashable | None
    gated: bool
    interleaved: bool
    names: tuple[str, str]
    turned: tuple[bool, bool]  # whether each matrix lies as (expert, output, input)

    def matrices(self, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """Both matrices as (expert, input, output)."""
        first, second = _matrices(self.module, self.names, self.turned)
        return first.to(dtype), second.to(dtype)


def _matrices(module: nn.Module, names: tuple[str, str], turned: tuple[bool, bool]) -> tuple[Tensor, Tensor]:
    found = [getattr(module, name).detach() for name in names]
    first, second = (m.transpose(1, 2) if turn else m for m, turn in zip(found, turned, strict=True))
    return first, second


def experts_giving(graph: Graph, value: int) -> ExpertWeights | None:
    """The experts that gave this value; None where it comes from something else."""
    for index in graph.trace.given_by[value]:
        call = graph.trace.calls[index]
        own = {name: p for name, p in call.module.named_parameters(recurse=False) if p.ndim == 3}
        if len(own) == 2 and len(call.inputs) == 3 and not _biases(call.module):
            found = _asked(graph, call, tuple(own))
            if found is not None:
                return found
    return None


def _biases(module: nn.Module) -> bool:
    return any(p.ndim != 3 for p in module.parameters(recurse=False))


def _asked(graph: Graph, call: Call, names: tuple[str, ...]) -> ExpertWeights | None:
    tensors = {key: graph.trace.tensors[number] for key, number in call.inputs}
    chosen = [key for key, tensor in tensors.items() if not tensor.is_floating_point()]
    floats = [key for key in tensors if key not in chosen]
    if len(chosen) != 1 or len(floats) != 2:
        return None
    hidden, weights = sorted(floats, key=lambda key: -tensors[key].shape[-1])
    if tensors[weights].shape != tensors[chosen[0]].shape:
        return None
    parameter = next(call.module.parameters(recurse=False))
    generator = torch.Generator().manual_seed(0)
    width = tensors[hidden].shape[-1]
    x = torch.randn(3, width, generator=generator).to(parameter)
    number = len(parameter) - 1
    given = {hidden: x, chosen[0]: torch.full((3, 1), number, device=x.device), weights: x.new_ones(3, 1)}
    arguments = {key: given[key] for key, _ in call.inputs}
    with torch.no_grad():
        try:
            observed = call.module(
                *(arguments[key] for key in arguments if key[0] == "args"),
                **{str(key[1]): arguments[key] for key in arguments if key[0] == "kwargs"},
            )
        except Exception:
            return None  # it takes something else than vectors, choices and weights
        if not isinstance(observed, Tensor) or observed.shape != x.shape:
            return None
        for candidate in _candidates(call.module, names, width):
            order, turned, gated, interleaved, (act, key) = candidate
            first, second = _matrices(call.module, order, turned)
            hidden_part = x @ first[number]
            if gated:
                gate, up = (hidden_part[:, ::2], hidden_part[:, 1::2]) if interleaved else hidden_part.chunk(2, dim=-1)
                hidden_part = act(gate) * up
            else:
                hidden_part = act(hidden_part)
            difference = float((hidden_part @ second[number] - observed).abs().max())
            if difference <= _TOLERANCE * float(observed.abs().max()):
                place = dict(call.inputs)
                return ExpertWeights(
                    place[hidden],
                    call.module,
                    TensorRef(call.module, call.path, "input", chosen[0], call.occurrence),
                    TensorRef(call.module, call.path, "input", weights, call.occurrence),
                    act,
                    key,
                    gated,
                    interleaved,
                    order,
                    turned,
                )
    return None


def _candidates(
    module: nn.Module, names: tuple[str, ...], width: int
) -> Iterator[tuple[tuple[str, str], tuple[bool, bool], bool, bool, tuple[Activation, Hashable | None]]]:
    activations = list(_activations(module))
    for order in ((names[0], names[1]), (names[1], names[0])):
        for turned in product((True, False), (True, False)):
            first, second = _matrices(module, order, turned)
            if first.shape[1] != width or second.shape[2] != width:
                continue
            gated = first.shape[2] == 2 * second.shape[1]
            if not gated and first.shape[2] != second.shape[1]:
                continue
            for interleaved, act in product((False, True) if gated else (False,), activations):
                yield order, turned, gated, interleaved, act


def _activations(module: nn.Module) -> Iterator[tuple[Activation, Hashable | None]]:
    """Its own activation, where it holds one, and the usual ones."""
    own = next(
        (value for value in (getattr(module, name, None) for name in ("act_fn", "act")) if callable(value)), None
    )
    for key, act in (
        ("silu", torch.nn.functional.silu),
        ("gelu", torch.nn.functional.gelu),
        ("relu", torch.relu),
        ("tanh gelu", lambda z: torch.nn.functional.gelu(z, approximate="tanh")),
    ):
        yield act, ("experts", key)
    if own is not None:
        yield own, None
