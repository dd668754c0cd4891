from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

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
        ("xml", "a <br> b", "<br> is not"),
        ("xml", "a < b", "&lt;"),
        ("xml", "a & b", "&amp;"),
        ("xml", "<B>x</b>", "</b> comes while <B> is open"),
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
