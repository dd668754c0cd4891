"""One forward pass of an unmodified model in which every operation leaves its affine map behind.

`FrozenPass` sees each function that the model's code calls. What depends on the input vectors carries a gradient (it is
*live*); what does not is a constant. A live operand goes through the rule of its operation (`normlens.attribution.rules`),
so that the ordinary backward pass afterwards runs through the frozen map. The same pass can be recorded and replayed on
other input vectors with everything held as it was: that is the forward half of the proof.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from normlens.attribution.affine import Sloped
from normlens.attribution.edges import AttentionWeights
from normlens.attribution.elementwise import apply_activation
from normlens.attribution.integrated import Weights
from normlens.attribution.layers import OpSite
from normlens.attribution.lineage import Chain, Lineage, lineage_of, remember
from normlens.attribution.operands import Function, OpCall, is_live, mapped, tensors
from normlens.attribution.rules import RULES, words
from normlens.decompose.activations import slope_of
from normlens.errors import AnatomyError

#: Questions about a tensor that are not about its numbers.
_ABOUT = words("""
    shape size dim ndim device dtype is_cuda is_contiguous stride numel element_size requires_grad grad_fn layout
    is_floating_point is_complex nelement len is_leaf storage_offset data_ptr untyped_storage is_quantized names
    _version is_sparse is_nested is_mps is_meta is_xpu get_device is_inference hash repr format result_type ndimension
    is_hpu is_tensor iter grad _backward_hooks is_conj is_neg itemsize nbytes can_cast set_ _is_view _base retains_grad
    register_hook is_pinned is_mkldnn is_signed is_same_size new_zeros new_ones new_empty new_full new_tensor zeros_like
    ones_like empty_like full_like rand_like randn_like contains reduce_ex deepcopy storage
    """)
_RENAMED = {
    "radd": "add", "iadd": "add_", "rmul": "mul", "imul": "mul_", "truediv": "div", "itruediv": "div_", "isub": "sub_",
    "rtruediv": "reciprocal", "rdiv": "reciprocal", "rpow": "exp", "ipow": "pow_",
    "and": "logical_and", "or": "logical_or", "invert": "logical_not", "float": "item", "index": "item", "array": "numpy",
    "floordiv": "floor_divide", "rfloordiv": "floor_divide", "mod": "remainder",
}  # fmt: skip
_SYNONYMS = {
    "special_expit": "sigmoid", "greater": "gt", "less": "lt", "not_equal": "ne", "greater_equal": "ge",
    "less_equal": "le",
}  # fmt: skip
_PRODUCTS = frozenset(("matmul", "bmm", "einsum"))
#: Changes in place that add no constant of their own where what they change is live or empty.
_PLAIN_CHANGES = frozenset(("add_", "index_add_", "index_put_", "setitem", "copy_", "scatter_add_", "masked_scatter_"))


def name_of(function: Any) -> str:
    """The name of an operation, whichever way it was called."""
    name: str = function.__name__
    if name == "__get__":
        return str(function.__self__.__name__)
    if name.startswith("__") and name.endswith("__"):
        name = name[2:-2]
        return _RENAMED.get(name, name)
    return _SYNONYMS.get(name, name)


class PassListener(Protocol):
    """The interface between a frozen pass and the object that collects its terms (`observer.Observer`)."""

    @property
    def layer(self) -> int:
        """The layer that runs, from 1; 0 before the first."""

    @property
    def between_towers(self) -> bool:
        """True after several towers, outside of all layers."""

    def mark(self, kind: str) -> None:
        """Note the kind of block that runs."""

    def looked_up(self, name: str, args: Any, kwargs: Any, out: Any) -> Any:
        """Follow token ids through an operation on constants."""

    def crossing(self, args: Any, kwargs: Any) -> tuple[Any, Any]:
        """Collect the terms of tensors that come from an earlier layer."""

    def keep(self, tensor: Tensor) -> SavedTensor:
        """Keep a tensor's numbers for the backward pass."""

    def changing(self, tensor: Tensor) -> None:
        """Save a tensor that is about to be changed in place."""

    def constant(self, out: Tensor, value: Callable[[], Any], kind: str | None) -> OpSite:
        """Collect the term of a constant that was added."""

    def shadow_constant(self, value: Tensor) -> Tensor:
        """Add a constant to the stream without branches."""

    def block(self, out: Tensor, branch: Tensor, lineage: Lineage, shifts: tuple[OpSite, ...]) -> None:
        """Collect the term of a block's output in the residual sum."""

    def kind_of_attention(self, values: Tensor) -> str:
        """The kind of attention that these values belong to."""

    def attention(self, out: Tensor, values: Tensor, weights: AttentionWeights | None) -> None:
        """Collect the terms of heads and edges."""


