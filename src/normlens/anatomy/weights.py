"""A site's weights, made ready for the mathematics once, and how one knows that a model has changed since.

Whatever is kept of a model is good for one *state* of it: which tensors it holds, what is in them, which adapters are in
force. Versions alone do not tell: `p.data` and fused optimizers change numbers without one, so a few entries of each
tensor are looked at as well.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from random import Random
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from transformers import PreTrainedModel

from normlens.anatomy.description import FeedForward, Gate, LayerEnd, Site, ValueMap
from normlens.anatomy.scope import all_modules
from normlens.decompose.block import RandomCheck, stage_steps
from normlens.decompose.feed_forward import Node
from normlens.decompose.gates import fixed_factor
from normlens.decompose.grams import split_heads
from normlens.decompose.stages import Stage
from normlens.decompose.steps import Normalization, Step

#: Entries of each tensor that are looked at.
_SAMPLES = 4
#: What an adapter layer says about itself, by PEFT's names; anything else about it shows in its tensors.
_ADAPTER_SETTINGS = ("active_adapters", "active_adapter", "disable_adapters", "merged_adapters", "scaling")


@dataclass(frozen=True)
class ModelState:
    """The state of a model, for which cached knowledge holds."""

    tensors: tuple[tuple[int, int, int], ...]  # identity, storage and version of each parameter and buffer
    devices: frozenset[str]  # that hold them: "cpu", "cuda"
    entries: tuple[bytes, ...]  # a seeded few of their numbers
    adapters: tuple[object, ...]  # which are in force, and how strongly
    hooks: tuple[int, ...]  # set by the user: their numbers, which PyTorch gives only once
    implementation: tuple[str, ...]  # of attention, in each part of the model
    wrappers: tuple[object, ...]  # what the modules around the body say of themselves

    @property
    def identities(self) -> tuple[int, ...]:
        """The identities of the model's tensors."""
        return tuple(identity for identity, _, _ in self.tensors)


class StateReader:
    """Reads the state of one model, before every pass: so it walks the modules once and copies one small tensor."""

    def __init__(self, model: nn.Module, body: nn.Module) -> None:
        self._model = model
        self._wrappers = [module for module in model.modules() if module is not body and body in module.modules()]
        self._viewed: tuple[tuple[int, int, int], ...] = ()
        self._views: dict[tuple[torch.device, torch.dtype], list[Tensor]] = {}  # of a few numbers each

    def read(self) -> ModelState:
        """The state now."""
        tensors: list[Tensor] = []
        adapters: list[object] = []
        implementation: list[str] = []
        hooks: list[int] = []
        for module in all_modules(self._model):
            for held in (module._parameters, module._buffers):
                if held:
                    tensors += [t for t in held.values() if t is not None]
            if module._forward_hooks or module._forward_pre_hooks:
                hooks += [*module._forward_hooks, *module._forward_pre_hooks]
            if isinstance(module, PreTrainedModel):
                implementation.append(str(module.config._attn_implementation))
            # Not `hasattr` of the module itself: where there is none, which is nearly everywhere, it makes an error first.
            held_by = (module._modules, module._parameters, module._buffers, vars(module))
            if any("lora_A" in names for names in held_by) or hasattr(type(module), "active_adapters"):
                settings = (getattr(module, name, None) for name in _ADAPTER_SETTINGS)
                adapters.append(tuple(repr(value) for value in settings if not callable(value)))
        key = tuple((id(t), t.data_ptr(), 0 if t.is_inference() else t._version) for t in tensors)
        if key != self._viewed:
            self._viewed, self._views = key, _views(tensors)
        with torch.no_grad():
            views = self._views.values()
            entries = tuple(torch.cat(some).cpu().view(torch.uint8).numpy().tobytes() for some in views)
        devices = frozenset(device.type for device, _ in self._views)
        wrappers = tuple(map(_wrapper_settings, self._wrappers))
        return ModelState(key, devices, entries, tuple(adapters), tuple(hooks), tuple(implementation), wrappers)


def _wrapper_settings(module: nn.Module) -> object:
    """The plain settings of a wrapper, and its own `forward` where it was given one: either may change what it calls."""
    found: list[object] = []
    for name, value in vars(module).items():
        if callable(value):
            found.append((name, getattr(value, "__qualname__", ""), id(getattr(value, "__self__", None))))
        elif isinstance(value, bool | int | float | str) and name != "training":
            found.append((name, value))
    return tuple(found)


