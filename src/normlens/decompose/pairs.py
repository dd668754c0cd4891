"""Quantities of (query, key) pairs, collected from the attention weights of one site a block of queries at a time.

The weights are the only quadratic tensor of attention itself. They pass through here once, and only what was requested is
kept: maps, self parts, a few sampled pairs for the proof; the weights themselves only where a measure needs them.

Where a normalization stands in front of the output projection, its denominator multiplies each query's weights: a
`factor` by head and query. `alpha` stays the result of the softmax; everything made of vectors has the factor.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from normlens.decompose import process
from normlens.decompose.attention import AttentionInputs, Scratch, attend
from normlens.decompose.devices import gather_rows
from normlens.decompose.fused import FusedAttention, attend_fused
from normlens.decompose.grams import Grams, f_norms, repeat_values
from normlens.decompose.stages import ALL_STAGES, PairRequest, Stage
from normlens.decompose.steps import Step

#: Pairs that the proof rebuilds: (sequence, query, key).
Samples = tuple[tuple[int, int, int], ...]


@dataclass(frozen=True)
class PairResults:
    """The requested quantities. `norms` are those of `sum_h a_h f_h(x_j)` after each stage's linear steps, unscaled."""

    mixed: Float[Tensor, "batch query head width"]  # sum_j a_hij v_hj
    alpha: Float[Tensor, "batch head query key"] | None
    mean_alpha: Float[Tensor, "batch query key"] | None
    row_sums: Float[Tensor, "batch query"] | None  # sum over keys of |mean_alpha|
    self_alpha: Float[Tensor, "batch query"] | None  # mean over heads of alpha_ii
    own: Float[Tensor, "batch query model"] | None  # sum_h a_hii f_h(x_i)
    f_norm: Float[Tensor, "batch head key"] | None
    norms: Mapping[Stage, Float[Tensor, "batch query key"]]
    samples: Samples
    sampled_weights: Float[Tensor, "pair head"]  # a_h of the sampled pairs
    factor: Float[Tensor, "batch head query 1"] | None = None  # a = alpha * factor; None: a = alpha
    gated_af_norm: Float[Tensor, "batch head query key"] | None = None  # where a gate makes f depend on the query
    compiled: bool = False  # whether this site goes through the compiled loops


