"""The payload: what is read back is what was measured, and it stays small."""

from __future__ import annotations

import json

import numpy as np
import pytest
import xarray as xr
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays

from normlens.errors import InputError
from normlens.viewer.pack import pack, unpack
from normlens.viewer.page import bundle, save_html, to_html, to_json
from normlens.viewer.payload import payload
from normlens.viewer.text import is_byte_level, readable, word_ids
from tests.viewer.synthetic import RECORD, SENTENCE, dataset, long_text

SIZES = st.floats(min_value=0, max_value=2**100, allow_subnormal=False, width=32)


@given(arrays(np.float64, array_shapes(min_dims=2, max_dims=4, max_side=5), elements=SIZES))
@settings(max_examples=60, deadline=None)
def test_float16_keeps_eleven_bits_over_nine_decades(values: np.ndarray) -> None:
    back = unpack(pack(values))
    top = np.abs(values).reshape(len(values), -1).max(axis=1).reshape(-1, *[1] * (values.ndim - 1))
    seen = values >= 2e-9 * top
    assert (np.abs(back - values)[seen] <= 2**-11 * values[seen] * 1.001).all()
    assert (np.abs(back - values) <= 2e-9 * top + 2**-11 * values * 1.001).all()


@given(arrays(np.float64, array_shapes(min_dims=2, max_dims=4, max_side=5), elements=SIZES))
@settings(max_examples=60, deadline=None)
def test_eight_bits_err_by_the_square_root_code_only(values: np.ndarray) -> None:
    back = unpack(pack(values, "q8"))
    top = values.max(axis=-1, keepdims=True)
    # Half a step of the code at q: |d(q/255)^2| <= (q + 1/4) / 255^2.
    bound = top * (np.sqrt(np.divide(values, top, out=np.zeros_like(values), where=top > 0)) / 255 + 1 / 255**2)
    assert (np.abs(back - values) <= bound * (1 + 1e-5) + 1e-44).all()


def test_signs_survive_and_what_is_not_a_number_is_refused() -> None:
    assert unpack(pack(np.array([[-0.5, 0.25]]))).tolist() == [[-0.5, 0.25]]
    with pytest.raises(InputError, match="negative"):
        pack(np.array([[-0.5, 0.25]]), "q8")
    with pytest.raises(InputError, match="1 of 2 values are NaN"):
        pack(np.array([[np.nan, 0.25]]))


def test_every_map_is_stored_or_follows_from_a_rule_that_holds() -> None:
    data = dataset(SENTENCE)
    site = payload({"encoder": data})["sites"][0]
    stored = {name for name, map_ in site["maps"].items() if "data" in map_}
    assert stored == {"alpha", "attn_w", "attn_n", "attnres_n", "attnresln_n"}
    for name in stored:
        np.testing.assert_allclose(unpack(site["maps"][name]), data[name].values, rtol=2**-11, atol=1e-9)
    np.testing.assert_allclose(unpack(site["f_norm"]), data["f_norm"].values, rtol=2**-11)
    for name in ("attn_w", "attnresln_n"):
        np.testing.assert_allclose(unpack(site["ratios"][name]), data[f"mixing_{name}"].values, rtol=2**-11)
    top = np.abs(data["attn_n"]).max(["query", "key"])
    np.testing.assert_allclose(site["maps"]["attn_n"]["top"], top)


def test_a_rule_that_does_not_hold_is_not_used() -> None:
    data = dataset(SENTENCE)
    data["af_norm"] = data["af_norm"] * xr.where(data["query"] == 3, 1.01, 1.0)
    data["attnres_w"] = 0.6 * data["attn_w"]
    maps = payload({"encoder": data})["sites"][0]["maps"]
    for name in ("af_norm", "attnres_w"):
        np.testing.assert_allclose(
            unpack(maps[name]),
            data[name].transpose(*data["af_norm" if name == "af_norm" else "attn_n"].dims),
            rtol=1e-3,
        )


def test_equal_maps_are_stored_once() -> None:
    data = dataset(SENTENCE)
    data["attnresln_n"] = data["attnres_n"]
    assert payload({"encoder": data})["sites"][0]["maps"]["attnresln_n"]["rule"] == "same"


def test_twelve_layers_twelve_heads_128_tokens_stay_below_ten_megabytes() -> None:
    # Soft attention is the hard case: nothing is near zero, so nothing deflates.
    page = to_html(payload({"encoder": dataset(long_text(128), layers=12, heads=12, sharpness=1.0)}))
    assert len(page.encode()) < 10e6
    assert len(bundle("page.js").encode()) < 1e6


def test_heavy_maps_are_coded_in_eight_bits_then_left_out_with_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    from normlens.viewer import payload as module

    data = dataset(SENTENCE)
    bytes_ = 2 * data["alpha"].size
    monkeypatch.setattr(module, "COARSE_BYTES", bytes_ - 1)
    assert payload({"encoder": data})["sites"][0]["maps"]["alpha"]["encoding"] == "q8"
    monkeypatch.setattr(module, "HEAVY_BYTES", bytes_ - 1)
    site = payload({"encoder": data})["sites"][0]
    assert "alpha" not in site["maps"] and "heads=True" in site["omitted"]["alpha"]
    assert "alpha" in payload({"encoder": data}, heads=True)["sites"][0]["maps"]
    assert "on request" in payload({"encoder": data}, heads=False)["sites"][0]["omitted"]["alpha"]


