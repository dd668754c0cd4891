"""From records to sequences: single texts or consecutive paragraph pairs, cut to length, masked where asked."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from jaxtyping import Int, UInt8

from normlens.corpus.reading.records import Record, UnusedRecord
from normlens.corpus.reading.token_attributes import Categories
from normlens.errors import InputError
from normlens.inputs.tokens import decoder_input

#: Why a record is not used whose text the tokenizer drops altogether.
EMPTY = "no tokens are left of it"

_TOKENIZED_AT_ONCE = 64  # records, or as many as have this many characters together
_CHARACTERS_AT_ONCE = 1 << 22


@dataclass(frozen=True)
class Target:
    """What an encoder-decoder model is given to write: the decoder's input tokens."""

    ids: Int[np.ndarray, " position"]
    category: UInt8[np.ndarray, " position"]


@dataclass(frozen=True)
class TokenSequence:
    """One sequence of the corpus, ready to run."""

    index: int  # its number in the corpus
    place: str  # where it was read
    ids: Int[np.ndarray, " position"]
    segments: Int[np.ndarray, " position"] | None  # token type ids, where the model has them
    category: UInt8[np.ndarray, " position"]
    target: Target | None = None

    @property
    def lengths(self) -> tuple[int, int]:
        """The numbers of positions that are read and written."""
        return len(self.ids), 0 if self.target is None else len(self.target.ids)

    @property
    def inputs(self) -> dict[str, list[int]]:
        """What the model is given."""
        segments = {} if self.segments is None else {"token_type_ids": self.segments.tolist()}
        written = {} if self.target is None else {"decoder_input_ids": self.target.ids.tolist()}
        return {"input_ids": self.ids.tolist(), **segments, **written}

    @cached_property
    def _digest(self) -> bytes:
        content = self.ids.astype(np.int64).tobytes() + (b"" if self.segments is None else self.segments.tobytes())
        content += b"" if self.target is None else b"target" + self.target.ids.astype(np.int64).tobytes()
        return hashlib.blake2b(content, digest_size=16).digest()

    def random(self, seed: int, purpose: str) -> np.random.Generator:
        """Randomness that depends on the seed, the purpose and the content; order and split of the corpus do not matter."""
        key = hashlib.blake2b(self._digest, digest_size=16, key=f"{seed} {purpose}".encode()[:64]).digest()
        return np.random.Generator(np.random.Philox(key=np.frombuffer(key, dtype=np.uint64)))


@dataclass(frozen=True)
class _Encoding:
    """A record as token ids, with segments, and the word of each token, where the tokenizer tells them."""

    ids: Sequence[int]
    segments: Sequence[int] | None
    words: Sequence[int | None] | None = None


