"""Stand in for a model's attention, through transformers' own attention interface.

While `answering` is active every attention of the model is given to one handler, which may run the model's *own* eager
function (so masks, scaling, soft-cap, sinks and biases are whatever that family does) and look at the weights.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from transformers import PreTrainedModel
from transformers.masking_utils import AttentionMaskInterface, eager_mask
from transformers.modeling_utils import AttentionInterface

from normlens.errors import AnatomyError

IMPLEMENTATION = "normlens"


@dataclass(frozen=True)
class AttentionCall:
    """One attention as the model asked for it."""

    module: nn.Module
    query: Float[Tensor, "batch head query width"]
    key: Float[Tensor, "batch kv_head key width"]
    value: Float[Tensor, "batch kv_head key value_width"]
    mask: Tensor | None
    options: Mapping[str, Any]

    def eager(self) -> tuple[Float[Tensor, "batch query head value_width"], Float[Tensor, "batch head query key"]]:
        """Output and weights by the family's own eager function: masks, caps, sinks and biases as it makes them."""
        mask, indices = self.mask, self.options.get("indices")
        if indices is not None:
            mask = _only(indices, mask, self.query, self.key)
        return own_eager(self.module)(self.module, self.query, self.key, self.value, mask, **self.options)


#: Answers a call with the attention output (batch query head value_width).
Handler = Callable[[AttentionCall], Tensor]
_handler: ContextVar[Handler | None] = ContextVar("normlens_handler", default=None)


def own_eager(module: nn.Module) -> Callable[..., tuple[Tensor, Tensor]]:
    """The eager attention function that this module's own modelling code would fall back to."""
    for owner in type(module).__mro__:
        forward = vars(owner).get("forward")
        names = getattr(inspect.unwrap(forward), "__globals__", {}) if forward is not None else {}
        for scope in (names, vars(sys.modules[owner.__module__])):
            if "eager_attention_forward" in scope:
                function: Callable[..., tuple[Tensor, Tensor]] = scope["eager_attention_forward"]
                return function
    raise AnatomyError(
        f"an attention must have its family's own `eager_attention_forward` beside it: none was found for "
        f"{type(module).__name__} in {type(module).__module__}; see docs/adding_a_family.md"
    )


def _probe(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, **kwargs: Any
) -> tuple[Tensor, None]:
    call = AttentionCall(module, query, key, value, attention_mask, kwargs)
    handler = _handler.get()
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


def _register() -> None:
    AttentionInterface.register(IMPLEMENTATION, _probe)
    # Without a mask function of the same name, transformers would build no mask at all for a padded batch.
    AttentionMaskInterface.register(IMPLEMENTATION, eager_mask)


def _outermost_pretrained(model: nn.Module) -> list[PreTrainedModel]:
    if isinstance(model, PreTrainedModel):
        return [model]
    return [found for child in model.children() for found in _outermost_pretrained(child)]


def all_modules(model: nn.Module) -> Iterator[nn.Module]:
    """What `model.modules()` gives, without a generator inside a generator for every level: this runs in every pass.

    A module that stands in several places comes several times.
    """
    waiting: list[nn.Module | None] = [model]
    while waiting:
        module = waiting.pop()
        if module is not None:
            yield module
            waiting.extend(module._modules.values())


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Run the model in eval mode (no dropout) and without gradients; each module's own mode is put back."""
    training = [module for module in all_modules(model) if module.training]
    if training:
        model.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        for module in training:
            module.training = True


@contextmanager
def answering(model: nn.Module, handler: Handler) -> Iterator[None]:
    """Give every attention that the model runs inside the block to a handler; all is put back afterwards.

    Attention that goes another way (a family's own code, plain PyTorch) is at least not fused inside the block, so that
    `normlens.anatomy.follow` can see its softmax.
    """
    _register()
    tops = _outermost_pretrained(model)
    submodels = [m for top in tops for m in all_modules(top) if isinstance(m, PreTrainedModel)]
    before = {id(m.config): (m.config, m.config._attn_implementation) for m in submodels}
    token = _handler.set(handler)
    fast = torch.backends.mha.get_fastpath_enabled()
    try:
        torch.backends.mha.set_fastpath_enabled(False)
        for top in tops:
            top.set_attn_implementation(IMPLEMENTATION)
        with sdpa_kernel(SDPBackend.MATH):
            yield
    finally:
        torch.backends.mha.set_fastpath_enabled(fast)
        _handler.reset(token)
        for config, implementation in before.values():
            # The attribute behind the property: the property itself would overwrite the sub-configurations too.
            config._attn_implementation_internal = implementation
