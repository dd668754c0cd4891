"""From one captured site to measured and proved numbers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from normlens.anatomy.description import Kind, Site
from normlens.decompose import words as by_word
from normlens.decompose.block import Block, BlockTensors
from normlens.errors import InputError
from normlens.measures import MEASURES, SiteValues, measure
from normlens.proof import Subject, pick_pairs, prove_parts, prove_sums, prove_values
from normlens.settings import Settings


@dataclass(frozen=True)
class SiteResult:
    """The numbers of one site for a whole batch, padding included; the masks say which positions are real.

    `values` holds the measures, batch first: `alpha` is (batch, head, query, key), `f_norm` (batch, head, key),
    `x_norm` (batch, key), a map (batch, query, key). `mixing` and `residual` are (batch, query).
    """

    kind: Kind
    layer: int
    values: dict[str, Tensor]
    mixing: dict[str, Float[Tensor, "batch query"]]
    residual: dict[str, Float[Tensor, "batch query"]]
    query_mask: Bool[Tensor, "batch query"]
    key_mask: Bool[Tensor, "batch key"]
    proof: Float[Tensor, " batch"]


@dataclass(frozen=True)
class Positions:
    """Which positions of a batch are real; None where all are."""

    source: Bool[Tensor, "batch position"] | None
    target: Bool[Tensor, "batch position"] | None
    two_sided: bool

    @classmethod
    def of(cls, inputs: Mapping[str, Any], two_sided: bool) -> Positions:
        """Read the padding masks of a model's inputs."""
        return cls(_mask(inputs, "attention_mask"), _mask(inputs, "decoder_attention_mask"), two_sided)

    @property
    def padded(self) -> bool:
        """Whether any position is padding."""
        return any(mask is not None and not bool(mask.all()) for mask in (self.source, self.target))

    def queries(self, kind: Kind) -> Tensor | None:
        """The mask of the query axis."""
        return self.target if self.two_sided and kind != "encoder" else self.source

    def keys(self, kind: Kind) -> Tensor | None:
        """The mask of the key axis."""
        return self.source if kind == "cross" else self.queries(kind)


def _mask(inputs: Mapping[str, Any], name: str) -> Tensor | None:
    mask = inputs.get(name)
    # A mask of another shape (a prepared 4-D one, say) says nothing about padding that could be read here.
    return mask.bool().cpu() if isinstance(mask, Tensor) and mask.ndim == 2 else None


def _fitted(mask: Tensor | None, batch: int, length: int, axis: str, site: Site) -> Tensor:
    if mask is None:
        return torch.ones(batch, length, dtype=torch.bool)
    if tuple(mask.shape) != (batch, length):
        if bool(mask.all()):
            return torch.ones(batch, length, dtype=torch.bool)
        raise InputError(
            f"the padding mask must match the {axis} positions: it has shape {tuple(mask.shape)}, {site} has "
            f"{(batch, length)}; analyse these inputs one by one, without padding"
        )
    return mask


class Observer:
    """Measures and proves the sites of one run."""

    def __init__(self, positions: Positions, settings: Settings, family: str, dtype: torch.dtype) -> None:
        self._positions = positions
        self._settings = settings
        self._family = family
        self._dtype = dtype
        self._known: dict[tuple[Kind, int, int, int], tuple[Tensor, Tensor]] = {}

    def sample(self, site: Site, batch: int, queries: int, keys: int) -> Int[Tensor, "pair 3"]:
        """The pairs of this site that the proof will rebuild."""
        masks = self._masks(site, batch, queries, keys)
        return pick_pairs(*masks, diagonal=site.kind != "cross", seed=site.layer)

    def observe(self, site: Site, tensors: BlockTensors) -> tuple[Block, SiteResult]:
        """Measure one site and prove it."""
        block = Block(tensors)
        batch, queries = tensors.total.shape[:2]
        query_mask, key_mask = self._masks(site, batch, queries, tensors.values.shape[2])
        subject = Subject(self._family, f"{site.kind} layer {site.layer}", site.path, self._dtype)
        error = prove_sums(block, query_mask, subject)
        prove_values(block, key_mask, subject)
        measured = measure(block, self._settings.measures, self._settings.mixing)
        prove_parts(block, measured.values, subject)
        return block, SiteResult(
            site.kind, site.layer, measured.values, measured.mixing, measured.residual, query_mask, key_mask, error
        )

    def _masks(self, site: Site, batch: int, queries: int, keys: int) -> tuple[Tensor, Tensor]:
        shape = (site.kind, batch, queries, keys)
        if shape not in self._known:
            self._known[shape] = (
                _fitted(self._positions.queries(site.kind), batch, queries, "query", site),
                _fitted(self._positions.keys(site.kind), batch, keys, "key", site),
            )
        return self._known[shape]


