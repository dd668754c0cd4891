from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from normlens.alignment.parallel_files import read_sentences
from normlens.inputs.segmentation import Segmenter, split_words
from tests.alignment.data import GOLD, MODELS, needs_gold, needs_models
from tests.text.tokenizers_for_tests import CORPUS, KINDS, tokenizer

word = st.text(alphabet="aehlmnors'.,10éœß中\u00a0\u200b\u3000ﬁ½😀", min_size=1, max_size=6)
# "000" has two segmentations of equal score, and SentencePiece may take either, so it is no test of ours.
known = st.sampled_from(sorted({w for line in CORPUS for w in line.split()} - {"000"}))
sentences = st.lists(st.one_of(known, word), max_size=8)


@pytest.mark.parametrize("target", [False, True])
@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=60, deadline=None)
@given(words=sentences)
def test_no_word_is_lost_or_invented(kind: str, target: bool, words: list[str]) -> None:
    segmented = Segmenter(tokenizer(kind), target=target)(" ".join(words))
    assert list(segmented.words) == words
    assert len(segmented.spans) == len(words)
    places = [place for span in segmented.spans for place in span]
    assert sorted(set(places)) == list(range(len(segmented.ids)))  # every subword has its word
    assert places == sorted(places)  # words in order hold subwords in order


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=40, deadline=None)
@given(words=st.lists(known, max_size=8))
def test_the_subwords_are_the_tokenizers_own(kind: str, words: list[str]) -> None:
    segmenter = Segmenter(tokenizer(kind))
    text = " ".join(words)
    assert list(segmenter(text).ids) == tokenizer(kind)(text, add_special_tokens=False)["input_ids"]
    full = [*segmenter.prefix, *segmenter(text).ids, *segmenter.suffix]
    assert full == tokenizer(kind)(text)["input_ids"]


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=40, deadline=None)
@given(words=st.lists(known, min_size=1, max_size=8))
def test_a_words_subwords_spell_the_word(kind: str, words: list[str]) -> None:
    segmented = Segmenter(tokenizer(kind))(" ".join(words))
    for text, span in zip(segmented.words, segmented.spans, strict=True):
        pieces = tokenizer(kind).convert_ids_to_tokens([segmented.ids[place] for place in span])
        if "<unk>" in pieces or kind == "byte-level":
            assert pieces
            continue
        spelled = "".join(pieces).replace("▁", "").replace("##", "").replace("</w>", "")
        expected = text.replace("é", "e").replace("à", "a") if kind == "wordpiece" else text
        assert spelled == expected


def test_a_word_that_becomes_no_subword_keeps_its_place() -> None:
    segmented = Segmenter(tokenizer("wordpiece"))("the \u200b house")
    assert segmented.words == ("the", "\u200b", "house")
    assert segmented.spans[1] == ()
    assert segmented.spans[0] and segmented.spans[2]


def test_an_unknown_word_has_the_unknown_token() -> None:
    for kind in ("wordpiece", "metaspace", "marian"):
        segmented = Segmenter(tokenizer(kind))("the 中 house")
        assert tokenizer(kind).unk_token_id in [segmented.ids[place] for place in segmented.spans[1]]


def test_raw_text_is_cut_where_the_tokenizer_cuts_it() -> None:
    line = "The house, don't stop!"
    assert Segmenter(tokenizer("wordpiece"), raw=True)(line).words == (
        *("The", "house", ",", "don", "'", "t", "stop", "!"),
    )
    for kind in ("metaspace", "marian", "bpe-end-of-word"):
        assert Segmenter(tokenizer(kind), raw=True)(line).words == ("The", "house,", "don't", "stop!")
    for kind in KINDS:
        segmented = Segmenter(tokenizer(kind), raw=True)(line)
        assert sorted(place for span in segmented.spans for place in span) == list(range(len(segmented.ids)))


def test_only_ascii_blanks_part_words() -> None:
    assert split_words(" a\u00a0b  c\td\u3000e \r\n") == ["a\u00a0b", "c", "d\u3000e"]


@needs_gold
@needs_models
@pytest.mark.real
def test_the_released_marian_tokenizers_segment_word_by_word() -> None:
    from transformers import AutoTokenizer

    marian = AutoTokenizer.from_pretrained(MODELS / "opus-mt-fr-en")
    for target, language in ((False, "fr"), (True, "en")):
        segmenter = Segmenter(marian, target=target)
        for words in read_sentences(GOLD / "hansards-en-fr" / f"test.{language}"):
            segmented = segmenter(" ".join(words))
            text = {"text_target" if target else "text": " ".join(words)}
            assert list(segmented.ids) == marian(**text, add_special_tokens=False)["input_ids"]
            assert all(segmented.spans)
