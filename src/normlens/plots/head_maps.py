"""Every head as a thumbnail: layers as rows, heads as columns, or the heads of one layer at a readable size."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np
import xarray as xr
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from normlens.errors import InputError
from normlens.plots.arrays import arranged, colour_bar_label, numbering, numbers, token_labels
from normlens.plots.cells import draw_cells
from normlens.plots.colours import Scale, own_scale, scale_of
from normlens.plots.map_grid import Bar, Grid, Panel, own_bar, own_panel
from normlens.plots.sheet import (
    BODY,
    HAIRLINE,
    MARGIN,
    QUIET,
    axes_at,
    colour_bar,
    draw_provenance,
    name_axis,
    new_figure,
    provenance_height,
    set_ticks,
    width_of,
)

#: Thumbnails are laid out over about the width of a page, and stay between a stamp and a small map.
PAGE, SMALLEST, LARGEST = 6.8, 0.28, 0.85

EACH = "each map: queries down, keys across"

Scaling = Literal["shared", "panel"]


def plot_heads(
    array: xr.DataArray,
    *,
    scale: Scaling = "shared",
    high: float | None = None,
    root: bool = False,
    provenance: str | None = None,
    figure: Figure | None = None,
) -> Figure:
    """Draw a `[layer, head, query, key]` measure (`alpha`, `af_norm`) as one map for each head.

    Several layers: thumbnails, layers down and heads across. One layer (`array.sel(layer=3)`): larger maps with token
    labels. All maps share a scale from 0 to the largest value, rounded up (or to `high`); with `scale="panel"` each
    map runs from 0 to its own largest value, which shows the patterns and hides the sizes. `root=True` colours by the
    square root, so that small values show beside large ones.
    """
    if scale not in ("shared", "panel"):
        raise InputError(f'scale is "shared" or "panel"; {scale!r} arrived.')
    if scale == "panel" and high is not None:
        raise InputError('a common upper end contradicts scale="panel"; leave out high or the scale.')
    if isinstance(array, xr.DataArray) and "layer" not in array.dims:
        array = array.expand_dims("layer")
    array = arranged(array, ("layer", "head", "query", "key"), "plot_heads")
    values = numbers(array)
    shared = scale_of([values], high, root)
    label = colour_bar_label(array.name, "   ", below_zero=shared.low < 0, root=root)
    bar_scale, ticks = own_bar(shared) if scale == "panel" else (shared, 6)
    if len(values) == 1:
        panels = [
            own_panel(cells, f"head {head}", root) if scale == "panel" else Panel(cells, shared, f"head {head}")
            for head, cells in zip(numbering(array, "head"), values[0], strict=True)
        ]
        across = min(len(panels), 4 if len(panels) <= 16 else 8)
        empty = -len(panels) % across
        places = [*panels, *[None] * empty]
        grid = Grid(
            panels=[places[start : start + across] for start in range(0, len(places), across)],
            rows=[""] * (len(places) // across),
            columns=[],
            title=f"layer {numbering(array, 'layer')[0]}",
            bars=[Bar(0, across - 1, bar_scale, label, ticks)],
            queries=token_labels(array, "query"),
            keys=token_labels(array, "key"),
        )
        return grid.draw(figure, provenance)
    own = [[own_scale(cells, root) if scale == "panel" else shared for cells in line] for line in values]
    return _thumbnails(array, values, own, (bar_scale, label, ticks), figure, provenance)


def _thumbnails(
    array: xr.DataArray,
    values: np.ndarray,
    scales: Sequence[Sequence[Scale]],
    bar: tuple[Scale, str, Sequence[str] | int],
    figure: Figure | None,
    provenance: str | None,
) -> Figure:
    """All maps in one axes whose coordinates are head and layer: a thousand axes would take a minute to draw."""
    layers, heads = numbering(array, "layer"), numbering(array, "head")
    # Long and thin maps (many source tokens, few target tokens) are drawn less long and less thin.
    ratio = min(2.0, max(0.5, array.sizes["query"] / array.sizes["key"]))
    left = MARGIN + 0.2 + width_of(map(str, layers), BODY) + 0.06
    top = MARGIN + 0.34
    below = 0.12 + 0.08 + 0.46 + MARGIN / 2
    if figure is None:
        wide = max(SMALLEST, min(LARGEST, PAGE / len(heads)))
        tall = wide * ratio
        width = left + wide * len(heads) + MARGIN
        height = top + tall * len(layers) + below + provenance_height(provenance, width)
        figure = new_figure(width, height)
    else:
        width, height = map(float, figure.get_size_inches())
        room_down = height - top - below - provenance_height(provenance, width)
        wide = min((width - left - MARGIN) / len(heads), room_down / len(layers) / ratio)
        tall = wide * ratio
        if wide <= 0:
            raise InputError(
                f"a figure must leave room for {len(layers)} x {len(heads)} thumbnails; one of {width:.1f} x "
                f"{height:.1f} inches does not. Give a larger one, or none to have it made to measure."
            )
    ax = axes_at(figure, left, top, wide * len(heads), tall * len(layers))
    half_wide, half_tall = 0.5 - 0.02 / wide, 0.5 - 0.02 / tall  # a gap of 0.04 inches between neighbours
    for row in range(len(layers)):
        for column in range(len(heads)):
            edges = (column - half_wide, column + half_wide, row + half_tall, row - half_tall)
            draw_cells(ax, values[row, column], scales[row][column], max(wide, tall), edges)
            frame = Rectangle((edges[0], edges[3]), 2 * half_wide, 2 * half_tall)
            frame.set(fill=False, linewidth=HAIRLINE, edgecolor=QUIET)
            ax.add_patch(frame)
    ax.set_xlim(-0.5, len(heads) - 0.5)
    ax.set_ylim(len(layers) - 0.5, -0.5)
    for spine in ax.spines.values():
        spine.set_visible(False)
    set_ticks(ax, "x", range(len(heads)), [str(head) for head in heads], BODY, length=0)
    set_ticks(ax, "y", range(len(layers)), [str(layer) for layer in layers], BODY, length=0)
    ax.xaxis.tick_top()
    ax.xaxis.set_label_position("top")
    ax.tick_params(which="both", length=0)
    name_axis(ax, "x", "head")
    name_axis(ax, "y", "layer")
    length = min(2.4, wide * len(heads))
    scale, label, ticks = bar
    colours = axes_at(figure, left + (wide * len(heads) - length) / 2, top + tall * len(layers) + 0.1, length, 0.08)
    colour_bar(colours, scale, f"{label}\n{EACH}", horizontal=True, ticks=ticks)
    draw_provenance(figure, provenance)
    return figure
