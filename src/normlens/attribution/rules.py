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

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.nn import functional as nnf

from normlens.attribution.affine import Normalized
from normlens.attribution.attention import attend, fused_attention, multi_head, softmax
from normlens.attribution.elementwise import (
    activate,
    chain_of,
    clamp,
    divide,
    extend,
    glu,
    halved,
    held,
    is_bent,
    joined,
    multiply,
    negate,
    number_key,
    power,
    same_source,
)
from normlens.attribution.lineage import lineage_of
from normlens.attribution.operands import Function, OpCall, as_number, detached, is_live, tensors, zeroed
from normlens.errors import AnatomyError
from normlens.types import Kwargs

if TYPE_CHECKING:
    from normlens.attribution.frozen import FrozenPass

Rule = Callable[["FrozenPass", OpCall], Any]


def words(text: str) -> frozenset[str]:
    """The names in a text."""
    return frozenset(text.split())


# ---- nothing is held -------------------------------------------------------------------------------------------------


def linear(run: FrozenPass, call: OpCall) -> Any:
    """A linear map of its one live operand."""
    x = call.args[0]
    if call.name == "view" and not any(isinstance(size, torch.dtype) for size in call.args[1:]):
        out = x.reshape(*call.args[1:])  # what a rule gave may lie in memory in another way
    else:
        out = call()
    if call.name in _REARRANGED and is_live(x) and is_live(out):
        chain = chain_of(x)
        if chain.bent and chain.source.shape == x.shape:  # entry by entry, whatever the order of the entries
            run.chain(out, replace(chain, source=call.on(chain.source)))
        if call.name in _RESHAPES:
            plain = call.name in ("view", "reshape")  # another tensor may lie in memory in another way
            run.reshaped(out, x, (lambda y: y.reshape(out.shape)) if plain else call.on)
    return out


#: Operations after which the residual stream is still the residual stream.
_RESHAPES = frozenset(("view", "reshape", "transpose", "permute", "contiguous", "dropout", "squeeze", "unsqueeze"))
#: Operations after which the entries are the same ones, some of them perhaps left out or repeated.
_REARRANGED = _RESHAPES | frozenset(
    (
        *("flatten", "unflatten", "expand", "expand_as", "repeat", "repeat_interleave", "getitem", "select", "narrow"),
        *("movedim", "moveaxis", "swapaxes", "swapdims", "view_as", "reshape_as", "broadcast_to", "index_select"),
    )
)


def mixed(run: FrozenPass, call: OpCall) -> Any:
    """A linear map of several operands, some of them constant: what comes out for live operands of zero is a constant.

    `cat`, `where`, `masked_fill`, `index_add` and their kind.
    """
    out = call()
    if is_live(out) and _has_constant(call.name, call.args, call.kwargs):
        _add_constant(run, out, call.function, call.args, call.kwargs)
    if call.name == "where":
        same = same_source(call.args[1:]) if len(call.args) == 3 else None
        if same is not None:
            condition = call.args[0]
            run.chain(out, joined(call.name, lambda a, b: torch.where(condition, a, b), call.args[1:], same, None))
    return out


def _add_constant(run: FrozenPass, out: Any, function: Function, args: tuple[Any, ...], kwargs: Kwargs) -> None:
    """Collect the result for live operands of zero, which belongs to no input."""
    fixed, named = zeroed(args), zeroed(kwargs)
    run.constant(out, lambda: function(*fixed, **named))


def _has_constant(name: str, args: tuple[Any, ...], kwargs: Kwargs) -> bool:
    """Return True if some operand adds numbers of its own."""
    if name in ("cat", "concat", "concatenate", "stack", "hstack", "vstack", "index_add", "scatter_add"):
        args, kwargs = args[:1] if name[0] != "i" else (args[0], args[-1]), {}
    for x in tensors(args, kwargs):
        if not x.requires_grad and x.is_floating_point() and bool(x.any()):
            return True
    return any(isinstance(x, float | int) and not isinstance(x, bool) and x != 0 for x in (*args, *kwargs.values()))


