"""From subwords to words: a word's key columns are added, its query rows averaged.

The columns are added either as norms (`norms`) or as vectors before the norm is taken (`vectors`).
"""

from __future__ import annotations

from typing import Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor

from normlens.decompose.block import Block
from normlens.decompose.heads import transformed_vectors
from normlens.decompose.pairs import PlaceName

WordMode = Literal["norms", "vectors"]


def add_keys(values: Float[Tensor, "*any key"], groups: Int[Tensor, " key"]) -> Float[Tensor, "*any word"]:
    """Add the columns of each word."""
    words = int(groups.max()) + 1
    return values.new_zeros(*values.shape[:-1], words).index_add_(-1, groups.to(values.device), values)


def average_queries(
    values: Float[Tensor, "*any query last"], groups: Int[Tensor, " query"]
) -> Float[Tensor, "*any word last"]:
    """Average the rows of each word."""
    counts = torch.bincount(groups).to(values)
    return add_keys(values.transpose(-1, -2), groups).div(counts).transpose(-1, -2)


def together(query_groups: Int[Tensor, " query"], key_groups: Int[Tensor, " key"]) -> Tensor:
    """Which keys belong to the same word as each query."""
    return query_groups.unsqueeze(1) == key_groups.unsqueeze(0)


def word_part_norms(
    block: Block, place: PlaceName, query_groups: Int[Tensor, " query"], key_groups: Int[Tensor, " key"]
) -> Float[Tensor, "batch query word"]:
    """`‖sum over a word's subwords j of part_ij‖` at a place: the vectors are added, then the norm is taken."""
    passage, residual = block.passages[place], block.residuals[place]
    norms = add_keys(block.part_norms(place), key_groups)
    for word in _several(key_groups):
        vectors = passage.carry(_weighted(block, key_groups == word).sum(2))
        if residual is not None and block.tensors.self_attends:
            vectors = vectors + residual * (query_groups == word).to(residual).view(1, -1, 1)
        norms[..., word] = vectors.norm(dim=-1)
    return norms


def word_vector_norms(block: Block, key_groups: Int[Tensor, " key"]) -> Float[Tensor, "batch head word"]:
    """`‖sum over a word's subwords of f_h(x_j)‖`."""
    norms = add_keys(_lengths(block), key_groups)
    for word in _several(key_groups):
        f = transformed_vectors(block.values_by_head[:, :, key_groups == word], _weight(block))
        norms[..., word] = f.sum(1).norm(dim=-1)
    return norms


def word_weighted_norms(block: Block, key_groups: Int[Tensor, " key"]) -> Float[Tensor, "batch head query word"]:
    """`‖sum over a word's subwords of alpha_hij f_h(x_j)‖`."""
    gated = block.tensors.pairs.gated
    norms = add_keys(_alpha(block).abs() * _lengths(block).unsqueeze(2) if gated is None else gated, key_groups)
    for word in _several(key_groups):
        norms[..., word] = _weighted(block, key_groups == word).norm(dim=-1).transpose(1, 2)
    return norms


def _several(groups: Int[Tensor, " key"]) -> list[int]:
    """The words that have more than one subword: for the others adding vectors changes nothing."""
    return [word for word, count in enumerate(torch.bincount(groups).tolist()) if count > 1]


def _weighted(block: Block, chosen: Tensor) -> Float[Tensor, "batch query head model"]:
    """`sum over the chosen keys of alpha_hij f_h(x_j)`, by head: no key axis is left."""
    mixed = _alpha(block)[..., chosen] @ block.values_by_head[:, :, chosen]
    if block.tensors.gate is not None:
        mixed = mixed * block.tensors.gate.transpose(1, 2)
    return torch.einsum("bhqc,hcd->bqhd", mixed, _weight(block))


def _alpha(block: Block) -> Float[Tensor, "batch head query key"]:
    assert block.tensors.pairs.alpha is not None, "words need the weights"
    return block.tensors.pairs.alpha


def _lengths(block: Block) -> Float[Tensor, "batch head key"]:
    assert block.tensors.pairs.lengths is not None, "the lengths must have been asked for"
    return block.tensors.pairs.lengths


def _weight(block: Block) -> Float[Tensor, "head width model"]:
    return block.tensors.projections["attn"].weight
