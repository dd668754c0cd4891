"""Alignment straight from the definitions, one loop at a time."""

from __future__ import annotations

import numpy as np

Pairs = set[tuple[int, int]]


def error_rate(hypotheses: list[Pairs], sure: list[Pairs], possible: list[Pairs]) -> float:
    """Och and Ney (2003), counted link by link."""
    top = bottom = 0
    for a, s, p in zip(hypotheses, sure, possible, strict=True):
        for link in a:
            bottom += 1
            if link in s:
                top += 1
            if link in s or link in p:
                top += 1
        bottom += len(s)
    return 1 - top / bottom


def grow_diag(forward: Pairs, reverse: Pairs, sources: int, targets: int) -> Pairs:
    """The pseudo-code of Koehn, Axelrod et al. (2005), with its loops over all cells."""
    alignment = forward & reverse
    union = forward | reverse
    while True:
        added = False
        for e in range(sources):
            for f in range(targets):
                if (e, f) not in alignment:
                    continue
                for down, right in [(-1, 0), (0, -1), (1, 0), (0, 1), (-1, -1), (-1, 1), (1, -1), (1, 1)]:
                    new = (e + down, f + right)
                    source_free = all(new[0] != s for s, _ in alignment)
                    target_free = all(new[1] != t for _, t in alignment)
                    if (source_free or target_free) and new in union and new not in alignment:
                        alignment = alignment | {new}
                        added = True
        if not added:
            return alignment


def final(alignment: Pairs, direction: Pairs, sources: int, targets: int, both: bool) -> Pairs:
    """The `final` step for one direction: `or`, or `and` where `both`."""
    for e in range(sources):
        for f in range(targets):
            source_free = all(e != s for s, _ in alignment)
            target_free = all(f != t for _, t in alignment)
            free = source_free and target_free if both else source_free or target_free
            if free and (e, f) in direction:
                alignment = alignment | {(e, f)}
    return alignment


def mutual(joint: np.ndarray) -> Pairs:
    """Cells that are strictly the largest of their row and of their column."""
    found = set()
    for t in range(joint.shape[0]):
        for s in range(joint.shape[1]):
            row = all(joint[t, s] > joint[t, k] for k in range(joint.shape[1]) if k != s)
            column = all(joint[t, s] > joint[k, s] for k in range(joint.shape[0]) if k != t)
            if row and column:
                found.add((s, t))
    return found


def word_map(
    values: np.ndarray,
    target_rows: list[list[int]],
    source_columns: list[list[int]],
    special_columns: list[int],
) -> np.ndarray:
    """Subwords to words as in the paper: columns of a source word are added, rows of a target word averaged."""
    result = np.zeros((len(target_rows), len(source_columns) + 1))
    for t, rows in enumerate(target_rows):
        for s, columns in enumerate(source_columns):
            for row in rows:
                for column in columns:
                    result[t, s] += values[row, column] / len(rows)
        for column in special_columns:
            mean = sum(values[row, column] / len(rows) for row in rows)
            result[t, -1] = max(result[t, -1], mean)
    return result


def joined_views(maps: np.ndarray) -> np.ndarray:
    """The geometric mean over views of a cell's share of its row times its share of its column, cell by cell."""
    views, rows, columns = maps.shape
    joined = np.zeros((rows, columns - 1))
    for row in range(rows):
        for column in range(columns - 1):
            product = 1.0
            for view in range(views):
                across = sum(float(maps[view, row, other]) for other in range(columns - 1))
                down = sum(float(maps[view, other, column]) for other in range(rows))
                value = float(maps[view, row, column])
                product *= (value / across) * (value / down) if value else 0.0
            joined[row, column] = product ** (1 / views)
    return joined


def share_links(joint: np.ndarray, threshold: float) -> Pairs:
    """Cells whose shares of row and column are above the threshold on average, and neither below what chance gives."""
    rows, columns = joint.shape
    found = set()
    for t in range(rows):
        for s in range(columns):
            if joint[t, s] == 0:
                continue
            across = float(joint[t, s]) / sum(float(joint[t, k]) for k in range(columns))
            down = float(joint[t, s]) / sum(float(joint[k, s]) for k in range(rows))
            chance = across * columns < 1 - 1e-9 or down * rows < 1 - 1e-9
            if not chance and (across + down) / 2 > threshold:
                found.add((s, t))
    return found
