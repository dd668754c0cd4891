"""Token text that can be drawn: any string in, visible characters of the available fonts out."""

from __future__ import annotations

import unicodedata
from functools import lru_cache
from typing import Any

import matplotlib
from matplotlib import font_manager

from normlens.inputs.tokens import SIGNS

#: Ships with matplotlib: Latin, Greek, Cyrillic, Hebrew, Arabic and the mathematical signs of the labels.
BASE_FAMILY = "DejaVu Sans"

#: Names in matplotlib's settings that stand for a list of fonts.
GENERIC = ("sans-serif", "serif", "monospace", "cursive", "fantasy")


def families() -> tuple[str, ...]:
    """The fonts to draw with, in order: matplotlib's own, then those that the caller chose in `rcParams`.

    A script that matplotlib's own font lacks is drawn once the caller names a font that has it, as usual:
    `matplotlib.rcParams["font.family"] = ["Noto Sans CJK JP"]`. Nothing else that happens to be installed is used, so
    that a picture is the same on every machine.
    """
    chosen: list[str] = []
    settings: Any = matplotlib.rcParams
    stock: Any = matplotlib.rcParamsDefault
    for family in settings["font.family"]:
        chosen += settings[f"font.{family}"] if family in GENERIC else [family]
    common = {name for kind in GENERIC for name in stock[f"font.{kind}"]}
    installed = _installed()
    extra = dict.fromkeys(name for name in chosen if name in installed and name not in common)
    return (BASE_FAMILY, *extra)


def printable(text: str, limit: int | None = None) -> str:
    """The text with everything invisible or undrawable replaced by something visible, cut to `limit` characters.

    Outer spaces become `␣`, a line break `↵`, a tab `⇥`; controls, lone surrogates, direction marks and characters that
    no font has become their code points in angle brackets, so that different tokens stay different.

    >>> printable(" the\\n")
    '␣the↵'
    >>> printable("a\\x00b")
    'a⟨0000⟩b'
    >>> printable("incomprehensibilities", limit=10)
    'incompreh…'
    """
    known = _code_points(families())
    core = text.strip(" ")
    leading = len(text) - len(text.lstrip(" "))
    marked = "␣" * leading + core + "␣" * (len(text) - leading - len(core))
    pieces: list[str] = []
    codes: list[str] = []

    def flush() -> None:
        if codes:
            pieces.append("⟨" + " ".join(codes) + "⟩")
            codes.clear()

    for character in marked:
        if character in SIGNS:
            flush()
            pieces.append(SIGNS[character])
        elif _has_shape(character) and ord(character) in known:
            flush()
            pieces.append(character)
        else:
            codes.append(f"{ord(character):04X}")
    flush()
    drawn = "".join(pieces) or "∅"
    if unicodedata.category(drawn[0]).startswith("M"):
        drawn = "◌" + drawn  # a mark with nothing to stand on would land on its neighbour
    if limit is not None and len(drawn) > limit:
        drawn = drawn[: limit - 1] + "…"
    return drawn


def _has_shape(character: str) -> bool:
    # Cc, Cf, Cs, Co, Cn: controls, direction marks, surrogates, private, unassigned; Z*: spaces that look like " ".
    return character == " " or unicodedata.category(character)[0] not in "CZ"


@lru_cache(maxsize=8)
def _code_points(names: tuple[str, ...]) -> frozenset[int]:
    """The code points that at least one of these fonts can draw."""
    found: set[int] = set()
    for name in names:
        path = font_manager.findfont(font_manager.FontProperties(family=[name]), fallback_to_default=False)
        found.update(font_manager.get_font(path).get_charmap())
    return frozenset(found)


@lru_cache(maxsize=1)
def _installed() -> frozenset[str]:
    return frozenset(font_manager.fontManager.get_font_names())
