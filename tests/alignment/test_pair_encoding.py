from __future__ import annotations

import pytest

from normlens.alignment.aligner import Aligner
from normlens.alignment.word_maps import WordMapper
from normlens.errors import InputError
from normlens.inputs.encoding import longest_input
from tests.alignment.models_for_tests import FAMILIES, SENTENCES, lens


@pytest.mark.parametrize("family", FAMILIES)
def test_the_decoder_takes_start_language_and_target(family: str) -> None:
    """What is forced must be what the model itself would be trained on: labels shifted by one."""
    import torch

    mine = lens(family)
    pair = WordMapper(mine).encoder(*SENTENCES[0])
    labels = torch.tensor([mine.tokenizer(text_target=SENTENCES[0][1])["input_ids"]])
    if family == "m2m_100":
        from transformers.models.m2m_100.modeling_m2m_100 import shift_tokens_right

        shifted = shift_tokens_right(labels, mine.tokenizer.pad_token_id, mine.model.config.decoder_start_token_id)
    else:
        shifted = mine.model.prepare_decoder_input_ids_from_labels(labels)  # type: ignore[operator]
    assert [list(pair.decoder_ids)] == shifted.tolist()
    assert list(pair.source_ids) == mine.tokenizer(SENTENCES[0][0])["input_ids"]


def test_a_prefix_belongs_to_no_word() -> None:
    aligner = Aligner(lens("t5"), layer=1, source_prefix="the big hill :", combine="mean", extract="argmax")
    pair = aligner.forward.encoder(*SENTENCES[1])
    assert len(pair.columns) == 3 and min(pair.columns[0]) >= 4
    assert max(s for s, _ in aligner.align_pair(*SENTENCES[1]).links) <= 2


def test_raw_text_is_aligned_by_the_tokenizers_words() -> None:
    result = Aligner(lens("bart"), layer=1, raw=True).align_pair("The house, now!", "La maison, là!")
    assert result.source == ("The", "house", ",", "now", "!")
    assert "".join(result.target) == "Lamaison,là!"


def test_languages_are_set_where_there_are_any() -> None:
    aligner = Aligner(lens("m2m_100"), layer=1, source_language="fr", target_language="de")
    codes = lens("m2m_100").tokenizer
    assert aligner.forward.encoder.source_start == (codes.get_lang_id("fr"),)
    assert aligner.forward.encoder.decoder_start == (codes.eos_token_id, codes.get_lang_id("de"))
    with pytest.raises(InputError, match="has no languages"):
        Aligner(lens("t5"), source_language="fr")


@pytest.mark.parametrize("family", ["marian", "m2m_100", "bart"])
def test_a_pair_may_be_as_long_as_the_model_takes_and_no_longer(family: str) -> None:
    encode, limit = WordMapper(lens(family)).encoder, longest_input(lens(family).model, lens(family).tokenizer)
    assert limit is not None
    problems = [encode("a " * count, "a").problem for count in range(1, limit + 1)]
    longest = max(i for i, problem in enumerate(problems) if problem is None)
    assert len(encode("a " * (longest + 1), "a").source_ids) == limit
    assert problems[longest + 1] == f"{limit + 1} subwords, the model takes {limit}"