class SavedTensor:
    """The numbers of a tensor as they were, also where the model's code changes it in place afterwards."""

    def __init__(self, tensor: Tensor) -> None:
        self.tensor = tensor.detach()

    def save(self) -> None:
        """Copy, since the storage is about to change."""
        self.tensor = self.tensor.clone()


class BiasSharing(Protocol):
    """Shares the constants of a replay among its rows (`sharing.BiasShares`)."""

    def constant(self, out: Tensor, value: Any) -> None:
        """Take the constant off `out`, to which every row added it, and share it now or later."""

    def share(self, out: Tensor) -> None:
        """Share what waits, where a block's output has entered the residual stream."""


class FrozenPass(TorchFunctionMode):
    """The interception; `listener` collects terms of attention, blocks and constants."""

    def __init__(self, rows: int, listener: PassListener, *, integrated: bool = False) -> None:
        super().__init__()
        self.rows = rows
        self.listener = listener
        self.integrated = integrated
        self.replaying = False
        self.tape: list[tuple[str, Any]] | None = None
        self.places: list[tuple[OpSite, str]] = []  # of every constant of the recorded pass, with its operation
        self.sharing: BiasSharing | None = None  # in a replay that shares biases among the rows
        self._next = 0
        self._name = ""  # of the operation whose rule runs
        self._operands: Any = ()
        self._added: OpSite | None = None  # where the rule has just added a constant

    # ---- what is held --------------------------------------------------------------------------------------------

    def freeze(self, compute: Callable[[], Any]) -> Any:
        """A value that is held fixed: computed, and in a replay the value of the recorded pass."""
        if self.replaying:
            assert self.tape is not None
            if self._next >= len(self.tape) or self.tape[self._next][0] != self._name:
                raise AnatomyError(
                    f"the replayed pass ran `{self._name}` where "
                    f"`{(self.tape[self._next][0] if self._next < len(self.tape) else 'the end')}` was recorded; "
                    "the model's code depends on numbers in a way that cannot be held"
                )
            value = self.tape[self._next][1]
            self._next += 1
            return value
        value = compute()
        if self.tape is not None:
            self.tape.append((self._name, value))
        return value

    def freeze_as(self, name: str, compute: Callable[[], Any]) -> Any:
        """A value that is held by something larger than one operation."""
        self._name = name
        with torch._C.DisableTorchFunction():
            return self.freeze(compute)

    def activation(self, z: Tensor, function: Callable[[Tensor], Tensor], key: Hashable | None) -> Tensor:
        """The result of an activation module, which is one function of its input, whatever it is written with."""
        self._name = "activation"
        with torch._C.DisableTorchFunction():
            (z,), _ = self._operands = self.listener.crossing((z,), {})
            out = apply_activation(self, z, function, key)
            self._annotate(out, (z,), {})
        return out

    def mixed_positions(self, out: Any) -> None:
        """A recurrence carried values along positions."""
        for x in tensors(out):
            if x.requires_grad:
                self._lineage(x).kind = "mixer"
        self.listener.mark("mixer")

    def replay(self) -> None:
        """Hold from now on what was recorded."""
        self.replaying, self._next = True, 0

    # ---- every function ------------------------------------------------------------------------------------------

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = name_of(func)
        if name in _ABOUT or not torch.is_grad_enabled():
            return func(*args, **kwargs)
        if name == "requires_grad_" and is_live(args[0]):  # by the model's code, for gradient checkpointing
            return args[0]
        live = noted = False
        if any(_is_weight(x) for x in tensors(args, kwargs)):
            args, kwargs = mapped((args, kwargs), _as_constant)
        for x in tensors(args, kwargs):
            lineage = lineage_of(x)
            if lineage is not None:
                noted = True
                if lineage.replaced is not None:
                    args, kwargs = mapped((args, kwargs), _replaced)
                    live = True
                    break
            live = live or x.requires_grad
        changes = (name.endswith("_") and not name.startswith("_")) or name == "setitem"
        if not live:
            if changes and args and isinstance(args[0], Tensor):
                self.listener.changing(args[0])
            out = func(*args, **kwargs)
            if noted:
                self._carry(name, func, args, kwargs, out)
            else:
                out = self.listener.looked_up(name, args, kwargs, out)
            return out
        self._name = name
        args, kwargs = self._operands = self.listener.crossing(args, kwargs)
        if changes:
            return self._in_place(name, func, args, kwargs)
        rule = RULES.get(name)
        if rule is None:
            raise AnatomyError(
                f"`{name}` has no rule, so this model cannot be explained; see docs/explain.md for the rules, and "
                "how to add one"
            )
        out = rule(self, OpCall(name, func, args, kwargs))
        self._annotate(out, args, kwargs)
        return out

    def _annotate(self, out: Any, args: Any, kwargs: Any) -> None:
        """Lineage where the results come from: layer, stack and block of the first operand that says so."""
        side = kind = None
        given = []
        for x in tensors(args, kwargs):
            lineage = lineage_of(x)
            if lineage is not None:
                side = lineage.side if side is None else side
                kind = lineage.kind if kind is None else kind
            if x.requires_grad:
                given.append(id(x))
        for x in tensors(out):
            if not x.requires_grad or id(x) in given:
                continue
            lineage = lineage_of(x)
            if lineage is None:
                lineage = Lineage(self.listener.layer, side)
                remember(x, lineage)
            if lineage.side is None:
                lineage.side = side
            if lineage.kind is None and not lineage.stream:
                lineage.kind = kind

    def _in_place(self, name: str, func: Function, args: Any, kwargs: Any) -> Any:
        x = args[0]
        base = name.removesuffix("_")
        if base not in RULES:
            raise AnatomyError(f"`{name}` has no rule, so this model cannot be explained; see docs/explain.md")
        value = args[-1]
        self.listener.changing(x)
        if name in _PLAIN_CHANGES and is_live(value) and (is_live(x) or not bool(x.any())):
            out = func(*args, **kwargs)
            result = x
        else:
            if not is_live(x):  # its numbers are a constant, which is about to be overwritten
                args = (x.clone(), *args[1:])
            if name == "setitem":
                result = RULES["setitem"](self, OpCall("setitem", _with_item, args, kwargs))
            elif name == "copy_":
                if not is_live(value):
                    return func(*args, **kwargs)
                # Nothing of `x` is used: memory that nobody wrote yet may hold NaN.
                result = value.to(x).expand(x.shape).clone()
            elif name in ("zero_", "fill_"):
                raise AnatomyError(f"`{name}` of a live tensor has no rule, so this model cannot be explained")
            else:
                functional = getattr(torch.Tensor, base, None) or getattr(torch, base)
                result = RULES[base](self, OpCall(base, functional, args, kwargs))
            out = x.copy_(result)
            if name == "setitem":
                out = None
        before = lineage_of(x)
        lineage = Lineage(self.listener.layer, None if before is None else before.side)
        earlier = lineage_of(result) if result is not x else None
        if earlier is not None:
            lineage.take(earlier)
            lineage.chain = earlier.chain
        elif result is x:
            if before is not None:
                lineage.take(before)
                lineage.parts = None
            if name == "add_" and lineage.stream:
                self.listener.block(x, value, lineage, lineage.shifts)
                lineage.shifts = ()
        x.__dict__.pop("_normlens_lineage", None)
        remember(x, lineage)
        self._annotate_self(x, args, kwargs)
        return out

    def _annotate_self(self, x: Tensor, args: Any, kwargs: Any) -> None:
        lineage = lineage_of(x)
        assert lineage is not None
        for other in tensors(args, kwargs):
            found = lineage_of(other)
            if found is not None and other is not x and other.requires_grad:
                lineage.side = found.side if lineage.side is None else lineage.side
                if not lineage.stream:
                    lineage.kind = found.kind if lineage.kind is None else lineage.kind

    # ---- what rules report ---------------------------------------------------------------------------------------

    def _lineage(self, out: Tensor) -> Lineage:
        lineage = lineage_of(out)
        if lineage is None:
            lineage = Lineage(self.listener.layer, None)
            remember(out, lineage)
        return lineage

    def constant(self, out: Any, value: Callable[[], Any]) -> None:
        """Something was added that belongs to no input."""
        self._added = None
        if not is_live(out):
            return
        if not self.replaying:
            self._added = self.listener.constant(out, value, self._branch())
            self.places.append((self._added, self._name))
        elif self.sharing is not None:
            self.sharing.constant(out, value())

    def _branch(self) -> str | None:
        """The block in whose branch the operation stands, where its operands say so."""
        for x in tensors(self._operands):
            lineage = lineage_of(x)
            if lineage is not None and lineage.kind is not None and not lineage.stream:
                return lineage.kind
        return None

    def chain(self, out: Tensor, chain: Chain) -> None:
        """`out` is an element-wise function of one tensor."""
        if is_live(out):
            self._lineage(out).chain = chain

    def activate(self, chain: Chain, compute: Callable[[], Tensor]) -> Tensor:
        """`g(z)` with its slope held."""
        z = chain.source
        if self.replaying:
            z0, value, zero = self.freeze(lambda: ())
            out = z * slope_of(z0, value, zero, chain.slope_at_zero)
            if zero is not None:
                out = out + zero
                self.constant(out, lambda: zero)
        else:
            zero = chain.at_zero()
            out = Sloped.apply(z, compute, zero, chain.slope_at_zero)
            self.freeze(lambda: (z.detach(), out.detach(), zero))
            if zero is not None:
                self.constant(out, lambda: zero)
        self.chain(out, chain)
        return out

    def summed(self, out: Tensor, a: Tensor, b: Tensor) -> None:
        """Two live tensors were added: perhaps a block's output to the stream."""
        first, second = lineage_of(a), lineage_of(b)
        of_stream = (first is not None and first.stream, second is not None and second.stream)
        lineage = self._lineage(out)
        if a.shape != b.shape or self._name not in ("add", "add_"):  # a mean taken off, as a normalization does
            lineage.stream = any(of_stream)
        elif any(of_stream) and not all(of_stream):
            before, branch = (first, b) if of_stream[0] else (second, a)
            assert before is not None
            lineage.stream, lineage.side, lineage.shadow = True, before.side, before.shadow
            self.listener.block(out, branch, lineage, before.shifts)
            if self.sharing is not None:
                self.sharing.share(out)
        elif all(of_stream):
            lineage.stream = True
        else:
            lineage.parts = (*(_parts(a)), *(_parts(b)))
            kinds = {x.kind if x is not None else None for x in (first, second)}
            lineage.kind = next(iter(kinds - {None}), None)

    def shifted(self, out: Tensor, x: Tensor) -> None:
        """A constant was added to a live tensor."""
        self._on_stream(
            out, x, lambda shadow: shadow + self.listener.shadow_constant(out.detach() - x.detach()), self._added
        )

    def scaled(self, out: Tensor, x: Tensor, factor: Any) -> None:
        """A live tensor was multiplied by a constant, or divided by one."""
        if out.shape == x.shape:
            divided = self._name.startswith(("div", "true"))
            self._on_stream(out, x, lambda shadow: shadow / factor if divided else shadow * factor)

    def reshaped(self, out: Any, x: Tensor, again: Function) -> None:
        """The same numbers in another shape or type."""
        if is_live(out) and out is not x:
            self._on_stream(out, x, again)

    def normalized(self, out: Tensor, x: Tensor, linear: Function, beta: Tensor | None) -> None:
        """A live tensor was normalized; `linear` is the map with its denominator held, without its shift."""

        def again(shadow: Tensor) -> Tensor:
            y: Tensor = linear(shadow)
            return y if beta is None else y + self.listener.shadow_constant(beta.expand_as(y))

        self._on_stream(out, x, again, None if beta is None else self._added)

    def _on_stream(self, out: Tensor, x: Tensor, again: Function, shift: OpSite | None = None) -> None:
        """Follow the residual stream through an operation; `again` does the same to the one without branches."""
        before = lineage_of(x)
        if before is None or not before.stream:
            return
        lineage = self._lineage(out)
        lineage.stream = True
        lineage.shifts = before.shifts if shift is None else (*before.shifts, shift)
        if before.shadow is not None:
            lineage.shadow = again(before.shadow)

    # ---- attention -----------------------------------------------------------------------------------------------

    def mark_attention(self, out: Any, scores: Any, function: Callable[[Tensor], Tensor], plain: bool) -> None:
        """`out` are weights that a softmax gave."""
        if isinstance(out, Tensor) and isinstance(scores, Tensor):
            lineage = Lineage(self.listener.layer, None)
            lineage.weights = Weights(scores if self.integrated else None, function, plain)
            remember(out, lineage)

    def _carry(self, name: str, func: Function, args: Any, kwargs: Any, out: Any) -> None:
        """Propagate attention weights, which are constants, through dropout, casts, slices and constants."""
        if not isinstance(out, Tensor) or not out.is_floating_point() or lineage_of(out) is not None:
            return
        found = next(((i, x) for i, x in enumerate(args) if isinstance(x, Tensor) and lineage_of(x) is not None), None)
        if found is None:
            return
        position, before = found[0], lineage_of(found[1])
        assert before is not None
        fresh = Lineage(self.listener.layer, None)
        fresh.kind = before.kind
        weights = before.weights
        if weights is not None and name in _PRODUCTS:  # values that no input vector reaches: another stack's, as given
            fresh.kind = "cross_attention"
            self.listener.mark(fresh.kind)
        elif weights is not None:

            def again(scores: Tensor) -> Any:
                changed = list(args)
                changed[position] = weights.function(scores)
                return func(*changed, **kwargs)

            fresh.weights = Weights(weights.scores, again)
        remember(out, fresh)

    def attended(self, out: Tensor, values: Tensor, weights: AttentionWeights) -> None:
        """Attention weights met values."""
        self._lineage(out).kind = self.listener.kind_of_attention(values)
        self.listener.attention(out, values, weights)


def _is_weight(x: Tensor) -> bool:
    """Return True for a tensor that belongs to the model and would take part in gradients, or could not."""
    return (x.requires_grad and isinstance(x, nn.Parameter)) or x.is_inference()


def _as_constant(x: Tensor) -> Tensor:
    """Detach a weight, so that no flag of the user's parameters changes; copy inference tensors, which take no gradient."""
    if not _is_weight(x):
        return x
    return x.detach().clone() if x.is_inference() else x.detach()


def _replaced(x: Tensor) -> Tensor:
    lineage = lineage_of(x)
    return x if lineage is None or lineage.replaced is None else lineage.replaced


def _parts(x: Tensor) -> tuple[Tensor, ...]:
    lineage = lineage_of(x)
    return (x,) if lineage is None or lineage.parts is None else lineage.parts


def _with_item(x: Tensor, index: Any, value: Any) -> Tensor:
    changed = x.clone()
    changed[index] = value
    return changed
