"""What is taken from the attention weights of one site, block of queries by block of queries.

The weights are the only quadratic thing that attention itself has. They pass through here once, a block at a time, and
only what was asked for is kept: maps, the diagonal, a few sampled pairs for the proof; the weights themselves only
where the caller wants them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from jaxtyping import Float, Int
from torch import Tensor

from normlens.decompose.grams import Grams
from normlens.decompose.heads import Projection, repeat_values, vector_lengths
from normlens.decompose.workspace import Workspace

PlaceName = Literal["attn", "res", "ln"]
PLACES: tuple[PlaceName, ...] = ("attn", "res", "ln")


@dataclass(frozen=True)
class Needs:
    """What a caller's measures need of the pairs of one site."""

    alpha: bool = False  # the weights themselves, by head
    weights: bool = False  # their mean over heads
    totals: bool = False  # the sums of their rows
    diagonal: bool = False  # what each position gives itself
    lengths: bool = False  # norms of the transformed vectors
    places: frozenset[PlaceName] = frozenset()  # where norms of parts are taken
    vectors: frozenset[PlaceName] = frozenset()  # where the vectors of context and self are looked at

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
    total_weight: Float[Tensor, "batch query"] | None  # sum over keys of |mean over heads of alpha|
    diagonal: Float[Tensor, "batch head query"] | None
    lengths: Float[Tensor, "batch head key"] | None
    norms: Mapping[PlaceName, Float[Tensor, "batch query key"]]
    samples: Int[Tensor, "pair 3"]  # batch, query, key
    sampled_alpha: Float[Tensor, "pair head"]
    own: Float[Tensor, "batch query model"] | None = None  # sum_h alpha_hii f_h(x_i), where it cost nothing
    seen_by: Projection | None = None  # whose vectors `own` is made of; None: the attention output's
    gated: Float[Tensor, "batch head query key"] | None = None  # ‖alpha f(x)‖ where a gate makes f depend on the query


class PairWork:
    """Takes the attention weights of one site as they are computed."""

    def __init__(
        self,
        values: Float[Tensor, "batch kv_head key width"],
        queries: int,
        projections: Mapping[PlaceName, Projection],
        needs: Needs,
        samples: Int[Tensor, "pair 3"],
        space: Workspace | None = None,
    ) -> None:
        batch, _, keys, _ = values.shape
        heads, _, model = projections["attn"].at_attention.shape
        self.values = values
        self.needs = needs
        self._samples = samples
        self._sampled = values.new_zeros(len(samples), heads)
        # Places that see the same projection share their Gram matrices and norms.
        self._projections = projections
        self._mapped = _distinct([projections[place] for place in PLACES if place in needs.places])
        # Where a single place is looked at, vectors are built as that place sees them, and need no further step.
        looked_at = _distinct([projections[place] for place in PLACES if place in needs.places | needs.vectors])
        self._built = looked_at[0] if len(looked_at) == 1 else projections["attn"]
        self._norms = values.new_zeros(len(self._mapped), batch, queries, keys)
        self._alpha = values.new_zeros(batch, heads, queries, keys) if needs.alpha else None
        self._weights = values.new_zeros(batch, queries, keys) if needs.weights else None
        self._totals = values.new_zeros(batch, queries) if needs.totals else None
        self._diagonal = values.new_zeros(batch, heads, queries) if needs.diagonal else None
        own = values.new_empty(batch, queries, model) if needs.diagonal and queries == keys else None
        self._grams = Grams(values, self._mapped, self._built, own, space) if self._mapped else None

    def feed(self, alpha: Float[Tensor, "batch head block key"], start: int) -> None:
        """Take the weights of the queries from `start` on; keys beyond the last column have none."""
        alpha = alpha.to(self.values.dtype)
        stop, keys = start + alpha.shape[2], alpha.shape[3]
        if self._weights is not None or self._totals is not None:
            mean = alpha.mean(1)
            if self._totals is not None:
                self._totals[:, start:stop] = mean.abs().sum(-1)
            if self._weights is not None:
                self._weights[:, start:stop, :keys] = mean
        if self._alpha is not None:
            self._alpha[:, :, start:stop, :keys] = alpha
        if self._diagonal is not None:
            last = min(stop, keys)
            own = alpha.diagonal(offset=start, dim1=-2, dim2=-1)
            self._diagonal[:, :, start:last] = own[..., : max(0, last - start)]
        if self._grams is not None:
            self._grams.reach(keys, self._diagonal, stop)
            self._grams.norms(alpha, start, self._norms)
        self._sample(alpha, start, stop, keys)

    def _sample(self, alpha: Tensor, start: int, stop: int, keys: int) -> None:
        for n, (batch, query, key) in enumerate(self._samples.tolist()):
            if start <= query < stop and key < keys:
                self._sampled[n] = alpha[batch, :, query - start, key]

    def take_diagonal(self, diagonal: Float[Tensor, "batch head query"]) -> None:
        """Take each position's weight on itself where no pair is wanted; every row of textbook attention sums to 1."""
        assert not self.needs.maps, "maps need the weights"
        if self._diagonal is not None:
            self._diagonal.copy_(diagonal)
        if self._totals is not None:
            self._totals.fill_(1)

    def result(self, mixed: Float[Tensor, "batch query head width"]) -> Pairs:
        """All that was kept; `mixed` is the sum of the weighted values, which attention computed from the same weights."""
        own = self._own()
        return Pairs(
            mixed=mixed.to(self.values.dtype),
            alpha=self._alpha,
            weights=self._weights,
            total_weight=self._totals,
            diagonal=self._diagonal,
            lengths=self._attention_lengths() if self.needs.lengths else None,
            norms={place: self._norms[self._mapped.index(self._projections[place])] for place in self.needs.places},
            samples=self._samples,
            sampled_alpha=self._sampled,
            own=own,
            seen_by=None if own is None or self._built is self._projections["attn"] else self._built,
        )

    def _attention_lengths(self) -> Float[Tensor, "batch head key"]:
        """`‖f_h(x_j)‖`, from the Gram matrices where they exist already."""
        attention = self._projections["attn"]
        if self._grams is not None and attention in self._mapped:
            return self._grams.lengths[self._mapped.index(attention)]
        return vector_lengths(self.values, attention)

    def _own(self) -> Float[Tensor, "batch query model"] | None:
        """What each position gives itself; those whose weight came after their vectors are projected anew."""
        if self._grams is None or self._grams.own is None or self._diagonal is None:
            return None
        if self._grams.owned == self._grams.own.shape[1]:
            return self._grams.own
        late = slice(self._grams.owned, None)
        weight = self._built.weight
        values = repeat_values(self.values[:, :, late], weight.shape[0])
        parts = (self._diagonal[:, :, late].unsqueeze(-1) * values).transpose(1, 2)
        self._grams.own[:, late] = parts.flatten(2) @ weight.flatten(0, 1)
        return self._grams.own


def _distinct(projections: list[Projection]) -> list[Projection]:
    return list({id(projection): projection for projection in projections}.values())
