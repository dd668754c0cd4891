"""Any token can be drawn, and what is drawn can be seen."""

from __future__ import annotations

import unicodedata

import matplotlib
import pytest
from hypothesis import given
from hypothesis import strategies as st
from matplotlib import font_manager

from normlens.plots.text import BASE_FAMILY, families, printable


def charmap() -> set[int]:
    return set(font_manager.get_font(font_manager.findfont(BASE_FAMILY)).get_charmap())


@given(st.text(st.characters(exclude_categories=())))
def test_every_string_becomes_visible_characters_of_the_font(text: str) -> None:
    drawn = printable(text)
    assert drawn.strip(), "something must be seen, also of an empty token"
    assert {ord(character) for character in drawn} <= charmap()
    assert all(character == " " or unicodedata.category(character)[0] not in "CZ" for character in drawn)


@given(st.text(), st.integers(2, 30))
def test_a_limit_is_kept(text: str, limit: int) -> None:
    assert len(printable(text, limit)) <= limit


@given(st.text("abcXYZ019'#[]_$\\<>&éßжΩ", min_size=1))
def test_ordinary_text_is_not_changed(text: str) -> None:
    assert printable(text) == text


@pytest.mark.parametrize(
    ("token", "drawn"),
    [
        (" the ", "␣the␣"),
        ("   ", "␣␣␣"),
        ("\n\n", "↵↵"),
        ("\x00", "⟨0000⟩"),
        ("東京x", "⟨6771 4EAC⟩x"),
        ("\u202eevil", "⟨202E⟩evil"),
        ("\ud800", "⟨D800⟩"),
        ("\u0301", "◌\u0301"),
        ("", "∅"),
        ("$x^2$", "$x^2$"),
    ],
)
def test_what_stands_for_what(token: str, drawn: str) -> None:
    assert printable(token) == drawn


def test_different_unknown_characters_stay_different() -> None:
    assert len({printable(token) for token in ("東", "京", "都", "👍", "👎")}) == 5


def test_only_fonts_that_the_caller_names_are_added() -> None:
    assert families() == (BASE_FAMILY,)
    with matplotlib.rc_context({"font.family": ["STIXGeneral", "No Such Font", "sans-serif"]}):
        assert families() == (BASE_FAMILY, "STIXGeneral")
    with matplotlib.rc_context({"font.sans-serif": ["cmr10"]}):
        assert families() == (BASE_FAMILY, "cmr10")


def test_a_font_of_the_callers_draws_what_the_base_font_lacks() -> None:
    only_stix = next(
        code
        for code in sorted(set(font_manager.get_font(font_manager.findfont("STIXGeneral")).get_charmap()) - charmap())
        if unicodedata.category(chr(code))[0] not in "CZM"
    )
    assert printable(chr(only_stix)) == f"⟨{only_stix:04X}⟩"
    with matplotlib.rc_context({"font.family": ["STIXGeneral"]}):
        assert printable(chr(only_stix)) == chr(only_stix)
