"""Text for terminals: control characters are shown, never obeyed."""

from __future__ import annotations

import re

#: Control characters but tab and line feed, lone surrogates, and the marks that turn the direction of writing around.
_INVISIBLE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff\u202a-\u202e\u2066-\u2069]")


def visible(text: str) -> str:
    r"""The text with control characters written as escapes.

    >>> print(visible("red: \x1b[31m"))
    red: \x1b[31m
    """
    return _INVISIBLE.sub(lambda found: found[0].encode("unicode_escape").decode(), text)
