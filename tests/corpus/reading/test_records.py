"""Readers of every format."""

from __future__ import annotations

import gzip
import json
import lzma
import os
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from normlens.corpus.reading.records import Columns, Record, UnusedRecord, format_of, read
from normlens.errors import InputError

TEXTS = ["the river runs", "a stone bridge , built", "old town ."]


def texts(path: Path, columns: Columns | None = None, given: str | None = None) -> list[str]:
    return [record.text for record in read(path, columns or Columns(), given) if isinstance(record, Record)]


def write(path: Path, content: bytes) -> Path:
    match path.suffix:
        case ".gz":
            path.write_bytes(gzip.compress(content))
        case ".xz":
            path.write_bytes(lzma.compress(content))
        case ".zst":
            path.write_bytes(pa.compress(content, codec="zstd", asbytes=True))
        case _:
            path.write_bytes(content)
    return path


@pytest.mark.parametrize("suffix", ["", ".gz", ".xz", ".zst"])
def test_every_text_format_plain_and_compressed(tmp_path: Path, suffix: str) -> None:
    plain = "\n\n".join(TEXTS).encode()
    lines = "\n".join(json.dumps({"text": text, "n": 1}) for text in TEXTS).encode()
    table = ("id,text\r\n" + "\r\n".join(f'{n},"{text}"' for n, text in enumerate(TEXTS)) + "\r\n").encode()
    tabs = "\n".join(f"{text}\t1" for text in TEXTS).encode()
    assert texts(write(tmp_path / f"a.txt{suffix}", plain)) == TEXTS
    assert texts(write(tmp_path / f"a.jsonl{suffix}", lines)) == TEXTS
    assert texts(write(tmp_path / f"a.csv{suffix}", table)) == TEXTS
    assert texts(write(tmp_path / f"a.tsv{suffix}", tabs), Columns(text="0")) == TEXTS
    assert texts(write(tmp_path / f"b{suffix}", lines), given="jsonl") == TEXTS


def test_parquet_and_datasets(tmp_path: Path) -> None:
    pq.write_table(pa.table({"sentence": TEXTS, "label": [0, 1, 0]}), tmp_path / "a.parquet")
    assert texts(tmp_path / "a.parquet") == TEXTS
    datasets = pytest.importorskip("datasets")
    datasets.Dataset.from_dict({"text": TEXTS}).save_to_disk(tmp_path / "set")
    assert texts(tmp_path / "set") == TEXTS
    split = datasets.DatasetDict({"train": datasets.Dataset.from_dict({"text": TEXTS})})
    split.save_to_disk(tmp_path / "splits")
    assert next(record.place for record in read(tmp_path / "splits", Columns())).endswith("splits/train:1")
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match="save_to_disk"):
        texts(tmp_path / "empty")


def test_what_cannot_be_read_has_a_place(tmp_path: Path) -> None:
    def unused(path: Path) -> list[str]:
        found = [item for item in read(path, Columns()) if isinstance(item, UnusedRecord)]
        return [f"{Path(record.place).name} {record.reason}" for record in found]

    assert unused(write(tmp_path / "a.txt", b"good\n\xff\xfe\nfine\n")) == ["a.txt:2 not UTF-8 at byte 0 of the line"]
    broken = write(tmp_path / "b.txt.gz", b"".join(os.urandom(40).hex().encode() + b"\n" for _ in range(3000)))
    broken.write_bytes(broken.read_bytes()[:-2000])
    assert len(unused(broken)) == 1 and "breaks off" in unused(broken)[0]
    assert "not a JSON object" in unused(write(tmp_path / "c.jsonl", b'[1]\n{"text": "ok"}\n'))[0]
    assert unused(write(tmp_path / "d.csv", b"text,n\nfine,1\nshort\n")) == ["d.csv:3 1 columns where the table has 2"]
    assert "not a Parquet file" in unused(write(tmp_path / "e.parquet", b"PAR1 nonsense"))[0]
    with pytest.raises(InputError, match="text column"):
        texts(write(tmp_path / "f.csv", b"body,n\nfine,1\n"))
    with pytest.raises(InputError, match="'nope'"):
        texts(write(tmp_path / "g.jsonl", b'{"text": "ok"}\n'), Columns(text="nope"))


def test_format_by_name() -> None:
    assert format_of(Path("a.jsonl.zst")) == "jsonl" and format_of(Path("a.tsv")) == "tsv"
    assert format_of(Path("README")) == "text"
    with pytest.raises(InputError, match="one of text, jsonl"):
        format_of(Path("a.txt"), "word")


def test_lines_are_whole_across_blocks(tmp_path: Path) -> None:
    lines = [str(n) * (1 + n % 977) for n in range(1, 20_000)]
    for suffix in ("", ".gz", ".xz", ".zst"):
        path = write(tmp_path / f"long.txt{suffix}", "\r\n".join(lines).encode())
        assert texts(path) == lines
