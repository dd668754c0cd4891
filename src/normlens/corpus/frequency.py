"""Frequency ranks of tokens: the covariate of both papers, from a file or counted from the corpus itself."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import numpy as np
from jaxtyping import Float

from normlens.corpus.batches import Item
from normlens.errors import InputError


def read_ranks(path: str | Path, vocabulary: int) -> Float[np.ndarray, " vocabulary"]:
    """Rank of each token id from the authors' file (`rank count token_id`); unlisted ids get the last rank + 1."""
    ranks = np.full(vocabulary, np.nan)
    for number, line in enumerate(Path(path).read_text().splitlines(), 1):
        parts = line.split()
        if not parts:
            continue
        try:
            rank, _, token_id = (int(part) for part in parts)
        except ValueError as error:
            raise InputError(f"a rank file has lines 'rank count token_id': {path}:{number} is {line!r}") from error
        if not 0 <= token_id < vocabulary:
            raise InputError(
                f"a rank file must belong to the model's vocabulary: {path}:{number} names token {token_id}, the "
                f"vocabulary has {vocabulary}"
            )
        ranks[token_id] = rank
    if np.isnan(ranks).all():
        raise InputError(f"a rank file must list tokens: {path} lists none")
    return np.where(np.isnan(ranks), np.nanmax(ranks) + 1, ranks)


def count_ranks(items: Iterable[Item], vocabulary: int) -> Float[np.ndarray, " vocabulary"]:
    """Rank of each token id by its count in a corpus, 1 for the most frequent; equal counts by their ids."""
    counts = np.zeros(vocabulary, dtype=np.int64)
    for item in items:
        np.add.at(counts, item.ids, 1)
    if not counts.any():
        raise InputError("frequencies need at least one sequence: the corpus has none")
    order = np.argsort(-counts, kind="stable")
    ranks = np.empty(vocabulary)
    ranks[order] = np.arange(1, vocabulary + 1)
    return np.where(counts > 0, ranks, np.count_nonzero(counts) + 1)