def test_heads_that_a_layer_does_not_have_are_named_and_zero() -> None:
    data = dataset(SENTENCE)
    for name in ("alpha", "af_norm", "f_norm"):
        data[name] = data[name].where((data["layer"] != 2) | (data["head"] != 4))
    site = payload({"encoder": data})["sites"][0]
    assert site["absent"] == [[1, 3]]
    assert unpack(site["maps"]["alpha"])[1, 3].max() == 0
    data["alpha"] = data["alpha"].where(data["query"] != 1)
    with pytest.raises(InputError, match="NaN"):
        payload({"encoder": data})


def test_a_difference_keeps_its_signs() -> None:
    left, right = dataset(SENTENCE, seed=1), dataset(SENTENCE, seed=2)
    data = left - right
    site = payload({"encoder": data})["sites"][0]
    assert site["maps"]["attnresln_n"]["signed"] and site["ratios"]["attnresln_n"]["signed"]
    for name in ("attnres_w", "af_norm"):
        np.testing.assert_allclose(unpack(site["maps"][name]), data[name], rtol=1e-3, atol=1e-7)


def test_a_span_keeps_its_positions_and_says_the_whole_length() -> None:
    data = dataset(SENTENCE)
    site = payload({"encoder": data}, span=(4, 9))["sites"][0]
    assert site["query"]["tokens"] == SENTENCE[4:9]
    assert site["query"]["positions"] == [4, 5, 6, 7, 8] and site["query"]["total"] == len(SENTENCE)
    np.testing.assert_allclose(unpack(site["maps"]["attn_n"]), data["attn_n"][:, 4:9, 4:9], rtol=1e-3)
    with pytest.raises(InputError, match="span is start < stop"):
        payload({"encoder": data}, span=(9, 4))


def test_what_cannot_be_shown_is_refused_in_one_sentence() -> None:
    with pytest.raises(InputError, match="got none"):
        payload({})
    with pytest.raises(InputError, match="holds no map"):
        payload({"encoder": dataset(SENTENCE)[["f_norm"]]})
    with pytest.raises(InputError, match="axes of attn_w"):
        payload({"encoder": dataset(SENTENCE)[["attn_w"]].isel(layer=0)})


def test_word_coordinates_come_before_the_tokenizers_markers() -> None:
    data = dataset(["a", "b", "c"]).assign_coords(query_word=("query", [0, 0, -1]), key_word=("key", [0, 0, -1]))
    assert payload({"encoder": data})["sites"][0]["query"]["words"] == [0, 0, None]


@given(st.text(max_size=30), st.lists(st.text(min_size=1, max_size=12), min_size=1, max_size=4))
@settings(max_examples=60, deadline=None)
def test_no_text_can_leave_its_place_in_the_page(title: str, tokens: list[str]) -> None:
    document = payload({"encoder": dataset(tokens, layers=1, heads=1)}, title=title, provenance={title: tokens})
    text = to_json(document)
    assert not set("<>&\u2028\u2029") & set(text)
    assert json.loads(text)["sites"][0]["query"]["tokens"] == [t.encode("utf-8", "replace").decode() for t in tokens]
    page = to_html(document)
    assert page.count("<script") == 2 and page.count("</script>") == 2


@given(st.text(max_size=20))
@settings(max_examples=100, deadline=None)
def test_nothing_invisible_is_left_in_a_readable_token(token: str) -> None:
    import unicodedata

    (text,) = readable([token])
    assert text
    kept = {"\u200d", "\ufe0e", "\ufe0f"}
    assert not [c for c in text if unicodedata.category(c) in {"Cc", "Cf", "Cs", "Zl", "Zp"} and c not in kept]


def test_byte_level_tokens_are_read_as_text() -> None:
    tokens = ["<|begin_of_text|>", "Hello", "Ġwor", "ld", "ĠæĹ", "¥", "Ċ", "ĠðŁĺĢ"]
    assert is_byte_level(tokens)
    assert readable(tokens) == ["<|begin_of_text|>", "Hello", "wor", "ld", "⟨20 E6 97⟩", "⟨A5⟩", "␊", "😀"]
    assert word_ids(tokens) == [None, 0, 1, 1, 2, 2, 3, 4]
    assert readable(["שלום", "日本", "👩🏽‍💻"]) == ["שלום", "日本", "👩🏽‍💻"]


def test_a_page_needs_a_place_to_be_written(tmp_path) -> None:
    document = payload({"encoder": dataset(SENTENCE)}, provenance=RECORD)
    assert save_html(document, tmp_path / "page.html").read_text(encoding="utf-8").startswith("<!doctype html>")
    with pytest.raises(InputError, match="existing folder"):
        save_html(document, tmp_path / "nowhere" / "page.html")
