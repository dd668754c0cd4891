"""Steps between the heads and the output projection: a gate, a constant, or a normalization.

With everything that the input decides held fixed, each of them multiplies the heads' outputs coordinate by coordinate:
`o_i -> g_i * o_i`. A factor that is one number per query and head multiplies that query's weights, one that is the same
for all queries belongs to the rows of `W_O`; neither costs anything. What is left, a gate with a number for each query
and coordinate, makes the transformed vector depend on the query: `part_ij = sum_h alpha_hij (g_ih * v_hj) W_h`.
Then no Gram matrix of a key serves all queries, and each pair's vector is built (one query at a time): the cost grows
from `n^2 H^2` to `n^2 d^2`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from normlens.decompose.pairs import PairResults, Samples
from normlens.decompose.stages import PairRequest, Stage
from normlens.decompose.steps import Normalization, Scaling, Step, inverse_scale, linear


@dataclass(frozen=True)
class Factors:
    """Factors of the heads' outputs in one run, by what they depend on; factors of `W_O` stand apart."""

    by_query_and_head: Float[Tensor, "batch query head 1"]
    gate: Float[Tensor, "batch query head width"] | None

    def repeated(self, groups: int) -> Factors:
        """The same factors for each of several groups of heads that were added up before they met them."""
        gate = None if self.gate is None else self.gate.repeat(1, 1, groups, 1)
        return Factors(self.by_query_and_head.repeat(1, 1, groups, 1), gate)


def added_groups(
    heads: Float[Tensor, "batch query head width"], groups: Sequence[float]
) -> Float[Tensor, "batch query sum width"]:
    """Equal groups of neighbouring heads added up, each times its factor; the heads themselves where there are none."""
    if not groups:
        return heads
    parts = heads.chunk(len(groups), dim=2)
    return torch.stack([factor * part for factor, part in zip(groups, parts, strict=True)]).sum(0)


def fixed_factor(steps: Sequence[Step | None], heads: int, width: int, like: Tensor) -> Float[Tensor, "head width"]:
    """The factors that are the same for every input: they belong to the rows of `W_O`. None stands for a gate."""
    fixed = like.new_ones(heads, width)
    for step in steps:
        if isinstance(step, Scaling):
            factor = step.factor
            fixed = fixed * (factor if isinstance(factor, float) else factor.reshape(-1, width))
        elif isinstance(step, Normalization) and step.weight is not None:
            fixed = fixed * step.weight.reshape(-1, width)
    return fixed


def factors(heads: Float[Tensor, "batch query head width"], steps: Sequence[Step | Tensor]) -> Factors:
    """The factors of the steps that were applied, one after the other, to the heads' outputs; a tensor is a gate."""
    batch, queries, count, width = heads.shape
    per_head = heads.new_ones(batch, queries, count, 1)
    gate: Tensor | None = None
    current = heads
    for step in steps:
        if isinstance(step, Tensor):
            factor = _by_head(step, batch, queries, count, width)
            if factor.shape[-1] == 1:
                per_head = per_head * factor
            else:
                gate = factor if gate is None else gate * factor
            current = current * factor
        elif isinstance(step, Normalization):
            if step.centred or step.beta is not None:
                raise ValueError(
                    "in front of the output projection only a normalization without mean and bias is linear"
                )
            over_all = step.weight is not None and step.weight.numel() == count * width and count > 1
            inverse = (
                inverse_scale(step, current.flatten(2)).unsqueeze(-1) if over_all else inverse_scale(step, current)
            )
            per_head = per_head * inverse
            current = current * inverse * fixed_factor([step], count, width, heads)
        else:
            current = current * fixed_factor([step], count, width, heads)
    return Factors(per_head, gate)


def _by_head(factor: Tensor, batch: int, queries: int, heads: int, width: int) -> Float[Tensor, "batch query head any"]:
    """A gate in the layout of the heads' outputs: one number per coordinate, per head, or per query."""
    rows = batch * queries
    if factor.numel() == rows * heads * width:
        return factor.reshape(batch, queries, heads, width)
    if factor.numel() in (rows * heads, rows):
        return factor.reshape(batch, queries, -1, 1)
    return factor.expand(batch, queries, heads, width)


def gated_norms(
    weights: Float[Tensor, "batch head query key"],
    values: Float[Tensor, "batch head key width"],
    weight: Float[Tensor, "head width model"],
    gate: Float[Tensor, "batch query head width"],
    steps: tuple[Step, ...],
) -> Float[Tensor, "batch query key"]:
    """`‖sum_h a_hij (g_ih * v_hj) W_h‖` after a stage's linear steps, one query at a time."""
    rows = []
    for query in range(weights.shape[2]):
        gated = values * gate[:, query].unsqueeze(2) * weights[:, :, query].unsqueeze(-1)  # batch head key width
        rows.append(linear(steps, gated.transpose(1, 2).flatten(2) @ weight.flatten(0, 1)).norm(dim=-1))
    return torch.stack(rows, dim=1)


def gated_head_norms(
    weights: Float[Tensor, "batch head query key"],
    values: Float[Tensor, "batch head key width"],
    weight: Float[Tensor, "head width model"],
    gate: Float[Tensor, "batch query head width"],
) -> Float[Tensor, "batch head query key"]:
    """`‖a_hij (g_ih * v_hj) W_h‖`, one query at a time."""
    rows = []
    for query in range(weights.shape[2]):
        gated = values * gate[:, query].unsqueeze(2)  # batch head key width
        rows.append(torch.einsum("bhkc,hcd->bhkd", gated, weight).norm(dim=-1) * weights[:, :, query].abs())
    return torch.stack(rows, dim=2)


def gated_pairs(
    alpha: Float[Tensor, "batch head query key"],
    factor: Float[Tensor, "batch head query 1"],
    values: Float[Tensor, "batch head key width"],
    weight: Float[Tensor, "head width model"],
    steps: Mapping[Stage, tuple[Step, ...]],
    gate: Float[Tensor, "batch query head width"],
    request: PairRequest,
    samples: Samples,
) -> PairResults:
    """The quantities of the pairs of one site with a gate."""
    mean, weights = alpha.mean(1), alpha * factor
    own = None
    if request.own:
        diagonal = weights.diagonal(dim1=-2, dim2=-1).unsqueeze(-1)  # batch head query 1
        own = ((diagonal * values).transpose(1, 2) * gate).flatten(2) @ weight.flatten(0, 1)
    return PairResults(
        mixed=(weights @ values).transpose(1, 2) * gate,
        alpha=alpha if request.alpha else None,
        mean_alpha=mean if request.mean_alpha else None,
        row_sums=mean.abs().sum(-1) if request.row_sums else None,
        self_alpha=mean.diagonal(dim1=-2, dim2=-1) if request.own else None,
        own=own,
        f_norm=None,
        norms={stage: gated_norms(weights, values, weight, gate, steps[stage]) for stage in request.stages},
        samples=samples,
        sampled_weights=torch.stack([weights[batch, :, query, key] for batch, query, key in samples]),
        factor=factor,
        gated_af_norm=gated_head_norms(weights, values, weight, gate) if request.alpha and request.f_norm else None,
    )