def pad(run: FrozenPass, call: OpCall) -> Any:
    """Padding: with zeros it is linear, with another number that number is a constant."""
    out = call()
    value = call.argument(3, "value")
    if is_live(out) and value:
        _add_constant(run, out, call.function, call.args, call.kwargs)
    return out


def convert(run: FrozenPass, call: OpCall) -> Any:
    """The same numbers in another type or place."""
    out = call()
    x = call.args[0]
    if is_live(out) and out is not x and is_live(x):
        extend(run, out, x, None, lambda z: z)
        run.reshaped(out, x, lambda y: call.on(y))
    return out


def undetached(run: FrozenPass, call: OpCall) -> Any:
    """A tensor cut off from gradients holds the same numbers: the map goes through it."""
    x: Tensor = call.args[0]
    out = x.view_as(x)
    extend(run, out, x, None, lambda z: z)
    run.reshaped(out, x, lambda y: y)
    return out


# ---- sums ------------------------------------------------------------------------------------------------------------


def add(run: FrozenPass, call: OpCall) -> Any:
    """A sum or difference: a constant operand belongs to no input."""
    a, b = call.args[0], call.argument(1, "other")
    out = call()
    if not is_live(out):
        return out
    if is_live(a) and is_live(b):
        same = same_source((a, b))
        if same is not None:
            run.chain(
                out,
                joined(
                    call.name, lambda x, y: call.function(x, y, **call.kwargs), (a, b), same, number_key(call.kwargs)
                ),
            )
        run.summed(out, a, b)
        return out
    live, other = (a, b) if is_live(a) else (b, a)
    sign = call.kwargs.get("alpha", 1)
    sign = sign if other is b else 1
    if (call.name in ("sub", "subtract", "sub_", "isub") and other is b) or (call.name in ("rsub",) and other is a):
        sign = -sign
    if isinstance(other, Tensor):
        if other.is_floating_point() and bool(other.any()):
            kept = run.listener.keep(other)  # the model's code may write into it afterwards
            run.constant(out, lambda: kept.tensor if sign == 1 else kept.tensor * sign)
    elif other != 0:
        run.constant(out, lambda: float(other) * sign)
    lineage = lineage_of(live)
    if lineage is not None:
        number = as_number(other)
        bent = lineage.chain is not None and lineage.chain.bent
        # A number that the code adds is part of the function; a tensor of one number may be a bias.
        if number is not None and (bent or not isinstance(other, Tensor)):
            swap = live is b
            extend(
                run,
                out,
                live,
                (call.name, number, sign, swap),
                lambda z: call.function(number, z) if swap else call.function(z, number),
            )
    run.shifted(out, live)
    return out


def addcmul(run: FrozenPass, call: OpCall) -> Any:
    """`a + value · b · c`."""
    a, b, c = call.args
    with run:
        return a + (b * c) * call.kwargs.get("value", 1)


def lerp(run: FrozenPass, call: OpCall) -> Any:
    """`a + w (b - a)`."""
    a, b, w = call.args
    with run:
        return a + (b - a) * w


# ---- linear maps with a weight, and matrix products of two parts -----------------------------------------------------


def affine(run: FrozenPass, call: OpCall) -> Any:
    """`linear`, `conv1d`, `conv2d`: a weight, and a bias that belongs to no input."""
    names = ("input", "weight", "bias")
    given = dict(zip(names, call.args, strict=False)) | {key: call.kwargs[key] for key in names if key in call.kwargs}
    if is_live(given["weight"]):
        raise AnatomyError(
            f"`{call.name}` with a weight that depends on the input has no rule, so this model cannot be explained"
        )
    out = call()
    bias = given.get("bias")
    if bias is not None:
        run.constant(out, lambda: bias if call.name == "linear" else bias.view(-1, *[1] * (out.ndim - 2)))
    return out


