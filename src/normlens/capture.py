"""One forward pass through the attention interface; each site is handed over as it ends, then let go.

Nothing is kept once it was handed over, so memory does not grow with the depth of the model.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from normlens.anatomy.description import Anatomy, Norm, Place, Scale, Site
from normlens.anatomy.description import Step as AnatomyStep
from normlens.anatomy.examine import run_arguments
from normlens.anatomy.interface import Attention, evaluating, listening
from normlens.anatomy.trace import call_arguments, tensor_at
from normlens.decompose.block import BlockTensors
from normlens.decompose.heads import split_heads
from normlens.decompose.steps import Normalizing, Scaling, Step
from normlens.errors import AnatomyError


@dataclass
class _Pending:
    """What has been seen of a site so far."""

    site: Site
    attention: Attention | None = None
    tensors: dict[Place, Tensor] = field(default_factory=dict)

    def places(self) -> list[Place]:
        site = self.site
        always = [site.projected, site.residual, site.total, site.x, *site.others]
        return always if site.normalized is None else [*always, site.normalized]


def capture(
    model: nn.Module,
    anatomy: Anatomy,
    inputs: Mapping[str, Any],
    handle: Callable[[Site, BlockTensors], None],
    *,
    wanted: Collection[Site] | None = None,
    dtype: torch.dtype = torch.float32,
) -> Any:
    """Run the model once and hand each wanted site to `handle`, its tensors in `dtype`; returns the model's output."""
    run = _Run(anatomy, handle, anatomy.sites if wanted is None else wanted, dtype)
    with evaluating(model), listening(model, run.attention), ExitStack() as hooks:
        run.watch(hooks)
        output = model(**run_arguments(model, inputs))
    run.finish()
    return output


class _Run:
    """The state of one forward pass: which sites are open and what each still waits for."""

    def __init__(
        self,
        anatomy: Anatomy,
        handle: Callable[[Site, BlockTensors], None],
        wanted: Collection[Site],
        dtype: torch.dtype,
    ) -> None:
        self._anatomy = anatomy
        self._handle = handle
        self._dtype = dtype
        chosen = {id(site) for site in wanted}
        self._pending = {i: _Pending(site) for i, site in enumerate(anatomy.sites) if id(site) in chosen}
        self._attentions = 0
        self._readers: dict[tuple[nn.Module, str, int], list[tuple[int, Place]]] = defaultdict(list)
        for i, pending in self._pending.items():
            for place in set(pending.places()):
                self._readers[(place.module, place.side, place.occurrence)].append((i, place))
        self._calls: dict[tuple[nn.Module, str], int] = defaultdict(int)

    def watch(self, hooks: ExitStack) -> None:
        """Hook the modules at whose boundary something is read."""
        for module, side in {(module, side) for module, side, _ in self._readers}:
            if side == "input":
                handle = module.register_forward_pre_hook(self._before, with_kwargs=True)
            else:
                handle = module.register_forward_hook(self._after)
            hooks.callback(handle.remove)

    def _before(self, module: nn.Module, args: Any, kwargs: Any) -> None:
        self._read(module, "input", call_arguments(args, kwargs))

    def _after(self, module: nn.Module, args: Any, output: Any) -> None:
        self._read(module, "output", output)

    def _read(self, module: nn.Module, side: str, structure: Any) -> None:
        occurrence = self._calls[module, side]
        self._calls[module, side] += 1
        for i, place in self._readers.get((module, side, occurrence), ()):
            tensor = tensor_at(structure, place.key)
            if tensor is None:
                raise AnatomyError(f"a tensor is read at the {place}: nothing stood there in this run")
            self._pending[i].tensors[place] = tensor
            self._complete(i)

    def attention(self, attention: Attention) -> None:
        """Note one attention; they come in the order in which the anatomy lists them."""
        i = self._attentions
        self._attentions += 1
        sites = self._anatomy.sites
        if i >= len(sites) or attention.module is not sites[i].attention:
            raise AnatomyError(
                f"every run must call attention in the order that was read: call {i + 1} of {self._anatomy.family!r} "
                f"came from {type(attention.module).__name__} instead of {sites[i].path if i < len(sites) else 'nothing'}"
            )
        if i in self._pending:
            self._pending[i].attention = attention
            self._complete(i)

    def _complete(self, i: int) -> None:
        pending = self._pending[i]
        if pending.attention is None or any(place not in pending.tensors for place in pending.places()):
            return
        del self._pending[i]
        self._handle(pending.site, _block(pending.site, pending.attention, pending.tensors, self._dtype))

    def finish(self) -> None:
        """Every wanted site must have been handed over."""
        for pending in self._pending.values():
            missing = [str(place) for place in pending.places() if place not in pending.tensors]
            raise AnatomyError(
                f"every site must be seen in every run: {pending.site} of {self._anatomy.family!r} was not "
                f"(missing: {'; '.join(missing) or 'its attention'})"
            )


def _block(site: Site, attention: Attention, tensors: Mapping[Place, Tensor], dtype: torch.dtype) -> BlockTensors:
    def cast(tensor: Tensor) -> Tensor:
        return tensor.to(dtype)

    bias = site.projection.bias()
    residual = cast(tensors[site.residual])
    others = [cast(tensors[place]) for place in site.others]
    return BlockTensors(
        alpha=cast(attention.alpha),
        values=cast(attention.value),
        weight=split_heads(cast(site.projection.matrix()), site.heads),
        bias=None if bias is None else cast(bias),
        projected=cast(tensors[site.projected]),
        branch=tuple(_step(step, dtype) for step in site.branch),
        residual=residual if site.residual_scale == 1.0 else residual * site.residual_scale,
        others=sum(others[1:], others[0]) if others else None,
        total=cast(tensors[site.total]),
        norm=None if site.norm is None else _step(site.norm, dtype),
        normalized=None if site.normalized is None else cast(tensors[site.normalized]),
        x=cast(tensors[site.x]),
        self_attends=site.kind != "cross",
    )


def _step(step: AnatomyStep, dtype: torch.dtype) -> Step:
    if isinstance(step, Scale):
        return Scaling(step.factor if isinstance(step.factor, float) else step.factor.to(dtype))
    assert isinstance(step, Norm)
    gamma, beta = step.gamma(), step.beta()
    return Normalizing(
        gamma=None if gamma is None else gamma.to(dtype),
        beta=None if beta is None else beta.to(dtype),
        centred=step.centred,
        eps=step.eps,
    )
