"""Taking tokens away: by deleting them, by writing a mask token in their place, or by a word vector of zero.

Which of the three is part of every result that uses it: they ask different questions. Deleting closes the gap, so that
later positions move; a mask token was seen in training by masked language models alone; zero is a vector that no model saw.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, get_args

import numpy as np

from normlens.attribution.questions import head_of
from normlens.errors import InputError
from normlens.faithfulness.items import Item, values
from normlens.options import Removal

if TYPE_CHECKING:
    from normlens.lens import Lens

WAYS: tuple[Removal, ...] = get_args(Removal)


def default_way(lens: Lens) -> Removal:
    """`mask` where the tokenizer has a mask token and the head reads a position or a whole text; else `delete`."""
    mask = getattr(lens.tokenizer, "mask_token_id", None)
    return "delete" if mask is None or head_of(lens.model) == "causal" else "mask"


def check_way(lens: Lens, how: str) -> Removal:
    """The way to take tokens away, if this model has it."""
    if how not in WAYS:
        raise InputError(f"removal must be one of {', '.join(WAYS)}, got {how!r}")
    if how == "mask" and getattr(lens.tokenizer, "mask_token_id", None) is None:
        raise InputError("this model's tokenizer has no mask token; choose delete or zero")
    return how


def removable(lens: Lens, item: Item, how: Removal) -> tuple[int, ...]:
    """The positions that may be taken away: no special tokens, and never the only place where the model is asked.

    A causal model is asked after the last token that is left; a mask, or a token that gets a label, must stay in its place.
    """
    special = set(getattr(lens.tokenizer, "all_special_ids", ()))
    head = head_of(lens.model)
    stays = head == "masked" or (head == "token" and how == "delete")
    return tuple(k for k, token in enumerate(item.ids) if token not in special and not (stays and k == item.position))


def without(lens: Lens, item: Item, gone: Collection[int], how: Removal) -> Item:
    """The item with these positions taken away."""
    if not gone:
        return item
    if how == "zero":
        return replace(item, blank=item.blank | frozenset(gone))
    if how == "mask":
        mask = int(lens.tokenizer.mask_token_id)
        return replace(item, ids=tuple(mask if k in gone else token for k, token in enumerate(item.ids)))
    kept = [k for k in range(len(item.ids)) if k not in gone]
    if not kept:
        raise InputError("all tokens of an item would be deleted; delete fewer, or mask them")
    before = [k for k in kept if item.position is not None and k <= item.position]
    return replace(
        item,
        ids=tuple(item.ids[k] for k in kept),
        position=None if item.position is None else max(0, len(before) - 1),
        segments=None if item.segments is None else tuple(item.segments[k] for k in kept),
        blank=frozenset(kept.index(k) for k in item.blank if k in kept),
    )


def erasure(lens: Lens, items: Sequence[Item], how: Removal | None = None) -> list[np.ndarray]:
    """`value - value without token k`, one forward pass for each token; 0 for what cannot be taken away."""
    way = default_way(lens) if how is None else check_way(lens, how)
    changed, owners = [], []
    for i, item in enumerate(items):
        for k in removable(lens, item, way):
            if way != "delete" or len(item.ids) > 1:
                changed.append(without(lens, item, {k}, way))
                owners.append((i, k))
    whole = values(lens, items).numpy()
    scores = [np.zeros(len(item.ids)) for item in items]
    for (i, k), value in zip(owners, values(lens, changed).numpy(), strict=True):
        scores[i][k] = whole[i] - value
    return scores
