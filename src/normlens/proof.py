"""Do the parts rebuild what the model computed?

Four checks, on every run. *Sums*: parts, residual and biases added up must equal the model's own vectors at each stage.
*Parts*: a right sum can hide wrong parts, so a seeded handful of pairs is rebuilt from explicit vectors, straight from
the equations, and summed in float64. *Values*: keys could be mixed up in weights and values alike and no sum would show
it, so the value vectors are compared, along random directions, with what `W_V` makes of the vectors that `f` acts on.
*Output*: parts can rebuild a forward pass that is not the user's, so the model's output under capture is compared with
its output under its own attention (`check_output`, once per kind of input).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from random import Random

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from normlens.decompose.block import Block
from normlens.decompose.stages import Stage
from normlens.decompose.steps import Scaling, Shift, Step
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


def prove_sums(block: Block, query_mask: Bool[Tensor, "batch query"], subject: Subject) -> Float[Tensor, " batch"]:
    """The largest relative error over the stages, for each sequence, real positions only; too large is an error.

    Each stage after the attention output is compared with what becomes of the one before it, as the model computed it.
    """
    return proved_gaps(block.gaps(), [_STAGE_WORDS[stage] for stage in block.stages], query_mask, subject)


def proved_gaps(
    gaps: Float[Tensor, "place 2 batch query"],
    words: Sequence[str],
    query_mask: Bool[Tensor, "batch query"],
    subject: Subject,
) -> Float[Tensor, " batch"]:
    """The largest relative error over places, from squared differences and sizes; too large is an error."""
    if not bool(query_mask.all()):
        gaps = gaps * query_mask.to(gaps.device)
    difference, whole = gaps.sum(-1, dtype=torch.float64).unbind(1)
    errors = (difference / whole.clamp_min(1e-300)).sqrt().cpu()
    if not float(errors.amax()) <= subject.tolerance:  # also true for NaN
        for what, error in zip(words, errors, strict=True):
            if not bool((error <= subject.tolerance).all()):
                raise subject.fail(what, float(error.max()))
    return errors.amax(0)


def pick_pairs(
    query_mask: Bool[Tensor, "batch query"], key_mask: Bool[Tensor, "batch key"], diagonal: bool, seed: int = 0
) -> Int[Tensor, "pair 3"]:
    """A seeded handful of real pairs (batch, query, key).

    The first is on the diagonal where there is one; the second has the last key, which queries may never reach.
    """
    drawn = Random(seed)
    real = {id(mask): mask.sum(-1).tolist() for mask in (query_mask, key_mask)}

    def one_of(mask: Tensor, row: int) -> int:
        at = drawn.randrange(real[id(mask)][row])
        return at if real[id(mask)][row] == mask.shape[1] else int(mask[row].nonzero()[at])

    pairs = []
    for n in range(SPOT_CHECKS):
        batch = drawn.randrange(query_mask.shape[0])
        query = one_of(query_mask, batch)
        key = one_of(key_mask, batch)
        if n == 0 and diagonal:
            key = query
        elif n == 1:
            key = int(key_mask[batch].nonzero()[-1])
        pairs.append((batch, query, key))
    return torch.tensor(pairs)


def prove_parts(block: Block, values: Mapping[str, Tensor], subject: Subject) -> None:
    """Rebuild the sampled entries of each map from explicit vectors; a difference is an error."""
    pairs = block.tensors.pairs
    maps = {name: stage for name in values if (stage := MEASURES[name].stage) is not None}
    by_head = [name for name in values if name in ("f_norm", "af_norm")]
    if not maps and not by_head:
        return
    batch, query, key = pairs.samples.to(block.tensors.values.device).unbind(-1)
    heads = explicit_heads(block, batch, query, key)
    weights = pairs.sampled_weights.double()
    found: dict[str, Tensor] = {}  # the error of each pair
    if maps:
        parts = explicit_parts(block, (weights.unsqueeze(1) @ heads).squeeze(1), pairs.samples)
        length = {stage: parts[stage].norm(dim=-1) for stage in set(maps.values())}
        explicit = torch.stack([length[stage] for stage in maps.values()])
        rows = torch.stack([values[name][batch, query] for name in maps])  # name pair key
        entry = rows[:, torch.arange(len(key), device=key.device), key]
        found.update(zip(maps, _relative(entry, explicit, rows.amax(-1)), strict=True))
    for name in by_head:
        lengths = heads.norm(dim=-1)
        explicit = lengths if name == "f_norm" else weights.abs() * lengths
        entry = values[name][batch, :, key] if name == "f_norm" else values[name][batch, :, query, key]
        found[name] = _relative(entry, explicit, explicit.amax(-1, keepdim=True)).amax(-1)
    errors = torch.stack(list(found.values()))
    if not bool((errors <= subject.tolerance).all()):
        n, worst = divmod(int(errors.nan_to_num(torch.inf).argmax()), len(key))
        where = f"query {int(query[worst])} and key {int(key[worst])}"
        raise subject.fail(f"{list(found)[n]} of {where}", float(errors[n, worst]))


def _relative(entry: Tensor, explicit: Tensor, most: Tensor) -> Tensor:
    """How far an entry is off, with some allowance where the rest of its row is far larger."""
    return (entry - explicit).abs() / (explicit + 1e-3 * most + 1e-30)


def prove_weights(
    alpha: Float[Tensor, "batch head query key"], query_mask: Bool[Tensor, "batch query"], subject: Subject
) -> None:
    """The weights of a query add up to no more than 1, as a softmax gives them (a sink takes a share); else an error.

    Weights that were multiplied by something else would rebuild the sum all the same.
    """
    most = float(alpha.sum(-1).amax(1).cpu()[query_mask].max())
    if not most <= 1 + subject.tolerance:
        raise subject.fail("sum of a query's attention weights, at most 1,", most - 1)


def prove_values(block: Block, key_mask: Bool[Tensor, "batch key"], subject: Subject) -> None:
    """`x_j W_V + b_V` must be the value vector of key `j` itself, seen along random directions; else an error."""
    check = block.tensors.value_check
    if check is None:
        return
    gaps, sizes = check.gaps(block.tensors.x, block.tensors.values.transpose(1, 2).flatten(2))
    if not bool(key_mask.all()):
        gaps, sizes = gaps[key_mask], sizes[key_mask]
    # A value vector that is next to nothing beside the largest one is held to a thousandth of that.
    error = float((gaps / sizes.clamp_min(1e-6 * float(sizes.max()) + 1e-30)).max()) ** 0.5
    if not error <= subject.tolerance:
        raise subject.fail("value vectors by key", error)


def explicit_heads(
    block: Block, batch: Int[Tensor, " pair"], query: Int[Tensor, " pair"], key: Int[Tensor, " pair"]
) -> Float[Tensor, "pair head model"]:
    """`f_h(x_j)` of the sampled keys, head by head; only a gate makes it depend on the query."""
    t = block.tensors
    values = t.values[batch, :, key]
    heads = t.weight.shape[0]
    if heads != values.shape[1]:
        values = values.repeat_interleave(heads // values.shape[1], dim=1)
    if t.gate is not None:
        values = values * t.gate[batch, query]
    return torch.bmm(values.transpose(0, 1), t.weight).transpose(0, 1).double()


def explicit_parts(
    block: Block, parts: Float[Tensor, "pair model"], pairs: Int[Tensor, "pair 3"]
) -> dict[Stage, Float[Tensor, "pair _"]]:
    """What becomes of the vectors of pairs (batch, query, key) on the way to each stage, step by step in float64."""
    t = block.tensors
    found: dict[Stage, Tensor] = {"attn": parts}
    batch, query, key = pairs.to(parts.device).unbind(-1)
    if t.branch:
        y = t.projected[batch, query].double()
        for step in t.branch:
            parts = _explicit_step(step, parts, y)
            y = _explicit_step(step, y, y) + _explicit_shift(step)
    if t.stream_weights is not None:
        parts = torch.einsum("ps,pd->psd", t.stream_weights[batch, query].double(), parts).flatten(1)
    if t.self_attends:
        parts = parts + t.residual[batch, query] * (query == key).unsqueeze(-1)
    found["res"] = parts
    found["ln"] = parts if t.norm is None else _explicit_step(t.norm, parts, t.total[batch, query].double())
    found["enc"] = found["ln"]
    if t.end is not None and t.end.norm is not None:
        found["enc"] = _explicit_step(t.end.norm, found["ln"], t.end.total[batch, query].double())
    return found


def _explicit_shift(step: Step) -> Tensor | float:
    if isinstance(step, Shift):
        return step.vector.double()
    return 0.0 if isinstance(step, Scaling) or step.beta is None else step.beta.double()


def _explicit_step(step: Step, part: Tensor, y: Tensor) -> Tensor:
    """`gamma * (part - mean(part)) / s(y)` (2021, Equation 7), or a constant's multiplication."""
    if isinstance(step, Scaling):
        return part * step.factor
    if isinstance(step, Shift):
        return part
    if step.centred:
        part, y = part - part.mean(-1, keepdim=True), y - y.mean(-1, keepdim=True)
    s = (y.square().mean(-1, keepdim=True) + step.eps).sqrt()
    return part / s if step.weight is None else step.weight.double() * part / s


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
        a, b = ours.double(), theirs.to(ours.device).double()
        if mask is not None and mask.shape == a.shape[:2]:
            a, b = a[mask.to(a.device)], b[mask.to(a.device)]
        difference, whole = difference + float((a - b).square().sum()), whole + float(b.square().sum())
    error = float((difference / max(whole, 1e-60)) ** 0.5)
    if not error <= subject.tolerance:
        raise DecompositionError(
            f"the model must compute the same under capture as when it is called: {subject.family!r} differs by "
            f"{error:.2g} (allowed: {subject.tolerance:.0e}); nothing is returned, since it would describe another model"
        )
    return error
