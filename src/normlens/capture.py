"""One forward pass through the attention interface; each site is handed over as it ends, then let go.

Nothing is kept once it was handed over, so memory does not grow with the depth of the model.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor, nn

from normlens.anatomy.description import Anatomy, Gate, Place, Site
from normlens.anatomy.examine import run_arguments
from normlens.anatomy.follow import Product
from normlens.anatomy.interface import AttentionCall, answering, evaluating
from normlens.anatomy.textbook import textbook_inputs
from normlens.anatomy.trace import call_arguments, tensor_at
from normlens.anatomy.watch import Watcher
from normlens.decompose.attend import WHOLE_NUMBERS, attend, attend_diagonal
from normlens.decompose.block import BlockTensors
from normlens.decompose.gated import factors, gated_pairs
from normlens.decompose.heads import repeat_values
from normlens.decompose.pairs import Needs, Pairs, PairWork
from normlens.decompose.steps import Shifting, Step
from normlens.decompose.workspace import Workspace
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


class _Pending:
    """What has been seen of a site so far."""

    def __init__(self, site: Site) -> None:
        self.site = site
        self.pairs: Pairs | None = None
        self.values: Tensor | None = None
        self.attended: tuple[Tensor, Tensor] | None = None  # weights and output, where the pairs must wait for a gate
        self.gate: Tensor | None = None
        self.tensors: dict[Place, Tensor] = {}
        gates = (step.place for step in site.inner if isinstance(step, Gate))
        perhaps = (place for place in (site.residual, site.normalized) if place is not None)
        self.places = frozenset((site.projected, site.total, site.x, *site.others, *gates, *perhaps))


def capture(
    model: nn.Module,
    anatomy: Anatomy,
    inputs: Mapping[str, Any],
    handle: Callable[[Site, BlockTensors], None],
    request: Request,
    weights: WeightCache,
) -> Any:
    """Run the model once and hand each wanted site to `handle`; returns the model's output."""
    # Before any hook is set: some projections are asked what they do to unit vectors.
    prepared = {id(site): weights.prepare(site, request.dtype) for site in request.sites}
    run = _Run(anatomy, handle, request, prepared, _batch_size(inputs))
    with evaluating(model), answering(model, run.attention), ExitStack() as hooks:
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
        request: Request,
        prepared: Mapping[int, Prepared],
        batch: int,
    ) -> None:
        self._anatomy = anatomy
        self._handle = handle
        self._request = request
        self._prepared = prepared  # by the identity of the site
        self._space = Workspace()
        chosen = {id(site) for site in request.sites}
        self._pending = {i: _Pending(site) for i, site in enumerate(anatomy.sites) if id(site) in chosen}
        self._attentions = 0
        self._readers: dict[tuple[nn.Module, str, int], list[tuple[int, Place]]] = defaultdict(list)
        self._inside: dict[Place, list[int]] = defaultdict(list)
        for i, pending in self._pending.items():
            for place in pending.places:
                if place.operation is None:
                    self._readers[(place.module, place.side, place.occurrence)].append((i, place))
                else:
                    self._inside[place].append(i)
        self._calls: dict[tuple[nn.Module, str], int] = defaultdict(int)
        self._own = {site.attention for site in anatomy.sites if site.followed}
        self._watcher = Watcher(self._inside, self._own, batch)

    # ---- what passes a module's boundary -------------------------------------------------------------------------

    def watch(self, model: nn.Module, hooks: ExitStack) -> None:
        """Hook the modules at whose boundary, or inside whose calls, something is read."""
        if self._watcher.needed:
            self._watcher.watch(model, hooks, self._seen, self._followed)
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

    # ---- attention -----------------------------------------------------------------------------------------------

    def _next(self, module: nn.Module) -> int:
        """The number of the attention that runs now; they come in the order in which the anatomy lists them."""
        i = self._attentions
        self._attentions += 1
        sites = self._anatomy.sites
        if i >= len(sites) or module is not sites[i].attention:
            raise AnatomyError(
                f"every run must call attention in the order that was read: call {i + 1} of {self._anatomy.family!r} "
                f"came from {type(module).__name__} instead of {sites[i].path if i < len(sites) else 'nothing'}"
            )
        return i

    def attention(self, call: AttentionCall) -> Tensor:
        """Answer one attention that came through the interface."""
        if call.module in self._own:  # what its function does to its output is followed from inside
            return call.eager()[0]
        i = self._next(call.module)
        with self._watcher.paused():
            if i not in self._pending:
                return self._unwatched(self._anatomy.sites[i], call)
            pending = self._pending[i]
            output = self._watched(pending, call)
            self._complete(i)
            return output

    def _followed(self, module: nn.Module, product: Product) -> None:
        """One attention in the family's own code has run."""
        i = self._next(module)
        if i in self._pending:
            with self._watcher.paused():
                site = self._pending[i].site
                shared = product.values[:, :: site.heads // site.kv_heads]  # heads of a group have the same
                self._attended(self._pending[i], product.alpha, shared, product.heads)
                self._complete(i)

    def _unwatched(self, site: Site, call: AttentionCall) -> Tensor:
        inputs = textbook_inputs(call) if site.textbook else None
        return call.eager()[0] if inputs is None else attend(inputs, space=self._space)

    def _watched(self, pending: _Pending, call: AttentionCall) -> Tensor:
        site = pending.site
        inputs = textbook_inputs(call) if site.textbook and not site.inner else None
        if inputs is None:
            output, alpha = call.eager()
            self._attended(pending, alpha, call.value, output)
            return output
        pending.values = call.value.to(self._request.dtype)
        work = self._work(site, pending.values, call.query.shape[2])
        found = attend_diagonal(inputs, self._space) if not self._request.needs.maps and _long(call) else None
        if found is not None:
            output, diagonal = found
            work.take_diagonal(diagonal)
        else:
            output = attend(inputs, work.feed, self._space)
        pending.pairs = work.result(output)
        return output

    def _attended(self, pending: _Pending, alpha: Tensor, values: Tensor, output: Tensor) -> None:
        """Take the weights as a whole."""
        pending.values = values.to(self._request.dtype)
        pending.attended = alpha.to(self._request.dtype), output.to(self._request.dtype)
        if not pending.site.inner:
            self._take_pairs(pending)

    def _take_pairs(self, pending: _Pending) -> None:
        """The pairs of a site whose weights were kept; what multiplies the heads' outputs is known by now."""
        assert pending.attended is not None and pending.values is not None
        site, values = pending.site, pending.values
        (alpha, output), pending.attended = pending.attended, None
        by_head = repeat_values(values, alpha.shape[1])
        if site.inner:
            found = factors(output, self._inner(pending))
            alpha, pending.gate = alpha * found.by_query_and_head.transpose(1, 2), found.gate
        if pending.gate is not None:
            prepared = self._prepared[id(site)]
            samples = self._request.sampler(site, alpha.shape[0], alpha.shape[2], alpha.shape[3])
            pending.pairs = gated_pairs(
                alpha, by_head, prepared.projections, pending.gate, self._request.needs, samples
            )
            return
        work = self._work(site, values, alpha.shape[2])
        work.feed(alpha, 0)
        # The family's own function may do more than it says: the sum is rebuilt from the weights that it showed.
        pending.pairs = work.result((alpha @ by_head).transpose(1, 2))

    def _work(self, site: Site, values: Tensor, queries: int) -> PairWork:
        samples = self._request.sampler(site, values.shape[0], queries, values.shape[2])
        return PairWork(
            values, queries, self._prepared[id(site)].projections, self._request.needs, samples, self._space
        )

    def _inner(self, pending: _Pending) -> list[Step | Tensor]:
        steps: list[Step | Tensor] = []
        for described, step in zip(pending.site.inner, self._prepared[id(pending.site)].inner, strict=True):
            if isinstance(described, Gate):
                gate = pending.tensors[described.place].to(self._request.dtype)
                steps.append(gate.transpose(-3, -2) if described.heads_first else gate)
            elif step is not None:
                steps.append(step)
        return steps

    # ---- handing over --------------------------------------------------------------------------------------------

    def _complete(self, i: int) -> None:
        pending = self._pending[i]
        if pending.values is None or len(pending.tensors) < len(pending.places):
            return
        if pending.pairs is None:
            self._take_pairs(pending)
        del self._pending[i]
        self._handle(pending.site, self._block(pending))

    def _block(self, pending: _Pending) -> BlockTensors:
        site, prepared = pending.site, self._prepared[id(pending.site)]
        assert pending.pairs is not None and pending.values is not None
        seen = {
            place: _by_position(place, tensor.to(self._request.dtype), pending.values.shape[0])
            for place, tensor in pending.tensors.items()
        }
        others = [seen[place] for place in site.others]
        residual = torch.zeros_like(seen[site.projected]) if site.residual is None else seen[site.residual]
        shift: Tensor | None = None  # a bias on the residual belongs to no input
        for step in prepared.residual:
            residual = step.linear(residual)
            shift = None if shift is None else step.linear(shift)
            if isinstance(step, Shifting):
                shift = step.vector if shift is None else shift + step.vector
        if shift is not None:
            others.append(shift.expand_as(residual))
        return BlockTensors(
            pairs=pending.pairs,
            values=pending.values,
            projections=prepared.projections,
            bias=prepared.bias,
            projected=seen[site.projected],
            branch=prepared.branch,
            residual=residual,
            others=sum(others[1:], others[0]) if others else None,
            total=seen[site.total],
            norm=prepared.norm,
            normalized=None if site.normalized is None else seen[site.normalized],
            x=seen[site.x],
            self_attends=site.kind != "cross",
            gate=pending.gate,
            output_sketch=prepared.output_sketch,
            value_sketch=prepared.value_sketch,
        )

    def finish(self) -> None:
        """Every wanted site must have been handed over."""
        for pending in self._pending.values():
            missing = sorted(str(place) for place in pending.places if place not in pending.tensors)
            raise AnatomyError(
                f"every site must be seen in every run: {pending.site} of {self._anatomy.family!r} was not "
                f"(missing: {'; '.join(missing) or 'its attention'})"
            )


def _batch_size(inputs: Mapping[str, Any]) -> int:
    return next((int(value.shape[0]) for value in inputs.values() if isinstance(value, Tensor) and value.ndim), 1)


def _by_position(place: Place, tensor: Tensor, batch: int) -> Tensor:
    """What was read at a place, as (batch, position, width)."""
    if place.sequence_first:
        return tensor.reshape(-1, batch, tensor.shape[-1]).transpose(0, 1)
    return tensor if tensor.ndim == 3 else tensor.reshape(batch, -1, tensor.shape[-1])


def _long(call: AttentionCall) -> bool:
    """Whether the weights would not fit in one block."""
    return call.query.shape[0] * call.query.shape[1] * call.query.shape[2] * call.key.shape[2] > WHOLE_NUMBERS
