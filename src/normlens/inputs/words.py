"""The words of running text, for any script, by characters alone.

Other commands take words as they come, between spaces. What stands in a text with punctuation (tags, labels, offsets)
needs them without it, and a text in a script without spaces needs them at all:

* letters, marks and digits stand together; a hyphen, a point or a comma between two of them joins (`well-known`, `3.14`);
* an apostrophe ends a word (`l'|eau`, `qu'|il`), unless an English ending follows it (`don't`, `Anna's`);
* a Han character, and a syllable of a script that is written without spaces, is a word by itself; a run of katakana is
  one, since it spells one foreign word or several;
* every other visible character is a word by itself: punctuation, symbols.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence

#: First and one past the last character.
Span = tuple[int, int]

_ENDINGS = frozenset({"s", "t", "m", "d", "ll", "re", "ve"})
_APOSTROPHES = "'\u2019"
_JOINERS = "-\u2010\u2011.,_@/:"
#: Scripts without spaces whose characters are taken one by one, with the marks that follow them.
_SINGLE = re.compile(
    "[\u3005-\u3007\u3041-\u309f\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003134f"  # Han, hiragana
    "\u0e00-\u0e7f\u0e80-\u0eff\u1000-\u109f\u1780-\u17ff]"  # Thai, Lao, Burmese, Khmer
)
#: Vowels that are written before their consonant in Thai and Lao, and begin the syllable.
_LEADING = frozenset("\u0e40\u0e41\u0e42\u0e43\u0e44\u0ec0\u0ec1\u0ec2\u0ec3\u0ec4")

_STOPS = (".", "!", "?", "\u2026", "\u3002", "\uff01", "\uff1f", "\u0964", "\u06d4", "\u061f", "\u104b", "\u17d4")
_STOPS_IN_ONE = "".join(_STOPS)
_CLOSERS = "\"'\u2019\u201d\u00bb\u203a)]}\u300d\u300f\uff09"


def word_spans(text: str) -> list[Span]:
    """The words of a text by their characters; blanks belong to none.

    >>> [text[a:b] for text in ["L'eau, c'est bon!"] for a, b in word_spans(text)]
    ["L'", 'eau', ',', "c'", 'est', 'bon', '!']
    >>> [text[a:b] for text in ["don't buy 3.5 well-known 日本語"] for a, b in word_spans(text)]
    ["don't", 'buy', '3.5', 'well-known', '日', '本', '語']
    """
    spans: list[Span] = []
    place = 0
    while place < len(text):
        if text[place].isspace() or _is_invisible(text[place]):
            place += 1
            continue
        end = _end_of_word(text, place)
        spans.append((place, end))
        place = end
    return spans


def spaced_spans(text: str) -> list[Span]:
    """The words between ASCII spaces and tabs, as `segmentation.split_words` has them."""
    return [match.span() for match in re.finditer(r"[^ \t\r\n]+", text)]


def sentence_ends(words: Sequence[str]) -> list[int]:
    """The number of words before the end of each sentence: after a full stop and what closes with it.

    A sentence ends with a word that ends in `.`, `!`, `?`, an ellipsis or their likes in other scripts, quotes and brackets
    that close after it included. An abbreviation is taken for an end as well.

    >>> sentence_ends(["He", "said:", "“", "No", ".", "”", "She", "left."])
    [6, 8]
    """
    found: list[int] = []
    for place, word in enumerate(words, start=1):
        bare = word.rstrip(_CLOSERS)
        after_end = bool(found) and found[-1] == place - 1
        if not bare and after_end:
            found[-1] = place
        elif bare.endswith(_STOPS):
            if after_end and not bare.strip(_STOPS_IN_ONE):
                found[-1] = place  # "? !", ". . ."
            else:
                found.append(place)
    return found


def _end_of_word(text: str, start: int) -> int:
    if _SINGLE.match(text[start]):
        end = start + 1
        if text[start] in _LEADING and end < len(text) and _SINGLE.match(text[end]):
            end += 1
        return _over_marks(text, end)
    if not _is_letter(text[start]):
        return _over_marks(text, start + 1)
    end = start + 1
    while end < len(text):
        character = text[end]
        if _SINGLE.match(character):
            break
        following = _letters_from(text, end + 1)
        if _is_letter(character) or _is_mark(character) or _is_invisible(character):
            end += 1
        elif character in _APOSTROPHES:
            if not following:
                break
            if following.lower() not in _ENDINGS:
                return end + 1
            end += 1
        elif character in _JOINERS and following and _joins(text, end):
            end += 1
        else:
            break
    return end


def _joins(text: str, place: int) -> bool:
    """A hyphen joins letters and digits; points, commas and the like join digits, or stand inside an address."""
    before, after = text[place - 1], text[place + 1]
    if text[place] in "-\u2010\u2011_@":
        return True
    if text[place] in ".,:/":
        return before.isdigit() and after.isdigit()
    return False


def _letters_from(text: str, start: int) -> str:
    end = start
    while end < len(text) and (_is_letter(text[end]) or _is_mark(text[end])) and not _SINGLE.match(text[end]):
        end += 1
    return text[start:end]


def _over_marks(text: str, end: int) -> int:
    while end < len(text) and (_is_mark(text[end]) or _is_invisible(text[end])):
        end += 1
    return end


def _is_letter(character: str) -> bool:
    return unicodedata.category(character)[0] in "LN"


def _is_mark(character: str) -> bool:
    return unicodedata.category(character)[0] == "M"


def _is_invisible(character: str) -> bool:
    """Controls and format characters: joiners, direction marks, the soft hyphen."""
    return unicodedata.category(character)[0] == "C" and not character.isspace()


def shortened(text: object) -> str:
    """Return a text for a message, cut at 60 characters."""
    shown = repr(text)
    return shown if len(shown) <= 60 else f"{shown[:57]}…"
