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
from jaxtyping import Int
from torch import Tensor, nn

from normlens.anatomy.description import Anatomy, Place, Site
from normlens.anatomy.examine import run_arguments
from normlens.anatomy.interface import AttentionCall, answering, evaluating
from normlens.anatomy.textbook import textbook_inputs
from normlens.anatomy.trace import call_arguments, tensor_at
from normlens.decompose.attend import attend
from normlens.decompose.block import BlockTensors
from normlens.decompose.pairs import Needs, Pairs, PairWork
from normlens.errors import AnatomyError
from normlens.prepared import Prepared, WeightCache

#: Chooses the pairs of one site that the proof will rebuild, from the numbers of queries and keys.
Sampler = Callable[[Site, int, int, int], Int[Tensor, "pair 3"]]


@dataclass(frozen=True)
class Request:
    """What is wanted of a run."""

    sites: Collection[Site]
    needs: Needs
    dtype: torch.dtype
    sampler: Sampler


@dataclass
class _Pending:
    """What has been seen of a site so far."""

    site: Site
    pairs: Pairs | None = None
    values: Tensor | None = None
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
    request: Request,
    weights: WeightCache,
) -> Any:
    """Run the model once and hand each wanted site to `handle`; returns the model's output."""
    run = _Run(anatomy, handle, request, weights)
    with evaluating(model), answering(model, run.attention), ExitStack() as hooks:
        run.watch(hooks)
        output = model(**run_arguments(model, inputs))
    run.finish()
    return output


class _Run:
    """The state of one forward pass: which sites are open and what each still waits for."""

    def __init__(
        self, anatomy: Anatomy, handle: Callable[[Site, BlockTensors], None], request: Request, weights: WeightCache
    ) -> None:
        self._anatomy = anatomy
        self._handle = handle
        self._request = request
        self._weights = weights
        chosen = {id(site) for site in request.sites}
        self._pending = {i: _Pending(site) for i, site in enumerate(anatomy.sites) if id(site) in chosen}
        self._attentions = 0
        self._readers: dict[tuple[nn.Module, str, int], list[tuple[int, Place]]] = defaultdict(list)
        for i, pending in self._pending.items():
            for place in set(pending.places()):
                self._readers[(place.module, place.side, place.occurrence)].append((i, place))
        self._calls: dict[tuple[nn.Module, str], int] = defaultdict(int)

    # ---- what passes a module's boundary -------------------------------------------------------------------------

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

    # ---- attention -----------------------------------------------------------------------------------------------

    def attention(self, call: AttentionCall) -> Tensor:
        """Answer one attention; they come in the order in which the anatomy lists them."""
        i = self._attentions
        self._attentions += 1
        sites = self._anatomy.sites
        if i >= len(sites) or call.module is not sites[i].attention:
            raise AnatomyError(
                f"every run must call attention in the order that was read: call {i + 1} of {self._anatomy.family!r} "
                f"came from {type(call.module).__name__} instead of {sites[i].path if i < len(sites) else 'nothing'}"
            )
        if i not in self._pending:
            return self._unwatched(sites[i], call)
        pending = self._pending[i]
        output, pending.values, pending.pairs = self._watched(sites[i], call)
        self._complete(i)
        return output

    def _unwatched(self, site: Site, call: AttentionCall) -> Tensor:
        inputs = textbook_inputs(call) if site.textbook else None
        return call.eager()[0] if inputs is None else attend(inputs)

    def _watched(self, site: Site, call: AttentionCall) -> tuple[Tensor, Tensor, Pairs]:
        values = call.value.to(self._request.dtype)
        batch, _, queries, _ = call.query.shape
        samples = self._request.sampler(site, batch, queries, call.key.shape[2])
        prepared = self._prepared(site)
        work = PairWork(values, queries, prepared.projections, self._request.needs, samples)
        inputs = textbook_inputs(call) if site.textbook else None
        if inputs is not None:
            output = attend(inputs, work.feed)
            return output, values, work.result(output)
        output, alpha = call.eager()
        work.feed(alpha, 0)
        # The family's own function may do more than it says: the sum is rebuilt from the weights that it showed.
        group = alpha.shape[1] // values.shape[1]
        mixed = alpha.to(values.dtype) @ values.repeat_interleave(group, dim=1)
        return output, values, work.result(mixed.transpose(1, 2))

    def _prepared(self, site: Site) -> Prepared:
        return self._weights.prepare(site, self._request.dtype)

    # ---- handing over --------------------------------------------------------------------------------------------

    def _complete(self, i: int) -> None:
        pending = self._pending[i]
        if pending.pairs is None or any(place not in pending.tensors for place in pending.places()):
            return
        del self._pending[i]
        self._handle(pending.site, self._block(pending))

    def _block(self, pending: _Pending) -> BlockTensors:
        site, prepared = pending.site, self._prepared(pending.site)
        assert pending.pairs is not None and pending.values is not None
        seen = {place: tensor.to(self._request.dtype) for place, tensor in pending.tensors.items()}
        residual = seen[site.residual]
        others = [seen[place] for place in site.others]
        return BlockTensors(
            pairs=pending.pairs,
            values=pending.values,
            projections=prepared.projections,
            bias=prepared.bias,
            projected=seen[site.projected],
            branch=prepared.branch,
            residual=residual if site.residual_scale == 1.0 else residual * site.residual_scale,
            others=sum(others[1:], others[0]) if others else None,
            total=seen[site.total],
            norm=prepared.norm,
            normalized=None if site.normalized is None else seen[site.normalized],
            x=seen[site.x],
            self_attends=site.kind != "cross",
        )

    def finish(self) -> None:
        """Every wanted site must have been handed over."""
        for pending in self._pending.values():
            missing = [str(place) for place in pending.places() if place not in pending.tensors]
            raise AnatomyError(
                f"every site must be seen in every run: {pending.site} of {self._anatomy.family!r} was not "
                f"(missing: {'; '.join(missing) or 'its attention'})"
            )
