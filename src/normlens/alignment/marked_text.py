"""A text and what it carries: elements around characters, labelled spans, markers at positions.

Marks form a forest: each names its parent, and lies inside of it. `MarkedText.of_spans` builds the forest of spans that
nest or are apart; spans that cross have no forest, and are projected one by one.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace

from normlens.errors import InputError
from normlens.inputs.words import Span
from normlens.types import Json


@dataclass(frozen=True)
class Mark:
    """A span of characters, or a marker where `start == end`; `parent` is its place among the text's marks."""

    start: int
    end: int
    name: str
    opening: str = ""
    closing: str = ""
    parent: int | None = None
    #: What else came with it (the other keys of a JSON span); carried along untouched.
    extra: Json = field(default_factory=dict, compare=False)


@dataclass(frozen=True)
class MarkedText:
    """Plain text with its marks in the order of the document: a parent before its children."""

    text: str
    marks: tuple[Mark, ...] = ()
    #: Positions at which a word ends even if no blank stands there: line breaks, paragraphs.
    breaks: frozenset[int] = frozenset()

    def __post_init__(self) -> None:
        for place, mark in enumerate(self.marks):
            outer = (0, len(self.text))
            if mark.parent is not None:
                if not 0 <= mark.parent < place:
                    raise InputError(f"mark {place} names the parent {mark.parent}, which does not come before it")
                outer = self.marks[mark.parent].start, self.marks[mark.parent].end
            if not outer[0] <= mark.start <= mark.end <= outer[1]:
                raise InputError(
                    f"the mark {mark.name!r} goes from {mark.start} to {mark.end}, outside of what is around it "
                    f"({outer[0]} to {outer[1]})"
                )

    @classmethod
    def of_spans(cls, text: str, marks: Sequence[Mark]) -> MarkedText:
        """Nest spans by their extent: the longer one is outside, of equal ones the first; crossing ones are refused."""
        order = sorted(range(len(marks)), key=lambda i: (marks[i].start, -marks[i].end, i))
        nested: list[Mark] = []
        around: list[int] = []
        for index in order:
            mark = marks[index]
            while around and not _holds(nested[around[-1]], mark):
                if nested[around[-1]].end > mark.start:
                    raise InputError(
                        f"{nested[around[-1]].name!r} ends inside of {mark.name!r}; project crossing spans one by one"
                    )
                around.pop()
            nested.append(replace(mark, parent=around[-1] if around else None))
            around.append(len(nested) - 1)
        return cls(text, tuple(nested))

    def words(self, rule: Callable[[str], list[Span]]) -> list[Span]:
        """The words of the text by a rule of `normlens.inputs.words`, cut at the breaks."""
        found: list[Span] = []
        for start, end in rule(self.text):
            cuts = [start, *sorted(place for place in self.breaks if start < place < end), end]
            found += itertools.pairwise(cuts)
        return found

    @property
    def readable(self) -> str:
        """The text as a reader has it, with a blank where a break parts two words."""
        parts, place = [], 0
        for cut in [*sorted(self.breaks), len(self.text)]:
            parts.append(self.text[place:cut])
            place = cut
        return " ".join(part for part in parts if part) if self.breaks else self.text

    def children(self, parent: int | None) -> list[int]:
        """The marks directly inside of one, or at the top."""
        return [place for place, mark in enumerate(self.marks) if mark.parent == parent]


def _holds(outer: Mark, inner: Mark) -> bool:
    return outer.start <= inner.start and inner.end <= outer.end and outer.start < outer.end


@dataclass(frozen=True)
class Piece:
    """A mark as it was placed in the other text, or a piece of it; `score` is between 0 and 1.

    `children` are the pieces inside of it, in the order in which they stand. A mark without words is a point:
    `start == end`.
    """

    mark: Mark
    start: int
    end: int
    score: float
    children: tuple[Piece, ...] = ()

    def walk(self) -> Iterable[Piece]:
        """This piece and all inside of it, outer before inner."""
        yield self
        for child in self.children:
            yield from child.walk()


@dataclass(frozen=True)
class ProjectedText:
    """The other text with the pieces that were placed in it, and the marks that had no place there."""

    text: str
    pieces: tuple[Piece, ...]
    unplaced: tuple[Mark, ...] = ()
    problem: str | None = None

    def walk(self) -> Iterable[Piece]:
        """All pieces, outer before inner."""
        for piece in self.pieces:
            yield from piece.walk()

    def to_dict(self) -> Json:
        """Everything as plain JSON values."""
        return {
            "text": self.text,
            "spans": [
                {**_plain(piece.mark), "start": piece.start, "end": piece.end, "score": round(piece.score, 4)}
                for piece in self.walk()
            ],
            "unplaced": [
                {**_plain(mark), "source_start": mark.start, "source_end": mark.end} for mark in self.unplaced
            ],
            **({"problem": self.problem} if self.problem else {}),
        }


def _plain(mark: Mark) -> Json:
    return {"label": mark.name, **mark.extra}


def shown(text: str, span: Span) -> str:
    """A span in words for a message, shortened."""
    words = text[span[0] : span[1]]
    return repr(words if len(words) <= 40 else words[:39] + "…")
