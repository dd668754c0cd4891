"""What is taken from the attention weights of one site, block of queries by block of queries.

The weights are the only quadratic thing that attention itself has. They pass through here once, a block at a time, and
only what was asked for is kept: maps, what each position gives itself, a few sampled pairs for the proof; the weights
themselves only where the caller wants them.

Where a normalization stands in front of the output projection, its denominator multiplies each query's weights: a
`factor` by head and query. `alpha` stays what the softmax gave; everything that is made of vectors has the factor.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from normlens.decompose import kernel_choice, process
from normlens.decompose.attention import AttentionInputs, Scratch, attend
from normlens.decompose.devices import picked
from normlens.decompose.fused import FusedAttention, attend_fused
from normlens.decompose.grams import Grams, f_norms, repeat_values
from normlens.decompose.stages import ALL_STAGES, PairRequest, Stage
from normlens.decompose.steps import Step

#: Pairs that the proof rebuilds: (sequence, query, key).
Samples = tuple[tuple[int, int, int], ...]


@dataclass(frozen=True)
class PairResults:
    """What was kept. `norms` are those of `sum_h a_h f_h(x_j)` after each stage's linear steps, not yet scaled."""

    mixed: Float[Tensor, "batch query head width"]  # sum_j a_hij v_hj
    alpha: Float[Tensor, "batch head query key"] | None
    weights: Float[Tensor, "batch query key"] | None  # mean over heads of alpha
    total_weight: Float[Tensor, "batch query"] | None  # sum over keys of |mean over heads of alpha|
    weight_on_self: Float[Tensor, "batch query"] | None  # mean over heads of alpha_ii
    own: Float[Tensor, "batch query model"] | None  # sum_h a_hii f_h(x_i)
    f_norm: Float[Tensor, "batch head key"] | None
    norms: Mapping[Stage, Float[Tensor, "batch query key"]]
    samples: Samples
    sampled_weights: Float[Tensor, "pair head"]  # a_h of the sampled pairs
    factor: Float[Tensor, "batch head query 1"] | None = None  # a = alpha * factor; None: a = alpha
    gated_af_norm: Float[Tensor, "batch head query key"] | None = None  # where a gate makes f depend on the query
    compiled: bool = False  # whether this site goes through the compiled loops


