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
                raise InputError(f"line {number} must have a word and a tag, got {line[:80]!r}")
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
            raise InputError(f"{word!r} has the tag {tag!r}; tags are O, or B- or I- with a label")
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
        raise InputError(f"{line[:80]!r} is no JSON object ({error}); labelled text has one per line") from None
    if not isinstance(found, dict) or not isinstance(found.get("text"), str):
        raise InputError(f'labelled text needs a string "text", got {line[:80]!r}')
    target = found.get("target")
    if target is not None and not isinstance(target, str):
        raise InputError(f'"target" must be a string, got {target!r}')
    marks = [_mark(span, found["text"]) for span in _list(found.get("spans", []))]
    try:
        return MarkedText.of_spans(found["text"], marks), target
    except InputError:
        return [MarkedText(found["text"], (mark,)) for mark in marks], target


def _list(spans: Any) -> list[Any]:
    if not isinstance(spans, list):
        raise InputError(f'"spans" must be a list of objects with start, end and label, got {str(spans)[:80]!r}')
    return spans


def _mark(span: Any, text: str) -> Mark:
    fits = isinstance(span, dict) and all(type(span.get(key)) is int for key in ("start", "end"))
    if not fits or not 0 <= span["start"] <= span["end"] <= len(text):
        raise InputError(
            f"a span must lie in its text of {len(text)} characters, got {json.dumps(span, ensure_ascii=False)[:120]}"
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
