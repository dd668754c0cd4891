"""The compiled loop against what it replaces, to the last bit."""

from __future__ import annotations

import numpy as np
import pytest

from normlens.corpus import compiled
from normlens.corpus.bins import NORM_BINS, WEIGHT_BINS
from normlens.corpus.ranks import BinnedRanks

BATCH, HEADS, QUERIES, KEYS, GROUPS = 2, 3, 17, 11, 4


def _weights(seed: int) -> np.ndarray:
    rng = np.random.default_rng(seed)
    scores = np.exp(4 * rng.normal(size=(BATCH, HEADS, QUERIES, KEYS))).astype(np.float32)
    scores /= scores.sum(-1, keepdims=True)
    scores[0, 0, :, 3], scores[0, 1, 5], scores[1, 0, 2, 1] = 0.0, 1e-42, 1.0  # nothing, next to nothing, everything
    return scores


def test_rank_counts_and_ties_are_those_of_numpy() -> None:
    pytest.importorskip("numba")
    rng = np.random.default_rng(1)
    fast, plain = (BinnedRanks(WEIGHT_BINS, NORM_BINS, GROUPS) for _ in range(2))
    for seed in range(3):  # later weights meet bins that hold one value, or several, already
        weights = _weights(seed)
        norms = np.exp(rng.normal(size=(BATCH, HEADS, KEYS))).astype(np.float32)
        group = np.broadcast_to(rng.integers(0, GROUPS, (BATCH, 1, KEYS)), norms.shape)
        compiled.count_weights(fast, weights, norms, group)
        plain.update(weights, norms[:, :, None], group[:, :, None])
    found, expected = fast.state(), plain.state()
    for name in expected:
        np.testing.assert_array_equal(found[name], expected[name], err_msg=name)


@pytest.mark.parametrize("causal", [False, True])
def test_histograms_are_those_of_a_loop(monkeypatch, causal: bool) -> None:
    pytest.importorskip("numba")
    weights, bins = _weights(0)[..., :KEYS, :], WEIGHT_BINS.coarse
    category = np.random.default_rng(1).integers(0, GROUPS, (BATCH, KEYS)).astype(np.uint8)
    keep = np.tri(KEYS, dtype=bool) if causal else None
    expected = np.zeros((GROUPS, HEADS, bins.size), dtype=np.int64)
    for row, head, query, key in np.ndindex(weights.shape):
        if not causal or key <= query:
            expected[category[row, key], head, bins.find(weights[row, head, query, key])] += 1
    for least in (0, 10**9):
        monkeypatch.setattr(compiled, "WORTH_COMPILING", least)
        counts = np.zeros_like(expected)
        compiled.count_histogram(counts, np.ascontiguousarray(weights), category, keep, bins)
        np.testing.assert_array_equal(counts, expected)