class PairCollector:
    """Collects the quantities of one site while its attention weights are computed."""

    def __init__(
        self,
        values: Float[Tensor, "batch kv_head key width"],
        queries: int,
        w_o: Float[Tensor, "head width model"],
        steps: Mapping[Stage, tuple[Step, ...]],
        request: PairRequest,
        samples: Samples,
        factor: Float[Tensor, "batch head query 1"] | None = None,
        scratch: Scratch | None = None,
    ) -> None:
        batch, _, keys, _ = values.shape
        heads = w_o.shape[0]
        self._values, self._w_o, self._request, self._factor = values, w_o, request, factor
        self._compiled = max(queries, keys) >= process.COMPILED_LENGTH and process.fits_compiled(values)
        self._samples = samples
        self._scratch = Scratch() if scratch is None else scratch
        self._sampled: list[tuple[list[int], Tensor]] = []  # samples that a block contains, and their a_h
        self._alpha = values.new_zeros(batch, heads, queries, keys) if request.alpha else None
        self._mean = values.new_zeros(batch, queries, keys) if request.mean_alpha else None
        self._row_sums = values.new_empty(batch, queries) if request.row_sums else None
        self._diagonal: Tensor | None = None  # a_hii
        self._self_alpha: Tensor | None = None
        if request.own:
            self._diagonal = values.new_zeros(batch, heads, queries)
            self._self_alpha = values.new_zeros(batch, queries)
        # Stages with the same steps share their Gram matrices and norms.
        self._stages = [stage for stage in ALL_STAGES if stage in request.stages]
        self._distinct = list(dict.fromkeys(steps[stage] for stage in self._stages))
        self._steps = steps
        self._norms = values.new_zeros(len(self._distinct), batch, queries, keys)
        self._grams: Grams | None = None
        if self._distinct:
            self._grams = Grams(
                values, w_o, self._distinct, self._diagonal, compiled=self._compiled, scratch=self._scratch
            )

    def attend(self, inputs: AttentionInputs) -> Float[Tensor, "batch query head width"]:
        """Run standard attention and collect; no more weights exist at a time than a block needs."""
        count = inputs.query.shape[:3].numel() * inputs.key.shape[2]
        if not self._request.maps and self._scratch.prefers_fused(count, inputs.query.device):
            fused = attend_fused(inputs, self._scratch)
            if fused is not None:
                self._collect_fused(fused)
                return fused.output
        output = attend(inputs, self._collect, self._scratch)
        if self._grams is not None and self._grams.has_cancellation():  # rare: the weights are computed again
            attend(inputs, self._recompute, self._scratch)
        return output

    def _collect_fused(self, fused: FusedAttention) -> None:
        """Collect single weights of a fused attention; every row of standard attention sums to 1."""
        if self._diagonal is not None and self._self_alpha is not None:
            self._diagonal.copy_(fused.diagonal())
            torch.mean(self._diagonal, 1, out=self._self_alpha)
        if self._row_sums is not None:
            self._row_sums.fill_(1)

    def feed(self, alpha: Float[Tensor, "batch head block key"], start: int) -> None:
        """Collect from the weights of the queries from `start` on; keys beyond the last column have none."""
        self._collect(alpha, start)
        if self._grams is not None and self._grams.has_cancellation():
            self._recompute(alpha, start)

    def _recompute(self, alpha: Float[Tensor, "batch head block key"], start: int) -> None:
        assert self._grams is not None, "only norms lose digits"
        weights = self._with_factor(alpha.to(self._values.dtype), start)
        self._grams.recompute_cancelled(weights, start, self._norms)

    def _with_factor(self, alpha: Float[Tensor, "batch head block key"], start: int) -> Tensor:
        if self._factor is None:
            return alpha
        return alpha * self._factor[:, :, start : start + alpha.shape[2]]

    def _collect(self, alpha: Float[Tensor, "batch head block key"], start: int) -> None:
        alpha = alpha.to(self._values.dtype)
        stop, keys = start + alpha.shape[2], alpha.shape[3]
        weights = self._with_factor(alpha, start)
        if self._mean is not None or self._row_sums is not None:
            mean = alpha.mean(1)
            if self._row_sums is not None:
                torch.sum(mean.abs(), -1, out=self._row_sums[:, start:stop])
            if self._mean is not None:
                self._mean[:, start:stop, :keys] = mean
        if self._alpha is not None:
            self._alpha[:, :, start:stop, :keys] = alpha
        if self._diagonal is not None and self._self_alpha is not None:
            last = min(stop, keys)
            count = max(0, last - start)
            own = weights.diagonal(offset=start, dim1=-2, dim2=-1)[..., :count]
            self._diagonal[:, :, start:last] = own
            if self._factor is not None:
                own = alpha.diagonal(offset=start, dim1=-2, dim2=-1)[..., :count]
            torch.mean(own, 1, out=self._self_alpha[:, start:last])
        if self._grams is not None:
            self._grams.extend_to(keys, stop)
            self._grams.norms(weights, start, self._norms)
        self._collect_samples(weights, start)

    def _collect_samples(self, weights: Float[Tensor, "batch head block key"], start: int) -> None:
        contained, places = [], []
        for n, (batch, query, key) in enumerate(self._samples):
            if start <= query < start + weights.shape[2] and key < weights.shape[3]:
                contained.append(n)
                places.append((batch, query - start, key))
        if contained:
            (rows,) = gather_rows([weights.movedim(1, -1)], *zip(*places, strict=True))
            self._sampled.append((contained, rows))

    def result(self, mixed: Float[Tensor, "batch query head width"]) -> PairResults:
        """Return everything collected; `mixed` is the sum of the weighted values from the same weights."""
        return PairResults(
            mixed=mixed.to(self._values.dtype),
            alpha=self._alpha,
            mean_alpha=self._mean,
            row_sums=self._row_sums,
            self_alpha=self._self_alpha,
            own=self._own(),
            f_norm=self._f_norm() if self._request.f_norm else None,
            norms={stage: self._norms[self._distinct.index(self._steps[stage])] for stage in self._stages},
            samples=self._samples,
            sampled_weights=self._sampled_weights(),
            factor=self._factor,
            compiled=self._compiled,
        )

    def _f_norm(self) -> Float[Tensor, "batch head key"]:
        """`‖f_h(x_j)‖`, from the Gram matrices where they exist already, also for keys without any weight."""
        if self._grams is None or () not in self._distinct:
            return f_norms(self._values, self._w_o)
        self._grams.extend_to(self._values.shape[2], 0)
        return self._grams.lengths(self._distinct.index(()))

    def _sampled_weights(self) -> Float[Tensor, "pair head"]:
        """Weights in the order of the samples; zero for a key that no block contained."""
        if len(self._sampled) == 1 and len(self._sampled[0][0]) == len(self._samples):
            return self._sampled[0][1]
        sampled = self._values.new_zeros(len(self._samples), self._w_o.shape[0])
        for contained, rows in self._sampled:
            for n, row in zip(contained, rows, strict=True):
                sampled[n] = row
        return sampled

    def _own(self) -> Float[Tensor, "batch query model"] | None:
        """Self parts; those whose vectors were not at hand when their weight was known are projected again."""
        if self._diagonal is None:
            return None
        late, known = 0, None
        if self._grams is not None:
            late, known = self._grams.late, self._grams.own
        if known is not None and late == known.shape[1]:
            return known
        values = repeat_values(self._values[:, :, late:], self._w_o.shape[0])
        parts = (self._diagonal[:, :, late:].unsqueeze(-1) * values).transpose(1, 2).flatten(2)
        projected = parts @ self._w_o.flatten(0, 1)
        if known is None:
            return projected
        known[:, late:] = projected
        return known
