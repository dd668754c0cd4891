"""Datasets that lie in memory or come as a stream are corpora, too; whatever else is no source is refused."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from normlens.corpus import batches
from normlens.corpus.options import Reading
from normlens.corpus.reading import named_paths, write_records
from normlens.errors import InputError
from normlens.lens import Lens
from tests.corpus.conftest import paragraphs, same


class Stream:
    """What a streaming dataset has, and no more: the names of columns (not always known), and rows."""

    features = None
    column_names = None

    def __init__(self, rows: Any) -> None:
        self.rows = rows
        self.given = 0

    def __iter__(self) -> Iterator[Any]:
        for row in self.rows:
            self.given += 1
            yield row


def texts_of(source: Any, folder: Path, **options: Any) -> list[str]:
    table = write_records(source, Reading(**options), folder)
    return [record.text for record in table.records(0, table.size)]


def test_a_stream_is_the_corpus_that_its_rows_are_in_a_file(lens: Lens, tmp_path: Path) -> None:
    texts = paragraphs(40)
    (tmp_path / "corpus.txt").write_text("\n".join(texts))
    rows = [{"id": number, "text": text, "image": b"\x00"} for number, text in enumerate(texts)]
    expected = lens.corpus(tmp_path / "corpus.txt", tmp_path / "file", pairs=True)
    same(expected, lens.corpus(Stream(rows), tmp_path / "stream", pairs=True))
    same(expected, lens.corpus([Stream(rows[:10]), Stream(rows[10:])], tmp_path / "two", pairs=True))
    other = [{"text": "nothing", "body": text} for text in texts]
    same(expected, lens.corpus(Stream(other), tmp_path / "column", text_column="body", pairs=True))


def test_a_limit_is_heeded_while_the_stream_is_read(lens: Lens, tmp_path: Path) -> None:
    texts = paragraphs(12)
    (tmp_path / "corpus.txt").write_text("\n".join(texts))
    endless = Stream({"text": text} for text in itertools.cycle(texts))
    same(
        lens.corpus(tmp_path / "corpus.txt", tmp_path / "file", limit=3, pairs=True),
        lens.corpus(endless, tmp_path / "stream", limit=3, pairs=True),
    )
    assert endless.given == 6
    # Rows that the corpus passes over do not count, so that the limit is reached.
    rows = [{"text": text} for text in ("", "= heading =", "one", None, "two", "three", "four")]
    assert texts_of(Stream(rows), tmp_path, limit=3, skip="^=", on_error="skip") == ["one", "two", "three"]


class StoppedError(Exception):
    pass


def test_a_stopped_run_over_a_stream_goes_on_where_it_stopped(lens: Lens, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(batches, "CHUNK_SIZE", 4)
    rows = [{"text": text} for text in paragraphs(30)]

    def stop(step: Any) -> None:
        if step.sequences >= 12:
            raise StoppedError

    with pytest.raises(StoppedError):
        lens.corpus(Stream(rows), tmp_path / "out", range_seconds=0.0, progress=stop)
    with pytest.raises(InputError, match="holds an unfinished run"):
        lens.corpus(Stream(rows[1:]), tmp_path / "out")
    seen: list[Any] = []
    resumed = lens.corpus(Stream(rows), tmp_path / "out", progress=seen.append)
    assert seen[0].sequences == 16 and seen[0].fresh == 4
    same(resumed, lens.corpus(Stream(rows), tmp_path / "whole"))


def broken() -> Iterator[dict[str, str]]:
    yield {"text": "one"}
    raise ConnectionError("the line went dead")


@pytest.mark.parametrize(
    "source, message",
    [
        ({"train": Stream([])}, "one split of a dataset, got all of them"),
        ([{"train": Stream([])}], "one split of a dataset, got all of them"),
        (iter(["a.txt"]), "or a list of them, got list_iterator"),
        ([7], "got int"),
        ([["none.txt"]], "there is no 'none.txt'"),
        (Stream([("a", "b")]), "the dataset:1 must be a row by column names, got tuple"),
        (Stream([{"label": 1, "title": "a"}]), "the dataset:1 has no text column, but label, title"),
        (Stream(broken()), "the dataset:2 cannot be read .the line went dead"),
    ],
)
def test_what_is_no_source_is_refused(lens: Lens, tmp_path: Path, source: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        lens.corpus(source, tmp_path / "out")
    assert not list(tmp_path.rglob("records*"))


def test_a_dataset_has_its_own_format_and_is_kept_on_this_machine(lens: Lens, tmp_path: Path) -> None:
    stream = Stream([{"text": "the river"}])
    assert named_paths([stream, tmp_path / "a.txt", "-"]) == [tmp_path / "a.txt"]
    with pytest.raises(InputError, match="leave it out"):
        lens.corpus(stream, tmp_path / "out", format="text")


def test_the_datasets_library_in_memory_and_streaming(lens: Lens, tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    texts = paragraphs(24)
    (tmp_path / "corpus.txt").write_text("\n".join(texts))
    expected = lens.corpus(tmp_path / "corpus.txt", tmp_path / "file")
    loaded = datasets.Dataset.from_dict({"sentence": texts, "label": list(range(24))})
    same(expected, lens.corpus(loaded, tmp_path / "memory"))
    same(expected, lens.corpus(loaded.to_iterable_dataset(), tmp_path / "stream"))
    lines = tmp_path / "corpus.jsonl"
    lines.write_text("".join(json.dumps({"sentence": text}) + "\n" for text in texts))
    streamed = datasets.load_dataset("json", data_files=str(lines), streaming=True, cache_dir=str(tmp_path / "cache"))
    same(expected, lens.corpus(streamed["train"], tmp_path / "json", text_column="sentence"))
    with pytest.raises(InputError, match=r"got all of them \(train\)"):
        lens.corpus(streamed, tmp_path / "splits")
    with pytest.raises(InputError, match="the dataset:1 must be a row by column names, got DataFrame"):
        lens.corpus(loaded.with_format("pandas"), tmp_path / "pandas")
