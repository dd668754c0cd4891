"""Every head has its map at its place, on the scale that is said."""

from __future__ import annotations

import numpy as np
import pytest

from normlens.errors import InputError
from normlens.plots import plot_heads
from tests.plots.samples import dataset, image, sentence, texts, tick_labels


def test_every_head_has_its_thumbnail_at_its_place() -> None:
    array = dataset(6, layers=3, heads=5)["af_norm"]
    ax = plot_heads(array).axes[0]
    for place, drawn in enumerate(ax.images):
        layer, head = divmod(place, 5)
        np.testing.assert_array_equal(np.ma.filled(drawn.get_array(), np.nan), array.values[layer, head])
        left, right, bottom, top = drawn.get_extent()
        assert ((left + right) / 2, (bottom + top) / 2) == pytest.approx((head, layer))
        assert bottom > top, "the first query is on top"
    assert len(ax.images) == 15
    assert tick_labels(ax, "x") == list("12345") and tick_labels(ax, "y") == list("123")
    assert len({(drawn.norm.vmin, drawn.norm.vmax) for drawn in ax.images}) == 1


def test_the_heads_of_one_layer_are_larger_and_labelled() -> None:
    array = dataset(6, heads=6)["alpha"].sel(layer=2)
    figure = plot_heads(array)
    panels = [ax for ax in figure.axes if ax.images]
    for head, ax in enumerate(panels):
        np.testing.assert_array_equal(image(ax), array.values[head])
    assert [word for word in texts(figure) if word.startswith("head")] == [f"head {head}" for head in range(1, 7)]
    assert "layer 2" in texts(figure)
    assert tick_labels(panels[0], "y") == sentence(6)
    labelled = [head for head, ax in enumerate(panels, 1) if tick_labels(ax, "x")]
    assert labelled == [3, 4, 5, 6], "keys are written under the lowest map of each column"


def test_own_scales_of_heads() -> None:
    array = dataset(6)["alpha"]
    ends = [drawn.norm.vmax for drawn in plot_heads(array, scale="panel").axes[0].images]
    assert ends == pytest.approx(array.max(("query", "key")).values.ravel())
    with pytest.raises(InputError, match="contradicts"):
        plot_heads(array, scale="panel", high=1.0)


def test_heads_need_heads() -> None:
    with pytest.raises(InputError, match="layer, head, query, key"):
        plot_heads(dataset(5)["attn_w"])
