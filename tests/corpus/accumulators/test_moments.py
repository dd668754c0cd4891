"""Moments, linear correlations and means by relative position against numpy, scipy and loops."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from normlens.corpus.accumulators.moments import Moments, Pearson, RelativePositionMeans


def test_moments_agree_with_numpy() -> None:
    rng = np.random.default_rng(1)
    data = [rng.lognormal(size=rng.integers(1, 40)) for _ in range(6)]
    moments = Moments((1,))
    for chunk in data:
        moments.update(chunk[None])
    whole, found = np.concatenate(data), moments.result((0,))
    assert found.count == len(whole)
    expected = [whole.mean(), whole.var(), whole.std(), whole.std() / whole.mean(), whole.min(), whole.max()]
    np.testing.assert_allclose(
        [found.mean, found.variance, found.sd, found.cv, found.low, found.high], expected, rtol=1e-12
    )


def test_moments_of_numbers_that_hardly_vary() -> None:
    values = 1e6 + np.random.default_rng(0).normal(size=1000)
    moments = Moments((1,))
    for part in np.array_split(values, 7):
        moments.update(part[None])
    assert moments.result((0,)).variance == pytest.approx(values.var(), rel=1e-9)


def test_pearson_agrees_with_scipy() -> None:
    rng = np.random.default_rng(4)
    data = [rng.normal(loc=[[3.0], [-1.0]], size=(2, n)) for n in (5, 17, 3, 30)]
    pearson = Pearson((1,))
    for x, y in data:
        pearson.update(x[None], (x + y)[None])
    x, y = (np.concatenate(side) for side in zip(*data, strict=True))
    assert pearson.result((0,)) == pytest.approx(stats.pearsonr(x, x + y).statistic, rel=1e-12)


@pytest.mark.parametrize("causal", [False, True])
def test_means_by_relative_position_agree_with_loops(causal: bool) -> None:
    rng = np.random.default_rng(5)
    data = [rng.random((2, 3, n, n)).astype(np.float32) for n in (1, 2, 5, 9)]
    means = RelativePositionMeans(rows=3, reach=3)
    sums: dict[tuple[int, int], list[float]] = {}
    for maps in data:
        length = maps.shape[-1]
        keep = np.tri(length, dtype=bool) if causal else None
        means.update(maps, keep)
        for batch, head, query, key in np.ndindex(maps.shape):
            if not causal or key <= query:
                offset = max(-3, min(3, key - query))
                sums.setdefault((head, offset), []).append(float(maps[batch, head, query, key]))
    for head in range(3):
        expected = [np.mean(sums[head, offset]) if (head, offset) in sums else np.nan for offset in range(-3, 4)]
        np.testing.assert_allclose(means.result(head), expected, rtol=1e-12)
