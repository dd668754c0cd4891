"""A model and what is known of it in its present state: its sites and layers, prepared weights, compared outputs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from copy import deepcopy
from typing import Any, TypeVar

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
from normlens.anatomy.inputs import failed_on, holds_media, longest_input
from normlens.anatomy.interface import Rounding, clone_inputs, run_arguments
from normlens.anatomy.layers import LayerCall, trace_layers
from normlens.anatomy.scope import PassScope, is_streaming, one_pass_at_a_time
from normlens.anatomy.weights import ModelState, StateReader, WeightCache
from normlens.errors import AnatomyError, DecompositionError, InputError, NormlensError
from normlens.provenance import describe_model
from normlens.types import Json, ModelInputs

T = TypeVar("T")


class TracedModel:
    """A model and what was read of it in a trace; everything expires when the model changes.

    Args:
        model: The model. Its attention implementation, training mode and weights are left as they were.
        name: Its name in records.
    """

    def __init__(self, model: nn.Module, name: str | None = None) -> None:
        self.model = model
        self.body = backbone(model)  #: the model without its task head
        self.family = family_of(model)  #: the model's type, as its configuration names it
        self.name = name
        self.two_sided = is_encoder_decoder(model)
        self.weights = WeightCache()
        self.output_errors: dict[tuple[Any, ...], float] = {}  #: by kind of input
        self.explain_errors: dict[tuple[Any, ...], tuple[float, float]] = {}  #: of replay and output, by kind of input
        self.padding_matters: bool | None = None  #: whether padding changes the output of a row; None: not known
        self._reader = StateReader(model, self.body)
        self._state: ModelState | None = None
        self._anatomies: dict[frozenset[Any], Anatomy] = {}  # by the inputs that decide what runs
        self._layer_calls: dict[frozenset[Any], tuple[LayerCall, ...]] = {}  # by the same inputs
        self._description: Json | None = None

    @property
    def anatomy(self) -> Anatomy:
        """The model's attention sites, read once (and again when parameters were replaced).

        A module that is no transformers model is read when it is first analysed: only its user knows what it takes.
        """
        self.refresh()
        if self._anatomies and not hasattr(self.body, "config"):
            return next(reversed(self._anatomies.values()))
        with self.named_errors():
            return self.anatomy_for({})

    @property
    def state(self) -> ModelState:
        """The state of the model when it was last refreshed."""
        return self._state or self.refresh()

    def description(self) -> Json:
        """Name, class, family, revision, content hash and dtype of the model."""
        if self._description is None:
            self._description = describe_model(self.model, self.name, self.family)
        return deepcopy(self._description)

    def with_fresh_caches(self, work: Callable[[], T]) -> T:
        """Run some work; if a check fails on cached knowledge, drop that and run it once more."""
        cached = bool(self._anatomies)
        try:
            return work()
        except (AnatomyError, DecompositionError):
            if not cached:
                raise
        self.forget()
        return work()

    @contextmanager
    def named_errors(self, inputs: ModelInputs | None = None) -> Iterator[None]:
        """Turn an error inside of the block that is none of ours into one that names the model.

        Args:
            inputs: What the model was run on. If the model by itself fails on it, that is the error.
        """
        try:
            yield
        except (NormlensError, MemoryError, torch.OutOfMemoryError):
            raise
        except Exception as error:
            for model in () if inputs is None else (self.model, self.body):
                self.call_module(model, run_arguments(model, inputs or {}))
            reason = (str(error).strip().splitlines() or [""])[0][:200]
            raise AnatomyError(
                f"{type(self.model).__name__} ({self.family}) is not supported on this input: {type(error).__name__}: "
                f"{reason}; please report it"
            ) from error

    def refresh(self) -> ModelState:
        """The model's state as it is now; what is known of it and does not hold any more is forgotten."""
        before = self._state
        try:
            with one_pass_at_a_time(self.body):
                now = self._state = self._reader.read()
        except InputError:
            if before is None or not is_streaming(self.body):
                raise
            return before  # inside of a pass a model is not itself
        if before is None or before == now:
            return now
        changed = (before.tensors, before.entries, before.adapters) != (now.tensors, now.entries, now.adapters)
        if before.identities != now.identities or (changed and self._holds_numbers()):
            self.forget()
        elif changed:
            self._forget_numbers()
        return now

    def _holds_numbers(self) -> bool:
        return any(anatomy.holds_numbers for anatomy in self._anatomies.values())

    def forget(self) -> None:
        """Drop everything that is known of the model."""
        self._anatomies.clear()
        self._layer_calls.clear()
        self.output_errors.clear()
        self._forget_numbers()

    def _forget_numbers(self) -> None:
        """Drop what depends on the numbers in the model's weights."""
        self.weights.clear()
        self.explain_errors.clear()
        self.padding_matters = None
        self._description = None

    def anatomy_for(self, inputs: ModelInputs) -> Anatomy:
        """The anatomy for these inputs: what runs may depend on which of them there are, not on their numbers."""
        known: frozenset[Any] = frozenset(name for name in DECIDING if inputs.get(name) is not None)
        # Nobody but the user knows what another module takes: forms of masks decide, and it is read on one row of them.
        seen = "input_ids" not in inputs or holds_media(inputs) or not hasattr(self.body, "config")
        foreign = bool(inputs) and not known and seen
        if foreign:
            known = frozenset(form_of(*item) for item in inputs.items())
        if known not in self._anatomies:
            with one_pass_at_a_time(self.body):
                read_on = one_row(inputs) if foreign else reading_inputs(self.body, inputs)
                self._anatomies[known] = examine(self.body, read_on)
        return self._anatomies[known]

    def layer_calls(self, inputs: ModelInputs, *, on_inputs: bool = False) -> tuple[LayerCall, ...]:
        """The layers that a pass on these inputs calls, in their order, from a trace.

        Args:
            inputs: The inputs of the pass.
            on_inputs: Trace the whole model on one row of the inputs, instead of its body on a few tokens.
        """
        by_tokens = not on_inputs and "input_ids" in inputs and not holds_media(inputs) and hasattr(self.body, "config")
        known: frozenset[Any] = frozenset(name for name in DECIDING if inputs.get(name) is not None)
        if not by_tokens:
            known = frozenset(form_of(*item) for item in inputs.items())
        if known not in self._layer_calls:
            if by_tokens:
                found = trace_layers(self.body, reading_inputs(self.body, inputs))
            else:
                found = trace_layers(getattr(self.model, "_orig_mod", self.model), one_row(inputs))
            self._layer_calls[known] = found
        return self._layer_calls[known]

    def call(self, inputs: ModelInputs, *, prepared: bool = False) -> Any:
        """Run the model as its user would; inputs on which it fails are the user's to mend.

        A pass over inputs of ours has no cache of keys and values; what a user `prepared` is all that is handed over.
        """
        return self.call_module(self.model, inputs if prepared else run_arguments(self.model, inputs))

    def call_module(self, model: nn.Module, inputs: ModelInputs) -> Any:
        """Run a module of the model on exactly these inputs."""
        try:
            with PassScope(model):
                return model(**clone_inputs(dict(inputs)))
        except NormlensError:
            raise
        except Exception as error:
            raise failed_on(model, inputs, error, longest_input(self.model, None)) from error

    def kind_of(self, inputs: ModelInputs) -> tuple[Any, ...]:
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
        state, autocast = self.state, Rounding.of(self.body).autocast
        return (*given, autocast, state.implementation, state.adapters, state.hooks, state.wrappers)
