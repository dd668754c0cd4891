"""Maps in a browser: a cell's colour, a link and a label are the analysis's numbers, and the own part stands apart."""

from __future__ import annotations

import re

import numpy as np
import pytest

from normlens.viewer.page_data import page_data
from tests.viewer.reading import greyness, lightness, lightness_of, listed, percent, pixels, rows_of, shares
from tests.viewer.synthetic import SENTENCE, TARGET, dataset, long_text

pytestmark = pytest.mark.browser


def test_compare_writes_where_a_token_draws_from_and_what_it_feeds(opened, document, data) -> None:
    page = opened(document, "layer=2&query=9")
    maps = {name: shares(data[name].sel(layer=2).values) for name in ("attn_w", "attnresln_n")}
    draws, feeds = listed(page, "draws"), listed(page, "feeds")
    assert len(draws) == len(feeds) == 8
    rows = page.locator("[data-part=draws] tbody tr").all()
    for row, texts in zip(rows, draws, strict=True):
        key = int(row.get_attribute("data-index"))
        numbers = [percent(text) for text in texts if text.endswith("%")] or [
            percent(t) for t in re.findall(r"[\d.]+ %", " ".join(texts))
        ]
        assert numbers == pytest.approx([maps["attn_w"][9, key], maps["attnresln_n"][9, key]], abs=6e-4)
    for row, texts in zip(page.locator("[data-part=feeds] tbody tr").all(), feeds, strict=True):
        query = int(row.get_attribute("data-index"))
        numbers = [percent(t) for t in re.findall(r"[\d.]+ %", " ".join(texts))]
        assert numbers == pytest.approx([maps["attn_w"][query, 9], maps["attnresln_n"][query, 9]], abs=6e-4)


@pytest.mark.parametrize("measures", [("attn_w", "attnresln_n"), ("alpha", "af_norm"), ("attnres_w", "attn_n")])
def test_compare_gives_all_its_numbers_as_csv(opened, document, data, measures) -> None:
    a, b = measures
    page = opened(document, f"layer=3&head=2&a={a}&b={b}")
    rows = rows_of(page)
    assert len(rows) == len(SENTENCE) ** 2 and rows[17]["query_token"] == SENTENCE[1]
    for measure in measures:
        values = data[measure].sel(layer=3)
        values = (values.sel(head=2) if "head" in values.dims else values).transpose("query", "key").values
        got = np.array([float(row[measure]) for row in rows]).reshape(values.shape)
        np.testing.assert_allclose(got, values, rtol=2**-10)
        got = np.array([float(row[f"{measure}_row_share"]) for row in rows]).reshape(values.shape)
        np.testing.assert_allclose(got, shares(values), rtol=2e-3)


@pytest.mark.parametrize("scale", ["row", "absolute"])
@pytest.mark.parametrize("curve", ["linear", "sqrt"])
def test_a_cell_is_as_dark_as_its_number(opened, document, data, scale, curve) -> None:
    page = opened(document, f"draw=matrix&layer=1&own=shown&scale={scale}&curve={curve}")
    both = {name: data[name].values for name in ("attn_w", "attnresln_n")}
    shown = {name: shares(values) if scale == "row" else values for name, values in both.items()}
    for name, values in shown.items():
        # Shares have one unit and so one end; absolute values have their own. All layers share it.
        top = max(v.max() for v in shown.values()) if scale == "row" else values.max()
        fills = page.locator(f"[data-measure={name}] rect.cell").evaluate_all(
            "list => list.map(e => e.getAttribute('fill'))"
        )
        t = values[0] / top
        t = np.sqrt(t) if curve == "sqrt" else t
        drawn = np.array([lightness(fill) for fill in fills]).reshape(t.shape)
        assert np.abs(drawn - (98 - 73 * t)).max() < 1.0
        legend = page.locator(f"[data-measure={name}] .legend")
        assert float(legend.get_attribute("data-top")) == pytest.approx(top, rel=1e-3)


def test_many_cells_become_one_image_with_the_same_numbers(opened) -> None:
    data = dataset(long_text(80), layers=2)
    page = opened(page_data({"encoder": data}), "draw=matrix&layer=2&own=shown&curve=linear")
    values = shares(data["attnresln_n"].values)
    top = max(values.max(), shares(data["attn_w"].values).max())
    drawn = lightness_of(pixels(page.locator("[data-measure=attnresln_n] image.cells")))
    assert np.abs(drawn - (98 - 73 * values[1] / top)).max() < 1.0


