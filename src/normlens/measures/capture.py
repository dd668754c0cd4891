"""The tensors of one analysed forward pass, recorded site by site through hooks and the attention interface."""

from __future__ import annotations

from collections import defaultdict
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from normlens.anatomy.description import Anatomy, Site, TensorRef
from normlens.anatomy.follow import AttentionProduct
from normlens.anatomy.inputs import rows_of
from normlens.anatomy.interface import AttentionCall, Rounding, intercept_attention
from normlens.anatomy.scope import PassScope
from normlens.anatomy.watch import InternalTensorReader
from normlens.anatomy.weights import FeedForwardWeights, SiteWeights, WeightCache
from normlens.decompose.attention import Scratch, attend
from normlens.decompose.pairs import PairCollector, PairResults
from normlens.errors import AnatomyError
from normlens.measures.request import Request, SitePlan
from normlens.types import ModelInputs


@dataclass
class SiteCapture:
    """One site of one pass: what is requested of it, its weights, and its tensors as far as they were recorded."""

    site: Site
    plan: SitePlan
    prepared: SiteWeights
    feed_forward: FeedForwardWeights | None
    values: Tensor | None = None
    pairs: PairResults | None = None  # of standard attention, which is computed here
    alpha: Tensor | None = None  # the weights and outputs of the family's own attention function
    heads: Tensor | None = None
    tensors: dict[TensorRef, Tensor] = field(default_factory=dict)
    dtypes: set[torch.dtype] = field(default_factory=set)  # in which the model computed them
    calls: list[tuple[Tensor, Tensor]] = field(default_factory=list)  # values and outputs of a site's several calls

    @property
    def complete(self) -> bool:
        """Return True if everything was recorded."""
        return self.values is not None and len(self.tensors) == len(self.plan.places)

    def missing(self) -> str:
        """The tensors that were not recorded, for an error."""
        places = sorted(str(place) for place in self.plan.places if place not in self.tensors)
        return "; ".join(places) or "its attention"


class SiteHandler(Protocol):
    """The receiver of a pass's sites."""

    def make_collector(self, capture: SiteCapture, values: Tensor, queries: int) -> PairCollector:
        """A collector for a site of standard attention, given its values and the number of its queries."""

    def measure_site(self, capture: SiteCapture) -> None:
        """Take a complete site, inside the pass."""


