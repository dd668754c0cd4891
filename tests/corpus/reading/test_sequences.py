"""From records to sequences: pairs, lengths, masks."""

from __future__ import annotations

import numpy as np

from normlens.corpus.reading.records import Record, UnusedRecord

from .builder import TEXTS, build


def test_pairs_are_consecutive_and_a_leftover_is_left_out() -> None:
    records = [Record(f"f:{n}", text) for n, text in enumerate([*TEXTS * 30, "water"])]  # more than one chunk
    tokenizer, made = build(records, pairs=True)
    sequences = [item for item in made if not isinstance(item, UnusedRecord)]
    assert [sequence.index for sequence in sequences] == list(range(45))
    assert tokenizer.decode(sequences[1].ids) == "[CLS] old town . [SEP] the river [UNK] [SEP]"
    assert len(made) == len(sequences), "the last paragraph has no partner: the survey counts it"
    _, cut = build(records, pairs=True, max_length=6)
    assert {len(item.ids) for item in cut if not isinstance(item, UnusedRecord)} == {6}


def test_masking_follows_the_rule_and_the_content() -> None:
    words = ["the", "river", "stone", "bridge", "was", "built", "by", "old", "town", "and", "of", "water"]
    records = [Record(str(n), " ".join(words[:n] * 3)) for n in range(1, 12)]
    tokenizer, plain = build(records)
    _, made = build(records, mask=0.12, seed=1)
    for before, after in zip(plain, made, strict=True):
        masked = after.ids == tokenizer.mask_token_id
        count = len(before.ids) - 2
        assert masked.sum() == max(1, int(0.12 * count))
        assert not masked[[0, -1]].any()
        np.testing.assert_array_equal(after.ids[~masked], before.ids[~masked])
        assert (after.category[masked] == 2).all()
    _, reversed_ = build(records[::-1], mask=0.12, seed=1)
    for first, second in zip(made, reversed_[::-1], strict=True):
        np.testing.assert_array_equal(first.ids, second.ids)
    _, other = build(records, mask=0.12, seed=2)
    assert any((a.ids != b.ids).any() for a, b in zip(made, other, strict=True))
