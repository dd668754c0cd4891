"""The proof that the parts rebuild what the model computed.

Four checks. *Sums*: parts, residual and biases added up must equal the model's own vectors at each stage. *Parts*: a right
sum can hide wrong parts, so a seeded handful of pairs is rebuilt from explicit vectors, straight from the equations, in
float64. *Values*: keys could be mixed up in weights and values alike and no sum would show it, so the value vectors are
compared, along random directions, with `x W_V + b_V`. *Output*: parts can rebuild a forward pass that is not the user's, so
the model's output under capture is compared with its output under its own attention (`check_output`, once per kind of
input).

The first three run on every site. Their numbers are gathered on the model's device and judged on the host, in float64: of
another device everything comes in one copy.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from random import Random

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from normlens.decompose.block import Block
from normlens.decompose.devices import doubles_on_host, gather_rows, on_host
from normlens.decompose.feed_forward import (
    Activation,
    Arithmetic,
    Experts,
    FeedForwardPass,
    Gated,
    Node,
    apply_steps,
    input_linears,
)
from normlens.decompose.pairs import Samples
from normlens.decompose.stages import FeedForwardStage, Stage
from normlens.decompose.steps import Normalization, Scaling, Shift, Step, host_copy, linear, scale_through
from normlens.errors import DecompositionError
from normlens.measures.table import MEASURES, SiteValues

#: The largest relative error that rounding may explain, by the dtype in which the model computed. Many families take
#: softmax and normalization in float32 whatever their dtype (Llama, Gemma, T5), so float64 models are no better than 1e-7.
TOLERANCE = {torch.float64: 1e-6, torch.float32: 1e-4, torch.float16: 1e-2, torch.bfloat16: 5e-2}
#: Pairs of query and key that are rebuilt from explicit vectors, per site and batch.
SPOT_CHECKS = 4
#: Entries of a matrix that are converted to float64 at a time.
_ENTRIES = 1 << 22
_STAGE_WORDS = {"attn": "attention output", "res": "residual sum", "ln": "normalized sum"}


@dataclass(frozen=True)
class Subject:
    """The site that is being proved, for the error message."""

    family: str
    site: str
    module: str
    dtype: torch.dtype

    @property
    def tolerance(self) -> float:
        """The largest relative error that rounding may explain."""
        return TOLERANCE[self.dtype]

    def check(self, what: str, error: float) -> None:
        """Raise an error if the relative error is too large, or not a number."""
        if not error <= self.tolerance:
            raise self.fail(what, error)

    def fail(self, what: str, error: float) -> DecompositionError:
        """The error for a failed proof."""
        return DecompositionError(
            f"the {what} is off by {error:.2g} (allowed: "
            f"{self.tolerance:.0e}) in {self.family!r}, {self.site}, module {self.module}; no result is returned; "
            "please report the model's family and versions"
        )


@dataclass(frozen=True)
class SmallValues:
    """Mixing ratios and residual norms on the host."""

    mixing: dict[str, Float[Tensor, "batch query"]]
    residual: dict[str, Float[Tensor, "batch query"]]


def prove(
    block: Block,
    measured: SiteValues,
    query_mask: Bool[Tensor, "batch query"],
    key_mask: Bool[Tensor, "batch key"],
    subject: Subject,
) -> tuple[Float[Tensor, " batch"], SmallValues]:
    """Run all checks of one site; a failed one is an error.

    Returns:
        The largest relative error of each sequence; and the ratios and residual norms of the site, which travel to the
        host together with the numbers of the checks.
    """
    gaps, by_key, sampled = _sum_gaps(block), _value_gaps(block), _sampled_parts(block, measured.values)
    small = [*measured.mixing.values(), *measured.residual.values()]
    arrays = on_host([torch.stack(list(gaps.values())), *by_key, *sampled.values(), *small])
    errors = _judge_sums(arrays[0], list(gaps), query_mask, subject)
    if by_key:
        _judge_values(arrays[1], arrays[2], key_mask, subject)
    first = 1 + len(by_key)
    if sampled:
        _judge_parts(block, measured.values, dict(zip(sampled, arrays[first:], strict=False)), subject)
    if block.end is not None and block.end.feed_forward is not None:
        _prove_feed_forward_maps(block, measured.values, subject)
    _prove_rows(block, measured.values, subject)
    rest = [torch.from_numpy(array) for array in arrays[first + len(sampled) :]]
    ratios = dict(zip(measured.mixing, rest, strict=False))
    residual = dict(zip(measured.residual, rest[len(ratios) :], strict=True))
    return torch.from_numpy(errors), SmallValues(ratios, residual)


# ---- sums ----------------------------------------------------------------------------------------------------------------


def _sum_gaps(block: Block) -> dict[str, Float[Tensor, "2 batch query"]]:
    """The norms of the difference and of the model's own vector, by what is compared."""
    gaps = dict(zip([_STAGE_WORDS[stage] for stage in block.stages], block.gaps(), strict=True))
    end = block.end
    if end is not None:
        if end.feed_forward is not None:
            gaps |= block.layer.gaps()
        last = end.gap()
        if last is not None:
            gaps["normalized sum at the end of the layer"] = last
    return gaps


