"""From records to token sequences: tokenized, cut to length, masked where asked, every token with its category.

Categories are the papers' ([CLS], [SEP], [MASK], comma and period, others), or the caller's. Every token has exactly one, so
that counts over categories add up to counts over all tokens.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float, Int, UInt8

from normlens.corpus.options import CategoryRule
from normlens.corpus.reading import Record, UnusedRecord
from normlens.errors import InputError
from normlens.inputs.tokens import decoder_input, readable
from normlens.io.reading import read_text

#: In this order: a token belongs to the first that fits. `special` is any other special token ([PAD], <eos>, …).
SPECIAL = ("cls", "sep", "mask", "special")
COMMA_PERIOD = "comma_period"
OTHER = "other"

#: Sequences are cut at this many tokens, as in the papers, unless another length is asked for or the model takes less.
PAPER_LENGTH = 128

#: The reason of a record whose text the tokenizer drops altogether.
EMPTY = "no tokens are left of it"

_LARGEST_RANK = 2**53  # beyond, neighbouring ranks could not be told apart


@dataclass(frozen=True)
class Categories:
    """The categories of tokens: special tokens by the tokenizer's list, then the rules in order, then `other`.

    With tags, the tag of a word is the category of its tokens, and there are no rules.
    """

    names: tuple[str, ...]
    special: Mapping[int, str]  # token id -> name
    rules: tuple[tuple[str, CategoryRule], ...] = ()
    tagged: bool = False
    _codes: dict[int, int] = field(default_factory=dict, repr=False, compare=False)

    @classmethod
    def of(
        cls, tokenizer: Any, rules: Mapping[str, CategoryRule] | None = None, tags: Sequence[str] | None = None
    ) -> Categories:
        """Return the papers' categories for a tokenizer, or the caller's rules or tags in place of comma and period."""
        if tags is not None and rules:
            raise InputError("categories come from rules or from tags, not from both; drop one")
        own = [(name, _compiled(name, rule)) for name, rule in (rules or {}).items()]
        if rules is None and tags is None:
            own = [(COMMA_PERIOD, re.compile(r"[,.]"))]
        middle = list(tags) if tags is not None else [name for name, _ in own if name != OTHER]
        names = (*SPECIAL, *middle, OTHER)
        if len(set(names)) != len(names):
            raise InputError(
                f"names of categories must differ from each other and from {', '.join((*SPECIAL, OTHER))}; rename one"
            )
        if len(names) > 64:
            raise InputError(f"there may be at most 64 categories, got {len(names)}; merge some")
        return cls(names, _special_ids(tokenizer), tuple(own), tags is not None)

    def codes(
        self, ids: Sequence[int], tokens: Sequence[str], tags: Sequence[str | None] | None = None
    ) -> UInt8[np.ndarray, " position"]:
        """Return the category of each token, as an index into `names`."""
        codes = np.empty(len(ids), dtype=np.uint8)
        for position, token_id in enumerate(ids):
            if self.tagged and token_id not in self.special:
                tag = tags[position] if tags is not None else None
                codes[position] = self.names.index(tag if tag in self.names else OTHER)
            else:
                codes[position] = self._code(token_id, tokens[position])
        return codes

    def portable(self, tokens: Sequence[str]) -> Categories:
        """Return the same categories without functions, which cannot be pickled: they are applied to all `tokens`."""
        if not any(callable(rule) for _, rule in self.rules):
            return self
        codes = {token_id: self._code(token_id, token) for token_id, token in enumerate(tokens)}
        return replace(self, rules=(), _codes=codes)

    def _code(self, token_id: int, token: str) -> int:
        if token_id not in self._codes:  # rules are applied once per entry of the vocabulary
            self._codes[token_id] = self.names.index(self._name(token_id, token))
        return self._codes[token_id]

    def _name(self, token_id: int, token: str) -> str:
        if token_id in self.special:
            return self.special[token_id]
        word = readable(token)
        for name, rule in self.rules:
            fits = rule.fullmatch(word) if isinstance(rule, re.Pattern) else rule(word)  # type: ignore[operator]
            if fits:
                return name
        return OTHER


def _compiled(name: str, rule: CategoryRule) -> CategoryRule:
    if not isinstance(rule, str):
        return rule
    try:
        return re.compile(rule)
    except re.error as error:
        raise InputError(
            f"a category is NAME=REGEX, got {name}={rule!r} ({error}); escape special characters"
        ) from error


def _special_ids(tokenizer: Any) -> dict[int, str]:
    special = dict.fromkeys(tokenizer.all_special_ids, "special")
    special.pop(getattr(tokenizer, "unk_token_id", None), None)  # [UNK] stands for a word of the text
    for name in ("mask", "sep", "cls"):
        token_id = getattr(tokenizer, f"{name}_token_id", None)
        if token_id is not None:
            special[token_id] = name
    return special


@dataclass(frozen=True)
class Target:
    """The decoder's input tokens of an encoder-decoder model."""

    ids: Int[np.ndarray, " position"]
    category: UInt8[np.ndarray, " position"]


