from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from normlens import lens as lens_module
from normlens.alignment.aligner import Aligner  # here, so that it never meets the `load` of a fixture
from normlens.alignment.markup import read_markup
from normlens.alignment.translating import Translator
from normlens.cli import line_output
from normlens.cli.commands import project as command
from normlens.cli.commands.project import project
from normlens.cli.groups import spread
from normlens.errors import InputError
from tests.alignment.data import MODELS, needs_models
from tests.alignment.models_for_tests import lens

MARKED = [
    ("the <b>little <i>house</i></b> stands on the hill<br/>", "la petite maison est sur la colline"),
    ("a <a href='x'>big</a> house", "une grande maison"),
    ("a <b>broken line", "une maison"),
    ("", "une maison"),
    ("the garden", "un jardin"),
]


@pytest.fixture
def text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    monkeypatch.setenv("NORMLENS_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(lens_module, "load", lambda name: lens("marian", seed=int(name)))
    for side, name in enumerate(("source", "target")):
        (tmp_path / name).write_text("".join(pair[side] + "\n" for pair in MARKED), encoding="utf-8")
    return ["--model", "0", "--source", str(tmp_path / "source")]


def run(*arguments: str) -> tuple[int, str, str]:
    app = typer.Typer(rich_markup_mode=None)
    app.command()(spread(project))
    result = CliRunner().invoke(app, list(arguments))
    if isinstance(result.exception, InputError):
        return 2, result.stdout, str(result.exception)
    if result.exit_code == 2:  # typer's own check of an option
        return 2, result.stdout, result.stderr
    assert result.exit_code == 0, result.exception
    return 0, result.stdout, result.stderr


def test_every_line_comes_out_well_formed_and_what_is_lost_is_said(text: list[str], tmp_path: Path) -> None:
    target = ["--target", str(tmp_path / "target"), "--format", "html"]
    _, out, notes = run(*text, *target, "--reverse-model", "1")
    lines = out.splitlines()
    assert [read_markup(line, "html").text for line in lines] == [pair[1] for pair in MARKED]
    assert sorted(mark.name for mark in read_markup(lines[0], "html").marks) == ["b", "br", "i"]
    assert "sentence 3 is written without marks: <b> is not closed" in notes
    assert "sentence 4 is written without marks: an empty side" in notes
    _, out, _ = run(*text, *target, "--json", "--pieces", "many")
    found = [json.loads(line) for line in out.splitlines()]
    assert {span["label"] for span in found[0]["spans"]} == {"b", "i", "br"} and "problem" in found[2]
    assert all(0 <= span["score"] <= 1 for line in found for span in line["spans"])


def test_the_model_translates_by_itself(text: list[str]) -> None:
    _, out, notes = run(*text, "--translate", "--format", "html")
    assert len(out.splitlines()) == len(MARKED) and "project|setting:awi" in notes
    assert out == run(*text, "--translate", "--format", "html")[1]


def test_labels_in_columns_and_in_json(text: list[str], tmp_path: Path) -> None:
    (tmp_path / "columns").write_text("the O\nlittle B-ADJ\nhouse I-ADJ\n\na O\nhouse B-N\n", encoding="utf-8")
    (tmp_path / "lines").write_text("la petite maison\nune maison\n", encoding="utf-8")
    source = ["--model", "0", "--source", str(tmp_path / "columns"), "--target", str(tmp_path / "lines")]
    _, out, _ = run(*source, "--format", "conll")
    blocks = out.rstrip("\n").split("\n\n")
    assert [[line.split("\t")[0] for line in block.splitlines()] for block in blocks] == [
        ["la", "petite", "maison"], ["une", "maison"],
    ]  # fmt: skip
    record = {"text": "the little house", "target": "la petite maison", "spans": [
        {"start": 0, "end": 10, "label": "a"}, {"start": 4, "end": 16, "label": "b"}]}  # fmt: skip
    (tmp_path / "json").write_text(json.dumps(record) + "\n", encoding="utf-8")
    _, out, _ = run("--model", "0", "--source", str(tmp_path / "json"), "--format", "json")
    (line,) = map(json.loads, out.splitlines())
    assert sorted(span["label"] for span in line["spans"] + line["unplaced"]) == ["a", "b"]


def test_an_interrupted_run_goes_on_where_it_stopped(
    text: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(line_output, "WINDOW", 2)
    monkeypatch.setattr(line_output, "SAVE_EVERY", 0.0)
    asked = [*text, "--target", str(tmp_path / "target"), "--format", "html"]
    run(*asked, "--out", str(tmp_path / "whole"))
    line, written = command._line, []

    def interrupted(*arguments: object) -> str:
        written.append(line(*arguments))  # type: ignore[arg-type]
        if len(written) > 3:
            raise InputError("stopped")
        return written[-1]

    with monkeypatch.context() as patched:
        patched.setattr(command, "_line", interrupted)
        assert run(*asked, "--out", str(tmp_path / "out"))[0] == 2
    assert not (tmp_path / "out").exists()
    assert "format was" in run(*asked, "--out", str(tmp_path / "out"), "--resume", "--pieces", "many")[2]
    run(*asked, "--out", str(tmp_path / "out"), "--resume")
    assert (tmp_path / "out").read_bytes() == (tmp_path / "whole").read_bytes()
    assert "whole already" in run(*asked, "--out", str(tmp_path / "out"), "--resume")[2]


def test_wrong_questions_are_answered_with_what_to_do(text: list[str], tmp_path: Path) -> None:
    target = ["--target", str(tmp_path / "target")]
    for arguments, message in (
        (["--format", "rtf", *target], "'html', 'xml', 'markdown', 'json', 'conll'"),
        (["--format", "html"], "--translate"),
        (["--format", "html", *target, "--translate"], "leave out"),
        (["--format", "html", *target, "--resume"], "--out"),
        (["--format", "html", "--target", str(tmp_path / "nothing")], "does not"),
        (["--format", "html", *target, "--out", str(tmp_path / "source")], "is an input of this run"),
        (["--format", "html", *target, "--words", "verses"], "'text', 'spaces'"),
    ):
        code, out, said = run(*text, *arguments)
        assert code == 2 and out == "" and message in said, (arguments, said)
    (tmp_path / "target").write_text("une\n")
    assert "5 sentences" in run(*text, "--format", "html", *target)[2]
    (tmp_path / "source").write_text('{"text": "a house", "spans": []}\n')
    assert "has no translation" in run(*text, "--format", "json")[2]


@needs_models
@pytest.mark.real
def test_tags_follow_reordered_words_and_leave_punctuation_alone() -> None:
    """Sentences of our own, with the markup that their translation should have."""
    aligner = Aligner(MODELS / "opus-mt-en-fr", reverse=MODELS / "opus-mt-fr-en", layer=[1, 2, 3, 4])
    for source, expected in (
        ("The <b>little house</b> stands on <a href='x'>the hill</a>.",
         "La <b>petite maison</b> se trouve sur <a href='x'>la colline</a>."),
        ("I do <i>not</i> <b>know</b> the <em>European Commission</em><br/>.",
         "Je ne <b>connais</b> <i>pas</i> la <em>Commission européenne</em><br/>."),
        ("He bought a <b>red</b> <i>car</i>, not a blue one.",
         "Il a acheté une <i>voiture</i> <b>rouge</b>, pas une bleue."),
        ('She answered: "<q>It is <b>too late</b></q>"!', "Elle a répondu : « <q>Il est <b>trop tard</b></q> » !"),
    ):  # fmt: skip
        assert aligner.project_markup(source, read_markup(expected, "html").text) == expected


def test_a_page_shows_one_sentence_with_its_marks(
    text: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = [*text, "--target", str(tmp_path / "target"), "--format", "html"]
    page, out = tmp_path / "page.html", tmp_path / "out"
    _, _, notes = run(*asked, "--out", str(out), "--page", str(page), "--page-line", "2")
    assert f"wrote {page}" in notes
    found = re.search(r'id="normlens-data">(.*?)</script>', page.read_text(encoding="utf-8"), re.S)
    assert found is not None
    data = json.loads(found[1])
    assert data["title"] == "a big house → une grande maison" and data["opens"] == "alignment"
    assert [mark["name"] for mark in data["alignment"]["marks"]["marks"]] == ["a"]
    # What exists is kept, a finished run can still get its page, and what is asked wrongly is one sentence.
    assert "pass --overwrite" in run(*asked, "--page", str(page))[2]
    again = tmp_path / "again.html"
    assert "wrote" in run(*asked, "--out", str(out), "--resume", "--page", str(again), "--page-line", "2")[2]
    assert again.read_bytes() == page.read_bytes()
    for arguments, message in (
        (["--page-line", "2"], "give --page"),
        (["--page", str(tmp_path / "x"), "--page-line", "99"], "no sentence 99"),
        (["--page", str(tmp_path / "x"), "--page-line", "3"], "<b> is not"),
        (["--page", str(tmp_path / "source")], "is an input of this run"),
    ):
        code, _, said = run(*asked, *arguments)
        assert code == 2 and message in said
    monkeypatch.setattr(Translator, "__call__", lambda self, texts: ["une maison" for _ in texts])
    run(*text, "--translate", "--format", "html", "--page", str(tmp_path / "own.html"))
    assert "on the hill → une maison" in (tmp_path / "own.html").read_text(encoding="utf-8")


def test_crossing_spans_are_shown_one_by_one(text: list[str], tmp_path: Path) -> None:
    record = {"text": "the little house", "target": "la petite maison", "spans": [
        {"start": 0, "end": 10, "label": "a"}, {"start": 4, "end": 16, "label": "b"}]}  # fmt: skip
    (tmp_path / "json").write_text(json.dumps(record) + "\n", encoding="utf-8")
    page = tmp_path / "page.html"
    run("--model", "0", "--source", str(tmp_path / "json"), "--format", "json", "--page", str(page))
    found = re.search(r'id="normlens-data">(.*?)</script>', page.read_text(encoding="utf-8"), re.S)
    assert found is not None and len(json.loads(found[1])["alignment"]["marks"]["texts"]) == 2
