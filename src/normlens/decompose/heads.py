"""Heads: their value vectors, their rows of the output projection, and what they make of a key, `f_h(x_j)`."""

from __future__ import annotations

from functools import cached_property

import torch
from jaxtyping import Float
from torch import Tensor

from normlens.decompose.steps import Normalizing, Passage, Scaling, Step


def split_heads(weight: Float[Tensor, "heads_width model"], heads: int) -> Float[Tensor, "head width model"]:
    """Each head's own rows of the output projection."""
    by_head: Tensor = weight.unflatten(0, (heads, -1))
    return by_head


def repeat_values(
    values: Float[Tensor, "batch kv_head key width"], heads: int
) -> Float[Tensor, "batch head key width"]:
    """The value vectors by *query* head: heads of one group stand side by side and share their values."""
    return values if values.shape[1] == heads else values.repeat_interleave(heads // values.shape[1], dim=1)


def transformed_vectors(
    values: Float[Tensor, "batch head key width"], weight: Float[Tensor, "head width model"]
) -> Float[Tensor, "batch key head model"]:
    """`f_h(x_j)`, the value vector of each key carried through its head's rows of `W_O` (2020, Equation 2)."""
    return torch.einsum("bhkc,hcd->bkhd", values, weight)


class Projection:
    """One layer's output projection by head, as one place sees it: `W_O` and the linear steps on the way there."""

    def __init__(self, at_attention: Float[Tensor, "head width model"], steps: tuple[Step, ...] = ()) -> None:
        self.at_attention = at_attention
        self.steps = steps

    @cached_property
    def weight(self) -> Float[Tensor, "head width model"]:
        """`W_O` with the steps applied to its rows."""
        return self.carry(self.at_attention)

    def carry(self, vectors: Float[Tensor, "*any model"]) -> Float[Tensor, "*any model"]:
        """Vectors of the attention output, as this place sees them."""
        return Passage(self.steps).linear(vectors)

    @cached_property
    def one_step(self) -> tuple[bool, Float[Tensor, " model"]] | None:
        """The steps as one, `factor * (vector - its mean, if centred)`; None where they are more than that."""
        centred, factor, uniform = False, self.at_attention.new_ones(self.at_attention.shape[-1]), True
        for step in self.steps:
            if isinstance(step, Normalizing):
                if step.centred and not uniform:
                    return None  # the mean is taken behind a scaling by coordinate
                centred = centred or step.centred
                scale: float | Tensor = 1.0 if step.gamma is None else step.gamma
            elif isinstance(step, Scaling):
                scale = step.factor
            else:
                continue
            factor, uniform = factor * scale, uniform and (isinstance(scale, float) or scale.numel() == 1)
        return centred, factor.contiguous()

    @cached_property
    def squares(self) -> Float[Tensor, "head width width"]:
        """`W_h W_h^T`, which is all that the lengths of transformed vectors need."""
        return self.weight @ self.weight.transpose(1, 2)


def vector_lengths(
    values: Float[Tensor, "batch kv_head key width"], projection: Projection
) -> Float[Tensor, "batch head key"]:
    """`‖f_h(x_j)‖` alone, as `v_h (W_h W_h^T) v_h^T`: no vector of the model's width is built."""
    by_head = repeat_values(values, len(projection.squares))
    squared: Tensor = torch.linalg.vecdot(by_head @ projection.squares, by_head)
    return squared.clamp_min(0).sqrt()
