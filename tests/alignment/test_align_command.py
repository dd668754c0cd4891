from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from normlens import lens as lens_module
from normlens.alignment.formats import read_alignments
from normlens.alignment.layer_choice import Agreement
from normlens.cli import line_output
from normlens.cli.commands import align as command
from normlens.cli.commands.align import align
from normlens.cli.groups import spread
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
    app.command()(spread(align))
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


def test_a_choice_of_layers_is_saved_and_taken_over(text: list[str], tmp_path: Path) -> None:
    choice = str(tmp_path / "choice.json")
    _, out, _ = run(*text, "--save-choice", choice)
    _, again, notes = run(*text, "--layers-from", choice)
    assert again == out and "agreement" not in notes
    code, _, message = run(*text, "--save-choice", choice)
    assert code == 2 and "--overwrite" in message


@pytest.mark.parametrize("number", ["1e999", "-1e999", "NaN", "9" * 5000, '"x"', "null", "[]", "{}", "-1", "0", "99"])
def test_a_choice_with_numbers_that_are_none(number: str, text: list[str], tmp_path: Path) -> None:
    choice = tmp_path / "choice.json"
    run(*text, "--save-choice", str(choice))
    whole = choice.read_text()
    changed = re.sub(r'("layers":\s*\{\s*"forward":\s*\[)[^]]*', rf"\g<1>{number}", whole)
    assert changed != whole
    choice.write_text(changed)
    code, _, message = run(*text, "--layers-from", str(choice))
    assert code == 2 and message


