"""Flagged correlations in an exact second pass."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from normlens.corpus import batches, ranks
from normlens.corpus import options as plan
from normlens.corpus.bins import Binning, Bins
from normlens.corpus.ranks import DistinctPairs

from .conftest import RANKS


def test_flagged_correlations_are_settled_exactly(lens, text_file: Path, tmp_path: Path, monkeypatch) -> None:
    coarse = Binning(Bins(((-4, 4, 0),)), Bins(((-4, 4, 0),)))
    monkeypatch.setattr(plan, "NORM_BINS", coarse)
    monkeypatch.setattr(plan, "WEIGHT_BINS", coarse)
    monkeypatch.setattr(DistinctPairs.__init__, "__defaults__", (8,))
    options = {"covariates": {"rank": RANKS}, "sample": 10**6, "per_token": True}
    rough = lens.corpus(text_file, tmp_path / "rough", **options)
    assert rough.manifest["flagged"] and rough.correlations["flagged"].any()
    monkeypatch.setattr(batches, "CHUNK_SIZE", 16)  # several ranges
    exact = lens.corpus(text_file, tmp_path / "exact", exact=True, range_seconds=0.0, **options)
    assert not exact.manifest["flagged"]
    everything = exact.pair_sample  # larger than the corpus
    for category in ("sep", "comma_period", "other"):
        chosen = everything[everything["category"] == category]
        found, before = exact.rho("alpha", "f_norm", category), rough.rho("alpha", "f_norm", category)
        assert found["value"] == pytest.approx(stats.spearmanr(chosen["alpha"], chosen["f_norm"]).statistic, abs=1e-9)
        assert found["count"] == len(chosen) and abs(found["value"] - before["value"]) <= before["bound"]
    points = exact.token_sample
    for quantity in ("f_norm", "mixing_attnres_n"):
        true = stats.spearmanr(points[quantity].astype(np.float32), points["rank"]).statistic
        assert exact.rho(quantity, "rank", "all")["value"] == pytest.approx(true, abs=1e-9)
    assert not list((tmp_path / "exact").glob("exact-*")) and ranks.TOLERANCE == 1e-3
