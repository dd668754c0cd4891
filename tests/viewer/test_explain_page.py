"""The page of an explanation in a browser: its colours, sums and lines are the explanation's own terms."""

from __future__ import annotations

import csv
import io
import json
import re
import xml.etree.ElementTree as ElementTree
from typing import Any

import numpy as np
import pytest

from normlens.errors import InputError
from normlens.results.explanation import Explanation
from normlens.viewer.explanation_page import explanation_page
from normlens.viewer.page import save_html, to_json
from tests.viewer.explained import SOURCE, TARGET, TOKENS, explanation, translation
from tests.viewer.reading import barriers

NUMBER = r"[+−]?[\d,.]+(?:e[+−-]?\d+)?"


def read(text: str) -> float:
    return float(text.replace("−", "-").replace(",", ""))


def terms_of(page: Any) -> list[tuple[float, str, str]]:
    """Value, fill and text of every token, as drawn."""
    found = page.locator("g.term").evaluate_all(
        """list => list.map(g => [+g.dataset.value, g.querySelector('rect').getAttribute('fill'),
            g.querySelector('text').textContent])"""
    )
    return [(value, fill, text) for value, fill, text in found]


def rows_of(page: Any) -> list[dict[str, str]]:
    with page.expect_download() as waiting:
        page.locator("[data-export=csv]").click()
    return list(csv.DictReader(io.StringIO(waiting.value.path().read_text(encoding="utf-8"))))


def parts_of(colour: str) -> tuple[int, int, int]:
    red, green, blue = bytes.fromhex(colour.removeprefix("#"))
    return red, green, blue


@pytest.mark.browser
@pytest.mark.parametrize("theme", ["light", "dark"])
def test_tokens_are_coloured_by_sign_and_size(opened, theme) -> None:
    given = explanation()
    page = opened(explanation_page(given), theme=theme)
    values = given["tokens"].values
    drawn = terms_of(page)
    assert [text for _, _, text in drawn] == ["The", "capital", "of", "Fr", "ance", "is"]
    np.testing.assert_allclose([value for value, _, _ in drawn], values, rtol=1e-3)
    for value, fill, _ in drawn:
        if abs(value) > 0.2 * np.abs(values).max():
            red, _, blue = parts_of(fill)
            assert (blue > red) == (value > 0), "blue above zero, amber below"
    written = page.locator("g.term .number").all_text_contents()
    np.testing.assert_allclose([read(text) for text in written], values, rtol=1e-2)


@pytest.mark.browser
def test_zero_has_no_colour(opened) -> None:
    given = explanation()
    changed = {**given.sites["decoder"], "tokens": given["tokens"].copy(data=[1.0, 0.0, -1.0, 0.0, 0.5, 0.1])}
    page = opened(explanation_page(Explanation({"decoder": changed}, 0.6, given.proof, given.provenance)))
    red, green, blue = parts_of(terms_of(page)[1][1])
    assert max(red, green, blue) - min(red, green, blue) < 6 and min(red, green, blue) > 240


@pytest.mark.browser
def test_text_is_read_on_every_colour(opened) -> None:
    for theme in ("light", "dark"):
        page = opened(explanation_page(explanation()), theme=theme)
        for ground, ink in page.locator("g.term").evaluate_all(
            "list => list.map(g => ['rect', 'text'].map(tag => g.querySelector(tag).getAttribute('fill')))"
        ):
            light = sorted((luminance(ground), luminance(ink)))
            assert (light[1] + 0.05) / (light[0] + 0.05) >= 4.5


def luminance(colour: str) -> float:
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in (x / 255 for x in parts_of(colour))]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


@pytest.mark.browser
def test_words_have_the_sums_of_their_tokens(opened) -> None:
    given = explanation()
    page = opened(explanation_page(given), "level=word")
    drawn = terms_of(page)
    assert [text for _, _, text in drawn] == ["The", "capital", "of", "France", "is"]
    np.testing.assert_allclose([value for value, _, _ in drawn], given.by_word().values, rtol=2e-3, atol=1e-3)
    assert "exactly" in page.locator("[data-part=text] .note").inner_text()


