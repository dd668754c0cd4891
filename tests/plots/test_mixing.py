"""The mixing ratio by layer and token: every ratio, the means, and which ratio it is."""

from __future__ import annotations

import numpy as np
import pytest

from normlens.errors import InputError
from normlens.plots import plot_mixing
from tests.plots.samples import dataset, image, mixing, sentence, texts, tick_labels


def test_mixing_shows_every_ratio_and_the_mean_of_each_layer() -> None:
    array = mixing(10)
    array[1, 3] = np.nan
    strip, means, bar = plot_mixing(array, measure="attnresln_n").axes
    np.testing.assert_array_equal(image(strip), array.values)
    assert tick_labels(strip, "x") == sentence(10) and tick_labels(strip, "y") == ["1", "2", "3"]
    expected = np.nanmean(array.values, axis=1)
    assert [patch.get_width() for patch in means.patches] == pytest.approx(expected)
    assert [text.get_text() for text in means.texts] == [f"{mean:.2f}" for mean in expected]
    assert means.get_xlim() == pytest.approx(bar.get_xlim()), "the colour bar is the axis of the means"
    assert means.get_ylim() == strip.get_ylim(), "a bar stands beside its layer"


def test_mixing_says_which_ratio_it_is() -> None:
    array = mixing(6)
    assert "mixing ratio, ATTN-W" in texts(plot_mixing(array, measure="attn_w"))
    assert "share of weight" in plot_mixing(array, measure="attn_w").axes[-1].get_xlabel()
    named = plot_mixing(array.rename("mixing_attnres_n"))
    assert "mixing ratio, ATTNRES-N" in texts(named) and "‖context‖" in named.axes[-1].get_xlabel()
    assert "mixing ratio" in texts(plot_mixing(array)), "nothing is claimed that is not known"


def test_a_map_is_not_a_mixing_ratio() -> None:
    with pytest.raises(InputError, match="from 0 to 1"):
        plot_mixing(dataset(5)["attnres_n"].max("key"))
    with pytest.raises(InputError, match="axes layer, query"):
        plot_mixing(dataset(5)["attn_w"])