def test_the_future_of_a_causal_decoder_is_empty(opened, sites) -> None:
    page = opened(page_data(sites), "site=decoder&draw=matrix&own=shown")
    assert page.locator("[data-measure=attn_w] rect.cell").count() == len(TARGET) * (len(TARGET) + 1) // 2


@pytest.mark.parametrize("scale", ["row", "absolute"])
def test_the_own_part_is_grey_by_default_and_the_scale_is_that_of_the_rest(opened, document, data, scale) -> None:
    page = opened(document, f"draw=matrix&layer=1&scale={scale}")
    own = np.eye(len(SENTENCE), dtype=bool)
    for name in ("attn_w", "attnresln_n"):
        values = shares(data[name].values) if scale == "row" else data[name].values
        top = values[:, ~own].max()
        panel = page.locator(f"[data-measure={name}]")
        cells = panel.locator("rect.cell").evaluate_all("list => list.map(e => e.getAttribute('fill'))")
        drawn = np.array([lightness(fill) for fill in cells])
        assert np.abs(drawn - (98 - 73 * values[0][~own] / top)).max() < 1.0
        assert float(panel.locator(".legend").get_attribute("data-top")) == pytest.approx(top, rel=1e-3)
        greys = panel.locator("rect.own").evaluate_all("list => list.map(e => e.getAttribute('fill'))")
        assert len(greys) == len(SENTENCE) and max(map(greyness, greys)) < 3
        order = np.argsort(values[0][own])
        assert (np.diff([lightness(greys[i]) for i in order]) < 0.5).all(), "a larger own part is a darker grey"
        mean = shares(data[name].values)[0][own].mean()
        note = panel.locator("[data-part=own]").inner_text()
        assert note.startswith(f"Own part (what a position gives to itself) in grey: {100 * mean:.1f} % of a row")
    page.get_by_role("button", name="Hidden").click()
    page.wait_for_url(lambda url: "own=hidden" in url)
    assert page.locator("rect.own").count() == 0 and "not drawn" in page.locator("[data-part=own]").first.inner_text()
    page.get_by_role("button", name="Shown").click()
    page.wait_for_url(lambda url: "own=shown" in url)
    assert page.locator("rect.cell").count() == 2 * len(SENTENCE) ** 2 and page.locator("[data-part=own]").count() == 0


def test_among_links_the_own_part_takes_no_place(opened, document, data) -> None:
    page = opened(document, "draw=arcs&layer=2&min=0.05")
    values = shares(data["attnresln_n"].sel(layer=2).values)
    np.fill_diagonal(values, 0.0)
    panel = page.locator("[data-measure=attnresln_n]")
    got = panel.locator("path.link").evaluate_all("list => list.map(e => [+e.dataset.row, +e.dataset.column])")
    assert {tuple(pair) for pair in got} == {tuple(pair) for pair in np.argwhere(values >= 0.05).tolist()}
    assert panel.locator("path.own").count() == len(SENTENCE)
    note = panel.locator("[data-part=note]").inner_text()
    assert note == f"{len(got)} of {values.size - len(SENTENCE)} links drawn: ≥ 5.0 %"


def test_many_cells_keep_the_own_part_apart_too(opened) -> None:
    data = dataset(long_text(80), layers=2)
    page = opened(page_data({"encoder": data}), "draw=matrix&layer=2")
    values = shares(data["attnresln_n"].values)
    own = np.eye(80, dtype=bool)
    image = pixels(page.locator("[data-measure=attnresln_n] image.cells"))
    drawn = lightness_of(image)[~own]
    assert np.abs(drawn - (98 - 73 * np.sqrt(values[1][~own] / values[:, ~own].max()))).max() < 1.0
    assert (image[own].max(-1).astype(int) - image[own].min(-1)).max() < 3
    small = opened(page_data({"encoder": data}), "view=overview&over=layers")
    small.wait_for_selector("svg[data-complete]")
    thumb = pixels(small.locator(".thumb[data-layer='2'] image").first)
    assert thumb.shape[:2] == (80, 80) and (thumb[own].max(-1).astype(int) - thumb[own].min(-1)).max() < 3


