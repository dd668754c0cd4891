"""Contribution maps: the five of the 2021 paper side by side over the layers, and one map at full size."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Literal

import numpy as np
import xarray as xr
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from normlens.errors import InputError
from normlens.measures.table import MAPS
from normlens.plots.arrays import (
    OwnPart,
    arranged,
    chosen_layers,
    colour_bar_label,
    is_weight,
    numbering,
    numbers,
    shares_of_rows,
    title_of,
    token_labels,
    without_own,
)
from normlens.plots.cells import draw_map, label_tokens, written_size
from normlens.plots.colours import Scale, scale_of, short
from normlens.plots.fonts import printable
from normlens.plots.map_grid import Bar, Grid, Panel, own_bar, own_panel
from normlens.plots.sheet import (
    BODY,
    HEADING,
    MARGIN,
    NOTE,
    axes_at,
    colour_bar,
    draw_provenance,
    lettering,
    name_axis,
    new_figure,
    plain,
    provenance_height,
    root_figure,
    width_of,
)

#: More rows than this do not fit a page; the rest are had with `layers=`.
MOST_LAYERS = 6

#: On the colour bar of one map.
BAR_TICKS = 6

Scaling = Literal["measure", "unit", "panel"]


def plot_maps(
    dataset: xr.Dataset,
    measures: Sequence[str] | None = None,
    layers: Iterable[int] | Literal["all"] | None = None,
    *,
    scale: Scaling = "measure",
    root: bool = False,
    row_shares: bool = False,
    own: OwnPart = "shown",
    cross: bool = False,
    provenance: str | None = None,
    figure: Figure | None = None,
) -> Figure:
    """Draw maps side by side over the layers: measures as columns, layers as rows (2021, Figure 1).

    `measures` are names of `[layer, query, key]` arrays of the dataset, by default those of the paper's five that it
    holds; `layers` are layer numbers or `"all"`, by default at most six, evenly spaced. The colour bars say the scale:

    - `"measure"`: from 0 to the largest value drawn, rounded up; one scale for each norm, one for all weights together.
    - `"unit"`: the same, but weights (and row shares) from 0 to 1.
    - `"panel"`: every map from 0 to its own largest value, which stands above it.

    `root=True` colours by the square root, so that small values show beside large ones. `row_shares=True` divides each
    row by its sum: which part of all contributions to a query comes from each key. `own` is how what a position gives to
    itself is drawn: `"shown"` like the rest, `"faded"` in grey and outside the scale, or `"hidden"`, so that the rest can
    be seen in a long text. `cross=True` labels the maps of cross-attention, which hold no residual.
    """
    if scale not in ("measure", "unit", "panel"):
        raise InputError(f'scale is "measure", "unit" or "panel"; {scale!r} arrived.')
    present = [name for name in MAPS if name in dataset]
    names = present if measures is None else list(measures)
    unknown = [name for name in names if name not in dataset]
    if unknown or not names:
        raise InputError(
            f"plot_maps draws maps that the dataset holds ({', '.join(map(str, dataset.data_vars)) or 'none'}); "
            f"{', '.join(map(repr, unknown)) or 'no known map'} was asked for. Compute it first or leave it out."
        )
    arrays = {}
    for name in names:
        array = dataset[name] if "layer" in dataset[name].dims else dataset[name].expand_dims("layer")
        arrays[name] = arranged(array, ("layer", "query", "key"), "plot_maps")
    some = arrays[names[0]]
    available = numbering(some, "layer")
    drawn = chosen_layers(available, layers, MOST_LAYERS)
    values: dict[str, list[np.ndarray]] = {}
    apart: dict[str, list[np.ndarray | None]] = {}
    for name, array in arrays.items():
        cells = numbers(array)
        cells = shares_of_rows(cells) if row_shares else cells
        both = [without_own(cells[available.index(layer)], own, "plot_maps") for layer in drawn]
        values[name], apart[name] = [rest for rest, _ in both], [mine for _, mine in both]
    scales = _scales(values, scale, root, row_shares)
    panels = [
        [
            replace(
                own_panel(values[name][row], root=root) if scale == "panel" else Panel(values[name][row], scales[name]),
                own=apart[name][row],
                faded=own == "faded",
            )
            for name in names
        ]
        for row in range(len(drawn))
    ]
    bars = []
    for column, name in enumerate(names):
        words = colour_bar_label(
            name, "\n", below_zero=scales[name].low < 0, root=root, row_shares=row_shares, cross=cross
        )
        words += _own_note(apart[name], own, "\n")
        bar_scale, ticks = own_bar(scales[name]) if scale == "panel" else (scales[name], 3)
        bars.append(Bar(column, column, bar_scale, words, ticks))
    grid = Grid(
        panels,
        rows=[f"layer {layer}" for layer in drawn],
        columns=[title_of(name) for name in names],
        bars=bars,
        queries=token_labels(some, "query"),
        keys=token_labels(some, "key"),
    )
    return grid.draw(figure, provenance)


def plot_map(
    array: xr.DataArray,
    *,
    high: float | None = None,
    root: bool = False,
    row_shares: bool = False,
    own: OwnPart = "shown",
    cross: bool = False,
    title: str | None = None,
    provenance: str | None = None,
    ax: Axes | None = None,
) -> Figure:
    """Draw one `[query, key]` map with every token's label, on axes of the caller's or on a figure made to measure.

    The scale runs from 0 to the largest value, rounded up, or to `high` (to compare two figures); differences, which
    have values below 0, get a scale symmetric about 0. `root=True` colours by the square root, so that small values
    show beside large ones; `row_shares=True` divides each row by its sum. Without a `title`, the layer and head that
    the array was taken from are written. `own` is how what a position gives to itself is drawn, as in `plot_maps`.
    `cross=True` labels a map of cross-attention, which holds no residual.

    >>> import xarray as xr
    >>> tokens = {"query_token": ("query", ["a", "a"]), "key_token": ("key", ["a", "a"])}
    >>> map = xr.DataArray([[0.9, 0.1], [0.2, 0.8]], dims=("query", "key"), coords=tokens, name="attn_w")
    >>> [label.get_text() for label in plot_map(map).axes[0].get_yticklabels()]
    ['a', 'a']
    """
    array = arranged(array, ("query", "key"), "plot_map")
    whole = shares_of_rows(numbers(array)) if row_shares else numbers(array)
    values, mine = without_own(whole, own, "plot_map")
    scale = scale_of([values], high, root)
    queries, keys = token_labels(array, "query"), token_labels(array, "key")
    label = colour_bar_label(array.name, "   ", below_zero=scale.low < 0, root=root, row_shares=row_shares, cross=cross)
    title = _title(array) if title is None else printable(title)
    title = " · ".join(part for part in (title, _own_note([mine], own)) if part)
    if ax is None:
        ax = _measured_axes(queries, keys, scale, label, title, provenance)
    plain(ax)
    ax.set_aspect("auto")
    figure = root_figure(ax)
    box = ax.get_window_extent()
    wide, tall = box.width / figure.dpi, box.height / figure.dpi
    cell = min(wide / len(keys), tall / len(queries))
    # Square cells, whatever the shape of the caller's axes; the box shrinks around them.
    draw_map(ax, values, scale, cell * max(len(queries), len(keys)), mine, faded=own == "faded")
    ax.set_aspect("equal", adjustable="box", anchor="NW")
    every_key = label_tokens(ax, "x", keys, cell)
    every_query = label_tokens(ax, "y", queries, cell)
    name_axis(ax, "x", _axis_name("key", every_key))
    name_axis(ax, "y", _axis_name("query", every_query))
    if title:
        ax.set_title(title, loc="left", y=1.0, pad=5.0, **lettering(HEADING))
    map_wide, map_tall = cell * len(keys), cell * len(queries)
    length = _bar_length(map_tall, label)
    bar = ax.inset_axes((1 + 0.1 / map_wide, 1 - length / map_tall, 0.1 / map_wide, length / map_tall))
    colour_bar(bar, scale, label, horizontal=False, ticks=BAR_TICKS)
    draw_provenance(figure, provenance)
    return figure


def _measured_axes(
    queries: Sequence[str], keys: Sequence[str], scale: Scale, label: str, title: str, provenance: str | None
) -> Axes:
    """Axes on a new figure that is just large enough for the map, its labels, its colour bar and the provenance."""
    cell = cell_inches(max(len(queries), len(keys)))
    size = written_size(cell)
    wide, tall = cell * len(keys), cell * len(queries)
    left = MARGIN + 0.2 + width_of(queries, size) + 0.08
    numbers_beside = width_of(map(short, scale.ticks(BAR_TICKS)), NOTE) + 0.1
    right = 0.2 + max(0.34, numbers_beside) + 0.24
    top = MARGIN + (0.24 if title else 0.04)
    width = max(left + wide + right, left + width_of([title], HEADING) + MARGIN)
    below = max(0.08 + width_of(keys, size) + 0.2, _bar_length(tall, label) - tall + 0.06)
    height = top + tall + below + MARGIN + provenance_height(provenance, width)
    figure = new_figure(width, height)
    return axes_at(figure, left, top, wide, tall)


def _bar_length(map_tall: float, label: str) -> float:
    """The colour bar is as high as the map while that is low, but never shorter than its label."""
    return max(min(map_tall, max(3.0, map_tall / 2)), width_of([label], BODY))


def cell_inches(count: int) -> float:
    """The edge of one cell of a large map of `count` tokens: generous for few, smaller for many, one page at most.

    >>> [round(cell_inches(count) * count, 1) for count in (10, 60, 400)]
    [3.0, 7.5, 11.0]
    """
    generous, small, largest = 0.30, 0.125, 11.0
    shrinking = generous - (generous - small) * min(1.0, max(0.0, (count - 10) / 50))
    return max(1.6 / count, min(shrinking, largest / count))


def _scales(values: dict[str, list[np.ndarray]], scale: Scaling, root: bool, row_shares: bool) -> dict[str, Scale]:
    """One scale for each measure; measures of weights share one, and so does everything that is a share."""
    groups: dict[str, list[str]] = {}
    for name in values:
        groups.setdefault("weights" if row_shares or is_weight(name) else name, []).append(name)
    scales: dict[str, Scale] = {}
    for group, names in groups.items():
        unit = scale == "unit" and group == "weights"
        shared = scale_of([cells for name in names for cells in values[name]], 1.0 if unit else None, root)
        scales |= dict.fromkeys(names, shared)
    return scales


def _title(array: xr.DataArray) -> str:
    """What was chosen on the way to this map, as far as its scalar coordinates say: `layer 5, head 2`."""
    chosen = [f"{axis} {int(array.coords[axis])}" for axis in ("layer", "head") if axis in array.coords]
    return ", ".join(chosen)


def _own_note(apart: Sequence[np.ndarray | None], own: OwnPart, before: str = "") -> str:
    """What became of the own part, where it stands apart from the scale."""
    found = [part for part in apart if part is not None]
    if not found:
        return ""
    top = max(float(np.nanmax(np.abs(part))) for part in found)
    return before + (
        f"own part in grey, to {short(top)}" if own == "faded" else f"own part not drawn (to {short(top)})"
    )


def _axis_name(name: str, step: int) -> str:
    return name if step == 1 else f"{name} (one label in {step})"
