"""Rules for operations entry by entry: activations by their slope, gated units, products of two parts, limits.

An activation is recognised however it is written: a *chain* of element-wise operations on one tensor is one function of it.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.nn import functional as nnf

from normlens.attribution.affine import GatedUnit
from normlens.attribution.lineage import Chain, lineage_of
from normlens.attribution.operands import Function, OpCall, as_number, detached, is_live, tensors
from normlens.decompose.activations import gate_factors
from normlens.errors import AnatomyError
from normlens.types import Kwargs

if TYPE_CHECKING:
    from normlens.attribution.frozen import FrozenPass


def held(run: FrozenPass, call: OpCall) -> Any:
    """The result is a weight or a choice: held as it is."""
    return run.freeze(lambda: call.function(*detached(call.args), **detached(call.kwargs)))


# ---- activations and gates ---------------------------------------------------------------------------------------------


def activate(run: FrozenPass, call: OpCall) -> Any:
    """An element-wise activation `g(z)` by its slope."""
    z, rest = call.args[0], call.args[1:]
    if not is_live(z):
        raise AnatomyError(
            f"`{call.name}` of a constant by a live tensor has no rule, so this model cannot be explained"
        )
    kwargs = {key: value for key, value in call.kwargs.items() if key != "inplace"}
    if call.name in ("relu", "leaky_relu", "elu", "selu", "celu", "relu6", "silu", "mish", "hardswish") and rest:
        rest = tuple(x for x in rest if not isinstance(x, bool))
    function = _KNOWN.get(call.name, call.function)
    if any(is_live(x) for x in tensors(rest, kwargs)):
        raise AnatomyError(f"`{call.name}` with live parameters has no rule, so this model cannot be explained")
    constants = number_key(kwargs, rest)
    key = None if constants is None else (call.name, constants)
    return apply_activation(run, z, lambda x: function(x, *rest, **kwargs), key)


def apply_activation(run: FrozenPass, z: Tensor, function: Function, key: Hashable | None) -> Tensor:
    """`g(z)` by its slope; `key` names `g` where it has no weights of its own."""
    chain = chain_of(z)
    known = None if key is None or chain.key is None else (chain.key, key)
    before = chain.function
    return run.activate(Chain(chain.source, lambda x: function(before(x)), known, True), lambda: function(z.detach()))


#: Functions whose own form would be refused in a closed form (in-place variants, methods) under one name.
_KNOWN: dict[str, Function] = {"relu": torch.relu, "silu": nnf.silu, "gelu": nnf.gelu, "tanh": torch.tanh}


def multiply(run: FrozenPass, call: OpCall) -> Any:
    """A product, entry by entry: by a constant it is linear; of two parts it is a gated unit, or half and half."""
    a, b = call.args[0], call.argument(1, "other")
    if not (is_live(a) and is_live(b)):
        live, other = (a, b) if is_live(a) else (b, a)
        out = call.function(a, b)
        number = as_number(other)
        if number is not None:
            extend(run, out, live, ("mul", number), lambda z: z * number)
        run.scaled(out, live, other)
        return out
    same = same_source((a, b))
    if same is not None:
        both = replace(joined("mul", torch.mul, (a, b), same, ()), bent=True)
        return run.activate(both, lambda: torch.mul(a.detach(), b.detach()))
    bent = [x for x in (a, b) if is_bent(x)]
    if len(bent) == 2:  # two activations: the wider bend cannot be told, so the first is the gate
        bent = bent[:1]
    if bent:
        gate, other = bent[0], b if bent[0] is a else a
        if gate.shape != other.shape and gate.shape[-1] == 1:  # one number for a whole vector: a router's weight
            return torch.mul(run.freeze(gate.detach), other)
        return _gated(run, gate, other)
    return halved(run, torch.mul, a, b, {})


def _gated(run: FrozenPass, gate: Tensor, other: Tensor) -> Tensor:
    chain = chain_of(gate)
    source = chain.source if chain.source.shape == gate.shape else chain.source.expand(gate.shape)
    if run.replaying:
        a0, b0, active = run.freeze(lambda: ())
        with torch.set_grad_enabled(False):  # an activation may have weights of its own
            to_a, c = gate_factors(a0, b0, active, chain.function, chain.key, chain.slope_at_zero)
        return to_a * source + c * other
    active = gate.detach()
    run.freeze(lambda: (source.detach(), other.detach(), active))
    out: Tensor = GatedUnit.apply(source, other, chain.function, chain.key, active, chain.slope_at_zero)
    return out


def divide(run: FrozenPass, call: OpCall) -> Any:
    """A quotient: a live denominator is held."""
    a, b = call.args[0], call.argument(1, "other")
    if call.kwargs.get("rounding_mode") is not None or not is_live(a):
        return held(run, call)
    if not is_live(b):
        out = call()
        number = as_number(b)
        if number is not None:
            extend(run, out, a, ("div", number), lambda z: z / number)
        run.scaled(out, a, b)
        return out
    same = same_source((a, b))
    if same is not None and is_bent(b):
        both = replace(joined("div", torch.div, (a, b), same, ()), bent=True)
        return run.activate(both, lambda: torch.div(a.detach(), b.detach()))
    return torch.div(a, run.freeze(b.detach))


def negate(run: FrozenPass, call: OpCall) -> Any:
    """The opposite."""
    out = call()
    extend(run, out, call.args[0], "neg", torch.neg)
    return out


def power(run: FrozenPass, call: OpCall) -> Any:
    """A power: a positive whole one is an activation, any other a denominator or a root."""
    base, exponent = call.args[0], call.argument(1, "exponent", 2)
    if call.name == "square":
        exponent = 2
    number = as_number(exponent)
    if is_live(base) and number is not None and number >= 1:
        return activate(run, OpCall("pow", torch.pow, (base, exponent), {}))
    return held(run, call)


def _limits(call: OpCall) -> tuple[Any, Any]:
    """The lower and the upper limit of a clamp, however it was called."""
    first = call.argument(1, "min", call.kwargs.get("min_val"))
    if call.name == "clamp_max":
        return None, call.argument(1, "max", call.kwargs.get("max_val"))
    return first, call.argument(2, "max", call.kwargs.get("max_val"))


def clamp(run: FrozenPass, call: OpCall) -> Any:
    """A limit, or the larger or smaller of two: a choice. Where the limit is chosen, it is a constant."""
    if call.name in ("clamp", "clip", "clamp_min", "clamp_max", "hardtanh"):
        x = call.args[0]
        low, high = _limits(call)
        if any(is_live(limit) for limit in (low, high)):
            raise AnatomyError(f"`{call.name}` with live limits has no rule, so this model cannot be explained")
        if not is_live(x):
            return call()
        if is_bent(x):  # a limited activation is an activation
            return activate(run, call)
        value = x.detach().clamp(low, high)
        inside = run.freeze(lambda: value == x.detach())
        limit = run.freeze(lambda: torch.where(inside, 0.0, value))
        out = torch.where(inside, x, torch.zeros((), dtype=x.dtype, device=x.device)) + limit
        if bool(limit.any()):
            run.constant(out, lambda: limit)
        return out
    a, b = call.args[0], call.args[1]
    a, b = (x if isinstance(x, Tensor) else torch.as_tensor(x, dtype=b.dtype, device=b.device) for x in (a, b))
    first = run.freeze(
        lambda: a.detach() >= b.detach() if call.name in ("maximum", "max", "fmax") else a.detach() <= b.detach()
    )
    out = torch.where(first, a, b)
    if not is_live(a) or not is_live(b):
        constant = b if is_live(a) else a
        chosen = ~first if is_live(a) else first
        run.constant(out, lambda: torch.where(chosen, constant, torch.zeros_like(constant)))
        number = as_number(constant)
        if number is not None:
            extend(
                run,
                out,
                a if is_live(a) else b,
                (call.name, number),
                lambda z: call.function(z, torch.as_tensor(number, dtype=z.dtype)),
                bent=True,
            )
    return out


def halved(run: FrozenPass, function: Function, a: Tensor, b: Tensor, kwargs: Kwargs) -> Tensor:
    """A bilinear map, each factor in turn: half the gradient to each."""
    if run.replaying:
        a0, b0 = run.freeze(lambda: (a, b))
        half: Tensor = 0.5 * function(a, b0, **kwargs) + 0.5 * function(a0, b, **kwargs)
        return half
    run.freeze(lambda: (a.detach(), b.detach()))
    # Half the gradient: `out` in value, `out / 2` in slope.
    out: Tensor = function(a, b, **kwargs)
    out.register_hook(lambda gradient: gradient * 0.5)
    return out.view_as(out)  # what is read here later is the gradient before it is halved


def glu(run: FrozenPass, call: OpCall) -> Any:
    """`a · sigmoid(b)` of the two halves."""
    with run:
        a, b = call.args[0].chunk(2, dim=call.argument(1, "dim", -1))
        return a * torch.sigmoid(b)


# ---- chains ------------------------------------------------------------------------------------------------------------


def chain_of(x: Tensor) -> Chain:
    """The function of one tensor that a tensor is: the identity where nothing else is known."""
    lineage = lineage_of(x)
    if lineage is not None and lineage.chain is not None:
        return lineage.chain
    return Chain(x, lambda z: z, (), False)


def is_bent(x: Tensor) -> bool:
    lineage = lineage_of(x)
    return lineage is not None and lineage.chain is not None and lineage.chain.bent


def same_source(operands: Any) -> Tensor | None:
    """The tensor of which all live operands are element-wise functions, where there is one."""
    first, *others = (x for x in operands if is_live(x))
    source = chain_of(first).source
    for other in others:
        if chain_of(other).source is not source:
            return None
    return source if all(x.shape == source.shape for x in operands if is_live(x)) else None


def joined(name: str, function: Function, operands: Any, source: Tensor, key: Hashable | None) -> Chain:
    """A function of several operands that share their source (constants among them stay as they are)."""
    chains = [chain_of(x) if is_live(x) else None for x in operands]
    functions = [None if chain is None else chain.function for chain in chains]
    fixed = [x if chain is None else None for x, chain in zip(operands, chains, strict=True)]

    def joined(z: Tensor) -> Tensor:
        return function(*(x if g is None else g(z) for g, x in zip(functions, fixed, strict=True)))  # type: ignore[no-any-return]

    keys = [None if chain is None else chain.key for chain in chains]
    known = None if key is None or any(k is None for k in keys) else (name, key, *keys)
    bent = any(chain is not None and chain.bent for chain in chains)
    return Chain(source, joined, known, bent)


def extend(run: FrozenPass, out: Tensor, x: Tensor, key: Hashable | None, step: Function, bent: bool = False) -> None:
    """`out` is one more element-wise step from `x`; no key: the step changes no number."""
    chain = chain_of(x)
    before = chain.function
    known = None if chain.key is None else chain.key if key is None else (chain.key, key)
    run.chain(out, Chain(chain.source, lambda z: step(before(z)), known, bent or chain.bent))


def number_key(kwargs: Kwargs, rest: tuple[Any, ...] = ()) -> Hashable | None:
    """The constants of an operation as a key, or None where one of them is a whole tensor."""
    found: list[Hashable] = []
    for name, value in (*enumerate(rest), *sorted(kwargs.items())):
        number = as_number(value)
        if number is None and not isinstance(value, str | bool | type(None) | torch.dtype):
            return None
        found.append((name, value if number is None else number))
    return tuple(found)