def test_cross_attention_has_no_own_part_to_choose(opened, sites) -> None:
    page = opened(page_data(sites), "site=cross&draw=matrix")
    assert not page.locator("[data-control=own]").is_visible()
    assert page.locator("[data-part=own]").count() == page.locator("rect.own").count() == 0


@pytest.mark.parametrize(("count", "width"), [(60, 1400), (60, 1100), (300, 1400)])
def test_labels_are_read_at_60_and_thinned_at_300(opened, count, width) -> None:
    data = dataset(long_text(count), layers=1, heads=1)
    page = opened(page_data({"encoder": data}), width=width)
    for kind in ("row", "column"):
        boxes = page.locator(f"[data-measure=attnresln_n] .{kind}-label").evaluate_all(
            "l => l.map(e => [+(e.dataset.row ?? e.dataset.column), e.getBoundingClientRect().toJSON(),"
            " +e.getAttribute('font-size')])"
        )
        side = "y" if kind == "row" else "x"
        places = sorted(box[side] for _, box, _ in boxes)
        assert min(np.diff(places)) > 8.5, "no label on another"
        assert min(size for _, _, size in boxes) >= 10
        # Labels are at least 10.5 pixels apart: placing the heaviest first leaves gaps below twice that.
        extent = page.locator("[data-measure=attnresln_n] rect.target").bounding_box()
        fitting = extent["height" if kind == "row" else "width"] / 10.5
        assert len(boxes) == count if count == 60 else fitting / 2 <= len(boxes) <= fitting + 1
    strongest = shares(data["attnresln_n"].values)[0]
    np.fill_diagonal(strongest, 0.0)
    both = [shares(data[name].values)[0] * (1 - np.eye(count)) for name in ("attn_w", "attnresln_n")]
    heaviest = int(np.max([part.sum(0) / part.sum(0).max() for part in both], axis=0).argmax())
    assert heaviest in {index for index, _, _ in boxes}, "what most is drawn from is named"


def test_hovering_a_link_end_writes_the_numbers_beside_the_tokens(opened, document, data) -> None:
    page = opened(document, "draw=arcs&layer=2")
    panel = page.locator("[data-measure=attnresln_n]")
    panel.locator(".row-target[data-row='5']").hover()
    values = shares(data["attnresln_n"].sel(layer=2).values)[5]
    numbers = panel.locator(".number").all()
    assert len(numbers) > 8
    for number in numbers:
        assert percent(number.text_content()) == pytest.approx(
            values[int(number.get_attribute("data-column"))], abs=6e-4
        )
    panel.locator(".column-target[data-column='3']").hover()
    column = shares(data["attnresln_n"].sel(layer=2).values)[:, 3]
    for number in panel.locator(".number").all():
        assert percent(number.text_content()) == pytest.approx(column[int(number.get_attribute("data-row"))], abs=6e-4)


def test_links_are_the_strongest_and_the_threshold_is_said(opened, document, data) -> None:
    page = opened(document, "draw=arcs&layer=2&min=0.1&own=shown")
    values = shares(data["attnresln_n"].sel(layer=2).values)
    got = page.locator("[data-measure=attnresln_n] path.link").evaluate_all(
        "list => list.map(e => [+e.dataset.row, +e.dataset.column])"
    )
    assert {tuple(pair) for pair in got} == {tuple(pair) for pair in np.argwhere(values >= 0.1).tolist()}
    note = page.locator("[data-measure=attnresln_n] [data-part=note]").inner_text()
    assert note == f"{len(got)} of {values.size} links drawn: ≥ 10.0 %"


def test_words_add_columns_and_average_rows(opened, document, data) -> None:
    page = opened(document, "layer=2&level=word")
    rows = rows_of(page)
    gallon = SENTENCE.index("gal")
    values = data["attnresln_n"].sel(layer=2).values
    (cell,) = [row for row in rows if int(row["query"]) == gallon and int(row["key"]) == 2]
    assert cell["query_token"] == "gal ##lon"
    assert float(cell["attnresln_n"]) == pytest.approx(values[gallon : gallon + 2, 2].mean(), rel=1e-3)
    (cell,) = [row for row in rows if int(row["query"]) == 2 and int(row["key"]) == gallon]
    assert float(cell["attnresln_n"]) == pytest.approx(values[2, gallon : gallon + 2].sum(), rel=1e-3)