@dataclass(frozen=True)
class SequenceBuilder:
    """Makes sequences of records for one tokenizer."""

    tokenizer: Any
    categories: Categories
    pairs: bool = False  # two consecutive paragraphs: [CLS] a [SEP] b [SEP]
    max_length: int = 128
    mask: float = 0.0  # share of the tokens, other than special ones, that become [MASK]
    seed: int = 0
    decoder_start: int | None = None  # the token that a decoder starts with

    def __post_init__(self) -> None:
        if self.max_length < 4:
            raise InputError(f"max_length must leave room for text between special tokens: got {self.max_length}")
        if not 0.0 <= self.mask < 1.0:
            raise InputError(f"the masked share must be at least 0 and less than 1: got {self.mask}")
        if self.mask and getattr(self.tokenizer, "mask_token_id", None) is None:
            raise InputError("masking needs a tokenizer with a mask token: this model's has none; drop --mask")

    @property
    def _segmented(self) -> bool:
        """Whether the model is told which segment a token belongs to."""
        return "token_type_ids" in getattr(self.tokenizer, "model_input_names", ())

    def build(self, records: Iterable[Record | UnusedRecord], first: int = 0) -> Iterator[TokenSequence | UnusedRecord]:
        """The sequences of one source, in order and numbered from `first`; unused records pass through.

        A record of which no token is left has a number too: numbers must not depend on the tokenizer.
        """
        stream = _paired(iter(records)) if self.pairs else iter(records)
        number = first
        for chunk in _in_handfuls(stream):
            yield from self._tokenized(chunk, number)
            number += sum(isinstance(record, Record) for record in chunk)

    def _tokenized(self, chunk: Sequence[Record | UnusedRecord], number: int) -> Iterator[TokenSequence | UnusedRecord]:
        texts = [record for record in chunk if isinstance(record, Record) and record.tokens is None]
        encoded, targets = self._encode(texts), self._encode_targets(texts)
        for record in chunk:
            if isinstance(record, UnusedRecord):
                yield record
                continue
            encoding = self._encode_tokens(record.tokens) if record.tokens is not None else next(encoded)
            target = next(targets) if record.target is not None else None
            if encoding.ids:
                yield self._sequence(record, number, encoding, target)
            else:
                yield UnusedRecord(record.place, EMPTY)
            number += 1

    def _encode_targets(self, records: Sequence[Record]) -> Iterator[Target]:
        """What the decoder reads, for the records that have a target."""
        texts = [record.target for record in records if record.target is not None]
        if not texts:
            return
        for labels in self.tokenizer(text_target=texts, truncation=True, max_length=self.max_length)["input_ids"]:
            ids = decoder_input(labels, self.decoder_start)
            category = self.categories.codes(ids, self.tokenizer.convert_ids_to_tokens(list(ids)))
            yield Target(np.array(ids, dtype=np.int64), category)

    def _encode(self, records: Sequence[Record]) -> Iterator[_Encoding]:
        kinds = {(record.words is None, record.pair is None) for record in records}
        if len(kinds) == 1 and records[0].words is None:  # texts alike go through the tokenizer together
            firsts = [record.text for record in records]
            seconds = [record.pair for record in records] if records[0].pair is not None else None
            encoding = self.tokenizer(firsts, seconds, truncation=True, max_length=self.max_length)
            segments = encoding.get("token_type_ids")
            for row, ids in enumerate(encoding["input_ids"]):
                yield _Encoding(ids, None if segments is None else segments[row])
            return
        for record in records:
            split = record.words is not None
            encoding = self.tokenizer(
                list(record.words) if record.words is not None else record.text,
                record.pair,
                is_split_into_words=split,
                truncation=True,
                max_length=self.max_length,
            )
            words = encoding.word_ids() if split and getattr(self.tokenizer, "is_fast", False) else None
            if record.tags is not None and words is None:
                raise InputError(
                    "tags need a fast tokenizer, which knows the word of each token: this model's is slow; "
                    "load a fast one, or drop --tag-column"
                )
            yield _Encoding(encoding["input_ids"], encoding.get("token_type_ids"), words)

    def _encode_tokens(self, tokens: Sequence[str]) -> _Encoding:
        """Ids of tokens that the file gives; segments follow from the separators."""
        ids = [int(token_id) for token_id in self.tokenizer.convert_tokens_to_ids(list(tokens)[: self.max_length])]
        if not self._segmented:
            return _Encoding(ids, None)
        segments, segment = [], 0
        for token_id in ids:
            segments.append(min(segment, 1))
            segment += token_id == self.tokenizer.sep_token_id
        return _Encoding(ids, segments)

    def _sequence(self, record: Record, number: int, encoding: _Encoding, target: Target | None) -> TokenSequence:
        ids, segments = encoding.ids, encoding.segments if self._segmented else None
        tags = None
        if record.tags is not None and encoding.words is not None:
            tags = [None if word is None else record.tags[word] for word in encoding.words]
        category = self.categories.codes(ids, self.tokenizer.convert_ids_to_tokens(ids), tags)
        sequence = TokenSequence(
            number,
            record.place,
            np.array(ids, dtype=np.int64),
            None if segments is None else np.array(segments, dtype=np.int64),
            category,
            target,
        )
        return self._masked(sequence) if self.mask else sequence

    def _masked(self, sequence: TokenSequence) -> TokenSequence:
        """The sequence with `int(mask n)` of its `n` tokens other than special ones masked, at least one (2021, Sec. 4).

        The choice depends on the seed and on the sequence itself, not on its neighbours.
        """
        ordinary = np.flatnonzero([int(token_id) not in self.categories.special for token_id in sequence.ids])
        count = min(max(1, int(self.mask * len(ordinary))), len(ordinary))
        chosen = sequence.random(self.seed, "mask").choice(ordinary, size=count, replace=False)
        ids, category = sequence.ids.copy(), sequence.category.copy()
        ids[chosen] = self.tokenizer.mask_token_id
        category[chosen] = self.categories.names.index("mask")
        return replace(sequence, ids=ids, category=category)


def _in_handfuls(records: Iterator[Record | UnusedRecord]) -> Iterator[list[Record | UnusedRecord]]:
    """Records to tokenize together: a tokenizer's memory grows with all the text that it is given at once."""
    chunk, characters = list[Record | UnusedRecord](), 0
    for record in records:
        chunk.append(record)
        characters += len(record.text) + len(record.pair or record.target or "") if isinstance(record, Record) else 0
        if len(chunk) == _TOKENIZED_AT_ONCE or characters > _CHARACTERS_AT_ONCE:
            yield chunk
            chunk, characters = [], 0
    if chunk:
        yield chunk


def _paired(records: Iterator[Record | UnusedRecord]) -> Iterator[Record | UnusedRecord]:
    """Neighbours joined two by two; records that are tokens already, or have a pair of their own, stay as they are.

    A last paragraph without a partner is left out: the survey has counted it.
    """
    waiting: Record | None = None
    for record in records:
        if isinstance(record, UnusedRecord) or record.tokens is not None or record.pair is not None:
            yield record
        elif waiting is None:
            waiting = record
        else:
            yield replace(waiting, pair=record.text)
            waiting = None
