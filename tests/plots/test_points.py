"""Clouds hold every point, those left of the axis on its edge, and their medians where asked for."""

from __future__ import annotations

import numpy as np
import pytest

from normlens.errors import InputError
from normlens.plots.points import Cloud, plot_points
from normlens.plots.style import numbered_style
from tests.plots.samples import complaints


def cloud(x: list[float], y: list[float], **options: object) -> Cloud:
    return Cloud("name", "note", numbered_style("name", 0), np.array(x), np.array(y), y_name="norm", **options)


def test_points_keep_their_places_and_small_ones_stand_on_the_edge() -> None:
    figure = plot_points([cloud([1e-9, 0.1, 1.0], [1.0, 2.0, 3.0])], "α", lowest=1e-6, highest=1.0, provenance="p")
    (points,) = figure.axes[0].collections
    np.testing.assert_allclose(points.get_offsets(), [[1e-6, 1.0], [0.1, 2.0], [1.0, 3.0]])
    assert complaints(figure) == []


def test_the_median_runs_through_groups_of_equal_size() -> None:
    x, y = np.arange(1.0, 25.0), np.arange(24.0)
    ax = plot_points([cloud(list(x), list(y))], "rank", lowest=1.0, highest=30.0, median=True).axes[0]
    (line,) = ax.lines
    np.testing.assert_allclose(line.get_ydata(), y.reshape(12, 2).mean(axis=1))


def test_the_upper_end_is_the_clouds_own_then_the_callers() -> None:
    clouds = [cloud([1.0], [0.4], top=1.0), cloud([1.0], [0.4])]
    own, callers = plot_points(clouds, "x", lowest=0.1, highest=1.0, shared=False, top=7.0).axes
    assert (own.get_ylim()[1], callers.get_ylim()[1]) == (1.0, 7.0)
    with pytest.raises(InputError, match="a cloud has no points"):
        plot_points([cloud([], [])], "x", lowest=0.1, highest=1.0)
