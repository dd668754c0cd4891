"""The compiled loop against what it replaces, to the last bit."""

from __future__ import annotations

import numpy as np
import pytest

from normlens.corpus.accumulators.histogram import NORM_BINS, WEIGHT_BINS, Histogram
from normlens.corpus.accumulators.spearman_binned import BinnedSpearman
from normlens.corpus.counting.batches import QuerySums
from normlens.corpus.counting.compiled import count_weights

BATCH, HEADS, QUERIES, KEYS, GROUPS = 2, 3, 17, 11, 4


def _weights(seed: int) -> np.ndarray:
    rng = np.random.default_rng(seed)
    scores = np.exp(4 * rng.normal(size=(BATCH, HEADS, QUERIES, KEYS))).astype(np.float32)
    scores /= scores.sum(-1, keepdims=True)
    scores[0, 0, :, 3], scores[0, 1, 5], scores[1, 0, 2, 1] = 0.0, 1e-42, 1.0  # nothing, next to nothing, everything
    return scores


def test_counts_ties_and_sums_are_those_of_numpy() -> None:
    pytest.importorskip("numba")
    rng = np.random.default_rng(1)
    compiled, plain = ((BinnedSpearman(WEIGHT_BINS, NORM_BINS, GROUPS), _histogram()) for _ in range(2))
    for seed in range(3):  # later weights meet bins that hold one value, or several, already
        weights = _weights(seed)
        norms = np.exp(rng.normal(size=(BATCH, HEADS, KEYS))).astype(np.float32)
        group = np.broadcast_to(rng.integers(0, GROUPS, (BATCH, 1, KEYS)), norms.shape)
        rows = group * HEADS + np.arange(HEADS)[:, None]
        sums = count_weights(compiled[0], compiled[1], weights, norms, group, rows)
        plain[0].update(weights, norms[:, :, None], group[:, :, None])
        plain[1].update(rows[:, :, None], WEIGHT_BINS.coarse.find(weights))
        expected = QuerySums.of_pairs(weights, None)
        for name in ("count", "total", "square", "low", "high"):
            np.testing.assert_array_equal(getattr(sums, name), getattr(expected, name), err_msg=name)
    np.testing.assert_array_equal(compiled[1].counts, plain[1].counts)
    found, expected_state = compiled[0].state(), plain[0].state()
    for name in expected_state:
        np.testing.assert_array_equal(found[name], expected_state[name], err_msg=name)


def _histogram() -> Histogram:
    return Histogram(WEIGHT_BINS.coarse, GROUPS * HEADS)
