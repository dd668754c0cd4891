"""The page in a reader's hands: keys, addresses, search, files, phones, and those who listen."""

from __future__ import annotations

import io
import xml.etree.ElementTree as ElementTree

import numpy as np
import pytest
from PIL import Image

from normlens.viewer.page import save_html
from normlens.viewer.page_data import page_data
from tests.viewer.reading import barriers, download
from tests.viewer.synthetic import SENTENCE

pytestmark = pytest.mark.browser


def test_a_link_opens_the_same_view_on_another_layer_in_a_new_tab(opened, document) -> None:
    page = opened(document, "layer=1&draw=matrix&own=hidden&query=3")
    page.locator("details.elsewhere summary").click()
    with page.context.expect_page() as waiting:
        page.get_by_role("link", name="Open layer 3 in a new tab").click()
    other = waiting.value
    other.wait_for_selector(".view > *")
    assert other.locator("[data-control=layer]").get_attribute("aria-valuetext") == "layer 3"
    assert "own=hidden" in other.url and "query=3" in other.url and "layer=1" in page.url
    assert page.locator("details.elsewhere a").all_text_contents() == ["2", "3"]


def test_settings_fold_away_on_a_phone_only(opened, document) -> None:
    wide = opened(document)
    assert wide.locator("[data-control=layer]").is_visible() and not wide.locator("[data-control=fold]").is_visible()
    page = opened(document, width=360, height=740)
    fold = page.get_by_role("button", name="Settings")
    assert fold.get_attribute("aria-expanded") == "false" and not page.locator("[data-control=layer]").is_visible()
    assert page.locator("figure.panel").first.bounding_box()["y"] < 400, "the picture is on the first screen"
    fold.click()
    assert fold.get_attribute("aria-expanded") == "true" and page.locator("[data-control=layer]").is_visible()
    assert page.evaluate("document.documentElement.scrollWidth") <= 360


def test_a_model_s_name_is_whole(opened, data) -> None:
    name = "sentence-transformers/paraphrase-multilingual-mpnet-base-v2"
    title = "A long title that leaves no room beside it, " * 6
    for width in (360, 1400):
        page = opened(page_data({"encoder": data}, title=title, provenance={"model": name}), width=width)
        model = page.locator(".model")
        assert name in model.inner_text()
        assert model.evaluate("e => e.scrollWidth <= e.clientWidth")


def test_keys_change_layer_head_and_view_and_the_address_restores_them(opened, document) -> None:
    page = opened(document, "a=alpha&b=af_norm&layer=1")
    page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowRight")
    page.keyboard.press("m")
    page.wait_for_url(lambda url: "head=2" in url)
    assert page.locator("[data-control=head]").input_value() == "1"
    page.keyboard.press("2")
    page.wait_for_selector(".overview")
    page.keyboard.press("1")
    page.keyboard.press("t")
    page.wait_for_selector("[data-part=table]")
    before = (page.url, page.locator(".view").inner_text(), page.locator("[data-part=table]").inner_text())
    page.reload()
    page.wait_for_selector(".view > *")
    assert (page.url, page.locator(".view").inner_text(), page.locator("[data-part=table]").inner_text()) == before


def test_tokens_and_thumbnails_are_walked_through_by_keyboard(opened, document) -> None:
    page = opened(document, "layer=1")
    page.keyboard.press("j")
    page.keyboard.press("j")
    page.wait_for_url(lambda url: "query=1" in url)
    assert page.locator("[data-part=line]").inner_text() == "the at position 1"
    page.keyboard.press("2")
    page.wait_for_selector("svg[data-complete]")
    page.locator(".thumb[data-chosen]").focus()
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowDown")
    page.wait_for_url(lambda url: "head=2" in url and "layer" not in url)  # layer 2 is where the page opens
    page.keyboard.press("Enter")
    page.wait_for_selector(".compare")
    assert page.locator("[data-measure=af_norm] h2").inner_text() == "Weighted transformed vector ‖αf(x)‖, head 2"
    assert page.locator("[data-control=layer]").input_value() == "1"


