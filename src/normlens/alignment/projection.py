"""Marks carried across a pair: from the words that they cover, over the links, to words of the other text.

The rules, for a mark that covers the source words W (a mark that touches a word covers it; of two marks that share a word
the one with more of its characters has it):

1.  A target word counts for the mark by the scores of its links into W, and against it by those of its other links:

        value(t) = Σ_{s ∈ W} score(s, t) - Σ_{s ∉ W} score(s, t)

    so a word without links counts neither way.
2.  `one` piece (the default): the mark goes around the stretch of target words with the largest sum of values, the
    shortest of equal ones. A stray link far away is left out, a foreign word in the midst is taken in, and no element is
    written twice. `many` pieces: the mark goes around every run of words with a positive value, and around words
    without links between two of them.
3.  A mark that covers all words of what is around it covers all words there.
4.  Marks inside of a mark are placed inside of its stretch, and side by side where they were side by side: the heaviest
    first. Nesting is so kept by construction.
5.  A mark without words (a line break, an image, an empty tag) stands in the gap that the links around it cross least:
    a link costs its score, halved for each word between it and the gap, if its two words lie on different sides. The
    neighbour that the mark touches, or else the one before it, counts more than the other one.
6.  A mark whose words have no links to offer cannot be placed. It is reported, and
    `ProjectedText.unplaced` has it.

A piece's score is the weight of the links between W and the piece, divided by the weight of all links that touch either,
with 1 for each word of W that has none: 1 where everything agrees, less where words are lost, foreign or unaligned.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import get_args

import numpy as np
from jaxtyping import Bool, Float

from normlens.alignment.links import Link
from normlens.alignment.marked_text import Mark, MarkedText, Piece, ProjectedText
from normlens.errors import InputError
from normlens.inputs.words import Span
from normlens.options import Pieces

PIECES: tuple[Pieces, ...] = get_args(Pieces)


def project_marks(
    marked: MarkedText,
    source_words: Sequence[Span],
    target: str,
    target_words: Sequence[Span],
    scores: Mapping[Link, float],
    pieces: Pieces = "one",
) -> ProjectedText:
    """Place every mark of the source text in the target text, by scored links between their words.

    >>> marked = MarkedText("red car", (Mark(0, 3, "b", "<b>", "</b>"),))
    >>> found = project_marks(marked, [(0, 3), (4, 7)], "voiture rouge", [(0, 7), (8, 13)], {(0, 1): 1.0, (1, 0): 1.0})
    >>> [(piece.start, piece.end, piece.score) for piece in found.pieces]
    [(8, 13, 1.0)]
    """
    if pieces not in PIECES:
        raise InputError(f"pieces must be one of {', '.join(PIECES)}, got {pieces!r}")
    weights = np.zeros((len(source_words), len(target_words)))
    for (source, other), score in scores.items():
        if not (0 <= source < len(source_words) and 0 <= other < len(target_words)):
            raise InputError(
                f"the link {source}-{other} is outside of the {len(source_words)} source and {len(target_words)} "
                "target words"
            )
        weights[source, other] = score
    work = _Placing(marked, source_words, target, target_words, weights, pieces)
    found = work.inside(None, _Room(0, len(target_words), 0, len(target)))
    return ProjectedText(target, tuple(found), tuple(work.unplaced))


@dataclass(frozen=True)
class _Room:
    """The room for marks: target words from `first` to before `last`, and the characters around them."""

    first: int
    last: int
    start: int
    end: int


class _Placing:
    """One pair's marks on their way; what could not be placed is collected."""

    def __init__(
        self,
        marked: MarkedText,
        source_words: Sequence[Span],
        target: str,
        target_words: Sequence[Span],
        weights: Float[np.ndarray, "source target"],
        pieces: Pieces,
    ) -> None:
        self.marked, self.source_words, self.target_words = marked, source_words, target_words
        self.weights, self.pieces = weights, pieces
        self.unplaced: list[Mark] = []
        #: Marks that were placed as points: where a mark comes in many pieces, only one of them holds these.
        self.points: set[int] = set()
        self.covered = covered_words(marked, source_words)
        every = np.ones(len(source_words), bool)
        #: For each mark and target word, how much more of the word's links lead to the mark than elsewhere.
        self.values = [2 * weights[own].sum(0) - weights.sum(0) for own in self.covered]
        self.around = [every if mark.parent is None else self.covered[mark.parent] for mark in marked.marks]

    def inside(self, parent: int | None, room: _Room) -> list[Piece]:
        """The pieces of all marks directly inside of one, in the order in which they stand."""
        children = self.marked.children(parent)
        filled = [place for place in children if self.covered[place].any()]
        found = self._stretches(filled, room) if self.pieces == "one" else self._runs(filled, room)
        pieces = [
            self._piece(place, _Room(first, last, *self._characters(first, last)), self._score(place, first, last))
            for place, stretches in found.items()
            for first, last in stretches
        ]
        taken = [stretch for stretches in found.values() for stretch in stretches]
        for place in children:
            if place in found or (self.pieces == "many" and (place in self.points or self._belongs_somewhere(place))):
                continue
            self.points.add(place)
            mark = self.marked.marks[place]
            position, score = self._gap(place, room, taken)
            if self.marked.text[mark.start : mark.end].strip():
                self.unplaced.append(mark)
                score = 0.0
            pieces.append(self._piece(place, _Room(0, 0, position, position), score))
        # A point at the seam of two pieces comes between them; several points keep the order of the source.
        return sorted(pieces, key=lambda piece: (piece.start, piece.end))

    def _piece(self, place: int, room: _Room, score: float) -> Piece:
        return Piece(self.marked.marks[place], room.start, room.end, score, tuple(self.inside(place, room)))

    def _belongs_somewhere(self, place: int) -> bool:
        """Return True if the mark has words in some piece of what is around it, though perhaps not in this one."""
        return bool((self.values[place] > 0).any()) and bool(self.covered[place].any())

    # ---- stretches of words ---------------------------------------------------------------------------------------

    def _stretches(self, places: Sequence[int], room: _Room) -> dict[int, list[Span]]:
        """One stretch per mark, apart from each other; the mark with the largest sum chooses first."""
        free = np.zeros(len(self.target_words), bool)
        free[room.first : room.last] = True
        found: dict[int, list[Span]] = {}
        left = list(places)
        while left:
            best = {place: self._best(place, room, free) for place in left}
            place = max(left, key=lambda one: (best[one][0], -one))
            total, first, last = best[place]
            if total <= 0:
                break
            found[place] = [(first, last)]
            free[first:last] = False
            left.remove(place)
        return found

    def _best(self, place: int, room: _Room, free: Bool[np.ndarray, " target"]) -> tuple[float, int, int]:
        """The stretch with the largest sum, as (sum, first, last); rule 3 before rule 2."""
        whole = (self.covered[place] == self.around[place]).all()
        if whole and room.last > room.first and free[room.first : room.last].all():
            return float("inf"), room.first, room.last
        values = np.where(free, self.values[place], -np.inf)
        best, total, start = (0.0, 0, 0), 0.0, room.first
        for word in range(room.first, room.last):
            if total <= 0:  # a stretch that sums to nothing is better begun anew, which is also the shorter one
                total, start = 0.0, word
            total += values[word]
            if total > best[0]:
                best = total, start, word + 1
        return best

    def _runs(self, places: Sequence[int], room: _Room) -> dict[int, list[Span]]:
        """Every run of words that belong to a mark; a word without links belongs where both its neighbours do."""
        owner = np.full(len(self.target_words), -1)
        for place in places:
            whole = (self.covered[place] == self.around[place]).all()
            mine = np.full(len(owner), True) if whole else self.values[place] > 0
            owner[np.flatnonzero(mine)] = place
        linked = self.weights.sum(0) > 0
        for first, last in _runs_of(~linked, room.first, room.last):
            if first > room.first and last < room.last and owner[first - 1] == owner[last]:
                owner[first:last] = owner[last]
        return {
            place: runs for place in places if (runs := _runs_of(owner == place, room.first, room.last))
        }  # fmt: skip

    def _characters(self, first: int, last: int) -> Span:
        return self.target_words[first][0], self.target_words[last - 1][1]

    def _score(self, place: int, first: int, last: int) -> float:
        own = self.covered[place]
        inside = np.zeros(len(self.target_words), bool)
        inside[first:last] = True
        agreeing = self.weights[own][:, inside].sum()
        touching = self.weights[own].sum() + self.weights[:, inside].sum() - agreeing
        unlinked = (self.weights[own].sum(1) == 0).sum()
        return float(agreeing / (touching + unlinked)) if touching + unlinked else 0.0

    # ---- gaps -----------------------------------------------------------------------------------------------------

    def _gap(self, place: int, room: _Room, taken: Sequence[Span]) -> tuple[int, float]:
        """The character position of a mark without words, and the share of the links around it that it does not cross."""
        if room.first == room.last:
            return room.start, 0.0
        mark = self.marked.marks[place]
        before = sum(1 for start, _ in self.source_words if start < mark.start)
        parent = self.marked.marks[mark.parent] if mark.parent is not None else None
        outer = (parent.start, parent.end) if parent is not None else (0, len(self.marked.text))
        mine = [i for i, (start, end) in enumerate(self.source_words) if start < outer[1] and end > outer[0]]
        if mine and before <= mine[0]:
            return room.start, 1.0
        if mine and before > mine[-1]:
            return room.end, 1.0
        text = self.marked.text
        clings_right = text[mark.start - 1 : mark.start].isspace() and not text[mark.end : mark.end + 1].isspace()
        sources, targets = np.nonzero(self.weights)
        far = np.where(
            sources < before, before - 1 - sources + 0.5 * clings_right, sources - before + 0.5 * (not clings_right)
        )
        cost = self.weights[sources, targets] * 0.5**far
        gaps = [g for g in range(room.first, room.last + 1) if not any(first < g < last for first, last in taken)]
        crossed = [float(cost[(sources < before) != (targets < g)].sum()) for g in gaps]
        gap = gaps[int(np.argmin(np.round(crossed, 9)))]
        if gap == room.first:
            position = room.start
        elif gap == room.last:
            position = room.end
        else:
            position = self.target_words[gap][0] if clings_right else self.target_words[gap - 1][1]
        return position, 1 - min(crossed) / cost.sum() if cost.sum() else 0.0


def covered_words(marked: MarkedText, words: Sequence[Span]) -> list[Bool[np.ndarray, " source"]]:
    """The words of each mark: those that it touches, without those that a neighbour has more of."""
    covered = [np.zeros(len(words), bool) for _ in marked.marks]
    for word, (start, end) in enumerate(words):
        parent: int | None = None
        while True:
            shares = {
                place: min(end, marked.marks[place].end) - max(start, marked.marks[place].start)
                for place in marked.children(parent)
            }
            best = max(shares, key=lambda place: (shares[place], -place), default=None)
            if best is None or shares[best] <= 0:
                break
            covered[best][word] = True
            parent = best
    return covered


def _runs_of(chosen: Bool[np.ndarray, " target"], first: int, last: int) -> list[Span]:
    runs: list[Span] = []
    for word in range(first, last):
        if chosen[word]:
            if runs and runs[-1][1] == word:
                runs[-1] = runs[-1][0], word + 1
            else:
                runs.append((word, word + 1))
    return runs
