"""Norms of all pairs in one Triton kernel: the weights of a tile are made again where they are needed, and never kept.

A program takes 16 queries `i` and 16 keys `j` of one sequence, and all heads. From the log-sum-exp `L` of fused attention

    alpha_hij = exp(scaling q_hi · k_hj + mask_ij - L_hi)            (decompose.fused)
    ‖sum_h alpha_hij f_h(x_j)‖² = sum_hg alpha_hij G_j[h, g] alpha_gij   (decompose.grams; 2021, Equation 5)

so what PyTorch does in ten passes over `[head, query, key]` numbers reads queries, keys and Gram matrices and writes the
maps. Where heads cancel, the entry becomes -1 and a flag is raised: it is worked out again from its vectors, as everywhere.

Import this module only where Triton is installed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import triton
import triton.language as tl
from jaxtyping import Float, Int
from torch import Tensor

if TYPE_CHECKING:
    from normlens.decompose.fused import FusedAttention

#: Queries and keys of a tile, and coordinates of a head that are multiplied at a time: what a product takes at least.
TILE = 16


def pair_norms(
    fused: FusedAttention,
    matrices: Float[Tensor, "batch key stage head head"],
    lengths: Float[Tensor, "batch key stage head"],
    cancellation: float,
    out: Float[Tensor, "stage batch query key"],
    mean: Float[Tensor, "batch query key"] | None,
) -> Int[Tensor, " 1"]:
    """Write the norms of each stage to `out` and the mean weights to `mean`, both zeros before; not 0: pairs are lost."""
    batch, heads, queries, width = fused.query.shape
    keys, stages = out.shape[-1], lengths.shape[2]
    lost = torch.zeros(1, dtype=torch.int32, device=out.device)
    mask = None if fused.mask is None else fused.mask.expand(batch, heads, queries, keys)
    grid = (triton.cdiv(keys, TILE), triton.cdiv(queries, TILE), batch)
    padded = padded_heads(heads)
    _pair_norms[grid](
        fused.query, *fused.query.stride(),
        fused.key, *fused.key.stride(),
        out if mask is None else mask, *((0, 0, 0, 0) if mask is None else mask.stride()),
        fused.log_sum, *fused.log_sum.stride(),
        matrices, lengths, out, out if mean is None else mean, lost,
        queries, keys, batch, fused.scaling, cancellation,
        heads=heads, width=width, stages=stages, padded=padded, tile=TILE,
        causal=fused.causal, masked=mask is not None, with_mean=mean is not None,
        num_warps=warps(padded),
    )  # fmt: skip
    return lost


def padded_heads(heads: int) -> int:
    """A tile's first axis is a power of two, and as long as a product's at least."""
    return max(TILE, int(triton.next_power_of_2(heads)))


def warps(padded: int) -> int:
    """How many warps share a tile: its numbers must fit into their registers."""
    return 4 if padded == TILE else 8


@triton.jit  # type: ignore[untyped-decorator]
def _pair_norms(  # type: ignore[no-untyped-def]
    query, query_b, query_h, query_i, query_d,
    key, key_b, key_h, key_j, key_d,
    mask, mask_b, mask_h, mask_i, mask_j,
    log_sum, log_sum_b, log_sum_h, log_sum_i,
    matrices, lengths, out, mean, lost,
    queries, keys, batch, scaling, cancellation,
    heads: tl.constexpr, width: tl.constexpr, stages: tl.constexpr, padded: tl.constexpr, tile: tl.constexpr,
    causal: tl.constexpr, masked: tl.constexpr, with_mean: tl.constexpr,
):  # fmt: skip
    b = tl.program_id(2).to(tl.int64)
    i = tl.program_id(1) * tile + tl.arange(0, tile)
    j = tl.program_id(0) * tile + tl.arange(0, tile)
    if causal and tl.program_id(0) > tl.program_id(1):  # nothing is seen here, and zeros are there already
        return
    h = tl.arange(0, padded)
    here_i, here_j, here_h = i < queries, j < keys, h < heads

    scores = tl.zeros((padded, tile, tile), tl.float32)  # head query key
    for start in tl.static_range(0, width, tile):
        d = start + tl.arange(0, tile)
        q = tl.load(
            query + b * query_b + h[:, None, None] * query_h + i[None, :, None] * query_i + d[None, None, :] * query_d,
            mask=here_h[:, None, None] & here_i[None, :, None] & (d < width)[None, None, :],
            other=0.0,
        )
        k = tl.load(
            key + b * key_b + h[:, None, None] * key_h + d[None, :, None] * key_d + j[None, None, :] * key_j,
            mask=here_h[:, None, None] & (d < width)[None, :, None] & here_j[None, None, :],
            other=0.0,
        )
        scores = tl.dot(q, k, scores, input_precision="ieee")
    scores = scores * scaling
    shown = here_h[:, None, None] & here_i[None, :, None] & here_j[None, None, :]
    if masked:
        added = mask + b * mask_b + h[:, None, None] * mask_h + i[None, :, None] * mask_i + j[None, None, :] * mask_j
        scores += tl.load(added, mask=shown, other=0.0)
    if causal:
        shown = shown & (j[None, None, :] <= i[None, :, None])
    sums = tl.load(
        log_sum + b * log_sum_b + h[:, None] * log_sum_h + i[None, :] * log_sum_i,
        mask=here_h[:, None] & here_i[None, :],
        other=0.0,
    )
    alpha = tl.where(shown, tl.exp(tl.where(shown, scores - sums[:, :, None], 0.0)), 0.0)

    place = i[:, None].to(tl.int64) * keys + j[None, :]  # query key
    inside = here_i[:, None] & here_j[None, :]
    if with_mean:
        tl.store(mean + b * queries * keys + place, tl.sum(alpha, 0) / heads, mask=inside)
    by_key = tl.permute(alpha, (2, 1, 0))  # key query head
    for stage in tl.static_range(0, stages):
        row = (b * keys + j) * stages + stage
        gram = tl.load(
            matrices + row[:, None, None] * heads * heads + h[None, :, None] * heads + h[None, None, :],
            mask=here_j[:, None, None] & here_h[None, :, None] & here_h[None, None, :],
            other=0.0,
        )
        form = tl.sum(tl.dot(by_key, gram, input_precision="ieee") * by_key, 2)  # key query
        length = tl.load(lengths + row[:, None] * heads + h[None, :], mask=here_j[:, None] & here_h[None, :], other=0.0)
        most = tl.sum(by_key * length[:, None, :], 2)
        gone = form < cancellation * most * most
        norm = tl.where(gone, -1.0, tl.sqrt(tl.maximum(form, 0.0)))
        tl.store(out + (stage * batch + b) * queries * keys + place, tl.permute(norm, (1, 0)), mask=inside)
        tl.atomic_max(lost, tl.max(tl.max(gone.to(tl.int32), 1), 0))
