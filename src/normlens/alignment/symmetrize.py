"""Two directions to one: the heuristics of Och and Ney (2003) and Koehn et al. (2003) over sets of links.

Both arguments hold (source, target) links of the same pair: `forward` from the model source → target, `reverse` from
the model target → source, already swapped into this orientation.
"""

from __future__ import annotations

from collections.abc import Callable

from normlens.alignment.links import Link, Links
from normlens.errors import InputError
from normlens.options import Symmetrization

_BESIDE = ((-1, 0), (0, -1), (1, 0), (0, 1))
_DIAGONAL = ((-1, -1), (-1, 1), (1, -1), (1, 1))


def intersection(forward: Links, reverse: Links) -> Links:
    """Links that both directions have."""
    return forward & reverse


def union(forward: Links, reverse: Links) -> Links:
    """Links that either direction has."""
    return forward | reverse


def grow_diag(forward: Links, reverse: Links) -> Links:
    """Grow the intersection into the union, through the eight neighbours, where a word is still unaligned.

    A link of the union joins if it touches one already in and its source or its target word has none yet. Links are
    visited in order, and one that joins is visited in the same round if its turn is still to come, as in the
    pseudo-code of Koehn et al. (2005).

    >>> sorted(grow_diag(frozenset({(0, 0), (1, 1)}), frozenset({(0, 0), (2, 1)})))
    [(0, 0), (1, 1), (2, 1)]
    """
    links = set(forward & reverse)
    allowed = forward | reverse
    order = sorted(allowed)
    sources, targets = {s for s, _ in links}, {t for _, t in links}
    grown = True
    while grown:
        grown = False
        for source, target in order:
            if (source, target) not in links:
                continue
            for down, right in _BESIDE + _DIAGONAL:
                link = source + down, target + right
                if link in allowed and link not in links and (link[0] not in sources or link[1] not in targets):
                    links.add(link)
                    sources.add(link[0])
                    targets.add(link[1])
                    grown = True
    return frozenset(links)


def grow_diag_final(forward: Links, reverse: Links) -> Links:
    """`grow_diag`, then each remaining link of either direction whose source *or* target word is unaligned."""
    return _final(grow_diag(forward, reverse), forward, reverse, both=False)


def grow_diag_final_and(forward: Links, reverse: Links) -> Links:
    """`grow_diag`, then each remaining link of either direction whose source *and* target word are unaligned."""
    return _final(grow_diag(forward, reverse), forward, reverse, both=True)


def _final(grown: Links, forward: Links, reverse: Links, *, both: bool) -> Links:
    links: set[Link] = set(grown)
    sources, targets = {s for s, _ in links}, {t for _, t in links}
    for direction in (forward, reverse):
        for source, target in sorted(direction):
            free = source not in sources, target not in targets
            if all(free) if both else any(free):
                links.add((source, target))
                sources.add(source)
                targets.add(target)
    return frozenset(links)


#: By the name that the command line takes; `product` and `sum` join maps instead, see `extraction.join_directions`.
HEURISTICS: dict[Symmetrization, Callable[[Links, Links], Links]] = {
    "intersection": intersection,
    "union": union,
    "grow-diag": grow_diag,
    "grow-diag-final": grow_diag_final,
    "grow-diag-final-and": grow_diag_final_and,
}


def symmetrize(name: Symmetrization, forward: Links, reverse: Links) -> Links:
    """Apply the heuristic of that name."""
    if name not in HEURISTICS:
        raise InputError(f"symmetrization must be one of {', '.join(HEURISTICS)}, got {name!r}")
    return HEURISTICS[name](forward, reverse)
