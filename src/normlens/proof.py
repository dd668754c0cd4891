"""Do the parts rebuild what the model computed?

Four checks, on every run. *Sums*: parts, residual and biases added up must equal the model's own vectors at each place.
*Parts*: a right sum can hide wrong parts, so a seeded handful of pairs is rebuilt from explicit vectors, straight from
the equations, and summed in float64. *Values*: keys could be mixed up in weights and values alike and no sum would show
it, so the value vectors are compared, along random directions, with what `W_V` makes of the vectors that `f` acts on.
*Output*: parts can rebuild a forward pass that is not the user's, so the model's output under capture is compared with
its output under its own attention (`check_output`, once per kind of input).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from random import Random

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from normlens.decompose.block import Block
from normlens.decompose.pairs import PlaceName
from normlens.decompose.steps import Scaling, Shifting, Step
from normlens.errors import DecompositionError
from normlens.measures import MEASURES

#: The largest relative error that rounding may explain, by the dtype in which the model computed. Many families take
#: softmax and normalization in float32 whatever their dtype (Llama, Gemma, T5), so float64 models are no better than 1e-7.
TOLERANCE = {torch.float64: 1e-6, torch.float32: 1e-4, torch.float16: 1e-2, torch.bfloat16: 5e-2}
#: Pairs of query and key that are rebuilt from explicit vectors, per site and batch.
SPOT_CHECKS = 4

_PLACE_WORDS = {"attn": "attention output", "res": "residual sum", "ln": "normalized sum"}


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
    """The largest relative error over the places, for each sequence, real positions only; too large is an error.

    Each place behind the attention output is compared with what becomes of the one before it, as the model computed it.
    """
    gaps = block.vectors.gaps  # place (difference, whole) batch query
    if not bool(query_mask.all()):
        gaps = gaps * query_mask.to(gaps.device)
    difference, whole = gaps.sum(-1, dtype=torch.float64).unbind(1)
    errors = (difference / whole.clamp_min(1e-300)).sqrt().cpu()
    if not float(errors.amax()) <= subject.tolerance:  # also true for NaN
        for place, error in zip(block.places, errors, strict=True):
            if not bool((error <= subject.tolerance).all()):
                raise subject.fail(_PLACE_WORDS[place], float(error.max()))
    return errors.amax(0)


def pick_pairs(
    query_mask: Bool[Tensor, "batch query"], key_mask: Bool[Tensor, "batch key"], diagonal: bool, seed: int = 0
) -> Int[Tensor, "pair 3"]:
    """A seeded handful of real pairs (batch, query, key), the first of them on the diagonal where there is one."""
    drawn = Random(seed)
    real = {id(mask): mask.sum(-1).tolist() for mask in (query_mask, key_mask)}

    def one_of(mask: Tensor, row: int) -> int:
        at = drawn.randrange(real[id(mask)][row])
        return at if real[id(mask)][row] == mask.shape[1] else int(mask[row].nonzero()[at])

    pairs = []
    for n in range(SPOT_CHECKS):
        batch = drawn.randrange(query_mask.shape[0])
        query = one_of(query_mask, batch)
        pairs.append((batch, query, query if diagonal and n == 0 else one_of(key_mask, batch)))
    return torch.tensor(pairs)


def prove_parts(block: Block, values: Mapping[str, Tensor], subject: Subject) -> None:
    """Rebuild the sampled entries of each map from explicit vectors; a difference is an error."""
    pairs = block.tensors.pairs
    maps = {name: place for name in values if (place := MEASURES[name].place) is not None}
    by_head = [name for name in values if name in ("f_norm", "af_norm")]
    if not maps and not by_head:
        return
    batch, query, key = pairs.samples.to(block.tensors.values.device).unbind(-1)
    heads = explicit_heads(block, batch, query, key)
    weights = pairs.sampled_alpha.double()
    found: dict[str, Tensor] = {}  # the error of each pair
    if maps:
        parts = explicit_parts(block, (weights.unsqueeze(1) @ heads).squeeze(1))
        length = {place: parts[place].norm(dim=-1) for place in set(maps.values())}
        explicit = torch.stack([length[place] for place in maps.values()])
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


def prove_values(block: Block, key_mask: Bool[Tensor, "batch key"], subject: Subject) -> None:
    """`x_j W_V + b_V` must be the value vector of key `j` itself, seen along random directions; else an error."""
    sketch = block.tensors.value_sketch
    if sketch is None:
        return
    gaps, sizes = sketch.gaps(block.tensors.x, block.tensors.values.transpose(1, 2).flatten(2))
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
    if t.heads != values.shape[1]:
        values = values.repeat_interleave(t.heads // values.shape[1], dim=1)
    if t.gate is not None:
        values = values * t.gate[batch, query]
    return torch.bmm(values.transpose(0, 1), t.projections["attn"].weight).transpose(0, 1).double()


def explicit_parts(block: Block, parts: Float[Tensor, "pair model"]) -> dict[PlaceName, Float[Tensor, "pair model"]]:
    """What becomes of the sampled vectors on the way to each place, step by step in float64."""
    t = block.tensors
    found: dict[PlaceName, Tensor] = {"attn": parts}
    batch, query, key = t.pairs.samples.to(parts.device).unbind(-1)
    if t.branch:
        y = t.projected[batch, query].double()
        for step in t.branch:
            parts = _explicit_step(step, parts, y)
            y = _explicit_step(step, y, y) + _explicit_shift(step)
    if t.self_attends:
        parts = parts + t.residual[batch, query] * (query == key).unsqueeze(-1)
    found["res"] = parts
    found["ln"] = parts if t.norm is None else _explicit_step(t.norm, parts, t.total[batch, query].double())
    return found


def _explicit_shift(step: Step) -> Tensor | float:
    if isinstance(step, Shifting):
        return step.vector.double()
    return 0.0 if isinstance(step, Scaling) or step.beta is None else step.beta.double()


def _explicit_step(step: Step, part: Tensor, y: Tensor) -> Tensor:
    """`gamma * (part - mean(part)) / s(y)` (2021, Equation 7), or a constant's multiplication."""
    if isinstance(step, Scaling):
        return part * step.factor
    if isinstance(step, Shifting):
        return part
    if step.centred:
        part, y = part - part.mean(-1, keepdim=True), y - y.mean(-1, keepdim=True)
    s = (y.square().mean(-1, keepdim=True) + step.eps).sqrt()
    return part / s if step.gamma is None else step.gamma.double() * part / s


def check_output(captured: Tensor, own: Tensor, mask: Bool[Tensor, "batch position"], subject: Subject) -> float:
    """How far the output under capture is from the model's own; too far is an error."""
    real = mask.to(own.device)
    difference = (captured.double() - own.double())[real].norm()
    error = float(difference / own.double()[real].norm().clamp_min(1e-30))
    if not error <= subject.tolerance:
        raise DecompositionError(
            f"the model must compute the same under capture as with its own attention: {subject.family!r} differs by "
            f"{error:.2g} (allowed: {subject.tolerance:.0e}); nothing is returned, since it would describe another model"
        )
    return error
