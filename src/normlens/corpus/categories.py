"""Token categories: the papers' own ([CLS], [SEP], [MASK], comma and period, others), or yours.

Every token has exactly one category, so that counts over categories add up to counts over all tokens.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from jaxtyping import UInt8

from normlens.encoding import readable
from normlens.errors import InputError

#: In this order: a token belongs to the first that fits. `special` is any other special token ([PAD], <eos>, …).
SPECIAL = ("cls", "sep", "mask", "special")
COMMA_PERIOD = "comma_period"
OTHER = "other"

Rule = str | re.Pattern[str] | Callable[[str], bool]


@dataclass(frozen=True)
class Categories:
    """How tokens are sorted: special tokens by the tokenizer's own list, then the rules in order, then `other`.

    A rule is a regular expression that must match the whole token (without its word-boundary mark), or a function of
    that string. With tags, a word's tag is the category of its tokens and there are no rules.
    """

    names: tuple[str, ...]
    special: Mapping[int, str]  # token id -> name
    rules: tuple[tuple[str, Rule], ...] = ()
    tagged: bool = False
    _codes: dict[int, int] = field(default_factory=dict, repr=False, compare=False)

    @classmethod
    def of(
        cls, tokenizer: Any, rules: Mapping[str, Rule] | None = None, tags: Sequence[str] | None = None
    ) -> Categories:
        """The papers' categories for a tokenizer, or the caller's rules or tags in place of comma and period."""
        special = _special_ids(tokenizer)
        if tags is not None:
            if rules:
                raise InputError("categories come from rules or from tags, not from both: drop one")
            taken = [tag for tag in tags if tag in (*SPECIAL, OTHER)]
            if taken:
                raise InputError(f"a tag must not be called like a special category: {', '.join(taken)}; rename it")
            own: tuple[tuple[str, Rule], ...] = ()
            names = (*SPECIAL, *tags, OTHER)
        else:
            own = tuple((rules if rules is not None else {COMMA_PERIOD: r"[,.]"}).items())
            names = (*SPECIAL, *(name for name, _ in own if name != OTHER), OTHER)
        if len(set(names)) != len(names):
            raise InputError(f"category names must differ from each other and from {', '.join((*SPECIAL, OTHER))}")
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


def _compiled(name: str, rule: Rule) -> Rule:
    if not isinstance(rule, str):
        return rule
    try:
        return re.compile(rule)
    except re.error as error:
        raise InputError(f"a category is a regular expression: {name}={rule!r} is none ({error})") from error


def _special_ids(tokenizer: Any) -> dict[int, str]:
    special = dict.fromkeys(tokenizer.all_special_ids, "special")
    # [UNK] stands for a word of the text, so it is sorted like one.
    special.pop(getattr(tokenizer, "unk_token_id", None), None)
    for name in ("mask", "sep", "cls"):
        token_id = getattr(tokenizer, f"{name}_token_id", None)
        if token_id is not None:
            special[token_id] = name
    return special