@dataclass(frozen=True)
class TokenSequence:
    """One sequence of the corpus, ready to run."""

    index: int  # its number in the corpus
    place: str
    ids: Int[np.ndarray, " position"]
    segments: Int[np.ndarray, " position"] | None  # token type ids, where the model has them
    category: UInt8[np.ndarray, " position"]
    target: Target | None = None

    @property
    def lengths(self) -> tuple[int, int]:
        """The numbers of source and target positions."""
        return len(self.ids), 0 if self.target is None else len(self.target.ids)

    @property
    def inputs(self) -> dict[str, list[int]]:
        """The inputs of the model."""
        inputs = {"input_ids": self.ids.tolist()}
        if self.segments is not None:
            inputs["token_type_ids"] = self.segments.tolist()
        if self.target is not None:
            inputs["decoder_input_ids"] = self.target.ids.tolist()
        return inputs

    @cached_property
    def _digest(self) -> bytes:
        content = self.ids.astype(np.int64).tobytes()
        if self.segments is not None:
            content += self.segments.tobytes()
        if self.target is not None:
            content += b"target" + self.target.ids.astype(np.int64).tobytes()
        return hashlib.blake2b(content, digest_size=16).digest()

    def random(self, seed: int, purpose: str) -> np.random.Generator:
        """Return a generator that depends on the seed, the purpose and the tokens, not on the place in the corpus."""
        key = hashlib.blake2b(self._digest, digest_size=16, key=f"{seed} {purpose}".encode()[:64]).digest()
        return np.random.Generator(np.random.Philox(key=np.frombuffer(key, dtype=np.uint64)))


@dataclass(frozen=True)
class SequenceBuilder:
    """Makes sequences of records for one tokenizer."""

    tokenizer: Any
    categories: Categories
    max_length: int = PAPER_LENGTH
    mask: float = 0.0
    seed: int = 0
    decoder_start: int | None = None  # the token that a decoder starts with

    def __post_init__(self) -> None:
        if self.max_length < 4:
            raise InputError(f"max_length must leave room for text between special tokens, got {self.max_length}")
        if not 0.0 <= self.mask < 1.0:
            raise InputError(f"mask must be at least 0 and less than 1, got {self.mask}")
        if self.mask and getattr(self.tokenizer, "mask_token_id", None) is None:
            raise InputError("the model's tokenizer has no mask token; drop --mask")

    @property
    def _segmented(self) -> bool:
        """Whether the model takes token type ids."""
        return "token_type_ids" in getattr(self.tokenizer, "model_input_names", ())

    def build(self, records: Iterable[Record], first: int = 0) -> Iterator[TokenSequence | UnusedRecord]:
        """Yield the sequence of each record, numbered from `first`; a record without tokens is an `UnusedRecord`."""
        for number, record in enumerate(records, first):
            ids, segments, words = self._encoded(record)
            if ids:
                yield self._sequence(record, number, ids, segments, words)
            else:
                yield UnusedRecord(record.place, EMPTY)

    def _encoded(self, record: Record) -> tuple[Sequence[int], Sequence[int] | None, Sequence[int | None] | None]:
        """Token ids, segments, and the word of each token where words were given."""
        if record.tokens is not None:
            return self._encoded_tokens(record.tokens)
        split = record.words is not None
        text = list(record.words) if record.words is not None else record.text
        encoding = self.tokenizer(
            text, record.pair, is_split_into_words=split, truncation=True, max_length=self.max_length
        )
        words = None
        if split and getattr(self.tokenizer, "is_fast", False):
            words = encoding.word_ids()
        if record.tags is not None and words is None:
            raise InputError(
                "tags need a fast tokenizer, which knows the word of each token; load one, or drop --tag-column"
            )
        return encoding["input_ids"], encoding.get("token_type_ids"), words

    def _encoded_tokens(self, tokens: Sequence[str]) -> tuple[list[int], list[int], None]:
        """Ids of tokens that the record gives; segments follow from the separators."""
        ids = [int(token_id) for token_id in self.tokenizer.convert_tokens_to_ids(list(tokens)[: self.max_length])]
        separators = np.array(ids) == self.tokenizer.sep_token_id
        segments = np.minimum(np.cumsum(separators) - separators, 1)
        return ids, segments.tolist(), None

    def _sequence(
        self,
        record: Record,
        number: int,
        ids: Sequence[int],
        segments: Sequence[int] | None,
        words: Sequence[int | None] | None,
    ) -> TokenSequence:
        tags = None
        if record.tags is not None and words is not None:
            tags = [None if word is None else record.tags[word] for word in words]
        category = self.categories.codes(ids, self.tokenizer.convert_ids_to_tokens(ids), tags)
        types = None
        if self._segmented and segments is not None:
            types = np.array(segments, dtype=np.int64)
        target = None if record.target is None else self._target(record.target)
        sequence = TokenSequence(number, record.place, np.array(ids, dtype=np.int64), types, category, target)
        return self._masked(sequence) if self.mask else sequence

    def _target(self, text: str) -> Target:
        labels = self.tokenizer(text_target=text, truncation=True, max_length=self.max_length)["input_ids"]
        ids = decoder_input(labels, self.decoder_start)
        category = self.categories.codes(ids, self.tokenizer.convert_ids_to_tokens(list(ids)))
        return Target(np.array(ids, dtype=np.int64), category)

    def _masked(self, sequence: TokenSequence) -> TokenSequence:
        """Mask `int(mask n)` of the `n` tokens other than special ones, at least one (2021, Sec. 4).

        The choice depends on the seed and on the sequence, not on its neighbours.
        """
        ordinary = np.flatnonzero([int(token_id) not in self.categories.special for token_id in sequence.ids])
        count = min(max(1, int(self.mask * len(ordinary))), len(ordinary))
        chosen = sequence.random(self.seed, "mask").choice(ordinary, size=count, replace=False)
        ids, category = sequence.ids.copy(), sequence.category.copy()
        ids[chosen] = self.tokenizer.mask_token_id
        category[chosen] = self.categories.names.index("mask")
        return replace(sequence, ids=ids, category=category)


