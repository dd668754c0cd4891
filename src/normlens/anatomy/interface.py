"""Stand in for a model's attention, through transformers' own attention interface.

In a scope with `intercept_attention` every attention of the model is given to one handler, which may run the model's *own*
eager function (so masks, scaling, soft-cap, sinks and biases are whatever that family does) and look at the weights.
"""

from __future__ import annotations

import inspect
import sys
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from contextvars import ContextVar
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.masking_utils import AttentionMaskInterface, eager_mask
from transformers.modeling_utils import AttentionInterface

from normlens.anatomy.scope import PassScope, all_modules
from normlens.decompose.attention import AttentionInputs, attend
from normlens.decompose.process import products_in_full
from normlens.errors import AnatomyError
from normlens.types import Kwargs, ModelInputs, Options

IMPLEMENTATION = "normlens"
#: Options that change the numbers and are understood.
_UNDERSTOOD = {"scaling", "softcap", "position_bias"}
#: Options that do not change the numbers of an eager function in eval mode: masks carry what they would say.
_WITHOUT_EFFECT = {
    "dropout",
    "is_causal",
    "sliding_window",
    "output_attentions",
    "output_hidden_states",
    "output_router_logits",
    "return_dict",
    "use_cache",
    "position_ids",
    "cache_position",
    "layer_idx",
    "deterministic",
    "position_embeddings",
}


@dataclass(frozen=True)
class AttentionCall:
    """One attention as the model asked for it."""

    module: nn.Module
    query: Float[Tensor, "batch head query width"]
    key: Float[Tensor, "batch kv_head key width"]
    value: Float[Tensor, "batch kv_head key value_width"]
    mask: Tensor | None
    options: Options

    def eager(self) -> tuple[Float[Tensor, "batch query head value_width"], Float[Tensor, "batch head query key"]]:
        """Output and weights by the family's own eager function: masks, caps, sinks and biases as it makes them."""
        mask, indices = self.mask, self.options.get("indices")
        if indices is not None:
            mask = _only(indices, mask, self.query, self.key)
        return own_eager(self.module)(self.module, self.query, self.key, self.value, mask, **self.options)

    def standard(self) -> AttentionInputs | None:
        """The call as plain `softmax(q k^T + mask) v`; None where it carries something that is not understood."""
        options = {name: value for name, value in self.options.items() if value is not None}
        additive = self.mask is None or (self.mask.is_floating_point() and self.mask.ndim == 4)
        if set(options) - _UNDERSTOOD - _WITHOUT_EFFECT or not additive:
            return None
        return AttentionInputs(
            self.query,
            self.key,
            self.value,
            self.mask,
            float(options.get("scaling", self.query.shape[-1] ** -0.5)),
            options.get("position_bias"),
            options.get("softcap"),
        )


def is_standard(call: AttentionCall, output: Tensor, alpha: Tensor) -> bool:
    """Return True if the plain form gives the same output and weights as the family's own function.

    Where it does, on the traced input, later runs compute the weights block by block without ever holding all of them;
    everywhere else the family's own function goes on being used.
    """
    inputs = call.standard()
    if inputs is None or call.query.shape[1] % call.key.shape[1] or alpha.ndim != 4:
        return False
    weights = torch.zeros_like(alpha)

    def keep(block: Tensor, start: int) -> None:
        weights[..., start : start + block.shape[-2], : block.shape[-1]] = block

    ours = attend(inputs, keep)
    tolerance = 64 * torch.finfo(output.dtype).eps
    return _close(ours, output, tolerance) and _close(weights, alpha, tolerance)


def _close(ours: Tensor, theirs: Tensor, tolerance: float) -> bool:
    if ours.shape != theirs.shape:
        return False
    scale = float(theirs.abs().max())
    return float((ours - theirs).abs().max()) <= tolerance * max(scale, 1e-30)


#: Answers a call with the attention output (batch query head value_width).
Handler = Callable[[AttentionCall], Tensor]
_handler: ContextVar[Handler | None] = ContextVar("normlens_handler", default=None)
#: Whether False in a mask hides a key, as in PyTorch's own attention; eager functions add a mask to the scores as it is.
_false_hides: ContextVar[bool] = ContextVar("normlens_false_hides", default=True)


def own_eager(module: nn.Module) -> Callable[..., tuple[Tensor, Tensor]]:
    """The eager attention function that this module's own modelling code would fall back to."""
    for owner in type(module).__mro__:
        own = vars(owner).get("forward")
        forward = None if own is None else inspect.unwrap(own)
        code = getattr(forward, "__code__", None)
        used = [name for name in getattr(code, "co_names", ()) if name.endswith("eager_attention_forward")]
        for scope in (getattr(forward, "__globals__", {}), vars(sys.modules[owner.__module__])):
            for name in (*used, "eager_attention_forward"):
                if name in scope:
                    function: Callable[..., tuple[Tensor, Tensor]] = scope[name]
                    return function
    raise AnatomyError(
        f"{type(module).__name__} in {type(module).__module__} has no `eager_attention_forward` beside it; see "
        "docs/adding_a_family.md"
    )


