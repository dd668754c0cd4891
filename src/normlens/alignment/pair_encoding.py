"""Sentence pairs as a translation model takes them: the source is read, the target force-decoded.

A decoder-only model reads both in one prompt: its target's words look back at the source's words in it.

The decoder's input is start, (language code,) y1 … yn. Read with its input (`awi`), the row of y_t is the step that
takes y_t in; read with its output (`awo`), it is the step before, which puts y_t out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from normlens.anatomy.inputs import longest_input
from normlens.errors import InputError
from normlens.inputs.encoding import pad_rows, padding_id
from normlens.inputs.segmentation import SegmentedText, Segmenter


@dataclass(frozen=True)
class PairFormat:
    """The pair format of one model: which words, and what stands before the source."""

    raw: bool = False
    source_prefix: str = ""
    source_language: str | None = None
    target_language: str | None = None
    #: For decoder-only models: what they read, with `{source}` and `{target}` in it.
    prompt: str = ""


@dataclass(frozen=True)
class EncodedPair:
    """One pair ready for the model: ids of both sides, and the positions of each word in them."""

    source: SegmentedText
    target: SegmentedText
    source_ids: tuple[int, ...]
    decoder_ids: tuple[int, ...]
    columns: tuple[tuple[int, ...], ...]
    rows: tuple[tuple[int, ...], ...]
    problem: str | None = None

    @property
    def too_long(self) -> bool:
        """Return True if the problem is the pair's length alone."""
        return self.problem is not None and bool(self.source.ids and self.target.ids)

    @property
    def inputs(self) -> dict[str, tuple[int, ...]]:
        """The model's inputs by name."""
        return {"input_ids": self.source_ids, "decoder_input_ids": self.decoder_ids}

    @property
    def length(self) -> int:
        """Tokens of the longer side, which decides what a batch costs."""
        return max(len(self.source_ids), len(self.decoder_ids))


@dataclass(frozen=True)
class PromptedPair(EncodedPair):
    """A pair in one prompt: `source_ids` and `decoder_ids` are both the whole of it."""

    @property
    def inputs(self) -> dict[str, tuple[int, ...]]:
        """The model's one input."""
        return {"input_ids": self.source_ids}


class _Encoder:
    """The base of both encoders: how long a pair may be, and how several become the model's inputs."""

    def __init__(self, model: Any, tokenizer: Any) -> None:
        if tokenizer is None:
            raise InputError("alignment needs a tokenizer, this model has none; pass Lens(model, tokenizer)")
        self._pad = padding_id(model, tokenizer)
        self.limit = longest_input(model, tokenizer)

    def _problem(self, source: SegmentedText, target: SegmentedText, longest: int) -> str | None:
        """The reason why a pair cannot be aligned, if there is one."""
        if not source.words or not target.words:
            return "an empty side"
        if not source.ids or not target.ids:
            return "a side without subwords"
        if self.limit is not None and longest > self.limit:
            return f"{longest} subwords, the model takes {self.limit}"
        return None

    def batch(self, pairs: Sequence[EncodedPair], device: torch.device) -> dict[str, Tensor]:
        """The model's inputs for several pairs."""
        return pad_rows([pair.inputs for pair in pairs], self._pad, device)


def _with_languages(tokenizer: Any, languages: Mapping[str, str | None]) -> Any:
    """Return a tokenizer with these languages: a copy, so that the user's own keeps its languages."""
    named = {attribute: value for attribute, value in languages.items() if value is not None}
    if not named:
        return tokenizer
    tokenizer = deepcopy(tokenizer)
    for attribute, value in named.items():
        if not hasattr(tokenizer, attribute):
            raise InputError(f"this tokenizer has no languages, got {value!r}; leave it out, or use a source prefix")
        setattr(tokenizer, attribute, value)
    return tokenizer


