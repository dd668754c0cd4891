"""Means with their intervals: a row for each method, a panel for each column of a table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.figure import Figure

from normlens.errors import InputError
from normlens.plots.colours import BLUE, GREY, VERMILION, short
from normlens.plots.sheet import (
    BODY,
    GRID,
    HAIRLINE,
    HEADING,
    MARGIN,
    NOTE,
    QUIET,
    axes_at,
    draw_provenance,
    new_figure,
    provenance_height,
    set_ticks,
    width_of,
    write,
)


@dataclass(frozen=True)
class Panel:
    """One column: by row, a mean and the ends of its interval; rows may be missing."""

    title: str
    note: str
    points: Mapping[str, tuple[float, float, float]]


def plot_estimates(
    panels: Sequence[Panel],
    rows: Mapping[str, str],
    *,
    marked: Sequence[str] = (),
    floor: str | None = None,
    provenance: str | None = None,
) -> Figure:
    """Draw each panel's means as points with intervals; `marked` rows are blue, the row `floor` leaves a dashed line."""
    if not panels or not rows:
        raise InputError("a picture of estimates needs at least one column and one row: there is none")
    pitch, width, gap, head = 0.19, 1.55, 0.3, 0.52
    left = MARGIN + width_of(rows.values(), BODY) + 0.12
    across = min(4, len(panels))
    bands = -(-len(panels) // across)
    height = pitch * len(rows) + 0.06
    whole = left + across * width + (across - 1) * gap + MARGIN + 0.1
    band = head + height + 0.3
    figure = new_figure(whole, MARGIN + bands * band + provenance_height(provenance, whole))
    names = list(rows)
    for number, panel in enumerate(panels):
        down, column = divmod(number, across)
        place, top = left + column * (width + gap), MARGIN + down * band + head
        ax = axes_at(figure, place, top, width, height)
        write(figure, place, top - 0.24, panel.title, HEADING, va="bottom")
        write(figure, place, top - 0.1, panel.note, NOTE, va="bottom", colour=QUIET)
        low, high = _ends(panel)
        ax.set_xlim(low, high)
        ax.set_ylim(len(names) - 0.4, -0.6)
        for tick in np.linspace(low, high, 3):
            ax.axvline(tick, color=GRID, linewidth=HAIRLINE, zorder=0)
        if floor is not None and floor in panel.points:
            ax.axvline(panel.points[floor][0], color=VERMILION, linewidth=0.8, dashes=(3, 2), zorder=1)
        for row, name in enumerate(names):
            if name not in panel.points:
                continue
            mean, lower, upper = panel.points[name]
            colour = BLUE if name in marked else GREY
            ax.plot([lower, upper], [row, row], color=colour, linewidth=1.4, solid_capstyle="butt", zorder=2)
            # A mean at the end of the axis keeps its whole point.
            ax.plot([mean], [row], marker="o", markersize=4.2, color=colour, markeredgewidth=0, zorder=3, clip_on=False)
        ticks = [low, (low + high) / 2, high]
        set_ticks(ax, "x", ticks, [short(tick) for tick in ticks], NOTE)
        set_ticks(ax, "y", range(len(names)), list(rows.values()) if column == 0 else [""] * len(names), BODY, length=0)
        for side in ("top", "right", "left"):
            ax.spines[side].set_visible(False)
    draw_provenance(figure, provenance)
    return figure


def _ends(panel: Panel) -> tuple[float, float]:
    """Round ends of the axis, zero among them."""
    found = [x for point in panel.points.values() for x in point if np.isfinite(x)]
    low, high = min([0.0, *found]), max([0.0, *found])
    step = 10.0 ** np.floor(np.log10(max(high - low, 1e-12)))
    step = step / 4 if (high - low) / step < 2 else step / 2 if (high - low) / step < 5 else step
    return float(np.floor(low / step + 1e-9) * step), float(np.ceil(high / step - 1e-9) * step) or float(step)
