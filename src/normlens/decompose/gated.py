"""What stands between the heads and the output projection: a gate, a constant, or a normalization.

With everything that the input decides held fixed, each of them multiplies the heads' outputs coordinate by coordinate:
`o_i -> g_i * o_i`. A factor that is one number per query and head belongs to the attention weight, one that is the same
for all queries belongs to the rows of `W_O`; neither costs anything. What is left, a gate with a number for each query
and coordinate, makes the transformed vector depend on the query: `part_ij = sum_h alpha_hij (g_ih * v_hj) W_h`.
Then no Gram matrix of a key serves all queries, and each pair's vector is built (one query at a time): the cost grows
from `n^2 H^2` to `n^2 d^2`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from normlens.decompose.steps import Normalizing, Scaling, Step


@dataclass(frozen=True)
class Inner:
    """The factors of all steps, sorted by what they depend on."""

    by_query_and_head: Float[Tensor, "batch query head 1"] | None
    by_coordinate: Float[Tensor, "head width"] | None
    gate: Float[Tensor, "batch query head width"] | None

    @classmethod
    def of(cls, heads: Float[Tensor, "batch query head width"], steps: Sequence[Step | Tensor]) -> Inner:
        """Sort the factors of the steps that were applied, one after the other, to the heads' outputs."""
        batch, queries, count, width = heads.shape
        per_head = heads.new_ones(batch, queries, count, 1)
        fixed = heads.new_ones(count, width)
        gate: Tensor | None = None
        for step in steps:
            current = heads * per_head * fixed * (1.0 if gate is None else gate)
            if isinstance(step, Scaling):
                fixed = fixed * step.factor
            elif isinstance(step, Normalizing):
                over_all = step.gamma is not None and step.gamma.numel() == count * width and count > 1
                y = current.flatten(2) if over_all else current
                if step.centred:
                    raise ValueError("a normalization that takes off the mean mixes coordinates")
                per_head = per_head * (step.inverse_scale(y).unsqueeze(-1) if over_all else step.inverse_scale(y))
                if step.gamma is not None:
                    fixed = fixed * step.gamma.reshape(-1, width)
            else:
                factor = _by_head(step, batch, queries, count, width)
                if factor.shape[-1] == 1:
                    per_head = per_head * factor
                else:
                    gate = factor if gate is None else gate * factor
        if not steps:
            return cls(None, None, None)
        return cls(per_head, fixed, gate)

    def weights(self, alpha: Float[Tensor, "batch head query key"]) -> Float[Tensor, "batch head query key"]:
        """The attention weights with the factors that belong to them."""
        return alpha if self.by_query_and_head is None else alpha * self.by_query_and_head.transpose(1, 2)

    def projection(self, weight: Float[Tensor, "head width model"]) -> Float[Tensor, "head width model"]:
        """The output projection with the factors that belong to it."""
        return weight if self.by_coordinate is None else weight * self.by_coordinate.unsqueeze(-1)


def _by_head(factor: Tensor, batch: int, queries: int, heads: int, width: int) -> Float[Tensor, "batch query head any"]:
    """A gate in the layout of the heads' outputs: one number per coordinate, per head, or per query."""
    rows = batch * queries
    if factor.numel() == rows * heads * width:
        return factor.reshape(batch, queries, heads, width)
    if factor.numel() in (rows * heads, rows):
        return factor.reshape(batch, queries, -1, 1)
    return factor.expand(batch, queries, heads, width)


def gated_norms(
    alpha: Float[Tensor, "batch head query key"],
    values: Float[Tensor, "batch head key width"],
    weight: Float[Tensor, "head width model"],
    gate: Float[Tensor, "batch query head width"],
) -> Float[Tensor, "batch query key"]:
    """`‖sum_h alpha_hij (g_ih * v_hj) W_h‖`, one query at a time."""
    rows = []
    for query in range(alpha.shape[2]):
        gated = values * gate[:, query].unsqueeze(2) * alpha[:, :, query].unsqueeze(-1)  # batch head key width
        rows.append((gated.transpose(1, 2).flatten(2) @ weight.flatten(0, 1)).norm(dim=-1))
    return torch.stack(rows, dim=1)


def gated_head_norms(
    alpha: Float[Tensor, "batch head query key"],
    values: Float[Tensor, "batch head key width"],
    weight: Float[Tensor, "head width model"],
    gate: Float[Tensor, "batch query head width"],
) -> Float[Tensor, "batch head query key"]:
    """`‖alpha_hij (g_ih * v_hj) W_h‖`, one query at a time."""
    rows = []
    for query in range(alpha.shape[2]):
        gated = values * gate[:, query].unsqueeze(2)  # batch head key width
        rows.append(torch.einsum("bhkc,hcd->bhkd", gated, weight).norm(dim=-1) * alpha[:, :, query].abs())
    return torch.stack(rows, dim=2)
