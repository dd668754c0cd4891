"""Stand in for a model's attention, through transformers' own attention interface.

While `listening` is active every attention of the model runs the model's *own* eager function (so masks, scaling,
soft-cap, sinks and biases are whatever that family does) and is then reported, with its weights, to one listener.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterator
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
class Attention:
    """One attention as it ran: what it was given and what it made of it."""

    module: nn.Module
    value: Float[Tensor, "batch kv_head key value_width"]
    alpha: Float[Tensor, "batch head query key"]
    output: Float[Tensor, "batch query head value_width"]


Listener = Callable[[Attention], None]
_listener: ContextVar[tuple[Listener, Callable[[nn.Module], None]] | None] = ContextVar("normlens_listener", default=None)


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
    listener, before = _listener.get() or (None, None)
    if before is not None:
        before(module)
    if kwargs.get("indices") is not None:
        attention_mask = _only(kwargs["indices"], attention_mask, query, key)
    output, alpha = own_eager(module)(module, query, key, value, attention_mask, **kwargs)
    if listener is not None:
        listener(Attention(module, value, alpha, output))
    return output, None


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


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Run the model in eval mode (no dropout) and without gradients; each module's own mode is put back."""
    modes = {module: module.training for module in model.modules()}
    model.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        for module, mode in modes.items():
            module.training = mode


@contextmanager
def listening(model: nn.Module, listener: Listener, before: Callable[[nn.Module], None] = lambda module: None) -> Iterator[None]:
    """Report every attention that the model runs inside the block; its implementation is put back afterwards.

    Attention that goes another way (a family's own code, plain PyTorch) is at least not fused inside the block, so that
    `normlens.anatomy.follow` can see its softmax.
    """
    _register()
    tops = _outermost_pretrained(model)
    submodels = [m for top in tops for m in top.modules() if isinstance(m, PreTrainedModel)]
    settings = {id(m.config): (m.config, m.config._attn_implementation) for m in submodels}
    token = _listener.set((listener, before))
    fast = torch.backends.mha.get_fastpath_enabled()
    try:
        torch.backends.mha.set_fastpath_enabled(False)
        for top in tops:
            top.set_attn_implementation(IMPLEMENTATION)
        with sdpa_kernel(SDPBackend.MATH):
            yield
    finally:
        torch.backends.mha.set_fastpath_enabled(fast)
        _listener.reset(token)
        for config, implementation in settings.values():
            # The attribute behind the property: the property itself would overwrite the sub-configurations too.
            config._attn_implementation_internal = implementation
