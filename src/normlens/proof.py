"""Do the parts rebuild what the model computed?

Three checks, on every run. *Sums*: parts, residual and biases added up must equal the model's own vectors at each place.
*Parts*: a right sum can hide wrong parts, so a seeded handful of pairs is rebuilt from explicit vectors, straight from
the equations and in float64. *Output*: parts can rebuild a forward pass that is not the user's, so the model's output
under capture is compared with its output under its own attention (`check_output`, once per kind of input).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from normlens.decompose.block import PLACES, Block, PlaceName
from normlens.decompose.steps import Scaling, Step
from normlens.errors import DecompositionError
from normlens.measures import MEASURES

#: The largest relative error that rounding may explain, by the dtype in which the model computed.
TOLERANCE = {torch.float64: 1e-9, torch.float32: 1e-4, torch.float16: 1e-2, torch.bfloat16: 5e-2}
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


def prove_sums(
    block: Block, query_mask: Bool[Tensor, "batch query"], subject: Subject
) -> Float[Tensor, " batch"]:
    """The largest relative error over the places, for each sequence, real positions only; too large is an error."""
    worst = torch.zeros(query_mask.shape[0], dtype=torch.float64)
    for place in PLACES:
        observed = block.observed[place]
        mask = query_mask.to(observed.device).unsqueeze(-1)
        difference = ((block.rebuilt(place) - observed) * mask).flatten(1).norm(dim=1)
        whole = (observed * mask).flatten(1).norm(dim=1)
        error = (difference / whole.clamp_min(torch.finfo(whole.dtype).tiny)).double().cpu()
        if not bool((error <= subject.tolerance).all()):  # also true for NaN
            raise subject.fail(_PLACE_WORDS[place], float(error.max()))
        worst = torch.maximum(worst, error)
    return worst


def prove_parts(
    block: Block,
    values: Mapping[str, Tensor],
    query_mask: Bool[Tensor, "batch query"],
    key_mask: Bool[Tensor, "batch key"],
    subject: Subject,
    seed: int = 0,
) -> None:
    """Rebuild a few entries of each map from explicit vectors; a difference is an error."""
    pairs = _pick(query_mask, key_mask, block.tensors.self_attends, seed)
    for name, computed in values.items():
        place = MEASURES[name].place
        if place is None and name not in ("f_norm", "af_norm"):
            continue
        for batch, query, key in pairs:
            if place is not None:
                explicit = explicit_part(block, place, batch, query, key).norm()
                entry = computed[batch, query, key]
                most = computed[batch, query].abs().max()
            else:
                f = explicit_heads(block, batch, key).norm(dim=-1)
                explicit = f if name == "f_norm" else block.tensors.alpha[batch, :, query, key].double().abs() * f
                entry = computed[batch, :, key] if name == "f_norm" else computed[batch, :, query, key]
                most = explicit.max()
            error = float(((entry.double() - explicit).abs() / (explicit + 1e-3 * most.double() + 1e-30)).max())
            if not error <= subject.tolerance:
                raise subject.fail(f"{name} of query {query} and key {key}", error)


def _pick(query_mask: Tensor, key_mask: Tensor, diagonal: bool, seed: int) -> list[tuple[int, int, int]]:
    generator = torch.Generator().manual_seed(seed)

    def one_of(mask: Tensor) -> int:
        real = mask.nonzero().flatten()
        return int(real[torch.randint(len(real), (), generator=generator)])

    pairs = []
    for n in range(SPOT_CHECKS):
        batch = int(torch.randint(query_mask.shape[0], (), generator=generator))
        query = one_of(query_mask[batch].cpu())
        pairs.append((batch, query, query if diagonal and n == 0 else one_of(key_mask[batch].cpu())))
    return pairs


def explicit_heads(block: Block, batch: int, key: int) -> Float[Tensor, "head model"]:
    """`f_h(x_j)` for one key, head by head, in float64."""
    t = block.tensors
    group = block.heads // t.values.shape[1]
    return torch.stack([t.values[batch, h // group, key].double() @ t.weight[h].double() for h in range(block.heads)])


def explicit_part(block: Block, place: PlaceName, batch: int, query: int, key: int) -> Float[Tensor, " model"]:
    """The vector that `key` contributes to `query` at a place, built step by step in float64."""
    t = block.tensors
    part = t.alpha[batch, :, query, key].double() @ explicit_heads(block, batch, key)
    if place == "attn":
        return part
    y = t.projected[batch, query].double()
    for step in t.branch:
        part = _explicit_step(step, part, y)
        y = _explicit_step(step, y, y) + (0 if isinstance(step, Scaling) or step.beta is None else step.beta.double())
    if t.self_attends and query == key:
        part = part + t.residual[batch, query].double()
    if place == "ln" and t.norm is not None:
        part = _explicit_step(t.norm, part, t.total[batch, query].double())
    return part


def _explicit_step(step: Step, part: Tensor, y: Tensor) -> Tensor:
    """`gamma * (part - mean(part)) / s(y)` (2021, Equation 7), or a constant's multiplication."""
    if isinstance(step, Scaling):
        return part * step.factor
    if step.centred:
        part, y = part - part.mean(), y - y.mean()
    s = (y.square().mean() + step.eps).sqrt()
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
