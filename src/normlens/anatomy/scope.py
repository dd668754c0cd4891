"""The one object that changes a user's model during a pass, for the thread of the pass alone, and restores it.

Hooks, replaced methods, the attention implementation, training mode and grad mode: whatever a pass installs, it installs
through a `PassScope`. Leaving the scope restores everything, on success, on an error and on an interruption. Hooks and
replaced methods do nothing in other threads: a model that its user calls meanwhile runs as it always does.
"""

from __future__ import annotations

import functools
import itertools
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any, Self, TypeVar
from weakref import WeakKeyDictionary, WeakSet

import torch
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from normlens.decompose.process import SharedSetting
from normlens.errors import InputError

Entered = TypeVar("Entered")


@dataclass
class _ModelLock:
    """Admits one pass at a time."""

    number: int  # locks are taken in this order
    lock: Any = field(default_factory=threading.RLock)
    reader: int | None = None  # the thread that reads a stream; the pass of a stream runs in a thread of its own


#: The lock of each module, given when the first model that holds the module is locked.
_locks: WeakKeyDictionary[nn.Module, _ModelLock] = WeakKeyDictionary()
_locks_lock = threading.Lock()
_numbers = itertools.count()


def _locks_of(model: nn.Module) -> list[_ModelLock]:
    """Return the locks of a model: several, where parts of it were locked by themselves before.

    Models that share a module (a wrapper and what it wraps, an encoder and its encoder-decoder) share a lock.
    """
    modules = all_modules(model)
    with _locks_lock:
        known = {lock.number: lock for lock in map(_locks.get, modules) if lock is not None}
        own = _locks.get(model) or _ModelLock(next(_numbers))
        known[own.number] = own
        for module in modules:
            _locks.setdefault(module, own)
    return [known[number] for number in sorted(known)]


def is_streaming(model: nn.Module) -> bool:
    """Return True if a stream on this model is open in this thread."""
    return any(lock.reader == threading.get_ident() for lock in _locks_of(model))


@contextmanager
def one_pass_at_a_time(model: nn.Module, reader: int | None = None) -> Iterator[None]:
    """Hold the model's locks; `reader` is the thread that reads a stream."""
    locks = _locks_of(model)
    if any(lock.reader == threading.get_ident() for lock in locks):
        raise InputError(
            "a stream on this model is still open in this thread; read it to its end, or close() it, then start the next "
            "pass"
        )
    with ExitStack() as held:
        for lock in locks:
            held.enter_context(lock.lock)
            held.callback(setattr, lock, "reader", lock.reader)
            lock.reader = lock.reader if reader is None else reader
        yield


def _turn_off_fused_attention(undo: ExitStack) -> None:
    undo.callback(torch.backends.mha.set_fastpath_enabled, torch.backends.mha.get_fastpath_enabled())
    torch.backends.mha.set_fastpath_enabled(False)
    undo.enter_context(sdpa_kernel(SDPBackend.MATH))


#: Disables fused attention, so that a softmax in a family's own code (or in plain PyTorch) is visible.
unfused = SharedSetting(_turn_off_fused_attention)
#: Disables torch.compile: a compiled call would not run hooks and handlers, or would compile them.
_uncompiled = SharedSetting(lambda undo: undo.enter_context(torch.compiler.set_stance("force_eager")))


def all_modules(model: nn.Module) -> list[nn.Module]:
    """List what `model.modules()` yields, without a generator for every level: this runs in every pass."""
    found: dict[nn.Module, None] = {}
    waiting: list[nn.Module | None] = [model]
    while waiting:
        module = waiting.pop()
        if module is not None and module not in found:
            found[module] = None
            waiting.extend(module._modules.values())
    return list(found)


#: Models that draw random numbers (ViT-MAE masks patches at random): their passes begin with one seed.
_drawing: WeakSet[nn.Module] = WeakSet()
SEED = 0


def seed_passes(model: nn.Module) -> None:
    """Begin every pass of a model that draws random numbers with the same seed, so that two passes see the same."""
    _drawing.add(model)


def is_seeded(model: nn.Module) -> bool:
    """Return True if passes of a model begin with a seed."""
    return bool(_drawing) and any(module in _drawing for module in all_modules(model))