def addmm(run: FrozenPass, call: OpCall) -> Any:
    """`beta · bias + alpha · a @ b` (`addmm`, `baddbmm`)."""
    bias, a, b = (*call.args, *(call.kwargs[key] for key in ("batch1", "batch2", "mat1", "mat2") if key in call.kwargs))
    alpha, beta = call.kwargs.get("alpha", 1), call.kwargs.get("beta", 1)
    with run:
        out = torch.matmul(a, b)
        out = out if alpha == 1 else out * alpha
        return out if beta == 0 else out + (bias if beta == 1 else bias * beta)


def product(run: FrozenPass, call: OpCall) -> Any:
    """A matrix product: of a part and a weight it is linear; of two parts the left one is held.

    Two parts meet in attention: scores (`q k`), which a softmax will hold anyway, and linear attention, where queries and
    keys are weights. Where the residual stream itself is a factor (AltUp), or under `attention="integrated"`, it is a
    product of two parts like any other: half and half.
    """
    a, b = call.args[0], call.args[1]
    weights = lineage_of(a)
    if weights is not None and weights.weights is not None and is_live(b):
        return attend(run, a, weights.weights, b, call.function)
    if not (is_live(a) and is_live(b)):
        return call()
    streams = [x for x in (a, b) if (lineage := lineage_of(x)) is not None and lineage.stream]
    if run.listener.between_towers:  # the score of an image and a text
        return halved(run, call.function, a, b, call.kwargs)
    if run.integrated or streams:
        other = a if streams and streams[0] is b else b
        if not run.integrated and is_bent(other):  # a router's weights, with which streams are mixed
            held = run.freeze(other.detach)
            return call.function(held, b, **call.kwargs) if other is a else call.function(a, held, **call.kwargs)
        return halved(run, call.function, a, b, call.kwargs)
    return call.function(run.freeze(a.detach), b, **call.kwargs)


def einsum(run: FrozenPass, call: OpCall) -> Any:
    """An Einstein sum: as a matrix product."""
    equation, *operands = call.args
    if not isinstance(equation, str):
        raise AnatomyError("`einsum` without an equation has no rule, so this model cannot be explained")
    operands = list(operands[0]) if len(operands) == 1 and isinstance(operands[0], list | tuple) else operands
    live = [i for i, x in enumerate(operands) if is_live(x)]
    weights = lineage_of(operands[0])
    if len(operands) == 2 and weights is not None and weights.weights is not None and is_live(operands[1]):
        return attend(run, operands[0], weights.weights, operands[1], lambda a, b: call.function(equation, a, b))
    if len(live) < 2:
        return call.function(equation, *operands)
    if len(operands) > 2:
        raise AnatomyError(
            "`einsum` of three operands, two of them live, has no rule, so this model cannot be explained"
        )
    if run.integrated:
        return halved(run, lambda a, b: call.function(equation, a, b), operands[0], operands[1], {})
    return call.function(equation, run.freeze(operands[0].detach), operands[1])


def grouped(run: FrozenPass, call: OpCall) -> Any:
    """Tokens times their expert's weight: linear in the tokens."""
    if is_live(call.args[1]):
        raise AnatomyError(
            f"`{call.name}` with weights that depend on the input has no rule, so this model cannot be explained"
        )
    return call()


# ---- weights and choices ---------------------------------------------------------------------------------------------


def reduce_extreme(run: FrozenPass, call: OpCall) -> Any:
    """`max` and `min`: of two tensors a choice between them, over an axis a weight."""
    if len(call.args) > 1 and isinstance(call.args[1], Tensor):
        return clamp(run, call)
    return held(run, call)


def max_pool(run: FrozenPass, call: OpCall) -> Any:
    """The largest of each window: a choice, which is held."""
    x = call.args[0]
    pool = {"max_pool1d": nnf.max_pool1d, "max_pool2d": nnf.max_pool2d, "max_pool3d": nnf.max_pool3d}[call.name]
    options = {name: value for name, value in call.kwargs.items() if name != "return_indices"}
    out, places = pool(x.detach(), *call.args[1:6], **options, return_indices=True)
    places = run.freeze(lambda: places.flatten(-out.ndim + 2))
    return x.flatten(2).gather(-1, places.reshape(*x.shape[:2], -1)).view(out.shape)


