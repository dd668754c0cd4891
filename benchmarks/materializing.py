"""The way of the papers' released code, from its equations: every weighted, transformed vector is built.

    [batch, head, query, key, model]   0.6 GB per layer for BERT-base at 128 tokens

Only for comparison.
"""

from __future__ import annotations

import torch
from torch import Tensor


def materialize(
    alpha: Tensor,  # batch head query key
    values: Tensor,  # batch head key width
    weight: Tensor,  # head width model
    residual: Tensor,  # batch query model
    total: Tensor,  # batch query model
    gamma: Tensor,
    eps: float,
) -> dict[str, Tensor]:
    """The norms of one post-norm layer: `f_norm`, the three vector maps and their mixing ratios."""
    f = torch.einsum("bhkc,hcd->bhkd", values, weight)
    weighted = alpha.unsqueeze(-1) * f.unsqueeze(2)  # batch head query key model
    parts = weighted.sum(1)  # batch query key model
    out = {"f_norm": f.norm(dim=-1), "attn_n": parts.norm(dim=-1)}
    positions = torch.arange(parts.shape[1])
    with_residual = parts.clone()
    with_residual[:, positions, positions] += residual
    out["attnres_n"] = with_residual.norm(dim=-1)
    spread = (total.var(-1, unbiased=False) + eps).sqrt()[:, :, None, None]
    normalized = gamma * (with_residual - with_residual.mean(-1, keepdim=True)) / spread
    out["attnresln_n"] = normalized.norm(dim=-1)
    for name, vectors in (("attn_n", parts), ("attnres_n", with_residual), ("attnresln_n", normalized)):
        own = vectors[:, positions, positions]
        context = (vectors.sum(2) - own).norm(dim=-1)
        out[f"mixing_{name}"] = context / (context + own.norm(dim=-1))
    return out
