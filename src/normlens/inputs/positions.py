"""The real positions of a batch, from the padding masks, for the queries and keys of each site."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
from jaxtyping import Bool
from torch import Tensor

from normlens.anatomy.description import Site
from normlens.anatomy.inputs import holds_media
from normlens.anatomy.kinds import Kind
from normlens.errors import InputError
from normlens.types import ModelInputs

#: By kind of site, for each row of a batch: the words of its queries and of its keys.
RowWords = Mapping[Kind, Sequence[tuple[Tensor, Tensor]]]


@dataclass(frozen=True)
class RealPositions:
    """The real queries and keys of the sites of one kind: as masks, and as numbers for each sequence."""

    query_mask: Bool[Tensor, "batch query"]
    key_mask: Bool[Tensor, "batch key"]
    queries: Sequence[Sequence[int]]
    keys: Sequence[Sequence[int]]


@dataclass(frozen=True)
class Positions:
    """The real positions of a batch (None: all), and their words, where these matter."""

    source: Bool[Tensor, "batch position"] | None
    target: Bool[Tensor, "batch position"] | None
    looked_at: Bool[Tensor, "batch position"] | None  # by cross-attention
    two_sided: bool
    words: RowWords | None = None
    with_media: bool = False  # whether there is text beside images or sound
    _known: dict[tuple[Kind, int, int, int], RealPositions] = field(default_factory=dict)

    @classmethod
    def of(cls, inputs: ModelInputs, two_sided: bool, words: RowWords | None = None) -> Positions:
        """Read the padding masks of a model's inputs."""
        masks = (inputs.get(name) for name in ("attention_mask", "decoder_attention_mask", "encoder_attention_mask"))
        # A mask of another shape (a prepared 4-D one, say) says nothing about padding that could be read here.
        source, target, states = (m.bool().cpu() if isinstance(m, Tensor) and m.ndim == 2 else None for m in masks)
        # A decoder that is handed states of a source has their mask under a name of its own.
        mixed = "input_ids" in inputs and holds_media(inputs)
        return cls(source, target, source if two_sided else states, two_sided, words, mixed)

    @property
    def last(self) -> Tensor | None:
        """The real positions of the model's output."""
        return self.target if self.two_sided else self.source

    def at(self, site: Site, batch: int, queries: int, keys: int) -> RealPositions:
        """The real positions of a site with axes of these lengths; sites of one kind have the same."""
        shape = (site.kind, batch, queries, keys)
        if shape in self._known:
            return self._known[shape]
        if not site.is_cross and queries != keys:
            raise InputError(
                f"{site} has {queries} queries and {keys} keys (are states of an earlier pass among the inputs?); "
                "pass the whole sequence and leave them out"
            )
        by_query = self.target if self.two_sided and site.kind != "encoder" else self.source
        by_key = self.looked_at if site.is_cross else by_query
        if self.with_media:  # padding masks of text say nothing of patches and frames
            by_query, by_key = (
                mask if text else None for mask, text in zip((by_query, by_key), site.of_text, strict=True)
            )
        found = []
        for axis, mask, length in (("query", by_query, queries), ("key", by_key, keys)):
            fits = mask is not None and tuple(mask.shape) == (batch, length)
            if mask is not None and not fits and not bool(mask.all()):
                raise InputError(
                    f"the padding mask has shape {tuple(mask.shape)}, but {site} has {(batch, length)} {axis} "
                    "positions; analyse these inputs one by one, without padding"
                )
            found.append(mask if fits and mask is not None else torch.ones(batch, length, dtype=torch.bool))
        real_queries, real_keys = ([row.nonzero()[0].tolist() for row in mask.numpy()] for mask in found)
        self._known[shape] = RealPositions(found[0], found[1], real_queries, real_keys)
        return self._known[shape]
