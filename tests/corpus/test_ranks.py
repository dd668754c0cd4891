"""Three ways to Spearman's rho against scipy."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from normlens.corpus.bins import NORM_BINS, WEIGHT_BINS
from normlens.corpus.correlations import exact_rho
from normlens.corpus.ranks import BinnedRanks, DistinctPairs
from normlens.errors import InputError

from .tester import SMALL_BINS as SMALL


def _shapes(kind: str, rng: np.random.Generator, size: int) -> tuple[np.ndarray, np.ndarray]:
    x = rng.normal(size=size)
    y = 0.6 * x + rng.normal(size=size)
    match kind:
        case "smooth":
            x, y = np.exp(x), np.exp(0.3 * y)
        case "long tails":
            x, y = np.exp(8 * x), np.exp(-5 * y)
        case "heavy ties":
            x, y = np.round(np.exp(x)), np.round(np.exp(y))
        case "ties and tails":
            x, y = np.where(rng.random(size) < 0.4, 0.0, np.exp(6 * x)), np.round(np.exp(y), 1)
        case "one bin":
            x, y = 1 + 1e-3 * rng.random(size), 1 + 1e-3 * rng.random(size)
        case "signed":
            pass
    return x.astype(np.float32), y.astype(np.float32)


KINDS = ("smooth", "long tails", "heavy ties", "ties and tails", "one bin", "signed")


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(KINDS), st.integers(0, 10**6), st.sampled_from([3, 10, 200, 3000]))
def test_rho_lies_within_its_bound(kind: str, seed: int, size: int) -> None:
    x, y = _shapes(kind, np.random.default_rng(seed), size)
    if len(np.unique(x)) < 2 or len(np.unique(y)) < 2:
        return
    true = stats.spearmanr(x, y).statistic
    for binning in (SMALL, NORM_BINS):
        if binning is NORM_BINS and size > 200:
            continue  # the large tables are tested below
        counts = BinnedRanks(binning, binning, groups=1)
        counts.update(x, y, np.zeros(size, dtype=int))
        found = counts.result([0])
        assert abs(found.rho - true) <= found.bound + 1e-9
        assert found.count == size and 0 <= found.bound <= 2


@pytest.mark.parametrize("kind", ["smooth", "long tails", "heavy ties", "ties and tails"])
def test_the_real_bins_are_fine_enough(kind: str) -> None:
    x, y = _shapes(kind, np.random.default_rng(7), 200_000)
    x = np.minimum(x, 1 / np.maximum(x, 1e-30)).astype(np.float32)  # weights lie between 0 and 1
    y = np.clip(y, 2.0**-16, 2.0**15)  # norms lie within the bins
    counts = BinnedRanks(WEIGHT_BINS, NORM_BINS, groups=1)
    counts.update(x, y, np.zeros(len(x), dtype=int))
    found, true = counts.result([0]), stats.spearmanr(x, y).statistic
    assert abs(found.rho - true) <= found.bound + 1e-12
    assert abs(found.rho - true) < 1e-4
    assert not found.flagged


def test_what_bins_do_not_resolve_is_flagged() -> None:
    x, y = _shapes("one bin", np.random.default_rng(7), 1000)
    counts = BinnedRanks(NORM_BINS, NORM_BINS, groups=1)
    counts.update(x, y, np.zeros(len(x), dtype=int))
    found = counts.result([0])
    assert found.flagged and abs(found.rho - stats.spearmanr(x, y).statistic) <= found.bound


def test_ties_hide_nothing() -> None:
    rng = np.random.default_rng(8)
    x, y = (rng.integers(1, 6, size=5000).astype(np.float32) for _ in range(2))
    counts = BinnedRanks(NORM_BINS, NORM_BINS, groups=1)
    counts.update(x, y, np.zeros(5000, dtype=int))
    # A fine bin holds one value each, so all that is left is the covariance within coarse cells, which is 0 too.
    assert counts.result([0]).bound < 1e-12
    assert counts.result([0]).rho == pytest.approx(stats.spearmanr(x, y).statistic, abs=1e-12)


def test_rho_broadcasts_keeps_and_pools_groups() -> None:
    rng = np.random.default_rng(9)
    alpha = rng.random((2, 3, 5, 4)).astype(np.float32)
    norms = rng.lognormal(size=(2, 3, 4)).astype(np.float32)
    group = np.broadcast_to(rng.integers(0, 3, size=(2, 1, 1, 4)), (2, 3, 1, 4))
    keep = np.tri(5, 4, dtype=bool)
    counts = BinnedRanks(SMALL, SMALL, groups=3)
    counts.update(alpha, norms[:, :, None], group.copy(), keep)
    full_y, full_group = np.broadcast_to(norms[:, :, None], alpha.shape), np.broadcast_to(group, alpha.shape)
    kept = np.broadcast_to(keep, alpha.shape)
    for groups in ([0], [1, 2], [0, 1, 2]):
        chosen = kept & np.isin(full_group, groups)
        found, true = counts.result(groups), stats.spearmanr(alpha[chosen], full_y[chosen]).statistic
        assert found.count == chosen.sum()
        assert abs(found.rho - true) <= found.bound + 1e-12


def test_counts_beyond_thirty_one_bits() -> None:
    counts = BinnedRanks(SMALL, SMALL, groups=1)
    counts.update(np.array([1.0, 2.0]), np.array([1.0, 3.0]), np.zeros(2, dtype=int))
    state = counts.state()
    for name in ("by_x.count", "by_y.count"):
        state[name] = state[name].astype(np.int64) * 2**30
    for _ in range(5):
        counts.merge(state)
    found = counts.result([0])
    assert found.count == 2 + 5 * 2 * 2**30
    assert found.rho == pytest.approx(1.0)


@pytest.mark.parametrize("capacity", [1 << 20, 64])
def test_distinct_pairs_are_exact_or_bounded(capacity: int) -> None:
    rng = np.random.default_rng(11)
    data = [(rng.lognormal(size=n), rng.integers(1, 50, n).astype(float), rng.integers(0, 2, n)) for n in (9, 200, 50)]
    pairs = DistinctPairs(capacity)
    for chunk in data:
        pairs.update(*chunk)
    x, y, _ = (np.concatenate(side) for side in zip(*data, strict=True))
    found = pairs.result([0, 1])
    assert found.count == len(x)
    assert abs(found.rho - stats.spearmanr(x.astype(np.float32), y).statistic) <= found.bound + 1e-12
    assert (found.bound == 0.0) == (pairs.dropped == 0) == (capacity > 64)


@settings(max_examples=15, deadline=None)
@given(st.sampled_from(KINDS), st.integers(0, 10**6), st.integers(2, 400))
def test_pairs_on_disk_are_exact(kind: str, seed: int, size: int) -> None:
    x, y = _shapes(kind, np.random.default_rng(seed), size)
    if len(np.unique(x)) < 2 or len(np.unique(y)) < 2:
        return
    with tempfile.TemporaryDirectory() as folder:
        groups = (np.arange(size) % 4).astype(np.uint8)
        for number, part in enumerate(np.array_split(np.arange(size), 4)):
            pd.DataFrame({"x": x[part], "y": y[part], "category": groups[part]}).to_parquet(
                f"{folder}/{number}.parquet"
            )
        found = exact_rho(Path(folder), [0, 1, 2, 3])
    assert found.count == size and found.bound == 0.0
    assert found.rho == pytest.approx(stats.spearmanr(x, y).statistic, abs=1e-12)


def test_a_constant_has_no_correlation() -> None:
    counts = BinnedRanks(SMALL, SMALL, 1)
    counts.update(np.ones(5), np.arange(5.0), np.zeros(5, dtype=int))
    with pytest.raises(InputError, match="constant"):
        counts.result([0])
