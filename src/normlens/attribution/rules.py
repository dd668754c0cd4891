"""The rules, one for each kind of operation: what is held fixed, and what is added that belongs to no input.

| what the model does                                | rule        | what is held fixed                                   |
|----------------------------------------------------|-------------|------------------------------------------------------|
| linear maps, sums, reshapes, look-ups              | `linear`    | nothing                                              |
| softmax, sigmoid routers, top-k, maximum           | `held`      | the result: a weight, or a choice                    |
| decays and step sizes (`exp`, `softplus`)          | `held`      | the result                                           |
| a matrix product of two parts                      | `product`   | its left factor: queries and keys, which are weights |
| normalization                                      | `normalize` | its denominator (`rsqrt`, a quotient's denominator)  |
| element-wise activation, also one spelled out      | `activate`  | its slope `(g(z) - g(0)) / z`                        |
| gated unit `act(a) · b`                            | `multiply`  | `b (act(a) - c) / a` and `c = ∫ act(t a) dt`         |
| any other product of two parts, entry by entry     | `multiply`  | each factor in turn, half and half                   |
| a bias, any constant that is added                 | `add`, …    | it is collected under `biases`                       |

`RULES` at the end has them by the name of the operation. A name that is not there has no rule, and the model is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.nn import functional as nnf

from normlens.attribution.affine import Gated, Normalized, gate_factors
from normlens.attribution.notes import Chain, note_of, source_of
from normlens.errors import AnatomyError

if TYPE_CHECKING:
    from normlens.attribution.frozen import FrozenPass

Function = Callable[..., Any]
Rule = Callable[["FrozenPass", str, Function, tuple[Any, ...], dict[str, Any]], Any]


def words(text: str) -> frozenset[str]:
    """The names in a text."""
    return frozenset(text.split())


def is_live(x: Any) -> bool:
    """Whether a value depends on the input vectors."""
    return isinstance(x, Tensor) and x.requires_grad


def tensors(*structures: Any) -> Iterator[Tensor]:
    """Every tensor in arguments, lists and tuples included."""
    for x in structures:
        if isinstance(x, Tensor):
            yield x
        elif isinstance(x, list | tuple):
            yield from tensors(*x)
        elif isinstance(x, dict):
            yield from tensors(*x.values())


def mapped(structure: Any, change: Callable[[Tensor], Any]) -> Any:
    """The same structure with every tensor changed."""
    if isinstance(structure, Tensor):
        return change(structure)
    if isinstance(structure, tuple) and hasattr(structure, "_fields"):
        return type(structure)(*(mapped(x, change) for x in structure))
    if isinstance(structure, list | tuple):
        return type(structure)(mapped(x, change) for x in structure)
    if isinstance(structure, dict):
        return {name: mapped(x, change) for name, x in structure.items()}
    return structure


def detached(structure: Any) -> Any:
    """The same structure, cut off from the input vectors."""
    return mapped(structure, lambda x: x.detach())


# ---- nothing is held -------------------------------------------------------------------------------------------------


def linear(run: FrozenPass, name: str, function: Function, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """A linear map of its one live operand."""
    out = function(*args, **kwargs)
    if name in _RESHAPES and is_live(args[0]):
        run.reshaped(out, args[0], lambda x: function(x, *args[1:], **kwargs))
    return out


#: Operations after which the residual stream is still the residual stream.
_RESHAPES = frozenset(("view", "reshape", "transpose", "permute", "contiguous", "dropout", "squeeze", "unsqueeze"))


def mixed(run: FrozenPass, name: str, function: Function, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """A linear map of several operands, some of them constant: what comes out for live operands of zero is a constant.

    `cat`, `where`, `masked_fill`, `index_add` and their kind.
    """
    out = function(*args, **kwargs)
    if is_live(out) and _has_constant(name, args, kwargs):
        fixed, named = _zeroed(args), _zeroed(kwargs)
        run.constant(out, lambda: function(*fixed, **named))
    if name in ("where",):
        same = _same_source(args[1:]) if len(args) == 3 else None
        if same is not None:
            condition = args[0]
            run.chain(out, _joined(name, lambda a, b: torch.where(condition, a, b), args[1:], same, None))
    return out


def _has_constant(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether some operand adds numbers of its own."""
    if name in ("cat", "concat", "concatenate", "stack", "hstack", "vstack", "index_add", "scatter_add"):
        args, kwargs = args[:1] if name[0] != "i" else (args[0], args[-1]), {}
    for x in tensors(args, kwargs):
        if not x.requires_grad and x.is_floating_point() and bool(x.any()):
            return True
    return any(isinstance(x, float | int) and not isinstance(x, bool) and x != 0 for x in (*args, *kwargs.values()))


