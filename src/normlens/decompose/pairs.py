"""What is taken from the attention weights of one site, block of queries by block of queries.

The weights are the only quadratic thing that attention itself has. They pass through here once, a block at a time, and
only what was asked for is kept: maps, the diagonal, a few sampled pairs for the proof; the weights themselves only
where the caller wants them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor

from normlens.decompose.heads import Gram, Projection, head_gram, summed_norms, vector_norms

PlaceName = Literal["attn", "res", "ln"]
PLACES: tuple[PlaceName, ...] = ("attn", "res", "ln")


@dataclass(frozen=True)
class Needs:
    """What a caller's measures need of the pairs of one site."""

    alpha: bool = False  # the weights themselves, by head
    weights: bool = False  # their mean over heads
    diagonal: bool = False  # what each position gives itself
    lengths: bool = False  # norms of the transformed vectors
    places: frozenset[PlaceName] = frozenset()  # where norms of parts are taken

    @property
    def maps(self) -> bool:
        """Whether anything with one number per pair is wanted."""
        return self.alpha or self.weights or bool(self.places)


@dataclass(frozen=True)
class Pairs:
    """What was kept. `norms` are those of `sum_h alpha_h f_h(x_j)` as each place's projection sees it, not yet scaled."""

    mixed: Float[Tensor, "batch query head width"]  # sum_j alpha_hij v_hj
    alpha: Float[Tensor, "batch head query key"] | None
    weights: Float[Tensor, "batch query key"] | None
    total_weight: Float[Tensor, "batch query"]  # sum over keys of |mean over heads of alpha|
    diagonal: Float[Tensor, "batch head query"] | None
    lengths: Float[Tensor, "batch head key"] | None
    norms: Mapping[PlaceName, Float[Tensor, "batch query key"]]
    samples: Int[Tensor, "pair 3"]  # batch, query, key
    sampled_alpha: Float[Tensor, "pair head"]


class PairWork:
    """Takes the attention weights of one site as they are computed."""

    def __init__(
        self,
        values: Float[Tensor, "batch kv_head key width"],
        queries: int,
        projections: Mapping[PlaceName, Projection],
        needs: Needs,
        samples: Int[Tensor, "pair 3"],
    ) -> None:
        batch, _, keys, _ = values.shape
        heads = projections["attn"].weight.shape[0]
        self.values = values
        self.needs = needs
        self._samples = samples
        self._sampled = values.new_zeros(len(samples), heads)
        # Places that see the same projection share their Gram matrices and norms.
        self._distinct = {id(projections[place]): projections[place] for place in PLACES if place in needs.places}
        if needs.lengths:
            self._distinct.setdefault(id(projections["attn"]), projections["attn"])
        self._projections = projections
        self._grams: dict[int, Gram] = {key: head_gram(values, p) for key, p in self._distinct.items()}
        self._mapped = [key for key in self._distinct if any(id(projections[place]) == key for place in needs.places)]
        self._norms = {key: values.new_zeros(batch, queries, keys) for key in self._mapped}
        self._alpha = values.new_zeros(batch, heads, queries, keys) if needs.alpha else None
        self._weights = values.new_zeros(batch, queries, keys) if needs.weights else None
        self._totals = values.new_zeros(batch, queries)
        self._diagonal = values.new_zeros(batch, heads, queries) if needs.diagonal else None

    def feed(self, alpha: Float[Tensor, "batch head block key"], start: int) -> None:
        """Take the weights of the queries from `start` on; keys beyond the last column have none."""
        alpha = alpha.to(self.values.dtype)
        stop, keys = start + alpha.shape[2], alpha.shape[3]
        mean = alpha.mean(1)
        self._totals[:, start:stop] = mean.abs().sum(-1)
        if self._weights is not None:
            self._weights[:, start:stop, :keys] = mean
        if self._alpha is not None:
            self._alpha[:, :, start:stop, :keys] = alpha
        if self._diagonal is not None:
            last = min(stop, keys)
            own = alpha.diagonal(offset=start, dim1=-2, dim2=-1)
            self._diagonal[:, :, start:last] = own[..., : max(0, last - start)]
        if self._mapped:
            self._feed_norms(alpha, start, stop, keys)
        self._sample(alpha, start, stop, keys)

    def _feed_norms(self, alpha: Tensor, start: int, stop: int, keys: int) -> None:
        outs = [alpha.new_empty(alpha.shape[0], stop - start, keys) for _ in self._mapped]
        grams = [self._grams[key] for key in self._mapped]
        projections = [self._distinct[key] for key in self._mapped]
        summed_norms(alpha, grams, self.values, projections, outs)
        for key, out in zip(self._mapped, outs, strict=True):
            self._norms[key][:, start:stop, :keys] = out

    def _sample(self, alpha: Tensor, start: int, stop: int, keys: int) -> None:
        for n, (batch, query, key) in enumerate(self._samples.tolist()):
            if start <= query < stop and key < keys:
                self._sampled[n] = alpha[batch, :, query - start, key]

    def result(self, mixed: Float[Tensor, "batch query head width"]) -> Pairs:
        """All that was kept; `mixed` is the sum of the weighted values, which attention computed from the same weights."""
        gram = self._grams.get(id(self._projections["attn"]))
        return Pairs(
            mixed=mixed.to(self.values.dtype),
            alpha=self._alpha,
            weights=self._weights,
            total_weight=self._totals,
            diagonal=self._diagonal,
            lengths=vector_norms(gram) if self.needs.lengths and gram is not None else None,
            norms={place: self._norms[id(self._projections[place])] for place in self.needs.places},
            samples=self._samples,
            sampled_alpha=self._sampled,
        )