def resampled(run: FrozenPass, call: OpCall) -> Any:
    """Values read at places between them: linear in the values, and the places are held."""
    grid = call.argument(1, "grid")
    if not is_live(grid):
        return call()
    kept = run.freeze(grid.detach)
    if len(call.args) > 1:
        return call.function(call.args[0], kept, *call.args[2:], **call.kwargs)
    return call.function(*call.args, **{**call.kwargs, "grid": kept})


def gather(run: FrozenPass, call: OpCall) -> Any:
    """A look-up; of an activation it is a router that reads the weights of what it chose."""
    if is_live(call.args[0]) and is_bent(call.args[0]):
        return held(run, call)
    return call()


# ---- normalization ---------------------------------------------------------------------------------------------------


def normalize(run: FrozenPass, call: OpCall) -> Any:
    """Layer normalization: the mean is linear, the denominator is held, the shift belongs to no input."""
    names = ("input", "normalized_shape", "weight", "bias", "eps")
    given = call.named(*names)
    x, gamma, beta = given["input"], given.get("weight"), given.get("bias")
    eps = given.get("eps", 1e-5)
    axes = tuple(range(-len(given["normalized_shape"]), 0))

    def scaled(y: Tensor, scale: Tensor) -> Tensor:
        out = (y - y.mean(axes, keepdim=True)) * scale
        return out if gamma is None else out * gamma

    if run.replaying:
        out = scaled(x, run.freeze(lambda: None))
        if beta is not None:
            out = out + beta
            run.constant(out, lambda: beta)
        run.normalized(out, x, lambda y: y, None)
        return out
    scales: list[Tensor] = []
    out = Normalized.apply(x, list(given["normalized_shape"]), gamma, beta, eps, scales.append)
    run.freeze(lambda: scales[0])
    if beta is not None:
        run.constant(out, lambda: beta)
    run.normalized(out, x, lambda y: scaled(y, scales[0]), beta)
    return out


def rms(run: FrozenPass, call: OpCall) -> Any:
    """Root-mean-square normalization: the denominator is held."""
    names = ("input", "normalized_shape", "weight", "eps")
    given = call.named(*names)
    x, gamma, eps = given["input"], given.get("weight"), given.get("eps")
    eps = torch.finfo(x.dtype).eps if eps is None else eps
    axes = tuple(range(-len(given["normalized_shape"]), 0))
    wide = torch.promote_types(x.dtype, torch.float32)
    scale = run.freeze(lambda: torch.rsqrt(x.detach().to(wide).square().mean(axes, keepdim=True) + eps).to(x.dtype))
    with run:
        out = x * scale
        return out if gamma is None else out * gamma


def group_norm(run: FrozenPass, call: OpCall) -> Any:
    """Group normalization: as layer normalization, inside each group of channels."""
    names = ("input", "num_groups", "weight", "bias", "eps")
    given = call.named(*names)
    x, gamma, beta = given["input"], given.get("weight"), given.get("bias")
    parts = x.reshape(x.shape[0], given["num_groups"], -1)
    scale = run.freeze(
        lambda: torch.rsqrt(parts.detach().var(-1, unbiased=False, keepdim=True) + given.get("eps", 1e-5))
    )
    shape = (1, -1, *[1] * (x.ndim - 2))
    with run:
        out = ((parts - parts.mean(-1, keepdim=True)) * scale).reshape(x.shape)
        out = out if gamma is None else out * gamma.view(shape)
        return out if beta is None else out + beta.view(shape)


def batch_norm(run: FrozenPass, call: OpCall) -> Any:
    """Batch normalization in evaluation: an affine map, spelled out.

    PyTorch 2.13's own backward pass on the CPU is wrong for one row of a tensor whose channels lie last in memory.
    """
    names = ("input", "running_mean", "running_var", "weight", "bias", "training", "momentum", "eps")
    given = call.named(*names)
    x, mean, variance = given["input"], given["running_mean"], given["running_var"]
    if given.get("training") or mean is None or variance is None:
        raise AnatomyError(
            "`batch_norm` over the batch mixes its rows and has no rule, so this model cannot be explained"
        )
    scale = torch.rsqrt(variance + given.get("eps", 1e-5))
    scale = scale if given.get("weight") is None else scale * given["weight"]
    shift = -mean * scale if given.get("bias") is None else given["bias"] - mean * scale
    shape = (1, -1, *[1] * (x.ndim - 2))
    with run:
        return x * scale.view(shape) + shift.view(shape)


