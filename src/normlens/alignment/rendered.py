"""The text that a reader of HTML, XML or Markdown sees, by the parsers that others use."""

from __future__ import annotations

from collections.abc import Sequence
from html.parser import HTMLParser
from typing import TYPE_CHECKING
from xml.parsers import expat

from markdown_it import MarkdownIt

if TYPE_CHECKING:
    from markdown_it.token import Token

_MARKDOWN = MarkdownIt("commonmark").enable("strikethrough")


def html_text(line: str) -> str:
    """Return the text of an HTML fragment without its tags and comments."""
    found: list[str] = []

    class Reader(HTMLParser):
        def handle_data(self, data: str) -> None:
            found.append(data)

    reader = Reader(convert_charrefs=True)
    reader.feed(line)
    reader.close()
    return "".join(found)


def xml_text(line: str) -> str:
    """Return the text of an XML fragment; raises `ValueError` where it is not well-formed."""
    found: list[str] = []
    reader = expat.ParserCreate(encoding="utf-8")
    reader.CharacterDataHandler = found.append
    try:
        reader.Parse(f"<line>{line}</line>".encode(), True)
    except expat.ExpatError as error:
        raise ValueError(expat.ErrorString(error.code)) from error
    return "".join(found)


def markdown_text(line: str) -> str:
    """Return the text of a line of Markdown (CommonMark, with strikethrough) without its markup.

    A block that is more than one line of text (a list in a list, a rule, a block of code) raises `ValueError`.
    """
    tokens = [token for token in _MARKDOWN.parse(line) if token.nesting == 0]
    if not tokens:
        return ""
    if len(tokens) > 1 or tokens[0].type not in ("inline", "html_block"):
        raise ValueError(f"it is read as {', '.join(sorted({token.type for token in tokens}))}")
    if tokens[0].type == "html_block":  # nothing in it is Markdown
        return html_text(tokens[0].content)
    return _inline_text(tokens[0].children or ())


def _inline_text(tokens: Sequence[Token]) -> str:
    found = []
    for token in tokens:
        if token.type in ("text", "text_special", "code_inline"):
            found.append(token.content)
        elif token.type in ("softbreak", "hardbreak"):
            found.append("\n")
    return "".join(found)