class PairCollector:
    """Takes the attention weights of one site as they are computed."""

    def __init__(
        self,
        values: Float[Tensor, "batch kv_head key width"],
        queries: int,
        weights: Sequence[Float[Tensor, "head width model"]],
        steps: Mapping[Stage, tuple[Step, ...]],
        request: PairRequest,
        samples: Samples,
        factor: Float[Tensor, "batch head query 1"] | None = None,
        scratch: Scratch | None = None,
    ) -> None:
        batch, _, keys, _ = values.shape
        heads = weights[0].shape[0]
        self._values, self._weights, self._request, self._factor = values, weights, request, factor
        longest = max(queries, keys)
        self._compiled = longest >= process.COMPILED_LENGTH and process.fits_compiled(values)
        self._samples = samples
        self._scratch = Scratch() if scratch is None else scratch
        self._sampled: list[tuple[list[int], Tensor]] = []  # the samples that a block met, and their a_h
        self._alpha = values.new_zeros(batch, heads, queries, keys) if request.alpha else None
        self._mean = values.new_zeros(batch, queries, keys) if request.weights else None
        self._totals = values.new_empty(batch, queries) if request.totals else None
        self._diagonal = values.new_zeros(batch, heads, queries) if request.own else None  # a_hii
        self._on_self = values.new_zeros(batch, queries) if request.own else None
        # Stages with the same steps share their Gram matrices and norms.
        self._stages = [stage for stage in ALL_STAGES if stage in request.stages]
        self._distinct = list(dict.fromkeys(steps[stage] for stage in self._stages))
        self._steps = steps
        self._norms = values.new_zeros(len(self._distinct), batch, queries, keys)
        self._grams = (
            Grams(values, weights, self._distinct, self._diagonal, compiled=self._compiled, scratch=self._scratch)
            if self._distinct
            else None
        )

    def attend(self, inputs: AttentionInputs) -> Float[Tensor, "batch query head width"]:
        """Standard attention; what was asked for is taken from its weights, of which no more exist than it needs."""
        numbers = inputs.query.shape[:3].numel() * inputs.key.shape[2]
        if self._request.maps:
            # A kernel makes the weights of a tile again; where they are asked for themselves, they must exist.
            made_again = self._grams is not None and not self._request.alpha and self._factor is None
            made_again = made_again and not self._compiled and self._values.dtype is torch.float32
            single = made_again and kernel_choice.takes_kernel(inputs, len(self._distinct))
        else:
            single = self._scratch.prefers_fused(numbers, inputs.query.device)
        fused = attend_fused(inputs, self._scratch) if single else None
        if fused is None:
            output = attend(inputs, self._take, self._scratch)
            if self._grams is not None and self._grams.digits_lost():  # rare, and worth computing the weights again
                attend(inputs, self._mend, self._scratch)
            return output
        self._take_fused(fused)
        return fused.output

    def _take_fused(self, fused: FusedAttention) -> None:
        """Take single weights of a fused attention; every row of standard attention sums to 1."""
        if self._diagonal is not None and self._on_self is not None:
            self._diagonal.copy_(fused.diagonal())
            torch.mean(self._diagonal, 1, out=self._on_self)
        if self._totals is not None:
            self._totals.fill_(1)
        if self._grams is not None:
            kernel = importlib.import_module("normlens.decompose.quadratic_kernel").pair_norms
            self._grams.reach(fused.key.shape[2], fused.query.shape[2])
            self._grams.fused_norms(fused, kernel, self._norms, self._mean)
            # The proof is given weights of an ordinary softmax.
            rows = (fused.row(batch, query)[:, key] for batch, query, key in self._samples)
            found = torch.stack([row.to(self._values.dtype) for row in rows])
            self._sampled.append(([*range(len(self._samples))], found))

    def feed(self, alpha: Float[Tensor, "batch head block key"], start: int) -> None:
        """Take the weights of the queries from `start` on; keys beyond the last column have none."""
        self._take(alpha, start)
        if self._grams is not None and self._grams.digits_lost():
            self._mend(alpha, start)

    def _mend(self, alpha: Float[Tensor, "batch head block key"], start: int) -> None:
        assert self._grams is not None, "only norms lose digits"
        self._grams.mend(self._weighted(alpha.to(self._values.dtype), start), start, self._norms)

    def _weighted(self, alpha: Float[Tensor, "batch head block key"], start: int) -> Tensor:
        """The weights with their factors."""
        return alpha if self._factor is None else alpha * self._factor[:, :, start : start + alpha.shape[2]]

    def _take(self, alpha: Float[Tensor, "batch head block key"], start: int) -> None:
        alpha = alpha.to(self._values.dtype)
        stop, keys = start + alpha.shape[2], alpha.shape[3]
        weights = self._weighted(alpha, start)
        if self._mean is not None or self._totals is not None:
            mean = alpha.mean(1)
            if self._totals is not None:
                torch.sum(mean.abs(), -1, out=self._totals[:, start:stop])
            if self._mean is not None:
                self._mean[:, start:stop, :keys] = mean
        if self._alpha is not None:
            self._alpha[:, :, start:stop, :keys] = alpha
        if self._diagonal is not None and self._on_self is not None:
            last = min(stop, keys)
            own = weights.diagonal(offset=start, dim1=-2, dim2=-1)[..., : max(0, last - start)]
            self._diagonal[:, :, start:last] = own
            raw = own if weights is alpha else alpha.diagonal(offset=start, dim1=-2, dim2=-1)[..., : own.shape[-1]]
            torch.mean(raw, 1, out=self._on_self[:, start:last])
        if self._grams is not None:
            self._grams.reach(keys, stop)
            self._grams.norms(weights, start, self._norms)
        met = [n for n, (_, query, key) in enumerate(self._samples) if start <= query < stop and key < keys]
        if met:
            chosen = [(b, q - start, k) for b, q, k in (self._samples[n] for n in met)]
            self._sampled.append((met, picked([weights.movedim(1, -1)], *zip(*chosen, strict=True))[0]))

    def result(self, mixed: Float[Tensor, "batch query head width"]) -> PairResults:
        """All that was kept; `mixed` is the sum of the weighted values, which attention computed from the same weights."""
        return PairResults(
            mixed=mixed.to(self._values.dtype),
            alpha=self._alpha,
            weights=self._mean,
            total_weight=self._totals,
            weight_on_self=self._on_self,
            own=self._own(),
            f_norm=self._f_norm() if self._request.f_norm else None,
            norms={stage: self._norms[self._distinct.index(self._steps[stage])] for stage in self._stages},
            samples=self._samples,
            sampled_weights=self._sampled_weights(),
            factor=self._factor,
            compiled=self._compiled,
        )

    def _f_norm(self) -> Float[Tensor, "batch head key"]:
        """`‖f_h(x_j)‖`, from the Gram matrices where they exist already, for the keys that nobody sees too."""
        if self._grams is None or () not in self._distinct:
            return f_norms(self._values, self._weights)
        self._grams.reach(self._values.shape[2], 0)
        return self._grams.lengths(self._distinct.index(()))

    def _sampled_weights(self) -> Float[Tensor, "pair head"]:
        """In the order of the samples; a query gives nothing to a key that no block showed it."""
        if len(self._sampled) == 1 and len(self._sampled[0][0]) == len(self._samples):
            return self._sampled[0][1]
        found = self._values.new_zeros(len(self._samples), self._weights[0].shape[0])
        for met, rows in self._sampled:
            for n, row in zip(met, rows, strict=True):
                found[n] = row
        return found

    def _own(self) -> Float[Tensor, "batch query model"] | None:
        """What each position gives itself; those whose vectors were not at hand are projected anew."""
        if self._diagonal is None:
            return None
        late = 0 if self._grams is None else self._grams.late
        known = None if self._grams is None else self._grams.own
        if known is not None and late == known.shape[1]:
            return known
        values = repeat_values(self._values[:, :, late:], self._weights[0].shape[0])
        parts = (self._diagonal[:, :, late:].unsqueeze(-1) * values).transpose(1, 2).flatten(2)
        rows = zip(parts.chunk(len(self._weights)), self._weights, strict=True)
        projected = torch.cat([row @ weight.flatten(0, 1) for row, weight in rows])
        if known is None:
            return projected
        known[:, late:] = projected
        return known
