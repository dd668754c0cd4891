"""Categories and frequency ranks."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import rankdata

from normlens.corpus.options import Reading
from normlens.corpus.reading import Record, write_records
from normlens.corpus.run import open_builder
from normlens.corpus.sequences import Categories, ranks_by_count, read_ranks
from normlens.errors import InputError

from .builder import build
from .conftest import tiny_tokenizer


def test_the_papers_categories() -> None:
    tokenizer, (item,) = build([Record("x", "the river , [MASK] .", "a [UNK]")])
    names = Categories.of(tokenizer).names
    assert [names[code] for code in item.category] == (
        ["cls", "other", "other", "comma_period", "mask", "comma_period", "sep", "other", "other", "sep"]
    )


def test_rules_functions_and_tags(lens, tmp_path: Path) -> None:
    tokenizer = tiny_tokenizer()
    kinds = Categories.of(tokenizer, {"article": "the|a", "long": lambda word: len(word) > 4})
    assert kinds.names == ("cls", "sep", "mask", "special", "article", "long", "other")
    ids = tokenizer("the river stone , a")["input_ids"]
    found = [kinds.names[code] for code in kinds.codes(ids, tokenizer.convert_ids_to_tokens(ids))]
    assert found == ["cls", "article", "long", "long", "other", "article", "sep"]
    path = tmp_path / "tagged.jsonl"
    rows = [{"words": ["the", "river", "."], "pos": ["DET", "NOUN", "PUNCT"]}, {"words": ["old"], "pos": ["ADJ", "X"]}]
    path.write_text("\n".join(map(json.dumps, rows)))
    reading = Reading(text_column="words", tag_column="pos", on_error="skip")
    table = write_records(path, reading, tmp_path)
    builder = open_builder(lens, table, reading)
    tagged, log = builder.categories, table.log
    (item,) = builder.build(table.records(0, 1))
    assert [tagged.names[code] for code in item.category] == ["cls", "DET", "NOUN", "PUNCT", "sep"]
    assert log.unreadable == 1 and "tags need one word each" in log.listed[0]["reason"]
    with pytest.raises(InputError, match="must differ"):
        Categories.of(tokenizer, {"cls": "x"})


def test_frequency_ranks(tmp_path: Path) -> None:
    path = tmp_path / "ranks.txt"
    path.write_text("1 90 5\n2 50 7\n2 50 6\n")
    assert read_ranks(path, 9).tolist() == [3, 3, 3, 3, 3, 1, 2, 2, 3]
    path.write_text("1 90 500\n")
    with pytest.raises(InputError, match="vocabulary has 9"):
        read_ranks(path, 9)
    tokenizer, made = build([Record("x", "water water the")])
    ranks = ranks_by_count(np.bincount(made[0].ids, minlength=len(tokenizer)))
    water, the = tokenizer.convert_tokens_to_ids(["water", "the"])
    assert ranks[water] == 1 and ranks[the] in (2, 3, 4) and ranks[tokenizer.mask_token_id] == 5


def test_tied_counts_share_their_rank() -> None:
    """As scipy ranks them; the order of ids says nothing about frequency."""
    counts = np.array([0, 5, 2, 2, 9, 2, 0, 5])
    ranks = ranks_by_count(counts)
    seen = counts > 0
    np.testing.assert_array_equal(ranks[seen], rankdata(-counts[seen]))
    assert set(ranks[~seen]) == {7.0}
    swapped = ranks_by_count(counts[::-1])
    np.testing.assert_array_equal(swapped, ranks[::-1])
