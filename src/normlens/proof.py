"""Do the parts rebuild what the model computed?

Four checks. *Sums*: parts, residual and biases added up must equal the model's own vectors at each stage. *Parts*: a right
sum can hide wrong parts, so a seeded handful of pairs is rebuilt from explicit vectors, straight from the equations, and
summed in float64. *Values*: keys could be mixed up in weights and values alike and no sum would show it, so the value
vectors are compared, along random directions, with what `W_V` makes of the vectors that `f` acts on. *Output*: parts can
rebuild a forward pass that is not the user's, so the model's output under capture is compared with its output under its own
attention (`check_output`, once per kind of input).

The first three run on every site. What they look at is gathered where the model is and judged on the host, in float64: of
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
from normlens.decompose.devices import on_host, picked
from normlens.decompose.grams import transformed
from normlens.decompose.pairs import Samples
from normlens.decompose.stages import Stage
from normlens.decompose.steps import Normalization, Scaling, Shift, Step, at_rows, host_copy
from normlens.errors import DecompositionError
from normlens.measures import MEASURES

#: The largest relative error that rounding may explain, by the dtype in which the model computed. Many families take
#: softmax and normalization in float32 whatever their dtype (Llama, Gemma, T5), so float64 models are no better than 1e-7.
TOLERANCE = {torch.float64: 1e-6, torch.float32: 1e-4, torch.float16: 1e-2, torch.bfloat16: 5e-2}
#: Pairs of query and key that are rebuilt from explicit vectors, per site and batch.
SPOT_CHECKS = 4
_STAGE_WORDS = {"attn": "attention output", "res": "residual sum", "ln": "normalized sum"}


@dataclass(frozen=True)
class Subject:
    """What is being proved, for the error message."""

    family: str
    site: str
    module: str
    dtype: torch.dtype

    @property
    def tolerance(self) -> float:
        return TOLERANCE[self.dtype]

    def fail(self, what: str, error: float) -> DecompositionError:
        return DecompositionError(
            f"the parts must rebuild what the model computed: in {self.family!r}, {self.site}, module {self.module}, "
            f"the {what} is off by {error:.2g} (allowed: {self.tolerance:.0e}); nothing is returned, since it would be "
            "wrong. Please report the model's family and versions"
        )


def prove(
    block: Block,
    values: Mapping[str, Tensor],
    query_mask: Bool[Tensor, "batch query"],
    key_mask: Bool[Tensor, "batch key"],
    subjects: Sequence[Subject],
    beside: Sequence[Tensor] = (),
) -> tuple[Float[Tensor, " batch"], list[Tensor]]:
    """All checks of one site, or of a stack with a subject for each row; what does not hold is an error.

    `values` are its measures. Returns the largest relative error of each sequence, and what was passed as `beside`:
    numbers that travel to the host together with those that the checks look at.
    """
    by_key, parts = _value_gaps(block), _sampled_parts(block, values)
    found = on_host([block.gaps(), *by_key, *parts.values(), *beside])
    errors = _judge_sums(found[0], _words_of(block), query_mask, subjects)
    if by_key:
        _judge_values(found[1], found[2], key_mask, subjects)
    first = 1 + len(by_key)
    if parts:
        _judge_parts(block, dict(zip(parts, found[first:], strict=False)), subjects)
    return torch.from_numpy(errors), [torch.from_numpy(array) for array in found[first + len(parts) :]]


# ---- sums ----------------------------------------------------------------------------------------------------------------


def prove_sums(block: Block, query_mask: Bool[Tensor, "batch query"], subject: Subject) -> Float[Tensor, " batch"]:
    """The largest relative error over the stages, for each sequence, real positions only; too large is an error.

    Each stage after the attention output is compared with what becomes of the one before it, as the model computed it.
    """
    return proved_gaps(block.gaps(), _words_of(block), query_mask, subject)


def proved_gaps(
    gaps: Float[Tensor, "place 2 batch query"],
    words: Sequence[str],
    query_mask: Bool[Tensor, "batch query"],
    subject: Subject,
) -> Float[Tensor, " batch"]:
    """The largest relative error over places, from norms of differences and of what was observed; too large is an error."""
    return torch.from_numpy(_judge_sums(on_host([gaps])[0], words, query_mask, [subject]))


def _words_of(block: Block) -> list[str]:
    return [_STAGE_WORDS[stage] for stage in block.stages]


def _judge_sums(
    gaps: Float[np.ndarray, "place 2 batch query"],
    words: Sequence[str],
    query_mask: Tensor,
    subjects: Sequence[Subject],
) -> Float[np.ndarray, " batch"]:
    real = query_mask.numpy()
    if not real.all():
        gaps = np.where(real, gaps, 0)
    difference, whole = np.moveaxis(np.square(gaps, dtype=np.float64).sum(-1), 1, 0)
    errors = np.sqrt(difference / np.maximum(whole, 1e-300))
    if not errors.max() <= subjects[0].tolerance:  # also true for NaN
        for what, error in zip(words, errors, strict=True):
            _check(error, subjects, what)
    worst: np.ndarray = errors.max(0)
    return worst


def _check(errors: Float[np.ndarray, " batch"], subjects: Sequence[Subject], what: str) -> None:
    """The errors of the rows of a batch, which belong to one subject or to one each."""
    for subject, error in zip(subjects, np.split(errors, len(subjects)), strict=True):
        if not (error <= subject.tolerance).all():  # also true for NaN
            raise subject.fail(what, float(error.max()))


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
    parts = _sampled_parts(block, values)
    if parts:
        _judge_parts(block, dict(zip(parts, on_host(list(parts.values())), strict=True)), [subject])


def _sampled_parts(block: Block, values: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """What the sampled pairs are rebuilt from, and what the measures say of them; nothing where no measure is of vectors.

    A map is looked at by row: an entry is judged beside the largest of its row.
    """
    t = block.tensors
    maps = [name for name in values if MEASURES[name].stage is not None]
    by_head = [name for name in values if name in ("f_norm", "af_norm")]
    if not maps and not by_head:
        return {}
    batch, query, key = zip(*t.pairs.samples, strict=True)
    found = {"heads": explicit_heads(block, t.pairs.samples), "weights": t.pairs.sampled_weights}
    if maps:
        found |= rows_of_queries(block, t.pairs.samples)
        found |= dict(zip(maps, picked([values[name] for name in maps], batch, query), strict=True))
    for name in by_head:  # (batch, head, key) and (batch, head, query, key)
        by_key = values[name].movedim(1, -1)
        (found[name],) = picked([by_key], *((batch, key) if name == "f_norm" else (batch, query, key)))
    return found


def _judge_parts(block: Block, found: Mapping[str, np.ndarray], subjects: Sequence[Subject]) -> None:
    pairs = block.tensors.pairs.samples
    key = np.array([key for _, _, key in pairs])
    heads, weights = found["heads"].astype(np.float64), found["weights"].astype(np.float64)
    vectors = None
    errors: dict[str, np.ndarray] = {}  # of each pair
    for name, entry in found.items():
        if name in ("f_norm", "af_norm"):
            lengths = np.linalg.norm(heads, axis=-1)
            explicit = lengths if name == "f_norm" else np.abs(weights) * lengths
            errors[name] = relative(entry, explicit, explicit.max(-1, keepdims=True)).max(-1)
        elif name in MEASURES:
            if vectors is None:
                vectors = explicit_parts(block, np.einsum("ph,phd->pd", weights, heads), pairs, found)
            stage = MEASURES[name].stage
            assert stage is not None, "only maps of vectors are sampled by row"
            length = np.linalg.norm(vectors[stage], axis=-1)
            errors[name] = relative(entry[np.arange(len(key)), key], length, entry.max(-1))
    for name, error in errors.items():
        if not (error <= subjects[0].tolerance).all():  # also true for NaN
            worst = int(np.nan_to_num(error, nan=np.inf).argmax())
            row, query, at = pairs[worst]
            subject = subjects[row if len(subjects) > 1 else 0]
            raise subject.fail(f"{name} of query {query} and key {at}", float(error[worst]))


def relative(entry: np.ndarray, explicit: np.ndarray, most: np.ndarray) -> np.ndarray:
    """How far an entry is off, with some allowance where the rest of its row is far larger."""
    error: np.ndarray = np.abs(entry - explicit) / (explicit + 1e-3 * most + 1e-30)
    return error


def rows_of_queries(block: Block, pairs: Samples) -> dict[str, Float[Tensor, "pair model"]]:
    """What the model computed at the pairs' queries, as far as the way of their parts depends on it."""
    t = block.tensors
    rows = {"total": None if t.norm is None else t.total, "residual": t.residual if t.self_attends else None}
    rows |= {"projected": t.projected if t.branch else None, "streams": t.stream_weights}
    rows |= {"end": None if t.end is None or t.end.norm is None else t.end.total}
    batch, query, _ = zip(*pairs, strict=True)
    found: dict[str, Tensor] = {}
    for width in {tensor.shape[-1] for tensor in rows.values() if tensor is not None}:
        alike = {name: tensor for name, tensor in rows.items() if tensor is not None and tensor.shape[-1] == width}
        found |= dict(zip(alike, picked(list(alike.values()), batch, query), strict=True))
    return found


