"""What stands in for parts of a model's code while a frozen pass runs; all is put back afterwards.

This is the one place of `attribution` that changes something outside of it for a while: functions of modelling modules that
run a recurrence, and `torch.autograd.Function.apply` and `torch.no_grad`, behind which a model's code would be invisible.
All of them do what they always did in every thread but the one that runs the pass.
"""

from __future__ import annotations

import functools
import inspect
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from normlens.attribution.frozen import FrozenPass
from normlens.attribution.rules import words

#: The arguments of a recurrence that are weights: decays, step sizes, and what stands for queries and keys.
_WEIGHTS = words("query key g beta dt A B C dt_bias delta_bias igate fgate vecI vecF matQ matK")
#: A recurrence is known by its arguments: a delta rule, a state-space scan, an mLSTM cell, RWKV's average.
_RECURRENCES = (
    {"query", "key", "value", "g", "beta"},
    {"hidden_states", "dt", "A", "B", "C"},
    {"matQ", "matK", "matV", "vecI", "vecF"},
    {"query", "key", "value", "igate", "fgate"},
    {"key", "value", "time_decay"},
)


_patching = threading.RLock()


def _here() -> Callable[[], bool]:
    """Whether code runs in the thread that asks now."""
    mine = threading.get_ident()
    return lambda: threading.get_ident() == mine


@contextmanager
def seen_through(model: nn.Module, run: FrozenPass) -> Iterator[None]:
    """Make recurrences and autograd functions of the model's own code visible to the rules."""
    with _patching, ExitStack() as stack:  # one at a time: each puts back what it found
        stack.enter_context(_open_functions())
        stack.enter_context(_gradients_everywhere())
        for module in {type(part).__module__ for part in model.modules()}:
            stack.enter_context(_held_weights(sys.modules.get(module), run))
        yield


@contextmanager
def _held_weights(module: Any, run: FrozenPass) -> Iterator[None]:
    names = {} if module is None or module.__name__.startswith("torch.") else vars(module)
    found: dict[str, Callable[..., Any]] = {}
    for name, function in names.items():
        if inspect.isfunction(function):
            try:
                arguments = set(inspect.signature(function).parameters)
            except (TypeError, ValueError):
                continue
            if any(known <= arguments for known in _RECURRENCES):
                found[name] = function
    try:
        for name, function in found.items():
            setattr(module, name, _with_held_weights(function, run))
        yield
    finally:
        for name, function in found.items():
            setattr(module, name, function)


def _with_held_weights(function: Callable[..., Any], run: FrozenPass) -> Callable[..., Any]:
    """A recurrence whose decays, step sizes, queries and keys are held: its values alone are parts."""
    signature, here = inspect.signature(function), _here()

    @functools.wraps(function)
    def recur(*args: Any, **kwargs: Any) -> Any:
        if not here() or not torch.is_grad_enabled():
            return function(*args, **kwargs)
        given = signature.bind(*args, **kwargs)
        for name, value in given.arguments.items():
            if name in _WEIGHTS and isinstance(value, Tensor) and value.requires_grad:
                given.arguments[name] = run.hold_as("recurrence", value.detach)
        out = function(*given.args, **given.kwargs)
        run.mixed_positions(out)
        return out

    return recur


class _Context:
    """Takes what an autograd function wants to keep for a backward pass that will not come."""

    def __getattr__(self, name: str) -> Any:
        return lambda *args, **kwargs: None


@contextmanager
def _open_functions() -> Iterator[None]:
    """Run the forward code of a model's own autograd functions as ordinary code."""
    own, here = torch.autograd.Function.__dict__["apply"], _here()

    def apply(cls: Any, *args: Any, **kwargs: Any) -> Any:
        if (
            not here()
            or cls.__module__.startswith(("normlens.", "torch."))
            or cls.setup_context is not torch.autograd.Function.setup_context
        ):
            return own.__func__(cls, *args, **kwargs)
        return cls.forward(_Context(), *args, **kwargs)

    try:
        torch.autograd.Function.apply = classmethod(apply)  # type: ignore[assignment, method-assign]
        yield
    finally:
        torch.autograd.Function.apply = own  # type: ignore[method-assign]


@contextmanager
def _gradients_everywhere() -> Iterator[None]:
    """Some families run early cycles or whole layers without gradients; they are part of the map all the same."""
    enter, leave, here = torch.no_grad.__enter__, torch.no_grad.__exit__, _here()
    passed: set[int] = set()  # blocks of the model's own code that were entered without effect

    def entered(block: Any) -> None:
        if here():
            passed.add(id(block))
        else:
            enter(block)

    def left(block: Any, *args: Any) -> None:
        if here() and id(block) in passed:
            passed.discard(id(block))
        else:
            leave(block, *args)

    try:
        torch.no_grad.__enter__, torch.no_grad.__exit__ = entered, left  # type: ignore[method-assign]
        yield
    finally:
        torch.no_grad.__enter__, torch.no_grad.__exit__ = enter, leave  # type: ignore[method-assign]
