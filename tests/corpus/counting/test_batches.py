"""Batches of sequences of one length."""

from __future__ import annotations

from normlens.corpus.counting.batches import batched
from normlens.corpus.reading.records import Record

from ..reading.builder import build


def test_batches_hold_one_length_and_everything() -> None:
    _, made = build([Record(str(n), " ".join(["water"] * (1 + n % 4))) for n in range(20)])
    batches = list(batched(made, 3))
    assert all(len({item.lengths for item in batch.sequences}) == 1 and len(batch.sequences) <= 3 for batch in batches)
    assert sorted(item.index for batch in batches for item in batch.sequences) == list(range(20))
    assert [batch.sequences[0].lengths for batch in batches] == sorted(batch.sequences[0].lengths for batch in batches)