def test_a_page_shows_one_pair(text: list[str], tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    run(*text, "--page", str(page), "--page-line", "2")
    assert "grande" in page.read_text(encoding="utf-8")
    assert "--overwrite" in run(*text, "--page", str(page))[2]
    assert "no line 99" in run(*text, "--page", str(page), "--overwrite", "--page-line", "99")[2]


def test_confidence_is_written_after_each_link(text: list[str]) -> None:
    _, sure, _ = run(*text, "--confidence")
    _, plain, _ = run(*text, "--scores")
    for one, other in zip(sure.split(), plain.split(), strict=True):
        assert one.split(":")[0] == other.split(":")[0]
        share = float(other.split(":")[1])
        assert float(one.split(":")[1]) == pytest.approx(1 / (1 + ((1 - share) / share) ** 2 / 4.4817), abs=1e-3)


def test_talp_marks_what_only_one_direction_has(text: list[str]) -> None:
    _, both, _ = run(*text, "--reverse-model", "1", "--symmetrize", "intersection")
    _, all_links, _ = run(*text, "--reverse-model", "1", "--symmetrize", "union", "--talp")
    for one, other in zip(both.splitlines(), all_links.splitlines(), strict=True):
        assert sorted(one.split()) == sorted(link for link in other.split() if "-" in link)
    assert "p" in all_links


@pytest.mark.parametrize("stop", [1, 3, 6])
def test_an_interrupted_run_goes_on_where_it_stopped(
    text: list[str], tmp_path: Path, stop: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "links"
    monkeypatch.setattr(Agreement, "auto", lambda self, setting: (1, 2))
    monkeypatch.setattr(line_output, "WINDOW", 2)
    monkeypatch.setattr(line_output, "SAVE_EVERY", 0.0)
    run(*text, "--out", str(tmp_path / "whole"))
    record = json.loads((tmp_path / "whole.run.json").read_text())
    assert record["choices"]["measure"] == "attn_n" and record["models"]["forward"]["class"] == "MarianMTModel"

    line, written = command.LineStyle.line, []

    def interrupted(*arguments: object) -> str:
        written.append(line(*arguments))  # type: ignore[arg-type]
        if len(written) > stop:
            raise InputError("stopped")
        return written[-1]

    with monkeypatch.context() as patched:
        patched.setattr(command.LineStyle, "line", interrupted)
        assert run(*text, "--out", str(out))[0] == 2
    assert not out.exists(), "an output is there whole or not at all"
    with (tmp_path / "links.unfinished").open("ab") as file:
        file.write(b"0-")  # half a line
    code, _, message = run(*text, "--out", str(out))
    assert code == 2 and "--resume" in message and "--overwrite" in message
    monkeypatch.setattr(Agreement, "auto", lambda self, setting: (3,))  # a new choice would be another one
    written.clear()
    with monkeypatch.context() as patched:
        patched.setattr(command.LineStyle, "line", lambda *a: written.append(line(*a)) or written[-1])
        run(*text, "--out", str(out), "--resume")
    assert len(written) == 7 - stop // 2 * 2  # what was durable was not done again
    assert out.read_bytes() == (tmp_path / "whole").read_bytes()
    assert json.loads((tmp_path / "links.run.json").read_text()) == record
    assert not (tmp_path / "links.unfinished").exists()
    _, _, notes = run(*text, "--out", str(out), "--resume")
    assert "whole already" in notes


@pytest.mark.parametrize("how", ["--overwrite", "--resume"])
def test_two_runs_do_not_write_one_output(
    how: str, text: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, said, line = tmp_path / "links", [], command.LineStyle.line

    def other_run(*arguments: object) -> str:
        if not said:
            said.append("")  # the other run does not start a third one
            said.append(run(*text, "--out", str(out), how)[2])
        return line(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(command.LineStyle, "line", other_run)
    assert run(*text, "--out", str(out))[0] == 0
    assert "is locked by another normlens process" in said[1] and str(out) in said[1]
    assert out.read_text() == run(*text)[1] and not (tmp_path / "links.unfinished").exists()


def test_what_was_written_meanwhile_is_not_replaced(
    text: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "links"
    monkeypatch.setattr(lens_module, "load", lambda name: out.write_text("mine") and lens("marian", seed=int(name)))
    code, _, message = run(*text, "--out", str(out))
    assert code == 2 and "exists; choose another path" in message and out.read_text() == "mine"


@pytest.mark.parametrize("name", ["links", "links.unfinished", "links.run.json", "missing/links"])
def test_lines_are_not_begun_where_they_cannot_end(name: str, text: list[str], tmp_path: Path) -> None:
    out, reason = tmp_path / "links", "is a folder, not a file"
    if name == "missing/links":
        out, reason = tmp_path / name, "in an existing folder"
    else:
        (tmp_path / name).mkdir()
    code, _, message = run(*text, "--out", str(out), "--overwrite")
    assert code == 2 and reason in message and not out.is_file()


def test_a_run_is_not_resumed_as_another(text: list[str], tmp_path: Path) -> None:
    out = ["--out", str(tmp_path / "links")]
    run(*text, *out)
    code, _, message = run(*text, *out, "--resume", "--setting", "awo")
    assert code == 2 and "choices was" in message
    record, source = tmp_path / "links.run.json", tmp_path / "source"
    content, sentences = record.read_text(), source.read_text()
    source.write_text(sentences.replace("house", "mouse"))
    assert "inputs was" in run(*text, *out, "--resume")[2]
    source.write_text(sentences)
    record.write_text(content.replace('"lines": 7', '"lines": 8'))
    assert "was changed or damaged" in run(*text, *out, "--resume")[2]
    record.write_text(content)
    (tmp_path / "links").write_text("0-0\n" * 7)
    assert "was changed or damaged" in run(*text, *out, "--resume")[2]
    record.unlink()
    assert "cannot be resumed" in run(*text, *out, "--resume")[2]
    assert "--out" in run(*text, "--resume")[2]


def test_nothing_is_overwritten_unasked(text: list[str], tmp_path: Path) -> None:
    source, out = tmp_path / "source", tmp_path / "links"
    before = source.read_bytes()
    for flags in ([], ["--overwrite"], ["--resume"]):
        code, _, message = run(*text, "--out", str(source), *flags)
        assert code == 2 and "is an input of this run" in message and source.read_bytes() == before
    out.write_text("a thesis")
    code, _, message = run(*text, "--out", str(out))
    assert code == 2 and "--overwrite" in message and out.read_text() == "a thesis"
    run(*text, "--out", str(out), "--overwrite")
    assert len(out.read_text().splitlines()) == 7


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
    _, own, _ = run(*text, "--extract", "argmax")
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
    from normlens.alignment.parallel_files import read_parallel
    from normlens.alignment.scoring import corpus_counts

    monkeypatch.setenv("NORMLENS_CACHE", str(tmp_path))
    folder = GOLD / "hansards-en-fr"
    gold = read_alignments(folder / "alignment.talp", one_based=True).lines
    there, back = normlens.load(MODELS / "opus-mt-en-fr"), normlens.load(MODELS / "opus-mt-fr-en")
    english, french = folder / "test.en", folder / "test.fr"
    forward = [r.links for r in normlens.Aligner(there).align(read_parallel(english, french))]
    plain = normlens.Aligner(back, extract="argmax")
    reverse = [swap(r.links) for r in plain.align(read_parallel(french, english))]
    both = [r.links for r in normlens.Aligner(there, back).align(read_parallel(english, french))]
    assert corpus_counts(forward, gold).aer < 0.045
    assert corpus_counts(reverse, gold).aer < 0.115
    assert corpus_counts(both, gold).aer < 0.035


def test_a_page_shows_one_pair_with_its_reference_framed(text: list[str], tmp_path: Path) -> None:
    page, gold = tmp_path / "pair.html", tmp_path / "gold"
    gold.write_text("1-1\n1-1 2p2\n")
    _, links, notes = run(*text, "--page", str(page), "--page-line", "2", "--gold", str(gold), "--gold-one-based")
    assert len(links.splitlines()) == 7 and f"wrote {page}" in notes
    found = re.search(r'id="normlens-data">(.*?)</script>', page.read_text(encoding="utf-8"), re.S)
    assert found is not None
    data = json.loads(found[1])
    assert data["opens"] == "alignment"
    assert data["alignment"]["gold"]["sure"] == [[0, 0]] and data["alignment"]["gold"]["possible"] == [[1, 1]]
    assert {f"{s}-{t}" for s, t, _ in data["alignment"]["links"]} == set(links.splitlines()[1].split())
    # What exists is kept, a finished run can still get its page, and what is asked wrongly is one sentence.
    assert "pass --overwrite" in run(*text, "--page", str(page))[2]
    out = tmp_path / "links"
    run(*text, "--out", str(out))
    _, _, notes = run(*text, "--out", str(out), "--resume", "--page", str(tmp_path / "again.html"))
    assert "is whole already" in notes and (tmp_path / "again.html").exists()
    assert "the input has no line 99" in run(*text, "--page", str(tmp_path / "x.html"), "--page-line", "99")[2]
    assert "give --page" in run(*text, "--gold", str(gold))[2]
    assert (
        "has 2 lines, the page shows pair 3"
        in run(*text, "--page", str(tmp_path / "x.html"), "--page-line", "3", "--gold", str(gold))[2]
    )
    assert "got a pipe" in run(*text[:3], "/dev/null", *text[4:], "--page", str(tmp_path / "x.html"))[2]
    assert not (tmp_path / "x.html").exists()