def prove_sums(block: Block, query_mask: Bool[Tensor, "batch query"], subject: Subject) -> Float[Tensor, " batch"]:
    """The largest relative error over the stages, for each sequence, real positions only; too large is an error.

    Each stage after the attention output is compared with the one before it, as the model computed it.
    """
    gaps = _sum_gaps(block)
    (array,) = on_host([torch.stack(list(gaps.values()))])
    return torch.from_numpy(_judge_sums(array, list(gaps), query_mask, subject))


def _judge_sums(
    gaps: Float[np.ndarray, "place 2 batch query"], words: Sequence[str], query_mask: Tensor, subject: Subject
) -> Float[np.ndarray, " batch"]:
    real = query_mask.numpy()
    if not real.all():
        gaps = np.where(real, gaps, 0)
    squares = np.square(gaps, dtype=np.float64).sum(-1)  # place 2 batch
    errors = np.sqrt(squares[:, 0] / np.maximum(squares[:, 1], 1e-300))
    if not errors.max() <= subject.tolerance:  # also true for NaN
        for what, error in zip(words, errors, strict=True):
            subject.check(what, float(error.max()))
    worst: np.ndarray = errors.max(0)
    return worst


# ---- parts ---------------------------------------------------------------------------------------------------------------


def pick_pairs(
    queries_of: Sequence[Sequence[int]], keys_of: Sequence[Sequence[int]], diagonal: bool, seed: int = 0
) -> Samples:
    """A seeded handful of real pairs (sequence, query, key), from the real positions of each sequence.

    The first is on the diagonal where there is one; the second has the last key, which queries may never reach.
    """
    drawn = Random(seed)
    pairs = []
    for n in range(SPOT_CHECKS):
        batch = drawn.randrange(len(queries_of))
        queries, keys = queries_of[batch], keys_of[batch]
        query, key = queries[drawn.randrange(len(queries))], keys[drawn.randrange(len(keys))]
        if n == 0 and diagonal:
            key = query
        elif n == 1:
            key = keys[-1]
        pairs.append((batch, query, key))
    return tuple(pairs)


def prove_parts(block: Block, values: Mapping[str, Tensor], subject: Subject) -> None:
    """Rebuild the sampled entries of each map from explicit vectors; a difference is an error."""
    sampled = _sampled_parts(block, values)
    if sampled:
        arrays = on_host(list(sampled.values()))
        _judge_parts(block, values, dict(zip(sampled, arrays, strict=True)), subject)


def _maps_of_norms(values: Mapping[str, Tensor]) -> dict[str, Stage]:
    """The maps of norms at a stage of the attention block."""
    stages = {}
    for name in values:
        stage = MEASURES[name].stage
        if stage is not None:
            stages[name] = stage
    return stages


