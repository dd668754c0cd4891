from __future__ import annotations

import json
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from normlens import lens as lens_module
from normlens.alignment.formats import read_alignments
from normlens.alignment.layers import Agreement
from normlens.cli.align import align
from normlens.errors import InputError
from tests.alignment.data import GOLD, MODELS, needs_gold, needs_models
from tests.alignment.models_for_tests import SENTENCES, lens


@pytest.fixture
def text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    monkeypatch.setenv("NORMLENS_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(lens_module, "load", lambda name: lens("marian", seed=int(name)))
    for side, name in enumerate(("source", "target")):
        lines = [pair[side] for pair in [*SENTENCES, ("", "une maison"), SENTENCES[1]]]
        (tmp_path / name).write_text("".join(line + "\n" for line in lines), encoding="utf-8")
    return ["--model", "0", "--source", str(tmp_path / "source"), "--target", str(tmp_path / "target")]


def run(*arguments: str) -> tuple[int, str, str]:
    app = typer.Typer()
    app.command()(align)
    result = CliRunner().invoke(app, list(arguments))
    if isinstance(result.exception, InputError):
        return 2, result.stdout, str(result.exception)
    assert result.exit_code == 0, result.exception
    return 0, result.stdout, result.stderr


def test_one_line_per_pair_and_the_layers_are_reported(text: list[str], tmp_path: Path) -> None:
    _, out, notes = run(*text)
    assert len(out.splitlines()) == 7 and out.splitlines()[5] == ""
    assert "layer  awi    awo" in notes and "line 6 has no links: an empty side" in notes
    assert "1 pairs were left without links" in notes and "align|setting:awi|measure:attn_n|layer:auto(" in notes
    (tmp_path / "zero").write_text(out)
    _, one_based, _ = run(*text, "--one-based", "--scores")
    (tmp_path / "one").write_text(one_based)
    assert ":0." in one_based
    zero, one = read_alignments(tmp_path / "zero"), read_alignments(tmp_path / "one", one_based=True)
    assert zero.lines == one.lines and any(line.sure for line in zero.lines)


def test_json_holds_words_links_and_scores(text: list[str]) -> None:
    _, out, _ = run(*text, "--json", "--reverse-model", "1")
    lines = [json.loads(line) for line in out.splitlines()]
    assert lines[3]["source"] == ["the", "\u200b", "garden"] and lines[5]["problem"] == "an empty side"
    assert all(0 < score <= 1 for line in lines for _, _, score in line["links"])


def test_talp_marks_what_only_one_direction_has(text: list[str]) -> None:
    _, both, _ = run(*text, "--reverse-model", "1", "--symmetrize", "intersection")
    _, all_links, _ = run(*text, "--reverse-model", "1", "--symmetrize", "union", "--talp")
    for one, other in zip(both.splitlines(), all_links.splitlines(), strict=True):
        assert sorted(one.split()) == sorted(link for link in other.split() if "-" in link)
    assert "p" in all_links


@pytest.mark.parametrize("cut", ["", "0-0\n", "whole lines", "half a line"])
def test_an_interrupted_run_goes_on_where_it_stopped(
    text: list[str], tmp_path: Path, cut: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "links"
    monkeypatch.setattr(Agreement, "auto", lambda self, setting: (1, 2))
    run(*text, "--out", str(out))
    whole = out.read_bytes()
    record = json.loads((tmp_path / "links.run.json").read_text())
    assert record["choices"]["measure"] == "attn_n" and record["models"]["forward"]["class"] == "MarianMTModel"
    lines = whole.splitlines(keepends=True)
    kept = {"": b"", "0-0\n": lines[0], "whole lines": b"".join(lines[:3]), "half a line": b"".join(lines[:2]) + b"0-"}
    out.write_bytes(kept[cut])
    monkeypatch.setattr(Agreement, "auto", lambda self, setting: (3,))  # a new choice would be another one
    run(*text, "--out", str(out), "--resume")
    assert out.read_bytes() == whole
    assert json.loads((tmp_path / "links.run.json").read_text()) == record


def test_a_run_is_not_resumed_with_other_settings(text: list[str], tmp_path: Path) -> None:
    out = ["--out", str(tmp_path / "links")]
    run(*text, *out)
    code, _, message = run(*text, *out, "--resume", "--setting", "awo")
    assert code == 2 and "choices was" in message
    (tmp_path / "links.run.json").unlink()
    assert "left its record" in run(*text, *out, "--resume")[2]
    assert "--out" in run(*text, "--resume")[2]


def test_unequal_files_are_an_error_before_anything_is_written(text: list[str], tmp_path: Path) -> None:
    with (tmp_path / "target").open("a") as file:
        file.write("encore\n")
    code, out, message = run(*text)
    assert code == 2 and out == "" and "7 and 8 lines" in message
    (tmp_path / "target").unlink()
    code, out, message = run(*text)
    assert code == 2 and out == "" and "target does not" in message


def test_links_from_a_file_are_symmetrized_with_the_models(text: list[str], tmp_path: Path) -> None:
    _, reverse, _ = run(*text, "--reverse-model", "1", "--symmetrize", "union")
    (tmp_path / "other").write_text(reverse)
    links = ["--reverse-links", str(tmp_path / "other")]
    _, own, _ = run(*text)
    _, met, _ = run(*text, *links, "--symmetrize", "intersection")
    assert met == own  # the union holds the model's own links
    code, _, message = run(*text, *links)
    assert code == 2 and "--symmetrize" in message


@needs_gold
@needs_models
@pytest.mark.real
def test_real_models_reach_the_targets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing here was tuned on these gold alignments: default settings, layers chosen without gold."""
    import normlens
    from normlens.alignment.links import swap
    from normlens.alignment.scoring import corpus_counts
    from normlens.alignment.streams import read_parallel

    monkeypatch.setenv("NORMLENS_CACHE", str(tmp_path))
    folder = GOLD / "hansards-en-fr"
    gold = read_alignments(folder / "alignment.talp", one_based=True).lines
    there, back = normlens.load(MODELS / "opus-mt-en-fr"), normlens.load(MODELS / "opus-mt-fr-en")
    english, french = folder / "test.en", folder / "test.fr"
    forward = [r.links for r in normlens.Aligner(there).align(read_parallel(english, french))]
    reverse = [swap(r.links) for r in normlens.Aligner(back).align(read_parallel(french, english))]
    both = [r.links for r in normlens.Aligner(there, back).align(read_parallel(english, french))]
    assert corpus_counts(forward, gold).aer < 0.115
    assert corpus_counts(reverse, gold).aer < 0.115
    assert corpus_counts(both, gold).aer < 0.040
