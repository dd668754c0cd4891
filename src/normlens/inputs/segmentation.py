"""Words to subwords and back, so that no word is lost, invented or shifted.

Words are what stands between ASCII spaces or tabs (a no-break space is part of a word, as it is for other aligners),
or, for raw text, what the tokenizer's own pre-tokenizer takes for a word. Each word keeps its place: one that becomes
no subword has an empty span, an unknown one has the unknown token.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from normlens.errors import InputError

_BLANKS = re.compile(r"[ \t]+")


def split_words(line: str) -> list[str]:
    """Split at ASCII spaces and tabs only.

    >>> split_words("10\u00a0000 francs ")
    ['10\\xa0000', 'francs']
    """
    return [word for word in _BLANKS.split(line.strip(" \t\r\n")) if word]


@dataclass(frozen=True)
class SegmentedText:
    """The words of one sentence, its subword ids without special tokens, and each word's places among them."""

    words: tuple[str, ...]
    ids: tuple[int, ...]
    spans: tuple[tuple[int, ...], ...]


class Segmenter:
    """One side's way from text to subwords, with a tokenizer of any kind.

    Fast tokenizers report characters, which are compared with the words' characters. Slow ones (Marian) report
    nothing, so each word is encoded by itself; they split at spaces first, so this is the sentence's own segmentation
    (but for words with two segmentations of equal score).
    """

    def __init__(self, tokenizer: Any, *, target: bool = False, raw: bool = False) -> None:
        self.tokenizer, self.raw = tokenizer, raw
        self._argument = "text_target" if target else "text"
        self._word_ids: dict[str, tuple[int, ...]] = {}
        with_specials, alone = self._encode("x", specials=True), self._encode("x")
        starts = [i for i in range(len(with_specials)) if with_specials[i : i + len(alone)] == alone]
        if not alone or not starts:
            raise InputError(
                "this tokenizer turns 'x' into other subwords with special tokens than without; is it the model's own?"
            )
        #: Special tokens before and after every sentence: language code, CLS, EOS.
        self.prefix: tuple[int, ...] = tuple(with_specials[: starts[0]])
        self.suffix: tuple[int, ...] = tuple(with_specials[starts[0] + len(alone) :])
        # A slow byte-level tokenizer marks the space before a word; SentencePiece marks each word anyway.
        self._space = "" if self._encode("x x") == alone + alone else " "

    def __call__(self, line: str) -> SegmentedText:
        """Segment one line; every subword belongs to a word, except where the sentence has none."""
        if not self.tokenizer.is_fast:
            return self._word_by_word(split_words(line))
        return self._raw(line.strip(" \t\r\n")) if self.raw else self._by_characters(split_words(line))

    def text_ids(self, text: str) -> tuple[int, ...]:
        """The subwords of a text that stands before every sentence (`>>fr<<`, `translate English to French:`)."""
        return tuple(self._encode(text)) if text else ()

    def _encode(self, text: str, specials: bool = False) -> list[int]:
        return list(self.tokenizer(**{self._argument: text}, add_special_tokens=specials)["input_ids"])

    def _with_offsets(self, text: str) -> Any:
        return self.tokenizer(**{self._argument: text}, add_special_tokens=False, return_offsets_mapping=True)

    def _word_by_word(self, words: Sequence[str]) -> SegmentedText:
        ids: list[int] = []
        spans = []
        for place, word in enumerate(words):
            text = self._space + word if place else word
            if text not in self._word_ids:
                self._word_ids[text] = tuple(self._encode(text))
            spans.append(tuple(range(len(ids), len(ids) + len(self._word_ids[text]))))
            ids.extend(self._word_ids[text])
        return SegmentedText(tuple(words), tuple(ids), tuple(spans))

    def _by_characters(self, words: Sequence[str]) -> SegmentedText:
        encoded = self._with_offsets(" ".join(words))
        # Each character's word; the blank after a word belongs to none.
        owners = [owner for place, word in enumerate(words) for owner in (*[place] * len(word), None)]
        spans: list[list[int]] = [[] for _ in words]
        waiting: list[int] = []
        for position, (start, end) in enumerate(encoded["offset_mapping"]):
            touched = sorted({owner for owner in owners[start:end] if owner is not None})
            if not touched:  # a lone space marker belongs to the word that follows
                waiting.append(position)
                continue
            spans[touched[0]].extend(waiting)
            waiting = []
            for place in touched:  # one subword over two words belongs to both
                spans[place].append(position)
        if waiting and words:
            spans[-1].extend(waiting)
        return SegmentedText(tuple(words), tuple(encoded["input_ids"]), tuple(map(tuple, spans)))

    def _raw(self, text: str) -> SegmentedText:
        encoded = self._with_offsets(text)
        places = encoded.word_ids()  # without special tokens, every subword is of a word
        spans = [tuple(group) for _, group in groupby(range(len(places)), key=places.__getitem__)]
        offsets = encoded["offset_mapping"]
        strings = [text[min(offsets[p][0] for p in span) : max(offsets[p][1] for p in span)].strip() for span in spans]
        return SegmentedText(tuple(strings), tuple(encoded["input_ids"]), tuple(spans))
