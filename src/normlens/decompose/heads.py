"""Transformed vectors of heads, and the norm of their weighted sum, without ever building the sum.

For one key `j` let `F_j` be the `head x model` matrix of its transformed vectors `f_h(x_j)` and `G_j = F_j F_j^T`.
With `a` the attention weights of one (query, key) pair over the heads, `‖sum_h a_h f_h‖^2 = a^T G_j a`: the norm of a
vector in the model's width costs one small quadratic form, and no `[head, query, key, model]` tensor exists.

`F_j` is not built either: `G_j[h, g] = v_h (W_h W_g^T) v_g^T`, and the products `W_h W_g^T` of one layer's weights are
worked out once. `G_j` is symmetric, so only its lower triangle is computed and kept, as (batch, head, head, key).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

import torch
from jaxtyping import Float
from torch import Tensor

from normlens.decompose import kernels

#: Where heads cancel below this share of `(sum_h a_h ‖f_h‖)^2` the quadratic form has lost digits: see `summed_norms`.
CANCELLATION = 1 / 200

Gram = Float[Tensor, "batch head head key"]


def split_heads(weight: Float[Tensor, "heads_width model"], heads: int) -> Float[Tensor, "head width model"]:
    """Each head's own rows of the output projection."""
    return weight.unflatten(0, (heads, -1))


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
    """One layer's output projection by head, with the products of its heads that every Gram matrix needs."""

    def __init__(self, weight: Float[Tensor, "head width model"]) -> None:
        self.weight = weight

    @cached_property
    def products(self) -> tuple[Float[Tensor, "width heads_width"], ...]:
        """For each head `h` the matrices `W_h W_g^T` of all `g <= h`, side by side."""
        flat = self.weight.flatten(0, 1)
        width = self.weight.shape[1]
        return tuple(rows @ flat[: (h + 1) * width].T for h, rows in enumerate(self.weight))


def head_gram(values: Float[Tensor, "batch kv_head key width"], projection: Projection) -> Gram:
    """The lower triangle of `G_j` for each key."""
    batch, _, keys, width = values.shape
    heads = projection.weight.shape[0]
    rows = repeat_values(values, heads).transpose(1, 2).reshape(batch * keys, heads, width)  # contiguous
    by_head = values.transpose(0, 1).reshape(values.shape[1], batch * keys, width)
    group = heads // values.shape[1]
    lower = rows.new_zeros(batch * keys, heads, heads)
    compiled = kernels.usable(4 * rows.numel() * heads, rows)
    for h, product in enumerate(projection.products):
        left = (by_head[h // group] @ product).view(batch * keys, h + 1, width)
        if compiled:
            kernels.row_dots(left, rows, lower[:, h])
        else:
            lower[:, h, : h + 1] = (left * rows[:, : h + 1]).sum(-1)
    return lower.view(batch, keys, heads, heads).permute(0, 2, 3, 1).contiguous()


def vector_norms(gram: Gram) -> Float[Tensor, "batch head key"]:
    """`‖f_h(x_j)‖`, from the diagonal of the Gram matrices."""
    return gram.diagonal(dim1=1, dim2=2).transpose(1, 2).clamp_min(0).sqrt().contiguous()


def summed_norms(
    alpha: Float[Tensor, "batch head query seen"],  # the last keys may be left out where no query sees them
    grams: Sequence[Gram],
    values: Float[Tensor, "batch kv_head key width"],
    projections: Sequence[Projection],
    outs: Sequence[Float[Tensor, "batch query seen"]],
) -> None:
    """`‖sum_h alpha_h f_h(x_j)‖` for each pair of query and key (2021, Equation 5), into `outs`, one per projection.

    The quadratic form's rounding error is at most about `eps (sum_h |a_h| ‖f_h‖)^2`. Where the heads cancel so far
    that this shows in the root (below `CANCELLATION` of that square), the pair is worked out again from its vectors in
    float64; everywhere else the relative error of the norm stays below `eps / (2 CANCELLATION)`, 6e-6 in float32.
    """
    batch, heads, queries, keys = alpha.shape
    alpha = alpha.contiguous()
    if kernels.usable(batch * queries * keys * heads * heads, alpha):
        kernels.quadratic_norms(alpha, grams, [vector_norms(gram) for gram in grams], outs, CANCELLATION)
    else:
        for gram, out in zip(grams, outs, strict=True):
            _quadratic_norms(alpha, gram, out)
    for projection, out in zip(projections, outs, strict=True):
        _recompute(alpha, values, projection, out)


def _quadratic_norms(alpha: Tensor, gram: Gram, out: Tensor) -> None:
    """The same as the compiled loop, for every device."""
    gram = gram[..., : alpha.shape[-1]]
    norms = vector_norms(gram)
    full = gram + gram.transpose(1, 2)
    head = torch.arange(gram.shape[1], device=gram.device)
    full[:, head, head] = gram[:, head, head]
    for b in range(alpha.shape[0]):
        weights = alpha[b].permute(2, 0, 1).contiguous()  # key head query
        square = ((full[b].permute(2, 0, 1) @ weights) * weights).sum(1)
        most = (norms[b].T.unsqueeze(1) @ weights.abs()).squeeze(1).square()
        lost = square < CANCELLATION * most
        out[b] = square.clamp_min(0).sqrt().masked_fill(lost, kernels.LOST).T


def _recompute(alpha: Tensor, values: Tensor, projection: Projection, out: Tensor) -> None:
    """Work out the pairs whose digits were lost, from their vectors in float64."""
    lost = (out < 0).nonzero()
    heads = alpha.shape[1]
    kv_head = torch.arange(heads, device=alpha.device) // (heads // values.shape[1])
    for pairs in lost.split(256):
        batch, query, key = pairs.unbind(-1)
        v = values[batch[:, None], kv_head, key[:, None]].double()
        parts = (alpha[batch, :, query, key].double().unsqueeze(-1) * v).flatten(1) @ projection.weight.double().flatten(0, 1)
        out[batch, query, key] = parts.norm(dim=-1).to(out.dtype)
