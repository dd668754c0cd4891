"""From maps of words to links: arg-max, mutual arg-max, thresholds, and the product of two directions' maps.

A *word map* belongs to one sentence pair and one direction. Its rows are the words that were force-decoded, its columns
the words that were read, plus one last column for the read side's special tokens (EOS): what no word aligns to.
A row or column of zeros is a word without a subword; it keeps its place and gets no link.
"""

from __future__ import annotations

from typing import get_args

import numpy as np
from jaxtyping import Float

from normlens.alignment.links import Links
from normlens.errors import InputError
from normlens.options import Combination, Extraction, Joining

WordMap = Float[np.ndarray, "row column_and_null"]
#: Scores of two directions in one: rows are target words, columns source words, and there is no null column.
JointMap = Float[np.ndarray, "target source"]

#: How the maps of two directions become one.
JOININGS: tuple[str, ...] = get_args(Joining)
#: How the maps of several layers become one.
COMBINATIONS: tuple[Combination, ...] = get_args(Combination)
#: How links are taken from a map.
EXTRACTIONS: tuple[Extraction, ...] = get_args(Extraction)


def row_shares(scores: WordMap) -> WordMap:
    """Divide each row by its sum, the null column included; a row of zeros stays zero.

    >>> row_shares(np.array([[1.0, 3.0], [0.0, 0.0]]))
    array([[0.25, 0.75],
           [0.  , 0.  ]])
    """
    total = scores.sum(axis=-1, keepdims=True)
    result: WordMap = np.zeros_like(scores, dtype=np.float64)
    np.divide(scores, total, out=result, where=total > 0)
    return result


def join_directions(forward: WordMap, reverse: WordMap, how: Joining = "product") -> JointMap:
    """Multiply (or add) the row shares of the two directions' maps.

    `forward` has target words as rows (the model reads the source), `reverse` has source words as rows.
    """
    if forward.shape[0] != reverse.shape[1] - 1 or reverse.shape[0] != forward.shape[1] - 1:
        raise _other_pair((forward.shape[0], forward.shape[1] - 1), (reverse.shape[1] - 1, reverse.shape[0]))
    one: JointMap = row_shares(forward)[:, :-1]
    other: JointMap = row_shares(reverse)[:, :-1].T
    if how not in JOININGS:
        raise InputError(f"joining must be product or sum, got {how!r}")
    joint: JointMap = one * other if how == "product" else one + other
    return joint


def joined_views(maps: Float[np.ndarray, "view row column_and_null"]) -> Float[np.ndarray, "row column"]:
    """The geometric mean over views of `p q`: a cell's share `p` of its row and `q` of its column, words only.

    Each layer of each direction is a view of the same alignment, and errs in its own way: a cell stays large only where
    all of them have it. A view that never looks at a pair of words (a word without subwords) vetoes it.

    >>> joined_views(np.array([[[3.0, 1.0, 9.0], [0.0, 1.0, 9.0]]])).round(3)
    array([[0.75 , 0.125],
           [0.   , 0.5  ]])
    """
    words = maps[..., :-1].astype(np.float64)
    across, down = words.sum(-1, keepdims=True), words.sum(-2, keepdims=True)
    shares = np.zeros_like(words)
    np.divide(words**2, across * down, out=shares, where=across * down > 0)
    with np.errstate(divide="ignore"):
        joined: Float[np.ndarray, "row column"] = np.exp(np.log(shares).mean(0))
    return joined


def join_view_directions(forward: JointMap, reverse: Float[np.ndarray, "source target"]) -> JointMap:
    """The geometric mean of two directions' `joined_views`; `reverse` has source words as rows."""
    if forward.shape != reverse.shape[::-1]:
        raise _other_pair(forward.shape, reverse.shape[::-1])
    joint: JointMap = np.sqrt(forward * reverse.T)
    return joint


def _other_pair(one: tuple[int, ...], other: tuple[int, ...]) -> InputError:
    return InputError(
        f"the maps of the two directions have {one[0]} x {one[1]} and {other[0]} x {other[1]} words; pass maps of "
        "one sentence pair"
    )


