"""One attention block taken apart: what each position gives, at each of the three stages where one can look.

The stages are the attention output (`attn`), the residual sum (`res`) and the normalized sum (`ln`). At each of them
the model's vector is `sum_j part_ij + bias`, where the part of position `j` in query `i` is

    part_ij = scale_i * linear(sum_h a_hij f_h(x_j))   (+ the residual's own contribution where i = j)

`linear` is the same for every pair, so norms of all parts follow from Gram matrices of the vectors `f_h(x_j)`
(`decompose.grams`). What exists once per query is worked out here: what a position gives itself and what all others give
it (for mixing ratios and the diagonal), and how far each stage is from what the one before makes of it (for the proof).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from normlens.decompose.grams import repeat_values
from normlens.decompose.pairs import PairResults
from normlens.decompose.process import compiled_loops, run_compiled
from normlens.decompose.stages import Stage
from normlens.decompose.steps import (
    Normalization,
    Step,
    applied,
    inverse_scale,
    linear,
    numerator_and_scale,
    scale_through,
)

if TYPE_CHECKING:
    from normlens.decompose.layer_parts import FeedForwardTensors, LayerParts

T = TypeVar("T")

#: Random directions along which the proof compares vectors. The squared share of an error that they show is distributed
#: as chi-squared over its 8 degrees of freedom: that less than a hundredth of it shows has a chance of 1e-15.
DIRECTIONS = 8


@dataclass(frozen=True)
class RandomCheck:
    """An affine map seen along random directions: a cheap comparison in which no difference hides.

    `right = left W + b` is expected, so `left @ before.T + shift` must equal `right @ after.T`, with `before = after W^T`
    and `shift = after b`. The norm of a vector along `after` is its own norm on average.
    """

    before: Float[Tensor, "direction left"]
    after: Float[Tensor, "direction right"]
    shift: Float[Tensor, " direction"]

    @classmethod
    def of(cls, matrix: Float[Tensor, "left right"], bias: Float[Tensor, " right"] | None) -> RandomCheck:
        """Draw the directions; the seed is fixed."""
        generator = torch.Generator().manual_seed(0)
        drawn = torch.randn(DIRECTIONS, matrix.shape[1], generator=generator) / DIRECTIONS**0.5
        after = drawn.to(matrix)
        shift = after.new_zeros(DIRECTIONS)
        if bias is not None:
            shift = after @ bias.to(matrix)
        return cls((after @ matrix.T).contiguous(), after, shift)

    def gaps(
        self, left: Float[Tensor, "batch row left"], right: Float[Tensor, "batch row right"]
    ) -> tuple[Float[Tensor, "batch row"], Float[Tensor, "batch row"]]:
        """Distance of each row of `right` from its expected value, and its size."""
        along = right @ self.after.T
        expected = torch.addmm(self.shift, left.flatten(0, -2), self.before.T).view(along.shape)
        return (expected - along).norm(dim=-1), along.norm(dim=-1)


def stage_steps(
    branch: tuple[Step, ...], norm: Normalization | None, end_norm: Normalization | None = None
) -> dict[Stage, tuple[Step, ...]]:
    """The steps from the attention output to each stage; `end_norm` stands at the end of the layer."""
    steps: tuple[Step, ...] = branch if norm is None else (*branch, norm)
    return {"attn": (), "res": branch, "ln": steps, "enc": steps if end_norm is None else (*steps, end_norm)}


@dataclass(frozen=True)
class LayerEndTensors:
    """The end of the layer after the attention block: the last residual sum, and the normalization that follows it."""

    total: Float[Tensor, "batch query model"]
    norm: Normalization | None
    normalized: Float[Tensor, "batch query model"] | None
    feed_forward: FeedForwardTensors | None = None  # where a measure looks into it

    def gap(self) -> Float[Tensor, "2 batch query"] | None:
        """Between the normalization of the model's sum and the model's result, where there is one."""
        if self.norm is None:
            return None
        assert self.normalized is not None, "what a normalization gave is captured with it"
        return gap(applied(self.norm, self.total), self.normalized)


def in_streams(
    vectors: Float[Tensor, "*any model"], weights: Float[Tensor, "*_ weight"] | None
) -> Float[Tensor, "*any _"]:
    """Vectors as they are written into several residual streams, side by side; with one stream, the vectors themselves."""
    return vectors if weights is None else (weights.unsqueeze(-1) * vectors.unsqueeze(-2)).flatten(-2)


def out_of_streams(
    streams: Float[Tensor, "*any stream"], weights: Float[Tensor, "*any weight"] | None
) -> Float[Tensor, "*any _"]:
    """The transpose of `in_streams`: `in_streams(v) · y = v · out_of_streams(y)`."""
    if weights is None:
        return streams
    by_stream: Tensor = streams.unflatten(-1, (weights.shape[-1], -1))
    return (weights.unsqueeze(-1) * by_stream).sum(-2)


@dataclass(frozen=True, eq=False)
class Block:
    """One attention site: its tensors in the working dtype, and its decomposition, computed on first access.

    The residual stream is as wide as the model; where there are several (hyper-connections), they stand side by side.
    """

    pairs: PairResults
    values: Float[Tensor, "batch kv_head key width"]
    w_o: Float[Tensor, "head width model"]  # W_O by head, with constant factors in front
    bias: Float[Tensor, " model"] | None  # b_O
    projected: Float[Tensor, "batch query model"]  # the attention output, b_O included
    branch: tuple[Step, ...]
    residual: Float[Tensor, "batch query stream"]  # as it enters the sum
    others: Float[Tensor, "batch query stream"] | None  # branches beside attention
    total: Float[Tensor, "batch query stream"]
    norm: Normalization | None
    normalized: Float[Tensor, "batch query model"] | None
    x: Float[Tensor, "batch key input"]  # as wide as the model, except where something is laid beside it (Zamba)
    self_attends: bool  # False for cross-attention, where no key is the query
    #: Of the output projection; None: the attention output is rebuilt whole.
    output_check: RandomCheck | None = None
    #: Finds keys that are mixed up in weights and values alike; None where the values are no affine function of x.
    value_check: RandomCheck | None = None
    #: Which keys count as the query itself: its own word's subwords. None: the position alone.
    same_word: Bool[Tensor, "query key"] | None = None
    #: Weights that write a position's branch into each of several residual streams; None: there is one.
    stream_weights: Float[Tensor, "batch query weight"] | None = None
    #: A gate on the heads' outputs with a number for each query and coordinate: see `decompose.gates`.
    gate: Float[Tensor, "batch query head width"] | None = None
    #: The rest of the layer, where a measure looks that far.
    end: LayerEndTensors | None = None
    _cache: dict[tuple[str, object], Any] = field(default_factory=dict, init=False, repr=False)

    @cached_property
    def steps(self) -> dict[Stage, tuple[Step, ...]]:
        """The steps from the attention output to each stage."""
        return stage_steps(self.branch, self.norm, None if self.end is None else self.end.norm)

    def once(self, name: str, key: object, compute: Callable[[], T]) -> T:
        """A value that several measures need, computed once."""
        if (name, key) not in self._cache:
            self._cache[name, key] = compute()
        found: T = self._cache[name, key]
        return found

    @cached_property
    def layer(self) -> LayerParts:
        """The parts carried on through the feed-forward block."""
        from normlens.decompose.layer_parts import LayerParts

        return LayerParts(self)

    @property
    def stages(self) -> tuple[Stage, ...]:
        """The stages that differ: without a normalization after the sum there are two."""
        return ("attn", "res") if self.norm is None else ("attn", "res", "ln")

    @cached_property
    def edge_weights(self) -> Float[Tensor, "batch head query key"]:
        """`alpha` times the factor of a norm before the projection: what multiplies each head's transformed vector."""
        pairs = self.pairs
        assert pairs.alpha is not None, "the weights must have been asked for"
        return pairs.alpha if pairs.factor is None else pairs.alpha * pairs.factor

    @cached_property
    def values_by_head(self) -> Float[Tensor, "batch head key width"]:
        """The value vectors by query head."""
        return repeat_values(self.values, self.w_o.shape[0])

    # ---- from the attention output to a stage --------------------------------------------------------------------

    @cached_property
    def scales(self) -> dict[Stage, Float[Tensor, "batch query 1"] | None]:
        """Factors of a query's parts from the normalizations before each stage; None where there are none."""
        branch = scale_through(self.branch, self.projected)
        normalized = branch
        if self.norm is not None:
            normalized = _product(branch, self._denominator[1])
        at_end = normalized
        if self.end is not None and self.end.norm is not None:
            at_end = _product(normalized, inverse_scale(self.end.norm, self.end.total))
        return {"attn": None, "res": branch, "ln": normalized, "enc": at_end}

    @cached_property
    def _denominator(self) -> tuple[Float[Tensor, "batch query stream"], Float[Tensor, "batch query 1"]]:
        """Numerator and inverse denominator of the normalization after the sum."""
        assert self.norm is not None, "needed only where a normalization follows"
        return numerator_and_scale(self.norm, self.total)

    def _after_norm(self, vectors: Float[Tensor, "batch query stream"]) -> Float[Tensor, "batch query stream"]:
        """Parts of the residual sum after the normalization that follows it."""
        if self.norm is None:
            return vectors
        return linear((self.norm,), vectors) * self._denominator[1]

    def _after_end(self, vectors: Float[Tensor, "batch query stream"]) -> Float[Tensor, "batch query stream"]:
        """Parts of the block's output after the normalization at the end of the layer."""
        end = self.end
        if end is None or end.norm is None:
            return vectors
        return linear((end.norm,), vectors) * inverse_scale(end.norm, end.total)

    def to_stage(
        self, vectors: Float[Tensor, "batch query model"], stage: Stage
    ) -> Float[Tensor, "batch query stream"]:
        """Carry vectors of the attention output, one per query, to a stage."""
        scale = self.scales[stage]
        vectors = linear(self.steps[stage], vectors)
        if scale is not None:
            vectors = vectors * scale
        if stage == "attn":
            return vectors
        return in_streams(vectors, self.stream_weights)

    def residual_at(self, stage: Stage) -> Float[Tensor, "batch query stream"] | None:
        """The residual's own contribution at a stage; none at the attention output."""
        if stage == "attn":
            return None
        if stage == "res":
            return self.residual
        normalized = self._after_norm(self.residual)
        if stage == "enc":
            return self._after_end(normalized)
        return normalized

    @cached_property
    def output(self) -> Float[Tensor, "batch query model"]:
        """The output of the attention block as the model computed it; a branch beside attention is not part of it."""
        if self.norm is not None:
            assert self.normalized is not None, "the result of a normalization is captured with it"
            return self.normalized
        if self.others is None:
            return self.total
        return self.total - self.others

    # ---- what a position gives itself, and what all others give it: O(n d) memory --------------------------------

    @cached_property
    def own(self) -> Float[Tensor, "batch query model"]:
        """`sum_h a_hii f_h(x_i)`: the attention of each position to itself (or to its own word)."""
        if self.same_word is None:
            assert self.pairs.own is not None, "self parts must have been requested"
            return self.pairs.own
        mixed = ((self.edge_weights * self.same_word) @ self.values_by_head).transpose(1, 2)
        if self.gate is not None:
            mixed = mixed * self.gate
        return mixed.flatten(2) @ self.w_o.flatten(0, 1)

    def self_vectors(self, stage: Stage) -> Float[Tensor, "batch query stream"]:
        """The contribution of each position to itself, with the residual. In cross-attention: the residual alone."""
        return self.once("self", stage, lambda: self._self_vectors(stage))

    def _self_vectors(self, stage: Stage) -> Float[Tensor, "batch query stream"]:
        if stage == "enc":
            return self._after_end(self.self_vectors("ln"))
        if stage == "ln":
            return self._after_norm(self.self_vectors("res"))
        if not self.self_attends:
            residual = self.residual_at(stage)
            return torch.zeros_like(self.projected) if residual is None else residual
        own = self.to_stage(self.own, stage)
        if stage == "attn":
            return own
        return own + self.residual

    def context_vectors(self, stage: Stage) -> Float[Tensor, "batch query stream"]:
        """The sum of the contributions of all *other* positions (cross-attention: all source positions)."""
        return self.once("context", stage, lambda: self._context_vectors(stage))

    def _context_vectors(self, stage: Stage) -> Float[Tensor, "batch query stream"]:
        if stage == "enc":
            return self._after_end(self.context_vectors("ln"))
        if stage == "ln":
            return self._after_norm(self.context_vectors("res"))
        if stage == "res":
            return self.to_stage(self.context_vectors("attn"), stage)
        context = self.projected
        if self.bias is not None:
            context = context - self.bias
        if self.self_attends:
            context = context - self.own
        return context

    def mixing_norms(self, stage: Stage) -> tuple[Float[Tensor, "batch query"], Float[Tensor, "batch query"]]:
        """`‖context‖` and `‖self‖` at a stage."""
        if stage == "enc" and (self.end is None or self.end.norm is None):
            stage = "ln"
        if stage == "ln" and self.norm is None:
            stage = "res"
        if self._compiled is not None and stage in self._compiled.mixing:
            return self._compiled.mixing[stage]
        return self.once("mixing norms", stage, lambda: self._mixing_norms(stage))

    def _mixing_norms(self, stage: Stage) -> tuple[Float[Tensor, "batch query"], Float[Tensor, "batch query"]]:
        own = self.self_vectors(stage).norm(dim=-1)
        if stage == "res" and not self.branch and self.stream_weights is None:
            context, _ = self.mixing_norms("attn")  # nothing happens to the context on the way into the sum
        else:
            context = self.context_vectors(stage).norm(dim=-1)
        return context, own

    def part_norms(self, stage: Stage) -> Float[Tensor, "batch query key"]:
        """`‖part_ij‖` at a stage."""
        if self._compiled is not None and not self.branch and stage != "enc":
            scale = self._compiled.scales.get(stage)
        else:
            scale = self.scales[stage]
        norms = self.pairs.norms[stage]
        # Several stages may share these norms, so they are changed in a copy.
        norms = norms.clone() if scale is None else norms * scale.abs()
        if self.stream_weights is not None and stage != "attn":
            norms = norms * self.stream_weights.norm(dim=-1, keepdim=True)
        if self.self_attends and stage != "attn":
            norms.diagonal(dim1=-2, dim2=-1).copy_(self._diagonal(stage))
        return norms

    def _diagonal(self, stage: Stage) -> Float[Tensor, "batch query"]:
        """`‖part_ii‖`, from its vector: there the residual joins."""
        if self.same_word is None:
            return self.mixing_norms(stage)[1]
        assert self.pairs.own is not None, "self parts must have been requested"
        own = self.to_stage(self.pairs.own, stage)
        residual = self.residual_at(stage)
        if residual is not None:
            own = own + residual
        norms: Tensor = own.norm(dim=-1)
        return norms

    # ---- the distance of each stage from its reconstruction ------------------------------------------------------

    def gaps(self) -> Float[Tensor, "stage 2 batch query"]:
        """The norms of the difference and of the model's own vector, at the stages that differ.

        At the attention output between `sum_j sum_h a f + b_O` and the model's vector, at the residual sum between
        attention output plus residual and the model's sum, at the normalized sum between the normalization of the
        model's sum and the model's result.
        """
        if self._compiled is not None:
            return self._compiled.gaps
        arriving = self.projected
        for step in self.branch:
            arriving = applied(step, arriving)
        summed = in_streams(arriving, self.stream_weights) + self.residual
        if self.others is not None:
            summed = summed + self.others
        norms = [*self._attention_gap(), *_sizes(summed, self.total)]
        if self.norm is not None:
            assert self.normalized is not None, "the result of a normalization is captured with it"
            numerator, inverse = self._denominator
            rebuilt = numerator * inverse
            if self.norm.weight is not None:
                rebuilt = rebuilt * self.norm.weight
            if self.norm.beta is not None:
                rebuilt = rebuilt + self.norm.beta
            norms += _sizes(rebuilt, self.normalized)
        stacked: Tensor = torch.stack(norms).unflatten(0, (-1, 2))
        return stacked

    def _attention_gap(self) -> list[Float[Tensor, "batch query"]]:
        """The gap of the attention output, along random directions.

        There the difference has its size on average. Rebuilding the output whole would cost one more product of the
        model's width squared.
        """
        mixed = self.pairs.mixed.flatten(2)
        if self.output_check is not None:
            return [self.output_check.gaps(mixed, self.projected)[0], self.projected.norm(dim=-1)]
        summed = mixed @ self.w_o.flatten(0, 1)
        if self.bias is not None:
            summed = summed + self.bias
        return _sizes(summed, self.projected)

    # ---- all of it in one compiled loop --------------------------------------------------------------------------

    @cached_property
    def _compiled(self) -> _PerQuery | None:
        """Gaps and norms of a plain, long enough block in one pass over its vectors; None: PyTorch does it."""
        wanted = self.pairs.compiled and (self.pairs.own is not None or not self.self_attends)
        if (
            not wanted
            or self.branch
            or self.others is not None
            or self.output_check is None
            or self.stream_weights is not None
        ):
            return None
        rows = compiled_loops().vectors
        norm, width = self.norm, self.total.shape[-1]
        zeros, ones = self.total.new_zeros(width), self.total.new_ones(width)
        gamma = ones if norm is None or norm.weight is None else norm.weight
        beta = zeros if norm is None or norm.beta is None else norm.beta
        out = self.total.new_empty(rows.ROWS, *self.total.shape[:2])

        def flat(vectors: Tensor) -> Tensor:
            return vectors.flatten(0, 1).contiguous()

        run_compiled(
            "per_query",
            mixed=flat(self.pairs.mixed.flatten(2)),
            before=self.output_check.before,
            after=self.output_check.after,
            shift=self.output_check.shift,
            summed=flat(self.projected),
            bias=zeros if self.bias is None else self.bias.contiguous(),
            own=flat(self.own) if self.self_attends else torch.zeros_like(flat(self.total)),
            residual=flat(self.residual),
            total=flat(self.total),
            normalized=flat(self.total if self.normalized is None else self.normalized),
            affine=torch.stack([gamma, beta]),
            centred=norm is not None and norm.centred,
            eps=0.0 if norm is None else norm.eps,
            with_norm=norm is not None,
            out=out.flatten(1),
        )
        gaps = out[: 2 * len(self.stages)].sqrt().unflatten(0, (-1, 2))
        norms = out[rows.CONTEXT : rows.NORMALIZED_OWN + 1].sqrt()
        context, own, with_residual, normalized_context, normalized_own = norms.unbind(0)
        return _PerQuery(
            gaps,
            {"attn": (context, own), "res": (context, with_residual), "ln": (normalized_context, normalized_own)},
            {} if norm is None else {"ln": out[rows.INVERSE_SCALE].unsqueeze(-1)},
        )


@dataclass(frozen=True)
class _PerQuery:
    """The results of the compiled loop for each query."""

    gaps: Float[Tensor, "stage 2 batch query"]
    mixing: Mapping[Stage, tuple[Float[Tensor, "batch query"], Float[Tensor, "batch query"]]]
    scales: Mapping[Stage, Float[Tensor, "batch query 1"]]


def _product(scale: Tensor | None, factor: Tensor) -> Tensor:
    """A factor times another one, where there is one."""
    return factor if scale is None else scale * factor


def gap(rebuilt: Tensor, observed: Tensor) -> Float[Tensor, "2 batch query"]:
    """The norms of the difference and of what was observed, for each query."""
    return torch.stack(_sizes(rebuilt, observed))


def _sizes(rebuilt: Tensor, observed: Tensor) -> list[Float[Tensor, "batch query"]]:
    return [(rebuilt - observed).norm(dim=-1), observed.norm(dim=-1)]
