"""Clouds of points side by side, with a running median: pairs by category, tokens by frequency rank."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float
from matplotlib.figure import Figure

from normlens.errors import InputError
from normlens.plots.figure import add_provenance, in_house_style, new_figure
from normlens.plots.style import INK, NOTE, PALE, QUIET, Style, round_up


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


@in_house_style
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
    """Draw clouds over a logarithmic x axis.

    Args:
        clouds: The clouds.
        x: The name of the x axis.
        lowest: The left end of the x axis; points left of it stand on the edge.
        highest: Its right end.
        shared: Whether all clouds have one y scale.
        median: Whether to draw medians over twelve groups along x.
        across: Panels in a row.
        size: The size of a panel in inches.
        top: The upper end of the y axis; by default a cloud's own, or where all but a thousandth of its points lie.
        provenance: A small line at the bottom.

    Returns:
        The figure.
    """
    if not clouds or not all(len(cloud.x) for cloud in clouds):
        raise InputError("a cloud has no points")
    tops = [cloud.top or top or round_up(float(np.quantile(cloud.y, 0.999))) for cloud in clouds]
    if shared:
        tops = [max(tops)] * len(tops)
    columns = min(across, len(clouds))
    rows = math.ceil(len(clouds) / columns)
    figure = new_figure(columns * (size[0] + 0.5), rows * (size[1] + 0.8) + 0.2)
    grid = figure.subplots(rows, columns, squeeze=False)
    for ax in grid.flat[len(clouds) :]:
        ax.remove()
    for number, (ax, cloud) in enumerate(zip(grid.flat, clouds, strict=False)):
        ax.set_title(cloud.title, pad=12)
        ax.annotate(cloud.note, (0, 1), (0, 4), "axes fraction", "offset points", fontsize=NOTE, color=QUIET)
        ax.set_xscale("log")
        ax.xaxis.set_major_formatter("{x:g}")
        if cloud.behind is not None:
            behind_x, behind_y = cloud.behind
            ax.scatter(np.maximum(behind_x, lowest), behind_y, s=1.0, c=PALE, linewidths=0, rasterized=True)
        alpha = float(np.clip(3000 / len(cloud.x), 0.12, 0.8))
        colour = cloud.style.colour
        ax.scatter(np.maximum(cloud.x, lowest), cloud.y, s=3.0, c=colour, alpha=alpha, linewidths=0, rasterized=True)
        if median:
            ax.plot(*_medians(cloud.x, cloud.y, lowest), color=INK, linewidth=1.2)
        ax.set_xlim(lowest, highest)
        ax.set_ylim(0, tops[number])
        ax.spines[["top", "right"]].set_visible(False)
        ax.set_xlabel(x)
        if number % columns == 0 or not shared:
            ax.set_ylabel(cloud.y_name)
    add_provenance(figure, provenance)
    return figure


def _medians(
    x: Float[np.ndarray, " point"], y: Float[np.ndarray, " point"], lowest: float
) -> tuple[np.ndarray, np.ndarray]:
    """Medians over twelve groups of equal size along x."""
    order = np.argsort(x, kind="stable")
    groups = np.array_split(order, min(12, len(order)))
    along = [float(np.median(np.maximum(x[group], lowest))) for group in groups]
    return np.array(along), np.array([float(np.median(y[group])) for group in groups])
