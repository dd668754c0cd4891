"""Links between the words of a sentence pair: the values that readers, extraction, symmetrization and scorer share."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

Link = tuple[int, int]
#: The links of one sentence pair: (source word, target word), both counted from 0.
Links = frozenset[Link]


@dataclass(frozen=True)
class Annotation:
    """The links of one line as an annotator or an aligner wrote them: sure, or only possible (`sure` ⊆ `possible`).

    >>> Annotation.of(sure=[(0, 0)], possible=[(1, 0)]).possible == {(0, 0), (1, 0)}
    True
    """

    sure: Links
    possible: Links

    @classmethod
    def of(cls, sure: Iterable[Link], possible: Iterable[Link] = ()) -> Annotation:
        """Every sure link is possible too, as Och and Ney (2003) define the two sets."""
        links = frozenset(sure)
        return cls(links, links | frozenset(possible))

    def swapped(self) -> Annotation:
        """The same links with source and target exchanged."""
        return Annotation(swap(self.sure), swap(self.possible))


def swap(links: Links) -> Links:
    """Exchange source and target.

    >>> swap(frozenset({(0, 2)}))
    frozenset({(2, 0)})
    """
    return frozenset((target, source) for source, target in links)
