"""One analysed forward pass: each site is captured, decomposed, measured, proved and delivered, then dropped.

Nothing of a site is kept once it was delivered, so memory does not grow with the depth of the model.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from normlens.anatomy.description import Anatomy, Gate, LayerEnd, TensorRef
from normlens.anatomy.interface import Rounding, clone_inputs, run_arguments
from normlens.anatomy.kinds import Kind
from normlens.anatomy.operations import tensors_in
from normlens.anatomy.scope import PassScope
from normlens.anatomy.traced_model import TracedModel
from normlens.decompose.attention import Scratch
from normlens.decompose.block import Block, LayerEndTensors
from normlens.decompose.devices import HostCopies
from normlens.decompose.gates import added_groups, factors, gated_pairs
from normlens.decompose.grams import repeat_values
from normlens.decompose.layer_parts import FeedForwardTensors
from normlens.decompose.pairs import PairCollector, PairResults, Samples
from normlens.decompose.steps import Shift, Step, linear
from normlens.errors import AnatomyError
from normlens.inputs.positions import Positions, RealPositions, RowWords
from normlens.measures.capture import Capture, SiteCapture
from normlens.measures.proof import Subject, check_output, pick_pairs, prove, prove_weights
from normlens.measures.request import Request
from normlens.measures.table import SiteValues, measure_block, same_but_diagonal
from normlens.measures.words import measure_words
from normlens.types import ModelInputs


@dataclass(frozen=True)
class SiteResult:
    """The measures of one site for a whole batch, padding included; the masks say which positions are real.

    `values` holds the measures on the model's device, batch first: `alpha` is (batch, head, query, key), `f_norm` (batch,
    head, key), `x_norm` (batch, key), a map (batch, query, key). `mixing` and `residual` are (batch, query), on the host.
    """

    kind: Kind
    layer: int
    values: dict[str, Tensor]
    mixing: dict[str, Float[Tensor, "batch query"]]
    residual: dict[str, Float[Tensor, "batch query"]]
    query_mask: Bool[Tensor, "batch query"]
    key_mask: Bool[Tensor, "batch key"]
    proof: Float[Tensor, " batch"]
    words: tuple[SiteValues, ...] = ()  # one sequence each, by word, where that was requested
    #: Maps that equal another one times a number, except on the diagonal: only that travels to the host.
    diagonal_only: Mapping[str, tuple[str, float]] = field(default_factory=dict)

    def to_host(self) -> HostCopies:
        """Send the measures to the host, where they are not there already."""
        return HostCopies(self.values, self.diagonal_only)


#: Called with each finished site; its block is valid only during the call.
OnSite = Callable[[SiteResult, Block], None]


def run(
    traced: TracedModel,
    inputs: ModelInputs,
    request: Request,
    on_site: OnSite,
    *,
    prepared: bool = False,
    words: RowWords | None = None,
) -> float:
    """Run the model once and deliver each requested site to `on_site` as soon as it is complete.

    Once per kind of input, the model's output is also compared with that of the user's own call.

    Args:
        traced: The model.
        inputs: Its inputs.
        request: The measures and sites.
        on_site: Receives each site.
        prepared: Whether the user prepared the inputs: then nothing is added to them in the user's own call.
        words: The words of each row, where measures are merged by word.

    Returns:
        The relative difference of the two outputs for this kind of input.
    """
    anatomy = traced.anatomy_for(inputs)
    positions = Positions.of(inputs, traced.two_sided, words)
    measuring = SiteMeasuring(traced, anatomy, request, positions, on_site)
    kind = (prepared, *traced.kind_of(inputs))
    if kind in traced.output_errors:
        measuring.run_model(inputs)
        return traced.output_errors[kind]
    with outputs_around(traced.body, anatomy) as own:
        traced.call(inputs, prepared=prepared)
    with outputs_around(traced.body, anatomy) as captured:
        measuring.run_model(inputs)
    rounding = measuring.rounding.coarsest(next(traced.body.parameters()).dtype, request.dtype)
    subject = Subject(traced.family, "output", type(traced.body).__name__, rounding)
    traced.output_errors[kind] = check_output(captured, own, positions.last, subject)
    return traced.output_errors[kind]


@contextmanager
def outputs_around(model: nn.Module, anatomy: Anatomy) -> Iterator[list[list[Tensor]]]:
    """The outputs of the modules around all sites inside the block, the model itself first; each a list over its calls.

    A wrapper need not call the model as a whole: what it must call is some module with all attention in it.
    """
    modules, path = [model], ""
    for names in zip(*(site.path.split(".")[:-1] for site in anatomy.sites), strict=False):
        if len(set(names)) > 1:
            break
        path = f"{path}.{names[0]}" if path else names[0]
        modules.append(model.get_submodule(path))
    outputs: list[list[Tensor]] = [[] for _ in modules]

    def record(n: int, module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
        structure = dict(output.items()) if hasattr(output, "items") else output
        outputs[n] += [tensor for _, tensor in tensors_in(structure) if tensor.is_floating_point()][:1]

    with PassScope(model) as scope:
        for n, module in enumerate(modules):
            scope.after(module, partial(record, n))
        yield outputs


class SiteMeasuring:
    """Measures the sites of one pass, each as soon as it was captured."""

    def __init__(
        self, traced: TracedModel, anatomy: Anatomy, request: Request, positions: Positions, on_site: OnSite
    ) -> None:
        unknown = {id(site) for site in request.sites} - {id(site) for site in anatomy.sites}
        if unknown:
            raise AnatomyError(
                f"{len(unknown)} of {len(request.sites)} requested sites were read before {anatomy.family!r} "
                "changed, or on other inputs; make the request again"
            )
        self._model, self._anatomy, self._request = traced.body, anatomy, request
        self._positions, self._on_site = positions, on_site
        self._weights, self._scratch = traced.weights, Scratch()
        self.rounding = Rounding.of(traced.body)

    def run_model(self, inputs: ModelInputs) -> None:
        """Run the model under capture; every requested site must be delivered."""
        capture = Capture(self._anatomy, self._request, self._weights, self._scratch, self.rounding, self)
        with PassScope(self._model) as scope:
            capture.watch(scope, inputs)
            self._model(**run_arguments(self._model, clone_inputs(dict(inputs))))
        for site in capture.open.values():
            raise AnatomyError(
                f"{site.site} of {self._anatomy.family!r} was not captured in this run (missing: {site.missing()})"
            )

    def measure_site(self, capture: SiteCapture) -> None:
        """Decompose, measure, prove and deliver one site."""
        site, plan, request = capture.site, capture.plan, self._request
        assert capture.values is not None
        subject = self._subject(capture)
        real = self._real_positions(capture, capture.values)
        pairs, gate = capture.pairs, None
        if pairs is None:
            pairs, gate = self._collect_pairs(capture, real, subject)
        block = build_block(capture, pairs, gate, request.dtype)
        measured = measure_block(block, plan.measures, plan.mixing)
        proof_error, small = prove(block, measured, real.query_mask, real.key_mask, subject)
        words: tuple[SiteValues, ...] = ()
        if request.words is not None and self._positions.words is not None:
            by_row = []
            for row, groups in enumerate(self._positions.words[site.kind]):
                masks = (real.query_mask[row], real.key_mask[row])
                by_row.append(measure_words(block, row, masks, groups, plan.measures, plan.mixing, request.words))
            words = tuple(by_row)
        result = SiteResult(
            site.kind,
            site.layer,
            measured.values,
            small.mixing,
            small.residual,
            real.query_mask,
            real.key_mask,
            proof_error,
            words,
            same_but_diagonal(block, plan.measures),
        )
        self._on_site(result, block)

    def _subject(self, capture: SiteCapture) -> Subject:
        """The name of the site for errors, with the coarsest dtype of its tensors."""
        dtypes = {self.rounding.coarsest(self._request.dtype), *capture.dtypes}
        coarsest = max(dtypes, key=lambda dtype: torch.finfo(dtype).eps)
        site = capture.site
        return Subject(self._anatomy.family, f"{site.kind} layer {site.layer}", site.path, coarsest)

    def _real_positions(self, capture: SiteCapture, values: Tensor) -> RealPositions:
        batch, _, keys, _ = values.shape
        queries = keys if capture.alpha is None else capture.alpha.shape[2]
        if capture.pairs is not None:
            queries = capture.pairs.mixed.shape[1]
        return self._positions.at(capture.site, batch, queries, keys)

    def make_collector(
        self, capture: SiteCapture, values: Tensor, queries: int, factor: Tensor | None = None
    ) -> PairCollector:
        prepared = capture.prepared
        real = self._positions.at(capture.site, values.shape[0], queries, values.shape[2])
        return PairCollector(
            values,
            queries,
            prepared.w_o,
            prepared.steps,
            capture.plan.pairs,
            _samples(capture, real),
            factor,
            self._scratch,
        )

    def _collect_pairs(
        self, capture: SiteCapture, real: RealPositions, subject: Subject
    ) -> tuple[PairResults, Tensor | None]:
        """Collect from the weights of a family's own attention function; also the gate on its outputs, if there is one."""
        alpha, heads, values, site = capture.alpha, capture.heads, capture.values, capture.site
        assert alpha is not None and heads is not None and values is not None
        prove_weights(alpha, real.query_mask, subject)
        by_head = repeat_values(values, alpha.shape[1])
        factor = gate = None
        if site.inner:
            inner = factors(added_groups(heads, site.groups), _inner_steps(capture, self._request.dtype))
            inner = inner.repeated(max(1, len(site.groups)))
            factor, gate = inner.by_query_and_head.transpose(1, 2), inner.gate
        if factor is not None and gate is not None:
            prepared, samples = capture.prepared, _samples(capture, real)
            pairs = gated_pairs(alpha, factor, by_head, prepared.w_o, prepared.steps, gate, capture.plan.pairs, samples)
            return pairs, gate
        collector = self.make_collector(capture, values, alpha.shape[2], factor)
        collector.feed(alpha, 0)
        # The family's own function may do more than it says: the sum is rebuilt from the weights that it returned.
        weights = alpha if factor is None else alpha * factor
        return collector.result((weights @ by_head).transpose(1, 2)), None


