"""The readers of untrusted bytes under atheris, which changes the bytes by what the code does with them.

    python -m tests.hostile.fuzz_readers -runs=50000

Needs `pip install atheris`. Whatever is no `InputError` stops it, with the bytes that caused it.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import atheris

with atheris.instrument_imports(include=["normlens.corpus.reading", "normlens.alignment", "normlens.io.checksums"]):
    from normlens.alignment.formats import read_alignments
    from normlens.corpus.options import Reading
    from normlens.corpus.reading import write_records
    from normlens.corpus.run import read_shard
    from normlens.corpus.sequences import read_ranks
    from normlens.errors import InputError
    from normlens.io.checksums import read_checked_json

FOLDER = Path(tempfile.mkdtemp())


def records(suffix: str, **columns: str) -> Callable[[bytes], object]:
    path = FOLDER / f"corpus{suffix}"
    reading = Reading(largest_record=1000, on_error="skip", **columns)

    def fuzz(content: bytes) -> object:
        path.write_bytes(content)
        table = write_records(path, reading, FOLDER / "records")
        return list(table.records(0, table.size))

    return fuzz


def in_file(name: str, use: Callable[[Path], object]) -> Callable[[bytes], object]:
    path = FOLDER / name

    def fuzz(content: bytes) -> object:
        path.write_bytes(content)
        return use(path)

    return fuzz


READERS: list[Callable[[bytes], object]] = [
    records(".txt"),
    records(".jsonl"),
    records(".jsonl", tag_column="tags"),
    records(".csv"),
    records(".tsv", text_column="0"),
    records(".txt.gz"),
    records(".txt.xz"),
    in_file("links", read_alignments),
    in_file("ranks", lambda path: read_ranks(path, 20)),
    in_file("record.json", lambda path: read_checked_json(path, "a record")),
    in_file("shard", read_shard),
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
