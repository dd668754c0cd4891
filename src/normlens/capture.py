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

from normlens.anatomy.description import Anatomy, Gate, InnerStep, Norm, Place, Scale, Shift, Site
from normlens.anatomy.description import Step as AnatomyStep
from normlens.anatomy.examine import run_arguments
from normlens.anatomy.follow import Product
from normlens.anatomy.interface import Attention, evaluating, listening
from normlens.anatomy.trace import call_arguments, tensor_at
from normlens.anatomy.watch import Watcher
from normlens.decompose.block import BlockTensors
from normlens.decompose.gated import Inner
from normlens.decompose.heads import split_heads
from normlens.decompose.steps import Normalizing, Scaling, Shifting, Step
from normlens.errors import AnatomyError


@dataclass
class _Pending:
    """What has been seen of a site so far."""

    site: Site
    attention: Attention | None = None
    tensors: dict[Place, Tensor] = field(default_factory=dict)

    def places(self) -> list[Place]:
        site = self.site
        gates = [step.place for step in site.inner if isinstance(step, Gate)]
        always = [site.projected, site.total, site.x, *site.others, *gates]
        if site.residual is not None:
            always.append(site.residual)
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
    run = _Run(anatomy, handle, anatomy.sites if wanted is None else wanted, dtype, _batch_size(inputs))
    with evaluating(model), listening(model, run.reported, run.before_attention), ExitStack() as hooks:
        run.watch(model, hooks)
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
        batch: int,
    ) -> None:
        self._anatomy = anatomy
        self._handle = handle
        self._dtype = dtype
        chosen = {id(site) for site in wanted}
        self._pending = {i: _Pending(site) for i, site in enumerate(anatomy.sites) if id(site) in chosen}
        self._attentions = 0
        self._readers: dict[tuple[nn.Module, str, int], list[tuple[int, Place]]] = defaultdict(list)
        self._inside: dict[Place, list[int]] = defaultdict(list)
        for i, pending in self._pending.items():
            for place in set(pending.places()):
                if place.operation is None:
                    self._readers[(place.module, place.side, place.occurrence)].append((i, place))
                else:
                    self._inside[place].append(i)
        self._calls: dict[tuple[nn.Module, str], int] = defaultdict(int)
        self._own = {site.attention for site in anatomy.sites if site.followed}
        self._watcher = Watcher(self._inside, self._own, batch, self._seen, self._followed)

    def watch(self, model: nn.Module, hooks: ExitStack) -> None:
        """Hook the modules at whose boundary, or inside whose calls, something is read."""
        if self._watcher.needed:
            self._watcher.watch(model, hooks)
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
            self._pending[i].tensors[place] = tensor.clone() if place.changes else tensor
            self._complete(i)

    def _seen(self, place: Place, tensor: Tensor) -> None:
        for i in self._inside[place]:
            if i in self._pending:
                self._pending[i].tensors[place] = tensor.clone() if place.changes else tensor
                self._complete(i)

    def _followed(self, module: nn.Module, product: Product) -> None:
        self.attention(Attention(module, product.values, product.alpha, product.heads))

    def before_attention(self, module: nn.Module) -> None:
        """An attention through the interface begins; it reports itself unless its family is to be followed."""
        self._watcher.pause(module not in self._own)

    def reported(self, attention: Attention) -> None:
        """An attention through the interface has ended."""
        self._watcher.pause(False)
        if attention.module not in self._own:
            self.attention(attention)

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


def _batch_size(inputs: Mapping[str, Any]) -> int:
    return next((int(value.shape[0]) for value in inputs.values() if isinstance(value, Tensor) and value.ndim), 1)


def _block(site: Site, attention: Attention, tensors: Mapping[Place, Tensor], dtype: torch.dtype) -> BlockTensors:
    batch = attention.alpha.shape[0]

    def cast(tensor: Tensor) -> Tensor:
        return tensor.to(dtype)

    def read(place: Place) -> Tensor:
        """The tensor of a place as (batch, position, width)."""
        tensor = cast(tensors[place])
        if place.sequence_first:
            return tensor.reshape(-1, batch, tensor.shape[-1]).transpose(0, 1)
        return tensor if tensor.ndim == 3 else tensor.reshape(batch, -1, tensor.shape[-1])

    matrix, bias = cast(site.projection.matrix()), site.projection.bias()
    if site.rows is not None:
        matrix = matrix[site.rows.to(matrix.device)]
    others = [read(place) for place in site.others]
    residual = torch.zeros_like(read(site.projected)) if site.residual is None else read(site.residual)
    shift: Tensor | None = None  # a bias on the residual belongs to no input
    for step in site.residual_steps:
        made = _step(step, dtype)
        if isinstance(made, Scaling):
            residual = made.linear(residual)
            shift = None if shift is None else made.linear(shift)
        elif isinstance(made, Shifting):
            shift = made.vector if shift is None else shift + made.vector
    if shift is not None:
        others.append(shift.expand_as(residual))
    inner = Inner.of(cast(attention.output), [_inner_step(step, tensors, dtype) for step in site.inner])
    return BlockTensors(
        alpha=inner.weights(cast(attention.alpha)),
        values=cast(attention.value),
        weight=inner.projection(split_heads(matrix, site.heads)),
        bias=None if bias is None else cast(bias),
        projected=read(site.projected),
        branch=tuple(_step(step, dtype) for step in site.branch),
        residual=residual,
        others=sum(others[1:], others[0]) if others else None,
        total=read(site.total),
        norm=None if site.norm is None else _step(site.norm, dtype),
        normalized=None if site.normalized is None else read(site.normalized),
        x=read(site.x),
        self_attends=site.kind != "cross",
        gate=inner.gate,
    )


def _inner_step(step: InnerStep, tensors: Mapping[Place, Tensor], dtype: torch.dtype) -> Step | Tensor:
    if not isinstance(step, Gate):
        return _step(step, dtype)
    gate = tensors[step.place].to(dtype)
    return gate.transpose(-3, -2) if step.heads_first else gate


def _step(step: AnatomyStep, dtype: torch.dtype) -> Step:
    if isinstance(step, Scale):
        return Scaling(step.factor if isinstance(step.factor, float) else step.factor.to(dtype))
    if isinstance(step, Shift):
        return Shifting(step.vector.to(dtype))
    assert isinstance(step, Norm)
    gamma, beta = step.gamma(), step.beta()
    return Normalizing(
        gamma=None if gamma is None else gamma.to(dtype),
        beta=None if beta is None else beta.to(dtype),
        centred=step.centred,
        eps=step.eps,
    )