@pytest.mark.browser
def test_what_adds_up_adds_up_to_the_number(opened) -> None:
    given = explanation()
    page = opened(explanation_page(given))
    rows = page.locator("[data-part=sum] g.row").evaluate_all("list => list.map(g => +g.dataset.value)")
    total = float(page.locator("[data-part=sum] g.total").get_attribute("data-value"))
    assert total == pytest.approx(given.value, rel=1e-9) and sum(rows) == pytest.approx(total, abs=5e-3)
    text = page.locator("[data-part=sum]").inner_text()
    for block in ("attention", "feed_forward", "head"):
        name = {"feed_forward": "feed-forward", "head": "output"}.get(block, block)
        bias = float(given["biases"].sel(block=block).sum())
        assert re.search(rf"{name} biases\s+({NUMBER})", text) is not None
        assert read(re.search(rf"{name} biases\s+({NUMBER})", text)[1]) == pytest.approx(bias, rel=1e-2)


@pytest.mark.browser
def test_both_names_of_a_contrast_have_their_colours(opened) -> None:
    page = opened(explanation_page(explanation()))
    panel = page.locator("[data-part=text]")
    assert panel.locator("h2").inner_text().split() == ["Why", "Paris", "rather", "than", "London"]
    assert panel.locator("h2 .norm").inner_text() == "Paris" and panel.locator("h2 .weight").inner_text() == "London"
    assert panel.get_by_text("for Paris").count() == 1 and panel.get_by_text("for London").count() == 1
    alone = opened(explanation_page(explanation(against=None)))
    assert "What made the logit of" in alone.locator("h2").first.inner_text()
    assert alone.get_by_text("raises Paris").count() == 1 and alone.get_by_text("lowers Paris").count() == 1


@pytest.mark.browser
def test_value_probability_gap_and_caution_are_stated(opened) -> None:
    given = explanation(over_value=0.05)
    page = opened(explanation_page(given))
    facts = {name: page.locator(f"[data-part={name}] b").inner_text() for name in ("value", "probability", "gap")}
    assert read(facts["value"]) == pytest.approx(given.value, rel=1e-2)
    assert facts["probability"] == "25.0 %" and facts["gap"] == "3e-7"
    assert page.locator("[data-part=says]").inner_text() == given.warning
    assert opened(explanation_page(explanation())).locator("[data-part=says]").count() == 0


@pytest.mark.browser
def test_hovering_tells_numbers(opened) -> None:
    given = explanation()
    page = opened(explanation_page(given))
    line = page.locator("[data-part=line]")
    page.locator("g.term").nth(3).hover()
    values = given["tokens"].values
    said = re.search(rf"position 3: ({NUMBER}), ({NUMBER}) %", line.inner_text())
    assert read(said[1]) == pytest.approx(values[3], rel=1e-2)
    assert read(said[2]) == pytest.approx(100 * abs(values[3]) / np.abs(values).sum(), abs=0.1)
    cells = {"heads": (given["heads"].values, 1, 1), "layers": (given["states"].values, 2, 4)}
    for part, (array, row, column) in cells.items():
        page.locator(f"[data-part={part}] rect.cell[data-row='{row}'][data-column='{column}']").hover(force=True)
        assert read(re.search(rf"({NUMBER})$", line.inner_text())[1]) == pytest.approx(array[row, column], rel=1e-2)


@pytest.mark.browser
def test_heads_and_layers_can_show_direct_terms_and_blocks(opened) -> None:
    given = explanation()
    page = opened(explanation_page(given), "grid=direct&map=feed_forward")
    line = page.locator("[data-part=line]")
    direct = given["direct"]
    page.locator("[data-part=heads] rect.cell[data-row='1'][data-column='0']").hover(force=True)
    expected = float(direct.sel(layer=2, block="attention", head=1))
    assert read(re.search(rf"({NUMBER})$", line.inner_text())[1]) == pytest.approx(expected, rel=1e-2)
    page.locator("[data-part=heads] rect.cell[data-row='1'][data-column='2']").hover(force=True)
    expected = float(direct.sel(layer=2, head=0).sum())
    assert read(re.search(rf"other: ({NUMBER})$", line.inner_text())[1]) == pytest.approx(expected, rel=1e-2)
    page.locator("[data-part=layers] rect.cell[data-row='2'][data-column='1']").hover(force=True)
    expected = float(given["blocks"].sel(layer=3, block="feed_forward", key=1))
    assert read(re.search(rf"({NUMBER})$", line.inner_text())[1]) == pytest.approx(expected, rel=1e-2)