def unit(run: FrozenPass, call: OpCall) -> Any:
    """`functional.normalize`: the length is held."""
    x = call.args[0]
    out = call.function(detached(x), *call.args[1:], **call.kwargs)
    ratio = run.freeze(lambda: torch.nan_to_num(out / x.detach()).amax(call.argument(2, "dim", 1), keepdim=True))
    return x * ratio


def _table(*groups: tuple[Rule, str]) -> dict[str, Rule]:
    return {name: rule for rule, names in groups for name in words(names)}


#: The rule of every operation, by its name; `_` at the end (in place) and `__r…__` are taken off before.
RULES: dict[str, Rule] = _table(
    (linear, """
        view reshape transpose permute contiguous expand expand_as repeat repeat_interleave squeeze unsqueeze flatten
        unflatten ravel split split_with_sizes chunk tensor_split unbind narrow select getitem index_select
        take_along_dim flip roll sum mean cumsum nansum
        dropout masked_select unfold fold im2col diagonal tril triu movedim moveaxis swapaxes
        swapdims view_as reshape_as tile t T mT H mH adjoint numpy_T real imag
        adaptive_avg_pool1d adaptive_avg_pool2d adaptive_avg_pool3d avg_pool1d avg_pool2d avg_pool3d upsample interpolate
        pixel_shuffle pixel_unshuffle channel_shuffle
        fft_fft fft_ifft fft_rfft fft_irfft fft_fft2 fft_fftn fft_ifftn rename broadcast_to
        diag_embed conj view_as_real view_as_complex as_strided trace broadcast_tensors meshgrid unsafe_chunk unsafe_split
        resolve_conj resolve_neg atleast_2d atleast_3d rot90 hsplit dropout1d alpha_dropout feature_dropout pin_memory
        """),
    (undetached, "detach data"),
    (convert, "to type float double half bfloat16 clone type_as cpu cuda identity"),
    (pad, "pad constant_pad_nd"),
    (mixed, """
        cat concat concatenate stack hstack vstack where masked_fill index_add index_copy index_put scatter scatter_add
        scatter_reduce index_fill masked_scatter setitem copy block_diag select_scatter slice_scatter fill zero index_reduce
        """),
    (add, "add sub subtract rsub"),
    (addcmul, "addcmul"),
    (lerp, "lerp"),
    (affine, "linear conv1d conv2d conv3d conv_transpose1d conv_transpose2d conv_transpose3d"),
    (max_pool, "max_pool1d max_pool2d max_pool3d"),
    (addmm, "addmm baddbmm addbmm"),
    (product, "matmul bmm mm mv dot inner solve_triangular linalg_solve_triangular"),
    (einsum, "einsum"),
    (grouped, "_grouped_mm grouped_mm"),
    (activate, """
        gelu silu relu relu6 tanh sigmoid erf mish elu selu celu leaky_relu hardswish hardsigmoid softsign abs absolute
        expm1 hardshrink softshrink tanhshrink threshold special_erf sin cos
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
        isposinf allclose equal item tolist bool int long numpy round floor ceil trunc one_hot median mode
        count_nonzero numel bucketize searchsorted multinomial unique histc bincount cosine_similarity cdist
        kthvalue isclose argwhere logical_not logical_and logical_or
        """),
    (gather, "gather"),
    (resampled, "grid_sample"),
    (normalize, "layer_norm"),
    (rms, "rms_norm"),
    (group_norm, "group_norm"),
    (batch_norm, "batch_norm"),
    (unit, "normalize"),
    (fused_attention, "scaled_dot_product_attention"),
    (glu, "glu"),
    (multi_head, "multi_head_attention_forward"),
)  # fmt: skip
