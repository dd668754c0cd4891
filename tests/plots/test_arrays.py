"""What arrives is checked once, and named as the papers name it."""

from __future__ import annotations

import numpy as np
import pytest
import xarray as xr

from normlens.errors import InputError
from normlens.measures.table import MEASURES
from normlens.plots import plot_heads, plot_map, plot_mixing
from normlens.plots.arrays import (
    chosen_layers,
    colour_bar_label,
    is_weight,
    shares_of_rows,
    title_of,
    token_labels,
)
from tests.plots.samples import dataset


@pytest.mark.parametrize("draw", [plot_map, plot_mixing, plot_heads])
def test_only_labelled_arrays_are_drawn(draw: object) -> None:
    with pytest.raises(InputError, match="DataArray"):
        draw(np.eye(3))
    with pytest.raises(InputError, match="at least one value"):
        empty = {"plot_map": ("query", "key"), "plot_mixing": ("layer", "query")}
        dims = empty.get(draw.__name__, ("layer", "head", "query", "key"))
        draw(xr.DataArray(np.zeros((0,) * len(dims)), dims=dims))
    with pytest.raises(InputError, match="real numbers"):
        dims = empty.get(draw.__name__, ("layer", "head", "query", "key"))
        draw(xr.DataArray(np.ones((1,) * len(dims), dtype=complex), dims=dims))


@pytest.mark.parametrize("count", range(1, 40))
def test_chosen_layers_hold_both_ends_once(count: int) -> None:
    chosen = chosen_layers(list(range(1, count + 1)), None, most=6)
    assert chosen == sorted(set(chosen)) and len(chosen) == min(count, 6)
    assert (chosen[0], chosen[-1]) == (1, count)


def test_row_shares_of_an_empty_row_are_missing() -> None:
    shares = shares_of_rows(np.array([[1.0, 3.0], [0.0, 0.0]]))
    np.testing.assert_array_equal(shares, [[0.25, 0.75], [np.nan, np.nan]])
    with pytest.raises(InputError, match="row_shares=False"):
        shares_of_rows(np.array([[1.0, -3.0]]))


def test_a_name_that_is_no_measure_is_its_own_label() -> None:
    assert (title_of("attn_n"), title_of("my_map"), title_of(None)) == ("ATTN-N", "my_map", "value")
    assert colour_bar_label("my_map", ": ", below_zero=True, sqrt=False) == "my_map"
    assert [name for name in MEASURES if is_weight(name)] == ["alpha", "attn_w", "attnres_w"]


def test_tokens_of_a_byte_level_tokenizer_are_read_as_text() -> None:
    array = dataset(["The", "Ġcaf", "Ã©", "Ġis"])["attn_n"]
    assert token_labels(array, "key") == ["The", "caf", "é", "is"]
    assert token_labels(dataset(["▁the", "##ed"])["attn_n"], "key") == ["▁the", "##ed"]