@pytest.mark.browser
def test_steps_are_chosen_or_added(opened) -> None:
    given = explanation(steps=3, against=None)
    page = opened(explanation_page(given))
    tokens = given["tokens"].values
    np.testing.assert_allclose([value for value, _, _ in terms_of(page)], tokens[0], rtol=1e-3)
    control = page.get_by_label("Step")
    assert control.locator("option").all_inner_texts() == ["1: out1", "2: out2", "3: out3", "all steps added"]
    control.select_option("3")
    page.wait_for_url(lambda url: "step=3" in url)
    np.testing.assert_allclose([value for value, _, _ in terms_of(page)], tokens[2], rtol=1e-3)
    assert read(page.locator("[data-part=value] b").inner_text()) == pytest.approx(float(given.value[2]), rel=1e-2)
    control.select_option("0")
    page.wait_for_url(lambda url: "step=0" in url)
    np.testing.assert_allclose([value for value, _, _ in terms_of(page)], tokens.sum(0), rtol=1e-2, atol=1e-3)
    assert page.locator("[data-part=probability] b").inner_text() == "12.5 %"
    page.get_by_role("button", name="Flow").click()
    page.wait_for_selector(".message")
    assert "choose a step" in page.locator(".message").inner_text()


@pytest.mark.browser
def test_an_encoder_decoder_shows_both_sides(opened) -> None:
    given = translation()
    page = opened(explanation_page(given))
    assert [text for _, _, text in terms_of(page)] == ["The", "cat", "s", "</s>", "<pad>", "Les", "chats"]
    both = [given.site(kind)["tokens"].values for kind in ("encoder", "decoder")]
    np.testing.assert_allclose([value for value, _, _ in terms_of(page)], np.concatenate(both), rtol=1e-3)
    rows = page.locator("[data-part=sum] g.row").evaluate_all("list => list.map(g => +g.dataset.value)")
    assert sum(rows) == pytest.approx(given.value, abs=5e-3)
    assert page.locator("[data-part=heads] svg").count() == 3 and page.locator("[data-part=layers] svg").count() == 2
    pairs = given.site("cross")["edges"].sum(("layer", "head"))
    page.locator("[data-part=pairs] rect.cell[data-row='1'][data-column='2']").hover(force=True)
    said = page.locator("[data-part=line]").inner_text()
    assert read(re.search(rf"({NUMBER})$", said)[1]) == pytest.approx(float(pairs[1, 2]), rel=1e-2)
    assert rows_of(page)[4] | {"value": ""} == {"site": "decoder", "key": "0", "key_token": "<pad>", "value": ""}


@pytest.mark.browser
def test_choosing_a_token_of_either_side_keeps_it(opened) -> None:
    page = opened(explanation_page(translation()))
    page.locator("g.term").nth(1).click()
    page.wait_for_url(lambda url: "site=encoder" in url and "query=1" in url)
    assert "cat" in page.locator("[data-part=line]").inner_text()
    page.locator("g.term").nth(5).click()
    page.wait_for_url(lambda url: "site" not in url and "query=1" in url)
    assert "Les" in page.locator("[data-part=line]").inner_text()


# ---- flow ------------------------------------------------------------------------------------------------------------


def lines_of(page: Any, kind: str) -> dict[tuple[int, int, int], float]:
    found = page.locator(f"path.line-{kind}").evaluate_all(
        "list => list.map(p => [+p.dataset.layer, +p.dataset.to, +p.dataset.from, +p.dataset.value])"
    )
    return {(int(layer), int(to), int(origin)): value for layer, to, origin, value in found}


def away(given: Explanation, site: str = "decoder") -> np.ndarray:
    edges = given.site(site)["edges"].sum("head").values.copy()
    for layer in edges:
        np.fill_diagonal(layer, 0.0)
    return edges