def _answer(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, **kwargs: Any
) -> tuple[Tensor, None]:
    if attention_mask is not None and attention_mask.dtype == torch.bool and _false_hides.get():
        lowest = torch.finfo(query.dtype).min
        attention_mask = torch.zeros_like(attention_mask, dtype=query.dtype).masked_fill(~attention_mask, lowest)
    handler = _handler.get()
    if handler is None and attention_mask is None:
        # The user's own call in another thread, begun before this implementation stood in: sdpa needs no mask to be causal.
        output: Tensor = AttentionInterface()["sdpa"](module, query, key, value, None, **kwargs)[0]
        return output, None
    call = AttentionCall(module, query, key, value, attention_mask, kwargs)
    return (call.eager()[0] if handler is None else handler(call)), None


def _only(indices: Tensor, mask: Tensor | None, query: Tensor, key: Tensor) -> Tensor:
    """A mask that lets each query see the chosen keys alone.

    Sparse families (DeepSeek V3.2, GLM MoE DSA) mask by themselves for `eager` and `sdpa`; any other implementation is
    handed the chosen keys, which an eager function ignores.
    """
    chosen = torch.zeros(query.shape[0], query.shape[2], key.shape[2], dtype=torch.bool, device=query.device)
    chosen = chosen.scatter(-1, indices.long(), True).unsqueeze(1)  # batch 1 query key
    lowest = torch.finfo(query.dtype).min
    if mask is None:
        return torch.zeros_like(chosen, dtype=query.dtype).masked_fill(~chosen, lowest)
    return mask & chosen if mask.dtype == torch.bool else mask.masked_fill(~chosen, lowest)


@dataclass(frozen=True)
class Rounding:
    """The rounding of a model's own computation while the settings of thread and process are what they are now."""

    device: str
    autocast: torch.dtype | None  # in which autocast makes it compute; None where that is off
    products: bool  # whether products of float32 tensors are rounded to ten bits (TF32), as the user has allowed

    @classmethod
    def of(cls, model: nn.Module) -> Rounding:
        """Look at the settings for the model's device."""
        device = next(model.parameters()).device.type
        autocast = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else None
        return cls(device, autocast, device == "cuda" and torch.backends.cuda.matmul.fp32_precision == "tf32")

    def coarsest(self, *dtypes: torch.dtype) -> torch.dtype:
        """The dtype whose rounding shows in what the model computes: of these, and of autocast and TF32."""
        found = {*dtypes, *([] if self.autocast is None else [self.autocast])}
        found |= {torch.float16} if self.products else set()  # as many digits
        return max((d for d in found if d.is_floating_point), key=lambda d: torch.finfo(d).eps)

    @contextmanager
    def full_precision(self) -> Iterator[None]:
        """Run our own computation without the model's rounding: no autocast, no TF32."""
        with (
            nullcontext() if self.autocast is None else torch.autocast(self.device, enabled=False),
            products_in_full() if self.products else nullcontext(),
        ):
            yield


def intercept_attention(scope: PassScope, handler: Handler) -> None:
    """Give every attention that the model runs in the scope to a handler."""
    AttentionInterface.register(IMPLEMENTATION, _answer)
    # Without a mask function of the same name, transformers would build no mask at all for a padded batch.
    AttentionMaskInterface.register(IMPLEMENTATION, eager_mask)
    before = use_implementation(scope, IMPLEMENTATION)
    scope.on_exit(_handler.reset, _handler.set(handler))
    scope.on_exit(_false_hides.reset, _false_hides.set("eager" not in before))


def use_implementation(scope: PassScope, name: str) -> set[str]:
    """Have the model attend by an implementation of this name in the scope; returns the names of its own."""
    modules = all_modules(scope.model)
    submodels = [module for module in modules if isinstance(module, PreTrainedModel)]
    before = {id(m.config): (m.config, m.config._attn_implementation) for m in submodels}
    scope.on_exit(_restore_implementations, list(before.values()))
    inner: set[nn.Module] = set()
    for submodel in submodels:  # outer ones come first, and set the inner ones too
        if submodel not in inner:
            submodel.set_attn_implementation(name)
            inner.update(modules if submodel is scope.model else all_modules(submodel))
    return {implementation for _, implementation in before.values()}


def _restore_implementations(before: list[tuple[Any, str]]) -> None:
    for config, implementation in before:
        # The attribute of the property: the property itself would overwrite the sub-configurations too.
        config._attn_implementation_internal = implementation


def run_arguments(model: nn.Module, inputs: ModelInputs) -> Kwargs:
    """The inputs plus what keeps a run plain: no cache of keys and values, where the model knows such a thing.

    Where positions are given and no mask, the cache is left to the model: without one, transformers takes every jump of
    the positions for another sequence packed into the row, and hides one from the other.
    """
    arguments = dict(inputs)
    packed = inputs.get("position_ids") is not None and inputs.get("attention_mask") is None
    if "use_cache" in inspect.signature(model.forward).parameters and not packed:
        arguments.setdefault("use_cache", False)
    return arguments


def clone_inputs(value: Any) -> Any:
    """A copy of what the user gave: a model may write into its inputs (a cache grows), and nothing of theirs changes."""
    if isinstance(value, Tensor):
        return value.detach().clone()
    if isinstance(value, OrderedDict):  # the outputs of transformers' models are dictionaries with fields
        return type(value)(**{name: clone_inputs(item) for name, item in value.items()})
    if type(value) in (list, tuple):
        return type(value)(clone_inputs(item) for item in value)
    if type(value) is dict:
        return {name: clone_inputs(item) for name, item in value.items()}
    if value is None or isinstance(value, bool | int | float | str | torch.dtype):
        return value
    return deepcopy(value)
