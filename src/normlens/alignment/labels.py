"""Labelled text to marked text and back: CoNLL columns with BIO tags, and JSON lines with character offsets.

CoNLL: a word per line, its tag in the last column (`B-PER`, `I-PER`, `O`; an `I-` without its `B-` begins a span, as in
the older IOB scheme), a blank line between sentences; columns in between and comment lines (`# …`) are not carried
across. JSON: one object per line with `text`, `spans` (`start`, `end`, `label`, and whatever else) and, if known, `target`.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from normlens.alignment.marked_text import Mark, MarkedText, ProjectedText
from normlens.errors import InputError
from normlens.inputs.words import Span


def read_conll(lines: Iterable[str]) -> Iterator[MarkedText]:
    """The sentences of a file in columns; each becomes its words with spaces between, its labels spans of them.

    >>> [text.marks[0].name for text in read_conll(["Anna B-PER", "sings O"])]
    ['PER']
    """
    block: list[tuple[str, str]] = []
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            if block:
                yield _sentence(block)
            block = []
        elif not line.startswith("# "):
            cells = line.split("\t") if "\t" in line else line.split()
            if len(cells) < 2 or not cells[0].strip():
                raise InputError(f"A line of columns has a word and a tag: line {number} has {line[:80]!r}.")
            block.append((cells[0].strip().replace(" ", "\u00a0"), cells[-1].strip()))
    if block:
        yield _sentence(block)


def _sentence(block: Sequence[tuple[str, str]]) -> MarkedText:
    text = " ".join(word for word, _ in block)
    marks: list[Mark] = []
    place, running = 0, ""
    for word, tag in block:
        kind, _, label = tag.partition("-")
        if tag != "O" and (kind not in ("B", "I", "E", "S", "L", "U") or not label):
            raise InputError(f"A tag is O, or B- or I- with a label: {word!r} has {tag!r}.")
        if tag == "O":
            running = ""
        elif running == label and kind in ("I", "E", "L"):
            last = marks.pop()
            marks.append(Mark(last.start, place + len(word), label))
        else:
            marks.append(Mark(place, place + len(word), label))
            running = label
        if kind in ("E", "S", "L", "U") and tag != "O":
            running = ""
        place += len(word) + 1
    return MarkedText(text, tuple(marks))


def write_conll(projected: ProjectedText, words: Sequence[Span]) -> str:
    """The target's words with their tags, a line each; of labels that nest the outermost is written."""
    tags = ["O"] * len(words)
    for piece in projected.pieces:
        inside = [i for i, (start, end) in enumerate(words) if start < piece.end and end > piece.start]
        for i in inside:
            tags[i] = f"{'B' if i == inside[0] else 'I'}-{piece.mark.name}"
    return "".join(
        f"{projected.text[start:end]}\t{tag}\n" for (start, end), tag in zip(words, tags, strict=True)
    )  # fmt: skip


def read_labelled_json(line: str) -> tuple[MarkedText | list[MarkedText], str | None]:
    """One JSON object: its text with the spans, and its translation where it has one.

    Spans that cross each other come as several texts with a span each, to be projected one by one.
    """
    try:
        found = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise InputError(f"Labelled text is one JSON object per line: {line[:80]!r} is none ({error}).") from None
    if not isinstance(found, dict) or not isinstance(found.get("text"), str):
        raise InputError(f'Labelled text has its text as "text": {line[:80]!r} has not.')
    target = found.get("target")
    if target is not None and not isinstance(target, str):
        raise InputError(f'A translation is a string: "target" is {target!r}.')
    marks = [_mark(span, found["text"]) for span in _list(found.get("spans", []))]
    try:
        return MarkedText.of_spans(found["text"], marks), target
    except InputError:
        return [MarkedText(found["text"], (mark,)) for mark in marks], target


def _list(spans: Any) -> list[Any]:
    if not isinstance(spans, list):
        raise InputError(f'"spans" is a list of objects with start, end and label: got {str(spans)[:80]!r}.')
    return spans


def _mark(span: Any, text: str) -> Mark:
    fits = isinstance(span, dict) and all(type(span.get(key)) is int for key in ("start", "end"))
    if not fits or not 0 <= span["start"] <= span["end"] <= len(text):
        raise InputError(
            f"A span goes from one character of its text to another: the text has {len(text)}, the span is "
            f"{json.dumps(span, ensure_ascii=False)[:120]}."
        )
    extra = {key: value for key, value in span.items() if key not in ("start", "end", "label", "score")}
    return Mark(span["start"], span["end"], str(span.get("label", "")), extra=extra)


def write_labelled_json(projected: ProjectedText, source: str) -> str:
    """The target's text with its spans, scores and what had no place, as one line of JSON."""
    found = projected.to_dict()
    # A span without words in the target is not a span there; `unplaced` has it.
    lost = {(span["label"], span["source_start"], span["source_end"]) for span in found["unplaced"]}
    spans = [
        {"label": piece.mark.name, **piece.mark.extra, "start": piece.start, "end": piece.end,
         "score": round(piece.score, 4), "source_start": piece.mark.start, "source_end": piece.mark.end}
        for piece in projected.walk()
        if not (piece.start == piece.end and (piece.mark.name, piece.mark.start, piece.mark.end) in lost)
    ]  # fmt: skip
    return json.dumps({**found, "spans": spans, "source": source}, ensure_ascii=False)