@pytest.mark.browser
def test_the_flow_draws_exact_edges_from_a_threshold_on_and_says_what_it_leaves_out(opened) -> None:
    given = explanation()
    page = opened(explanation_page(given), "view=flow&min=0.2")
    edges = away(given)
    expected = {(int(n) + 1, int(q), int(k)): edges[n, q, k] for n, q, k in np.argwhere(np.abs(edges) >= 0.2)}
    drawn = lines_of(page, "edge")
    assert drawn.keys() == expected.keys() and drawn == pytest.approx(expected, rel=1e-5)
    straight = given["states"].values - edges.sum(1)
    ways = lines_of(page, "straight")
    kept = {(int(n) + 1, int(k), int(k)): straight[n, k] for n, k in np.argwhere(np.abs(straight) >= 0.2)}
    assert ways.keys() == kept.keys() and ways == pytest.approx(kept, rel=2e-3)
    left = edges[np.abs(edges) < 0.2]
    note = page.locator("[data-part=note]").inner_text()
    said = re.match(
        rf"(\d+) of (\d+) edges drawn, those of at least 0.2; the (\d+) left out add up to ({NUMBER}) and are ({NUMBER}) %",
        note,
    )
    assert [int(said[i]) for i in (1, 2, 3)] == [len(expected), np.count_nonzero(edges), np.count_nonzero(left)]
    assert read(said[4]) == pytest.approx(left.sum(), rel=1e-2)
    assert read(said[5]) == pytest.approx(100 * np.abs(left).sum() / np.abs(edges).sum(), abs=0.1)
    shown = {int(t.get_attribute("data-index")): read(t.text_content()) for t in page.locator(".input-value").all()}
    assert shown == pytest.approx(dict(enumerate(given["tokens"].values)), rel=1e-2)


@pytest.mark.browser
def test_lines_take_the_colour_of_their_sign(opened) -> None:
    page = opened(explanation_page(explanation()), "view=flow")
    strokes = page.locator("path.line-edge").evaluate_all(
        "l => l.map(p => [+p.dataset.value, p.getAttribute('stroke')])"
    )
    assert {stroke for value, stroke in strokes if value > 0} == {"#1d5c96"}
    assert {stroke for value, stroke in strokes if value < 0} == {"#9a5a00"}


@pytest.mark.browser
def test_words_join_lines_and_lose_nothing(opened) -> None:
    given = explanation()
    page = opened(explanation_page(given), "view=flow&level=word&min=1e-9")
    drawn = lines_of(page, "edge")
    edges = away(given)
    groups = [[0], [1], [2], [3, 4], [5]]
    for (layer, to, origin), value in drawn.items():
        assert value == pytest.approx(edges[layer - 1][np.ix_(groups[to], groups[origin])].sum(), rel=1e-4)
    inside = edges[:, 3:5, 3:5].sum()
    assert sum(drawn.values()) == pytest.approx(edges.sum() - inside, rel=1e-4)
    straight = (given["states"].values - edges.sum(1)).sum() + inside
    assert sum(lines_of(page, "straight").values()) == pytest.approx(straight, rel=2e-3)


@pytest.mark.browser
def test_a_head_of_the_grid_opens_its_edges(opened) -> None:
    given = explanation()
    page = opened(explanation_page(given))
    page.locator("[data-part=heads] rect.cell[data-row='1'][data-column='1']").click(force=True)
    page.wait_for_selector(".flow")
    page.locator("[data-control=min]").evaluate("e => { e.value = 1; e.dispatchEvent(new Event('input')); }")
    page.wait_for_url(lambda url: "min=" in url)
    edges = given["edges"].sel(layer=2, head=2).values
    drawn = lines_of(page, "edge")
    least = min(abs(value) for value in drawn.values())
    assert len(drawn) > 8 and {layer for layer, _, _ in drawn} == {2}
    expected = {(2, int(q), int(k)): edges[q, k] for q, k in np.argwhere(np.abs(edges) >= least * (1 - 1e-6))}
    assert drawn == pytest.approx(expected, rel=1e-5)


@pytest.mark.browser
def test_what_enters_from_the_source_is_drawn(opened) -> None:
    given = translation()
    cross = given.site("cross")["edges"].sum("head")
    page = opened(explanation_page(given), "view=flow&min=1e-9")
    entered = lines_of(page, "source")
    expected = {
        (layer, query, -1): float(cross.sel(layer=layer, query=query).sum())
        for layer in (1, 2, 3)
        for query in range(3)
    }
    assert entered == pytest.approx(expected, rel=2e-3)
    page = opened(explanation_page(given), "view=flow&site=encoder&min=1e-9")
    left = {int(t.get_attribute("data-index")): read(t.text_content()) for t in page.locator(".end-value").all()}
    assert left == pytest.approx(dict(enumerate(cross.sum(("layer", "query")).values)), rel=1e-2)