def _zeroed(structure: Any) -> Any:
    """The same operands with zeros, which take no memory, in place of what is live."""
    return mapped(structure, lambda x: x.detach().new_zeros(()).expand(x.shape) if x.requires_grad else x)


def pad(run: FrozenPass, name: str, function: Function, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Padding: with zeros it is linear, with another number that number is a constant."""
    out = function(*args, **kwargs)
    value = kwargs.get("value", args[3] if len(args) > 3 else None)
    if is_live(out) and value:
        fixed, named = _zeroed(args), _zeroed(kwargs)
        run.constant(out, lambda: function(*fixed, **named))
    return out


def convert(run: FrozenPass, name: str, function: Function, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The same numbers in another type or place."""
    out = function(*args, **kwargs)
    x = args[0]
    if is_live(out) and out is not x and is_live(x):
        _extend(run, out, x, None, lambda z: z)
        run.reshaped(out, x, lambda y: function(y, *args[1:], **kwargs))
    return out


# ---- sums ------------------------------------------------------------------------------------------------------------


def add(run: FrozenPass, name: str, function: Function, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """A sum or difference: a constant operand belongs to no input."""
    a, b = args[0], args[1] if len(args) > 1 else kwargs["other"]
    out = function(*args, **kwargs)
    if not is_live(out):
        return out
    if is_live(a) and is_live(b):
        same = _same_source((a, b))
        if same is not None:
            run.chain(out, _joined(name, lambda x, y: function(x, y, **kwargs), (a, b), same, _number_key(kwargs)))
        run.summed(out, a, b)
        return out
    live, other = (a, b) if is_live(a) else (b, a)
    sign = kwargs.get("alpha", 1)
    sign = sign if other is b else 1
    if (name in ("sub", "subtract", "sub_", "isub") and other is b) or (name in ("rsub",) and other is a):
        sign = -sign
    if isinstance(other, Tensor):
        if other.is_floating_point() and bool(other.any()):
            kept = run.listener.keep(other)  # the model's code may write into it afterwards
            run.constant(out, lambda: kept.tensor if sign == 1 else kept.tensor * sign)
    elif other != 0:
        run.constant(out, lambda: float(other) * sign)
    note = note_of(live)
    if note is not None:
        number = _as_number(other)
        if number is not None and note.chain is not None and note.chain.bent:
            swap = live is b
            _extend(
                run,
                out,
                live,
                (name, number, sign, swap),
                lambda z: function(number, z) if swap else function(z, number),
            )
    run.shifted(out, live)
    return out


def addcmul(run: FrozenPass, name: str, function: Function, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """`a + value · b · c`."""
    a, b, c = args
    with run:
        return a + (b * c) * kwargs.get("value", 1)


def lerp(run: FrozenPass, name: str, function: Function, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """`a + w (b - a)`."""
    a, b, w = args
    with run:
        return a + (b - a) * w


# ---- linear maps with a weight, and matrix products of two parts -----------------------------------------------------


def affine(run: FrozenPass, name: str, function: Function, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """`linear`, `conv1d`, `conv2d`: a weight, and a bias that belongs to no input."""
    names = ("input", "weight", "bias")
    given = dict(zip(names, args, strict=False)) | {key: kwargs[key] for key in names if key in kwargs}
    if is_live(given["weight"]):
        raise AnatomyError(f"an operation must have a rule: `{name}` with a weight that depends on the input has none")
    out = function(*args, **kwargs)
    bias = given.get("bias")
    if bias is not None:
        run.constant(out, lambda: bias if name == "linear" else bias.view(-1, *[1] * (out.ndim - 2)))
    return out


def addmm(run: FrozenPass, name: str, function: Function, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """`beta · bias + alpha · a @ b` (`addmm`, `baddbmm`)."""
    bias, a, b = (*args, *(kwargs[key] for key in ("batch1", "batch2", "mat1", "mat2") if key in kwargs))
    alpha, beta = kwargs.get("alpha", 1), kwargs.get("beta", 1)
    with run:
        out = torch.matmul(a, b)
        out = out if alpha == 1 else out * alpha
        return out if beta == 0 else out + (bias if beta == 1 else bias * beta)


def product(run: FrozenPass, name: str, function: Function, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """A matrix product: of a part and a weight it is linear; of two parts the left one is held.

    Two parts meet in attention: scores (`q k`), which a softmax will hold anyway, and linear attention, where queries and
    keys are weights. Under `attention="chosen"` the scores are a product of two parts like any other: half and half.
    """
    a, b = args[0], args[1]
    weights = note_of(a)
    if weights is not None and weights.weights is not None and is_live(b):
        return run.attend(a, weights.weights, b, function)
    if not (is_live(a) and is_live(b)):
        return function(*args, **kwargs)
    if run.chosen:
        return _halved(run, function, a, b, kwargs)
    return function(run.hold(a.detach), b, **kwargs)


def einsum(run: FrozenPass, name: str, function: Function, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """An Einstein sum: as a matrix product."""
    equation, *operands = args
    if not isinstance(equation, str):
        raise AnatomyError("an operation must have a rule: `einsum` without an equation has none")
    operands = list(operands[0]) if len(operands) == 1 and isinstance(operands[0], list | tuple) else operands
    live = [i for i, x in enumerate(operands) if is_live(x)]
    weights = note_of(operands[0])
    if len(operands) == 2 and weights is not None and weights.weights is not None and is_live(operands[1]):
        return run.attend(operands[0], weights.weights, operands[1], lambda a, b: function(equation, a, b))
    if len(live) < 2:
        return function(equation, *operands)
    if len(operands) > 2:
        raise AnatomyError("an operation must have a rule: `einsum` of three operands, two of them live, has none")
    if run.chosen:
        return _halved(run, lambda a, b: function(equation, a, b), operands[0], operands[1], {})
    return function(equation, run.hold(operands[0].detach), operands[1])


def _halved(run: FrozenPass, function: Function, a: Tensor, b: Tensor, kwargs: dict[str, Any]) -> Tensor:
    """A bilinear map, each factor in turn: half the gradient to each."""
    if run.replaying:
        a0, b0 = run.hold(lambda: (a, b))
        half: Tensor = 0.5 * function(a, b0, **kwargs) + 0.5 * function(a0, b, **kwargs)
        return half
    run.hold(lambda: (a.detach(), b.detach()))
    # Half the gradient: `out` in value, `out / 2` in slope.
    out: Tensor = function(a, b, **kwargs)
    out.register_hook(lambda gradient: gradient * 0.5)
    return out.view_as(out)  # what is read here later is the gradient before it is halved


def grouped(run: FrozenPass, name: str, function: Function, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Tokens times their expert's weight: linear in the tokens."""
    if is_live(args[1]):
        raise AnatomyError(f"an operation must have a rule: `{name}` with weights that depend on the input has none")
    return function(*args, **kwargs)


# ---- entry by entry --------------------------------------------------------------------------------------------------


def activate(run: FrozenPass, name: str, function: Function, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """An element-wise activation `g(z)` by its slope."""
    z, rest = args[0], args[1:]
    if not is_live(z):
        raise AnatomyError(f"an operation must have a rule: `{name}` of a constant by a live tensor has none")
    kwargs = {key: value for key, value in kwargs.items() if key != "inplace"}
    if name in ("relu", "leaky_relu", "elu", "selu", "celu", "relu6", "silu", "mish", "hardswish") and rest:
        rest = tuple(x for x in rest if not isinstance(x, bool))
    function = _KNOWN.get(name, function)
    key = _number_key(kwargs, rest)
    if any(is_live(x) for x in tensors(rest, kwargs)):
        raise AnatomyError(f"an operation must have a rule: `{name}` with live parameters has none")
    chain = _chain_of(z)
    known = None if key is None or chain.key is None else (chain.key, name, key)
    before = chain.function
    return run.bend(
        Chain(chain.source, lambda x: function(before(x), *rest, **kwargs), known, True),
        lambda: function(z.detach(), *rest, **kwargs),
    )


#: Functions whose own form would be refused in a closed form (in-place variants, methods) under one name.
_KNOWN: dict[str, Function] = {"relu": torch.relu, "silu": nnf.silu, "gelu": nnf.gelu, "tanh": torch.tanh}


def multiply(run: FrozenPass, name: str, function: Function, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """A product, entry by entry: by a constant it is linear; of two parts it is a gated unit, or half and half."""
    a, b = args[0], args[1] if len(args) > 1 else kwargs["other"]
    if not (is_live(a) and is_live(b)):
        live, other = (a, b) if is_live(a) else (b, a)
        out = function(a, b)
        number = _as_number(other)
        if number is not None:
            _extend(run, out, live, ("mul", number), lambda z: z * number)
        run.scaled(out, live, other)
        return out
    same = _same_source((a, b))
    if same is not None:
        joined = _joined("mul", torch.mul, (a, b), same, ())
        return run.bend(
            Chain(joined.source, joined.function, joined.key, True), lambda: torch.mul(a.detach(), b.detach())
        )
    bent = [x for x in (a, b) if _is_bent(x)]
    if len(bent) == 2:  # two activations: the wider bend cannot be told, so the first is the gate
        bent = bent[:1]
    if bent:
        gate, other = bent[0], b if bent[0] is a else a
        if gate.shape != other.shape and gate.shape[-1] == 1:  # one number for a whole vector: a router's weight
            return torch.mul(run.hold(gate.detach), other)
        return _gated(run, gate, other)
    return _halved(run, torch.mul, a, b, {})


def _gated(run: FrozenPass, gate: Tensor, other: Tensor) -> Tensor:
    chain = _chain_of(gate)
    source = chain.source if chain.source.shape == gate.shape else chain.source.expand(gate.shape)
    if run.replaying:
        a0, b0, active = run.hold(lambda: ())
        to_a, c = gate_factors(a0, b0, active, chain.function, chain.key, chain.slope_at_zero)
        return to_a * source + c * other
    active = gate.detach()
    run.hold(lambda: (source.detach(), other.detach(), active))
    out: Tensor = Gated.apply(source, other, chain.function, chain.key, active, chain.slope_at_zero)
    return out


def divide(run: FrozenPass, name: str, function: Function, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """A quotient: a live denominator is held."""
    a, b = args[0], args[1] if len(args) > 1 else kwargs["other"]
    if kwargs.get("rounding_mode") is not None:
        return held(run, name, function, args, kwargs)
    if not is_live(a):
        return held(run, name, function, args, kwargs)
    if not is_live(b):
        out = function(*args, **kwargs)
        number = _as_number(b)
        if number is not None:
            _extend(run, out, a, ("div", number), lambda z: z / number)
        run.scaled(out, a, b)
        return out
    same = _same_source((a, b))
    if same is not None and _is_bent(b):
        joined = _joined("div", torch.div, (a, b), same, ())
        return run.bend(
            Chain(joined.source, joined.function, joined.key, True), lambda: torch.div(a.detach(), b.detach())
        )
    return torch.div(a, run.hold(b.detach))


def negate(run: FrozenPass, name: str, function: Function, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The opposite."""
    out = function(*args, **kwargs)
    _extend(run, out, args[0], "neg", torch.neg)
    return out


def power(run: FrozenPass, name: str, function: Function, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """A power: a positive whole one is an activation, any other a denominator or a root."""
    base, exponent = args[0], args[1] if len(args) > 1 else kwargs.get("exponent", 2)
    if name == "square":
        exponent = 2
    number = _as_number(exponent)
    if is_live(base) and number is not None and number >= 1:
        return activate(run, "pow", torch.pow, (base, exponent), {})
    return held(run, name, function, args, kwargs)


def clamp(run: FrozenPass, name: str, function: Function, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """A limit, or the larger or smaller of two: a choice. Where the limit is chosen, it is a constant."""
    if name in ("clamp", "clip", "clamp_min", "clamp_max", "hardtanh"):
        x = args[0]
        low = kwargs.get("min", kwargs.get("min_val", args[1] if len(args) > 1 and name != "clamp_max" else None))
        high = kwargs.get(
            "max", kwargs.get("max_val", args[2] if len(args) > 2 else args[1] if name == "clamp_max" else None)
        )
        if any(is_live(limit) for limit in (low, high)):
            raise AnatomyError(f"an operation must have a rule: `{name}` with live limits has none")
        if not is_live(x):
            return function(*args, **kwargs)
        value = x.detach().clamp(low, high)
        inside = run.hold(lambda: value == x.detach())
        limit = run.hold(lambda: torch.where(inside, 0.0, value))
        out = torch.where(inside, x, torch.zeros((), dtype=x.dtype, device=x.device)) + limit
        if bool(limit.any()):
            run.constant(out, lambda: limit)
        return out
    a, b = args[0], args[1]
    a, b = (x if isinstance(x, Tensor) else torch.as_tensor(x, dtype=b.dtype, device=b.device) for x in (a, b))
    first = run.hold(
        lambda: a.detach() >= b.detach() if name in ("maximum", "max", "fmax") else a.detach() <= b.detach()
    )
    out = torch.where(first, a, b)
    if not is_live(a) or not is_live(b):
        constant = b if is_live(a) else a
        chosen = ~first if is_live(a) else first
        run.constant(out, lambda: torch.where(chosen, constant, torch.zeros_like(constant)))
        number = _as_number(constant)
        if number is not None:
            _extend(
                run,
                out,
                a if is_live(a) else b,
                (name, number),
                lambda z: function(z, torch.as_tensor(number, dtype=z.dtype)),
                bent=True,
            )
    return out


# ---- weights and choices ---------------------------------------------------------------------------------------------


def held(run: FrozenPass, name: str, function: Function, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The result is a weight or a choice: held as it is."""

    return run.hold(lambda: function(*detached(args), **detached(kwargs)))


def softmax(run: FrozenPass, name: str, function: Function, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Weights over keys or experts. Those that meet values in a product are attention weights."""
    out = held(run, name, function, args, kwargs)
    axis = kwargs.get("dim", args[1] if len(args) > 1 else None)
    plain = isinstance(out, Tensor) and axis in (-1, out.ndim - 1) and out.dtype == args[0].dtype
    run.weigh(out, args[0], lambda scores: function(scores, *args[1:], **kwargs), plain)
    return out


def reduce_extreme(
    run: FrozenPass, name: str, function: Function, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """`max` and `min`: of two tensors a choice between them, over an axis a weight."""
    if len(args) > 1 and isinstance(args[1], Tensor):
        return clamp(run, name, function, args, kwargs)
    return held(run, name, function, args, kwargs)


def gather(run: FrozenPass, name: str, function: Function, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """A look-up; of an activation it is a router that reads the weights of what it chose."""
    if is_live(args[0]) and _is_bent(args[0]):
        return held(run, name, function, args, kwargs)
    return function(*args, **kwargs)


# ---- normalization ---------------------------------------------------------------------------------------------------


def normalize(run: FrozenPass, name: str, function: Function, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Layer normalization: the mean is linear, the denominator is held, the shift belongs to no input."""
    names = ("input", "normalized_shape", "weight", "bias", "eps")
    given = dict(zip(names, args, strict=False)) | kwargs
    x, gamma, beta = given["input"], given.get("weight"), given.get("bias")
    eps = given.get("eps", 1e-5)
    axes = tuple(range(-len(given["normalized_shape"]), 0))

    def scaled(y: Tensor, scale: Tensor) -> Tensor:
        out = (y - y.mean(axes, keepdim=True)) * scale
        return out if gamma is None else out * gamma

    if run.replaying:
        out = scaled(x, run.hold(lambda: None))
        return out if beta is None else out + beta
    scales: list[Tensor] = []
    out = Normalized.apply(x, list(given["normalized_shape"]), gamma, beta, eps, scales.append)
    run.hold(lambda: scales[0])
    if beta is not None:
        run.constant(out, lambda: beta)
    run.normalized(out, x, lambda y: scaled(y, scales[0]), beta)
    return out


def rms(run: FrozenPass, name: str, function: Function, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Root-mean-square normalization: the denominator is held."""
    names = ("input", "normalized_shape", "weight", "eps")
    given = dict(zip(names, args, strict=False)) | kwargs
    x, gamma, eps = given["input"], given.get("weight"), given.get("eps")
    eps = torch.finfo(x.dtype).eps if eps is None else eps
    axes = tuple(range(-len(given["normalized_shape"]), 0))
    scale = run.hold(lambda: torch.rsqrt(x.detach().float().square().mean(axes, keepdim=True) + eps).to(x.dtype))
    with run:
        out = x * scale
        return out if gamma is None else out * gamma


def group_norm(run: FrozenPass, name: str, function: Function, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Group normalization: as layer normalization, inside each group of channels."""
    names = ("input", "num_groups", "weight", "bias", "eps")
    given = dict(zip(names, args, strict=False)) | kwargs
    x, gamma, beta = given["input"], given.get("weight"), given.get("bias")
    parts = x.reshape(x.shape[0], given["num_groups"], -1)
    scale = run.hold(lambda: torch.rsqrt(parts.detach().var(-1, unbiased=False, keepdim=True) + given.get("eps", 1e-5)))
    shape = (1, -1, *[1] * (x.ndim - 2))
    with run:
        out = ((parts - parts.mean(-1, keepdim=True)) * scale).reshape(x.shape)
        out = out if gamma is None else out * gamma.view(shape)
        return out if beta is None else out + beta.view(shape)


def batch_norm(run: FrozenPass, name: str, function: Function, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Batch normalization in evaluation: an affine map."""
    out = function(*args, **kwargs)
    fixed, named = _zeroed(args), _zeroed(kwargs)
    run.constant(out, lambda: function(*fixed, **named))
    return out


def unit(run: FrozenPass, name: str, function: Function, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """`functional.normalize`: the length is held."""
    x = args[0]
    out = function(detached(x), *args[1:], **kwargs)
    ratio = run.hold(
        lambda: torch.nan_to_num(out / x.detach()).amax(
            kwargs.get("dim", args[2] if len(args) > 2 else 1), keepdim=True
        )
    )
    return x * ratio


# ---- attention and gates that are one function -----------------------------------------------------------------------


def fused_attention(
    run: FrozenPass, name: str, function: Function, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """Scaled dot-product attention: with queries and keys detached, its gradient is that of the values alone."""
    names = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal")
    given = dict(zip(names, args, strict=False)) | kwargs
    return run.fused(given, function)


def glu(run: FrozenPass, name: str, function: Function, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """`a · sigmoid(b)` of the two halves."""
    with run:
        a, b = args[0].chunk(2, dim=kwargs.get("dim", args[1] if len(args) > 1 else -1))
        return a * torch.sigmoid(b)


def multi_head(run: FrozenPass, name: str, function: Function, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """`torch.nn.MultiheadAttention`, spelled out so that its parts are seen."""
    names = (
        "query", "key", "value", "embed_dim_to_check", "num_heads", "in_proj_weight", "in_proj_bias", "bias_k",
        "bias_v", "add_zero_attn", "dropout_p", "out_proj_weight", "out_proj_bias",
    )  # fmt: skip
    given = dict(zip(names, args, strict=False)) | kwargs
    if given["bias_k"] is not None or given["add_zero_attn"] or given.get("use_separate_proj_weight"):
        raise AnatomyError(
            "an operation must have a rule: `multi_head_attention_forward` with added keys or separate weights has none"
        )
    with run:
        query, key, value = given["query"], given["key"], given["value"]
        weights = given["in_proj_weight"].chunk(3)
        biases = (None,) * 3 if given["in_proj_bias"] is None else given["in_proj_bias"].chunk(3)
        heads = given["num_heads"]
        length, rows, width = query.shape
        q, k, v = (
            nnf.linear(x, w, b).view(x.shape[0], rows, heads, width // heads).permute(1, 2, 0, 3)
            for x, w, b in zip((query, key, value), weights, biases, strict=True)
        )
        mask, padding = given.get("attn_mask"), given.get("key_padding_mask")
        if mask is not None and mask.dtype == torch.bool:
            mask = torch.zeros_like(mask, dtype=q.dtype).masked_fill(mask, float("-inf"))
        if padding is not None:
            if padding.dtype == torch.bool:
                padding = torch.zeros_like(padding, dtype=q.dtype).masked_fill(padding, float("-inf"))
            padding = padding[:, None, None, :]
            mask = padding if mask is None else mask + padding
        out = nnf.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        out = out.permute(2, 0, 1, 3).reshape(length, rows, width)
        return nnf.linear(out, given["out_proj_weight"], given["out_proj_bias"]), None


# ---- chains of element-wise operations ------------------------------------------------------------------------------


def _chain_of(x: Tensor) -> Chain:
    note = note_of(x)
    if note is not None and note.chain is not None:
        return note.chain
    return Chain(x, lambda z: z, (), False)


def _is_bent(x: Tensor) -> bool:
    note = note_of(x)
    return note is not None and note.chain is not None and note.chain.bent


def _same_source(operands: Any) -> Tensor | None:
    """The tensor of which all live operands are element-wise functions, where there is one."""
    first, *others = (x for x in operands if is_live(x))
    source = source_of(first)
    for other in others:
        if source_of(other) is not source:
            return None
    return source if all(x.shape == source.shape for x in operands if is_live(x)) else None


def _joined(name: str, function: Function, operands: Any, source: Tensor, key: Hashable | None) -> Chain:
    """A function of several operands that share their source (constants among them stay as they are)."""
    chains = [_chain_of(x) if is_live(x) else None for x in operands]
    functions = [None if chain is None else chain.function for chain in chains]
    fixed = [x if chain is None else None for x, chain in zip(operands, chains, strict=True)]

    def joined(z: Tensor) -> Tensor:
        return function(*(x if g is None else g(z) for g, x in zip(functions, fixed, strict=True)))  # type: ignore[no-any-return]

    keys = [None if chain is None else chain.key for chain in chains]
    known = None if key is None or any(k is None for k in keys) else (name, key, *keys)
    bent = any(chain is not None and chain.bent for chain in chains)
    return Chain(source, joined, known, bent)


def _extend(run: FrozenPass, out: Tensor, x: Tensor, key: Hashable | None, step: Function, bent: bool = False) -> None:
    """`out` is one more element-wise step from `x`; no key: the step changes no number."""
    chain = _chain_of(x)
    before = chain.function
    known = None if chain.key is None else chain.key if key is None else (chain.key, key)
    run.chain(out, Chain(chain.source, lambda z: step(before(z)), known, bent or chain.bent))


def _as_number(x: Any) -> float | None:
    """A constant of one number."""
    if isinstance(x, Tensor):
        return float(x) if x.numel() == 1 and not x.requires_grad else None
    return float(x) if isinstance(x, int | float) else None


def _number_key(kwargs: dict[str, Any], rest: tuple[Any, ...] = ()) -> Hashable | None:
    """The constants of an operation as a key, or None where one of them is a whole tensor."""
    found: list[Hashable] = []
    for name, value in (*enumerate(rest), *sorted(kwargs.items())):
        number = _as_number(value)
        if number is None and not isinstance(value, str | bool | type(None) | torch.dtype):
            return None
        found.append((name, value if number is None else number))
    return tuple(found)


def _table(*groups: tuple[Rule, str]) -> dict[str, Rule]:
    return {name: rule for rule, names in groups for name in words(names)}


#: The rule of every operation, by its name; `_` at the end (in place) and `__r…__` are taken off before.
RULES: dict[str, Rule] = _table(
    (linear, """
        view reshape transpose permute contiguous expand expand_as repeat repeat_interleave squeeze unsqueeze flatten
        unflatten ravel split split_with_sizes chunk tensor_split unbind narrow select getitem index_select
        take_along_dim flip roll sum mean cumsum nansum
        dropout masked_select unfold fold im2col diagonal tril triu movedim moveaxis swapaxes
        swapdims view_as reshape_as tile T mT H mH real imag adaptive_avg_pool1d avg_pool1d avg_pool2d upsample
        fft_fft fft_ifft fft_rfft fft_irfft fft_fft2 fft_fftn fft_ifftn requires_grad_ rename broadcast_to
        diag_embed conj view_as_real view_as_complex as_strided trace broadcast_tensors meshgrid unsafe_chunk unsafe_split
        resolve_conj resolve_neg atleast_2d atleast_3d rot90 hsplit dropout1d alpha_dropout feature_dropout pin_memory
        """),
    (convert, "to type float double half bfloat16 clone type_as cpu cuda identity"),
    (pad, "pad constant_pad_nd"),
    (mixed, """
        cat concat concatenate stack hstack vstack where masked_fill index_add index_copy index_put scatter scatter_add
        scatter_reduce index_fill masked_scatter setitem copy block_diag select_scatter slice_scatter fill zero index_reduce
        """),
    (add, "add sub subtract rsub"),
    (addcmul, "addcmul"),
    (lerp, "lerp"),
    (affine, "linear conv1d conv2d"),
    (addmm, "addmm baddbmm addbmm"),
    (product, "matmul bmm mm mv dot inner solve_triangular linalg_solve_triangular"),
    (einsum, "einsum"),
    (grouped, "_grouped_mm grouped_mm"),
    (activate, """
        gelu silu relu relu6 tanh sigmoid erf mish elu selu celu leaky_relu hardswish hardsigmoid softsign abs absolute
        expm1 hardshrink softshrink tanhshrink threshold special_erf
        """),
    (multiply, "mul multiply"),
    (divide, "div divide true_divide floor_divide remainder"),
    (negate, "neg negative"),
    (power, "pow square float_power"),
    (clamp, "clamp clip clamp_min clamp_max maximum minimum fmax fmin hardtanh"),
    (reduce_extreme, "max min"),
    (softmax, "softmax"),
    (held, """
        exp exp2 softplus logsigmoid log_sigmoid log log2 log1p logsumexp log_softmax logaddexp rsqrt sqrt reciprocal norm
        linalg_vector_norm linalg_norm vector_norm var std var_mean std_mean topk sort argsort argmax argmin amax amin
        aminmax cumprod prod cummax cummin logcumsumexp eq ne gt ge lt le nonzero any all isnan isinf isfinite isneginf
        isposinf allclose equal item tolist bool int long detach data numpy round floor ceil trunc one_hot median mode
        count_nonzero numel bucketize searchsorted multinomial unique histc bincount cosine_similarity cdist
        kthvalue isclose argwhere logical_not logical_and logical_or
        """),
    (gather, "gather"),
    (normalize, "layer_norm"),
    (rms, "rms_norm"),
    (group_norm, "group_norm"),
    (batch_norm, "batch_norm"),
    (unit, "normalize"),
    (fused_attention, "scaled_dot_product_attention"),
    (glu, "glu"),
    (multi_head, "multi_head_attention_forward"),
)  # fmt: skip
