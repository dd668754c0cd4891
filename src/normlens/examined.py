"""A model, what is known of it in its present state, and passes through it: what stands behind a `Lens`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from copy import deepcopy
from typing import Any

import torch
from torch import Tensor, nn

from normlens.anatomy.description import Anatomy
from normlens.anatomy.examine import (
    DECIDING,
    backbone,
    examine,
    family_of,
    form_of,
    is_encoder_decoder,
    one_row,
    reading_inputs,
)
from normlens.anatomy.inputs import failed_on
from normlens.anatomy.interface import Rounding, fresh, run_arguments
from normlens.anatomy.layers import LayerCall, trace_layers
from normlens.anatomy.scope import PassScope, is_streaming, one_pass_at_a_time
from normlens.anatomy.weights import ModelState, StateReader, WeightCache
from normlens.capture import Take, capture, outputs_around
from normlens.errors import AnatomyError, NormlensError
from normlens.proof import Subject, check_output
from normlens.provenance import describe_model
from normlens.request import Request
from normlens.text.encoding import longest_input
from normlens.text.positions import Positions, RowWords

#: Requests that are kept; after so many different ones, all are forgotten.
_REQUESTS = 32


class ExaminedModel:
    """A model and what was read of it. What is kept is good for one state of the model, and is read anew after a change.

    The model is used as it is: its attention implementation, its training mode and its weights are left as they were.
    One pass at a time runs through a model; other threads wait.
    """

    def __init__(self, model: nn.Module, name: str | None = None) -> None:
        self.model = model
        self.family = family_of(model)  #: the model's type, as its configuration names it
        self._name = name
        self._body = backbone(model)
        self._two_sided = is_encoder_decoder(model)
        self._reader = StateReader(model, self._body)
        self._state: ModelState | None = None
        # What is known of the model, good for its present state alone.
        self._anatomies: dict[frozenset[Any], Anatomy] = {}  # by the inputs that change what runs
        self._layer_calls: dict[frozenset[Any], tuple[LayerCall, ...]] = {}  # by the same inputs
        self._weights = WeightCache()
        self._requests: dict[tuple[int, str], Request] = {}  # by anatomy, and what was asked
        self._described: dict[str, Any] | None = None
        self._compared: dict[tuple[Any, ...], float] = {}  # kind of input -> difference of the outputs

    @property
    def anatomy(self) -> Anatomy:
        """The model's attention sites and what they are made of, read once (and anew when parameters were replaced).

        A module that is no transformers model is read when it is first analysed: nobody else knows what it takes.
        """
        self.refresh()
        if self._anatomies and not hasattr(self._body, "config"):
            return next(reversed(self._anatomies.values()))
        with self.named_errors():
            return self._anatomy_for({})

    @contextmanager
    def named_errors(self, inputs: Mapping[str, Any] | None = None) -> Iterator[None]:
        """Turn an error inside of the block that is none of ours into one that names the model.

        Args:
            inputs: What the model was run on. If the model by itself fails on it, that is the error.
        """
        try:
            yield
        except (NormlensError, MemoryError, torch.OutOfMemoryError):
            raise
        except Exception as error:
            for model in () if inputs is None else (self.model, self._body):
                self._call(model, run_arguments(model, inputs or {}))
            reason = (str(error).strip().splitlines() or [""])[0][:200]
            raise AnatomyError(
                f"{type(self.model).__name__} ({self.family}) is not supported on this input: {type(error).__name__}: "
                f"{reason}; please report it"
            ) from error

    def refresh(self) -> ModelState:
        """The model's state as it is now; what is known of it and does not hold any more is forgotten."""
        before = self._state
        if before is not None and is_streaming(self._body):  # inside of a pass a model is not itself
            return before
        with one_pass_at_a_time(self._body):
            now = self._state = self._reader.read()
        if before is None or before == now:
            return now
        changed = (before.tensors, before.entries, before.adapters) != (now.tensors, now.entries, now.adapters)
        if before.identities != now.identities or (changed and self._holds_numbers()):
            self._forget()
        elif changed:
            self._weights.clear()
            self._described = None
        return now

    def _holds_numbers(self) -> bool:
        return any(anatomy.holds_numbers for anatomy in self._anatomies.values())

    def _forget(self) -> None:
        self._anatomies.clear()
        self._layer_calls.clear()
        self._requests.clear()
        self._weights.clear()
        self._compared.clear()
        self._described = None

    def _anatomy_for(self, inputs: Mapping[str, Any]) -> Anatomy:
        """The anatomy for these inputs: what runs may depend on which of them there are, not on their numbers."""
        known: frozenset[Any] = frozenset(name for name in DECIDING if inputs.get(name) is not None)
        # Nobody but the user knows what another module takes: forms of masks decide, and it is read on one row of them.
        foreign = bool(inputs) and not known and ("input_ids" not in inputs or not hasattr(self._body, "config"))
        if foreign:
            known = frozenset(form_of(*item) for item in inputs.items())
        if known not in self._anatomies:
            with one_pass_at_a_time(self._body):
                read_on = one_row(inputs) if foreign else reading_inputs(self._body, inputs)
                self._anatomies[known] = examine(self._body, read_on)
        return self._anatomies[known]

    def layer_calls(self, inputs: Mapping[str, Any], *, on_inputs: bool = False) -> tuple[LayerCall, ...]:
        """The layers that a pass on these inputs calls, in their order, from a trace.

        Args:
            inputs: The inputs of the pass.
            on_inputs: Trace the whole model on one row of the inputs, instead of its body on a few tokens.
        """
        by_tokens = not on_inputs and "input_ids" in inputs and hasattr(self._body, "config")
        known: frozenset[Any] = frozenset(name for name in DECIDING if inputs.get(name) is not None)
        if not by_tokens:
            known = frozenset(form_of(*item) for item in inputs.items())
        if known not in self._layer_calls:
            if by_tokens:
                found = trace_layers(self._body, reading_inputs(self._body, inputs))
            else:
                found = trace_layers(getattr(self.model, "_orig_mod", self.model), one_row(inputs))
            self._layer_calls[known] = found
        return self._layer_calls[known]

    def _request(self, anatomy: Anatomy, asked: Mapping[str, Any]) -> Request:
        """What was asked, checked against the anatomy; people ask for the same again and again."""
        key = (id(anatomy), repr(asked))
        if key not in self._requests:
            if len(self._requests) >= _REQUESTS:
                self._requests.clear()
            self._requests[key] = Request.of(anatomy, **asked)
        return self._requests[key]

    @property
    def identity(self) -> dict[str, Any]:
        """What identifies the model in a record: name, class, family, revision, content hash, dtype."""
        self.refresh()
        return self._description()

    @property
    def output_gap(self) -> float:
        """The largest difference so far between the model's output under capture and its own; 0 before the first pass."""
        return max(self._compared.values(), default=0.0)

    def _description(self) -> dict[str, Any]:
        if self._described is None:
            self._described = describe_model(self.model, self._name, self.family)
        return deepcopy(self._described)

    # ---- passes --------------------------------------------------------------------------------------------------

    def run(
        self,
        inputs: Mapping[str, Any],
        request: Request,
        take: Take,
        *,
        prepared: bool = False,
        words: RowWords | None = None,
        reader: int | None = None,
    ) -> None:
        """One forward pass; each site's proved numbers are given to `take` as the site ends.

        Inputs that a user `prepared` are compared with the model's answer to them alone (see `call`).
        """
        with one_pass_at_a_time(self._body, reader), self.named_errors(inputs):
            self.refresh()
            self._run(inputs, self._anatomy_for(inputs), request, take, prepared, words)

    def _run(
        self,
        inputs: Mapping[str, Any],
        anatomy: Anatomy,
        request: Request,
        take: Take,
        prepared: bool,
        words: RowWords | None,
    ) -> float:
        """The pass itself; returns how far its kind's outputs were from the user's own when they were compared."""
        positions = Positions.of(inputs, self._two_sided, words)
        kind = (prepared, *self.kind_of(inputs))
        arguments = (self._body, anatomy, inputs, request, positions, self._weights, take)
        if kind in self._compared:
            capture(*arguments)
            return self._compared[kind]
        with outputs_around(self._body, anatomy) as own:
            self.call(inputs, prepared=prepared)
        with outputs_around(self._body, anatomy) as captured:
            capture(*arguments)
        rounding = Rounding.of(self._body).coarsest(next(self._body.parameters()).dtype, request.dtype)
        subject = Subject(self.family, "output", type(self._body).__name__, rounding)
        self._compared[kind] = check_output(captured, own, positions.last, subject)
        return self._compared[kind]

    def call(self, inputs: Mapping[str, Any], *, prepared: bool = False) -> Any:
        """Run the model as its user would; inputs on which it fails are the user's to mend.

        A pass over inputs of ours has no cache of keys and values; what a user `prepared` is all that is handed over.
        """
        return self._call(self.model, inputs if prepared else run_arguments(self.model, inputs))

    def _call(self, model: nn.Module, inputs: Mapping[str, Any]) -> Any:
        try:
            with PassScope(model):
                return model(**fresh(dict(inputs)))
        except NormlensError:
            raise
        except Exception as error:
            raise failed_on(model, inputs, error, longest_input(self.model, None)) from error

    def kind_of(self, inputs: Mapping[str, Any]) -> tuple[Any, ...]:
        """All that can change the computation beside the numbers: per such kind, outputs are compared once."""
        given: list[tuple[Any, ...]] = []
        for name in sorted(inputs):
            value = inputs[name]
            if not isinstance(value, Tensor):
                plain = value is None or isinstance(value, bool | int | float | str)
                given.append((name, repr(value) if plain else type(value).__name__))
                continue
            whole = "mask" in name and value.ndim == 2 and bool(value.all())
            given.append((name, str(value.dtype), value.ndim, value.device.type, whole))
        state, autocast = self._state or self.refresh(), Rounding.of(self._body).autocast
        return (*given, autocast, state.implementation, state.adapters, state.hooks, state.wrappers)
