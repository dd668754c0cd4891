"""What the feed-forward block does to a map: numbers against scipy, claims by the numbers, and the report."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy import stats

from normlens.errors import InputError
from normlens.experiments.kobayashi2024 import (
    COMPONENTS,
    MAPS,
    LayerStudy,
    estimate,
    pairs_of,
    run,
    spearman,
    top_pairs,
)
from normlens.experiments.kobayashi2024 import measured as measure_all
from normlens.lens import Lens
from tests import tiny


@pytest.fixture(scope="module")
def study(tiny_lens: Lens, tiny_text: Path) -> LayerStudy:
    return LayerStudy(tiny_lens, (tiny_text,), limit=3, max_length=14)


def test_changes_are_rank_correlations_of_the_maps(study: LayerStudy) -> None:
    texts = study.texts()
    found = measure_all(study, texts)
    for number, ids in enumerate(texts):
        maps = study.lens.analyze_inputs({"input_ids": torch.tensor([ids])}, measures=list(MAPS))[0]
        for name, (before, after) in COMPONENTS.items():
            for n, layer in enumerate(found.layers):
                rho = stats.spearmanr(*(maps[m].sel(layer=layer).values.ravel() for m in (before, after))).statistic
                assert found.changes[name][number, n] == pytest.approx(1 - rho, abs=1e-9)
    assert found.proof < 1e-4
    assert found.tokens == sum(map(len, texts))
    pairs = sum(len(ids) * (len(ids) - 1) for ids in texts) * len(found.layers)
    assert len(found.pairs) == pairs, "every pair of different positions once in each layer"
    gains = (top_pairs(found)["after"] - top_pairs(found)["before"]).groupby(top_pairs(found)["layer"]).min()
    best = (found.pairs["after"] - found.pairs["before"]).groupby(found.pairs["layer"]).max()
    assert (gains <= best).all()


def test_report_of_an_encoder(study: LayerStudy, tmp_path: Path) -> None:
    outcome = run(study)
    report = outcome.write(tmp_path / "out")
    assert report.stat().st_size > 10_000
    results = json.loads((tmp_path / "out" / "results.json").read_text())
    assert [finding["name"] for finding in results["findings"]] == ["changes", "compositions", "cancellation"]
    assert outcome.table("changes").value("all", "feed-forward") > 0
    kinds = outcome.table("amplified")
    assert sum(kinds.value(kind, "all") for kind in kinds.rows) == pytest.approx(100)
    assert "times the plain forward pass" in outcome.facts["cost"] and outcome.facts["cost"] in outcome.ran_on
    page = report.read_text(encoding="utf-8")
    assert "BERTs, RoBERTas and GPT-2s" in page and ".." not in "".join(f.paper + "." for f in outcome.findings)
    assert not any(re.search(r"-\d", finding.measured) for finding in outcome.findings), (
        "a number has a real minus sign"
    )


def test_one_sequence_has_no_cost_to_tell(study: LayerStudy) -> None:
    outcome = run(replace(study, limit=1))
    assert outcome.facts["cost"].startswith("not measured") and "nan" not in outcome.ran_on


def test_decoders_have_half_the_pairs_and_two_stacks_are_refused() -> None:
    assert pairs_of("decoder", 4).sum() == 10 and pairs_of("encoder", 4).sum() == 16
    assert "4,096 pairs" in estimate(2, 64, "encoder") and "2,080 pairs" in estimate(2, 64, "decoder")
    assert "about 32 " in estimate(2, 64, "encoder") and "about 16 " in estimate(2, 64, "decoder")
    with pytest.raises(InputError, match="one stack of layers"):
        LayerStudy(Lens(tiny.make("t5"), tiny.tokenizer_for("t5")))
    with pytest.raises(InputError, match="no tokenizer"):
        LayerStudy(Lens(tiny.make("bert")))


def test_spearman_has_mean_ranks() -> None:
    generator = np.random.default_rng(0)
    x, y = generator.integers(0, 4, 50).astype(float), generator.integers(0, 4, 50).astype(float)
    assert spearman(x, y) == pytest.approx(stats.spearmanr(x, y).statistic)
    assert np.isnan(spearman(np.ones(3), np.arange(3.0)))
