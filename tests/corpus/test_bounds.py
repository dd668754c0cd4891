"""Reading takes what it needs: little memory for endless lines, few bytes for a limit, a sentence for what is no text."""

from __future__ import annotations

import gzip
import io
import json
import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from normlens.corpus import reading
from normlens.corpus.options import Reading
from normlens.corpus.reading import Record, UnusedRecord, write_records
from normlens.corpus.sequences import read_ranks
from normlens.errors import InputError

from .builder import read
from .conftest import paragraphs


@contextmanager
def at_most(size: int) -> Iterator[None]:
    """The most memory that Python takes while the block runs."""
    tracemalloc.start()
    try:
        yield
        assert tracemalloc.get_traced_memory()[1] < size
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("name", ["corpus.txt", "corpus.txt.gz", "corpus.jsonl.gz", "corpus.csv"])
def test_an_endless_line_takes_little_memory(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    whole = {"txt": b"the river", "jsonl": b'{"text": "the river"}', "csv": b"text\nthe river"}[name.split(".")[1]]
    block = b"a" * (1 << 20)
    with gzip.open(path, "wb", compresslevel=1) if name.endswith("gz") else path.open("wb") as stream:
        stream.write(whole + b"\n")
        for _ in range(100):
            stream.write(block)
        stream.write(b"\n" + whole.splitlines()[-1] + b"\n")
    with at_most(16 << 20):
        found = read(path, Reading(largest_record=1 << 20))
    assert [type(record) for record in found] == [Record, UnusedRecord, Record]
    assert isinstance(found[1], UnusedRecord) and "longer than 1048576 bytes" in found[1].reason
    assert found[1].place.endswith(":3" if "csv" in name else ":2")


def test_a_line_of_the_largest_size_is_read_whatever_ends_it(tmp_path: Path) -> None:
    path = tmp_path / "corpus.txt"
    for end in (b"", b"\n", b"\r\n"):
        path.write_bytes(b"a" * 100 + end)
        assert [
            len(record.text) for record in read(path, Reading(largest_record=100)) if isinstance(record, Record)
        ] == [100]
        (found,) = read(path, Reading(largest_record=99))
        assert isinstance(found, UnusedRecord)


def test_a_quotation_mark_that_never_closes_is_bounded(tmp_path: Path) -> None:
    path = tmp_path / "corpus.csv"
    row = b'"a","' + b"x" * 1000 + b"\n"
    path.write_bytes(b"text,n\n" + row * 20_000)
    with at_most(16 << 20):
        found = read(path, Reading(largest_record=1 << 20))
    assert found and all(isinstance(record, UnusedRecord) for record in found)


def test_a_limit_reads_what_it_needs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "corpus.txt"
    path.write_text("\n".join(paragraphs(5)) + "\n" + "the river\n" * 200_000)
    taken = [0]

    class Counted(io.BufferedReader):
        def readline(self, size: int | None = -1) -> bytes:
            line = super().readline(size)
            taken[0] += len(line)
            return line

    monkeypatch.setattr(reading, "open_binary", lambda path: Counted(path.open("rb", buffering=0)))
    assert write_records(path, Reading(limit=3, pairs=True), tmp_path).size == 3
    assert taken[0] < 10_000


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ('{"text": "a", "n": ' + "9" * 5000 + "}", "not JSON"),
        ('{"text": "a \\ud800 b"}', "half of a surrogate pair"),
        ('{"text": ' + "[" * 100_000, "not JSON"),
        ('["text"]', "not a JSON object"),
        ('{"text": ["a", "\\udfff"]}', "half of a surrogate pair"),
    ],
)
def test_odd_json_is_skipped(tmp_path: Path, line: str, reason: str) -> None:
    path = tmp_path / "corpus.jsonl"
    good = json.dumps({"text": "the river"})
    path.write_text("\n".join([good, line, good]))
    first, odd, last = read(path)
    assert isinstance(first, Record) and isinstance(last, Record)
    assert isinstance(odd, UnusedRecord) and reason in odd.reason and odd.place.endswith(":2")


@pytest.mark.parametrize("content", [b"\xff\xfe", b"1 2 " + b"9" * 5000, b"9" * 400 + b" 2 3", b"-1 2 3", b"nan 1 1"])
def test_odd_rank_files_are_sentences(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "ranks.txt"
    path.write_bytes(content)
    with pytest.raises(InputError):
        read_ranks(path, 20)
    with pytest.raises(InputError, match="cannot be read"):
        read_ranks(tmp_path, 20)
