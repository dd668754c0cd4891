"""Marks over links: what users complain of elsewhere as cases, and well-formedness as laws over random trees."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from normlens.alignment.marked_text import Mark, MarkedText
from normlens.alignment.markup import read_markup, write_markup
from normlens.alignment.projection import project_marks
from normlens.errors import InputError
from normlens.inputs.words import word_spans


def carried(source: str, target: str, links: str, pieces: str = "one", markup: str = "html") -> str:
    """The target with the source's markup over links `0-1 2-0:0.5`, counted in words of running text."""
    scores = {}
    for link in links.split():
        words, _, score = link.partition(":")
        one, other = words.split("-")
        scores[int(one), int(other)] = float(score or 1)
    marked = read_markup(source, markup)  # type: ignore[arg-type]
    found = project_marks(marked, marked.words(word_spans), target, word_spans(target), scores, pieces)  # type: ignore[arg-type]
    return write_markup(found, markup)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("source", "target", "links", "expected"),
    [
        # reordered words
        ("a <b>red</b> car", "une voiture rouge", "0-0 1-2 2-1", "une voiture <b>rouge</b>"),
        ("a <b>red</b> <i>car</i>", "une voiture rouge", "0-0 1-2 2-1", "une <i>voiture</i> <b>rouge</b>"),
        ("<b>a <i>red</i> car</b>", "une voiture rouge", "0-0 1-2 2-1", "<b>une voiture <i>rouge</i></b>"),
        # punctuation stays where it was: inside or outside of the element
        ("see <b>this</b>.", "voir ceci.", "0-0 1-1 2-2", "voir <b>ceci</b>."),
        ("see <b>this.</b>", "voir ceci.", "0-0 1-1 2-2", "voir <b>ceci.</b>"),
        ("(<b>this</b>), that", "(ceci), cela", "0-0 1-1 2-2 3-3 4-4", "(<b>ceci</b>), cela"),
        ('say "<q>yes</q>"', "dis « oui »", "0-0 1-1 2-2 3-3", "dis « <q>oui</q> »"),
        # punctuation without a link inside of a stretch is taken in, at its edge it is not
        ("<b>one two</b> three", "un, deux, trois", "0-0 1-2 2-4", "<b>un, deux</b>, trois"),
        # an apostrophe ends a word
        ("the <b>water</b>", "l'eau", "0-0 1-1", "l'<b>eau</b>"),
        # a stray link far away is left out; a foreign word in the midst is taken in
        ("<b>big house</b> of the mayor", "grande maison de le maire", "0-0 1-1 2-2 3-3 4-4 0-3:0.3",
         "<b>grande maison</b> de le maire"),
        ("<b>will not go</b> there", "ira pas demain", "0-0 2-0 1-1 3-2", "<b>ira pas</b> demain"),
        ("<b>take off</b> it", "prends le tout", "0-0 1-2 2-1:0.5", "<b>prends le tout</b>"),
        # a tag inside of a word covers the word
        ("un<b>believ</b>able story", "histoire incroyable", "0-1 1-0", "histoire <b>incroyable</b>"),
        # everything in, everything out, linked or not
        ("<p>one two</p>", "un deux trois", "0-0", "<p>un deux trois</p>"),
        ("<p><b>one two</b></p>", "un deux trois", "", "<p><b>un deux trois</b></p>"),
        # points, by their neighbours
        ("one<br/>two three", "un deux trois", "0-0 1-1 2-2", "un<br/> deux trois"),
        ("one <br/>two three", "un deux trois", "0-0 1-1 2-2", "un <br/>deux trois"),
        ("a red<x/> car goes", "une voiture rouge va", "0-0 1-2 2-1 3-3", "une voiture rouge<x/> va"),
        ("<br/>one two<br/>", "un deux", "0-0 1-1", "<br/>un deux<br/>"),
        ("one <b><i></i></b>two", "un deux", "0-0 1-1", "un <b><i></i></b>deux"),
        ("a <b>red<x/></b> car", "une voiture rouge", "0-0 1-2 2-1", "une voiture <b>rouge<x/></b>"),
        ("<b>one</b><x/> <i>two</i>", "un deux", "0-0 1-1", "<b>un</b><x/> <i>deux</i>"),
        # what is text stays text
        ("a &lt; <b>b</b> &amp; c", "a < b & c", "0-0 1-1 2-2 3-3 4-4", "a &lt; <b>b</b> &amp; c"),
    ],
)  # fmt: skip
def test_elements_follow_their_words(source: str, target: str, links: str, expected: str) -> None:
    assert carried(source, target, links) == expected


def test_an_element_whose_words_part_is_one_or_many() -> None:
    source, target, links = "I do <b>not</b> know", "je ne sais pas", "0-0 2-1:0.4 3-2 2-3:0.9"
    assert carried(source, target, links) == "je ne sais <b>pas</b>"
    assert carried(source, target, links, "many") == "je <b>ne</b> sais <b>pas</b>"
    nested = carried("<b>do <i>not</i></b> know", "ne sais pas", "1-0 2-1 1-2", "many")
    assert nested == "<b><i>ne</i></b> sais <b><i>pas</i></b>"
    with pytest.raises(InputError, match="one, many"):
        carried(source, target, links, "few")


