"""The measures of one sequence by word: a word's key columns are added, its query rows averaged.

The columns are added either as norms (`norms`) or as vectors before the norm is taken (`vectors`). A word's self part is
all of its own subwords.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import get_args, overload

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from normlens.decompose.block import Block, LayerEndTensors
from normlens.decompose.stages import Stage
from normlens.measures.table import MEASURES, SiteValues, measure_block
from normlens.options import WordMode

WORD_MODES: tuple[WordMode, ...] = get_args(WordMode)


def measure_words(
    block: Block,
    row: int,
    masks: tuple[Bool[Tensor, " query"], Bool[Tensor, " key"]],
    words: tuple[Int[Tensor, " query"], Int[Tensor, " key"]],
    names: Sequence[str],
    mixing: Sequence[str],
    mode: WordMode,
) -> SiteValues:
    """Compute the named measures and ratios of one sequence of a batch by word.

    Args:
        block: The block of the whole batch.
        row: The sequence.
        masks: The real queries and keys of the sequence.
        words: The word of each real query and key.
        names: The measures.
        mixing: The maps whose mixing ratios are computed.
        mode: Whether a word's columns are added as norms or as vectors.
    """
    query_words, key_words = words
    sequence = _SequenceRows(block, row, *masks).block(query_words.unsqueeze(1) == key_words.unsqueeze(0))
    by_token = measure_block(sequence, names, mixing)
    values = {}
    for name, value in by_token.values.items():
        values[name] = _by_word(sequence, name, value, mode, query_words, key_words)
    return SiteValues(
        values,
        {name: _average(ratio, query_words) for name, ratio in by_token.mixing.items()},
        {name: _average(norm, query_words) for name, norm in by_token.residual.items()},
    )


def _average(values: Float[Tensor, "one query"], groups: Int[Tensor, " query"]) -> Float[Tensor, "one word"]:
    return average_queries(values.unsqueeze(-1), groups).squeeze(-1)


def _by_word(block: Block, name: str, value: Tensor, mode: WordMode, query_words: Tensor, key_words: Tensor) -> Tensor:
    measure = MEASURES[name]
    if mode == "vectors" and name == "x_norm":
        added: Tensor = add_keys(block.x.transpose(1, 2), key_words).norm(dim=1)
    elif mode == "vectors" and name == "f_norm":
        added = word_f_norms(block, key_words)
    elif mode == "vectors" and name == "af_norm":
        added = word_af_norms(block, value, key_words)
    elif mode == "vectors" and measure.stage is not None:
        added = word_part_norms(block, measure.stage, value, query_words, key_words)
    else:
        added = add_keys(value, key_words)
    if "query" in measure.axes:
        return average_queries(added, query_words)
    return added


class _SequenceRows:
    """One sequence of a block without its padding."""

    def __init__(self, block: Block, row: int, queries: Tensor, keys: Tensor) -> None:
        self._block, self._row = block, row
        self._queries, self._keys = queries.to(block.values.device), keys.to(block.values.device)

    @overload
    def _by_query(self, tensor: Tensor) -> Tensor: ...

    @overload
    def _by_query(self, tensor: Tensor | None) -> Tensor | None: ...

    def _by_query(self, tensor: Tensor | None) -> Tensor | None:
        return None if tensor is None else tensor[self._row : self._row + 1, self._queries]

    @overload
    def _by_pair(self, tensor: Tensor) -> Tensor: ...

    @overload
    def _by_pair(self, tensor: Tensor | None) -> Tensor | None: ...

    def _by_pair(self, tensor: Tensor | None) -> Tensor | None:
        if tensor is None:
            return None
        return tensor[self._row : self._row + 1][..., self._queries, :][..., self._keys]

    def block(self, same_word: Bool[Tensor, "query key"]) -> Block:
        """The block of the sequence."""
        block, pairs, row = self._block, self._block.pairs, slice(self._row, self._row + 1)
        return replace(
            block,
            pairs=replace(
                pairs,
                mixed=self._by_query(pairs.mixed),
                alpha=self._by_pair(pairs.alpha),
                mean_alpha=self._by_pair(pairs.mean_alpha),
                row_sums=self._by_query(pairs.row_sums),
                self_alpha=self._by_query(pairs.self_alpha),
                own=self._by_query(pairs.own),
                f_norm=None if pairs.f_norm is None else pairs.f_norm[row][..., self._keys],
                norms={stage: self._by_pair(norms) for stage, norms in pairs.norms.items()},
                factor=None if pairs.factor is None else pairs.factor[row][:, :, self._queries],
                gated_af_norm=self._by_pair(pairs.gated_af_norm),
                compiled=False,
            ),
            values=block.values[row][:, :, self._keys],
            projected=self._by_query(block.projected),
            residual=self._by_query(block.residual),
            stream_weights=self._by_query(block.stream_weights),
            others=self._by_query(block.others),
            total=self._by_query(block.total),
            normalized=self._by_query(block.normalized),
            x=block.x[row, self._keys],
            gate=self._by_query(block.gate),
            same_word=same_word.to(self._queries.device) if block.self_attends else None,
            end=self._end(),
        )

    def _end(self) -> LayerEndTensors | None:
        end = self._block.end
        if end is None:
            return None
        feed_forward = end.feed_forward
        if feed_forward is not None:
            feed_forward = replace(
                feed_forward,
                captured={name: self._by_query(tensor) for name, tensor in feed_forward.captured.items()},
                output=self._by_query(feed_forward.output),
                beside=self._by_query(feed_forward.beside),
            )
        return replace(
            end,
            total=self._by_query(end.total),
            normalized=self._by_query(end.normalized),
            feed_forward=feed_forward,
        )


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
        vectors = block.to_stage(_weighted(block, key_groups == word).sum(2), stage)
        if residual is not None and block.self_attends:
            vectors = vectors + residual * (query_groups == word).to(residual).view(1, -1, 1)
        norms[..., word] = vectors.norm(dim=-1)
    return norms


def word_f_norms(block: Block, key_groups: Int[Tensor, " key"]) -> Float[Tensor, "batch head word"]:
    """`‖sum over a word's subwords of f_h(x_j)‖`."""
    assert block.pairs.f_norm is not None, "the norms of f(x) must have been requested"
    norms = add_keys(block.pairs.f_norm, key_groups)
    for word in _of_several_subwords(key_groups):
        # f is linear in the value vector, so the values can be added before the projection.
        added = block.values_by_head[:, :, key_groups == word].sum(2, keepdim=True)
        norms[..., word] = torch.einsum("bhkc,hcd->bhkd", added, block.w_o).norm(dim=-1).squeeze(-1)
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
    """The words with more than one subword: for the others, adding vectors changes nothing."""
    return [word for word, count in enumerate(torch.bincount(groups).tolist()) if count > 1]


def _weighted(block: Block, chosen: Tensor) -> Float[Tensor, "batch query head model"]:
    """`sum over the chosen keys of a_hij f_h(x_j)`, by head: no key axis is left."""
    mixed = block.edge_weights[..., chosen] @ block.values_by_head[:, :, chosen]
    if block.gate is not None:
        mixed = mixed * block.gate.transpose(1, 2)
    return torch.einsum("bhqc,hcd->bqhd", mixed, block.w_o)