def test_the_raw_token_is_said_where_it_reads_differently(opened, document) -> None:
    page = opened(document, f"query={SENTENCE.index('##lon')}")
    assert page.locator("[data-part=line]").inner_text() == "·lon at position 11, token ##lon"
    title = page.locator("[data-measure=attn_w] .row-target[data-row='11'] title").text_content()
    assert title == "token: ##lon\nposition: 11"


def test_find_marks_tokens_and_enter_walks_through_them(opened, document) -> None:
    page = opened(document)
    page.keyboard.press("/")
    page.keyboard.type("the")
    assert page.locator(".found").inner_text() == "2 found"
    page.keyboard.press("Enter")
    page.wait_for_url(lambda url: "query=1" in url)
    page.keyboard.press("Enter")
    page.wait_for_url(lambda url: "query=5" in url)
    page.keyboard.press("Escape")
    page.wait_for_url(lambda url: "query" not in url)
    assert page.locator(".found").inner_text() == ""


@pytest.mark.parametrize(
    ("view", "theme"),
    [("compare", "light"), ("compare", "dark"), ("overview", "dark"), ("mixing", "light"), ("flow", "light")],
)
def test_pictures_are_whole_files_that_say_what_they_show(opened, document, view, theme) -> None:
    page = opened(document, f"view={view}", theme=theme)
    if view == "overview":
        page.wait_for_selector("svg[data-complete]")
    svg = ElementTree.fromstring(download(page, "svg"))
    text = " ".join("".join(svg.itertext()).split())
    assert svg.tag == "{http://www.w3.org/2000/svg}svg" and "The man went to the store." in text
    drawn = " ".join(text for element in svg.iter("{http://www.w3.org/2000/svg}text") for text in element.itertext())
    assert "model synthetic · dtype float32 · normlens 0.1.0" in drawn and "encoder self-attention" in drawn
    assert view != "compare" or "linear scale shared by all layers" in drawn
    image = Image.open(io.BytesIO(download(page, "png")))
    assert image.width == 2 * round(float(svg.get("width"))) and len(np.unique(np.asarray(image.convert("L")))) > 20


@pytest.mark.parametrize("view", ["compare", "compare&draw=matrix", "overview", "mixing", "flow"])
@pytest.mark.parametrize("width", [320, 360])
def test_a_phone_shows_it_all_without_scrolling_sideways(opened, document, view, width) -> None:
    page = opened(document, f"view={view}", width=width, height=740)
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    frame = page.locator(".normlens").bounding_box()
    for control in page.locator(":is(.top input, .top select, nav button):visible").all():
        box = control.bounding_box()
        assert box["x"] + box["width"] <= frame["x"] + frame["width"], (
            "no control leaves the page, or a notebook's cell"
        )
    assert page.locator("h1").bounding_box()["height"] < 45


def test_names_and_tables_for_those_who_listen(opened, document) -> None:
    page = opened(document, "table=true")
    unnamed = page.evaluate(
        """() => [...document.querySelector('#normlens').shadowRoot.querySelectorAll('button, input, select, svg')]
            .filter(e => !(e.getAttribute('aria-label') || e.textContent.trim() || e.closest('label')))
            .map(e => e.outerHTML)"""
    )
    assert unnamed == []
    labels = page.evaluate(
        """() => [...document.querySelector('#normlens').shadowRoot.querySelectorAll('select')]
            .map(e => [e.labels.length && e.labels[0].querySelector('span').textContent, e.getAttribute('aria-label')])"""
    )
    assert all(text and len(text) > 3 and spoken is None for text, spoken in labels), (
        "a label that is seen, and no other"
    )
    table = page.get_by_role("table").last
    assert table.get_by_role("row").count() == len(SENTENCE) ** 2 + 1
    assert page.get_by_role("img", name="ATTNRESLN-N, layer").count() == 1
    assert page.get_by_role("button", name="Matrix").get_attribute("aria-pressed") == "false"


@pytest.mark.parametrize("view", ["compare&query=3&table=true", "compare&draw=matrix", "overview", "mixing", "flow"])
def test_an_accessibility_checker_finds_nothing(chromium, document, tmp_path, view) -> None:
    assert barriers(chromium, save_html(document, tmp_path / "page.html"), f"view={view}") == []