@pytest.mark.browser
@pytest.mark.parametrize("parts", [[], ["states", "heads", "biases"], ["edges"]])
def test_without_edges_the_flow_says_how_to_ask_for_them(opened, parts) -> None:
    page = opened(explanation_page(explanation(parts=parts)), "view=flow")
    assert 'parts=["states", "edges"]' in page.locator(".message").inner_text()
    page.keyboard.press("1")
    page.wait_for_selector(".explain")
    if "heads" not in parts:
        assert 'parts=["heads"]' in page.locator("[data-part=heads]").inner_text()
        assert "not kept" in page.locator("[data-part=sum]").inner_text()


@pytest.mark.browser
def test_edges_that_the_page_does_not_store_are_counted(opened, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("normlens.viewer.explanation_page.STORED_EDGES", 20)
    given = explanation()
    page = opened(explanation_page(given), "view=flow&min=1e-9")
    edges = away(given)
    strongest = np.sort(np.abs(edges).ravel())[-20:]
    drawn = lines_of(page, "edge")
    np.testing.assert_allclose(np.sort(np.abs(list(drawn.values()))), strongest, rtol=1e-5)
    text = page.locator("figcaption").inner_text()
    total = np.count_nonzero(edges)
    assert f"20 of {total} edges drawn" in text and f"the strongest 20 of {total}" in text
    share = 1 - strongest.sum() / np.abs(edges).sum()
    assert f"{100 * share:.1f} % of the absolute sum" in text


# ---- the page --------------------------------------------------------------------------------------------------------


@pytest.mark.browser
@pytest.mark.parametrize("view", ["explain", "flow"])
@pytest.mark.parametrize("theme", ["light", "dark"])
def test_an_accessibility_checker_finds_nothing(chromium, tmp_path, view, theme) -> None:
    path = save_html(explanation_page(translation()), tmp_path / "page.html")
    assert barriers(chromium, path, f"view={view}&table=true", theme) == []


@pytest.mark.browser
@pytest.mark.parametrize("view", ["explain", "flow"])
def test_a_phone_shows_everything_without_scrolling_sideways(opened, view) -> None:
    page = opened(explanation_page(translation()), f"view={view}", width=390, height=800)
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    for box in (svg.bounding_box() for svg in page.locator(".view svg").all()):
        assert box["x"] >= 0 and box["x"] + box["width"] <= 390


@pytest.mark.browser
@pytest.mark.parametrize("view", ["explain", "flow"])
def test_hostile_tokens_stay_text(opened, view) -> None:
    evil = [
        "</script><img src=x onerror=alert(1)>",
        "<svg onload=alert(2)>",
        "a\x00\u202eb",
        "x" * 5000,
        "שלום",
        "y",
    ]
    given = explanation(tokens=evil)
    record = {
        **given.provenance,
        "output": evil[0] + "\ud800",
        "against": evil[1],
        "text": evil[0] + "\ud800",
        evil[1]: evil[0],
    }
    page = opened(
        explanation_page(Explanation(given.sites, given.value, given.proof, record)), f"view={view}&table=true"
    )
    assert page.evaluate("document.querySelectorAll('img').length") == 0
    assert (
        page.evaluate("document.querySelector('#normlens').shadowRoot.querySelectorAll('script, iframe, img').length")
        == 0
    )
    assert page.evaluate("document.documentElement.scrollWidth") <= 1400
    with page.expect_download() as waiting:
        page.locator("[data-export=svg]").click()
    svg = ElementTree.fromstring(waiting.value.path().read_bytes())
    assert not [a for element in svg.iter() for a in element.attrib if a.lower().startswith("on")]


@pytest.mark.browser
def test_exports_hold_the_view_and_its_record(opened) -> None:
    given = explanation()
    page = opened(explanation_page(given))
    with page.expect_download() as waiting:
        page.locator("[data-export=svg]").click()
    text = waiting.value.path().read_text(encoding="utf-8")
    for wanted in ("France"[:2], "for Paris", "for London", "What adds up", "synthetic", "difference of the logits"):
        assert wanted in text
    rows = rows_of(page)
    np.testing.assert_allclose([float(row["value"]) for row in rows], given["tokens"].values, rtol=2**-10)
    assert [row["key_token"] for row in rows] == TOKENS


@pytest.mark.browser
def test_long_texts_are_drawn_and_folded(opened) -> None:
    tokens = [f"Ġw{i}" for i in range(700)]
    given = explanation(tokens=tokens, parts=["states", "heads", "biases"])
    page = opened(explanation_page(given))
    assert page.locator("g.term").count() == 700
    many = [f"Ġw{i}" for i in range(60)]
    page = opened(explanation_page(explanation(tokens=many)), "view=flow&min=2.4")
    text = page.locator("figcaption").inner_text()
    folded = int(re.search(r"(\d+) positions without a line or a node", text)[1])
    assert 0 < folded < 60


# ---- data ------------------------------------------------------------------------------------------------------------


def test_the_document_is_plain_json_and_names_its_number() -> None:
    given = explanation()
    document = json.loads(to_json(explanation_page(given)))
    assert document["explanation"]["outputs"] == ["Paris"] and document["explanation"]["against"] == "London"
    assert document["explanation"]["position"] == 5 and document["title"] == "The capital of France is"
    assert [site["name"] for site in document["sites"]] == ["decoder"]
    both = explanation_page(translation())
    assert [site["name"] for site in both["sites"]] == ["encoder", "decoder", "cross"]
    assert both["title"] == "The cats → Les chats"
    assert both["sites"][2]["key"]["tokens"] == SOURCE and both["sites"][2]["query"]["tokens"] == TARGET


def test_a_position_that_the_tokens_do_not_confirm_is_not_marked() -> None:
    given = explanation()
    record = {**given.provenance, "token_at_position": "Ġelse"}
    assert (
        explanation_page(Explanation(given.sites, given.value, given.proof, record))["explanation"]["position"] is None
    )


def test_numbers_that_are_none_are_refused() -> None:
    given = explanation()
    broken = {**given.sites["decoder"], "tokens": given["tokens"].copy(data=np.full(6, np.nan))}
    with pytest.raises(InputError, match="finite"):
        explanation_page(Explanation({"decoder": broken}, 0.0, given.proof, given.provenance))


def test_showing_and_saving(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[str] = []
    monkeypatch.setattr("webbrowser.open", opened.append)
    view = explanation().show(view="view=flow")
    assert len(opened) == 1 and opened[0].endswith("#view=flow") and "decoder" in repr(view)
    text = explanation().save_html(tmp_path / "e.html").read_text(encoding="utf-8")
    assert text.count("<script>") == 1 and "script-src 'sha256-" in text and "https://" not in text.split("<script>")[0]


def test_a_notebook_gets_coloured_text_without_script() -> None:
    given = explanation(tokens=["<b>", "Ġ\"x'", "</div>", "Ġ&", "a", "Ġb"])
    html = given._repr_html_()
    assert "&lt;b&gt;" in html and "<b>" not in html.replace("<b>Paris</b>", "").replace("<b>London</b>", "")
    assert "<script" not in html and html.count("title=") == 6
    shares = [float(a) for a in re.findall(r'title="[^"]*" style="background:rgba\([\d,]+,([\d.]+)\)', html)]
    values = given["tokens"].values
    np.testing.assert_allclose(shares, 0.75 * np.abs(values) / np.abs(values).max(), atol=1e-3)
    colours = re.findall(r'title="[^"]*" style="background:rgba\((\d+),', html)
    assert [colour == "0" for colour in colours] == (values >= 0).tolist()
    added = explanation(steps=3, against=None)._repr_html_()
    assert "3 steps added" in added


@pytest.mark.browser
def test_a_tiny_model_explained_and_opened(opened) -> None:
    """From a model to the page, with nothing made up on the way."""
    import torch

    from normlens import Lens
    from tests.attribution.models import headed, ids_of

    (given,) = Lens(headed("gpt2")).explain_inputs(
        {"input_ids": ids_of(7)[None]}, output=7, against=9, parts=["states", "edges", "heads", "biases"]
    )
    assert isinstance(given.value, float) and torch.isfinite(torch.tensor(given.value))
    page = opened(explanation_page(given))
    np.testing.assert_allclose([value for value, _, _ in terms_of(page)], given["tokens"].values, rtol=1e-3, atol=1e-6)
    rows = page.locator("[data-part=sum] g.row").evaluate_all("list => list.map(g => +g.dataset.value)")
    assert sum(rows) == pytest.approx(given.value, abs=2e-3 * float(np.abs(given["tokens"]).sum()))
    page.keyboard.press("2")
    page.wait_for_selector("path.line-straight", state="attached")  # a level line has no height
    # The straight way of the last layer ends where the number is read: nowhere else is anything left.
    last = {to: value for (layer, to, _), value in lines_of(page, "straight").items() if layer == 3}
    assert max(last, key=lambda to: abs(last[to])) == 6