def _samples(capture: SiteCapture, real: RealPositions) -> Samples:
    """The pairs that the proof will rebuild."""
    site = capture.site
    return pick_pairs(real.queries, real.keys, diagonal=not site.is_cross, seed=site.layer)


def _inner_steps(capture: SiteCapture, dtype: torch.dtype) -> list[Step | Tensor]:
    """The steps between attention and the output projection; a gate is the tensor that was captured."""
    steps: list[Step | Tensor] = []
    for described, step in zip(capture.site.inner, capture.prepared.inner, strict=True):
        if isinstance(described, Gate):
            gate = capture.tensors[described.place].to(dtype)
            steps.append(gate.transpose(-3, -2) if described.heads_first else gate)
        elif step is not None:
            steps.append(step)
    return steps


# ---- from a capture to a block -------------------------------------------------------------------------------------------


def build_block(capture: SiteCapture, pairs: PairResults, gate: Tensor | None, dtype: torch.dtype) -> Block:
    """The captured tensors of a site in the working dtype, as `decompose` takes them."""
    site, prepared = capture.site, capture.prepared
    assert capture.values is not None
    tensors = {}
    for place, tensor in capture.tensors.items():
        if tensor.is_floating_point():
            tensor = tensor.to(dtype)
        tensors[place] = _by_position(place, tensor, capture.values.shape[0])
    stream_weights = None
    if site.stream_weights is not None:  # the streams of a position stand side by side
        rows = tensors[site.projected].shape[:2]
        for stream in (site.residual, site.total, site.stream_weights, *site.others):
            if stream is not None:
                tensors[stream] = tensors[stream].reshape(*rows, -1)
        stream_weights = tensors[site.stream_weights]
    others = [tensors[place] for place in site.others]
    if site.residual is None:
        entering = torch.zeros_like(tensors[site.total])
    else:
        entering = tensors[site.residual]
    residual, shift = _stepped_residual(prepared.residual, entering)
    if shift is not None:  # a bias on the residual belongs to no input
        others.append(shift.expand_as(residual))
    return Block(
        pairs=pairs,
        values=capture.values,
        w_o=prepared.w_o,
        bias=prepared.bias,
        projected=tensors[site.projected],
        branch=prepared.branch,
        residual=residual,
        others=sum(others[1:], others[0]) if others else None,
        total=tensors[site.total],
        norm=prepared.norm,
        normalized=None if site.normalized is None else tensors[site.normalized],
        x=tensors[site.x],
        self_attends=not site.is_cross,
        gate=gate,
        stream_weights=stream_weights,
        output_check=prepared.output_check,
        value_check=prepared.value_check,
        end=None if capture.plan.end is None else _layer_end(capture, capture.plan.end, tensors, entering),
    )


