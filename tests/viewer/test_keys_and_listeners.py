"""The page for readers who use a keyboard, a screen reader or an exported file."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree
from dataclasses import replace
from pathlib import Path

import pytest

from normlens.alignment.aligner import Aligner
from normlens.errors import InputError
from normlens.viewer.explanation_page import explanation_page
from normlens.viewer.page_data import page_data
from tests.alignment.models_for_tests import SENTENCES, lens
from tests.viewer.explained import explanation
from tests.viewer.reading import download
from tests.viewer.synthetic import dataset, long_text

SVG = "{http://www.w3.org/2000/svg}"


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NORMLENS_CACHE", str(tmp_path / "cache"))


def test_the_chosen_token_is_announced_by_a_region_that_stays(opened, document) -> None:
    page = opened(document)
    status = page.locator("[data-part=status][role=status]")
    status.evaluate("element => (element.dataset.mark = 'same')")
    for position, word in enumerate(["[CLS]", "the", "man"]):
        page.keyboard.press("j")
        page.wait_for_url(lambda url, at=position: f"query={at}" in url)
        assert status.inner_text() == f"{word} at position {position}"
    assert status.get_attribute("data-mark") == "same"
    page.keyboard.press("Escape")
    page.wait_for_url(lambda url: "query" not in url)
    assert status.inner_text() == ""


def test_enter_opens_the_chosen_head_without_a_focus(opened, document) -> None:
    page = opened(document, "view=overview&over=alpha&layer=3&head=3")
    page.wait_for_selector("svg[data-complete]")
    page.keyboard.press("ArrowRight")
    page.wait_for_url(lambda url: "head=4" in url)
    page.keyboard.press("Enter")
    page.wait_for_selector(".compare")
    assert page.locator("[data-measure=af_norm] h2").inner_text().endswith("head 4")


def test_enter_on_a_button_presses_the_button(opened, document) -> None:
    page = opened(document, "view=overview")
    page.locator("[data-view=mixing]").focus()
    page.keyboard.press("Enter")
    page.wait_for_selector(".mixing")


def test_a_level_that_cannot_be_chosen_says_why(opened) -> None:
    page = opened(page_data({"encoder": dataset(["[CLS]", "a", "cat", "[SEP]"])}))
    words = page.get_by_role("button", name="Words")
    assert words.is_disabled() and words.get_attribute("title") == "every word of this text is a single token"


def test_both_pictures_begin_at_one_height(opened, document) -> None:
    for width in (1000, 1250, 1400, 1900):
        page = opened(document, "draw=matrix&a=attn_w&b=attnresln_n", width=width)
        tops = [panel.locator("svg").bounding_box()["y"] for panel in page.locator(".compare .panel").all()]
        assert len(tops) == 2 and tops[0] == pytest.approx(tops[1], abs=0.5)


def test_long_inputs_are_compared_side_by_side(opened) -> None:
    page = opened(page_data({"encoder": dataset(long_text(300), layers=1, heads=1)}), "draw=matrix")
    left, right = (panel.bounding_box() for panel in page.locator(".compare .panel").all())
    assert left["y"] == right["y"] and left["x"] < right["x"]


def test_an_exported_picture_has_its_titles_whole(opened, document) -> None:
    page = opened(document, "a=attn_w&b=attnresln_n", width=900)
    titles = [text.inner_text() for text in page.locator(".compare .panel figcaption > p:first-of-type").all()]
    svg = ElementTree.fromstring(download(page, "svg"))
    drawn = " ".join(text for element in svg.iter(f"{SVG}text") for text in element.itertext())
    assert len(titles) == 2
    for title in titles:
        assert f"({title})" in drawn


def test_a_source_stands_to_the_left_of_its_target(opened, sites) -> None:
    for view in ("view=alignment&by=layer", "view=compare&draw=arcs"):
        page = opened(page_data(sites), f"site=cross&{view}")
        source = page.locator(".column-label").first.bounding_box()
        target = page.locator(".row-label").first.bounding_box()
        assert source["x"] < target["x"]


def test_line_breaks_are_written_with_a_sign_that_fonts_have(opened) -> None:
    page = opened(page_data({"encoder": dataset(["The", "Ċ", "Ġcat", "Ċ"])}), "draw=matrix")
    labels = page.locator("[data-measure=attnresln_n] .row-label").evaluate_all("l => l.map(e => e.firstChild.data)")
    assert labels == ["The", "↵", "cat", "↵"]


@pytest.mark.parametrize(("attention", "sentence"), [("fixed", "held fixed"), ("integrated", "why attention looked")])
def test_the_page_says_how_attention_was_taken(opened, attention, sentence) -> None:
    result = explanation()
    result = replace(result, provenance={**result.provenance, "attention": attention})
    page = opened(explanation_page(result))
    assert sentence in page.locator("[data-part=text] .note").inner_text()


def test_equal_tokens_are_told_apart_by_their_positions(opened) -> None:
    page = opened(explanation_page(explanation(tokens=["The", "Ġcat", "Ġcat", "Ġis"], words=[0, 1, 2, 3])))
    names = page.locator("[data-part=sum] g.row > text:first-child").all_text_contents()
    assert {"cat at 1", "cat at 2", "The", "is"} <= set(names)


def test_a_page_holds_several_pairs_of_which_one_is_chosen(chromium, tmp_path) -> None:
    aligner = Aligner(lens("marian"))
    pairs = SENTENCES[:3]
    path = aligner.save_pairs_html(tmp_path / "pairs.html", pairs, [None, {(0, 0)}, None])
    page = chromium.new_page()
    page.goto(path.as_uri())
    for number, (source, _) in enumerate(pairs, start=1):
        page.locator("[data-control=pair]").select_option(str(number))
        title = page.locator("h1", has_text=source[:10])
        title.wait_for()
        assert page.locator("[data-part=score]").count() == (number == 2)
        assert (f"pair={number}" in page.url) == (number > 1)
    page.reload()
    page.wait_for_selector("[data-control=pair]")
    assert page.locator("[data-control=pair]").input_value() == "3"
    page.close()
    with pytest.raises(InputError, match="one entry for each of 3 pairs, got 1"):
        aligner.save_pairs_html(tmp_path / "pairs.html", pairs, [None])
