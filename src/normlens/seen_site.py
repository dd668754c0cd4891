"""What one pass has seen of a site, and the same as plain tensors for the mathematics."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import copy

import torch
from torch import Tensor

from normlens.anatomy.description import LayerEnd, Place, Site
from normlens.anatomy.weights import WeightCache
from normlens.decompose.block import BlockTensors
from normlens.decompose.block import LayerEnd as EndTensors
from normlens.decompose.grams import CPU_BLOCK_NUMBERS
from normlens.decompose.layer_parts import FeedForwardTensors
from normlens.decompose.pairs import PairResults
from normlens.decompose.process import COMPILED_LENGTH
from normlens.decompose.steps import Shift, linear
from normlens.request import SitePlan


class SeenSite:
    """A site on its way through one pass: what is asked of it, its weights, and what was seen of it so far.

    A short text's cost is the number of operations, not their size. So its sites wait for each other, and those of one form
    are measured at once, as a *stack*: one seen site with a row of the batch for each.
    """

    def __init__(self, number: int, site: Site, plan: SitePlan, weights: WeightCache, dtype: torch.dtype) -> None:
        self.number, self.site, self.plan = number, site, plan
        self.sites: tuple[Site, ...] = (site,)  # of a stack, all of them
        self.stack = 1  # how many such sites may be measured at once
        self.weights = weights.prepare(site, dtype)
        self.fed = None if plan.feed_forward is None else weights.feed_forward(plan.feed_forward, dtype)
        self.pieces: list[tuple[Tensor, Tensor]] = []  # values and heads' outputs of the calls so far
        self.values: Tensor | None = None
        self.queries = 0
        self.pairs: PairResults | None = None
        self.alpha: Tensor | None = None  # with the heads' output, where the pairs must wait
        self.heads: Tensor | None = None
        self.shown = False  # the weights are those that a family's own function showed
        self.gate: Tensor | None = None
        self.tensors: dict[Place, Tensor] = {}
        self.dtypes: set[torch.dtype] = set()  # in which the model computed what was seen

    @property
    def complete(self) -> bool:
        """Whether all has been seen."""
        return self.values is not None and len(self.tensors) == len(self.plan.places)

    def take_values(self, values: Tensor, queries: int, dtype: torch.dtype) -> None:
        """Take the values of the attention that runs now; how many such sites may be measured at once is decided here.

        Batches and long texts have work enough by themselves. What waits is copied: layers may share memory.
        """
        self.queries = queries
        self.dtypes.add(values.dtype)
        batch, _, keys, _ = values.shape
        longest = max(queries, keys)
        if batch == 1 and longest < COMPILED_LENGTH and None not in (self.plan.form, self.weights.form):
            heads, _, model = self.weights.weights[0].shape
            self.stack = max(1, CPU_BLOCK_NUMBERS // (heads * longest * model))
        self.values = values.to(dtype, copy=self.stack > 1)

    def keep_weights(self, alpha: Tensor, start: int) -> None:
        """Take the weights of standard attention as a whole; they stand in memory that the next site uses."""
        self.alpha = alpha.clone()

    @property
    def form(self) -> tuple[object, ...]:
        """What sites must have in common to be measured at once."""
        assert self.alpha is not None, "sites wait with their weights"
        shapes = (self.tensors[place].shape for place in self.site.places)
        return self.plan.form, self.weights.form, self.shown, frozenset(self.dtypes), self.alpha.shape, *shapes


def stack_of(sites: Sequence[SeenSite], weights: WeightCache) -> SeenSite:
    """Sites of one form as one, a row of the batch for each."""
    stack = copy(sites[0])
    if len(sites) > 1:
        stack.sites = tuple(each.site for each in sites)
        stack.weights = weights.stack([each.weights for each in sites])
        for name in ("values", "alpha", "heads"):
            setattr(stack, name, torch.cat([getattr(each, name) for each in sites]))
        stack.tensors = {
            places[0]: torch.cat([each.tensors[place] for each, place in zip(sites, places, strict=True)])
            for places in dict.fromkeys(zip(*(each.site.places for each in sites), strict=True))
        }
    return stack


def block_tensors(site_seen: SeenSite, dtype: torch.dtype) -> BlockTensors:
    """What was seen of a site, as the mathematics wants it."""
    site, weights = site_seen.site, site_seen.weights
    assert site_seen.pairs is not None and site_seen.values is not None
    batch = site_seen.values.shape[0]
    seen = {
        place: _by_position(place, tensor.to(dtype) if tensor.is_floating_point() else tensor, batch)
        for place, tensor in site_seen.tensors.items()
    }
    weights_of_streams = None
    if site.stream_weights is not None:  # the streams of a position stand side by side
        rows = seen[site.projected].shape[:2]
        streams = (
            place for place in (site.residual, site.total, site.stream_weights, *site.others) if place is not None
        )
        seen |= {place: seen[place].reshape(*rows, -1) for place in streams}
        weights_of_streams = seen[site.stream_weights]
    others = [seen[place] for place in site.others]
    residual = torch.zeros_like(seen[site.total]) if site.residual is None else seen[site.residual]
    if weights.residual:
        shift: Tensor | None = None  # a bias on the residual belongs to no input
        for step in weights.residual:
            residual = linear((step,), residual)
            shift = None if shift is None else linear((step,), shift)
            if isinstance(step, Shift):
                shift = step.vector if shift is None else shift + step.vector
        if shift is not None:
            others.append(shift.expand_as(residual))
    return BlockTensors(
        pairs=site_seen.pairs,
        values=site_seen.values,
        weights=weights.weights,
        bias=weights.bias,
        projected=seen[site.projected],
        branch=weights.branch,
        residual=residual,
        others=sum(others[1:], others[0]) if others else None,
        total=seen[site.total],
        norm=weights.norm,
        normalized=None if site.normalized is None else seen[site.normalized],
        x=seen[site.x],
        self_attends=site.kind != "cross",
        gate=site_seen.gate,
        stream_weights=weights_of_streams,
        output_check=weights.output_check,
        value_check=weights.value_check,
        end=None if site_seen.plan.end is None else _end_tensors(site_seen, site_seen.plan.end, seen, residual),
    )


def _end_tensors(site_seen: SeenSite, end: LayerEnd, seen: Mapping[Place, Tensor], residual: Tensor) -> EndTensors:
    """What follows the attention block, where a measure looks so far."""
    site, found, fed = site_seen.site, site_seen.plan.feed_forward, site_seen.fed
    inside: FeedForwardTensors | None = None
    if found is not None and fed is not None:
        entering = residual if site.residual is None else seen[site.residual]
        inside = FeedForwardTensors(
            fed.root,
            {place: seen[place] for place in found.places},
            seen[found.output],
            fed.branch,
            fed.stream,
            entering if found.parallel else None,
        )
    normalized = None if end.normalized is None else seen[end.normalized]
    return EndTensors(seen[end.total], site_seen.weights.end_norm, normalized, inside)


def _by_position(place: Place, tensor: Tensor, batch: int) -> Tensor:
    """What was read at a place, as (batch, position, width)."""
    if place.sequence_first:
        return tensor.reshape(-1, batch, tensor.shape[-1]).transpose(0, 1)
    return tensor if tensor.ndim == 3 else tensor.reshape(batch, -1, tensor.shape[-1])
