"""One forward pass through the attention interface; each site is measured and proved as it ends, handed over, let go.

Nothing is kept once it was handed over, so memory does not grow with the depth of the model.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from normlens.anatomy.description import Anatomy, Gate, Kind, Place
from normlens.anatomy.follow import AttentionProduct
from normlens.anatomy.inputs import rows_of
from normlens.anatomy.interface import AttentionCall, Rounding, fresh, intercept_attention, run_arguments
from normlens.anatomy.operations import tensors_in
from normlens.anatomy.scope import PassScope
from normlens.anatomy.watch import InsideReader
from normlens.anatomy.weights import WeightCache
from normlens.decompose.attention import Scratch, attend
from normlens.decompose.block import Block
from normlens.decompose.devices import HostCopies
from normlens.decompose.gates import added_groups, factors, gated_pairs
from normlens.decompose.grams import repeat_values
from normlens.decompose.pairs import PairCollector, Samples
from normlens.decompose.steps import Step
from normlens.errors import AnatomyError
from normlens.layer_proof import prove_end, prove_layer, prove_shares
from normlens.measures import SHARES, SiteValues, measure, same_but_diagonal
from normlens.proof import Subject, pick_pairs, prove, prove_weights
from normlens.request import Request
from normlens.seen_site import SeenSite, block_tensors, stack_of
from normlens.text.positions import Positions
from normlens.text.word_level import measure_words


@dataclass(frozen=True)
class SiteResult:
    """The numbers of one site for a whole batch, padding included; the masks say which positions are real.

    `values` holds the measures where the model is, batch first: `alpha` is (batch, head, query, key), `f_norm` (batch,
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
    words: tuple[SiteValues, ...] = ()  # one sequence each, by word, where that was asked for
    #: Maps that are another one times a number, but for their diagonal: only one of them needs to travel.
    alike: Mapping[str, tuple[str, float]] = field(default_factory=dict)

    def to_host(self) -> HostCopies:
        """Send the measures to the host, where they are not there already."""
        return HostCopies(self.values, self.alike)


#: Takes a finished site; its block is good only while the call lasts. None: it was measured as one of a stack.
Take = Callable[[SiteResult, Block | None], None]


def capture(
    model: nn.Module,
    anatomy: Anatomy,
    inputs: Mapping[str, Any],
    request: Request,
    positions: Positions,
    weights: WeightCache,
    take: Take,
) -> Any:
    """Run the model once; each wanted site is measured, proved and given to `take`. Returns the model's output."""
    strangers = {id(site) for site in request.sites} - {id(site) for site in anatomy.sites}
    if strangers:
        raise AnatomyError(
            f"sites must be those of the model as it is: {len(strangers)} of {len(request.sites)} were read before "
            f"{anatomy.family!r} changed, or on other inputs; make the request again"
        )
    # Before any hook is set: some projections are asked what they do to unit vectors.
    with Rounding.of(model).off():
        opened = {
            n: SeenSite(n, site, request.plans[id(site)], weights, request.dtype)
            for n, site in enumerate(anatomy.sites)
            if id(site) in request.plans
        }
    run = _Pass(model, anatomy, request, positions, weights, opened, take, inputs)
    with PassScope(model) as scope:
        intercept_attention(scope, run.attention)
        run.set_hooks(scope)
        output = model(**run_arguments(model, fresh(dict(inputs))))
    with torch.no_grad():
        run.measure_waiting()
    for pending in run.pending.values():
        missing = sorted(str(place) for place in pending.plan.places if place not in pending.tensors)
        raise AnatomyError(
            f"every site must be seen in every run: {pending.site} of {anatomy.family!r} was not "
            f"(missing: {'; '.join(missing) or 'its attention'})"
        )
    return output


@contextmanager
def outputs_around(model: nn.Module, anatomy: Anatomy) -> Iterator[list[list[Tensor]]]:
    """What the modules around all sites give inside the block, the model itself first; each a list over its calls.

    A wrapper need not call the model as a whole: what it must call is some module with all attention in it.
    """
    modules, path = [model], ""
    for names in zip(*(site.path.split(".")[:-1] for site in anatomy.sites), strict=False):
        if len(set(names)) > 1:
            break
        path = f"{path}.{names[0]}" if path else names[0]
        modules.append(model.get_submodule(path))
    given: list[list[Tensor]] = [[] for _ in modules]

    def note(n: int, module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
        structure = dict(output.items()) if hasattr(output, "items") else output
        given[n] += [tensor for _, tensor in tensors_in(structure) if tensor.is_floating_point()][:1]

    with PassScope(model) as scope:
        for n, module in enumerate(modules):
            scope.after(module, partial(note, n))
        yield given


class _Pass:
    """The state of one forward pass: which sites are open and what each still waits for."""

    def __init__(
        self,
        model: nn.Module,
        anatomy: Anatomy,
        request: Request,
        positions: Positions,
        weights: WeightCache,
        opened: dict[int, SeenSite],
        take: Take,
        inputs: Mapping[str, Any],
    ) -> None:
        self._anatomy, self._request, self._positions = anatomy, request, positions
        self._weights, self._take = weights, take
        rounding = Rounding.of(model)
        self._rounding = rounding.coarsest(request.dtype)
        self._scratch = Scratch()
        self._autocast = rounding.autocast is not None
        self._in_full = rounding.off
        self.pending = opened  # by number of the site; one that was handed over is not kept
        self._waiting: list[SeenSite] = []  # all seen, to be measured as stacks
        self._attentions = 0
        self._order = [n for n, site in enumerate(anatomy.sites) for _ in range(site.calls)]
        self._calls: dict[tuple[nn.Module, str], int] = defaultdict(int)
        self._readers: dict[tuple[nn.Module, str, int], list[tuple[int, Place]]] = defaultdict(list)
        inside: dict[Place, list[int]] = defaultdict(list)
        for n, pending in self.pending.items():
            for place in pending.plan.places:
                if place.operation is None:
                    self._readers[place.module, place.side, place.occurrence].append((n, place))
                else:
                    inside[place].append(n)
        self._inside = inside
        self._own_code = {site.attention for site in anatomy.sites if site.followed}
        needed = bool(inside) or bool(self._own_code)
        self._reader = InsideReader(inside, self._own_code, rows_of(inputs)) if needed else None

    # ---- what the hooks see --------------------------------------------------------------------------------------

    def set_hooks(self, scope: PassScope) -> None:
        """Hook the modules at whose boundary, or inside whose calls, something is read."""
        if self._reader is not None:
            self._reader.watch(scope, self._seen, self._followed)
        for module, side in {(module, side) for module, side, _ in self._readers}:
            if side == "input":
                scope.before(module, self._read_input)
            else:
                scope.after(module, self._read_output)

    def _read_input(self, module: nn.Module, args: Any, kwargs: Any) -> None:
        self._read("input", module, {"args": args, "kwargs": kwargs})

    def _read_output(self, module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
        self._read("output", module, output)

    def _read(self, side: str, module: nn.Module, structure: Any) -> None:
        """Read what is wanted of one call of a module."""
        occurrence = self._calls[module, side]
        self._calls[module, side] += 1
        for n, place in self._readers.get((module, side, occurrence), ()):
            tensor = structure
            try:
                for key in place.key:
                    tensor = tensor[key]
            except (KeyError, IndexError, TypeError):
                tensor = None
            if not isinstance(tensor, Tensor):
                raise AnatomyError(f"a tensor is read at the {place}: nothing stood there in this run")
            self._note(n, place, tensor)

    def _seen(self, place: Place, tensor: Tensor) -> None:
        for n in self._inside[place]:
            if n in self.pending:
                self._note(n, place, tensor)

    def _note(self, n: int, place: Place, tensor: Tensor) -> None:
        self.pending[n].tensors[place] = tensor.clone() if place.changes else tensor
        if tensor.is_floating_point():  # a router's choices are none
            self.pending[n].dtypes.add(tensor.dtype)
        if self.pending[n].complete:
            self._finish(n)

    # ---- attention -----------------------------------------------------------------------------------------------

    def attention(self, call: AttentionCall) -> Tensor:
        """Answer one attention that came through the interface."""
        if call.module in self._own_code:  # what its function does to its output is followed from inside
            return call.eager()[0]
        with nullcontext() if self._reader is None else self._reader.paused():
            return self._answer(self._next(call.module), call)

    def _next(self, module: nn.Module) -> int:
        """The number of the attention that runs now; they come in the order in which the anatomy lists them."""
        call, sites = self._attentions, self._anatomy.sites
        self._attentions += 1
        n = self._order[call] if call < len(self._order) else None
        if n is None or module is not sites[n].attention:
            raise AnatomyError(
                f"every run must call attention in the order that was read: call {call + 1} of {self._anatomy.family!r} "
                f"came from {type(module).__name__} instead of {'nothing' if n is None else sites[n].path}"
            )
        return n

    def _answer(self, n: int, call: AttentionCall) -> Tensor:
        site, pending = self._anatomy.sites[n], self.pending.get(n)
        inputs = call.standard() if site.standard and not self._autocast else None
        if pending is None:
            return call.eager()[0] if inputs is None else attend(inputs, scratch=self._scratch)
        if inputs is None or site.inner:
            output, alpha = call.eager()
            pending.pieces.append((call.value, output))
            if len(pending.pieces) == site.calls:
                values, heads = (torch.cat(pieces, dim=-1) for pieces in zip(*pending.pieces, strict=True))
                pending.pieces.clear()
                with self._in_full():
                    self._keep(pending, alpha, values, heads)
        else:
            pending.take_values(call.value, call.query.shape[2], self._request.dtype)
            with self._in_full():
                if pending.stack > 1:
                    output = attend(inputs, pending.keep_weights, self._scratch)
                    pending.heads = output.clone()
                else:
                    collector = self._collector(pending)
                    output = collector.attend(inputs)
                    pending.pairs = collector.result(output)
        if pending.complete:
            self._finish(n)
        return output

    def _followed(self, module: nn.Module, product: AttentionProduct) -> None:
        """One attention in the family's own code has run."""
        n = self._next(module)
        if n in self.pending and self._reader is not None:
            with self._reader.paused(), self._in_full():
                pending = self.pending[n]
                shared = product.values[:, :: pending.site.heads // pending.site.kv_heads]  # a group has the same
                self._keep(pending, product.alpha, shared, product.heads)
                if pending.complete:
                    self._finish(n)

    def _keep(self, pending: SeenSite, alpha: Tensor, values: Tensor, output: Tensor) -> None:
        """Take the weights that a family's own function shows, as a whole."""
        dtype = self._request.dtype
        pending.take_values(values, alpha.shape[2], dtype)
        pending.alpha, pending.heads = (t.to(dtype, copy=pending.stack > 1) for t in (alpha, output))
        pending.shown = True

    def _take_pairs(self, pending: SeenSite, query_mask: Tensor, subjects: Sequence[Subject]) -> None:
        """The pairs of a site whose weights were kept; what multiplies the heads' outputs is known by now."""
        alpha, heads, values = pending.alpha, pending.heads, pending.values
        assert alpha is not None and heads is not None and values is not None
        pending.alpha = pending.heads = None
        if not pending.shown:
            collector = self._collector(pending)
            collector.feed(alpha, 0)
            pending.pairs = collector.result(heads)
            return
        prove_weights(alpha, query_mask, subjects)
        by_head, factor = repeat_values(values, alpha.shape[1]), None
        if pending.site.inner:
            found = factors(added_groups(heads, pending.site.groups), self._inner_steps(pending))
            found = found.repeated(max(1, len(pending.site.groups)))
            factor, pending.gate = found.by_query_and_head.transpose(1, 2), found.gate
        if factor is not None and pending.gate is not None:
            samples, weights = self._samples(pending), pending.weights
            pending.pairs = gated_pairs(
                alpha, factor, by_head, weights.weights[0], weights.steps, pending.gate, pending.plan.pairs, samples
            )
            return
        collector = self._collector(pending, factor)
        collector.feed(alpha, 0)
        # The family's own function may do more than it says: the sum is rebuilt from the weights that it showed.
        pending.pairs = collector.result(((alpha if factor is None else alpha * factor) @ by_head).transpose(1, 2))

    def _inner_steps(self, pending: SeenSite) -> list[Step | Tensor]:
        steps: list[Step | Tensor] = []
        for described, step in zip(pending.site.inner, pending.weights.inner, strict=True):
            if isinstance(described, Gate):
                gate = pending.tensors[described.place].to(self._request.dtype)
                steps.append(gate.transpose(-3, -2) if described.heads_first else gate)
            elif step is not None:
                steps.append(step)
        return steps

    def _collector(self, pending: SeenSite, factor: Tensor | None = None) -> PairCollector:
        assert pending.values is not None
        return PairCollector(
            pending.values,
            pending.queries,
            pending.weights.weights,
            pending.weights.steps,
            pending.plan.pairs,
            self._samples(pending),
            factor,
            self._scratch,
        )

    def _samples(self, pending: SeenSite) -> Samples:
        """The pairs that the proof will rebuild, of each site."""
        assert pending.values is not None
        sites, (batch, _, keys, _) = pending.sites, pending.values.shape
        real = self._positions.at(pending.site, batch // len(sites), pending.queries, keys)
        picked = [pick_pairs(real.queries, real.keys, diagonal=s.kind != "cross", seed=s.layer) for s in sites]
        return tuple((first + row, query, key) for first, pairs in enumerate(picked) for row, query, key in pairs)

    # ---- a finished site -----------------------------------------------------------------------------------------

    def _finish(self, n: int) -> None:
        """Measure a site, at once or together with others that wait for it."""
        seen = self.pending.pop(n)
        self._waiting.append(seen)
        if len(self._waiting) >= seen.stack:
            # A site may end inside of a call that is watched: what is computed here is not the model's.
            with nullcontext() if self._reader is None else self._reader.paused():
                self.measure_waiting()

    def measure_waiting(self) -> None:
        """Measure the sites that wait, prove them, hand them over in their order and forget them."""
        waiting, self._waiting = self._waiting, []
        stacks: dict[object, list[SeenSite]] = defaultdict(list)
        for seen in waiting:
            stacks[seen.form if seen.stack > 1 else seen.number].append(seen)
        found: list[tuple[int, SiteResult, Block | None]] = []
        with self._in_full():
            for sites in stacks.values():
                block, results = self._measure(stack_of(sites, self._weights))
                mine = block if len(sites) == 1 else None
                found += [(seen.number, result, mine) for seen, result in zip(sites, results, strict=True)]
            for _, result, its_block in sorted(found, key=lambda each: each[0]):
                self._take(result, its_block)

    def _measure(self, seen: SeenSite) -> tuple[Block, list[SiteResult]]:
        """Measure and prove a site, or all sites of a stack: their block, and the result of each."""
        request, sites, family = self._request, seen.sites, self._anatomy.family
        assert seen.values is not None
        # A router's choices are whole numbers.
        computed = {self._rounding, *(dtype for dtype in seen.dtypes if dtype.is_floating_point)}
        rounding = max(computed, key=lambda dtype: torch.finfo(dtype).eps)
        subjects = [Subject(family, f"{site.kind} layer {site.layer}", site.path, rounding) for site in sites]
        rows = len(seen.values) // len(sites)
        real = self._positions.at(seen.site, rows, seen.queries, seen.values.shape[2])
        query_mask, key_mask = (mask.repeat(len(sites), 1) for mask in (real.query_mask, real.key_mask))
        if seen.pairs is None:
            self._take_pairs(seen, query_mask, subjects)
        tensors = block_tensors(seen, request.dtype)
        block = Block(tensors)
        measures, mixing = seen.plan.measures, seen.plan.mixing
        found = measure(block, measures, mixing)
        small = [*found.mixing.values(), *found.residual.values()]
        error, small = prove(block, found.values, query_mask, key_mask, subjects, small)
        ratios = dict(zip(found.mixing, small, strict=False))
        residual = dict(zip(found.residual, small[len(ratios) :], strict=True))
        if tensors.end is not None:
            error = torch.maximum(error, prove_end(block, query_mask, subjects[0]))
            prove_layer(block, found.values, subjects[0])
        if any(name in SHARES for name in measures):
            prove_shares(block, found.values, subjects[0])
        words: tuple[SiteValues, ...] = ()
        if request.words is not None and self._positions.words is not None:
            words = tuple(
                measure_words(
                    block,
                    row,
                    (query_mask[row], key_mask[row]),
                    groups,
                    measures,
                    mixing,
                    request.words,
                )
                for row, groups in enumerate(self._positions.words[seen.site.kind])
            )
        alike = same_but_diagonal(block, measures)
        results = []
        for n, site in enumerate(sites):
            mine = slice(n * rows, (n + 1) * rows)
            values, mixed, beside = (
                {name: tensor[mine] for name, tensor in some.items()} for some in (found.values, ratios, residual)
            )
            masks = real.query_mask, real.key_mask
            results.append(SiteResult(site.kind, site.layer, values, mixed, beside, *masks, error[mine], words, alike))
        return block, results
