"""The command."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from normlens.cli.main import build
from normlens.errors import InputError

from .conftest import paragraphs, tiny_bert, tiny_tokenizer


@pytest.fixture(scope="module")
def model_folder(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    tiny_bert().save_pretrained(folder)
    tiny_tokenizer().save_pretrained(folder)
    return folder


def test_the_command_counts_prints_and_is_read_back(model_folder: Path, text_file: Path, tmp_path: Path) -> None:
    arguments = [
        "corpus", str(text_file), "--model", str(model_folder), "--out", str(tmp_path / "out"), "--pairs",
        "--frequency", "corpus", "--category", "article=the|a", "--limit", "10",
    ]  # fmt: skip
    done = CliRunner().invoke(build(), arguments, catch_exceptions=False)
    assert done.exit_code == 0, done.output
    assert "10 sequences" in done.output and "frequency_rank" in done.output and "article" in done.output
    again = CliRunner().invoke(build(), [*arguments, "--json"], catch_exceptions=False)
    document = json.loads(again.stdout)
    assert document["counts"]["sequences"] == 10 and document["corpus"]["pairs"] is True
    from_pipe = CliRunner().invoke(
        build(),
        ["corpus", "-", "--model", str(model_folder), "--out", str(tmp_path / "pipe"), "--json"],
        input="\n".join(paragraphs(5)).encode(),
        catch_exceptions=False,
    )
    assert json.loads(from_pipe.stdout)["counts"]["sequences"] == 5
    with pytest.raises(InputError, match="NAME=REGEX"):
        CliRunner().invoke(build(), [*arguments, "--category", "odd"], catch_exceptions=False)
