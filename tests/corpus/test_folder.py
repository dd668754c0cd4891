"""Nobody's file is lost, and nothing old is taken for something new."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from normlens.corpus import batches
from normlens.corpus.result import RunFolder
from normlens.errors import InputError
from normlens.io.writing import locked

from .conftest import TABLES, paragraphs, same


@pytest.fixture
def parquet(tmp_path: Path) -> Path:
    import pandas as pd

    path = tmp_path / "d" / "wiki.parquet"
    path.parent.mkdir()
    pd.DataFrame({"text": paragraphs(6)}).to_parquet(path)
    return path


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_fresh_removes_what_the_manifest_lists_and_nothing_else(lens, parquet: Path) -> None:
    out = parquet.parent
    (out / "notes.parquet").write_text("mine")
    (out / "thesis").mkdir()
    (out / "thesis" / "chapter.txt").write_text("mine")
    before = contents(out)
    lens.corpus(parquet, out, per_token=True, fresh=True)
    (out / "tokens" / "mine.parquet").write_text("mine")
    lens.corpus(parquet, out, per_token=True, fresh=True, limit=3)
    after = contents(out)
    assert {name: after.get(name) for name in before} == before
    assert after["tokens/mine.parquet"] == b"mine"
    made = {"manifest.json", "tokens/part-000000000000-000000000003.parquet", *(f"{name}.parquet" for name in TABLES)}
    assert set(after) == {*before, "tokens/mine.parquet", *made}
    assert len(lens.corpus(parquet, out, per_token=True, limit=3).tokens) > 0  # the stranger is not read


@pytest.mark.parametrize(
    "name", ["statistics.parquet", "manifest.json", "tokens/part-000000000000-000000000006.parquet"]
)
def test_an_input_is_no_output(lens, parquet: Path, tmp_path: Path, name: str) -> None:
    source = tmp_path / "o" / name
    source.parent.mkdir(parents=True)
    source.write_bytes(parquet.read_bytes())
    for options in ({}, {"fresh": True}, {"overwrite": True}, {"fresh": True, "overwrite": True}):
        with pytest.raises(InputError, match="would be overwritten; choose another --out"):
            lens.corpus(source, tmp_path / "o", format="parquet", **options)
    assert contents(tmp_path / "o") == {name: parquet.read_bytes()}
    with pytest.raises(InputError, match="lies in the input"):
        lens.corpus(tmp_path / "o", tmp_path / "o" / "deep" / "out")


@pytest.mark.parametrize("name", ["statistics.parquet", "manifest.json", "tokens/x", "unfinished/x"])
def test_what_is_not_ours_is_replaced_only_on_request(lens, text_file: Path, tmp_path: Path, name: str) -> None:
    stranger = tmp_path / "o" / name
    stranger.parent.mkdir(parents=True)
    stranger.write_text("mine")
    for options in ({}, {"fresh": True}):
        with pytest.raises(InputError, match=r"exists and is not of a run.*--overwrite"):
            lens.corpus(text_file, tmp_path / "o", **options)
        assert contents(tmp_path / "o") == {name: b"mine"}
    result = lens.corpus(text_file, tmp_path / "o", overwrite=True)
    assert result.manifest["counts"]["sequences"] == 40
    if "/" in name:
        assert stranger.read_text() == "mine"


def test_what_is_left_before_the_first_record_is_ours(lens, text_file: Path, tmp_path: Path) -> None:
    unfinished = tmp_path / "o" / "unfinished"
    unfinished.mkdir(parents=True)
    (unfinished / ".run.json.0123abcd.draft").write_text("{")  # killed in the middle of its first file
    assert lens.corpus(text_file, tmp_path / "o").manifest["counts"]["sequences"] == 40
    assert not unfinished.exists()


def test_another_text_from_standard_input_is_another_run(lens, tmp_path: Path, monkeypatch) -> None:
    def run(text: str):
        monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(text.encode())))
        return lens.corpus("-", tmp_path / "out")

    first, second = "\n".join(paragraphs(3)), "\n".join(paragraphs(5, seed=1))
    assert run(first).manifest["counts"]["sequences"] == 3
    assert run(first).manifest["counts"]["sequences"] == 3  # the same text is the same run
    before = contents(tmp_path / "out")
    with pytest.raises(InputError, match="holds a finished run with other inputs"):
        run(second)
    assert contents(tmp_path / "out") == before, "nothing of the refused text may stay"


def test_with_a_limit_what_it_needs_is_the_input(lens, tmp_path: Path) -> None:
    source = tmp_path / "corpus.txt"
    texts = paragraphs(10)
    source.write_text("\n".join(texts))
    first = lens.corpus(source, tmp_path / "out", limit=4)
    (entry,) = first.manifest["inputs"]
    assert set(entry) == {"path", "records", "records_sha256"} and entry["records"] == 4
    source.write_text("\n".join([*texts, "more of it"]))
    assert lens.corpus(source, tmp_path / "out", limit=4).manifest == first.manifest
    source.write_text("\n".join(["the old town", *texts]))
    with pytest.raises(InputError, match="other inputs"):
        lens.corpus(source, tmp_path / "out", limit=4)


def test_exact_is_another_run(lens, text_file: Path, tmp_path: Path) -> None:
    lens.corpus(text_file, tmp_path / "out")
    with pytest.raises(InputError, match="holds a finished run with other inputs, model or settings"):
        lens.corpus(text_file, tmp_path / "out", exact=True)


class StoppedError(Exception):
    pass


def stop_after(count: int):
    def stop(step) -> None:
        if step.sequences >= count:
            raise StoppedError

    return stop


def test_a_shard_under_another_name_is_not_read(lens, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(batches, "CHUNK_SIZE", 4)
    source = tmp_path / "corpus.txt"
    source.write_text("\n".join(paragraphs(12, seed=9)))
    whole = lens.corpus(source, tmp_path / "whole")
    with pytest.raises(StoppedError):
        lens.corpus(source, tmp_path / "out", range_seconds=0.0, progress=stop_after(8))
    first, _ = sorted((tmp_path / "out" / "unfinished").glob("*.shard"))
    first.rename(first.with_name("0123456789abcdef-000000000000-000000000004.shard"))  # of another run
    same(lens.corpus(source, tmp_path / "out"), whole)
    assert not (tmp_path / "out" / "unfinished").exists()


def test_damaged_results_are_not_opened(lens, text_file: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    lens.corpus(text_file, out)
    table = out / "statistics.parquet"
    content = table.read_bytes()
    table.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    with pytest.raises(InputError, match=r"statistics.parquet was changed or damaged"):
        lens.corpus(text_file, out).statistics  # noqa: B018
    table.write_bytes(content)
    manifest = out / "manifest.json"
    document = json.loads(manifest.read_text())
    manifest.write_text(json.dumps({**document, "max_proof_error": 0.0}))
    with pytest.raises(InputError, match=r"the manifest of a corpus run.? was changed or damaged"):
        lens.corpus(text_file, out)
    with pytest.raises(InputError, match="only files that a manifest lists are removed"):
        lens.corpus(text_file, out, fresh=True)
    assert lens.corpus(text_file, out, fresh=True, overwrite=True).manifest["counts"]["sequences"] == 40


def test_a_folder_holds_one_run_at_a_time(lens, text_file: Path, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    with locked(tmp_path / "out", "run"), pytest.raises(InputError, match="is locked by another normlens process"):
        lens.corpus(text_file, tmp_path / "out")
    assert not RunFolder(tmp_path / "out").unfinished.exists()
