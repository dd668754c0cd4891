"""Clouds of points side by side, with a running median: pairs by category, tokens by frequency rank."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float
from matplotlib.figure import Figure

from normlens.errors import InputError
from normlens.plots.colours import PALE, Style, round_up, short
from normlens.plots.sheet import (
    HAIRLINE,
    HEADING,
    INK,
    MARGIN,
    NOTE,
    QUIET,
    axes_at,
    draw_provenance,
    name_axis,
    new_figure,
    provenance_height,
    set_ticks,
    width_of,
    write,
)


@dataclass(frozen=True)
class Cloud:
    """Points of one style, and the points that stand behind them in pale grey."""

    title: str
    note: str  # under the title, such as the correlation
    style: Style
    x: Float[np.ndarray, " point"]
    y: Float[np.ndarray, " point"]
    behind: tuple[Float[np.ndarray, " other"], Float[np.ndarray, " other"]] | None = None
    y_name: str = ""
    top: float | None = None


def plot_points(
    clouds: Sequence[Cloud],
    x: str,
    *,
    lowest: float,
    highest: float,
    shared: bool = True,
    median: bool = False,
    across: int = 4,
    size: tuple[float, float] = (1.75, 1.6),
    top: float | None = None,
    provenance: str | None = None,
) -> Figure:
    """Draw clouds over a logarithmic x axis; points left of `lowest` stand on the edge.

    The y axis ends at `top`, a cloud's own, or where all but a thousandth of its points lie.
    """
    if not clouds or not all(len(cloud.x) for cloud in clouds):
        raise InputError("a cloud needs at least one point: one of these has none")
    tops = [cloud.top or top or round_up(float(np.quantile(cloud.y, 0.999))) for cloud in clouds]
    if shared:
        tops = [max(tops)] * len(tops)
    left = MARGIN + 0.24 + width_of([short(top) for top in tops] + ["0.25"], NOTE)
    gap, head, below = left + 0.08, 0.38, 0.42
    columns = min(across, len(clouds))
    rows = -(-len(clouds) // across)
    width = left + columns * size[0] + (columns - 1) * gap + MARGIN + 0.08
    pitch = head + size[1] + below
    figure = new_figure(width, MARGIN + rows * pitch + provenance_height(provenance, width))
    for number, cloud in enumerate(clouds):
        row, column = divmod(number, across)
        place, upper = left + column * (size[0] + gap), MARGIN + row * pitch + head
        ax = axes_at(figure, place, upper, *size)
        write(figure, place, upper - 0.2, cloud.title, HEADING, va="bottom")
        write(figure, place, upper - 0.06, cloud.note, NOTE, va="bottom", colour=QUIET)
        ax.set_xscale("log")
        ax.minorticks_off()
        if cloud.behind is not None:
            ax.scatter(np.maximum(cloud.behind[0], lowest), cloud.behind[1], s=1.0, c=PALE, linewidths=0,
                       rasterized=True)  # fmt: skip
        shade = float(np.clip(3000 / len(cloud.x), 0.12, 0.8))
        ax.scatter(np.maximum(cloud.x, lowest), cloud.y, s=3.0, c=cloud.style.colour, alpha=shade, linewidths=0,
                   rasterized=True)  # fmt: skip
        if median:
            ax.plot(*_median(cloud.x, cloud.y, lowest), color=INK, linewidth=1.2)
        ax.set_xlim(lowest, highest)
        ax.set_ylim(0, tops[number])
        decades = range(int(np.ceil(np.log10(lowest))), int(np.floor(np.log10(highest))) + 1)
        step = max(1, -(-len(decades) // 5))
        shown = list(decades)[::-1][::step][::-1]
        set_ticks(ax, "x", [10.0**d for d in shown], [_power(d) for d in shown], NOTE)
        ax.minorticks_off()
        ticks = [tops[number] * share for share in (0, 0.25, 0.5, 0.75, 1)]
        set_ticks(ax, "y", ticks, [short(tick) for tick in ticks], NOTE)
        for side in ("top", "right"):
            ax.spines[side].set_visible(False)
        for side in ("left", "bottom"):
            ax.spines[side].set_linewidth(HAIRLINE)
        name_axis(ax, "x", x)
        if column == 0 or not shared:
            name_axis(ax, "y", cloud.y_name)
    draw_provenance(figure, provenance)
    return figure


def _power(exponent: int) -> str:
    if 0 <= exponent <= 3:
        return f"{10**exponent:,}"
    digits = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")
    return "10" + str(exponent).translate(digits)


def _median(
    x: Float[np.ndarray, " point"], y: Float[np.ndarray, " point"], lowest: float
) -> tuple[np.ndarray, np.ndarray]:
    """Medians over twelve groups of equal size along x."""
    order = np.argsort(x, kind="stable")
    groups = np.array_split(order, min(12, len(order)))
    return (
        np.array([np.median(np.maximum(x[group], lowest)) for group in groups]),
        np.array([np.median(y[group]) for group in groups]),
    )
