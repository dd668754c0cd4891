"""The command: what it prints, what it writes, and how it fails."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from normlens.anatomy.loading import default_model
from normlens.cli.main import COMMANDS, main

ROOT = Path(__file__).parent.parent.parent
embedded = pytest.mark.skipif(
    not Path(default_model()).exists(), reason="the embedded model's package is not installed"
)


def shell(*arguments: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> tuple[int, str, str]:
    monkeypatch.setattr(sys, "argv", ["normlens", *arguments])
    with pytest.raises(SystemExit) as stopped:
        main()
    captured = capsys.readouterr()
    return int(stopped.value.code or 0), captured.out, captured.err


@embedded
def test_analyze_prints_tables(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = shell("analyze", "The cat sat on [the] mat.", monkeypatch=monkeypatch, capsys=capsys)
    assert code == 0 and "Mixing ratio by layer" in out and "attnresln_n" in out
    assert "cat" in out and "[" in out  # brackets in a token are no markup
    assert "\x1b" not in out + err and "Loading" not in err  # a pipe gets neither colours nor bars


@embedded
def test_analyze_json_holds_the_numbers(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ("analyze", "The cat sat.", "--measure", "attn_w", "--layer", "2", "--json")
    code, out, _ = shell(*arguments, monkeypatch=monkeypatch, capsys=capsys)
    site = json.loads(out)["sites"]["encoder"]
    assert code == 0 and site["layers"] == [2] and site["query_tokens"][1] == "the"
    for row in site["values"]["attn_w"][0]:
        assert sum(row) == pytest.approx(1, abs=1e-5)


@embedded
def test_analyze_writes_pictures_and_data(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "out"
    arguments = ("analyze", "The cat sat.", "--measure", "attnresln_n", "--layer", "1", "--out", str(folder))
    code, _, _ = shell(*arguments, monkeypatch=monkeypatch, capsys=capsys)
    names = {path.name for path in folder.iterdir()}
    assert code == 0 and {"analysis.zarr", "analysis.csv", "map_attnresln_n.png", "map_attnresln_n.svg"} <= names
    code, _, err = shell(*arguments, monkeypatch=monkeypatch, capsys=capsys)
    assert code == 2 and "exists; choose another path" in err and "--overwrite" in err


@embedded
@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("analyze", ""), "the text is empty"),
        (("analyze", "cat", "--measure", "norm"), "a measure must be one of alpha"),
        (("analyze", "cat", "--layer", "9"), "layers must be among 1 to 6, got 9"),
        (("analyze", "cat", "--target", "Katze"), "target is for encoder-decoder models"),
        (("analyze", "cat", "--model", "/nowhere"), "is not a folder"),
        (("info", "/proc"), "has no config.json"),
        (("analyze", "cat", "--out", "/proc/nowhere"), "/proc/nowhere/analysis.zarr cannot be written"),
    ],
)
def test_a_mistake_is_one_sentence_and_exit_code_2(
    arguments: tuple[str, ...], sentence: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, err = shell(*arguments, monkeypatch=monkeypatch, capsys=capsys)
    assert code == 2 and sentence in err and "Traceback" not in err and out == ""
    assert len(err.strip().splitlines()) == 1 and err.startswith("normlens: ")


@embedded
def test_info_says_what_was_found(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = shell("info", default_model(), "--json", monkeypatch=monkeypatch, capsys=capsys)
    found = json.loads(out)
    assert code == 0 and found["family"] == "bert" and len(found["sites"]) == 6
    assert {site["norm"] for site in found["sites"]} == {"post"} and {site["heads"] for site in found["sites"]} == {12}


def test_every_command_is_documented() -> None:
    page = (ROOT / "docs" / "commands.md").read_text()
    assert [name for name in COMMANDS if f"normlens {name}" not in page] == []
    assert "docs/commands.md" in (ROOT / "README.md").read_text()


def test_the_page_of_commands_is_what_the_commands_say() -> None:
    environment = {**os.environ, "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"}
    code = "import build_commands as b; assert b.page() == b.PAGE.read_text(), 'run python docs/build_commands.py'"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT / "docs", env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