def test_what_has_no_place_is_reported_and_kept_empty() -> None:
    marked = read_markup("the <b>little</b> <i>house</i>", "html")
    found = project_marks(marked, marked.words(word_spans), "maison", [(0, 6)], {(2, 0): 0.9})
    assert [mark.name for mark in found.unplaced] == ["b"]
    assert write_markup(found, "html") == "<b></b><i>maison</i>"
    assert {piece.mark.name: piece.score for piece in found.walk()} == {"b": 0.0, "i": 1.0}


def test_scores_say_what_agrees() -> None:
    marked = MarkedText("one two three", (Mark(0, 7, "x"),))
    words = word_spans(marked.text)

    def score(links: dict[tuple[int, int], float]) -> float:
        return next(
            iter(project_marks(marked, words, "un deux trois", word_spans("un deux trois"), links).walk())
        ).score

    assert score({(0, 0): 0.9, (1, 1): 0.8, (2, 2): 0.7}) == 1
    assert score({(0, 0): 1.0, (2, 2): 1.0}) == 0.5  # one of two words has no link
    assert score({(0, 0): 1.0, (1, 0): 1.0, (1, 2): 0.5, (2, 2): 1.0}) == pytest.approx(
        2 / 2.5
    )  # a link leads elsewhere


def test_links_must_be_of_the_pair() -> None:
    with pytest.raises(InputError, match="outside of the 1 source and 1 target"):
        project_marks(MarkedText("a"), [(0, 1)], "b", [(0, 1)], {(0, 1): 1.0})


# ---- laws over random trees, texts and links ------------------------------------------------------------------------

WORD = st.sampled_from(["a", "bc", "d.", "(e)", "l'f", "&", "<", "9", "g-h", "日本"])


@st.composite
def markup(draw: st.DrawFn, depth: int = 0) -> str:
    """Well-formed HTML with every element numbered, so that none is like another."""
    parts = []
    for _ in range(draw(st.integers(0, 4))):
        kind = draw(st.sampled_from(["text", "text", "element", "point"] if depth < 3 else ["text", "point"]))
        if kind == "text":
            parts.append(draw(WORD).replace("&", "&amp;").replace("<", "&lt;") + draw(st.sampled_from(["", " "])))
        elif kind == "point":
            parts.append("<br #/>")
        else:
            name = draw(st.sampled_from("abi"))
            parts.append(f"<{name} #>{draw(markup(depth=depth + 1))}</{name}>")
    return "".join(parts)


def numbered(text: str) -> str:
    first, *rest = text.split("#")
    return first + "".join(f'n="{i}"{part}' for i, part in enumerate(rest))


@st.composite
def cases(draw: st.DrawFn) -> tuple[MarkedText, str, dict[tuple[int, int], float]]:
    marked = read_markup(numbered(draw(markup())), "html")
    target = " ".join(draw(st.lists(WORD, max_size=8)))
    sizes = len(marked.words(word_spans)), len(word_spans(target))
    links = {}
    if all(sizes):
        pairs = st.tuples(st.integers(0, sizes[0] - 1), st.integers(0, sizes[1] - 1))
        links = draw(st.dictionaries(pairs, st.floats(0.01, 1), max_size=12))
    return marked, target, links


def path(marks: tuple[Mark, ...], mark: Mark) -> list[str]:
    """The opening tags around a mark, outermost first."""
    return [*([] if mark.parent is None else path(marks, marks[mark.parent])), mark.opening]


@settings(max_examples=300)
@given(cases(), st.sampled_from(["one", "many"]))
def test_well_formed_in_well_formed_out(
    case: tuple[MarkedText, str, dict[tuple[int, int], float]], pieces: str
) -> None:
    marked, target, links = case
    found = project_marks(marked, marked.words(word_spans), target, word_spans(target), links, pieces)  # type: ignore[arg-type]
    again = read_markup(write_markup(found, "html"), "html")  # raises where it is not well-formed
    assert again.text == target
    before = sorted(path(marked.marks, mark) for mark in marked.marks)
    after = sorted(path(again.marks, mark) for mark in again.marks)
    if pieces == "one":
        assert after == before, "every element comes out once, inside of what was around it"
    else:
        assert {*map(tuple, after)} == {*map(tuple, before)}
    edges = {0, len(target)} | {edge for span in word_spans(target) for edge in span}
    assert {edge for mark in again.marks for edge in (mark.start, mark.end)} <= edges, "no tag inside of a word"
    assert all(0 <= piece.score <= 1 + 1e-12 for piece in found.walk())
    lost = [mark.opening for mark in found.unplaced]
    for mark in again.marks:
        own = next(one for one in marked.marks if one.opening == mark.opening)
        if marked.text[own.start : own.end].strip() and mark.start == mark.end:
            assert mark.opening in lost, "an element that lost its words is reported"


@given(cases())
def test_a_text_carried_to_itself_keeps_its_marks(case: tuple[MarkedText, str, dict[tuple[int, int], float]]) -> None:
    marked = case[0]
    words = marked.words(word_spans)
    starts, ends = ({span[side] for span in words} for side in (0, 1))
    if any(mark.start < mark.end and not (mark.start in starts and mark.end in ends) for mark in marked.marks):
        return  # a mark with half a word or with blanks at its edge comes out around whole words
    found = project_marks(marked, words, marked.text, words, {(i, i): 1.0 for i in range(len(words))})
    assert not found.unplaced
    spans = {piece.mark.opening: (piece.start, piece.end) for piece in found.walk()}
    for mark in marked.marks:
        if mark.start < mark.end:
            assert spans[mark.opening] == (mark.start, mark.end)
