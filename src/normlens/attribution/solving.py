"""One batch to proved terms: the frozen pass, a backward pass for each step, and the proof."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from normlens.anatomy.examine import family_of
from normlens.anatomy.interface import Rounding, clone_inputs, run_arguments
from normlens.anatomy.layers import LayerCall
from normlens.anatomy.scope import PassScope
from normlens.attribution.observer import TermSelection
from normlens.attribution.operands import mapped
from normlens.attribution.proof import (
    Subject,
    check_edges,
    check_finite,
    check_layers,
    check_number,
    check_replay,
    check_sums,
)
from normlens.attribution.questions import Answer, Numbers, Probability, Question, Resolver, first_tensor, output_length
from normlens.attribution.request import ExplainRequest
from normlens.attribution.terms import Run, Terms
from normlens.errors import AnatomyError, DecompositionError, InputError
from normlens.lens import Lens


@dataclass(frozen=True)
class Solved:
    """The terms of one row, step by step, with what was explained and how far it was checked."""

    steps: list[Terms]
    answers: list[Answer]
    replay: float
    output: float


@dataclass
class ModelChecks:
    """Checks that a model has passed, valid for one state of it."""

    state: Any
    verified: dict[Any, tuple[float, float]] = field(default_factory=dict)  # by kind of input: replay, output
    padding_matters: bool | None = None


_known: WeakKeyDictionary[nn.Module, ModelChecks] = WeakKeyDictionary()


def checks_for(lens: Lens) -> ModelChecks:
    """The checks of the lens' model in its present state; numbers changed in place and adapters make it another."""
    state = lens.traced.refresh()
    key = (state.tensors, state.entries, state.adapters, state.hooks)
    if lens.model not in _known or _known[lens.model].state != key:
        _known[lens.model] = ModelChecks(key)
    return _known[lens.model]


def solve(
    lens: Lens,
    resolver: Resolver,
    inputs: Mapping[str, Any],
    questions: Sequence[tuple[Question, ...]],
    request: ExplainRequest,
) -> list[Solved]:
    """The terms of every row, proved; rows go one by one where a model mixes them."""
    if Rounding.of(resolver.model).autocast is not None:
        raise InputError(
            "an explanation is of what the model computes in its own type: autocast is on; leave it, or load the model in "
            "the type that you want"
        )
    batch = _Batch(lens, resolver.model, request, resolver.probability)
    rows = len(questions)
    with lens.traced.named_errors(inputs):
        try:
            return batch.solve(inputs, questions)
        except (DecompositionError, _MixedRowsError):
            if rows == 1:
                raise
        return [batch.solve(_one_row(inputs, row, rows), [questions[row]])[0] for row in range(rows)]


class _MixedRowsError(AnatomyError):
    """A constant of the model could not be told apart by rows."""


@dataclass(frozen=True)
class _Batch:
    """Solves rows together."""

    lens: Lens
    model: nn.Module
    request: ExplainRequest
    probability: Probability

    def solve(self, inputs: Mapping[str, Any], questions: Sequence[tuple[Question, ...]]) -> list[Solved]:
        """Forward once, backward for each step; the first time for a kind of input, the whole proof."""
        request, model = self.request, self.model
        known = checks_for(self.lens).verified
        kind = (*self.lens.traced.kind_of(inputs), request.attention, request.direction is None)
        dtype = next(p.dtype for p in model.parameters() if p.is_floating_point())
        subject = Subject(family_of(model), dtype, request.attention)
        steps = [
            Numbers([row[step] for row in questions], request.direction, self.probability, output_length(inputs))
            for step in range(len(questions[0]))
        ]
        own = None if kind in known else self._own_numbers(inputs, steps[0])
        with PassScope(model, grad=True):
            arguments = mapped(run_arguments(model, clone_inputs(dict(inputs))), _outside_of_inference)
            run = Run(
                model, arguments, _wanted(request), integrated=request.attention == "integrated", record=own is not None
            )
            check_layers(run.observer.layers, lambda on_inputs: self._traced(inputs, on_inputs), subject)
            found = [run.explain(numbers, again=numbers is not steps[-1]) for numbers in steps]
            if run.observer.mixed_rows:
                raise _MixedRowsError("a constant of this model belongs to no row of the batch; pass one row at a time")
            for terms, numbers in zip(found, steps, strict=True):
                check_finite(terms.value, subject.family)
                check_sums(terms, subject, numbers.sizes)
                check_edges(terms, subject, numbers.sizes)
            if own is not None:
                output = check_number(found[0], *own, subject)
                known[kind] = check_replay(run, found[0], steps[0], steps[0].sizes, subject), output
        if request.baseline == "mean":
            found = [terms.beyond_baseline() for terms in found]
        return [
            Solved([terms.row(row) for terms in found], [numbers.answers[row] for numbers in steps], *known[kind])
            for row in range(len(questions))
        ]

    def _traced(self, inputs: Mapping[str, Any], on_inputs: bool) -> tuple[LayerCall, ...]:
        try:
            return self.lens.traced.layer_calls(inputs, on_inputs=on_inputs)
        except Exception:
            if on_inputs:
                raise
            return ()  # a model need not run on a few tokens

    def _own_numbers(self, inputs: Mapping[str, Any], numbers: Numbers) -> tuple[Tensor, float]:
        """The numbers that the user's own object puts out when nobody looks, and the size of its largest logit."""
        with torch.no_grad():
            output = self.lens.traced.call(inputs)
            own = numbers(output).cpu().double()
            check_finite(own, family_of(self.model))
            logits = first_tensor(output)
            return own, float(torch.where(logits.isfinite(), logits, 0.0).abs().max())


def _wanted(request: ExplainRequest) -> TermSelection:
    return TermSelection(
        heads=request.keeps("heads", "edges"),
        edges=request.keeps("edges"),
        edges_top=request.edges_top,
        blocks=request.keeps("blocks"),
        direct=request.keeps("direct"),
    )


def _outside_of_inference(x: Tensor) -> Tensor:
    """The same numbers where gradients may use them: tensors made under `torch.inference_mode` take part in none."""
    return x.clone() if x.is_inference() else x


def _one_row(inputs: Mapping[str, Any], row: int, rows: int) -> dict[str, Any]:
    return {
        name: x[row : row + 1] if isinstance(x, Tensor) and x.ndim and x.shape[0] == rows else x
        for name, x in inputs.items()
    }
