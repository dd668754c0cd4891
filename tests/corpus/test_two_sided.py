"""Encoder-decoder models: all their sites are counted, cross-attention included."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from normlens.corpus.run import all_sequences
from normlens.corpus.sequences import Categories
from normlens.errors import InputError
from normlens.measures.table import BLOCK_MAPS

from ..alignment.models_for_tests import SENTENCES, lens
from ..reference.corpus_statistics import slow_two_sided
from .conftest import same, tiny_bert, tiny_tokenizer


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("pairs") / "pairs.jsonl"
    rows = [{"en": en, "fr": fr} for en, fr in [*SENTENCES, *(pair[::-1] for pair in SENTENCES)]]
    path.write_text("\n".join(json.dumps(row) for row in rows))
    return path


COLUMNS = {"text_column": "en", "target_column": "fr"}


@pytest.mark.parametrize("family", ["marian", "t5"])
def test_numbers_agree_with_slow_loops(source: Path, tmp_path: Path, family: str) -> None:
    model = lens(family)
    found = model.corpus(source, tmp_path / "out", per_token=True, sample=10**6, **COLUMNS)
    items = list(all_sequences(model, source, **COLUMNS))
    names = Categories.of(model.tokenizer).names
    assert len(items) == found.manifest["counts"]["sequences"] == 2 * len(SENTENCES)
    assert set(found.statistics["site"]) == {"encoder", "decoder", "cross"}
    slow = slow_two_sided(model, items, BLOCK_MAPS)
    keys = ["site", "quantity", "layer", "head", "category", "over"]
    table = found.statistics.pivot(index=keys, columns="statistic", values="value").sort_index()
    checks = {"count": len, "mean": np.mean, "sd": np.std, "min": np.min, "max": np.max}
    compared = 0
    for over in ("values", "sequences"):
        for (kind, quantity, layer, head, category), numbers in slow[over].items():
            where = (kind, quantity, layer, pd.NA if head is None else head, names[category], over)
            if where not in table.index:
                assert not np.any(numbers), "a category that never occurs takes no weight"
                continue
            for statistic, function in checks.items():
                least = 1e-5 if statistic == "sd" else 1e-6  # of float32
                assert table.loc[where, statistic] == pytest.approx(function(numbers), rel=1e-4, abs=least), where
            compared += 1
    assert compared > 500
    assert "cross" not in set(found.relative["site"]), "offsets mean something within one text only"
    crossing = found.tokens[found.tokens["site"] == "cross"]
    by_key = crossing["alpha"].notna()
    layers = crossing["layer"].nunique()
    assert by_key.sum() == layers * sum(len(item.ids) for item in items)
    assert (~by_key).sum() == layers * sum(len(item.target.ids) for item in items)
    assert crossing["mixing_attn_n"].isna().all() and (crossing["mixing_attnres_n"].notna() == ~by_key).all()


@pytest.mark.parametrize("options", [{"workers": 2}])
def test_workers_do_not_show(source: Path, tmp_path: Path, options: dict[str, int]) -> None:
    model = lens("marian")
    one = model.corpus(source, tmp_path / "one", per_token=True, **COLUMNS)
    other = model.corpus(source, tmp_path / "other", per_token=True, **COLUMNS, **options)
    same(one, other)
    pd.testing.assert_frame_equal(one.tokens, other.tokens, rtol=1e-9)


def test_a_target_belongs_to_two_sides(source: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="--target-column"):
        lens("marian").corpus(source, tmp_path / "out", text_column="en")
    from normlens.lens import Lens

    bert = Lens(tiny_bert(), tiny_tokenizer(), name="tiny")
    with pytest.raises(InputError, match="only an encoder-decoder model"):
        bert.corpus(source, tmp_path / "out", **COLUMNS)
    with pytest.raises(InputError, match="drop --pairs"):
        lens("marian").corpus(source, tmp_path / "out", pairs=True, **COLUMNS)
