"""Rows of vectors compared along a few random directions: cheap, and no difference hides from all of them."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from normlens.decompose import kernels

#: Random directions along which the proof compares vectors. The squared share of an error that they show is distributed
#: as chi-squared over its 8 degrees of freedom: that less than a hundredth of it shows has a chance of 1e-15.
DIRECTIONS = 8


@dataclass(frozen=True)
class Sketch:
    """What an affine map must do to any row of vectors, seen along random directions.

    `right = left W + b` is wanted, so `left @ before.T + shift` must be `right @ behind.T`, with `before = behind W^T` and
    `shift = behind b`. A vector's norm along `behind` is its own on average.
    """

    before: Float[Tensor, "direction left"]
    behind: Float[Tensor, "direction right"]
    shift: Float[Tensor, " direction"]

    @classmethod
    def of(cls, matrix: Float[Tensor, "left right"], bias: Float[Tensor, " right"] | None) -> Sketch:
        """Along seeded directions."""
        drawn = torch.randn(DIRECTIONS, matrix.shape[1], generator=torch.Generator().manual_seed(0)) / DIRECTIONS**0.5
        behind = drawn.to(matrix)
        shift = behind.new_zeros(DIRECTIONS) if bias is None else behind @ bias.to(matrix)
        return cls((behind @ matrix.T).contiguous(), behind, shift)

    def gaps(
        self, left: Float[Tensor, "batch row left"], right: Float[Tensor, "batch row right"]
    ) -> tuple[Float[Tensor, "batch row"], Float[Tensor, "batch row"]]:
        """For each row, squared: how far `right` is from what it must be, and how large it is."""
        if kernels.usable(DIRECTIONS * (left.numel() + right.numel()), left, right):
            found = left.new_empty(2, *left.shape[:2])
            rows = (t.flatten(0, 1).contiguous() for t in (left, right))
            kernels.run("gaps", *rows, self.before, self.behind, self.shift, found.flatten(1))
            return found[0], found[1]
        along = right @ self.behind.T
        return (left @ self.before.T + self.shift - along).square().sum(-1), along.square().sum(-1)