def argmax_links(scores: WordMap) -> Links:
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


def mutual_links(joint: JointMap) -> Links:
    """Link a target and a source word where each is the other's arg-max."""
    if joint.size == 0:
        return frozenset()
    by_row, by_column = joint.argmax(axis=1), joint.argmax(axis=0)
    return frozenset(
        (int(source), target)
        for target, source in enumerate(by_row)
        if by_column[source] == target and joint[target, source] > 0
    )


def cell_shares(joint: JointMap) -> JointMap:
    """`(p + q) / 2`: a cell's share `p` of its row and `q` of its column, as one number between 0 and 1.

    >>> cell_shares(np.array([[3.0, 1.0], [0.0, 1.0]]))
    array([[0.875, 0.375],
           [0.   , 0.75 ]])
    """
    across, down = _both_shares(joint)
    mean: JointMap = (across + down) / 2
    return mean


def _both_shares(joint: JointMap) -> tuple[JointMap, JointMap]:
    """Each cell's share of its row, and of its column; where nothing is to be shared, zero."""
    across, down = (np.zeros_like(joint, dtype=np.float64) for _ in range(2))
    for shares, axis in ((across, 1), (down, 0)):
        total = joint.sum(axis=axis, keepdims=True)
        np.divide(joint, total, out=shares, where=total > 0)
    return across, down


def confidence(share: float) -> float:
    """The probability that a link with this share is right: odds of `e^1.5 (x / (1 - x))²`.

    Both numbers were read off the first 300 Hansards pairs (a logistic fit gives 1.45 + 2.21 logit x with two
    models and 1.43 + 2.33 logit x with one); no link depends on it.

    >>> round(confidence(0.5), 3), round(confidence(0.9), 3)
    (0.818, 0.997)
    """
    odds = float(np.exp(1.5)) * share**2
    return odds / (odds + (1 - share) ** 2)


def share_links(joint: JointMap, threshold: float = 0.5) -> Links:
    """Link the cells whose mean share of row and column is above the threshold; a word may so get several links, or none.

    Where a side has one word, each cell is all of its column (or row), which says nothing: a link also has at least the
    share of either that it would have by chance.

    >>> sorted(share_links(np.array([[0.6, 0.3, 0.1]])))
    [(0, 0)]
    """
    across, down = _both_shares(joint)
    rows, columns = joint.shape
    # A share of exactly one n-th is no less than chance, however it was rounded.
    by_chance = (across < (1 - 1e-9) / max(1, columns)) | (down < (1 - 1e-9) / max(1, rows))
    return _above(np.where(by_chance, 0.0, (across + down) / 2), threshold)


def threshold_links(scores: WordMap, threshold: float) -> Links:
    """Link each row's word to every column that holds more than this share of the row."""
    return _above(row_shares(scores)[:, :-1], threshold)


def _above(values: JointMap, threshold: float) -> Links:
    if not 0 <= threshold < 1:
        raise InputError(f"threshold must be at least 0 and below 1, got {threshold}")
    return frozenset((int(source), int(target)) for target, source in np.argwhere(values > threshold))


def extract_links(scores: WordMap, how: Extraction = "argmax", threshold: float = 0.5) -> Links:
    """Links of one direction's map as (column, row), by the extraction of that name."""
    if how == "argmax":
        return argmax_links(scores)
    if how == "threshold":
        return threshold_links(scores, threshold)
    return extract_joint_links(row_shares(scores)[:, :-1], how, threshold)


def extract_joint_links(joint: JointMap, how: Extraction = "mutual", threshold: float = 0.5) -> Links:
    """Links of a joint map, which has no null column and therefore no plain arg-max."""
    if how == "mutual":
        return mutual_links(joint)
    if how == "share":
        return share_links(joint, threshold)
    if how in EXTRACTIONS:
        raise InputError(f"extraction must be mutual or share for joined maps, which have no null column, got {how}")
    raise InputError(f"extraction must be one of {', '.join(EXTRACTIONS)}, got {how!r}")