def explicit_heads(block: Block, pairs: Samples) -> Float[Tensor, "pair head model"]:
    """`f_h(x_j)` of the pairs' keys, head by head; only a gate makes it depend on the query."""
    t = block.tensors
    batch, query, key = zip(*pairs, strict=True)
    (values,) = picked([t.values.transpose(1, 2)], batch, key)  # pair kv_head width
    heads = t.weights[0].shape[0]
    if heads != values.shape[1]:
        values = values.repeat_interleave(heads // values.shape[1], dim=1)
    if t.gate is not None:
        values = values * picked([t.gate], batch, query)[0]
    return transformed(values.transpose(0, 1), t.weights).transpose(0, 1)


def explicit_parts(
    block: Block, parts: Float[np.ndarray, "pair model"], pairs: Samples, rows: Mapping[str, np.ndarray]
) -> dict[Stage, Float[np.ndarray, "pair model"]]:
    """What becomes of the vectors of pairs on the way to each stage, step by step in float64.

    `rows` holds what the model computed at the pairs' queries (`rows_of_queries`).
    """
    t, each = block.tensors, [batch for batch, _, _ in pairs]
    found: dict[Stage, np.ndarray] = {"attn": parts}
    if t.branch:
        y = rows["projected"].astype(np.float64)
        for step in t.branch:
            parts, y = explicit_step(step, parts, y, each), explicit_step(step, y, y, each) + explicit_shift(step, each)
    if t.stream_weights is not None:
        parts = np.einsum("ps,pd->psd", rows["streams"].astype(np.float64), parts).reshape(len(parts), -1)
    if t.self_attends:
        own = np.array([[query == key] for _, query, key in pairs])
        parts = parts + rows["residual"] * own
    found["res"] = parts
    found["ln"] = parts if t.norm is None else explicit_step(t.norm, parts, rows["total"].astype(np.float64), each)
    found["enc"] = found["ln"]
    if t.end is not None and t.end.norm is not None:
        found["enc"] = explicit_step(t.end.norm, found["ln"], rows["end"].astype(np.float64))
    return found


def explicit_shift(step: Step, rows: Sequence[int] = ()) -> np.ndarray | float:
    """What a step adds that belongs to no part; in a stack, to vectors of these rows."""
    step = at_rows(host_copy(step), rows)
    shift = step.vector if isinstance(step, Shift) else step.beta if isinstance(step, Normalization) else None
    return 0.0 if shift is None else shift.numpy()


def explicit_step(step: Step, part: np.ndarray, y: np.ndarray, rows: Sequence[int] = ()) -> np.ndarray:
    """`gamma * (part - mean(part)) / s(y)` (2021, Equation 7), or a constant's multiplication; see `explicit_shift`."""
    step = at_rows(host_copy(step), rows)
    if isinstance(step, Shift):
        return part
    if isinstance(step, Scaling):
        return part * (step.factor if isinstance(step.factor, float) else step.factor.numpy())
    if step.centred:
        part, y = part - part.mean(-1, keepdims=True), y - y.mean(-1, keepdims=True)
    part = part / np.sqrt(np.square(y).mean(-1, keepdims=True) + step.eps)
    return part if step.weight is None else step.weight.numpy() * part


# ---- weights and values --------------------------------------------------------------------------------------------------


def prove_weights(
    alpha: Float[Tensor, "batch head query key"], query_mask: Bool[Tensor, "batch query"], subjects: Sequence[Subject]
) -> None:
    """The weights of a query add up to no more than 1, as a softmax gives them (a sink takes a share); else an error.

    Weights that were multiplied by something else would rebuild the sum all the same.
    """
    sums = np.where(query_mask.numpy(), on_host([alpha.sum(-1).amax(1)])[0], 0)
    _check(sums.max(1) - 1, subjects, "sum of a query's attention weights, at most 1,")


def _value_gaps(block: Block) -> list[Tensor]:
    """Of each key, how far its value vector is from `x_j W_V + b_V`, seen along random directions, and how large it is."""
    t = block.tensors
    return [] if t.value_check is None else [*t.value_check.gaps(t.x, t.values.transpose(1, 2).flatten(2))]


def _judge_values(
    gaps: Float[np.ndarray, "batch key"],
    sizes: Float[np.ndarray, "batch key"],
    key_mask: Tensor,
    subjects: Sequence[Subject],
) -> None:
    real = key_mask.numpy()
    gaps, sizes = (np.where(real, numbers, 0).astype(np.float64) for numbers in (gaps, sizes))
    # A value vector that is next to nothing beside the largest one is held to a thousandth of that.
    most = sizes.reshape(len(subjects), -1).max(1).repeat(len(sizes) // len(subjects))
    _check((gaps / np.maximum(sizes, 1e-3 * most[:, None] + 1e-15)).max(1), subjects, "value vectors by key")


# ---- the output ----------------------------------------------------------------------------------------------------------


def check_output(
    captured: Sequence[Sequence[Tensor]],
    own: Sequence[Sequence[Tensor]],
    mask: Bool[Tensor, "batch position"] | None,
    subject: Subject,
) -> float:
    """How far the outputs under capture are from those of the model as the user calls it; too far is an error.

    Both list, for the modules around all attention from the outermost inwards, what each call gave: the first module that
    ran in both passes is compared. `mask` says which positions are real.
    """
    calls = next(((ours, theirs) for ours, theirs in zip(captured, own, strict=True) if ours and theirs), None)
    if calls is None or [t.shape for t in calls[0]] != [t.shape for t in calls[1]]:
        here, there = ([tuple(t.shape) for t in tensors] for tensors in calls or ((), ()))
        raise DecompositionError(
            f"the analysed pass must be the user's: when {subject.family!r} is called, its {subject.module} gives tensors "
            f"of shape {there}, and on the inputs alone {here} (is a prompt or a prefix put in front of them?); merge it "
            "into the model, or hand the inner model to Lens"
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
            f"the model must compute the same under capture as when it is called: {subject.family!r} differs by "
            f"{error:.2g} (allowed: {subject.tolerance:.0e}); nothing is returned, since it would describe another model"
        )
    return error


def explicit_stages(
    block: Block, pairs: Samples, weights: Float[Tensor, "pair head"]
) -> dict[Stage, Float[np.ndarray, "pair _"]]:
    """The parts of some pairs at each stage, one vector after the other in float64 on the host."""
    rows = rows_of_queries(block, pairs)
    heads, by_head, *arrays = on_host([explicit_heads(block, pairs), weights, *rows.values()])
    parts = np.einsum("ph,phd->pd", by_head.astype(np.float64), heads.astype(np.float64))
    return explicit_parts(block, parts, pairs, dict(zip(rows, arrays, strict=True)))