def merge_words(
    block: Block, row: int, result: SiteResult, settings: Settings, query_words: Tensor, key_words: Tensor
) -> SiteValues:
    """The same measures for one sequence, by word; its padding is gone."""
    queries, keys = result.query_mask[row], result.key_mask[row]
    mine = Block(_one_row(block.tensors, row, queries, keys, by_word.together(query_words, key_words)))
    values = {name: _by_word(mine, name, settings, query_words, key_words) for name in settings.measures}
    per_query = measure(mine, (), settings.mixing)
    # Names asked for as maps also have a residual in cross-attention, beside the ratios.
    residual = {name: result.residual[name][row : row + 1, queries] for name in result.residual}
    return SiteValues(
        values,
        {name: _average(ratio, query_words) for name, ratio in per_query.mixing.items()},
        {name: _average(norm, query_words) for name, norm in residual.items()},
    )


def _average(values: Float[Tensor, "one query"], groups: Tensor) -> Float[Tensor, "one word"]:
    return by_word.average_queries(values.unsqueeze(-1), groups).squeeze(-1)


def _by_word(block: Block, name: str, settings: Settings, query_words: Tensor, key_words: Tensor) -> Tensor:
    found = MEASURES[name]
    if settings.words == "vectors" and name == "f_norm":
        return by_word.word_vector_norms(block, key_words)
    if settings.words == "vectors" and name == "af_norm":
        return by_word.average_queries(by_word.word_weighted_norms(block, key_words), query_words)
    if settings.words == "vectors" and name == "x_norm":
        lengths: Tensor = torch.linalg.vector_norm(by_word.add_keys(block.tensors.x.transpose(1, 2), key_words), dim=1)
        return lengths
    if settings.words == "vectors" and found.place is not None:
        parts = by_word.word_part_norms(block, found.place, query_words, key_words)
        return by_word.average_queries(parts, query_words)
    added = by_word.add_keys(found.compute(block), key_words)
    return by_word.average_queries(added, query_words) if "query" in found.axes else added


def _one_row(tensors: BlockTensors, row: int, queries: Tensor, keys: Tensor, together: Tensor) -> BlockTensors:
    def by_query(tensor: Tensor | None) -> Any:
        return None if tensor is None else tensor[row : row + 1, queries]

    pairs = tensors.pairs

    def by_pair(tensor: Tensor | None) -> Any:
        return None if tensor is None else tensor[row : row + 1][..., queries, :][..., keys]

    def last(tensor: Tensor | None, real: Tensor) -> Any:
        return None if tensor is None else tensor[row : row + 1][..., real]

    return replace(
        tensors,
        pairs=replace(
            pairs,
            mixed=by_query(pairs.mixed),
            alpha=by_pair(pairs.alpha),
            weights=by_pair(pairs.weights),
            total_weight=by_query(pairs.total_weight),
            diagonal=last(pairs.diagonal, queries),
            lengths=last(pairs.lengths, keys),
            norms={place: by_pair(norms) for place, norms in pairs.norms.items()},
            own=by_query(pairs.own),
            gated=by_pair(pairs.gated),
        ),
        values=tensors.values[row : row + 1][:, :, keys],
        projected=by_query(tensors.projected),
        residual=by_query(tensors.residual),
        others=by_query(tensors.others),
        total=by_query(tensors.total),
        normalized=by_query(tensors.normalized),
        x=tensors.x[row : row + 1, keys],
        gate=by_query(tensors.gate),
        together=together if tensors.self_attends else None,
    )
