"""Every head has its map at its place, on the scale that is said."""

from __future__ import annotations

import numpy as np
import pytest

from normlens.errors import InputError
from normlens.plots import plot_heads
from tests.plots.samples import dataset, image, sentence, texts, tick_labels, titles


def test_every_head_has_its_thumbnail_at_its_place() -> None:
    array = dataset(6, layers=3, heads=5)["af_norm"]
    ax = plot_heads(array).axes[0]
    sheet = image(ax)
    assert tick_labels(ax, "x") == list("12345") and tick_labels(ax, "y") == list("123")
    for layer, middle_down in enumerate(ax.get_yticks()):
        for head, middle in enumerate(ax.get_xticks()):
            top, left = int(middle_down - 2.5), int(middle - 2.5)
            np.testing.assert_array_equal(sheet[top : top + 6, left : left + 6], array.values[layer, head])


def test_the_heads_of_one_layer_are_larger_and_labelled() -> None:
    array = dataset(6, heads=6)["alpha"].sel(layer=2)
    figure = plot_heads(array)
    panels = [ax for ax in figure.axes if ax.images]
    for head, ax in enumerate(panels):
        np.testing.assert_array_equal(image(ax), array.values[head])
    assert titles(figure) == [f"head {head}" for head in range(1, 7)]
    assert "layer 2" in texts(figure)
    assert tick_labels(panels[0], "y") == sentence(6)


def test_own_scales_of_heads() -> None:
    array = dataset(6)["alpha"]
    figure = plot_heads(array.sel(layer=2), scale="panel")
    for ax, head in zip(figure.axes, array.sel(layer=2).values, strict=False):
        np.testing.assert_allclose(image(ax), head / head.max())
    with pytest.raises(InputError, match="exclude each other"):
        plot_heads(array, scale="panel", high=1.0)


def test_heads_need_heads() -> None:
    with pytest.raises(InputError, match="layer, head, query, key"):
        plot_heads(dataset(5)["attn_w"])
