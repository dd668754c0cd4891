"""From records to sequences: single texts or consecutive paragraph pairs, cut to length, masked where asked."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

import numpy as np

from normlens.corpus.batches import Item, generator
from normlens.corpus.categories import Categories
from normlens.corpus.sources import Flaw, Record
from normlens.errors import InputError

_CHUNK = 64  # records tokenized at once


@dataclass(frozen=True)
class Recipe:
    """How sequences are made of records."""

    pairs: bool = False  # two consecutive paragraphs: [CLS] a [SEP] b [SEP]
    max_length: int = 128
    mask: float = 0.0  # share of the tokens, other than special ones, that become [MASK]
    seed: int = 0

    def __post_init__(self) -> None:
        if self.max_length < 4:
            raise InputError(f"max_length must leave room for text between special tokens: got {self.max_length}")
        if not 0.0 <= self.mask < 1.0:
            raise InputError(f"the masked share must be at least 0 and less than 1: got {self.mask}")


def build(
    records: Iterable[Record | Flaw], tokenizer: Any, categories: Categories, recipe: Recipe, first: int = 0
) -> Iterator[Item | Flaw]:
    """The sequences of one source, in order and numbered from `first`; flaws pass through."""
    if recipe.mask and getattr(tokenizer, "mask_token_id", None) is None:
        raise InputError("masking needs a tokenizer with a mask token: this model's has none; drop --mask")
    stream = _paired(iter(records)) if recipe.pairs else iter(records)
    number = first
    while chunk := list(islice(stream, _CHUNK)):
        for made in _tokenized(chunk, tokenizer, categories, recipe):
            if isinstance(made, Item):
                made = replace(made, index=number)
                number += 1
            yield made


def _paired(records: Iterator[Record | Flaw]) -> Iterator[Record | Flaw]:
    """Neighbours joined two by two; records that are tokens already, or have a pair of their own, stay as they are."""
    waiting: Record | None = None
    for record in records:
        if isinstance(record, Flaw) or record.tokens is not None or record.pair is not None:
            yield record
        elif record.words is not None:
            raise InputError("paragraph pairs are made of texts, not of lists of words: drop --pairs")
        elif waiting is None:
            waiting = record
        else:
            yield replace(waiting, pair=record.text)
            waiting = None
    if waiting is not None:
        yield Flaw(waiting.place, "the last paragraph of its source has no partner", harmless=True)


def _tokenized(
    chunk: Sequence[Record | Flaw], tokenizer: Any, categories: Categories, recipe: Recipe
) -> Iterator[Item | Flaw]:
    texts = [record for record in chunk if isinstance(record, Record) and record.tokens is None]
    encoded = iter(_encode(texts, tokenizer, recipe.max_length))
    for record in chunk:
        if isinstance(record, Flaw):
            yield record
            continue
        if record.tokens is not None:
            ids, types, words = _known_tokens(record, tokenizer, recipe.max_length)
        else:
            ids, types, words = next(encoded)
        if not ids:
            yield Flaw(record.place, "no tokens are left of it")
            continue
        yield _item(record, ids, types, words, tokenizer, categories, recipe)


def _encode(
    records: Sequence[Record], tokenizer: Any, max_length: int
) -> Iterator[tuple[list[int], list[int] | None, list[int | None] | None]]:
    if not records:
        return
    alike = {(record.words is None, record.pair is None) for record in records}
    if len(alike) == 1 and records[0].words is None:
        firsts = [record.text for record in records]
        seconds = [record.pair for record in records] if records[0].pair is not None else None
        encoding = tokenizer(firsts, seconds, truncation=True, max_length=max_length)
        types = encoding.get("token_type_ids")
        for row, ids in enumerate(encoding["input_ids"]):
            yield ids, None if types is None else types[row], None
        return
    for record in records:
        split = record.words is not None
        encoding = tokenizer(
            list(record.words) if record.words is not None else record.text,
            record.pair,
            is_split_into_words=split,
            truncation=True,
            max_length=max_length,
        )
        words = encoding.word_ids() if split and getattr(tokenizer, "is_fast", False) else None
        if record.tags is not None and words is None:
            raise InputError("tags need a fast tokenizer, which knows the word of each token: this model's is slow")
        yield encoding["input_ids"], encoding.get("token_type_ids"), words


def _known_tokens(
    record: Record, tokenizer: Any, max_length: int
) -> tuple[list[int], list[int] | None, list[int | None] | None]:
    """Ids of tokens that the file gives; segments follow from the separators."""
    tokens = list(record.tokens or ())[:max_length]
    ids = [int(token_id) for token_id in tokenizer.convert_tokens_to_ids(tokens)]
    if "token_type_ids" not in getattr(tokenizer, "model_input_names", ()):
        return ids, None, None
    types, segment = [], 0
    for token_id in ids:
        types.append(min(segment, 1))
        segment += token_id == tokenizer.sep_token_id
    return ids, types, None


def _item(
    record: Record,
    ids: list[int],
    types: list[int] | None,
    words: list[int | None] | None,
    tokenizer: Any,
    categories: Categories,
    recipe: Recipe,
) -> Item:
    if types is not None and "token_type_ids" not in getattr(tokenizer, "model_input_names", ()):
        types = None
    tags = None
    if record.tags is not None and words is not None:
        tags = [None if word is None else record.tags[word] for word in words]
    numbers = np.array(ids, dtype=np.int64)
    segments = None if types is None else np.array(types, dtype=np.int64)
    item = Item(-1, record.place, numbers, segments, categories.codes(ids, tokenizer.convert_ids_to_tokens(ids), tags))
    return masked(item, tokenizer, categories, recipe) if recipe.mask else item


def masked(item: Item, tokenizer: Any, categories: Categories, recipe: Recipe) -> Item:
    """The sequence with `int(share * n)` of its `n` tokens other than special ones masked, at least one (2021, Sec. 4).

    The choice depends on the seed and on the sequence itself, not on its neighbours.
    """
    open_ = np.flatnonzero([int(token_id) not in categories.special for token_id in item.ids])
    count = min(max(1, int(recipe.mask * len(open_))), len(open_))
    chosen = generator(recipe.seed, "mask", item.digest).choice(open_, size=count, replace=False)
    ids, category = item.ids.copy(), item.category.copy()
    ids[chosen] = tokenizer.mask_token_id
    category[chosen] = categories.names.index("mask")
    return replace(item, ids=ids, category=category)
