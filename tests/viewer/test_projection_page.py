"""The page of a pair that carries marks: both texts as they are, each mark in one colour in both, and what was lost."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from normlens.alignment.aligner import Aligner
from normlens.alignment.marked_text import Mark, MarkedText
from normlens.alignment.markup import read_markup
from normlens.errors import InputError
from normlens.viewer.alignment_page import projection_page
from tests.alignment.models_for_tests import SENTENCES, lens
from tests.viewer.reading import barriers

TARGET = SENTENCES[0][1]


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NORMLENS_CACHE", str(tmp_path / "cache"))


@pytest.fixture(scope="module")
def aligner() -> Aligner:
    return Aligner(lens("marian"), reverse=lens("marian", 1), extract="mutual")


def written(parts: list[Any]) -> str:
    """The characters of a tree, without its marks."""
    return "".join(part if isinstance(part, str) else written(part["inside"]) for part in parts)


def nodes(parts: list[Any], around: tuple[int, ...] = ()) -> list[tuple[int, str, float, tuple[int, ...]]]:
    """(mark, its characters, score, the marks around it) of every mark in a tree."""
    found = []
    for part in parts:
        if not isinstance(part, str):
            found.append((part["mark"], written(part["inside"]), part["score"], around))
            found += nodes(part["inside"], (*around, part["mark"]))
    return found


def partly_linked(aligner: Aligner) -> MarkedText:
    """One element around a word that has links, one around a word that has none."""
    source, target = SENTENCES[0]
    aligned = aligner.align_pair(source, target)
    linked = {s for s, _ in aligned.links}
    with_links, without = min(linked), min(set(range(len(aligned.source))) - linked)
    words = source.split()
    marks = {with_links: "b", without: "i"}
    text = " ".join(f"<{marks[i]}>{word}</{marks[i]}>" if i in marks else word for i, word in enumerate(words))
    return read_markup(text, "html")


@pytest.mark.parametrize("pieces", ["one", "many"])
def test_both_texts_are_whole_and_marks_stand_where_project_puts_them(aligner: Aligner, pieces: Any) -> None:
    marked = read_markup("the <b>little <i>house</i></b> stands<br/> on the <a href='x'>hill</a>", "html")
    found = projection_page(aligner, [marked], TARGET, pieces=pieces)["alignment"]["marks"]
    (texts,) = found["texts"]
    assert written(texts["source"]) == marked.text and written(texts["target"]) == TARGET
    assert [mark["name"] for mark in found["marks"]] == ["b", "i", "br", "a"]
    assert [(name, around) for name, _, _, around in nodes(texts["source"])] == [(0, ()), (1, (0,)), (2, ()), (3, ())]
    (projected,) = aligner.project([(marked, TARGET)], pieces=pieces)
    placed = [piece for piece in projected.walk() if piece.mark not in projected.unplaced]
    assert [(mark, text, score) for mark, text, score, _ in nodes(texts["target"])] == [
        (marked.marks.index(piece.mark), TARGET[piece.start : piece.end], piece.score) for piece in placed
    ]
    assert found["words"] == [None, 0, 1, None, None, None, 3]


def test_characters_beyond_sixteen_bits_and_equal_marks_are_kept_apart(aligner: Aligner) -> None:
    marked = MarkedText("𝒳 👩‍👧 house", (Mark(0, 1, "b"), Mark(2, 5, "b"), Mark(6, 11, "b")))
    target = "𝒴 maison 👩‍👧"
    (texts,) = projection_page(aligner, [marked], target)["alignment"]["marks"]["texts"]
    assert written(texts["source"]) == marked.text and written(texts["target"]) == target
    assert [(mark, text) for mark, text, _, _ in nodes(texts["source"])] == [(0, "𝒳"), (1, "👩‍👧"), (2, "house")]


def test_a_lost_mark_is_said_and_what_was_inside_of_it_stays(aligner: Aligner) -> None:
    marked = partly_linked(aligner)
    found = projection_page(aligner, [marked], TARGET)["alignment"]["marks"]
    placed = {mark["name"]: mark["placed"] for mark in found["marks"]}
    assert placed == {"b": True, "i": False}
    assert [found["marks"][mark]["name"] for mark, *_ in nodes(found["texts"][0]["target"])] == ["b"]
    lost = next(mark for mark in marked.marks if mark.name == "i")
    around = MarkedText(
        marked.text, (Mark(lost.start, lost.end, "i"), Mark(lost.start, lost.start, "br", "<br>", "", parent=0))
    )
    found = projection_page(aligner, [around], TARGET)["alignment"]["marks"]
    assert [found["marks"][mark]["name"] for mark, *_ in nodes(found["texts"][0]["target"])] == ["br"]


def test_crossing_marks_come_one_by_one_and_overlapping_ones_of_one_text_are_refused(aligner: Aligner) -> None:
    first, second = Mark(0, 10, "a"), Mark(4, 16, "b")
    texts = [MarkedText(SENTENCES[0][0], (mark,)) for mark in (first, second)]
    found = projection_page(aligner, texts, TARGET)["alignment"]["marks"]
    assert len(found["texts"]) == 2 and [mark["name"] for mark in found["marks"]] == ["a", "b"]
    assert found["words"][:3] == [0, 1, 1]
    with pytest.raises(InputError, match="the mark 'b' begins"):
        projection_page(aligner, [MarkedText(SENTENCES[0][0], (first, second))], TARGET)


def test_what_cannot_be_shown_is_refused(aligner: Aligner) -> None:
    marked = read_markup("<b>little</b> house", "html")
    with pytest.raises(InputError, match="empty side"):
        projection_page(aligner, [marked], "")
    with pytest.raises(InputError, match="one of text, spaces, got 'verses'"):
        projection_page(aligner, [marked], TARGET, words="verses")  # type: ignore[arg-type]
    with pytest.raises(InputError, match="has no marks to show"):
        projection_page(aligner, [], TARGET)


def test_an_aligner_saves_the_page_of_a_marked_text(aligner: Aligner, tmp_path: Path) -> None:
    marked = read_markup("the <b>little</b> house", "html")
    page = aligner.save_html(tmp_path / "marked.html", marked, "la petite maison").read_text(encoding="utf-8")
    assert "<title>the little house → la petite maison · normlens</title>" in page


def tints(page: Any) -> list[dict[str, set[str]]]:
    """For the source and the target, the colours of each mark."""
    found = []
    for text in page.locator(".marked").all():
        colours: dict[str, set[str]] = {}
        for mark, colour in text.locator(".carried").evaluate_all(
            "l => l.map(e => [e.dataset.mark, getComputedStyle(e).borderBottomColor])"
        ):
            colours.setdefault(mark, set()).add(colour)
        found.append(colours)
    return found


@pytest.mark.browser
@pytest.mark.parametrize("theme", ["light", "dark"])
def test_marks_have_one_colour_in_both_texts_and_their_scores(opened, aligner: Aligner, theme: str) -> None:
    marked = partly_linked(aligner)
    document = projection_page(aligner, [marked], TARGET)
    page = opened(document, theme=theme)
    source, target = tints(page)
    (kept,) = target
    assert target[kept] == source[kept] and len(source) == 2
    assert len(set().union(*source.values())) == 2
    texts = page.locator(".marked").all()
    ((_, words, score, _),) = nodes(document["alignment"]["marks"]["texts"][0]["target"])
    assert texts[1].locator(".carried").inner_text() == f"b {100 * score:.1f} %{words}"
    assert re.fullmatch(r"Without a place: i \S.*", page.locator("[data-part=lost]").inner_text())
    assert page.locator(".carried.lost").count() == 1
    # Links of a marked word have its colour, and those of other words none of them.
    strokes = dict(
        page.locator("path.link").evaluate_all("l => l.map(e => [e.dataset.column, getComputedStyle(e).stroke])")
    )
    own = document["alignment"]["marks"]["words"].index(int(kept))
    assert {strokes.pop(str(own))} == source[kept] and not set(strokes.values()) & source[kept]


@pytest.mark.browser
def test_pointing_at_a_mark_shows_it_in_both_texts(opened, aligner: Aligner) -> None:
    page = opened(projection_page(aligner, [partly_linked(aligner)], TARGET))
    page.locator(".marked").nth(1).locator(".carried").hover()
    assert page.locator(".carried.on").count() == 2
    assert "placed with a score of" in page.locator("[data-part=mark]").inner_text()
    page.locator("h1").hover()
    assert page.locator(".carried.on").count() == 0


@pytest.mark.browser
@pytest.mark.parametrize("width", [390, 1280])
def test_hostile_names_long_words_and_right_to_left_texts_stay_on_the_page(
    opened, aligner: Aligner, width: int
) -> None:
    hostile = '"><img src=x onerror=alert(1)>' + "x" * 300
    marks = (Mark(0, 5, hostile, "<script>alert(1)</script>", ""), Mark(6, 306, ""), Mark(307, 307, "\u202eevil"))
    marked = MarkedText("house " + "w" * 300 + " بيت", marks)
    page = opened(projection_page(aligner, [marked], "\u202bبيت " + "z" * 400 + "</script><b>"), width=width)
    assert page.locator(".carried").count() >= 3 and page.locator("img").count() == 0
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    for text in page.locator(".marked").all():
        box = text.bounding_box()
        assert box["x"] >= 0 and box["x"] + box["width"] <= width
        assert text.evaluate("e => e.scrollWidth <= e.clientWidth + 1")
    assert "⟨202E⟩evil" in page.locator(".marked").first.inner_text()


@pytest.mark.browser
def test_a_text_without_marks_says_so_and_one_word_is_enough(opened, aligner: Aligner) -> None:
    page = opened(projection_page(aligner, [MarkedText("house")], "maison"))
    assert "The source carries no marks." in page.locator("[data-part=marks]").inner_text()
    assert page.locator(".carried").count() == 0


@pytest.mark.browser
@pytest.mark.parametrize("theme", ["light", "dark"])
def test_an_accessibility_checker_finds_nothing(chromium, aligner: Aligner, tmp_path: Path, theme: str) -> None:
    path = aligner.save_html(tmp_path / "page.html", partly_linked(aligner), TARGET)
    assert barriers(chromium, path, theme=theme) == []
