"""What is known of a token besides its id: its category, and its rank by frequency.

Categories are the papers' own ([CLS], [SEP], [MASK], comma and period, others), or yours. Every token has exactly one, so
that counts over categories add up to counts over all tokens.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float, Int, UInt8

from normlens.errors import InputError
from normlens.inputs.tokens import readable
from normlens.io.reading import read_text

#: In this order: a token belongs to the first that fits. `special` is any other special token ([PAD], <eos>, …).
SPECIAL = ("cls", "sep", "mask", "special")
COMMA_PERIOD = "comma_period"
OTHER = "other"

_LARGEST_RANK = 2**53  # beyond, neighbouring ranks could not be told apart

#: A regular expression that the whole token must match, without its word-boundary mark, or a function of that string.
CategoryRule = str | re.Pattern[str] | Callable[[str], bool]


@dataclass(frozen=True)
class Categories:
    """How tokens are sorted: special tokens by the tokenizer's own list, then the rules in order, then `other`.

    With tags, a word's tag is the category of its tokens and there are no rules.
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
        """The papers' categories for a tokenizer, or the caller's rules or tags in place of comma and period."""
        special = _special_ids(tokenizer)
        if tags is not None:
            if rules:
                raise InputError("categories come from rules or from tags, not from both: drop one")
            taken = [tag for tag in tags if tag in (*SPECIAL, OTHER)]
            if taken:
                raise InputError(f"a tag must not have the name of a special category: {', '.join(taken)}; rename it")
            own: tuple[tuple[str, CategoryRule], ...] = ()
            names = (*SPECIAL, *tags, OTHER)
        else:
            own = tuple((rules if rules is not None else {COMMA_PERIOD: r"[,.]"}).items())
            names = (*SPECIAL, *(name for name, _ in own if name != OTHER), OTHER)
        if len(set(names)) != len(names):
            raise InputError(
                f"category names must differ from each other and from {', '.join((*SPECIAL, OTHER))}: rename one"
            )
        if len(names) > 64:
            raise InputError(f"there may be at most 64 categories, {len(names)} were given: merge some")
        return cls(names, special, tuple((name, _compiled(name, rule)) for name, rule in own), tags is not None)

    def codes(
        self, ids: Sequence[int], tokens: Sequence[str], tags: Sequence[str | None] | None = None
    ) -> UInt8[np.ndarray, " position"]:
        """The category of each token, as an index into `names`."""
        if self.tagged:
            given = tags or [None] * len(ids)
            return np.array([self._tagged(i, tag) for i, tag in zip(ids, given, strict=True)], dtype=np.uint8)
        return np.array([self._code(i, token) for i, token in zip(ids, tokens, strict=True)], dtype=np.uint8)

    def portable(self, tokens: Sequence[str]) -> Categories:
        """The same without functions, which do not travel to other processes: they are asked about all `tokens`."""
        if not any(callable(rule) for _, rule in self.rules):
            return self
        codes = {token_id: self._code(token_id, token) for token_id, token in enumerate(tokens)}
        return replace(self, rules=(), _codes=codes)

    def _tagged(self, token_id: int, tag: str | None) -> int:
        if token_id in self.special:
            return self.names.index(self.special[token_id])
        return self.names.index(tag if tag in self.names else OTHER)

    def _code(self, token_id: int, token: str) -> int:
        found = self._codes.get(token_id)
        if found is None:  # a rule is asked once per entry of the vocabulary, not once per token of the corpus
            found = self._codes[token_id] = self.names.index(self._name(token_id, token))
        return found

    def _name(self, token_id: int, token: str) -> str:
        if token_id in self.special:
            return self.special[token_id]
        word = readable(token)
        for name, rule in self.rules:
            if rule.fullmatch(word) if isinstance(rule, re.Pattern) else rule(word):  # type: ignore[operator]
                return name
        return OTHER


def _compiled(name: str, rule: CategoryRule) -> CategoryRule:
    if not isinstance(rule, str):
        return rule
    try:
        return re.compile(rule)
    except re.error as error:
        raise InputError(
            f"a category is a regular expression: {name}={rule!r} is not ({error}); escape special characters"
        ) from error


def _special_ids(tokenizer: Any) -> dict[int, str]:
    special = dict.fromkeys(tokenizer.all_special_ids, "special")
    # [UNK] stands for a word of the text, so it is sorted like one.
    special.pop(getattr(tokenizer, "unk_token_id", None), None)
    for name in ("mask", "sep", "cls"):
        token_id = getattr(tokenizer, f"{name}_token_id", None)
        if token_id is not None:
            special[token_id] = name
    return special


def read_ranks(path: str | Path, vocabulary: int) -> Float[np.ndarray, " vocabulary"]:
    """Rank of each token id from the authors' file (`rank count token_id`); unlisted ids get the last rank + 1."""
    ranks = np.full(vocabulary, np.nan)
    try:
        lines = read_text(Path(path)).splitlines()
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise InputError(f"a rank file must be a readable text: {path} is not ({reason}); check the path") from error
    for number, line in enumerate(lines, 1):
        parts = line.split()
        if not parts:
            continue
        try:
            rank, _, token_id = (int(part) for part in parts)
        except ValueError as error:
            raise InputError(
                f"a rank file has lines 'rank count token_id': {path}:{number} is {line[:80]!r}"
            ) from error
        if not 0 <= rank < _LARGEST_RANK:
            raise InputError(f"a rank is at least 0 and less than {_LARGEST_RANK}: {path}:{number} has {rank}")
        if not 0 <= token_id < vocabulary:
            raise InputError(
                f"a rank file must belong to the model's vocabulary: {path}:{number} names token {token_id}, the "
                f"vocabulary has {vocabulary}"
            )
        ranks[token_id] = rank
    if np.isnan(ranks).all():
        raise InputError(f"a rank file must list tokens: {path} lists none; is it the right file?")
    return np.where(np.isnan(ranks), np.nanmax(ranks) + 1, ranks)


def ranks_by_count(counts: Int[np.ndarray, " vocabulary"]) -> Float[np.ndarray, " vocabulary"]:
    """Rank of each token id by its count, from 1 for the most frequent.

    Tokens with equal counts share the mean of their ranks; tokens without a count come one after the last.
    """
    if not counts.any():
        raise InputError("frequencies need at least one sequence: the corpus has none; check the source")
    _, group, sizes = np.unique(-counts, return_inverse=True, return_counts=True)
    shared = sizes.cumsum() - (sizes - 1) / 2
    return np.where(counts > 0, shared[group], np.count_nonzero(counts) + 1)
