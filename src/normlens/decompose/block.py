"""One attention block taken apart: what each position gives, at each of the three stages where one can look.

The stages are the attention output (`attn`), the residual sum (`res`) and the normalized sum (`ln`). At each of them
the model's vector is `sum_j part_ij + bias`, where the part of position `j` in query `i` is

    part_ij = scale_i * linear(sum_h a_hij f_h(x_j))   (+ the residual's own contribution where i = j)

`linear` is the same for every pair, so norms of all parts follow from Gram matrices of the vectors `f_h(x_j)`
(`decompose.grams`). What exists once per query is worked out here: what a position gives itself and what all others give
it (for mixing ratios and the diagonal), and how far each stage is from what the one before makes of it (for the proof).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

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

#: Random directions along which the proof compares vectors. The squared share of an error that they show is distributed
#: as chi-squared over its 8 degrees of freedom: that less than a hundredth of it shows has a chance of 1e-15.
DIRECTIONS = 8


@dataclass(frozen=True)
class RandomCheck:
    """What an affine map must do to any row of vectors, seen along random directions: cheap, and no difference hides.

    `right = left W + b` is wanted, so `left @ before.T + shift` must be `right @ after.T`, with `before = after W^T` and
    `shift = after b`. A vector's norm along `after` is its own on average. Of several maps, each has as many rows.
    """

    before: Float[Tensor, "map direction left"]
    after: Float[Tensor, "map direction right"]
    shift: Float[Tensor, "map direction"]

    @classmethod
    def of(cls, matrix: Float[Tensor, "left right"], bias: Float[Tensor, " right"] | None) -> RandomCheck:
        """Along seeded directions."""
        drawn = torch.randn(DIRECTIONS, matrix.shape[1], generator=torch.Generator().manual_seed(0)) / DIRECTIONS**0.5
        after = drawn.to(matrix)
        shift = after.new_zeros(DIRECTIONS) if bias is None else after @ bias.to(matrix)
        return cls((after @ matrix.T).contiguous().unsqueeze(0), after.unsqueeze(0), shift.unsqueeze(0))

    @classmethod
    def stacked(cls, checks: Sequence[RandomCheck]) -> RandomCheck:
        """Of several maps at once."""
        return cls(*(torch.cat([getattr(check, name) for check in checks]) for name in ("before", "after", "shift")))

    def gaps(
        self, left: Float[Tensor, "batch row left"], right: Float[Tensor, "batch row right"]
    ) -> tuple[Float[Tensor, "batch row"], Float[Tensor, "batch row"]]:
        """For each row: how far `right` is from what it must be, and how large it is."""
        maps = len(self.before)
        along = right.reshape(maps, -1, right.shape[-1]) @ self.after.mT
        wanted = torch.baddbmm(self.shift.unsqueeze(1), left.reshape(maps, -1, left.shape[-1]), self.before.mT)
        rows = left.shape[:-1]
        return (wanted - along).norm(dim=-1).view(rows), along.norm(dim=-1).view(rows)


def stage_steps(
    branch: tuple[Step, ...], norm: Normalization | None, end_norm: Normalization | None = None
) -> dict[Stage, tuple[Step, ...]]:
    """The steps from the attention output to each stage; `end_norm` stands at the end of the layer."""
    steps: tuple[Step, ...] = branch if norm is None else (*branch, norm)
    return {"attn": (), "res": branch, "ln": steps, "enc": steps if end_norm is None else (*steps, end_norm)}


@dataclass(frozen=True)
class LayerEnd:
    """How the layer ends after the attention block: the last residual sum, and the normalization that follows it."""

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


@dataclass(frozen=True)
class BlockTensors:
    """All that one site computed, as plain tensors in the working dtype.

    The residual stream is as wide as the model; where there are several (hyper-connections), they stand side by side.
    A *stack* is several sites of one form at once, a row of the batch for each: see `weights`.
    """

    pairs: PairResults
    values: Float[Tensor, "batch kv_head key width"]
    weights: tuple[Float[Tensor, "head width model"], ...]  # W_O by head, with constant factors in front; of each site
    bias: Float[Tensor, "*row model"] | None  # b_O
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
    #: What writes a position's branch into each of several residual streams; None: there is one.
    stream_weights: Float[Tensor, "batch query weight"] | None = None
    #: A gate on the heads' outputs with a number for each query and coordinate: see `decompose.gates`.
    gate: Float[Tensor, "batch query head width"] | None = None
    #: What follows the block in its layer, where a measure looks that far.
    end: LayerEnd | None = None

    @property
    def weight(self) -> Float[Tensor, "head width model"]:
        """`W_O` by head of a single site."""
        (weight,) = self.weights
        return weight


class Block:
    """The decomposition of one site; each quantity is computed when it is first asked for."""

    def __init__(self, tensors: BlockTensors) -> None:
        self.tensors = tensors
        self.steps = stage_steps(tensors.branch, tensors.norm, None if tensors.end is None else tensors.end.norm)
        self._mixing: dict[Stage, tuple[Tensor, Tensor]] = {}
        #: Maps of shares with the residual's own (`decompose.parts`): measure, ratio and residual ask for the same.
        self.shares: dict[str, tuple[Tensor, Tensor]] = {}
        self._selves: dict[Stage, Tensor] = {}
        self._contexts: dict[Stage, Tensor] = {}

    @cached_property
    def layer(self) -> LayerParts:
        """The parts carried on through the feed-forward block."""
        from normlens.decompose.layer_parts import LayerParts

        return LayerParts(self)

    @property
    def stages(self) -> tuple[Stage, ...]:
        """The stages that differ: without a normalization after the sum there are two."""
        return ("attn", "res") if self.tensors.norm is None else ("attn", "res", "ln")

    @cached_property
    def weights(self) -> Float[Tensor, "batch head query key"]:
        """What multiplies each head's transformed vector: `alpha`, with the factor of a norm before the projection."""
        pairs = self.tensors.pairs
        assert pairs.alpha is not None, "the weights must have been asked for"
        return pairs.alpha if pairs.factor is None else pairs.alpha * pairs.factor

    @cached_property
    def values_by_head(self) -> Float[Tensor, "batch head key width"]:
        """The value vectors by query head."""
        return repeat_values(self.tensors.values, self.tensors.weights[0].shape[0])

    # ---- from the attention output to a stage --------------------------------------------------------------------

    @cached_property
    def scales(self) -> dict[Stage, Float[Tensor, "batch query 1"] | None]:
        """What normalizations on the way to each stage multiply a query's parts by; None where there are none."""
        t = self.tensors
        branch = scale_through(t.branch, t.projected)
        found: dict[Stage, Tensor | None] = {"attn": None, "res": branch, "ln": branch}
        if t.norm is not None:
            inverse = self._denominator[1]
            found["ln"] = inverse if branch is None else branch * inverse
        found["enc"] = found["ln"]
        if t.end is not None and t.end.norm is not None:
            inverse = inverse_scale(t.end.norm, t.end.total)
            found["enc"] = inverse if found["ln"] is None else found["ln"] * inverse
        return found

    @cached_property
    def _denominator(self) -> tuple[Float[Tensor, "batch query stream"], Float[Tensor, "batch query 1"]]:
        """Of the normalization after the sum: its numerator, and one over its denominator."""
        assert self.tensors.norm is not None, "asked where a normalization follows"
        return numerator_and_scale(self.tensors.norm, self.tensors.total)

    def _after_norm(self, vectors: Float[Tensor, "batch query stream"]) -> Float[Tensor, "batch query stream"]:
        """What becomes of parts of the residual sum in the normalization that follows it."""
        norm = self.tensors.norm
        return vectors if norm is None else linear((norm,), vectors) * self._denominator[1]

    def _after_end(self, vectors: Float[Tensor, "batch query stream"]) -> Float[Tensor, "batch query stream"]:
        """What becomes of parts of the block's output in the normalization at the end of the layer."""
        end = self.tensors.end
        if end is None or end.norm is None:
            return vectors
        return linear((end.norm,), vectors) * inverse_scale(end.norm, end.total)

    def carried(self, vectors: Float[Tensor, "batch query model"], stage: Stage) -> Float[Tensor, "batch query stream"]:
        """What becomes at a stage of vectors of the attention output, one per query."""
        scale = self.scales[stage]
        vectors = linear(self.steps[stage], vectors)
        vectors = vectors if scale is None else vectors * scale
        return vectors if stage == "attn" else in_streams(vectors, self.tensors.stream_weights)

    def residual_at(self, stage: Stage) -> Float[Tensor, "batch query stream"] | None:
        """The residual's own contribution at a stage; none at the attention output."""
        t = self.tensors
        if stage == "attn":
            return None
        residual = t.residual if stage == "res" else self._after_norm(t.residual)
        return self._after_end(residual) if stage == "enc" else residual

    @cached_property
    def output(self) -> Float[Tensor, "batch query model"]:
        """What the attention block gave, as the model computed it; a branch beside attention is not part of it."""
        t = self.tensors
        if t.norm is not None:
            assert t.normalized is not None, "what a normalization gave is captured with it"
            return t.normalized
        return t.total if t.others is None else t.total - t.others

    # ---- what a position gives itself, and what all others give it: O(n d) memory --------------------------------

    @cached_property
    def own(self) -> Float[Tensor, "batch query model"]:
        """`sum_h a_hii f_h(x_i)`, what each position's attention takes from itself (or from its own word)."""
        t = self.tensors
        if t.same_word is None:
            assert t.pairs.own is not None, "what positions give themselves must have been asked for"
            return t.pairs.own
        mixed = ((self.weights * t.same_word) @ self.values_by_head).transpose(1, 2)
        return (mixed if t.gate is None else mixed * t.gate).flatten(2) @ t.weight.flatten(0, 1)

    def self_vectors(self, stage: Stage) -> Float[Tensor, "batch query stream"]:
        """What each position contributes to itself, the residual included. In cross-attention: the residual alone."""
        if stage not in self._selves:
            if stage == "enc":
                self._selves[stage] = self._after_end(self.self_vectors("ln"))
            elif stage == "ln":
                self._selves[stage] = self._after_norm(self.self_vectors("res"))
            elif not self.tensors.self_attends:
                residual = self.residual_at(stage)
                self._selves[stage] = torch.zeros_like(self.tensors.projected) if residual is None else residual
            else:
                own = self.carried(self.own, stage)
                self._selves[stage] = own if stage == "attn" else own + self.tensors.residual
        return self._selves[stage]

    def context_vectors(self, stage: Stage) -> Float[Tensor, "batch query stream"]:
        """The sum of what all *other* positions contribute (cross-attention: all source positions)."""
        if stage not in self._contexts:
            t = self.tensors
            if stage == "enc":
                found = self._after_end(self.context_vectors("ln"))
            elif stage == "ln":
                found = self._after_norm(self.context_vectors("res"))
            elif stage == "res":
                found = self.carried(self.context_vectors("attn"), stage)
            else:
                found = t.projected if t.bias is None else t.projected - t.bias
                found = found - self.own if t.self_attends else found
            self._contexts[stage] = found
        return self._contexts[stage]

    def mixing_norms(self, stage: Stage) -> tuple[Float[Tensor, "batch query"], Float[Tensor, "batch query"]]:
        """`‖context‖` and `‖self‖` at a stage."""
        if stage == "enc" and (self.tensors.end is None or self.tensors.end.norm is None):
            stage = "ln"
        stage = "res" if stage == "ln" and self.tensors.norm is None else stage
        if self._compiled is not None and stage in self._compiled.mixing:
            return self._compiled.mixing[stage]
        if stage not in self._mixing:  # maps ask for their diagonal, ratios for both
            own = self.self_vectors(stage).norm(dim=-1)
            # Nothing happens to the others' vectors on the way into the sum.
            as_before = stage == "res" and not self.tensors.branch and self.tensors.stream_weights is None
            context = self.mixing_norms("attn")[0] if as_before else self.context_vectors(stage).norm(dim=-1)
            self._mixing[stage] = context, own
        return self._mixing[stage]

    def part_norms(self, stage: Stage) -> Float[Tensor, "batch query key"]:
        """`‖part_ij‖` at a stage."""
        t = self.tensors
        known = self._compiled is not None and not t.branch and stage != "enc"
        scale = self._compiled.scales.get(stage) if known and self._compiled is not None else self.scales[stage]
        # Several stages may share these norms, so they are changed in a copy.
        norms = t.pairs.norms[stage].clone() if scale is None else t.pairs.norms[stage] * scale.abs()
        if t.stream_weights is not None and stage != "attn":
            norms = norms * t.stream_weights.norm(dim=-1, keepdim=True)
        if t.self_attends and stage != "attn":
            if t.same_word is None:
                own = self.mixing_norms(stage)[1]
            else:
                assert t.pairs.own is not None, "the diagonal holds what each position gives itself"
                residual = self.residual_at(stage)
                own = self.carried(t.pairs.own, stage).add(0 if residual is None else residual).norm(dim=-1)
            norms.diagonal(dim1=-2, dim2=-1).copy_(own)
        return norms

    # ---- how far each stage is from what the one before it makes of it -------------------------------------------

    def gaps(self) -> Float[Tensor, "stage 2 batch query"]:
        """The norms of the difference and of the model's own vector, at the stages that differ.

        At the attention output between `sum_j sum_h a f + b_O` and the model's vector, at the residual sum between
        attention output plus residual and the model's sum, at the normalized sum between the normalization of the
        model's sum and the model's result.
        """
        t = self.tensors
        if self._compiled is not None:
            return self._compiled.gaps
        arriving = t.projected
        for step in t.branch:
            arriving = applied(step, arriving)
        arriving = in_streams(arriving, t.stream_weights)
        summed = arriving + t.residual if t.others is None else arriving + t.residual + t.others
        found = [*self._attention_gap(), *_sizes(summed, t.total)]
        if t.norm is not None:
            assert t.normalized is not None, "what a normalization gave is captured with it"
            numerator, inverse = self._denominator
            rebuilt = numerator * inverse if t.norm.weight is None else numerator * inverse * t.norm.weight
            found += _sizes(rebuilt if t.norm.beta is None else rebuilt + t.norm.beta, t.normalized)
        stacked: Tensor = torch.stack(found).unflatten(0, (-1, 2))
        return stacked

    def _attention_gap(self) -> list[Float[Tensor, "batch query"]]:
        """Along random directions, where the difference has its size on average: rebuilding the attention output whole
        would cost one more product of the model's width squared.
        """
        t = self.tensors
        mixed = t.pairs.mixed.flatten(2)
        if t.output_check is not None:
            return [t.output_check.gaps(mixed, t.projected)[0], t.projected.norm(dim=-1)]
        summed = torch.cat([m @ w.flatten(0, 1) for m, w in zip(mixed.chunk(len(t.weights)), t.weights, strict=True)])
        return _sizes(summed if t.bias is None else summed + t.bias, t.projected)

    # ---- all of it in one compiled loop --------------------------------------------------------------------------

    @cached_property
    def _compiled(self) -> _PerQuery | None:
        """Gaps and norms of a plain, long enough block in one pass over its vectors; None: PyTorch does it."""
        t = self.tensors
        wanted = t.pairs.compiled and (t.pairs.own is not None or not t.self_attends)
        if not wanted or t.branch or t.others is not None or t.output_check is None or t.stream_weights is not None:
            return None
        rows = compiled_loops().vectors
        norm, width = t.norm, t.total.shape[-1]
        zeros, ones = t.total.new_zeros(width), t.total.new_ones(width)
        out = t.total.new_empty(rows.ROWS, *t.total.shape[:2])

        def flat(vectors: Tensor) -> Tensor:
            return vectors.flatten(0, 1).contiguous()

        run_compiled(
            "per_query",
            mixed=flat(t.pairs.mixed.flatten(2)),
            before=t.output_check.before[0],
            after=t.output_check.after[0],
            shift=t.output_check.shift[0],
            summed=flat(t.projected),
            bias=zeros if t.bias is None else t.bias.contiguous(),
            own=flat(self.own) if t.self_attends else torch.zeros_like(flat(t.total)),
            residual=flat(t.residual),
            total=flat(t.total),
            normalized=flat(t.total if t.normalized is None else t.normalized),
            gamma=ones if norm is None or norm.weight is None else norm.weight.contiguous(),
            beta=zeros if norm is None or norm.beta is None else norm.beta.contiguous(),
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
    """What the compiled loop gives for each query."""

    gaps: Float[Tensor, "stage 2 batch query"]
    mixing: Mapping[Stage, tuple[Float[Tensor, "batch query"], Float[Tensor, "batch query"]]]
    scales: Mapping[Stage, Float[Tensor, "batch query 1"]]


def gap(rebuilt: Tensor, observed: Tensor) -> Float[Tensor, "2 batch query"]:
    """The norms of the difference and of what was observed, for each query."""
    return torch.stack(_sizes(rebuilt, observed))


def _sizes(rebuilt: Tensor, observed: Tensor) -> list[Float[Tensor, "batch query"]]:
    return [(rebuilt - observed).norm(dim=-1), observed.norm(dim=-1)]
