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

#: Keys whose Gram matrices are worked out at once: larger blocks are quicker, and use more memory.
GRAM_ROWS = 1024
#: Random directions along which the proof compares large outputs.
DIRECTIONS = 32

Gram = Float[Tensor, "batch head head key"]


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
    """One layer's output projection by head, with the products of its heads that every Gram matrix needs."""

    def __init__(self, weight: Float[Tensor, "head width model"]) -> None:
        self.weight = weight

    @cached_property
    def directions(self) -> tuple[Float[Tensor, "model direction"], Float[Tensor, "heads_width direction"]]:
        """Random directions of the model's space, and the same seen from in front of the projection."""
        generator = torch.Generator().manual_seed(0)
        drawn = torch.randn(self.weight.shape[-1], DIRECTIONS, generator=generator).to(self.weight) / DIRECTIONS**0.5
        return drawn, self.weight.flatten(0, 1) @ drawn

    @cached_property
    def products(self) -> tuple[Float[Tensor, "width heads_width"], ...]:
        """For each head `h` the matrices `W_h W_g^T` of all `g <= h`, side by side."""
        flat = self.weight.flatten(0, 1)
        width = self.weight.shape[1]
        return tuple(rows @ flat[: (h + 1) * width].T for h, rows in enumerate(self.weight))


def head_grams(
    values: Float[Tensor, "batch kv_head key width"], projections: Sequence[Projection]
) -> Float[Tensor, "projection batch head head key"]:
    """The lower triangle of `G_j` for each key, as each projection sees it."""
    batch, _, keys, width = values.shape
    heads = projections[0].weight.shape[0]
    count, group = batch * keys, heads // values.shape[1]
    rows = repeat_values(values, heads).transpose(1, 2).reshape(count, heads, width)
    lower = values.new_zeros(len(projections), count, heads, heads)
    for start in range(0, count, GRAM_ROWS):
        block = rows[start : start + GRAM_ROWS]
        by_head = block[:, ::group].transpose(0, 1).contiguous()
        for projection, out in zip(projections, lower, strict=True):
            for h, product in enumerate(projection.products):
                left = (by_head[h // group] @ product).view(-1, h + 1, width)
                out[start : start + GRAM_ROWS, h, : h + 1] = torch.linalg.vecdot(left, block[:, : h + 1])
    return lower.view(-1, batch, keys, heads, heads).permute(0, 1, 3, 4, 2).contiguous()


def vector_lengths(
    values: Float[Tensor, "batch kv_head key width"], projection: Projection
) -> Float[Tensor, "batch head key"]:
    """`‖f_h(x_j)‖` alone: the diagonal blocks `W_h W_h^T` are enough, and cost next to nothing."""
    width = values.shape[-1]
    group = projection.weight.shape[0] // values.shape[1]
    lengths = []
    for h, product in enumerate(projection.products):
        own = values[:, h // group]
        lengths.append(torch.linalg.vecdot(own @ product[:, h * width :], own))
    return torch.stack(lengths, dim=1).clamp_min(0).sqrt()


def vector_norms(grams: Float[Tensor, "*any head head key"]) -> Float[Tensor, "*any head key"]:
    """`‖f_h(x_j)‖`, from the diagonal of the Gram matrices."""
    return grams.diagonal(dim1=-3, dim2=-2).transpose(-1, -2).clamp_min(0).sqrt().contiguous()


def summed_norms(
    alpha: Float[Tensor, "batch head block key"],
    grams: Float[Tensor, "projection batch head head all_keys"],
    lengths: Float[Tensor, "projection batch head all_keys"],
    values: Float[Tensor, "batch kv_head all_keys width"],
    projections: Sequence[Projection],
    start: int,
    norms: Float[Tensor, "projection batch query all_keys"],
) -> None:
    """`‖sum_h alpha_h f_h(x_j)‖` for each pair of query and key (2021, Equation 5).

    `alpha` holds the queries from `start` on and the keys that they see; the result goes to their place in `norms`,
    once for each projection. The quadratic form's rounding error is at most about `eps (sum_h |a_h| ‖f_h‖)^2`. Where
    the heads cancel so far that this shows in the root (below `CANCELLATION` of that square), the pair is worked out
    again from its vectors in float64; everywhere else the relative error of the norm stays below
    `eps / (2 CANCELLATION)`, 6e-6 in float32.
    """
    batch, heads, queries, keys = alpha.shape
    if kernels.usable(batch * queries * keys * heads * heads, alpha):
        lost = torch.zeros(batch, queries, dtype=torch.int64)
        kernels.run("quadratic", alpha.contiguous(), grams, lengths, CANCELLATION, start, norms, lost)
        any_lost = bool(lost.any())
    else:
        for gram, length, out in zip(grams, lengths, norms, strict=True):
            _quadratic_norms(alpha, gram[..., :keys], length[..., :keys], out[:, start : start + queries, :keys])
        any_lost = True
    if any_lost:
        for projection, out in zip(projections, norms, strict=True):
            _recompute(alpha, values, projection, out[:, start : start + queries, :keys])


def _quadratic_norms(alpha: Tensor, gram: Gram, length: Tensor, out: Tensor) -> None:
    """The same as the compiled loop, for every device; lost pairs become negative."""
    full = gram + gram.transpose(1, 2)
    head = torch.arange(gram.shape[1], device=gram.device)
    full[:, head, head] = gram[:, head, head]
    for b in range(alpha.shape[0]):
        weights = alpha[b].permute(2, 0, 1).contiguous()  # key head query
        square = ((full[b].permute(2, 0, 1) @ weights) * weights).sum(1)
        most = (length[b].T.unsqueeze(1) @ weights.abs()).squeeze(1).square()
        out[b] = square.clamp_min(0).sqrt().masked_fill(square < CANCELLATION * most, -1.0).T


def _recompute(alpha: Tensor, values: Tensor, projection: Projection, out: Tensor) -> None:
    """Work out the pairs whose digits were lost, from their vectors in float64."""
    lost = (out < 0).nonzero()
    heads = alpha.shape[1]
    kv_head = torch.arange(heads, device=alpha.device) // (heads // values.shape[1])
    for pairs in lost.split(256):
        batch, query, key = pairs.unbind(-1)
        v = values[batch[:, None], kv_head, key[:, None]].double()
        parts = (alpha[batch, :, query, key].double().unsqueeze(-1) * v).flatten(
            1
        ) @ projection.weight.double().flatten(0, 1)
        out[batch, query, key] = parts.norm(dim=-1).to(out.dtype)
