"""Pairs beyond a model's length, or of several sentences beyond a window's: cut into pieces that are aligned one by one.

Cutting both sides at the same numbers would tear translations apart, so the links themselves say where to cut:

1.  A *window* is the longest stretch of words of both sides, from where the last cut was, that fits the model, with at
    most `LONGEST_WINDOW` subwords on a side.
2.  The window is aligned. A *cut* is a place between two words on each side. It costs the scores of the links that it
    crosses: one word before it, the other after it.
3.  Cuts are made wherever both sides end a sentence and no link is crossed. The last quarter of a window, whose words may
    belong to words outside of it, is not looked at unless the text ends there: windows overlap by it.
4.  A window without such a place is cut once, between its first and third quarter, where that costs least (the later of
    equal places). Links that are crossed there are kept as the window had them.
5.  What lies between two cuts is a piece, and is aligned as a pair of its own. So every link lies in a piece, or crosses
    a cut and is kept; and a document whose sentences are found has the links of its sentences.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from jaxtyping import Float

from normlens.alignment.links import Link, Links
from normlens.inputs.words import sentence_ends

#: Subwords of one side of a window at most; larger ones find fewer places to cut, since stray links cross them: of 120
#: sentences in documents of 30, windows of 128 found 108 and those of 256 found 92.
LONGEST_WINDOW = 128
#: (source words, target words) before a place.
Cut = tuple[int, int]


@dataclass(frozen=True)
class Sizes:
    """The subwords of each word of one side, in the tokenizer that makes most of them, and how many fit a window."""

    words: tuple[str, ...]
    subwords: tuple[int, ...]
    fit: int

    def end_from(self, start: int) -> int:
        """One past the last word that fits a window from this word on; at least one word does."""
        end, taken = start, 0
        while end < len(self.words) and (taken + self.subwords[end] <= self.fit or end == start):
            taken += self.subwords[end]
            end += 1
        return end

    def text(self, start: int, end: int) -> str:
        """Some of the words as a line."""
        return " ".join(self.words[start:end])


@dataclass(frozen=True)
class Window:
    """A stretch of both sides, from one word to before another."""

    source: tuple[int, int]
    target: tuple[int, int]
    #: Whether the document's source and target end with it.
    ends: tuple[bool, bool] = (False, False)

    def moved(self, link: Link) -> Link:
        """A link of the stretch in words of the document."""
        return link[0] + self.source[0], link[1] + self.target[0]


class LongPair:
    """A document on its way: `window`, then `advance` with its links, until there is none; then `add` for each piece."""

    def __init__(self, source: Sizes, target: Sizes) -> None:
        self.source, self.target = source, target
        self.cuts: list[Cut] = [(0, 0)]
        #: Links in words of the document: those that a cut crosses, then those of the pieces.
        self.scores: dict[Link, float] = {}
        self.certain: set[Link] = set()

    @property
    def window(self) -> Window | None:
        """The next window; None where a side is used up."""
        first, other = self.cuts[-1]
        if first >= len(self.source.words) or other >= len(self.target.words):
            return None
        last, until = self.source.end_from(first), self.target.end_from(other)
        return Window((first, last), (other, until), (last == len(self.source.words), until == len(self.target.words)))

    def text_of(self, window: Window) -> tuple[str, str]:
        """The window as a pair of lines."""
        return self.source.text(*window.source), self.target.text(*window.target)

    def advance(self, window: Window, scores: Mapping[Link, float], certain: Links) -> None:
        """Cut the window by its links, whose words are counted from the window's first."""
        source, target = self.source.words[slice(*window.source)], self.target.words[slice(*window.target)]
        costs = cut_costs(scores, len(source), len(target))
        found = _sentence_cuts(costs, source, target, window.ends)
        whole = (len(source), len(target))
        if all(window.ends):
            found.append(whole)
        elif not found:
            found = [_cheapest_cut(costs, window.ends)]
            crossed = {link for link in scores if (link[0] < found[0][0]) != (link[1] < found[0][1])}
            self.scores |= {window.moved(link): scores[link] for link in crossed}
            self.certain |= {window.moved(link) for link in crossed & certain}
        self.cuts += [window.moved(cut) for cut in found]

    def add(self, piece: Window, scores: Mapping[Link, float], certain: Links) -> None:
        """Take the links of a piece, whose words are counted from the piece's first."""
        self.scores |= {piece.moved(link): score for link, score in scores.items()}
        self.certain |= {piece.moved(link) for link in certain}

    def pieces(self) -> list[Window]:
        """The pieces between the cuts; a stretch of one side that has no other side is in no piece."""
        return [
            Window((first, last), (other, until))
            for (first, other), (last, until) in pairwise(self.cuts)
            if first < last and other < until
        ]


def cut_costs(
    scores: Mapping[Link, float], source_words: int, target_words: int
) -> Float[np.ndarray, "source_places target_places"]:
    """For each cut `(a, b)`, the scores of the links with one word before it and the other after it.

    >>> cut_costs({(0, 0): 1.0, (1, 2): 0.5}, 2, 3)
    array([[0. , 1. , 1. , 1.5],
           [1. , 0. , 0. , 0.5],
           [1.5, 0.5, 0.5, 0. ]])
    """
    counts = np.zeros((source_words + 1, target_words + 1))
    for (source, target), score in scores.items():
        counts[source + 1, target + 1] = score
    both = counts.cumsum(0).cumsum(1)  # links with both words before the cut
    costs: Float[np.ndarray, "source_places target_places"] = both[:, -1:] + both[-1:, :] - 2 * both
    costs[costs < 1e-9] = 0  # sums of scores in another order
    return costs


def _sentence_cuts(
    costs: Float[np.ndarray, "source_places target_places"],
    source: Sequence[str],
    target: Sequence[str],
    ends: tuple[bool, bool],
) -> list[Cut]:
    """All free cuts between sentences, each after the last on both sides."""
    sides = [
        [end for end in sentence_ends(words) if end < len(words) and (all(ends) or end <= 3 * len(words) // 4)]
        for words in (source, target)
    ]
    found: list[Cut] = []
    for one in sides[0]:
        free = [other for other in sides[1] if costs[one, other] == 0 and (not found or other > found[-1][1])]
        # Where a sentence has no links there are several free cuts: the first leaves the rest of them to what follows.
        if free:
            found.append((one, free[0]))
    return found


def _cheapest_cut(costs: Float[np.ndarray, "source_places target_places"], ends: tuple[bool, bool]) -> Cut:
    """The place in the middle of a window that the fewest links cross; a side that ends there may be cut anywhere."""
    (first, last), (other, until) = (
        (0, size) if done else (max(1, size // 4), max(1, 3 * size // 4))
        for size, done in zip((costs.shape[0] - 1, costs.shape[1] - 1), ends, strict=True)
    )
    middle = costs[first : last + 1, other : until + 1]
    places = np.argwhere(middle == middle.min())
    best = max(places.tolist(), key=lambda place: (sum(place), place))
    return first + best[0], other + best[1]
