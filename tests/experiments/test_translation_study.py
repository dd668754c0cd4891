"""Every error rate is what the aligner and the scorer give one by one."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import spearmanr

from normlens.alignment.aligner import Aligner
from normlens.alignment.formats import format_line, read_alignments
from normlens.alignment.layer_choice import SETTINGS
from normlens.alignment.scoring import corpus_counts
from normlens.errors import InputError
from normlens.experiments.translation_study import BY_LAYER, TranslationStudy
from tests.alignment.models_for_tests import SENTENCES, lens


def test_every_number_is_what_the_aligner_and_the_scorer_give(pair_files: dict[str, Path], tmp_path: Path) -> None:
    mine = lens("marian")
    gold = read_alignments(pair_files["gold"], one_based=True).lines
    weak = [frozenset({(0, 0)})] * len(SENTENCES)
    (tmp_path / "weak").write_text("".join(format_line(links) + "\n" for links in weak))
    others = {"weak": (tmp_path / "weak", True)}
    study = TranslationStudy(mine, **pair_files, gold_one_based=True, others=others, batch_tokens=40)
    errors = study.errors()

    def aligned(**options: object) -> float:
        rules = {"combine": "mean", "extract": "argmax", **options}  # the paper's
        links = [r.links for r in Aligner(mine, **rules).align(SENTENCES)]  # type: ignore[arg-type]
        return 100 * corpus_counts(links, gold).aer

    for setting in SETTINGS:
        for what, measure in BY_LAYER.items():
            expected = [aligned(setting=setting, measure=measure, layer=layer) for layer in (1, 2, 3)]
            assert errors.by_layer[setting][what] == pytest.approx(expected)
        chosen = errors.chosen[setting]
        assert chosen.auto == pytest.approx(aligned(setting=setting, layer=chosen.auto_layers))
        assert chosen.best == pytest.approx(aligned(setting=setting, layer=chosen.best_layer))
        assert chosen.auto == pytest.approx(aligned(setting=setting))
    assert errors.by_head["awi"]["norms"][0, 1] == 0
    assert errors.head_error("awi", 2, 4) == pytest.approx(aligned(measure="af_norm", head=4, layer=2))
    assert errors.by_head["awo"]["weights"][0, 2] == pytest.approx(
        aligned(measure="alpha", head=3, layer=1, setting="awo")
    )
    assert study.other_errors()["weak"] == pytest.approx(100 * corpus_counts(weak, gold).aer)
    rho = spearmanr(errors.by_head["awi"]["norms"].ravel(), errors.mean_norm.ravel()).statistic
    assert errors.spearman("awi") == pytest.approx(rho)
    encoder, device = study.mapper.encoder, study.mapper.device
    norms = [
        mine.analyze_inputs(encoder.batch([encoder(*pair)], device), measures=["af_norm"])[0].site("cross")["af_norm"]
        for pair in SENTENCES
    ]
    cells = np.concatenate([one.values.reshape(*one.shape[:2], -1) for one in norms], axis=-1)
    np.testing.assert_allclose(errors.mean_norm, cells.mean(-1), rtol=1e-4)
    layer, head = errors.largest_norm_head
    assert errors.mean_norm[layer - 1, head - 1] == errors.mean_norm.max()
    assert 0 < errors.max_proof_error < 1e-4


def test_the_first_pairs_are_measured_as_if_there_were_no_others(pair_files: dict[str, Path]) -> None:
    first = TranslationStudy(lens("marian"), **pair_files, gold_one_based=True, limit=2)
    for path in pair_files.values():
        path.write_text("".join(path.read_text(encoding="utf-8").splitlines(keepends=True)[:2]), encoding="utf-8")
    alone = dataclasses.replace(first, limit=None)
    for setting in SETTINGS:
        np.testing.assert_array_equal(
            first.errors().by_layer[setting]["norms"], alone.errors().by_layer[setting]["norms"]
        )


@pytest.mark.parametrize("limit", [None, 3])
def test_gold_that_does_not_fit_is_refused(pair_files: dict[str, Path], limit: int | None) -> None:
    pair_files["gold"].write_text("1-1\n9-9\n\n\n\n")
    with pytest.raises(InputError, match="line 2 links"):
        TranslationStudy(lens("marian"), **pair_files, limit=limit).errors()
    pair_files["gold"].write_text("\n\n\n\n\n")
    with pytest.raises(InputError, match="no sure link"):
        TranslationStudy(lens("marian"), **pair_files, limit=limit).errors()
