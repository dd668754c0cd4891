"""Sequences for the tests of this room and of the next."""

from __future__ import annotations

from typing import Any

from normlens.corpus.reading.records import Record
from normlens.corpus.reading.sequences import SequenceBuilder
from normlens.corpus.reading.token_attributes import Categories

from ..conftest import tiny_tokenizer

TEXTS = ["the river runs", "a stone bridge , built", "old town ."]


def build(records: list[Record], **options: Any) -> tuple[Any, list[Any]]:
    """The tokenizer, and what becomes of the records."""
    tokenizer = tiny_tokenizer()
    return tokenizer, list(SequenceBuilder(tokenizer, Categories.of(tokenizer), **options).build(records))
