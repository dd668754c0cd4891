"""Curves stand at their places, on scales that are shared where that is asked for, with one legend."""

from __future__ import annotations

import numpy as np
import pytest

from normlens.errors import InputError
from normlens.plots.series import Curve, Curves, plot_series
from normlens.plots.style import numbered_style
from tests.plots.samples import complaints, texts, tick_labels


def panel(title: str, *curves: list[float], **options: object) -> Curves:
    lines = tuple(Curve(numbered_style(f"model {i}", i), np.array(values)) for i, values in enumerate(curves))
    return Curves(title, "rate", lines, **options)


def test_each_curve_stands_at_its_places_and_is_named_once() -> None:
    panels = [panel("left", [1.0, np.nan, 3.0], [2.0, 2.0, 2.0]), panel("right", [0.1, 0.2, 0.3], level=1.0)]
    figure = plot_series(panels, ["a", "b", "c"], "layer", provenance="p")
    left, right = figure.axes
    drawn = left.lines
    np.testing.assert_array_equal(drawn[0].get_ydata(), [1.0, np.nan, 3.0])
    assert tick_labels(left, "x") == ["a", "b", "c"] and left.get_xlabel() == "layer"
    assert right.get_ylim()[1] >= 1.0, "the level to compare with is on the panel"
    assert texts(figure).count("model 0") == 1 and complaints(figure) == []


def test_a_shared_scale_is_the_same_in_every_panel() -> None:
    panels = [panel("left", [1.0, 5.0]), panel("right", [0.1, 0.2])]
    apart, shared = (plot_series(panels, ["1", "2"], "layer", shared=value).axes for value in (False, True))
    assert len({ax.get_ylim() for ax in apart}) == 2 and len({ax.get_ylim() for ax in shared}) == 1


def test_ticks_of_the_callers_stand_between_places_too() -> None:
    figure = plot_series([panel("", [1.0, 2.0, 1.0], ticks={-0.5: "0.5", 1.5: "2"})], [""] * 3, "x", steps=True)
    assert list(figure.axes[0].get_xticks()) == [-0.5, 1.5] and tick_labels(figure.axes[0], "x") == ["0.5", "2"]
    assert figure.axes[0].lines[-1].get_drawstyle() == "steps-mid"


def test_a_curve_without_a_value_for_each_place_is_refused() -> None:
    with pytest.raises(InputError, match="a curve has more or fewer values"):
        plot_series([panel("", [1.0, 2.0])], ["a"], "layer")
    with pytest.raises(InputError, match="'empty' has no finite value"):
        plot_series([panel("empty", [np.nan])], ["a"], "layer")
