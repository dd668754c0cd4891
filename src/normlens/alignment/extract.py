"""From a map of scores to links: arg-max, mutual arg-max, thresholds, and the soft product of two directions.

A *map* belongs to one sentence pair and one direction. Its rows are the words that were force-decoded, its columns the
words that were read, plus one last column for the read side's special tokens (EOS): the word that no word aligns to.
A row or column of zeros is a word without a subword; it keeps its place and gets no link.
"""

from __future__ import annotations

import numpy as np
from jaxtyping import Float

from normlens.alignment.links import Links
from normlens.errors import InputError

Map = Float[np.ndarray, "row column_and_null"]
#: Scores of two directions in one: rows are target words, columns source words, and there is no null column.
Joint = Float[np.ndarray, "target source"]

EXTRACTIONS = ("argmax", "mutual", "share", "threshold")


def shares(scores: Map) -> Map:
    """Divide each row by its sum, the null column included; a row of zeros stays zero.

    >>> shares(np.array([[1.0, 3.0], [0.0, 0.0]]))
    array([[0.25, 0.75],
           [0.  , 0.  ]])
    """
    total = scores.sum(axis=-1, keepdims=True)
    result: Map = np.zeros_like(scores, dtype=np.float64)
    np.divide(scores, total, out=result, where=total > 0)
    return result


def combine(forward: Map, reverse: Map, how: str = "product") -> Joint:
    """Multiply (or add) the row shares of the two directions' maps.

    `forward` has target words as rows (the model reads the source), `reverse` has source words as rows.
    """
    if forward.shape[0] != reverse.shape[1] - 1 or reverse.shape[0] != forward.shape[1] - 1:
        raise InputError(
            f"The two directions' maps must be of one sentence pair: {forward.shape[0]} x {forward.shape[1] - 1} words "
            f"in one, {reverse.shape[1] - 1} x {reverse.shape[0]} in the other."
        )
    one: Joint = shares(forward)[:, :-1]
    other: Joint = shares(reverse)[:, :-1].T
    if how not in ("product", "sum"):
        raise InputError(f"Two maps are combined by product or sum: {how!r} is neither.")
    joint: Joint = one * other if how == "product" else one + other
    return joint


def argmax_links(scores: Map) -> Links:
    """Link each row's word to its highest column; no link where that is the null column (ties: the first column).

    >>> sorted(argmax_links(np.array([[0.1, 0.8, 0.1], [0.2, 0.1, 0.7]])))
    [(1, 0)]
    """
    if scores.size == 0:
        return frozenset()
    best = scores.argmax(axis=1)
    return frozenset(
        (int(column), row)
        for row, column in enumerate(best)
        if column < scores.shape[1] - 1 and scores[row, column] > 0
    )


def mutual_links(joint: Joint) -> Links:
    """Link a target and a source word where each is the other's arg-max."""
    if joint.size == 0:
        return frozenset()
    by_row, by_column = joint.argmax(axis=1), joint.argmax(axis=0)
    return frozenset(
        (int(source), target)
        for target, source in enumerate(by_row)
        if by_column[source] == target and joint[target, source] > 0
    )


def link_shares(joint: Joint) -> Joint:
    """`sqrt(p q)`: a cell's share `p` of its row and `q` of its column, as one number between 0 and 1."""
    down = joint.sum(axis=0, keepdims=True)
    across = joint.sum(axis=1, keepdims=True)
    square: Joint = np.zeros_like(joint, dtype=np.float64)
    np.divide(joint**2, down * across, out=square, where=down * across > 0)
    np.sqrt(square, out=square)
    return square


def share_links(joint: Joint, threshold: float = 0.5) -> Links:
    """Link the cells with `sqrt(p q)` above the threshold; one word may so get several links, or none."""
    return _above(link_shares(joint), threshold)


def threshold_links(scores: Map, threshold: float) -> Links:
    """Link each row's word to every column that holds more than this share of the row."""
    return _above(shares(scores)[:, :-1], threshold)


def _above(values: Joint, threshold: float) -> Links:
    if not 0 <= threshold < 1:
        raise InputError(f"A threshold is a share, at least 0 and below 1: got {threshold}.")
    return frozenset((int(source), int(target)) for target, source in np.argwhere(values > threshold))


def extract(scores: Map, how: str = "argmax", threshold: float = 0.5) -> Links:
    """Links of one direction's map as (column, row), by the extraction of that name."""
    if how == "argmax":
        return argmax_links(scores)
    if how == "threshold":
        return threshold_links(scores, threshold)
    return extract_joint(shares(scores)[:, :-1], how, threshold)


def extract_joint(joint: Joint, how: str = "mutual", threshold: float = 0.5) -> Links:
    """Links of a joint map, which has no null column and therefore no plain arg-max."""
    if how == "mutual":
        return mutual_links(joint)
    if how == "share":
        return share_links(joint, threshold)
    if how in EXTRACTIONS:
        raise InputError(
            f"Two multiplied maps have no null column, so links are extracted by mutual or share: got {how}."
        )
    raise InputError(f"An extraction is one of {', '.join(EXTRACTIONS)}: {how!r} is none of them.")