@contextmanager
def seeded() -> Iterator[None]:
    """Draw the same random numbers inside the block each time, and leave those of the process as they were."""
    with torch.random.fork_rng():
        torch.manual_seed(SEED)
        yield


class PassScope:
    """One pass through a model: holds the model's lock, runs it in eval mode, and restores all changes.

    Args:
        model: The model that the pass runs.
        grad: Grad mode of the pass.
        reader: The thread that reads the results, where that is another one (streams).

    Example:
        >>> model = nn.Linear(2, 2)
        >>> with PassScope(model) as scope:
        ...     scope.before(model, lambda module, args, kwargs: print("called"))
        ...     _ = model(torch.zeros(1, 2))
        called
    """

    def __init__(self, model: nn.Module, *, grad: bool = False, reader: int | None = None) -> None:
        self.model = model
        self._grad, self._reader = grad, reader
        self._thread: int | None = None  # while the scope is entered
        self._undo = ExitStack()

    def __enter__(self) -> Self:
        if self._thread is not None:
            raise RuntimeError("a PassScope is entered once; make another one for another pass")
        self._thread = threading.get_ident()
        with ExitStack() as undo:
            undo.enter_context(one_pass_at_a_time(self.model, self._reader))
            modules = all_modules(self.model)
            training = [module for module in modules if module.training]
            undo.callback(_set_training, training, True)
            _set_training(training, False)
            if any(_is_compiled(module) for module in modules):
                undo.enter_context(_uncompiled())
            if _drawing and any(module in _drawing for module in modules):
                undo.enter_context(seeded())
            undo.enter_context(torch.inference_mode(False) if self._grad else nullcontext())
            undo.enter_context(torch.set_grad_enabled(self._grad))
            self._undo = undo.pop_all()
        return self

    def __exit__(self, *error: Any) -> None:
        self._undo.__exit__(*error)

    @property
    def here(self) -> bool:
        """True in the thread of the pass."""
        return threading.get_ident() == self._thread

    def enter(self, context: AbstractContextManager[Entered]) -> Entered:
        """Enter a context that ends with the scope."""
        return self._undo.enter_context(context)

    def on_exit(self, restore: Callable[..., Any], *args: Any) -> None:
        """Call `restore` when the scope ends."""
        self._undo.callback(restore, *args)

    def before(self, module: nn.Module, hook: Callable[..., Any], *, prepend: bool = False) -> None:
        """Call `hook(module, args, kwargs)` before each call of the module."""
        guarded = self._guarded(hook)
        self._undo.callback(module.register_forward_pre_hook(guarded, with_kwargs=True, prepend=prepend).remove)

    def after(self, module: nn.Module, hook: Callable[..., Any], *, always: bool = False) -> None:
        """Call `hook(module, args, kwargs, output)` after each call of the module; `always`: after an error too."""
        guarded = self._guarded(hook)
        self._undo.callback(module.register_forward_hook(guarded, with_kwargs=True, always_call=always).remove)

    def _guarded(self, hook: Callable[..., Any]) -> Callable[..., Any]:
        def run_hook(*args: Any) -> Any:
            return hook(*args) if self.here else None

        return run_hook

    def replace(self, owner: Any, name: str, make: Callable[[Callable[..., Any]], Callable[..., Any]]) -> None:
        """Replace the function `owner.name` by `make(function)`; other threads go on calling the function itself."""
        function = getattr(owner, name)
        replacement = make(function)

        @functools.wraps(function)
        def guarded(*args: Any, **kwargs: Any) -> Any:
            return replacement(*args, **kwargs) if self.here else function(*args, **kwargs)

        self.set(owner, name, guarded)

    def set(self, owner: Any, name: str, value: Any) -> None:
        """Set an attribute, and restore it (or its absence) when the scope ends."""
        names = vars(owner)
        if name in names:
            self._undo.callback(setattr, owner, name, names[name])
        else:
            self._undo.callback(delattr, owner, name)
        setattr(owner, name, value)


def _set_training(modules: list[nn.Module], training: bool) -> None:
    for module in modules:
        module.training = training


def _is_compiled(module: nn.Module) -> bool:
    """Return True for a module compiled by `compile()`, or by `torch.compile` of it or of its forward."""
    return (
        module._compiled_call_impl is not None
        or "_orig_mod" in module._modules
        or hasattr(module.__dict__.get("forward"), "_torchdynamo_orig_callable")
    )