def _views(tensors: list[Tensor]) -> dict[tuple[torch.device, torch.dtype], list[Tensor]]:
    """A few numbers of each tensor, at seeded distances, as views: what is written into it shows in them."""
    drawn = Random(0)
    grouped: dict[tuple[torch.device, torch.dtype], list[Tensor]] = {}
    for tensor in tensors:
        if tensor.numel() == 0 or tensor.device.type == "meta":
            continue
        views = grouped.setdefault((tensor.device, tensor.dtype), [])
        step = max(1, tensor.numel() // _SAMPLES)
        step -= drawn.randrange(1 + step // 8)  # not always a multiple of the columns
        first = drawn.randrange(step)
        if tensor.is_contiguous():
            views.append(tensor.detach().view(-1)[first::step])
            continue
        for place in range(first, tensor.numel(), step):
            entry = tensor.detach()
            for size in tensor.shape[::-1]:
                place, at = divmod(place, size)
                entry = entry.select(entry.ndim - 1, at)
            views.append(entry.reshape(1))
    return grouped


@dataclass(frozen=True)
class SiteWeights:
    """The weights of one site in the working dtype."""

    w_o: Float[Tensor, "head width model"]  # by head, with constant factors in front of it
    bias: Tensor | None
    branch: tuple[Step, ...]
    norm: Normalization | None
    inner: tuple[Step | None, ...]  # in front of the projection; None where a gate stands, which is no weight
    residual: tuple[Step, ...]  # between the residual and the sum
    output_check: RandomCheck
    value_check: RandomCheck | None
    end_norm: Normalization | None  # at the end of the layer

    @cached_property
    def steps(self) -> dict[Stage, tuple[Step, ...]]:
        """The steps from the attention output to each stage."""
        return stage_steps(self.branch, self.norm, self.end_norm)

    @classmethod
    def of(cls, site: Site, dtype: torch.dtype) -> SiteWeights:
        """Read a site's weights."""
        inner = tuple(None if isinstance(step, Gate) else step.to(dtype) for step in site.inner)
        weight = head_weights(site, dtype)
        found = site.projection.bias()
        bias = None if found is None else found.to(dtype)
        return cls(
            weight,
            bias,
            tuple(step.to(dtype) for step in site.branch),
            None if site.norm is None else site.norm.to(dtype),
            inner,
            tuple(step.to(dtype) for step in site.residual_steps),
            RandomCheck.of(weight.flatten(0, 1), bias),
            None if site.value_map is None else _value_check(site.value_map, dtype),
            None if (end_norm := end_norm_of(site)) is None else end_norm.to(dtype),
        )


def end_norm_of(site: Site) -> Normalization | None:
    """The normalization at the end of the site's layer, where there is one that was read."""
    return site.end.norm if isinstance(site.end, LayerEnd) else None


def head_weights(site: Site, dtype: torch.dtype, device: torch.device | None = None) -> Tensor:
    """`W_O` by head as `f` sees it: in the order of the heads' coordinates, times what multiplies them before it."""
    matrix = site.projection.matrix()
    matrix = matrix.to(matrix.device if device is None else device).to(dtype)
    if site.rows is not None:
        matrix = matrix[site.rows.to(matrix.device)]
    weight = split_heads(matrix, site.heads // max(1, len(site.groups)))
    if weight.device.type == "cpu":  # elsewhere a view of the model's own parameter is multiplied as quickly
        weight = weight.contiguous()
    fixed = [step.to(dtype, matrix.device) for step in site.inner if not isinstance(step, Gate)]
    if fixed:
        weight = weight * fixed_factor(fixed, weight.shape[0], weight.shape[1], weight).unsqueeze(-1)
    return torch.cat([factor * weight for factor in site.groups]) if site.groups else weight


def _value_check(found: ValueMap, dtype: torch.dtype) -> RandomCheck:
    matrix, bias = found.linear.matrix().to(dtype), found.linear.bias()
    columns = found.columns.to(matrix.device).flatten()
    chosen = matrix.mT.index_select(0, columns).mT  # as a Linear has them, these are whole rows
    return RandomCheck.of(chosen, None if bias is None else bias[columns])


@dataclass(frozen=True)
class FeedForwardWeights:
    """The weights of a feed-forward block in the working dtype."""

    root: Node
    branch: tuple[Step, ...]
    stream: tuple[Step, ...]

    @classmethod
    def of(cls, found: FeedForward, dtype: torch.dtype) -> FeedForwardWeights:
        """Read a block's weights; what is in that dtype already is not copied."""
        branch, stream = (tuple(step.to(dtype) for step in steps) for steps in (found.branch, found.stream))
        return cls(found.build(dtype), branch, stream)


class WeightCache:
    """Prepared weights by site, good for one state of the model; a module that runs twelve times is prepared once."""

    def __init__(self) -> None:
        self._of_sites: dict[tuple[torch.dtype, int], tuple[Site, SiteWeights]] = {}
        self._kept: dict[tuple[Any, ...], SiteWeights] = {}  # by what they are read from: sites may share it
        self._fed: dict[tuple[torch.dtype, int], tuple[FeedForward, FeedForwardWeights]] = {}

    def clear(self) -> None:
        """Forget everything: the model has changed."""
        self._of_sites.clear()
        self._kept.clear()
        self._fed.clear()

    def feed_forward(self, found: FeedForward, dtype: torch.dtype) -> FeedForwardWeights:
        """A feed-forward block's weights, from the cache where it has them."""
        key = (dtype, id(found))
        if key not in self._fed:  # the description is kept with them, so that no other takes its identity
            self._fed[key] = found, FeedForwardWeights.of(found, dtype)
        return self._fed[key][1]

    def prepare(self, site: Site, dtype: torch.dtype) -> SiteWeights:
        """The site's weights, from the cache where it has them."""
        known = self._of_sites.get((dtype, id(site)))
        if known is not None:  # the site is kept with them, so that no other takes its identity
            return known[1]
        steps = (*site.inner, "branch", *site.branch, "residual", *site.residual_steps, "norm", site.norm)
        steps = (*steps, "end", end_norm_of(site))
        key = (dtype, site.heads, site.groups, id(site.projection.module), *map(_step_key, steps))
        if key not in self._kept:
            self._kept[key] = SiteWeights.of(site, dtype)
        self._of_sites[dtype, id(site)] = site, self._kept[key]
        return self._kept[key]


def _step_key(step: object) -> object:
    if isinstance(step, str | Gate) or step is None:
        return str(step) if isinstance(step, str) else type(step)
    return tuple(id(value) if isinstance(value, Tensor) else value for value in vars(step).values())
