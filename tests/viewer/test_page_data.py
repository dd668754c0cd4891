"""The page's data: what is read back is what was measured, and it stays small."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import xarray as xr
from hypothesis import given, settings
from hypothesis import strategies as st

from normlens.errors import InputError
from normlens.measures.table import MEASURES
from normlens.viewer.page import bundle, save_html, to_html, to_json
from normlens.viewer.page_data import page_data
from tests.viewer.synthetic import RECORD, SENTENCE, dataset, long_text
from tests.viewer.unpacking import unpack_layers


def test_every_map_is_stored_or_follows_from_a_rule_that_holds() -> None:
    data = dataset(SENTENCE)
    site = page_data({"encoder": data})["sites"][0]
    stored = {name for name, map_ in site["maps"].items() if "data" in map_}
    assert stored == {"alpha", "attn_w", "attn_n", "attnres_n", "attnresln_n"}
    for name in stored:
        np.testing.assert_allclose(unpack_layers(site["maps"][name]), data[name].values, rtol=2**-11, atol=1e-9)
    np.testing.assert_allclose(unpack_layers(site["f_norm"]), data["f_norm"].values, rtol=2**-11)
    for name in ("attn_w", "attnresln_n"):
        np.testing.assert_allclose(unpack_layers(site["ratios"][name]), data[f"mixing_{name}"].values, rtol=2**-11)
    top = np.abs(data["attn_n"]).max(["query", "key"])
    np.testing.assert_allclose(site["maps"]["attn_n"]["top"], top)


def test_a_rule_that_does_not_hold_is_not_used() -> None:
    data = dataset(SENTENCE)
    data["af_norm"] = data["af_norm"] * xr.where(data["query"] == 3, 1.01, 1.0)
    data["attnres_w"] = 0.6 * data["attn_w"]
    maps = page_data({"encoder": data})["sites"][0]["maps"]
    for name in ("af_norm", "attnres_w"):
        np.testing.assert_allclose(
            unpack_layers(maps[name]),
            data[name].transpose(*data["af_norm" if name == "af_norm" else "attn_n"].dims),
            rtol=1e-3,
        )


def test_equal_maps_are_stored_once() -> None:
    data = dataset(SENTENCE)
    data["attnresln_n"] = data["attnres_n"]
    assert page_data({"encoder": data})["sites"][0]["maps"]["attnresln_n"]["rule"] == "same"


def test_twelve_layers_twelve_heads_128_tokens_stay_below_eight_megabytes() -> None:
    # Soft attention is the hard case: nothing is near zero, so nothing deflates.
    page = to_html(page_data({"encoder": dataset(long_text(128), layers=12, heads=12, sharpness=1.0)}))
    assert len(page.encode()) < 8e6
    assert len(bundle("page.js").encode()) < 1e6


def test_heavy_maps_are_coded_in_eight_bits_then_left_out_with_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    from normlens.viewer import page_data as module

    data = dataset(SENTENCE)

    def forms(limit: int, **options: bool) -> tuple[str | None, str]:
        monkeypatch.setattr(module, "PAGE_BYTES", limit)
        maps = page_data({"encoder": data}, **options)["sites"][0]["maps"]
        return maps.get("alpha", {}).get("encoding"), maps["attn_n"]["encoding"]

    found = [forms(limit) for limit in range(30_000, 5_000, -1_000)]
    assert list(dict.fromkeys(found)) == [("f16", "f16"), ("q8", "f16"), ("q8", "q8"), (None, "q8")]
    assert forms(1, heads=True) == ("q8", "q8")
    omitted = page_data({"encoder": data})["sites"][0]["omitted"]
    assert all("heads=True" in omitted[name] for name in ("alpha", "af_norm"))
    assert "on request" in page_data({"encoder": data}, heads=False)["sites"][0]["omitted"]["alpha"]
    monkeypatch.setattr(module, "HEAVY_BYTES", 2 * data["alpha"].size - 1)
    assert "MB for all heads" in page_data({"encoder": data})["sites"][0]["omitted"]["alpha"]


@pytest.mark.parametrize("sharpness", [0.5, 1.0, 4.0])
def test_three_hundred_tokens_stay_below_eight_megabytes(sharpness: float) -> None:
    page = to_html(page_data({"encoder": dataset(long_text(300), layers=12, heads=12, sharpness=sharpness)}))
    assert len(page.encode()) < 8e6


def test_eight_bits_serve_what_is_not_on_the_diagonal(monkeypatch: pytest.MonkeyPatch) -> None:
    from normlens.viewer import page_data as module

    data = dataset(SENTENCE)
    own = np.eye(len(SENTENCE), dtype=bool)
    data["attn_n"] = data["attn_n"] + 1000.0 * xr.DataArray(own, dims=("query", "key"))
    monkeypatch.setattr(module, "PAGE_BYTES", 1)
    packed = page_data({"encoder": data})["sites"][0]["maps"]["attn_n"]
    back, values = unpack_layers(packed), data["attn_n"].values
    np.testing.assert_allclose(back[:, own], values[:, own], rtol=1e-6)
    rest = np.where(own, 0.0, values)
    assert (np.abs(np.where(own, 0.0, back) - rest) <= rest.max(-1, keepdims=True) / 255).all()
    np.testing.assert_allclose(packed["top_rest"], rest.max(axis=(1, 2)))
    np.testing.assert_allclose(packed["top_rest_share"], (rest.max(-1) / values.sum(-1)).max(-1), rtol=1e-6)


def test_heads_that_a_layer_does_not_have_are_named_and_zero() -> None:
    data = dataset(SENTENCE)
    for name in ("alpha", "af_norm", "f_norm"):
        data[name] = data[name].where((data["layer"] != 2) | (data["head"] != 4))
    site = page_data({"encoder": data})["sites"][0]
    assert site["absent"] == [[1, 3]]
    assert unpack_layers(site["maps"]["alpha"])[1, 3].max() == 0
    data["alpha"] = data["alpha"].where(data["query"] != 1)
    with pytest.raises(InputError, match="NaN"):
        page_data({"encoder": data})


def test_a_difference_keeps_its_signs() -> None:
    left, right = dataset(SENTENCE, seed=1), dataset(SENTENCE, seed=2)
    data = left - right
    site = page_data({"encoder": data})["sites"][0]
    assert site["maps"]["attnresln_n"]["signed"] and site["ratios"]["attnresln_n"]["signed"]
    for name in ("attnres_w", "af_norm"):
        np.testing.assert_allclose(unpack_layers(site["maps"][name]), data[name], rtol=1e-3, atol=1e-7)


def test_a_span_keeps_its_positions_and_says_the_whole_length() -> None:
    data = dataset(SENTENCE)
    site = page_data({"encoder": data}, span=(4, 9))["sites"][0]
    assert site["query"]["tokens"] == SENTENCE[4:9]
    assert site["query"]["positions"] == [4, 5, 6, 7, 8] and site["query"]["total"] == len(SENTENCE)
    np.testing.assert_allclose(unpack_layers(site["maps"]["attn_n"]), data["attn_n"][:, 4:9, 4:9], rtol=1e-3)
    with pytest.raises(InputError, match="span must be start < stop"):
        page_data({"encoder": data}, span=(9, 4))


def test_what_cannot_be_shown_is_refused_in_one_sentence() -> None:
    with pytest.raises(InputError, match="got none"):
        page_data({})
    with pytest.raises(InputError, match="holds no map"):
        page_data({"encoder": dataset(SENTENCE)[["f_norm"]]})
    with pytest.raises(InputError, match="attn_w must have the axes"):
        page_data({"encoder": dataset(SENTENCE)[["attn_w"]].isel(layer=0)})


def test_word_coordinates_come_before_the_tokenizers_markers() -> None:
    data = dataset(["a", "b", "c"]).assign_coords(query_word=("query", [0, 0, -1]), key_word=("key", [0, 0, -1]))
    assert page_data({"encoder": data})["sites"][0]["query"]["words"] == [0, 0, None]


@given(st.text(max_size=30), st.lists(st.text(min_size=1, max_size=12), min_size=1, max_size=4))
@settings(max_examples=60, deadline=None)
def test_no_text_can_leave_its_place_in_the_page(title: str, tokens: list[str]) -> None:
    document = page_data({"encoder": dataset(tokens, layers=1, heads=1)}, title=title, provenance={title: tokens})
    text = to_json(document)
    assert not set("<>&\u2028\u2029") & set(text)
    assert json.loads(text)["sites"][0]["query"]["tokens"] == [t.encode("utf-8", "replace").decode() for t in tokens]
    page = to_html(document)
    assert page.count("<script") == 2 and page.count("</script>") == 2


def test_a_page_needs_a_place_to_be_written(tmp_path) -> None:
    document = page_data({"encoder": dataset(SENTENCE)}, provenance=RECORD)
    assert save_html(document, tmp_path / "page.html").read_text(encoding="utf-8").startswith("<!doctype html>")
    with pytest.raises(InputError, match="existing folder"):
        save_html(document, tmp_path / "nowhere" / "page.html")


def test_the_page_names_measures_and_sites_as_the_library_does() -> None:
    document = page_data({"cross": dataset(SENTENCE, SENTENCE[:5])})
    assert document["sites"][0]["title"] == "cross-attention"
    assert set(document["sites"][0]["maps"]) <= set(document["measures"])
    for name, text in document["measures"].items():
        assert text["perHead"] == ("head" in MEASURES[name].axes)
        assert (text["family"] == "weight") == MEASURES[name].is_weight
        assert text["says"] == MEASURES[name].description != ""
    assert [document["measures"][name]["name"] for name in ("alpha", "attn_n")] == ["Attention weight α", "ATTN-N"]


QUIET_IMPORT = """
import sys
import normlens.viewer.display, normlens.viewer.other_viewers, normlens.viewer.page_data
unwanted = {"torch", "transformers", "matplotlib", "anywidget"} & set(sys.modules)
assert not unwanted, unwanted
"""


def test_importing_brings_no_model_library() -> None:
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[2] / "src")}
    subprocess.run([sys.executable, "-c", QUIET_IMPORT], env=environment, check=True)


def test_words_that_are_not_given_follow_the_tokenizers_marks() -> None:
    words = page_data({"encoder": dataset(["[CLS]", "gal", "##lon", "of", "[SEP]"])})["sites"][0]["query"]["words"]
    assert words == [None, 1, 1, 2, None]


def test_a_full_disk_leaves_the_old_page(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = tmp_path / "page.html"
    page.write_text("old")

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("normlens.io.writing.os.fsync", full)
    with pytest.raises(InputError, match="No space left"):
        save_html(page_data({"encoder": dataset(SENTENCE)}), page)
    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [("page.html", "old")]
