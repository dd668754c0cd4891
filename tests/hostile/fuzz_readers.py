"""The readers of untrusted bytes under atheris, which changes the bytes by what the code does with them.

    python -m tests.hostile.fuzz_readers -runs=50000

Needs `pip install atheris`. Whatever is no `InputError` stops it, with the bytes that caused it.
"""

from __future__ import annotations

import io
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import atheris

with atheris.instrument_imports(include=["normlens.corpus.reading", "normlens.alignment", "normlens.io.checksums"]):
    from normlens.alignment.formats import read_alignments
    from normlens.corpus.counting.plan import Plan
    from normlens.corpus.reading.plain_pickle import load_plain_pickle
    from normlens.corpus.reading.records import Columns, read
    from normlens.corpus.reading.token_attributes import read_ranks
    from normlens.corpus.running.shards import Shard, ShardFolder
    from normlens.errors import InputError
    from normlens.io.checksums import read_checked_json

FOLDER = Path(tempfile.mkdtemp())


def records(suffix: str, columns: Columns | None = None) -> Callable[[bytes], object]:
    path = FOLDER / f"corpus{suffix}"

    def fuzz(content: bytes) -> object:
        path.write_bytes(content)
        return list(read(path, columns or Columns(), largest=1000))

    return fuzz


def in_file(name: str, use: Callable[[Path], object]) -> Callable[[bytes], object]:
    path = FOLDER / name

    def fuzz(content: bytes) -> object:
        path.write_bytes(content)
        return use(path)

    return fuzz


def shard(path: Path) -> object:
    folder = ShardFolder(path.parent, "")
    return folder.merged([Shard(0, 1)], Plan(("other",), measures=(), mixing=()))


READERS: list[Callable[[bytes], object]] = [
    lambda content: load_plain_pickle(lambda: io.BytesIO(content), "it"),
    records(".txt"),
    records(".jsonl"),
    records(".jsonl", Columns(tags="tags")),
    records(".csv"),
    records(".tsv", Columns(text="0")),
    records(".txt.gz"),
    records(".txt.xz"),
    in_file("links", read_alignments),
    in_file("ranks", lambda path: read_ranks(path, 20)),
    in_file("record.json", lambda path: read_checked_json(path, "a record")),
    in_file(Shard(0, 1).name, shard),
]


def one_input(content: bytes) -> None:
    """The first byte says which reader it is for."""
    if not content:
        return
    try:
        READERS[content[0] % len(READERS)](content[1:])
    except InputError:
        return


if __name__ == "__main__":
    atheris.Setup(sys.argv, one_input)
    atheris.Fuzz()
