"""Watch one forward pass: which operation and which module made each tensor out of which others.

The anatomy of a model is read by following the data, not by names of attributes. This module records a small forward
pass as a graph: *values* (tensors, numbered as they appear), *operations* (what PyTorch's dispatcher ran) and *calls*
(module calls, with the values that went in and came out). `normlens.anatomy.reading` walks that graph.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

from normlens.anatomy.follow import AttentionProduct, SoftmaxFollower
from normlens.anatomy.operations import KeyPath, OpenCall, OperationKey, all_tensors, tensors_in
from normlens.anatomy.scope import PassScope

#: Operations that draw random numbers.
_DRAWS = {
    f"aten::{name}"
    for name in [
        *(
            "rand",
            "rand_like",
            "randn",
            "randn_like",
            "randint",
            "randint_like",
            "randperm",
            "bernoulli",
            "multinomial",
        ),
        *("normal", "uniform", "exponential", "random"),
    ]
}


@dataclass(frozen=True)
class Operation:
    """One operation of the dispatcher; `operands` are its positional arguments with values in place of tensors."""

    index: int
    name: str
    operands: tuple[Any, ...]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    scope: int  # the innermost open call, -1 outside of all
    key: OperationKey  # by which it is found again in a later pass
    options: tuple[tuple[str, Any], ...] = ()  # arguments by name that are no tensors


@dataclass
class Call:
    """One call of one module: the values it took and gave, and the operations that ran inside it."""

    index: int
    path: str
    module: nn.Module
    occurrence: int  # how many calls of this same module came before
    parents: tuple[int, ...]  # the calls that were open when this one began, outermost first
    inputs: tuple[tuple[KeyPath, int], ...]
    start: int  # number of operations before the call
    end: int = -1
    outputs: tuple[tuple[KeyPath, int], ...] = ()


@dataclass(frozen=True)
class Value:
    """A reference to a value inside an operation's operands."""

    number: int


@dataclass(frozen=True)
class AttentionEvent:
    """One attention: the values that went in and came out, and when."""

    module: nn.Module
    path: str
    value: int
    output: int
    alpha: Tensor  # batch head query key
    values: Tensor  # batch kv_head key width
    heads: Tensor  # batch query head width
    begin: int  # number of operations before this attention
    end: int  # number of operations up to and with this attention
    parents: tuple[int, ...]  # the open calls, outermost first; the last one is the attention module's own
    standard: bool  # whether `decompose.attention` computes the same
    followed: bool  # met by following the data, not through the attention interface
    calls: int = 1  # of the attention function, each over a part of the values' width


@dataclass
class Trace:
    """The recorded forward pass."""

    operations: list[Operation] = field(default_factory=list)
    calls: list[Call] = field(default_factory=list)
    attentions: list[AttentionEvent] = field(default_factory=list)
    products: int = 0  # of attention weights and values, wherever they were made
    lost: list[tuple[str, tuple[int, ...]]] = field(default_factory=list)  # softmaxes that met no values
    draws: bool = False  # whether the model draws random numbers
    changed: set[int] = field(default_factory=set)  # storages that some operation wrote into
    tensors: list[Tensor] = field(default_factory=list)  # by value; keeps them alive, so that identities stay unique
    producer: dict[int, int] = field(default_factory=dict)  # value -> operation
    consumers: dict[int, list[int]] = field(default_factory=lambda: defaultdict(list))  # value -> operations
    taken_by: dict[int, list[int]] = field(default_factory=lambda: defaultdict(list))  # value -> calls that took it
    given_by: dict[int, list[int]] = field(default_factory=lambda: defaultdict(list))  # value -> calls that gave it
    norms: dict[tuple[nn.Module, int], Any] = field(default_factory=dict)  # module and width -> what `norms` read of it

    def ancestors(self, *values: int) -> set[int]:
        """Every value from which the given ones were computed, themselves included."""
        seen: set[int] = set()
        stack = list(values)
        while stack:
            value = stack.pop()
            if value not in seen:
                seen.add(value)
                if value in self.producer:
                    stack.extend(self.operations[self.producer[value]].inputs)
        return seen

    def comes_from(self, value: int, origin: int) -> bool:
        """Return True if a value was computed from another one; nothing that ran before that one is looked at."""
        first = self.producer.get(origin, -1)
        seen: set[int] = set()
        stack = [value]
        while stack:
            current = stack.pop()
            if current == origin:
                return True
            index = self.producer.get(current, -1)
            if current not in seen and index > first:
                seen.add(current)
                stack.extend(self.operations[index].inputs)
        return False