def cut_length(wanted: int | None, longest: int | None) -> int:
    """Return the number of tokens at which sequences are cut."""
    if wanted is None:
        return PAPER_LENGTH if longest is None else min(PAPER_LENGTH, longest)
    if longest is not None and wanted > longest:
        raise InputError(f"max_length is {wanted}, the model takes {longest}; ask for less")
    return wanted


def read_ranks(path: str | Path, vocabulary: int) -> Float[np.ndarray, " vocabulary"]:
    """Read the rank of each token id from the authors' file (`rank count token_id`); unlisted ids get the last rank + 1."""
    ranks = np.full(vocabulary, np.nan)
    try:
        lines = read_text(Path(path)).splitlines()
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise InputError(f"the rank file {path} cannot be read ({reason}); check the path") from error
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            rank, _, token_id = (int(part) for part in line.split())
        except ValueError as error:
            raise InputError(f"{path}:{number} must be 'rank count token_id', got {line[:80]!r}") from error
        if not 0 <= rank < _LARGEST_RANK:
            raise InputError(f"{path}:{number} must have a rank from 0 to {_LARGEST_RANK}, got {rank}")
        if not 0 <= token_id < vocabulary:
            raise InputError(f"{path}:{number} names token {token_id}, the model's vocabulary has {vocabulary}")
        ranks[token_id] = rank
    if np.isnan(ranks).all():
        raise InputError(f"the rank file {path} lists no token; is it the right file?")
    return np.where(np.isnan(ranks), np.nanmax(ranks) + 1, ranks)


def token_counts(sequences: Iterable[TokenSequence | UnusedRecord], vocabulary: int) -> Int[np.ndarray, " vocabulary"]:
    """Return the number of occurrences of each token, on both sides."""
    counts = np.zeros(vocabulary, dtype=np.int64)
    for sequence in sequences:
        if isinstance(sequence, UnusedRecord):
            continue
        np.add.at(counts, sequence.ids, 1)
        if sequence.target is not None:
            np.add.at(counts, sequence.target.ids, 1)
    return counts


def ranks_by_count(counts: Int[np.ndarray, " vocabulary"]) -> Float[np.ndarray, " vocabulary"]:
    """Return the rank of each token id by its count, from 1 for the most frequent.

    Tokens with equal counts share the mean of their ranks; tokens without a count come one after the last.
    """
    if not counts.any():
        raise InputError("the corpus has no sequence to count tokens in; check the source")
    _, group, sizes = np.unique(-counts, return_inverse=True, return_counts=True)
    shared = sizes.cumsum() - (sizes - 1) / 2
    return np.where(counts > 0, shared[group], np.count_nonzero(counts) + 1)
