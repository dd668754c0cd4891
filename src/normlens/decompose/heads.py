"""Transformed vectors of heads, and the norm of their weighted sum, without ever building the sum.

For one key `j` let `F_j` be the `head x model` matrix of its transformed vectors `f_h(x_j)` and `G_j = F_j F_j^T`.
With `a` the attention weights of one (query, key) pair over the heads, `‖sum_h a_h f_h‖^2 = a^T G_j a`: the norm of a
vector in the model's width costs one small quadratic form, and no `[head, query, key, model]` tensor exists.
"""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

#: Keys are worked on in blocks of about this many numbers, so that memory does not grow with the text.
BLOCK_NUMBERS = 16_000_000
#: Where heads cancel below this share of `(sum_h a_h ‖f_h‖)^2` the quadratic form has lost digits: see `summed_norm`.
CANCELLATION = 1 / 200


def split_heads(weight: Float[Tensor, "heads_width model"], heads: int) -> Float[Tensor, "head width model"]:
    """Each head's own rows of the output projection."""
    return weight.unflatten(0, (heads, -1))


def repeat_values(
    values: Float[Tensor, "batch kv_head key width"], heads: int
) -> Float[Tensor, "batch head key width"]:
    """The value vectors by *query* head: heads of one group stand side by side and share their values."""
    return values.repeat_interleave(heads // values.shape[1], dim=1)


def transformed_vectors(
    values: Float[Tensor, "batch head key width"], weight: Float[Tensor, "head width model"]
) -> Float[Tensor, "batch key head model"]:
    """`f_h(x_j)`, the value vector of each key carried through its head's rows of `W_O` (2020, Equation 2)."""
    return torch.einsum("bhkc,hcd->bkhd", values, weight)


def head_gram(
    values: Float[Tensor, "batch head key width"], weight: Float[Tensor, "head width model"]
) -> Float[Tensor, "batch key head head"]:
    """`G_j = F_j F_j^T` for each key."""
    batch, heads, keys, _ = values.shape
    step = max(1, BLOCK_NUMBERS // (batch * heads * weight.shape[-1]))
    blocks = []
    for start in range(0, keys, step):
        f = transformed_vectors(values[:, :, start : start + step], weight)
        blocks.append(f @ f.transpose(-1, -2))
    return torch.cat(blocks, dim=1)


def vector_norms(gram: Float[Tensor, "batch key head head"]) -> Float[Tensor, "batch head key"]:
    """`‖f_h(x_j)‖`, from the diagonal of the Gram matrices."""
    return gram.diagonal(dim1=-2, dim2=-1).clamp_min(0).sqrt().transpose(1, 2)


def summed_norm(
    alpha: Float[Tensor, "batch head query key"],
    gram: Float[Tensor, "batch key head head"],
    values: Float[Tensor, "batch head key width"],
    weight: Float[Tensor, "head width model"],
) -> Float[Tensor, "batch query key"]:
    """`‖sum_h alpha_h f_h(x_j)‖` for each pair of query and key (2021, Equation 5).

    The quadratic form's rounding error is at most about `eps (sum_h |a_h| ‖f_h‖)^2`. Where the heads cancel so far
    that this shows in the root (below `CANCELLATION` of that square), the pair is worked out again from its vectors in
    float64; everywhere else the relative error of the norm stays below `eps / (2 CANCELLATION)`, 6e-6 in float32.
    """
    weights = alpha.permute(0, 3, 2, 1)  # batch key query head
    square = ((weights @ gram) * weights).sum(-1)
    most = (weights.abs() @ vector_norms(gram).transpose(1, 2).unsqueeze(-1)).squeeze(-1).square()
    norms = square.clamp_min(0).sqrt()
    lost = (square < CANCELLATION * most).nonzero()
    for pairs in lost.split(256):
        batch, key, query = pairs.unbind(-1)
        f = torch.einsum("phc,hcd->phd", values[batch, :, key].double(), weight.double())
        parts = torch.einsum("ph,phd->pd", alpha[batch, :, query, key].double(), f)
        norms[batch, key, query] = parts.norm(dim=-1).to(norms.dtype)
    return norms.transpose(1, 2)
