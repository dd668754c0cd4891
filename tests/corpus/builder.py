"""Sequences for the tests of this room and of the next."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from normlens.corpus import reading as reading_module
from normlens.corpus.options import Reading
from normlens.corpus.reading import Record, UnusedRecord
from normlens.corpus.sequences import Categories, SequenceBuilder

from .conftest import tiny_tokenizer

TEXTS = ["the river runs", "a stone bridge , built", "old town ."]


def build(records: list[Record], **options: Any) -> tuple[Any, list[Any]]:
    """The tokenizer, and what becomes of the records."""
    tokenizer = tiny_tokenizer()
    return tokenizer, list(SequenceBuilder(tokenizer, Categories.of(tokenizer), **options).build(records))


def read(path: Path, reading: Reading | None = None) -> list[Record | UnusedRecord]:
    """Every record of a source, readable or not, in order."""
    chosen = reading or Reading()
    records: list[Record | UnusedRecord] = []
    for file in reading_module._files_of(path):
        for record in reading_module._records_of(path, file, chosen):
            if isinstance(record, Record):
                record = reading_module._checked(record, chosen.largest_record)
            records.append(record)
    return records
