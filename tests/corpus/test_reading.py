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
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from normlens.corpus.options import Reading
from normlens.corpus.reading import Record, UnusedRecord, format_of, write_records
from normlens.errors import InputError

from .builder import TEXTS, read
from .conftest import paragraphs


def texts(path: Path, **options) -> list[str]:
    return [record.text for record in read(path, Reading(**options)) if isinstance(record, Record)]


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
    assert texts(write(tmp_path / f"a.tsv{suffix}", tabs), text_column="0") == TEXTS
    assert texts(write(tmp_path / f"b{suffix}", lines), format="jsonl") == TEXTS


def test_parquet_and_datasets(tmp_path: Path) -> None:
    pq.write_table(pa.table({"sentence": TEXTS, "label": [0, 1, 0]}), tmp_path / "a.parquet")
    assert texts(tmp_path / "a.parquet") == TEXTS
    datasets = pytest.importorskip("datasets")
    datasets.Dataset.from_dict({"text": TEXTS}).save_to_disk(tmp_path / "set")
    assert texts(tmp_path / "set") == TEXTS
    split = datasets.DatasetDict({"train": datasets.Dataset.from_dict({"text": TEXTS})})
    split.save_to_disk(tmp_path / "splits")
    assert next(record.place for record in read(tmp_path / "splits")).endswith("splits/train:1")
    for number, arrow_file in enumerate(sorted((tmp_path / "set").glob("*.arrow"))):
        assert texts(arrow_file) == TEXTS and not number
    assert texts(f"hub:{tmp_path / 'hub'}@train") == TEXTS if _hub(tmp_path / "hub") else True
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match="save_to_disk"):
        texts(tmp_path / "empty")


def test_what_cannot_be_read_has_a_place(tmp_path: Path) -> None:
    def unused(path: Path) -> list[str]:
        found = [item for item in read(path) if isinstance(item, UnusedRecord)]
        return [f"{Path(record.place).name} {record.reason}" for record in found]

    assert unused(write(tmp_path / "a.txt", b"good\n\xff\xfe\nfine\n")) == ["a.txt:2 not UTF-8 at byte 0 of the line"]
    broken = write(tmp_path / "b.txt.gz", b"".join(os.urandom(40).hex().encode() + b"\n" for _ in range(3000)))
    broken.write_bytes(broken.read_bytes()[:-2000])
    assert len(unused(broken)) == 1 and "breaks off" in unused(broken)[0]
    assert "not a JSON object" in unused(write(tmp_path / "c.jsonl", b'[1]\n{"text": "ok"}\n'))[0]
    assert unused(write(tmp_path / "d.csv", b"text,n\nfine,1\nshort\n")) == ["d.csv:3 1 columns where the table has 2"]
    assert "no Parquet file" in unused(write(tmp_path / "e.parquet", b"PAR1 nonsense"))[0]
    with pytest.raises(InputError, match="text column"):
        texts(write(tmp_path / "f.csv", b"body,n\nfine,1\n"))
    with pytest.raises(InputError, match="'nope'"):
        texts(write(tmp_path / "g.jsonl", b'{"text": "ok"}\n'), text_column="nope")


def test_format_by_name() -> None:
    assert format_of(Path("a.jsonl.zst")) == "jsonl" and format_of(Path("a.tsv")) == "tsv"
    assert format_of(Path("README")) == "text"


def test_lines_are_whole_across_blocks(tmp_path: Path) -> None:
    lines = [str(n) * (1 + n % 977) for n in range(1, 20_000)]
    for suffix in ("", ".gz", ".xz", ".zst"):
        path = write(tmp_path / f"long.txt{suffix}", "\r\n".join(lines).encode())
        assert texts(path) == lines


def _hub(folder: Path) -> bool:
    """A dataset as it lies on the hub: a folder of data files, which `load_dataset` takes for a name."""
    folder.mkdir()
    (folder / "train.jsonl").write_text("\n".join(json.dumps({"text": text}) for text in TEXTS))
    return True


LINES = st.lists(
    st.sampled_from([b"", b"the river", b" ", b"a", b"\xff", b"old town and water", b"skip me"]), max_size=12
)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    files=st.lists(st.tuples(LINES, st.sampled_from([b"\n", b"\r\n"]), st.booleans()), min_size=1, max_size=3),
    pairs=st.booleans(),
    limit=st.none() | st.integers(1, 5),
)
def test_the_table_holds_every_record_by_its_number(tmp_path: Path, files, pairs: bool, limit: int | None) -> None:
    paths = []
    for number, (lines, end, last) in enumerate(files):
        paths.append(tmp_path / f"{number}.txt")
        paths[-1].write_bytes(end.join(lines) + (end if last else b""))
    table = write_records(paths, Reading(pairs=pairs, on_error="skip", skip="skip", limit=limit), tmp_path)
    every = [[r for r in read(path) if not (isinstance(r, Record) and "skip" in r.text)] for path in paths]
    used = [[r for r in records if isinstance(r, Record)] for records in every]
    expected = [
        (first.place, first.text, None if second is None else second.text)
        for records in used
        for first, second in (zip(records[::2], records[1::2], strict=False) if pairs else ((r, None) for r in records))
    ]
    wanted = expected[:limit]
    assert table.size == len(wanted)
    for start in range(table.size):
        made = [(r.place, r.text, r.pair) for r in table.records(start, table.size)]
        assert made == wanted[start:]
    if limit is None:
        bad = [r for records in every for r in records if isinstance(r, UnusedRecord)]
        assert table.log.unreadable == len(bad)
        assert table.log.unpaired == (sum(len(records) % 2 for records in used) if pairs else 0)


def test_the_name_of_the_table_is_its_content(tmp_path: Path) -> None:
    source = tmp_path / "a.txt"
    source.write_text("\n".join(paragraphs(200)))
    first, second = (write_records(source, Reading(), tmp_path) for _ in range(2))
    assert first.path == second.path and [r.text for r in first.records(60, 140)] == paragraphs(200)[60:140]
    source.write_text("\n".join(paragraphs(199)))
    assert write_records(source, Reading(), tmp_path).path != first.path


def test_a_bad_record_is_named_by_its_line(tmp_path: Path) -> None:
    path = tmp_path / "corpus.jsonl"
    path.write_text('{"text": "the river"}\n' * 5 + "{broken\n" + '{"text": "the river"}\n')
    with pytest.raises(InputError, match=r"corpus\.jsonl:6 is unreadable: not JSON"):
        write_records(path, Reading(), tmp_path)
    assert not list(tmp_path.glob("*.arrow*")), "nothing half-written stays"
