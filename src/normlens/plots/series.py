"""Curves side by side: a quantity by layer, one line per category, measure or model."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from normlens.errors import InputError
from normlens.plots.figure import add_provenance, in_house_style, new_figure
from normlens.plots.style import QUIET, Style, round_up

#: Panels in a row.
ACROSS = 3


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
    ticks: Mapping[float, str] | None = None  # ticks of the x axis, instead of places at even steps

    def along(self, places: Sequence[str]) -> Sequence[str]:
        """The places on this panel's x axis."""
        return places if self.places is None else self.places


@in_house_style
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
    """Draw panels of curves over the same places, three in a row.

    Args:
        panels: The panels.
        places: The labels of the x axis.
        x: The name of the x axis.
        shared: Whether all panels have one y scale.
        size: The size of a panel in inches.
        markers: Whether points are marked.
        steps: Whether each place has a level stretch, as in a histogram.
        provenance: A small line at the bottom.

    Returns:
        The figure.
    """
    for panel in panels:
        for curve in panel.curves:
            if len(curve.values) != len(panel.along(places)):
                raise InputError("a curve has more or fewer values than the x axis has places")
    if not panels:
        raise InputError("there is no panel to draw")
    tops = [_top(panel) for panel in panels]
    across = min(ACROSS, len(panels))
    down = math.ceil(len(panels) / across)
    figure = new_figure(across * (size[0] + 0.55), down * (size[1] + 0.7) + 0.35)
    grid = figure.subplots(down, across, squeeze=False)
    for ax in grid.flat[len(panels) :]:
        ax.remove()
    entries: dict[str, Artist] = {}
    for ax, panel, top in zip(grid.flat, panels, tops, strict=False):
        _draw(ax, panel, panel.along(places), markers, steps)
        ax.set_ylim(0.0, 1.03 * (max(tops) if shared else top))
        ax.set_title(panel.title)
        ax.set(xlabel=panel.x or x, ylabel=panel.y)
        handles, labels = ax.get_legend_handles_labels()
        entries |= dict(zip(labels, handles, strict=True))
    figure.legend(list(entries.values()), list(entries), loc="outside lower center", ncols=max(1, across * 2))
    add_provenance(figure, provenance)
    return figure


def _top(panel: Curves) -> float:
    values = np.concatenate([curve.values for curve in panel.curves])
    finite = values[np.isfinite(values)]
    if not finite.size:
        raise InputError(f"panel {panel.title!r} has no finite value")
    return round_up(max(float(finite.max()), panel.level or 0.0))


def _draw(ax: Axes, panel: Curves, places: Sequence[str], markers: bool, steps: bool) -> None:
    ax.grid(axis="y")
    ax.set_axisbelow(True)
    if panel.level is not None:
        ax.axhline(panel.level, color=QUIET, linewidth=0.8, linestyle=(0, (2, 2)))
    for curve in panel.curves:
        drawstyle = "steps-mid" if steps else "default"
        ax.plot(np.arange(len(places)), curve.values, drawstyle=drawstyle, **curve.style.line(markers))
    step = max(1, math.ceil(len(places) / 13))
    ticks = panel.ticks or {place: places[place] for place in range(0, len(places), step)}
    ax.set_xticks(list(ticks), list(ticks.values()))
    ax.set_xlim(-0.5, len(places) - 0.5)
    ax.spines[["top", "right"]].set_visible(False)
