"""From text to tensors and labels, and from single sequences to padded batches."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from normlens.anatomy.description import Kind
from normlens.anatomy.examine import is_encoder_decoder
from normlens.errors import InputError

Text = str | Sequence[str]  # a text, or its words where it is pre-tokenized

#: What tokenizers put before a word or a continuation, and what people do not read.
_WORD_START = ("▁", "Ġ")
_CONTINUATION = "##"


@dataclass(frozen=True)
class Tokens:
    """The tokens of one side: ids, strings, and which word each belongs to (numbered along the sequence)."""

    ids: tuple[int, ...]
    strings: tuple[str, ...]
    words: tuple[int, ...]

    def word_strings(self) -> tuple[str, ...]:
        """Each word as people would write it."""
        parts: dict[int, list[str]] = {}
        for word, string in zip(self.words, self.strings, strict=True):
            parts.setdefault(word, []).append(readable(string))
        return tuple("".join(part) for part in parts.values())


@dataclass(frozen=True)
class Encoded:
    """One sequence, ready to run: the tensors of one row, and the labels of its positions."""

    inputs: dict[str, tuple[int, ...]]
    source: Tokens
    target: Tokens | None = None
    notes: dict[str, Any] = field(default_factory=dict)  # for the provenance

    def queries(self, kind: Kind) -> Tokens:
        """The tokens that stand at the query axis of a kind of site."""
        return self.source if self.target is None or kind == "encoder" else self.target

    def keys(self, kind: Kind) -> Tokens:
        """The tokens that stand at the key axis of a kind of site."""
        return self.source if kind == "cross" else self.queries(kind)

    @property
    def lengths(self) -> tuple[int, int]:
        """The numbers of source and target positions."""
        return len(self.source.ids), 0 if self.target is None else len(self.target.ids)

    @property
    def length(self) -> int:
        """The number of positions, both sides together."""
        return sum(self.lengths)


def readable(token: str) -> str:
    """A token without the marks by which its tokenizer shows word boundaries."""
    for mark in _WORD_START:
        token = token.removeprefix(mark)
    return token.removeprefix(_CONTINUATION) if len(token) > len(_CONTINUATION) else token


class Encoder:
    """Turns texts into sequences for one model and tokenizer."""

    def __init__(self, model: nn.Module, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self._config: Any = getattr(model, "config", None)
        self._two_sided = is_encoder_decoder(model)
        self._limit = _longest(model, tokenizer)

    def __call__(
        self, text: Text, pair: Text | None, target: Text | None, *, truncate: bool, pretokenized: bool
    ) -> Encoded:
        """Encode one text (with its pair or its target)."""
        if self._two_sided and target is None:
            raise InputError(
                "an encoder-decoder model reads a source and writes a target: no target was given; pass target=… "
                "(--target on the shell), or generate=True to analyse what the model itself writes"
            )
        if not self._two_sided and target is not None:
            raise InputError(
                "a target belongs to an encoder-decoder model: this one has one side; pass the text as a whole, or "
                "pair=… for a second segment"
            )
        prompt = self.prompt(text, pair, truncate=truncate, pretokenized=pretokenized)
        if target is None:
            return prompt
        _check_text(target, "target", pretokenized)
        labels, cut = self._tokens(
            self._tokenizer(text_target=list(target) if pretokenized else target, is_split_into_words=pretokenized),
            "target",
            truncate,
            target,
            None,
        )
        shifted = self._shifted(labels)
        inputs = {**prompt.inputs, "decoder_input_ids": shifted.ids}
        return Encoded(inputs, prompt.source, shifted, {"truncated": cut or prompt.notes["truncated"]})

    def prompt(self, text: Text, pair: Text | None, *, truncate: bool, pretokenized: bool) -> Encoded:
        """Encode the side that is read: a text, with its pair."""
        _check_text(text, "text", pretokenized)
        if pair is not None:
            _check_text(pair, "pair", pretokenized)
        encoding = self._tokenizer(
            list(text) if pretokenized else text,
            None if pair is None else list(pair) if pretokenized else pair,
            is_split_into_words=pretokenized,
        )
        source, cut = self._tokens(encoding, "text", truncate, text, pair)
        inputs = {"input_ids": source.ids}
        if "token_type_ids" in encoding:
            inputs["token_type_ids"] = tuple(encoding["token_type_ids"][: len(source.ids)])
        return Encoded(inputs, source, None, {"truncated": cut})

    def from_ids(self, source: Tokens, target: Sequence[int] | None = None) -> Encoded:
        """A sequence from tokens that exist already (a model's own continuation, say)."""
        inputs = {"input_ids": source.ids}
        if target is None:
            return Encoded(inputs, source, None, {"generated": True})
        written = self.label(target)
        return Encoded({**inputs, "decoder_input_ids": written.ids}, source, written, {"generated": True})

    def label(self, ids: Sequence[int]) -> Tokens:
        """Token strings and words for bare ids."""
        if self._tokenizer is None:
            return Tokens(tuple(ids), tuple(str(i) for i in ids), tuple(range(len(ids))))
        # An id may have no token: many models have more embeddings than their tokenizer has entries.
        found = self._tokenizer.convert_ids_to_tokens(list(ids))
        strings = tuple(str(i) if token is None else token for i, token in zip(ids, found, strict=True))
        return Tokens(tuple(ids), strings, _words_by_marks(strings, self._specials()))

    def _tokens(self, encoding: Any, what: str, truncate: bool, text: Text, pair: Text | None) -> tuple[Tokens, bool]:
        ids = list(encoding["input_ids"])
        special = self._special_ids()
        content = [i for i in ids if i not in special]
        unknown = getattr(self._tokenizer, "unk_token_id", None)
        if not content and unknown not in ids:
            raise InputError(f"the {what} must hold at least one token: {_shorten(text)} gives none; pass some words")
        if unknown is not None and all(i == unknown for i in ids if i not in special or i == unknown):
            raise InputError(
                f"the {what} must hold a token that the model knows: every token of {_shorten(text)} is the unknown "
                "one; is this the right tokenizer?"
            )
        cut = False
        if self._limit is not None and len(ids) > self._limit:
            if not truncate:
                raise InputError(
                    f"the {what} must fit the model: it has {len(ids)} tokens and the model takes {self._limit}; "
                    "shorten it, or pass truncate=True (--truncate on the shell)"
                )
            encoding = self._shortened(what, text, pair, self._limit)
            ids, cut = list(encoding["input_ids"]), True
        strings = tuple(self._tokenizer.convert_ids_to_tokens(ids))
        return Tokens(tuple(ids), strings, self._words(encoding, strings)), cut

    def _shortened(self, what: str, text: Text, pair: Text | None, limit: int) -> Any:
        split = not isinstance(text, str)
        options: dict[str, Any] = {"truncation": True, "max_length": limit, "is_split_into_words": split}
        first = list(text) if split else text
        if what == "target":
            return self._tokenizer(text_target=first, **options)
        second = None if pair is None else list(pair) if split else pair
        return self._tokenizer(first, second, **options)

    def _words(self, encoding: Any, strings: tuple[str, ...]) -> tuple[int, ...]:
        if not getattr(self._tokenizer, "is_fast", False):
            return _words_by_marks(strings, self._specials())
        places = list(zip(encoding.sequence_ids(), encoding.word_ids(), strict=True))
        words: list[int] = []
        for i, place in enumerate(places):
            same = i > 0 and place[1] is not None and place == places[i - 1]
            words.append(words[-1] if same else len(set(words)))
        return tuple(words)

    def _shifted(self, labels: Tokens) -> Tokens:
        """The decoder's input: the start token, then the labels without their last one."""
        start = getattr(self._config, "decoder_start_token_id", None)
        first = labels.ids[-1] if start is None else start  # mBART starts with the label that ends the sentence
        string = str(self._tokenizer.convert_ids_to_tokens([first])[0])
        kept = labels.words[:-1]
        return Tokens((first, *labels.ids[:-1]), (string, *labels.strings[:-1]), (0, *(word + 1 for word in kept)))

    def _special_ids(self) -> set[int]:
        return set(self._tokenizer.all_special_ids)

    def _specials(self) -> set[str]:
        return set(self._tokenizer.all_special_tokens)


def _words_by_marks(strings: Sequence[str], special: set[str]) -> tuple[int, ...]:
    """Words from the tokenizer's own marks: `▁` or `Ġ` begins one, `##` goes on, a special token stands alone."""
    marked = any(string.startswith(_WORD_START) for string in strings)
    continued = any(string.startswith(_CONTINUATION) for string in strings)
    words: list[int] = []
    for i, string in enumerate(strings):
        alone = i == 0 or string in special or strings[i - 1] in special
        begins = string.startswith(_WORD_START) if marked else not (continued and string.startswith(_CONTINUATION))
        words.append(len(set(words)) if alone or begins else words[-1])
    return tuple(words)


def _check_text(text: Text, what: str, pretokenized: bool) -> None:
    if pretokenized:
        if isinstance(text, str) or not all(isinstance(word, str) and word.strip() for word in text) or not text:
            raise InputError(
                f"a pre-tokenized {what} must be a list of words, none of them empty: got {_shorten(text)}"
            )
    elif not isinstance(text, str):
        raise InputError(f"the {what} must be a string: got {type(text).__name__}; pass pretokenized=True for words")
    elif not text.strip():
        raise InputError(f"the {what} must hold some words: it is empty; pass the sentence to analyse")


def _shorten(text: Text) -> str:
    shown = repr(text)
    return shown if len(shown) <= 60 else f"{shown[:57]}…"


def _longest(model: nn.Module, tokenizer: Any) -> int | None:
    """How many tokens the model takes: its position embeddings, or what its configuration and tokenizer say."""
    config = getattr(model, "config", None)
    limits = [getattr(config, "max_position_embeddings", None), getattr(tokenizer, "model_max_length", None)]
    for name, module in model.named_modules():
        if isinstance(module, nn.Embedding) and "position_embeddings" in name and module.padding_idx is not None:
            limits.append(module.num_embeddings - module.padding_idx - 1)  # RoBERTa counts from behind the padding
    known = [int(limit) for limit in limits if isinstance(limit, int | float) and 0 < limit < 10**9]
    return min(known, default=None)


def collate(sequences: Sequence[Encoded], pad: int, device: torch.device) -> dict[str, Tensor]:
    """One padded batch, padded on the right: there a decoder's positions stay what they are without padding."""
    batch: dict[str, Tensor] = {}
    for name in sequences[0].inputs:
        rows = [sequence.inputs[name] for sequence in sequences]
        longest = max(map(len, rows))
        filler = pad if name.endswith("input_ids") else 0
        padded = [[*row, *[filler] * (longest - len(row))] for row in rows]
        batch[name] = torch.tensor(padded, device=device)
        if name.endswith("input_ids"):
            real = [[1] * len(row) + [0] * (longest - len(row)) for row in rows]
            batch[name.replace("input_ids", "attention_mask")] = torch.tensor(real, device=device)
    return batch
