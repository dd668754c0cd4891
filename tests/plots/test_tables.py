"""A number for each layer and head: tables of one unit share a scale and a bar."""

from __future__ import annotations

import numpy as np
import pytest

from normlens.errors import InputError
from normlens.plots.style import Scale
from normlens.plots.tables import HeadTable, plot_head_tables
from tests.plots.samples import complaints, image, limits, tick_labels

VALUES = np.array([[0.1, 0.2, 0.9], [0.4, 0.5, 0.6]])


def test_tables_of_one_label_share_a_scale() -> None:
    tables = [
        HeadTable("a", "weight", VALUES),
        HeadTable("b", "weight", VALUES / 9),
        HeadTable("c", "norm", 7 * VALUES),
    ]
    figure = plot_head_tables(tables, [1, 2], highs={"norm": 8.0}, provenance="p")
    panels = [ax for ax in figure.axes if ax.images]
    np.testing.assert_array_equal(image(panels[2]), 7 * VALUES)
    assert [limits(ax)[1] for ax in panels] == [1.0, 1.0, 8.0]
    assert len(figure.axes) == 5, "three tables and two bars"
    assert complaints(figure) == []


def test_a_table_keeps_to_a_scale_of_its_own_and_writes_its_numbers() -> None:
    table = HeadTable("a", "norm", VALUES, Scale(0.0, 3.0), "{:.1f}")
    ax = plot_head_tables([table], [3, 5]).axes[0]
    assert limits(ax) == (0.0, 3.0) and tick_labels(ax, "y") == ["3", "5"]
    assert [text.get_text() for text in ax.texts] == [f"{value:.1f}" for value in VALUES.flat]


def test_a_row_for_each_layer_is_needed() -> None:
    with pytest.raises(InputError, match="more or fewer rows than there are layers"):
        plot_head_tables([HeadTable("a", "norm", VALUES)], [1, 2, 3])
