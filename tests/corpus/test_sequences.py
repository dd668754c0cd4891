"""From records to sequences: pairs, lengths, masks."""

from __future__ import annotations

import pickle

import numpy as np
import pytest

from normlens.corpus.reading import Record
from normlens.corpus.sequences import Categories, cut_length
from normlens.errors import InputError

from .builder import TEXTS, build
from .conftest import tiny_tokenizer


@pytest.mark.parametrize(
    ("wanted", "longest", "length"), [(None, None, 128), (None, 512, 128), (None, 18, 18), (9, 18, 9)]
)
def test_sequences_are_cut_at_the_wanted_or_the_longest_length(wanted, longest, length) -> None:
    assert cut_length(wanted, longest) == length


def test_no_sequence_is_longer_than_the_model_takes() -> None:
    with pytest.raises(InputError, match="19, the model takes 18"):
        cut_length(19, 18)
    with pytest.raises(InputError, match="room for text"):
        build([], max_length=3)
    _, (cut,) = build([Record("x", TEXTS[0], TEXTS[1])], max_length=6)
    assert len(cut.ids) == 6


def test_tokens_of_the_model_keep_their_segments() -> None:
    tokenizer, (pair, tokens) = build(
        [
            Record("x", "the river", "a stone"),
            Record("y", tokens=("[CLS]", "the", "river", "[SEP]", "a", "stone", "[SEP]")),
        ]
    )
    assert tokenizer.decode(pair.ids) == tokenizer.decode(tokens.ids)
    np.testing.assert_array_equal(pair.segments, tokens.segments)


def test_rules_that_are_functions_can_be_sent_to_other_processes() -> None:
    tokenizer = tiny_tokenizer()
    categories = Categories.of(tokenizer, {"long": lambda token: len(token) > 3})
    vocabulary = tokenizer.convert_ids_to_tokens(range(len(tokenizer)))
    other = pickle.loads(pickle.dumps(categories.portable(vocabulary)))
    ids = list(range(len(tokenizer)))
    np.testing.assert_array_equal(categories.codes(ids, vocabulary), other.codes(ids, vocabulary))


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
