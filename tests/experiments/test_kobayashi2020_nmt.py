from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import spearmanr

from normlens.alignment.aligner import Aligner
from normlens.alignment.formats import format_line, read_alignments
from normlens.alignment.scoring import corpus_counts
from normlens.errors import InputError
from normlens.experiments.kobayashi2020_nmt import run
from tests.alignment.models_for_tests import SENTENCES, lens


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Path]:
    monkeypatch.setenv("NORMLENS_CACHE", str(tmp_path / "cache"))
    for side, name in enumerate(("source", "target")):
        (tmp_path / name).write_text("".join(pair[side] + "\n" for pair in SENTENCES), encoding="utf-8")
    # One head's own links, so that heads and layers differ in how far they are from them.
    truth = Aligner(lens("marian"), measure="af_norm", head=2, layer=1).align(SENTENCES)
    (tmp_path / "gold").write_text("".join(format_line(r.links, one_based=True) + " 1p1\n" for r in truth))
    return {name: tmp_path / name for name in ("source", "target", "gold")}


def test_every_number_is_what_the_aligner_and_the_scorer_give(files: dict[str, Path], tmp_path: Path) -> None:
    mine = lens("marian")
    gold = read_alignments(files["gold"], one_based=True).lines
    weak = [frozenset({(0, 0)})] * len(SENTENCES)
    (tmp_path / "weak").write_text("".join(format_line(links) + "\n" for links in weak))
    report = run(
        model=mine, **files, gold_one_based=True, others={"weak": (tmp_path / "weak", True)}, gradients=["ding"],
        figures=tmp_path / "figures", batch_tokens=40,
    )  # fmt: skip

    def aligned(**options: object) -> float:
        links = [r.links for r in Aligner(mine, **options).align(SENTENCES)]  # type: ignore[arg-type]
        return 100 * corpus_counts(links, gold).aer

    for setting in ("awi", "awo"):
        for what, measure in (("weights", "attn_w"), ("norms", "attn_n")):
            expected = [aligned(setting=setting, measure=measure, layer=layer) for layer in (1, 2, 3)]
            assert report.by_layer[setting][what] == pytest.approx(expected)
        chosen = report.automatic[setting]
        assert chosen["auto"] == pytest.approx(aligned(setting=setting, layer=chosen["auto_layers"]))
        assert chosen["best"] == pytest.approx(aligned(setting=setting, layer=chosen["best_layer"]))
        assert chosen["auto"] == pytest.approx(aligned(setting=setting))
    assert report.by_head["awi"]["norms"][0, 1] == 0
    assert report.by_head["awi"]["norms"][1, 3] == pytest.approx(aligned(measure="af_norm", head=4, layer=2))
    assert report.by_head["awo"]["weights"][0, 2] == pytest.approx(
        aligned(measure="alpha", head=3, layer=1, setting="awo")
    )
    assert report.others["weak"] == pytest.approx(100 * corpus_counts(weak, gold).aer)
    rho = spearmanr(report.by_head["awi"]["norms"].ravel(), report.mean_norm.ravel()).statistic
    assert report.spearman("awi") == pytest.approx(rho)
    norms = [
        lens("marian").analyze_inputs(forced, measures=["af_norm"])[0].site("cross")["af_norm"].values
        for forced in _inputs(mine)
    ]
    cells = np.concatenate([one.reshape(*one.shape[:2], -1) for one in norms], axis=-1)
    np.testing.assert_allclose(report.mean_norm, cells.mean(-1), rtol=1e-4)

    written = json.loads((tmp_path / "figures" / "report.json").read_text())
    assert written["published"]["emnlp"]["awi"]["norms"]["best"] == 24.98
    pictures = {path.name for path in (tmp_path / "figures").glob("*.png")}
    assert {"aer-by-layer.png", "heads.png", "figure-07.png"} <= pictures
    assert "published" in report.text() and "weak: AER" in report.text()


def _inputs(mine: object) -> list:
    aligner = Aligner(mine, layer=1)  # type: ignore[arg-type]
    forcing = aligner.forward.forcing
    return [forcing.inputs([forcing(*pair)], aligner.forward.device) for pair in SENTENCES]


def test_gold_that_does_not_fit_is_refused(files: dict[str, Path]) -> None:
    files["gold"].write_text("1-1\n9-9\n\n\n\n")
    with pytest.raises(InputError, match="line 2 links"):
        run(model=lens("marian"), **files)
    files["gold"].write_text("\n\n\n\n\n")
    with pytest.raises(InputError, match="sure gold link"):
        run(model=lens("marian"), **files)


def test_the_command_hands_over_every_option(
    files: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import typer
    from typer.testing import CliRunner

    from normlens.cli import reproduce as command

    monkeypatch.setattr(command, "open_lens", lambda name: lens("marian"))
    app = typer.Typer()
    app.command()(command.reproduce)
    truth = read_alignments(files["gold"], one_based=True).lines
    (tmp_path / "truth").write_text("".join(format_line(line) + "\n" for line in truth))
    texts = [text for name, path in files.items() for text in (f"--{name}", str(path))]
    truth_file = f"={tmp_path / 'truth'}"
    arguments = [
        "kobayashi2020-nmt", "--model", "tiny", *texts, "--gold-one-based", "--out", str(tmp_path / "out"), "--json",
        "--other", f"one{truth_file}", "--other-swapped", f"two{truth_file}", "--gradient", "li", "--gradient-pairs", "2",
    ]  # fmt: skip
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0, result.exception
    found = json.loads(result.stdout)
    assert found["others"]["one"] == 0 and found["others"]["two"] > 0
    assert found["gradients"]["Li et al. 2016"]["pairs"] == 2
    assert (tmp_path / "out" / "report.json").exists()
    wrong = CliRunner().invoke(app, [*arguments, "--other", "nothing"])
    assert isinstance(wrong.exception, InputError) and "NAME=FILE" in str(wrong.exception)
