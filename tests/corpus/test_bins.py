"""Bins and histograms."""

from __future__ import annotations

import numpy as np
import pytest

from normlens.corpus.bins import (
    CONTRIBUTION_BINS,
    NORM_BINS,
    WEIGHT_BINS,
    Binning,
    Bins,
    Distribution,
)
from normlens.errors import InputError

from .tester import SMALL_BINS as SMALL


@pytest.mark.parametrize("binning", [WEIGHT_BINS, NORM_BINS, CONTRIBUTION_BINS, SMALL])
def test_bins_are_where_the_edges_say(binning: Binning) -> None:
    rng = np.random.default_rng(0)
    values = np.concatenate(
        [[0.0, -0.0, -1.0, 1.0, 1e-40, 3e38], np.exp2(rng.uniform(-140, 120, 2000)) * rng.uniform(1, 2, 2000)]
    ).astype(np.float32)
    for bins in (binning.fine, binning.coarse):
        found = bins.find(values)
        edges = bins.edges
        assert len(edges) == bins.size + 1 and (np.diff(edges) > 0).all()
        # Numbers that float32 cannot tell from zero share the bin of zero.
        inside = (values == 0) | (np.abs(values) > 1e-37)
        expected = np.searchsorted(edges, values[inside].astype(np.float64), side="right") - 1
        np.testing.assert_array_equal(found[inside], expected)
    fine, coarse = binning.fine.find(values), binning.coarse.find(values)
    ordinary = np.abs(values) > 1e-37
    np.testing.assert_array_equal(binning.coarse_of_fine[fine][ordinary], coarse[ordinary])


def test_coarse_bins_must_fit_the_fine_ones() -> None:
    with pytest.raises(ValueError, match="edge of the fine bins"):
        _ = Binning(Bins(((-2, 0, 1),)), Bins(((-2, 0, 2),))).coarse_of_fine
    with pytest.raises(ValueError, match="adjoin"):
        Bins(((-2, 0, 1), (1, 2, 1)))


def test_histogram_quantiles_hold_the_true_ones() -> None:
    values = np.random.default_rng(2).lognormal(size=500).astype(np.float32)
    bins = NORM_BINS.coarse
    distribution = Distribution(np.bincount(bins.find(values), minlength=bins.size), bins.edges)
    for q in (0.0, 0.01, 0.25, 0.5, 0.77, 0.99, 1.0):
        true = np.quantile(values.astype(np.float64), q)
        found = distribution.quantile(q, low=float(values.min()), high=float(values.max()))
        assert found.low <= true <= found.high and found.low <= found.value <= found.high
        assert found.value == pytest.approx(true, rel=0.05)


def test_a_distribution_of_nothing_is_an_error() -> None:
    with pytest.raises(InputError, match="empty"):
        Distribution(np.zeros(NORM_BINS.coarse.size, dtype=int), NORM_BINS.coarse.edges)
