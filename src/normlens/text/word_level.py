"""The measures of one sequence by word: a word's key columns are added, its query rows averaged.

The columns are added either as norms (`norms`) or as vectors before the norm is taken (`vectors`). A word's self part is
all of its own subwords.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor

from normlens.decompose.block import Block, BlockTensors, LayerEnd
from normlens.decompose.stages import Stage
from normlens.measures import MEASURES, SiteValues, measure

WordMode = Literal["norms", "vectors"]


def measure_words(
    block: Block,
    row: int,
    masks: tuple[Tensor, Tensor],
    words: tuple[Int[Tensor, " query"], Int[Tensor, " key"]],
    names: Sequence[str],
    mixing: Sequence[str],
    mode: WordMode,
) -> SiteValues:
    """The named measures and ratios of one sequence of a batch by word; `masks` and `words` are of queries and keys."""
    query_words, key_words = words
    mine = Block(_one_row(block.tensors, row, *masks, query_words.unsqueeze(1) == key_words.unsqueeze(0)))
    found = measure(mine, names, mixing)
    return SiteValues(
        {name: _by_word(mine, name, value, mode, query_words, key_words) for name, value in found.values.items()},
        {name: _average(ratio, query_words) for name, ratio in found.mixing.items()},
        {name: _average(norm, query_words) for name, norm in found.residual.items()},
    )


def _average(values: Float[Tensor, "one query"], groups: Int[Tensor, " query"]) -> Float[Tensor, "one word"]:
    return average_queries(values.unsqueeze(-1), groups).squeeze(-1)


def _by_word(block: Block, name: str, value: Tensor, mode: WordMode, query_words: Tensor, key_words: Tensor) -> Tensor:
    found = MEASURES[name]
    if mode == "vectors" and name == "x_norm":
        added: Tensor = add_keys(block.tensors.x.transpose(1, 2), key_words).norm(dim=1)
    elif mode == "vectors" and name == "f_norm":
        added = word_f_norms(block, key_words)
    elif mode == "vectors" and name == "af_norm":
        added = word_af_norms(block, value, key_words)
    elif mode == "vectors" and found.stage is not None:
        added = word_part_norms(block, found.stage, value, query_words, key_words)
    else:
        added = add_keys(value, key_words)
    return average_queries(added, query_words) if "query" in found.axes else added


def _one_row(tensors: BlockTensors, row: int, queries: Tensor, keys: Tensor, same_word: Tensor) -> BlockTensors:
    """One sequence of a block without its padding."""
    pairs = tensors.pairs
    queries, keys = (mask.to(tensors.values.device) for mask in (queries, keys))

    def by_query(tensor: Tensor | None) -> Any:
        return None if tensor is None else tensor[row : row + 1, queries]

    def by_pair(tensor: Tensor | None) -> Any:
        return None if tensor is None else tensor[row : row + 1][..., queries, :][..., keys]

    return replace(
        tensors,
        pairs=replace(
            pairs,
            mixed=by_query(pairs.mixed),
            alpha=by_pair(pairs.alpha),
            weights=by_pair(pairs.weights),
            total_weight=by_query(pairs.total_weight),
            weight_on_self=by_query(pairs.weight_on_self),
            own=by_query(pairs.own),
            f_norm=None if pairs.f_norm is None else pairs.f_norm[row : row + 1][..., keys],
            norms={stage: by_pair(norms) for stage, norms in pairs.norms.items()},
            factor=None if pairs.factor is None else pairs.factor[row : row + 1][:, :, queries],
            gated_af_norm=by_pair(pairs.gated_af_norm),
            compiled=False,
        ),
        values=tensors.values[row : row + 1][:, :, keys],
        projected=by_query(tensors.projected),
        residual=by_query(tensors.residual),
        stream_weights=by_query(tensors.stream_weights),
        others=by_query(tensors.others),
        total=by_query(tensors.total),
        normalized=by_query(tensors.normalized),
        x=tensors.x[row : row + 1, keys],
        gate=by_query(tensors.gate),
        same_word=same_word.to(queries.device) if tensors.self_attends else None,
        end=_one_row_end(tensors.end, by_query),
    )


def _one_row_end(end: LayerEnd | None, by_query: Callable[[Tensor | None], Any]) -> LayerEnd | None:
    """What follows the block in one sequence without its padding."""
    if end is None:
        return None
    fed = end.feed_forward
    if fed is not None:
        seen = {name: by_query(tensor) for name, tensor in fed.seen.items()}
        fed = replace(fed, seen=seen, output=by_query(fed.output), beside=by_query(fed.beside))
    return replace(end, total=by_query(end.total), normalized=by_query(end.normalized), feed_forward=fed)


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


def word_part_norms(
    block: Block,
    stage: Stage,
    part_norms: Float[Tensor, "batch query key"],
    query_groups: Int[Tensor, " query"],
    key_groups: Int[Tensor, " key"],
) -> Float[Tensor, "batch query word"]:
    """`‖sum over a word's subwords j of part_ij‖` at a stage: the vectors are added, then the norm is taken."""
    residual = block.residual_at(stage)
    norms = add_keys(part_norms, key_groups)
    for word in _of_several_subwords(key_groups):
        vectors = block.carried(_weighted(block, key_groups == word).sum(2), stage)
        if residual is not None and block.tensors.self_attends:
            vectors = vectors + residual * (query_groups == word).to(residual).view(1, -1, 1)
        norms[..., word] = vectors.norm(dim=-1)
    return norms


def word_f_norms(block: Block, key_groups: Int[Tensor, " key"]) -> Float[Tensor, "batch head word"]:
    """`‖sum over a word's subwords of f_h(x_j)‖`."""
    assert block.tensors.pairs.f_norm is not None, "the norms of f(x) must have been asked for"
    norms = add_keys(block.tensors.pairs.f_norm, key_groups)
    for word in _of_several_subwords(key_groups):
        # f is linear in the value vector, so the values can be added before the projection.
        added = block.values_by_head[:, :, key_groups == word].sum(2, keepdim=True)
        norms[..., word] = torch.einsum("bhkc,hcd->bhkd", added, block.tensors.weight).norm(dim=-1).squeeze(-1)
    return norms


def word_af_norms(
    block: Block, af_norm: Float[Tensor, "batch head query key"], key_groups: Int[Tensor, " key"]
) -> Float[Tensor, "batch head query word"]:
    """`‖sum over a word's subwords of a_hij f_h(x_j)‖`; `af_norm` is the measure by subword."""
    norms = add_keys(af_norm, key_groups)
    for word in _of_several_subwords(key_groups):
        norms[..., word] = _weighted(block, key_groups == word).norm(dim=-1).transpose(1, 2)
    return norms


def _of_several_subwords(groups: Int[Tensor, " key"]) -> list[int]:
    """The words that have more than one subword: for the others adding vectors changes nothing."""
    return [word for word, count in enumerate(torch.bincount(groups).tolist()) if count > 1]


def _weighted(block: Block, chosen: Tensor) -> Float[Tensor, "batch query head model"]:
    """`sum over the chosen keys of a_hij f_h(x_j)`, by head: no key axis is left."""
    mixed = block.weights[..., chosen] @ block.values_by_head[:, :, chosen]
    if block.tensors.gate is not None:
        mixed = mixed * block.tensors.gate.transpose(1, 2)
    return torch.einsum("bhqc,hcd->bqhd", mixed, block.tensors.weight)
