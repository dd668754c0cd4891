from __future__ import annotations

import html
import re
from xml.etree import ElementTree

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from markdown_it import MarkdownIt

from normlens.alignment.marked_text import Mark, MarkedText, Piece, ProjectedText
from normlens.alignment.markup import read_markup, write_markup
from normlens.errors import InputError


def unchanged(marked: MarkedText) -> ProjectedText:
    """The text with its own marks as pieces."""

    def pieces(parent: int | None) -> tuple[Piece, ...]:
        return tuple(
            Piece(marked.marks[i], marked.marks[i].start, marked.marks[i].end, 1.0, pieces(i))
            for i in marked.children(parent)
        )

    return ProjectedText(marked.text, pieces(None))


@pytest.mark.parametrize(
    ("markup", "line"),
    [
        ("html", 'a <b class="x > y">red</b> car<br> &amp; <!-- note --><i>more</i>'),
        ("html", "1 &lt; 2 <IMG src=a.png> <P>x</P>"),
        ("xml", '<g id="1">a <x id="2"/>b</g> <?target x?>&amp;'),
        ("markdown", "- [ ] a *b*"),
        ("markdown", "> - a *b*"),
        ("xml", '<g>é <x/></g><g><y id="ü"/></g>'),
        ("markdown", '[a](<b c> "d \\"e\\"") and <span>*b</span>*'),
        ("markdown", "# A **red *car*** and `x * y` [here](http://x.y/(z)) ![pic](a.png)"),
        ("markdown", "2 \\* 3 is ~~five~~ _six_, snake\\_case<br>"),
        ("markdown", "- <span>a *b*</span>"),
    ],
)
def test_reading_and_writing_gives_the_line_back(markup: str, line: str) -> None:
    marked = read_markup(line, markup)  # type: ignore[arg-type]
    assert marked.marks
    assert write_markup(unchanged(marked), markup) == line  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("markup", "line", "message"),
    [
        ("html", "a <b>red", "<b> is not"),
        ("html", "a </b>red", "nothing is open"),
        ("html", "<b><i>x</b></i>", "</b> comes while <i> is open"),
        ("xml", "a <br> b", "mismatched tag"),
        ("xml", "a < b", "&lt;"),
        ("xml", "a & b", "&amp;"),
        ("xml", "<B>x</b>", "mismatched tag, column 7"),
        ("rtf", "x", "html, xml, markdown"),
    ],
)
def test_what_is_not_well_formed_is_refused(markup: str, line: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        read_markup(line, markup)  # type: ignore[arg-type]


def test_delimiters_without_a_partner_are_text() -> None:
    for line in ("2 * 3 * 4", "a_b_c", "*open", "[x] (y)", "a ** b **"):
        assert read_markup(line, "markdown") == MarkedText(line)


def test_emphasis_that_markdown_cannot_express_is_written_as_html() -> None:
    piece = Piece(Mark(0, 1, "em", "*", "*"), 2, 4, 1.0)
    assert write_markup(ProjectedText("ab«c", (piece,)), "markdown") == "ab<em>«c</em>"
    lost = Piece(Mark(0, 1, "em", "*", "*"), 1, 1, 0.0)
    assert write_markup(ProjectedText("ab", (lost,)), "markdown") == "ab"


@pytest.mark.parametrize(
    "target",
    [
        "- 5 degrees", "# 1", "1. FC Köln", "2) two", "+ one", "> quote", "---", "===", "    four", "a&amp;b", "a & b",
        "the `name`", "`", "wow!", "a\\", "\\*", "[x]: y", "<b>", "~~~", "ends in blanks  ", "a\nb", "***", "![x](y)",
    ],
)  # fmt: skip
@pytest.mark.parametrize(
    "mark", [("em", "*", "*"), ("code", "`", "`"), ("link", "[", "](http://x.y)"), ("block", "- ", "")]
)
def test_a_target_that_looks_like_markdown_is_still_text(target: str, mark: tuple[str, str, str]) -> None:
    point = not mark[2]
    for start in (0, max(0, len(target) - 1)):
        piece = Piece(Mark(0, 0 if point else 1, *mark), 0 if point else start, 0 if point else len(target), 1.0)
        written = write_markup(ProjectedText(target, (piece,)), "markdown")
        assert parsed_text(written, "markdown") == target


def test_a_link_after_an_exclamation_mark_is_no_image() -> None:
    piece = Piece(Mark(0, 1, "link", "[", "](http://x.y)"), 4, 6, 1.0)
    assert write_markup(ProjectedText("wow!so", (piece,)), "markdown") == "wow\\![so](http://x.y)"


def test_character_data_of_the_source_is_its_text() -> None:
    marked = read_markup("a <g><![CDATA[red & big]]></g> car", "xml")
    assert marked.text == "a red & big car"
    piece = Piece(marked.marks[0], 4, 11, 1.0)
    assert write_markup(ProjectedText("une voiture", (piece,)), "xml") == "une <g>voiture</g>"


@pytest.mark.parametrize(("markup", "text"), [("xml", "a\x00b"), ("xml", "a\x0bb"), ("markdown", "a\x00b")])
def test_what_a_format_cannot_hold_is_refused(markup: str, text: str) -> None:
    with pytest.raises(InputError, match=r"cannot hold the text .* it contains U\+00"):
        write_markup(ProjectedText(text, ()), markup)  # type: ignore[arg-type]


def parsed_text(written: str, markup: str) -> str:
    """The text of a written line by another parser: a browser's rules for HTML and Markdown, an XML tree."""
    if markup == "xml":
        return "".join(ElementTree.fromstring(f"<r>{written}</r>").itertext())
    page = MarkdownIt("commonmark").enable("strikethrough").render(written) if markup == "markdown" else written
    page = re.sub(r"<!--.*?-->|<(?:[^<>\"']|\"[^\"]*\"|'[^']*')*>", "", page)
    text = html.unescape(page)
    return text.strip("\n") if markup == "markdown" else text


MARKS = {
    "html": [("b", "<b>", "</b>"), ("a", '<a href="x > y">', "</a>"), ("br", "<br>", ""), ("comment", "<!-- a -->", "")],
    "xml": [("g", '<g id="1">', "</g>"), ("x", '<x id="2"/>', "")],
    "markdown": [
        ("em", "*", "*"), ("strong", "**", "**"), ("del", "~~", "~~"), ("code", "`", "`"), ("image", "![p](a.png)", ""),
        ("link", "[", "](http://x.y)"), ("tag", "<br>", ""),
    ],
}  # fmt: skip


@st.composite
def projected_texts(draw: st.DrawFn, markup: str) -> ProjectedText:
    text = draw(st.text(alphabet="ab *_~`[]()<>&;/!\\\"'=-#1.+| é«", min_size=1, max_size=16))

    def pieces(start: int, end: int, depth: int) -> tuple[Piece, ...]:
        found: list[Piece] = []
        for _ in range(draw(st.integers(0, 2))):
            first = draw(st.integers(start, end))
            name, opening, closing = draw(st.sampled_from(MARKS[markup]))
            last = draw(st.integers(first, end)) if closing else first
            inner = () if name in ("code", "link") or not closing or depth else pieces(first, last, depth + 1)
            mark = Mark(0, 1 if closing else 0, name, opening, closing)
            found.append(Piece(mark, first, last, 1.0, inner))
            start = last
        return tuple(found)

    return ProjectedText(text, pieces(0, len(text), 0))


@settings(max_examples=300, deadline=None)
@given(data=st.data(), markup=st.sampled_from(["html", "xml", "markdown"]))
def test_without_its_markup_the_written_line_is_the_target(data: st.DataObject, markup: str) -> None:
    projected = data.draw(projected_texts(markup))
    try:
        written = write_markup(projected, markup)  # type: ignore[arg-type]
    except InputError:
        assert markup == "markdown", "HTML and XML hold every printable text"
        return
    assert parsed_text(written, markup) == projected.text


@given(st.text(alphabet="ab *_~`[]()<>&/!\\\"'=-#1.", max_size=30), st.sampled_from(["html", "xml", "markdown"]))
def test_any_line_is_read_or_refused_and_what_is_read_is_written_back(line: str, markup: str) -> None:
    try:
        marked = read_markup(line, markup)  # type: ignore[arg-type]
    except InputError:
        assert markup != "markdown", "every line is Markdown"
        return
    again = read_markup(write_markup(unchanged(marked), markup), markup)  # type: ignore[arg-type]
    assert again.text == marked.text
    if markup != "markdown":
        assert again == marked
