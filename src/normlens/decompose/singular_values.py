"""Properties of the weights alone: `f(x) = (x W_V + b_V) W_O`: singular values and the expansion rate.

An affine map is a linear one on vectors with a 1 appended (2020, Appendix B):

    [x, 1] @ [[W_V W_O, 0], [b_V W_O, 1]] = [f(x), 1]
"""

from __future__ import annotations

from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor

#: `paper`: the matrix of Appendix B. `code`: the authors' own, which carries `b_O` as a column (2021, Section 4.4).
Variant = Literal["paper", "code"]


def _with_row(
    weight: Float[Tensor, "input output"], bias: Float[Tensor, " output"] | None
) -> Float[Tensor, "input_1 output"]:
    row = weight.new_zeros(1, weight.shape[1]) if bias is None else bias.unsqueeze(0)
    return torch.cat([weight, row])


def singular_values(
    value_weight: Float[Tensor, "model width"],
    value_bias: Float[Tensor, " width"] | None,
    output_weight: Float[Tensor, "width model"],
) -> Float[Tensor, " width_1"]:
    """The `width + 1` singular values of one head's `f` that are not zero by construction, largest first.

    The augmented matrix is a product of a tall and a wide one; with `Q R` of both, only `R_1 R_2^T`, of size
    `width + 1`, needs a singular value decomposition.
    """
    width = output_weight.shape[0]
    tall = torch.zeros(value_weight.shape[0] + 1, width + 1, dtype=torch.float64)
    tall[:, :width] = _with_row(value_weight, value_bias).double()
    tall[-1, -1] = 1
    wide = torch.zeros(width + 1, output_weight.shape[1] + 1, dtype=torch.float64)
    wide[:width, :-1] = output_weight.double()
    wide[-1, -1] = 1
    left, right = torch.linalg.qr(tall).R, torch.linalg.qr(wide.T).R
    values: Tensor = torch.linalg.svdvals(left @ right.T)
    return values


def expansion_rate(
    value_weight: Float[Tensor, "model heads_width"],
    value_bias: Float[Tensor, " heads_width"] | None,
    output_weight: Float[Tensor, "heads_width model"],
    output_bias: Float[Tensor, " model"] | None,
    variant: Variant,
) -> float:
    """The expansion rate of all heads together: `sqrt(sum of squared singular values) / sqrt(d + 1)`.

    The sum of squared singular values is the squared Frobenius norm, so no decomposition is needed.
    """
    value = _with_row(value_weight, value_bias).double()
    output = output_weight.double()
    corner = torch.zeros(value.shape[0], 1, dtype=torch.float64)
    if variant == "code" and output_bias is not None:
        corner = (value @ output_bias.double()).unsqueeze(1)
    corner[-1] += 1
    augmented = torch.cat([value @ output, corner], dim=1)
    return float(augmented.norm() / (value_weight.shape[0] + 1) ** 0.5)
