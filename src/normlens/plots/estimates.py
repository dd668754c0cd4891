"""Means with their intervals: a row for each method, a panel for each column of a table."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from normlens.errors import InputError
from normlens.plots.figure import add_provenance, in_house_style, label_inches, new_figure
from normlens.plots.style import BLUE, BODY, GREY, NOTE, QUIET, VERMILION


@dataclass(frozen=True)
class Panel:
    """One column: by row, a mean and the ends of its interval; rows may be missing."""

    title: str
    note: str
    points: Mapping[str, tuple[float, float, float]]


@in_house_style
def plot_estimates(
    panels: Sequence[Panel],
    rows: Mapping[str, str],
    *,
    marked: Sequence[str] = (),
    floor: str | None = None,
    provenance: str | None = None,
) -> Figure:
    """Draw each panel's means as points with intervals.

    Args:
        panels: The panels.
        rows: The names of the rows, with their labels.
        marked: Rows that are drawn in blue.
        floor: A row whose mean is drawn as a dashed line.
        provenance: A small line at the bottom.

    Returns:
        The figure.
    """
    if not panels or not rows:
        raise InputError("there is no column or no row to draw")
    across = min(4, len(panels))
    down = math.ceil(len(panels) / across)
    figure = new_figure(label_inches(list(rows.values()), BODY) + across * 1.85, down * (0.19 * len(rows) + 0.9))
    grid = figure.subplots(down, across, sharey=True, squeeze=False)
    for ax in grid.flat[len(panels) :]:
        ax.remove()
    for ax, panel in zip(grid.flat, panels, strict=False):
        ax.set_title(panel.title, pad=12)
        ax.annotate(panel.note, (0, 1), (0, 4), "axes fraction", "offset points", fontsize=NOTE, color=QUIET)
        ax.grid(axis="x")
        ax.set_axisbelow(True)
        if floor is not None and floor in panel.points:
            ax.axvline(panel.points[floor][0], color=VERMILION, linewidth=0.8, dashes=(3, 2))
        for row, name in enumerate(rows):
            if name in panel.points:
                mean, lower, upper = panel.points[name]
                colour = BLUE if name in marked else GREY
                ax.plot([lower, upper], [row, row], color=colour, linewidth=1.4, solid_capstyle="butt")
                ax.plot([mean], [row], marker="o", markersize=4.2, color=colour, markeredgewidth=0, clip_on=False)
        low, high = ax.get_xlim()
        ax.set_xlim(min(0.0, low), max(0.0, high))
        ax.xaxis.set_major_locator(MaxNLocator(3))
        ax.set_yticks(range(len(rows)), list(rows.values()), fontsize=BODY)
        ax.set_ylim(len(rows) - 0.4, -0.6)
        ax.tick_params(axis="y", length=0)
        ax.spines[["top", "right", "left"]].set_visible(False)
    add_provenance(figure, provenance)
    return figure