def _sampled_parts(block: Block, values: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The vectors of the sampled pairs, and their entries in the measures; empty where no measure is of vectors.

    Of a map the whole row is taken: an entry is judged beside the largest of its row.
    """
    maps = list(_maps_of_norms(values))
    by_head = [name for name in ("f_norm", "af_norm") if name in values]
    if not maps and not by_head:
        return {}
    samples = block.pairs.samples
    batch, query, key = zip(*samples, strict=True)
    sampled = {"heads": explicit_heads(block, samples), "weights": block.pairs.sampled_weights}
    if maps:
        sampled |= rows_of_queries(block, samples)
        sampled |= dict(zip(maps, gather_rows([values[name] for name in maps], batch, query), strict=True))
    for name in by_head:  # (batch, head, key) and (batch, head, query, key)
        indices = (batch, key) if name == "f_norm" else (batch, query, key)
        (sampled[name],) = gather_rows([values[name].movedim(1, -1)], *indices)
    return sampled


def _judge_parts(
    block: Block, values: Mapping[str, Tensor], sampled: Mapping[str, np.ndarray], subject: Subject
) -> None:
    pairs = block.pairs.samples
    heads, weights = sampled["heads"].astype(np.float64), sampled["weights"].astype(np.float64)
    if "f_norm" in sampled or "af_norm" in sampled:
        lengths = np.linalg.norm(heads, axis=-1)
        for name, explicit in (("f_norm", lengths), ("af_norm", np.abs(weights) * lengths)):
            if name in sampled:
                errors = _relative(sampled[name], explicit, explicit.max(-1, keepdims=True)).max(-1)
                _judge_pairs(name, errors, pairs, subject)
    maps = _maps_of_norms(values)
    if maps:
        vectors = explicit_parts(block, np.einsum("ph,phd->pd", weights, heads), pairs, sampled)
        for name, stage in maps.items():
            _judge_rows(name, sampled[name], np.linalg.norm(vectors[stage], axis=-1), pairs, subject)


def _judge_rows(
    name: str,
    rows: Float[np.ndarray, "pair key"],
    explicit: Float[np.ndarray, " pair"],
    pairs: Samples,
    subject: Subject,
) -> None:
    """Compare the sampled entries of rows of a map with explicit ones."""
    entries = rows[np.arange(len(pairs)), [key for _, _, key in pairs]]
    _judge_pairs(name, _relative(entries, explicit, rows.max(-1)), pairs, subject)


def _judge_pairs(name: str, errors: Float[np.ndarray, " pair"], pairs: Samples, subject: Subject) -> None:
    if errors.max() <= subject.tolerance:  # not true for NaN
        return
    worst = int(np.nan_to_num(errors, nan=np.inf).argmax())
    _, query, key = pairs[worst]
    subject.check(f"{name} of query {query} and key {key}", float(errors[worst]))


def _relative(entry: np.ndarray, explicit: np.ndarray, most: np.ndarray) -> np.ndarray:
    """The relative error of an entry, with some allowance where the rest of its row is far larger."""
    error: np.ndarray = np.abs(entry - explicit) / (explicit + 1e-3 * most + 1e-30)
    return error


def rows_of_queries(block: Block, pairs: Samples) -> dict[str, Float[Tensor, "pair model"]]:
    """The model's vectors at the pairs' queries, as far as the way of their parts depends on them."""
    rows: dict[str, Tensor | None] = {
        "total": None if block.norm is None else block.total,
        "residual": block.residual if block.self_attends else None,
        "projected": block.projected if block.branch else None,
        "streams": block.stream_weights,
        "end": None if block.end is None or block.end.norm is None else block.end.total,
    }
    by_width: dict[int, dict[str, Tensor]] = {}
    for name, tensor in rows.items():
        if tensor is not None:
            by_width.setdefault(tensor.shape[-1], {})[name] = tensor
    batch, query, _ = zip(*pairs, strict=True)
    gathered: dict[str, Tensor] = {}
    for tensors in by_width.values():
        gathered |= dict(zip(tensors, gather_rows(list(tensors.values()), batch, query), strict=True))
    return gathered


def explicit_heads(block: Block, pairs: Samples) -> Float[Tensor, "pair head model"]:
    """`f_h(x_j)` of the pairs' keys, head by head; only a gate makes it depend on the query."""
    batch, query, key = zip(*pairs, strict=True)
    (values,) = gather_rows([block.values.transpose(1, 2)], batch, key)  # pair kv_head width
    heads = block.w_o.shape[0]
    if heads != values.shape[1]:
        values = values.repeat_interleave(heads // values.shape[1], dim=1)
    if block.gate is not None:
        values = values * gather_rows([block.gate], batch, query)[0]
    return torch.bmm(values.transpose(0, 1), block.w_o).transpose(0, 1)


def explicit_parts(
    block: Block, parts: Float[np.ndarray, "pair model"], pairs: Samples, rows: Mapping[str, np.ndarray]
) -> dict[Stage, Float[np.ndarray, "pair model"]]:
    """The vectors of pairs on the way to each stage, step by step in float64.

    `rows` holds the model's vectors at the pairs' queries (`rows_of_queries`).
    """
    at_stages: dict[Stage, np.ndarray] = {"attn": parts}
    if block.branch:
        y = rows["projected"].astype(np.float64)
        for step in block.branch:
            parts, y = explicit_step(step, parts, y), explicit_step(step, y, y) + explicit_shift(step)
    if block.stream_weights is not None:
        parts = np.einsum("ps,pd->psd", rows["streams"].astype(np.float64), parts).reshape(len(parts), -1)
    if block.self_attends:
        own = np.array([[query == key] for _, query, key in pairs])
        parts = parts + rows["residual"] * own
    at_stages["res"] = parts
    if block.norm is not None:
        parts = explicit_step(block.norm, parts, rows["total"].astype(np.float64))
    at_stages["ln"] = parts
    if block.end is not None and block.end.norm is not None:
        parts = explicit_step(block.end.norm, parts, rows["end"].astype(np.float64))
    at_stages["enc"] = parts
    return at_stages


def explicit_shift(step: Step) -> np.ndarray | float:
    """The vector that a step adds, which belongs to no part."""
    step = host_copy(step)
    if isinstance(step, Shift):
        return step.vector.numpy()
    if isinstance(step, Normalization) and step.beta is not None:
        return step.beta.numpy()
    return 0.0


def explicit_step(step: Step, part: np.ndarray, y: np.ndarray) -> np.ndarray:
    """`gamma * (part - mean(part)) / s(y)` (2021, Equation 7), or multiplication by a constant; see `explicit_shift`."""
    step = host_copy(step)
    if isinstance(step, Shift):
        return part
    if isinstance(step, Scaling):
        return part * (step.factor if isinstance(step.factor, float) else step.factor.numpy())
    if step.centred:
        part, y = part - part.mean(-1, keepdims=True), y - y.mean(-1, keepdims=True)
    part = part / np.sqrt(np.square(y).mean(-1, keepdims=True) + step.eps)
    return part if step.weight is None else step.weight.numpy() * part


def explicit_stages(
    block: Block, pairs: Samples, weights: Float[Tensor, "pair head"]
) -> dict[Stage, Float[np.ndarray, "pair _"]]:
    """The parts of some pairs at each stage, one vector after the other in float64 on the host."""
    rows = rows_of_queries(block, pairs)
    heads, by_head, *arrays = on_host([explicit_heads(block, pairs), weights, *rows.values()])
    parts = np.einsum("ph,phd->pd", by_head.astype(np.float64), heads.astype(np.float64))
    return explicit_parts(block, parts, pairs, dict(zip(rows, arrays, strict=True)))


def _prove_rows(block: Block, values: Mapping[str, Tensor], subject: Subject) -> None:
    """Rebuild one row of each map that has an explicit form of its own; a difference is an error."""
    names = [name for name in values if MEASURES[name].explicit_row is not None]
    if not names:
        return
    row, query, _ = block.pairs.samples[0]
    vectors = [block.output[row, query]]
    beside = None if block.self_attends else block.residual_at("ln")
    if beside is not None:
        vectors.append(beside[row, query])
    y, *residual = (array.astype(np.float64) for array in on_host(vectors))
    pairs = tuple((row, query, key) for key in range(block.values.shape[2]))
    parts = explicit_stages(block, pairs, block.edge_weights[row, :, query].T)["ln"]
    for name, entries in zip(names, on_host([values[name][row, query] for name in names]), strict=True):
        explicit_row = MEASURES[name].explicit_row
        assert explicit_row is not None
        explicit = explicit_row(parts, y, residual[0] if residual else None)
        error = float(np.abs(entries - explicit).max() / max(np.abs(explicit).max(), 1e-30))
        subject.check(f"{name} of query {query}", error)


# ---- the rest of the layer, for a few pairs in float64 -------------------------------------------------------------------


class _DoubleOnHost(Arithmetic):
    """Float64 on the host; a matrix is converted some columns at a time. Off the CPU it is multiplied where it is."""

    def product(self, x: Tensor, weight: Tensor) -> Tensor:
        if weight.device.type != "cpu":
            return (x.to(weight.dtype).to(weight.device) @ weight).cpu().double()
        width = max(1, _ENTRIES // len(weight))
        return torch.cat([x @ columns.double() for columns in weight.split(width, dim=1)], dim=-1)

    def bias(self, bias: Tensor) -> Tensor:
        return bias.cpu().double()

    def steps(self, steps: tuple[Step, ...]) -> tuple[Step, ...]:
        return tuple(host_copy(step) for step in steps)


_DOUBLE = _DoubleOnHost()


def _prove_feed_forward_maps(block: Block, values: Mapping[str, Tensor], subject: Subject) -> None:
    """Rebuild the sampled entries of feed-forward maps and of value zeroing; a difference is an error."""
    stages: dict[str, FeedForwardStage] = {}
    for name in values:
        stage = MEASURES[name].feed_forward_stage
        if stage is not None:
            stages[name] = stage
    reruns = [name for name in values if MEASURES[name].reruns_layer]
    if not stages and not reruns:
        return
    pairs = block.pairs.samples
    layer = _ExplicitLayer(block, pairs)
    explicit = {}
    if stages:
        parts = layer.parts(subject)
        explicit = {name: parts[stage].norm(dim=-1).numpy() for name, stage in stages.items()}
    for name in reruns:
        explicit[name] = layer.distance_without_value().numpy()
    batch, query, _ = zip(*pairs, strict=True)
    rows = on_host(gather_rows([values[name] for name in explicit], batch, query))
    for (name, entries), row in zip(explicit.items(), rows, strict=True):
        _judge_rows(name, row, entries, pairs, subject)


class _ExplicitLayer:
    """The sampled pairs' parts on their way to the end of the layer, from the vectors that entered it.

    Neither heads nor captured products of the path that is checked are used; of a router, its choice and weights.
    """

    def __init__(self, block: Block, pairs: Samples) -> None:
        end = block.end
        assert end is not None and end.feed_forward is not None, "the feed-forward block must have been requested"
        self.block, self.end, self.tensors, self.pairs = block, end, end.feed_forward, pairs
        explicit = explicit_stages(block, pairs, block.pairs.sampled_weights)
        self.stages = {stage: torch.from_numpy(np.asarray(part, dtype=np.float64)) for stage, part in explicit.items()}
        self._rows = self._at_queries()

    def _at_queries(self) -> dict[int, Tensor]:
        """The model's vectors at the pairs' queries, by the identity of the tensor they are in; read all at once."""
        block, tensors = self.block, self.tensors
        wanted = [block.output, tensors.beside, tensors.output, self.end.total]
        wanted += [block.total, block.projected, block.residual, block.others, *tensors.captured.values()]
        present = [tensor for tensor in wanted if tensor is not None]
        batch, query, _ = zip(*self.pairs, strict=True)
        rows = doubles_on_host([gather_rows([tensor], batch, query)[0] for tensor in present])
        return {id(tensor): row for tensor, row in zip(present, rows, strict=True)}

    def _at(self, tensor: Tensor) -> Tensor:
        return self._rows[id(tensor)]

    def parts(self, subject: Subject) -> dict[FeedForwardStage, Float[Tensor, "pair model"]]:
        """Each pair's part at the feed-forward output, at the sum with the stream, and after the normalization."""
        block, tensors = self.block, self.tensors
        if tensors.beside is None:
            x, part = self._at(block.output), self.stages["ln"]
            entering, norm, total = part, self.end.norm, self.end.total
        else:  # beside attention it reads its own position alone
            x, part = self._at(tensors.beside), self.stages["res"]
            own = torch.tensor([[query == key] for _, query, key in self.pairs])
            entering, norm, total = x * own, block.norm, block.total
        products = {entering.captured for entering in input_linears(tensors.root)}
        routed = {name: self._at(tensor) for name, tensor in tensors.captured.items() if name not in products}
        run = FeedForwardPass(tensors.root, x, routed, _DOUBLE)
        fed = run.carry(run.vectors_at(entering), slice(None))
        _check_factors(run, run.root, subject)
        summed = _carried(tensors.branch, fed, self._at(tensors.output)) + _carried(tensors.stream, part, part)
        ended = summed if norm is None else _carried((norm,), summed, self._at(total))
        return {"ff": fed, "ffres": summed, "ffln": ended}

    def distance_without_value(self) -> Float[Tensor, " pair"]:
        """`1 - cos` of the layer's outputs with and without the pair's value vector."""
        projected = self._at(self.block.projected)
        whole, without = self._layer(projected), self._layer(projected - self.stages["attn"])
        return 1 - torch.nn.functional.cosine_similarity(whole, without, dim=-1)

    def _layer(self, projected: Tensor) -> Tensor:
        """The layer from an attention output on."""
        block, tensors = self.block, self.tensors
        y = apply_steps(_DOUBLE.steps(block.branch), projected) + self._at(block.residual)
        if block.others is not None:
            y = y + self._at(block.others)
        if block.norm is not None:
            y = apply_steps(_DOUBLE.steps((block.norm,)), y)
        if tensors.beside is not None:
            return y
        fed = FeedForwardPass(tensors.root, y, {}, _DOUBLE).value(tensors.root)
        y = apply_steps(_DOUBLE.steps(tensors.branch), fed) + apply_steps(_DOUBLE.steps(tensors.stream), y)
        return y if self.end.norm is None else apply_steps(_DOUBLE.steps((self.end.norm,)), y)


def _check_factors(run: FeedForwardPass, node: Node, subject: Subject) -> None:
    """Check that the slopes and gates of a block, applied to its own vectors, give its own values."""
    if isinstance(node, Experts):
        for _, _, expert in run.experts(node):
            _check_factors(expert, expert.root, subject)
    if isinstance(node, Activation | Gated):
        whole = run.value(node)
        if isinstance(node, Activation):
            whole = whole - node.act(torch.zeros((), dtype=whole.dtype))
        carried = node.carry(run, run.value, slice(None))
        error = float((carried - whole).norm() / whole.norm().clamp_min(1e-300))
        subject.check("sum of a feed-forward activation's parts", error)
    for source in node.sources:
        _check_factors(run, source, subject)


def _carried(steps: tuple[Step, ...], part: Tensor, y: Tensor) -> Tensor:
    """A part after some steps, with the denominators that they have for `y`."""
    steps = _DOUBLE.steps(steps)
    scale = scale_through(steps, y)
    carried = linear(steps, part)
    return carried if scale is None else carried * scale


# ---- weights and values --------------------------------------------------------------------------------------------------


def prove_weights(
    alpha: Float[Tensor, "batch head query key"], query_mask: Bool[Tensor, "batch query"], subject: Subject
) -> None:
    """Check that the weights of a query add up to no more than 1, as a softmax gives them (a sink takes a share).

    Weights that were multiplied by something else would rebuild the sum all the same.
    """
    (most,) = on_host([alpha.sum(-1).amax(1)])
    sums = np.where(query_mask.numpy(), most, 0)
    subject.check("sum of a query's attention weights, at most 1,", float(sums.max() - 1))


def _value_gaps(block: Block) -> list[Tensor]:
    """The distance of each key's value vector from `x_j W_V + b_V`, along random directions, and its size."""
    if block.value_check is None:
        return []
    return [*block.value_check.gaps(block.x, block.values.transpose(1, 2).flatten(2))]


def _judge_values(
    gaps: Float[np.ndarray, "batch key"], sizes: Float[np.ndarray, "batch key"], key_mask: Tensor, subject: Subject
) -> None:
    real = key_mask.numpy()
    gaps, sizes = np.where(real, gaps, 0).astype(np.float64), np.where(real, sizes, 0).astype(np.float64)
    # A value vector that is next to nothing beside the largest one is held to a thousandth of that.
    errors = gaps / np.maximum(sizes, 1e-3 * sizes.max() + 1e-15)
    subject.check("value vectors by key", float(errors.max()))


# ---- the output ----------------------------------------------------------------------------------------------------------


def check_output(
    captured: Sequence[Sequence[Tensor]],
    own: Sequence[Sequence[Tensor]],
    mask: Bool[Tensor, "batch position"] | None,
    subject: Subject,
) -> float:
    """Compare the outputs under capture with those of the user's own call; too large a difference is an error.

    Both list, for the modules around all attention from the outermost inwards, what each call gave: the first module that
    ran in both passes is compared. `mask` says which positions are real.
    """
    calls = next(((ours, theirs) for ours, theirs in zip(captured, own, strict=True) if ours and theirs), None)
    if calls is None or [t.shape for t in calls[0]] != [t.shape for t in calls[1]]:
        here, there = ([tuple(t.shape) for t in tensors] for tensors in calls or ((), ()))
        raise DecompositionError(
            f"{subject.module} of {subject.family!r} gives tensors of shape {there} when the model is called, and "
            f"{here} on the inputs alone (is a prompt or a prefix put in front of them?); merge it into the "
            "model, or pass the inner model to Lens()"
        )
    difference = whole = 0.0
    for ours, theirs in zip(*calls, strict=True):
        a, b = ours.cpu().double(), theirs.cpu().double()
        if mask is not None and mask.shape == a.shape[:2]:
            a, b = a[mask], b[mask]
        difference, whole = difference + float((a - b).square().sum()), whole + float(b.square().sum())
    error = float((difference / max(whole, 1e-60)) ** 0.5)
    if not error <= subject.tolerance:
        raise DecompositionError(
            f"the output of {subject.family!r} under capture differs from its own by {error:.2g} (allowed: "
            f"{subject.tolerance:.0e}); no result is returned, since it would describe another model"
        )
    return error
