"""The translation experiment gives the same kind of outcome and report as the others."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import typer
from typer.testing import CliRunner

from normlens.alignment.formats import format_line, read_alignments
from normlens.cli.commands import reproduce as command
from normlens.cli.groups import spread
from normlens.errors import InputError
from normlens.experiments.kobayashi2020_nmt import run
from normlens.experiments.translation_study import TranslationStudy
from tests.alignment.models_for_tests import lens


def test_tables_findings_and_report(pair_files: dict[str, Path], tmp_path: Path) -> None:
    study = TranslationStudy(lens("marian"), **pair_files, gold_one_based=True, gradients=("ding",))
    outcome, errors = run(study), study.errors()
    by_layer = outcome.table("aer-by-layer")
    for setting in ("awi", "awo"):
        values = errors.by_layer[setting]["norms"]
        assert [by_layer.value(f"{setting} norms", f"layer {layer}") for layer in (1, 2, 3)] == list(values)
        assert by_layer.value(f"{setting} norms", "best") == values.min()
        heads = outcome.table(f"heads-{setting}-weights")
        assert heads.value("2", "3") == errors.by_head[setting]["weights"][1, 2]
    best = by_layer.at("awi norms", "best")
    assert best is not None and [p.value for p in best.published] == [24.98]
    assert best.to_dict()["published"][0]["verdict"] == "another model"  # the authors' models were not released
    first = by_layer.at("awi norms", "layer 1")
    assert first is not None and first.published == ()  # three layers have no counterpart among six
    found = {finding.name: finding for finding in outcome.findings}
    awi = errors.by_layer["awi"]
    assert found["best_awi"].holds == (awi["norms"].min().round(1) < awi["weights"].min().round(1))
    assert found["early_and_late"].values["awi"] == 1 + np.argmin(awi["norms"])
    assert "29.77 by weights" in found["best_awi"].paper
    folder = outcome.write(tmp_path / "out").parent
    pictures = {path.stem for path in (folder / "figures").glob("*.png")}
    assert {"aer-by-layer", "heads", "figure-07"} <= pictures
    assert json.loads((folder / "results.json").read_text())["tables"]["other-aligners"]["numbers"][0]["row"] == "ding"
    text = (folder / "report.html").read_text(encoding="utf-8")
    assert "normlens reproduce kobayashi2020-nmt" in text and "GIZA++ 21.0" in text and "not released" in text


def test_the_command_hands_over_every_option(
    pair_files: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(command, "open_lens", lambda name: lens("marian"))
    app = typer.Typer()
    app.command()(spread(command.reproduce))
    truth = read_alignments(pair_files["gold"], one_based=True).lines
    (tmp_path / "truth").write_text("".join(format_line(line) + "\n" for line in truth))
    texts = [text for name, path in pair_files.items() for text in (f"--{name}", str(path))]
    truth_file = f"={tmp_path / 'truth'}"
    arguments = [
        "kobayashi2020-nmt", "--model", "tiny", *texts, "--gold-one-based", "--out", str(tmp_path / "out"),
        "--other", f"one{truth_file}", "--other-swapped", f"two{truth_file}", "--gradient", "li", "--gradient-pairs", "2",
    ]  # fmt: skip
    result = CliRunner().invoke(app, [*arguments, "--json"])
    assert result.exit_code == 0, result.exception
    numbers = json.loads(result.stdout)["tables"]["other-aligners"]["numbers"]
    found = {(number["row"], number["column"]): number["measured"] for number in numbers}
    assert found["one", "aer"] == 0 and found["two", "aer"] > 0
    assert found["li", "pairs"] == 2
    assert (tmp_path / "out" / "results.json").exists() and (tmp_path / "out" / "report.html").exists()
    shown = CliRunner().invoke(app, arguments, env={"COLUMNS": "200"})
    assert shown.exit_code == 0 and "claims hold" in shown.output and "not in this model" in shown.output
    wrong = CliRunner().invoke(app, [*arguments, "--other", "nothing"])
    assert isinstance(wrong.exception, InputError) and "NAME=FILE" in str(wrong.exception)
