"""Tokens as people read them: bytes decoded, nothing invisible left, pieces joined to words and sentences."""

from __future__ import annotations

import unicodedata

from hypothesis import given, settings
from hypothesis import strategies as st

from normlens.inputs.tokens import is_byte_level, readable_tokens, sentence, words_by_marks


@given(st.text(max_size=20))
@settings(max_examples=100, deadline=None)
def test_nothing_invisible_is_left_in_a_readable_token(token: str) -> None:
    (text,) = readable_tokens([token])
    assert text
    kept = {"\u200d", "\ufe0e", "\ufe0f"}
    assert not [c for c in text if unicodedata.category(c) in {"Cc", "Cf", "Cs", "Zl", "Zp"} and c not in kept]


def test_byte_level_tokens_are_read_as_text() -> None:
    tokens = ["<|begin_of_text|>", "Hello", "Ġwor", "ld", "ĠæĹ", "¥", "Ċ", "ĠðŁĺĢ"]
    assert is_byte_level(tokens)
    assert readable_tokens(tokens) == ["<|begin_of_text|>", "Hello", "wor", "ld", "⟨20 E6 97⟩", "⟨A5⟩", "↵", "😀"]
    assert words_by_marks(tokens, {tokens[0]}) == (0, 1, 2, 2, 3, 3, 4, 5)
    assert readable_tokens(["שלום", "日本", "👩🏽‍💻"]) == ["שלום", "日本", "👩🏽‍💻"]


def test_a_sentence_has_its_words_and_no_special_tokens() -> None:
    assert sentence(["<s>", "ĠHello", ",", "Ġworld", "Ċ", "</s>"]) == "Hello, world ↵"
    assert sentence(["[CLS]", "a", "[SEP]", "b", "[SEP]"]) == "a b"


def test_words_follow_the_tokenizers_marks() -> None:
    assert words_by_marks(["[CLS]", "gal", "##lon", "of", "[SEP]"], {"[CLS]", "[SEP]"}) == (0, 1, 1, 2, 3)
    assert words_by_marks(["▁Bon", "jour", ".", "</s>"], {"</s>"}) == (0, 0, 0, 1)
