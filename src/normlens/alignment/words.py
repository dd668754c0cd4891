"""Words to subwords and back, so that no word is lost, invented or shifted.

Words are what stands between ASCII spaces or tabs (a no-break space is part of a word, as it is for other aligners),
or, for raw text, what the tokenizer's own pre-tokenizer takes for a word. Each word keeps its place: one that becomes
no subword has an empty span, an unknown one has the unknown token.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from normlens.errors import InputError

_BLANKS = re.compile(r"[ \t]+")


@dataclass(frozen=True)
class Segmented:
    """The words of one sentence, its subword ids without special tokens, and each word's places among them."""

    words: tuple[str, ...]
    ids: tuple[int, ...]
    spans: tuple[tuple[int, ...], ...]


def split_words(line: str) -> list[str]:
    """Split at ASCII spaces and tabs only.

    >>> split_words("10\u00a0000 francs ")
    ['10\\xa0000', 'francs']
    """
    return [word for word in _BLANKS.split(line.strip(" \t\r\n")) if word]


def read_lines(path: Path | str) -> Iterator[str]:
    """Lines of a UTF-8 file, ended by a line feed alone: other line-like characters may stand inside a sentence."""
    try:
        with Path(path).open(encoding="utf-8", newline="\n") as file:
            for line in file:
                yield line.rstrip("\r\n")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(
            f"Sentences and alignments are read from UTF-8 text files: {path} is not one ({error})."
        ) from None


def read_sentences(path: Path | str) -> list[list[str]]:
    """The words of each line of a tokenized file."""
    return [split_words(line) for line in read_lines(path)]


class Segmenter:
    """One side's way from text to subwords, with a tokenizer of any kind.

    Fast tokenizers report characters, which are compared with the words' characters. Slow ones (Marian) report
    nothing, so each word is encoded by itself; they split at spaces first, so this is the sentence's own segmentation
    (but for words with two segmentations of equal score).
    """

    def __init__(self, tokenizer: Any, *, target: bool = False, raw: bool = False) -> None:
        self.tokenizer, self.target, self.raw = tokenizer, target, raw
        self._word_ids: dict[str, tuple[int, ...]] = {}
        with_specials, alone = self._encode("x", specials=True), self._encode("x")
        starts = [i for i in range(len(with_specials)) if with_specials[i : i + len(alone)] == alone]
        if not alone or not starts:
            raise InputError("A tokenizer must turn 'x' into the same subwords with and without special tokens.")
        #: Special tokens in front of and behind every sentence: language code, CLS, EOS.
        self.prefix: tuple[int, ...] = tuple(with_specials[: starts[0]])
        self.suffix: tuple[int, ...] = tuple(with_specials[starts[0] + len(alone) :])
        # A slow byte-level tokenizer marks the space in front of a word; SentencePiece marks each word anyway.
        self._space = "" if self._encode("x x") == alone + alone else " "

    def _encode(self, text: str, specials: bool = False) -> list[int]:
        key = "text_target" if self.target else "text"
        return list(self.tokenizer(**{key: text}, add_special_tokens=specials)["input_ids"])

    def __call__(self, line: str) -> Segmented:
        """Segment one line.

        Every subword belongs to a word, except where the sentence has none.
        """
        if not self.tokenizer.is_fast:
            return self._word_by_word(split_words(line))
        return self._raw(line) if self.raw else self._by_characters(split_words(line))

    def text_ids(self, text: str) -> tuple[int, ...]:
        """The subwords of a text that stands in front of every sentence (`>>fr<<`, `translate English to French:`)."""
        return tuple(self._encode(text)) if text else ()

    def _word_by_word(self, words: Sequence[str]) -> Segmented:
        ids: list[int] = []
        spans = []
        for place, word in enumerate(words):
            text = self._space + word if place else word
            if text not in self._word_ids:
                self._word_ids[text] = tuple(self._encode(text))
            spans.append(tuple(range(len(ids), len(ids) + len(self._word_ids[text]))))
            ids.extend(self._word_ids[text])
        return Segmented(tuple(words), tuple(ids), tuple(spans))

    def _by_characters(self, words: Sequence[str]) -> Segmented:
        text = " ".join(words)
        key = "text_target" if self.target else "text"
        encoded = self.tokenizer(**{key: text}, add_special_tokens=False, return_offsets_mapping=True)
        owner = [place for place, word in enumerate(words) for _ in range(len(word) + 1)][: len(text)]
        blanks = set(_ends(words))
        spans: list[list[int]] = [[] for _ in words]
        waiting: list[int] = []
        for position, (start, end) in enumerate(encoded["offset_mapping"]):
            touched = sorted({owner[c] for c in range(start, end) if c not in blanks})
            if not touched:  # a lone space marker belongs to the word that follows
                waiting.append(position)
                continue
            spans[touched[0]].extend(waiting)
            waiting = []
            for place in touched:  # one subword over two words belongs to both
                spans[place].append(position)
        if waiting and words:
            spans[-1].extend(waiting)
        return Segmented(tuple(words), tuple(encoded["input_ids"]), tuple(tuple(span) for span in spans))

    def _raw(self, line: str) -> Segmented:
        text = line.strip(" \t\r\n")
        key = "text_target" if self.target else "text"
        encoded = self.tokenizer(**{key: text}, add_special_tokens=False, return_offsets_mapping=True)
        spans: list[list[int]] = []
        edges: list[tuple[int, int]] = []
        numbers: dict[int, int] = {}
        for position, (word, (start, end)) in enumerate(
            zip(encoded.word_ids(), encoded["offset_mapping"], strict=True)
        ):
            if word not in numbers:
                numbers[word] = len(spans)
                spans.append([])
                edges.append((start, end))
            place = numbers[word]
            spans[place].append(position)
            edges[place] = min(edges[place][0], start), max(edges[place][1], end)
        words = [text[start:end].strip() for start, end in edges]
        return Segmented(tuple(words), tuple(encoded["input_ids"]), tuple(tuple(span) for span in spans))


def _ends(words: Iterable[str]) -> Iterator[int]:
    """The place of the blank behind each word but the last, in the words joined by blanks."""
    place = -1
    for word in words:
        place += len(word) + 1
        yield place