class Capture:
    """The state of one forward pass: which sites are open and what each still lacks."""

    def __init__(
        self,
        anatomy: Anatomy,
        request: Request,
        weights: WeightCache,
        scratch: Scratch,
        rounding: Rounding,
        handler: SiteHandler,
    ) -> None:
        self._anatomy, self._dtype, self._rounding = anatomy, request.dtype, rounding
        self._handler, self._scratch = handler, scratch
        self.open: dict[int, SiteCapture] = {}  # by number of the site; one that was measured is dropped
        with rounding.full_precision():  # before any hook is set: some projections are probed with unit vectors
            for n, site in enumerate(anatomy.sites):
                plan = request.plans.get(id(site))
                if plan is not None:
                    inside = plan.feed_forward
                    fed = None if inside is None else weights.feed_forward(inside, request.dtype)
                    self.open[n] = SiteCapture(site, plan, weights.prepare(site, request.dtype), fed)
        self._attentions = 0
        self._order = [n for n, site in enumerate(anatomy.sites) for _ in range(site.calls)]
        self._calls: dict[tuple[nn.Module, str], int] = defaultdict(int)
        self._at_boundary: dict[tuple[nn.Module, str, int], list[tuple[int, TensorRef]]] = defaultdict(list)
        self._inside: dict[TensorRef, list[int]] = defaultdict(list)
        for n, capture in self.open.items():
            for place in capture.plan.places:
                if place.operation is None:
                    self._at_boundary[place.module, place.side, place.occurrence].append((n, place))
                else:
                    self._inside[place].append(n)
        self._own_code = {site.attention for site in anatomy.sites if site.followed}
        self._reader: InternalTensorReader | None = None

    def watch(self, scope: PassScope, inputs: ModelInputs) -> None:
        """Hook the modules at whose boundary, or inside whose calls, a tensor is recorded."""
        intercept_attention(scope, self._attention)
        if self._inside or self._own_code:
            self._reader = InternalTensorReader(self._inside, self._own_code, rows_of(inputs))
            self._reader.watch(scope, self._record_inside, self._record_followed)
        for module, side in {(module, side) for module, side, _ in self._at_boundary}:
            if side == "input":
                scope.before(module, self._record_input)
            else:
                scope.after(module, self._record_output)

    def _paused(self) -> AbstractContextManager[None]:
        """Exclude our own computation from what is recorded inside of calls."""
        return nullcontext() if self._reader is None else self._reader.paused()

    # ---- tensors -------------------------------------------------------------------------------------------------

    def _record_input(self, module: nn.Module, args: Any, kwargs: Any) -> None:
        self._record_boundary("input", module, {"args": args, "kwargs": kwargs})

    def _record_output(self, module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
        self._record_boundary("output", module, output)

    def _record_boundary(self, side: str, module: nn.Module, structure: Any) -> None:
        occurrence = self._calls[module, side]
        self._calls[module, side] += 1
        for n, place in self._at_boundary.get((module, side, occurrence), ()):
            tensor = structure
            try:
                for key in place.key:
                    tensor = tensor[key]
            except (KeyError, IndexError, TypeError):
                tensor = None
            if not isinstance(tensor, Tensor):
                raise AnatomyError(f"no tensor was captured at the {place} in this run")
            self._record(n, place, tensor)

    def _record_inside(self, place: TensorRef, tensor: Tensor) -> None:
        for n in self._inside[place]:
            if n in self.open:
                self._record(n, place, tensor)

    def _record(self, n: int, place: TensorRef, tensor: Tensor) -> None:
        capture = self.open[n]
        capture.tensors[place] = tensor.clone() if place.changes else tensor
        if tensor.is_floating_point():  # a router's choices are not
            capture.dtypes.add(tensor.dtype)
        self._close_if_complete(n)

    def _close_if_complete(self, n: int) -> None:
        if self.open[n].complete:
            capture = self.open.pop(n)
            with self._paused(), self._rounding.full_precision():
                self._handler.measure_site(capture)

    # ---- attention -----------------------------------------------------------------------------------------------

    def _attention(self, call: AttentionCall) -> Tensor:
        """Compute one attention that came through the interface."""
        if call.module in self._own_code:  # its function is followed from inside, with what it does to its output
            return call.eager()[0]
        n = self._next_site(call.module)
        with self._paused():
            output = self._attend(n, call)
        if n in self.open:
            self._close_if_complete(n)
        return output

    def _next_site(self, module: nn.Module) -> int:
        """The number of the site whose attention runs now; they come in the order of the anatomy."""
        call, sites = self._attentions, self._anatomy.sites
        self._attentions += 1
        n = self._order[call] if call < len(self._order) else None
        if n is None or module is not sites[n].attention:
            expected = "nothing" if n is None else sites[n].path
            raise AnatomyError(
                f"attention call {call + 1} of {self._anatomy.family!r} came from {type(module).__name__} instead "
                f"of {expected}, which the trace has there"
            )
        return n

    def _attend(self, n: int, call: AttentionCall) -> Tensor:
        site, capture = self._anatomy.sites[n], self.open.get(n)
        inputs = None
        if site.standard and self._rounding.autocast is None:
            inputs = call.standard()
        if capture is None:
            return call.eager()[0] if inputs is None else attend(inputs, scratch=self._scratch)
        if inputs is None or site.inner:
            output, alpha = call.eager()
            capture.calls.append((call.value, output))
            if len(capture.calls) == site.calls:
                values, heads = (torch.cat(tensors, dim=-1) for tensors in zip(*capture.calls, strict=True))
                self._keep_weights(capture, alpha, values, heads)
            return output
        capture.dtypes.add(call.value.dtype)
        capture.values = call.value.to(self._dtype)
        with self._rounding.full_precision():
            collector = self._handler.make_collector(capture, capture.values, call.query.shape[2])
            output = collector.attend(inputs)
            capture.pairs = collector.result(output)
        return output

    def _record_followed(self, module: nn.Module, product: AttentionProduct) -> None:
        """Record one attention that ran in the family's own code."""
        n = self._next_site(module)
        if n not in self.open:
            return
        site = self.open[n].site
        shared = product.values[:, :: site.heads // site.kv_heads]  # the heads of a group have the same
        with self._paused():
            self._keep_weights(self.open[n], product.alpha, shared, product.heads)
        self._close_if_complete(n)

    def _keep_weights(self, capture: SiteCapture, alpha: Tensor, values: Tensor, heads: Tensor) -> None:
        """Keep the weights of a family's own function; factors of the heads' outputs may be recorded later."""
        capture.dtypes.add(values.dtype)
        capture.values, capture.alpha, capture.heads = (t.to(self._dtype) for t in (values, alpha, heads))
        capture.calls.clear()
