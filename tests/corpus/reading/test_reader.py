"""A corpus as one model reads it."""

from __future__ import annotations

import io
from pathlib import Path

import pytest

from normlens.corpus.reading.corpus import Corpus
from normlens.corpus.reading.reader import CorpusReader, ModelSide
from normlens.corpus.reading.records import Columns, read
from normlens.corpus.reading.sources import keep_stream
from normlens.errors import InputError

from ..conftest import tiny_tokenizer
from .builder import TEXTS


def test_a_stream_is_kept_under_the_name_of_its_content(tmp_path: Path) -> None:
    path, again = (keep_stream(io.BytesIO("\n".join(TEXTS).encode()), tmp_path, "standard input") for _ in range(2))
    assert [record.text for record in read(path, Columns())] == TEXTS
    assert path == again != keep_stream(io.BytesIO(b"something else"), tmp_path, "standard input")


@pytest.mark.parametrize(
    ("wanted", "longest", "length"), [(None, None, 128), (None, 512, 128), (None, 18, 18), (9, 18, 9)]
)
def test_sequences_are_cut_at_what_is_asked_for_or_taken(text_file: Path, wanted, longest, length) -> None:
    assert (
        CorpusReader(Corpus((text_file,), max_length=wanted), tiny_tokenizer(), ModelSide(longest)).max_length == length
    )


def test_no_sequence_is_longer_than_the_model_takes(text_file: Path) -> None:
    with pytest.raises(InputError, match="19 is more than 18"):
        CorpusReader(Corpus((text_file,), max_length=19), tiny_tokenizer(), ModelSide(18))
    with pytest.raises(InputError, match="room for text"):
        CorpusReader(Corpus((text_file,), max_length=3), tiny_tokenizer())
