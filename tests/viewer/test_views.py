"""The other views in a browser: overview, mixing, flow and alignment show what the maps say."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

from normlens.viewer.page_data import page_data
from tests.viewer.reading import lightness, lightness_of, percent, pixels, rows_of, shares
from tests.viewer.synthetic import SENTENCE, SOURCE, TARGET, dataset

pytestmark = pytest.mark.browser


def test_overview_opens_the_head_it_shows(opened, document, data) -> None:
    page = opened(document, "view=overview&own=shown")
    page.wait_for_selector("svg[data-complete]")
    assert page.locator(".thumb").count() == 12
    values = shares(data["af_norm"].values)
    drawn = lightness_of(pixels(page.locator(".thumb[data-layer='2'][data-column='3'] image")))
    assert np.abs(drawn - (98 - 73 * values[1, 2] / values.max())).max() < 1.0
    page.get_by_role("button", name="Open layer 2, head 3").click()
    page.wait_for_selector(".compare")
    assert "head=3" in page.url
    np.testing.assert_allclose(
        [float(row["af_norm"]) for row in rows_of(page)],
        data["af_norm"].sel(layer=2, head=3).values.ravel(),
        rtol=2**-10,
    )


@pytest.mark.parametrize("over", ["layers", "af_norm"])
def test_on_a_phone_the_overview_s_headings_stay_apart_and_whole(opened, over) -> None:
    data = dataset(SENTENCE, heads=12)
    page = opened(page_data({"encoder": data}), f"view=overview&over={over}", width=390)
    page.wait_for_selector("svg[data-complete]")
    labels = page.locator(".column-label")
    assert labels.count() == (12 if over == "af_norm" else 5)
    right = page.locator(".scroll").bounding_box()
    boxes = [label.bounding_box() for label in labels.all()]
    assert all(box["x"] + box["width"] <= right["x"] + right["width"] for box in boxes)
    if over == "af_norm":
        assert all(a["x"] + a["width"] < b["x"] for a, b in pairwise(boxes))
    else:  # slanted: what must not meet are their lines, a column apart
        assert all(b["x"] - a["x"] > 20 for a, b in pairwise(boxes))
        assert all(label.get_attribute("transform") for label in labels.all())


def test_mixing_is_the_ratio_of_every_layer_and_token(opened, document, data) -> None:
    page = opened(document, "view=mixing")
    values = data["mixing_attnresln_n"].transpose("layer", "query").values
    got = np.array([float(row["mixing_attnresln_n"]) for row in rows_of(page)]).reshape(values.shape)
    np.testing.assert_allclose(got, values, rtol=2**-10)
    fills = page.locator("rect.cell").evaluate_all("list => list.map(e => e.getAttribute('fill'))")
    drawn = np.array([lightness(fill) for fill in fills]).reshape(values.shape)
    assert np.abs(drawn - (98 - 73 * values / values.max())).max() < 1.0
    means = [float(text) for text in page.locator(".row-value").all_text_contents()]
    np.testing.assert_allclose(means, values.mean(axis=1), atol=6e-4)


def test_a_run_with_ratios_alone_opens_at_them(opened, data) -> None:
    page = opened(page_data({"encoder": data[["mixing_attn_n"]].assign_coords(key=data["key"])}))
    assert page.locator("nav [data-view]:visible").all_text_contents() == ["Mixing"]
    values = data["mixing_attn_n"].transpose("layer", "query").values
    got = np.array([float(row["mixing_attn_n"]) for row in rows_of(page)]).reshape(values.shape)
    np.testing.assert_allclose(got, values, rtol=2**-10)


def test_flow_is_the_product_of_the_normalized_maps(opened, document, data) -> None:
    page = opened(document, "view=flow&query=6")
    maps = shares(data["attnresln_n"].values)
    product = maps[2] @ maps[1] @ maps[0]
    rows = [row for row in rows_of(page) if row["after_layer"] == "0"]
    np.testing.assert_allclose([float(row["share_of_output"]) for row in rows], product[6], rtol=2e-3)
    for text in page.locator(".input-share").all():
        assert percent(text.text_content()) == pytest.approx(
            product[6, int(text.get_attribute("data-index"))], abs=6e-4
        )
    edges = page.locator("path.edge").evaluate_all(
        "l => l.map(e => [+e.dataset.layer, +e.dataset.query, +e.dataset.key, +e.dataset.share])"
    )
    after = {3: np.eye(len(SENTENCE))[6], 2: maps[2][6], 1: maps[2][6] @ maps[1]}
    for layer, query, key, share in edges:
        assert share == pytest.approx(after[layer][query] * maps[layer - 1][query, key], rel=3e-3)
    text = page.locator(".flow").inner_text()
    assert "Feed-forward blocks are not in it" in text and "accumulate attention sinks" in text
    page.locator(".output-target[data-index='2']").click()
    page.wait_for_url(lambda url: "query=2" in url)


def test_flow_says_where_an_attention_sink_gathers_it(opened) -> None:
    data = dataset(SENTENCE, layers=8, causal=True)
    for name in ("attnresln_n", "attnres_n"):
        data[name] = data[name] + 2.0 * data[name].sum("key") * (data["key"] == 0)
    page = opened(page_data({"decoder": data}), "view=flow&query=9")
    maps = shares(data["attnresln_n"].values)
    product = np.linalg.multi_dot(list(maps[::-1]))[9, 0]
    note = page.locator("[data-part=sink]").inner_text()
    assert note.endswith(f"Here {100 * product:.1f} % arrive at [CLS] (position 0).") and product > 0.9


def test_alignment_links_are_row_maxima(opened, sites) -> None:
    page = opened(page_data(sites), "site=cross&view=alignment&layer=2")
    best = sites["cross"]["attnresln_n"].sel(layer=2).values.argmax(axis=1)
    for selector in ("path.link", "rect.mark"):
        got = page.locator(selector).evaluate_all("l => l.map(e => [+e.dataset.row, +e.dataset.column])")
        assert sorted(map(tuple, got)) == [(row, column) for row, column in enumerate(best)]
    rows = rows_of(page)
    assert [row["key_token"] for row in rows] == [SOURCE[i] for i in best]
    assert [row["written_token"] for row in rows] == [*TARGET[1:], ""]
    page.get_by_role("button", name="Written").click()
    page.wait_for_url(lambda url: "written=true" in url)
    assert page.locator(".links ~ .row-label").first.text_content() == "The"
