from __future__ import annotations

import numpy as np
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import to_rgb

from normlens.errors import InputError
from normlens.plots.estimates import Panel, plot_estimates
from normlens.plots.style import BLUE
from tests.plots.samples import complaints

ROWS = {"one": "the first method", "two": "another one"}


def ink(mean: float) -> int:
    """How many dots of a picture have the colour of the marked row, whose interval is nothing but its mean."""
    panel = Panel("MRR", "more is better", {"one": (mean, mean, mean), "two": (0.5, 0.0, 1.0)})
    figure = plot_estimates([panel], ROWS, marked=["one"])
    figure.set_dpi(300)
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    dots = np.asarray(canvas.buffer_rgba())[..., :3] / 255.0
    return int((np.abs(dots - to_rgb(BLUE)).max(-1) < 0.05).sum())


def test_a_mean_at_the_end_of_its_axis_keeps_its_whole_point() -> None:
    middle = ink(0.4)
    assert middle > 100
    assert ink(1.0) == pytest.approx(middle, rel=0.25) and ink(0.0) == pytest.approx(middle, rel=0.25)


def test_words_stay_on_the_sheet_and_apart() -> None:
    panels = [Panel(f"ρ, part {n}", "note", {"one": (0.1, -0.2, 0.3), "two": (-1.0, -1.0, 0.0)}) for n in range(6)]
    assert complaints(plot_estimates(panels, ROWS, floor="two", provenance="normlens · some/model")) == []


def test_nothing_to_draw_is_an_error() -> None:
    with pytest.raises(InputError, match="no column or no row"):
        plot_estimates([], ROWS)