class PairEncoder(_Encoder):
    """Turns lines of text into `EncodedPair`s and those into the model's inputs."""

    def __init__(self, model: Any, tokenizer: Any, form: PairFormat) -> None:
        super().__init__(model, tokenizer)
        tokenizer = _with_languages(tokenizer, {"src_lang": form.source_language, "tgt_lang": form.target_language})
        self.source = Segmenter(tokenizer, raw=form.raw)
        self.target = Segmenter(tokenizer, target=True, raw=form.raw)
        #: What stands before every source sentence, and before every target sentence in the decoder.
        self.source_start = self.source.prefix + self.source.text_ids(form.source_prefix)
        self.decoder_start: tuple[int, ...] = (_start_id(model.config, self.target), *self.target.prefix)

    def __call__(self, source: str, target: str) -> EncodedPair:
        """Prepare one pair; a pair that cannot be aligned says why in `problem` and is never shortened silently."""
        source_words, target_words = self.source(source), self.target(target)
        source_ids = self.source_start + source_words.ids + self.source.suffix
        decoder_ids = self.decoder_start + target_words.ids
        return EncodedPair(
            source_words,
            target_words,
            source_ids,
            decoder_ids,
            _shifted(source_words.spans, len(self.source_start)),
            _shifted(target_words.spans, len(self.decoder_start)),
            self._problem(source_words, target_words, max(len(source_ids), len(decoder_ids))),
        )

    @property
    def room(self) -> tuple[int, int] | None:
        """The number of subwords of a source and of a target that fit; None where there is no limit."""
        if self.limit is None:
            return None
        return (
            self.limit - len(self.source_start) - len(self.source.suffix),
            self.limit - len(self.decoder_start),
        )


class PromptEncoder(_Encoder):
    """Turns lines of text into prompts for a decoder-only model: `English:\\n{source}\\nFrench:\\n{target}`."""

    def __init__(self, model: Any, tokenizer: Any, form: PairFormat) -> None:
        super().__init__(model, tokenizer)
        before, between, after = _parts_of(form.prompt)
        self.source = self.target = Segmenter(tokenizer, raw=form.raw)
        self._before = self.source.prefix + self.source.text_ids(before)
        self._between = self.source.text_ids(between)
        self._after = self.source.text_ids(after)

    def __call__(self, source: str, target: str) -> EncodedPair:
        """Prepare one pair; a pair that cannot be aligned says why in `problem`."""
        source_words, target_words = self.source(source), self.target(target)
        start = len(self._before) + len(source_words.ids) + len(self._between)
        ids = self._before + source_words.ids + self._between + target_words.ids + self._after
        columns, rows = _shifted(source_words.spans, len(self._before)), _shifted(target_words.spans, start)
        problem = self._problem(source_words, target_words, len(ids))
        return PromptedPair(source_words, target_words, ids, ids, columns, rows, problem)

    @property
    def room(self) -> tuple[int, int] | None:
        """The number of subwords of each side that fit: half of the prompt; None where there is no limit."""
        if self.limit is None:
            return None
        half = (self.limit - len(self._before) - len(self._between) - len(self._after)) // 2
        return half, half


def _parts_of(prompt: str) -> tuple[str, str, str]:
    before, found, rest = prompt.partition("{source}")
    between, also, after = rest.partition("{target}")
    if not found or not also or not between:
        raise InputError(
            f"prompt must hold {{source}}, then {{target}}, with text between, got {prompt!r}; write for example "
            "'English:\\n{source}\\nFrench:\\n{target}'"
        )
    return before, between, after


def _start_id(config: Any, target: Segmenter) -> int:
    start = getattr(config, "decoder_start_token_id", None)
    if start is None:  # mBART starts with the label that ends the sentence
        start = target.suffix[-1] if target.suffix else getattr(config, "bos_token_id", None)
    if start is None:
        raise InputError("the model's config has no decoder_start_token_id, which force-decoding needs; set it")
    return int(start)


def _shifted(spans: Sequence[Sequence[int]], by: int) -> tuple[tuple[int, ...], ...]:
    return tuple(tuple(place + by for place in span) for span in spans)
