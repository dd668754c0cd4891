from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from normlens.inputs.words import spaced_spans, word_spans


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("L'eau n'est pas chaude.", "L' eau n' est pas chaude ."),
        ("Don't take Anna's well-known 3,500.50 €!", "Don't take Anna's well-known 3,500.50 € !"),
        ("« oui », dit-il…", "« oui » , dit-il …"),
        ("我们在东京买了iPhone。", "我 们 在 东 京 买 了 iPhone 。"),
        ("カタカナは長い", "カタカナ は 長 い"),
        ("ไปเที่ยว", "ไป เที่ ย ว"),
        ("e\u0301te\u0301 naïve", "e\u0301te\u0301 naïve"),
        ("10\u00a0000 francs", "10 000 francs"),
        ("the 'best' one's", "the ' best ' one's"),
    ],
)
def test_words_by_their_characters(text: str, words: str) -> None:
    assert [text[start:end] for start, end in word_spans(text)] == words.split(" ")


@given(st.text(max_size=40))
def test_every_visible_character_is_in_exactly_one_word(text: str) -> None:
    for spans in (word_spans(text), spaced_spans(text)):
        places = [place for start, end in spans for place in range(start, end)]
        assert places == sorted(set(places))
        assert all(start < end for start, end in spans)
    inside = {place for start, end in word_spans(text) for place in range(start, end)}
    for place, character in enumerate(text):
        assert place in inside or character.isspace() or not character.isprintable()
        assert place not in inside or not character.isspace()