class Recorder(TorchDispatchMode):
    """Records operations and module calls into a `Trace`."""

    def __init__(self, model: nn.Module, batch: int = 1) -> None:
        super().__init__()
        self.trace = Trace()
        self._paths = {module: path for path, module in model.named_modules()}
        self._numbers: dict[int, int] = {}
        self._open: list[int] = []
        self._frames = [OpenCall()]  # the first stands for what runs outside of all calls
        self._follower = SoftmaxFollower(batch)
        self._begin: int | None = None
        self._softmaxes: dict[int, str] = {}
        self._inside: list[tuple[AttentionProduct, int]] = []  # products inside the attention that is running
        self._occurrences: dict[nn.Module, int] = defaultdict(int)

    def number(self, tensor: Tensor) -> int:
        """The value that stands for this tensor now; a tensor that was never seen is a new value."""
        key = id(tensor)
        if key not in self._numbers:
            self._numbers[key] = len(self.trace.tensors)
            self.trace.tensors.append(tensor)
        return self._numbers[key]

    def _renew(self, tensor: Tensor) -> int:
        # A tensor that was changed in place is the same object with another content: a new value.
        self._numbers.pop(id(tensor), None)
        return self.number(tensor)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        given = all_tensors((args, kwargs))
        inputs = tuple(map(self.number, given))
        operands = tuple(Value(self.number(a)) if isinstance(a, Tensor) else a for a in args)
        result = func(*args, **kwargs)
        index = len(self.trace.operations)
        changes = func._schema.is_mutable
        outputs = tuple(map(self._renew if changes else self.number, all_tensors(result)))
        name = func.overloadpacket._qualified_op_name
        scope = self._open[-1] if self._open else -1
        key = self._frames[-1].operation(name)
        if name == "aten::cat" and len(inputs) == 1:  # the outputs of one image, put together with nothing
            name, operands = "aten::clone", (Value(inputs[0]),)
        options = tuple((name, value) for name, value in kwargs.items() if not isinstance(value, Tensor))
        self.trace.operations.append(Operation(index, name, operands, inputs, outputs, scope, key, options))
        for value in inputs:
            self.trace.consumers[value].append(index)
        for value in outputs:
            if value not in inputs:
                self.trace.producer.setdefault(value, index)
        if changes:
            self.trace.changed.update(_storage(t) for t in given if _is_changed(func, t, args))
        waiting = len(self._follower.waiting)
        self.trace.draws = self.trace.draws or name.rstrip("_") in _DRAWS
        product = self._follower.see(name, args, result)
        if len(self._follower.waiting) > waiting:
            self._softmaxes[id(result)] = self.trace.calls[scope].path if scope >= 0 else "?"
        if product is not None:
            self.trace.products += 1
            if self._begin is None:
                self._note(product, index)
            else:
                self._inside.append((product, index))
        return result

    def _note(self, product: AttentionProduct, index: int) -> None:
        """An attention that the model's own code did, outside of the attention interface."""
        call = self.trace.calls[self._open[-1]]
        self.trace.attentions.append(
            AttentionEvent(
                call.module,
                call.path,
                self.number(product.value),
                self.number(product.product),
                product.alpha,
                _by_group(product.values),
                product.heads,
                index,
                index + 1,
                tuple(self._open),
                standard=False,
                followed=True,
            )
        )

    def _enter(self, module: nn.Module, args: Any, kwargs: Any) -> None:
        inputs = tuple((path, self.number(t)) for path, t in tensors_in({"args": args, "kwargs": kwargs}))
        index = len(self.trace.calls)
        self._frames[-1].call()
        self._frames.append(OpenCall())
        call = Call(
            index,
            self._paths.get(module, "?"),
            module,
            self._occurrences[module],
            tuple(self._open),
            inputs,
            start=len(self.trace.operations),
        )
        self._occurrences[module] += 1
        self.trace.calls.append(call)
        for _, value in inputs:
            self.trace.taken_by[value].append(index)
        self._open.append(index)

    def _leave(self, module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
        self._frames.pop()
        call = self.trace.calls[self._open.pop()]
        call.end = len(self.trace.operations)
        call.outputs = tuple((path, self.number(t)) for path, t in tensors_in(output))
        for _, value in call.outputs:
            self.trace.given_by[value].append(call.index)

    def before_attention(self) -> None:
        """An attention through the interface begins: what it does inside is its own affair."""
        self._begin = len(self.trace.operations)
        self._inside.clear()

    def attention(self, module: nn.Module, value: Tensor, alpha: Tensor, output: Tensor, standard: bool) -> None:
        """Note one attention that has just run through the interface."""
        assert self._begin is not None, "every attention begins before it ends"
        begin, self._begin = self._begin, None
        if len(self._inside) == 1 and not _is_product(alpha, value, output):
            # The family's function does more to its output than to multiply: follow it from the product itself.
            self._note(*self._inside[0])
            return
        self.trace.attentions.append(
            AttentionEvent(
                module,
                self._paths.get(module, "?"),
                self.number(value),
                self.number(output),
                alpha,
                value,
                output,
                begin,
                len(self.trace.operations),
                tuple(self._open),
                standard=standard,
                followed=False,
            )
        )

    def lost(self) -> list[tuple[str, tuple[int, ...]]]:
        """Softmaxes that look like attention but met no values: where, and their shape."""
        return [(self._softmaxes[key], tuple(weights.shape)) for key, weights in self._follower.waiting.items()]

    def watch(self, scope: PassScope) -> None:
        """Record all that runs in the scope from now on, and hook every module of the model."""
        for module in self._paths:
            scope.before(module, self._enter, prepend=True)
            scope.after(module, self._leave)
        scope.enter(self)


def _by_group(values: Tensor) -> Tensor:
    """The values once for each group of neighbouring heads that share them (batch kv_head key width)."""
    heads = values.shape[1]
    with _disable_current_modes():
        if not bool(values.any()):  # values that are all zero say nothing about groups
            return values
        for groups in range(1, heads):
            if heads % groups == 0:
                shared = values[:, :: heads // groups]
                if torch.equal(shared.repeat_interleave(heads // groups, dim=1), values):
                    return shared
    return values


def _storage(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def _is_changed(func: Any, tensor: Tensor, args: Any) -> bool:
    """Return True if this operation writes into the tensor: by convention, in-place operations write into the first one."""
    return bool(args) and tensor is args[0]


def _is_product(alpha: Tensor, value: Tensor, output: Tensor) -> bool:
    """Return True if the output is the weights times the values and nothing else."""
    if alpha.ndim != 4 or value.ndim != 4 or alpha.shape[1] % value.shape[1]:
        return False
    if value.shape[2] != alpha.shape[3]:
        return False
    dtype = output.dtype
    with _disable_current_modes():  # what is computed here is no part of the model's pass
        alpha, value, output = (
            tensor.cpu().double() for tensor in (alpha, value, output)
        )  # not every device has float64
        shared = alpha.shape[1] // value.shape[1]
        repeated = value if shared == 1 else value.repeat_interleave(shared, dim=1)
        expected = (alpha @ repeated).transpose(1, 2)
        if expected.shape != output.shape:
            return False
        tolerance = 64 * torch.finfo(dtype).eps * float(expected.abs().max())
        return float((expected - output).abs().max()) <= tolerance
