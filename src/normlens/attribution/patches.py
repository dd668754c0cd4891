"""Replacements for parts of a model's code during a frozen pass; all are restored afterwards.

Functions of modelling modules that run a recurrence, and `torch.autograd.Function.apply` and `torch.no_grad`, behind which a
model's code would be invisible. The scope restores them, and they are unchanged in other threads.
"""

from __future__ import annotations

import functools
import inspect
import sys
import threading
from collections.abc import Callable, Hashable
from types import BuiltinFunctionType, FunctionType, ModuleType
from typing import Any

import torch
from torch import Tensor, nn
from transformers.activations import ACT2CLS

from normlens.anatomy.scope import PassScope
from normlens.attribution.frozen import FrozenPass
from normlens.attribution.operands import is_live
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


#: Modules that are one element-wise function.
_ACTIVATIONS = tuple({cls[0] if isinstance(cls, tuple) else cls for cls in ACT2CLS.values()})

_patching = threading.RLock()


def expose_hidden_ops(scope: PassScope, run: FrozenPass) -> None:
    """Make recurrences and autograd functions of the model's own code visible to the rules."""
    scope.enter(_patching)  # functions of the whole process: one pass at a time replaces them
    _open_functions(scope)
    _keep_gradients(scope)
    for module in scope.model.modules():
        if isinstance(module, _ACTIVATIONS):
            scope.replace(module, "forward", functools.partial(_as_activation, module=module, run=run))
    for name in {type(part).__module__ for part in scope.model.modules()}:
        code = sys.modules.get(name)
        if code is not None and not name.startswith("torch."):
            _hold_weights(scope, code, run)


def _as_activation(forward: Callable[..., Any], module: nn.Module, run: FrozenPass) -> Callable[..., Any]:
    """Return an activation module as one function of its input, also where its code looks like something else.

    `sqrt(softplus(z))` is an activation here, and a step size elsewhere.
    """
    key = _activation_key(module)

    def activate(*args: Any, **kwargs: Any) -> Any:
        if len(args) != 1 or kwargs or not is_live(args[0]) or not torch.is_grad_enabled():
            return forward(*args, **kwargs)
        return run.activation(args[0], forward, key)

    return activate


def _activation_key(module: nn.Module) -> Hashable | None:
    """Name the function of an activation module; None where its class and plain settings do not say all of it."""
    if "forward" in vars(module) or module._parameters or module._buffers or module._modules:
        return None
    settings: list[Any] = [type(module)]
    for name, given in sorted(vars(module).items()):
        if name.startswith("_") or name == "training":
            continue
        value = getattr(given, "__func__", given)  # a method of its own class
        plain = value is None or type(value) in (bool, int, float, str, FunctionType, BuiltinFunctionType)
        if not plain:
            return None
        settings.append((name, value))
    return tuple(settings)


def _hold_weights(scope: PassScope, module: ModuleType, run: FrozenPass) -> None:
    for name, function in list(vars(module).items()):
        if not inspect.isfunction(function):
            continue
        try:
            arguments = set(inspect.signature(function).parameters)
        except (TypeError, ValueError):
            continue
        if any(known <= arguments for known in _RECURRENCES):
            scope.replace(module, name, functools.partial(_with_held_weights, run=run))


def _with_held_weights(function: Callable[..., Any], run: FrozenPass) -> Callable[..., Any]:
    """Return a recurrence whose decays, step sizes, queries and keys are held: its values alone are parts."""
    signature = inspect.signature(function)

    def recur(*args: Any, **kwargs: Any) -> Any:
        if not torch.is_grad_enabled():
            return function(*args, **kwargs)
        given = signature.bind(*args, **kwargs)
        for name, value in given.arguments.items():
            if name in _WEIGHTS and isinstance(value, Tensor) and value.requires_grad:
                given.arguments[name] = run.freeze_as("recurrence", value.detach)
        out = function(*given.args, **given.kwargs)
        run.mixed_positions(out)
        return out

    return recur


class _Context:
    """Takes what an autograd function wants to keep for a backward pass that will not come."""

    def __getattr__(self, name: str) -> Any:
        return lambda *args, **kwargs: None


def _open_functions(scope: PassScope) -> None:
    """Run the forward code of a model's own autograd functions as ordinary code."""
    own = torch.autograd.Function.__dict__["apply"]

    def apply(cls: Any, *args: Any, **kwargs: Any) -> Any:
        if (
            not scope.here
            or cls.__module__.startswith(("normlens.", "torch."))
            or cls.setup_context is not torch.autograd.Function.setup_context
        ):
            return own.__func__(cls, *args, **kwargs)
        return cls.forward(_Context(), *args, **kwargs)

    scope.set(torch.autograd.Function, "apply", classmethod(apply))


def _keep_gradients(scope: PassScope) -> None:
    """Ignore `torch.no_grad` in the model's code: what some families run without gradients is part of the map too."""
    enter, leave = torch.no_grad.__enter__, torch.no_grad.__exit__
    ignored: set[int] = set()  # blocks of the model's own code that were entered without effect

    def entered(block: Any) -> None:
        if scope.here:
            ignored.add(id(block))
        else:
            enter(block)

    def left(block: Any, *args: Any) -> None:
        if scope.here and id(block) in ignored:
            ignored.discard(id(block))
        else:
            leave(block, *args)

    scope.set(torch.no_grad, "__enter__", entered)
    scope.set(torch.no_grad, "__exit__", left)
