"""Curves side by side: a quantity by layer, one line per category, measure or model."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from normlens.errors import InputError
from normlens.plots.colours import Scale, Style, round_up, short
from normlens.plots.sheet import (
    BODY,
    GRID,
    HAIRLINE,
    HEADING,
    INK,
    MARGIN,
    NOTE,
    QUIET,
    axes_at,
    draw_provenance,
    lettering,
    name_axis,
    new_figure,
    provenance_height,
    set_ticks,
    width_of,
    write,
)

TITLE, BELOW, GAP = 0.24, 0.42, 0.34  # inches: above a panel, below it for ticks and name, between two
LINE = 0.17  # inches per line of the legend
ACROSS = 3  # panels in a row


@dataclass(frozen=True)
class Curve:
    """One line: a value for each place on the x axis (NaN: no point there)."""

    style: Style
    values: Float[np.ndarray, " place"]


@dataclass(frozen=True)
class Curves:
    """One panel."""

    title: str
    y: str
    curves: tuple[Curve, ...]
    level: float | None = None  # a line to compare with, such as 1
    places: tuple[str, ...] | None = None  # its own x axis, where it differs from the other panels'
    x: str | None = None
    ticks: Mapping[float, str] | None = None  # where on the x axis to write what, instead of places at even steps

    def along(self, places: Sequence[str]) -> Sequence[str]:
        """The places on this panel's x axis."""
        return places if self.places is None else self.places


def plot_series(
    panels: Sequence[Curves],
    places: Sequence[str],
    x: str,
    *,
    shared: bool = False,
    size: tuple[float, float] = (2.5, 1.75),
    markers: bool = True,
    steps: bool = False,
    provenance: str | None = None,
) -> Figure:
    """Draw panels of curves over the same places, three in a row; `shared` gives all panels one y scale.

    `steps=True` draws a level stretch for each place, as in a histogram.
    """
    if not panels or not all(len(c.values) == len(p.along(places)) for p in panels for c in p.curves):
        raise InputError("each curve needs one value per place on the x axis: some have more or fewer")
    tops = [_top(panel) for panel in panels]
    scales = [Scale(0.0, max(tops) if shared else top) for top in tops]
    rows = [list(range(start, min(start + ACROSS, len(panels)))) for start in range(0, len(panels), ACROSS)]
    words = [short(tick) for scale in scales for tick in scale.ticks(6)]
    left = MARGIN + 0.24 + width_of(words, NOTE)
    gap = left + 0.1
    columns = min(ACROSS, len(panels))
    width = left + columns * size[0] + (columns - 1) * gap + MARGIN + 0.05
    styles = list({curve.style.label: curve.style for panel in panels for curve in panel.curves}.values())
    legend = _legend_rows(styles, width - 2 * MARGIN)
    pitch = TITLE + size[1] + BELOW
    height = MARGIN + len(rows) * pitch + len(legend) * LINE + 0.1 + provenance_height(provenance, width)
    figure = new_figure(width, height)
    for row, members in enumerate(rows):
        for column, number in enumerate(members):
            top = MARGIN + row * pitch + TITLE
            ax = axes_at(figure, left + column * (size[0] + gap), top, *size)
            write(figure, left + column * (size[0] + gap), top - 0.07, panels[number].title, HEADING, va="bottom")
            _draw(ax, panels[number], scales[number], panels[number].along(places), markers, steps)
            name_axis(ax, "x", panels[number].x or x)
            name_axis(ax, "y", panels[number].y)
    _draw_legend(figure, legend, MARGIN + len(rows) * pitch + 0.1, markers)
    draw_provenance(figure, provenance)
    return figure


def _top(panel: Curves) -> float:
    values = np.concatenate([curve.values for curve in panel.curves])
    finite = values[np.isfinite(values)]
    if not finite.size:
        raise InputError(f"a panel needs at least one finite value: {panel.title!r} has none")
    return round_up(max(float(finite.max()), panel.level or 0.0))


def _draw(ax: Axes, panel: Curves, scale: Scale, places: Sequence[str], markers: bool, steps: bool) -> None:
    along = np.arange(len(places))
    ticks = scale.ticks(6)
    for tick in ticks[1:]:
        ax.axhline(tick, color=GRID, linewidth=HAIRLINE, zorder=0)
    if panel.level is not None:
        ax.axhline(panel.level, color=QUIET, linewidth=0.8, linestyle=(0, (2, 2)), zorder=1)
    for curve in panel.curves:
        ax.plot(
            along,
            curve.values,
            zorder=3,
            drawstyle="steps-mid" if steps else "default",
            **_line(curve.style, markers),
        )
    step = max(1, math.ceil(len(places) / 13))
    shown = panel.ticks or {place: places[place] for place in range(0, len(places), step)}
    set_ticks(ax, "x", list(shown), list(shown.values()), NOTE)
    set_ticks(ax, "y", ticks, [short(tick) for tick in ticks], NOTE)
    room = 0.35 if markers else 0.5 if steps else 0.0
    ax.set_xlim(-room, len(places) - 1 + room)
    ax.set_ylim(0.0, scale.high * 1.03)
    for side in ("top", "right"):
        ax.spines[side].set_visible(False)


def _line(style: Style, markers: bool) -> dict[str, Any]:
    return {
        "color": style.colour,
        "marker": style.marker if markers else "",
        "markersize": 3.6,
        "markeredgewidth": 0.9 if style.marker in "x+" else 0.0,
        "linestyle": (0, (3, 1.5)) if style.dashed else "-",
        "linewidth": 1.1,
        "clip_on": False,
    }


def _legend_rows(styles: Sequence[Style], width: float) -> list[list[tuple[Style, float]]]:
    """Entries with their widths, in lines that fit."""
    lines: list[list[tuple[Style, float]]] = []
    used = 0.0
    for style in styles:
        need = 0.34 + width_of([style.label], BODY) + 0.16
        if not lines or used + need > width:
            lines.append([])
            used = 0.0
        lines[-1].append((style, need))
        used += need
    return lines


def _draw_legend(figure: Figure, lines: Sequence[Sequence[tuple[Style, float]]], top: float, markers: bool) -> None:
    across, down = figure.get_size_inches()
    for number, line in enumerate(lines):
        left = max(MARGIN, (across - sum(need for _, need in line)) / 2)
        y = 1 - (top + (number + 0.5) * LINE) / down
        for style, need in line:
            line_style = _line(style, markers) | {"clip_on": True}
            ends = [left / across, (left + 0.14) / across, (left + 0.28) / across]
            figure.add_artist(Line2D(ends, [y] * 3, **(line_style | {"marker": ""})))
            figure.add_artist(Line2D(ends[1:2], [y], **line_style))
            figure.text((left + 0.34) / across, y, style.label, va="center_baseline", **lettering(BODY, INK))
            left += need