def _stepped_residual(steps: tuple[Step, ...], residual: Tensor) -> tuple[Tensor, Tensor | None]:
    """The residual after its steps to the sum, and what their biases add to it."""
    shift: Tensor | None = None
    for step in steps:
        residual = linear((step,), residual)
        if shift is not None:
            shift = linear((step,), shift)
        if isinstance(step, Shift):
            shift = step.vector if shift is None else shift + step.vector
    return residual, shift


def _layer_end(
    capture: SiteCapture, end: LayerEnd, tensors: Mapping[TensorRef, Tensor], entering: Tensor
) -> LayerEndTensors:
    """The rest of the layer, where a measure looks so far."""
    described, weights = capture.plan.feed_forward, capture.feed_forward
    feed_forward: FeedForwardTensors | None = None
    if described is not None and weights is not None:
        feed_forward = FeedForwardTensors(
            weights.root,
            {place: tensors[place] for place in described.places},
            tensors[described.output],
            weights.branch,
            weights.stream,
            entering if described.parallel else None,
        )
    normalized = None if end.normalized is None else tensors[end.normalized]
    return LayerEndTensors(tensors[end.total], capture.prepared.end_norm, normalized, feed_forward)


def _by_position(place: TensorRef, tensor: Tensor, batch: int) -> Tensor:
    """A captured tensor as (batch, position, width)."""
    if place.sequence_first:
        return tensor.reshape(-1, batch, tensor.shape[-1]).transpose(0, 1)
    return tensor if tensor.ndim == 3 else tensor.reshape(batch, -1, tensor.shape[-1])
