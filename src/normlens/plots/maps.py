"""Contribution maps: several side by side over the layers, one at full size, every head, and mixing ratios."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import xarray as xr
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.image import AxesImage

from normlens.errors import InputError
from normlens.measures.table import MAPS, MEASURES, MIXING
from normlens.plots.arrays import (
    Diagonal,
    arranged,
    chosen_layers,
    colour_bar_label,
    is_weight,
    numbering,
    numbers,
    shares_of_rows,
    title_of,
    token_labels,
    without_diagonal,
)
from normlens.plots.figure import add_colour_bar, add_provenance, in_house_style, label_inches, new_figure
from normlens.plots.style import FINE, INK, NOTE, Scale, greys, scale_of, short
from normlens.plots.text import printable

#: More rows than this do not fit a page; the figure says so, and `layers="all"` draws the rest.
MOST_LAYERS = 12
Scaling = Literal["measure", "unit", "panel"]
HeadScaling = Literal["shared", "panel"]


# ---- cells and labels ----------------------------------------------------------------------------------------------------


def draw_cells(ax: Axes, values: np.ndarray, scale: Scale) -> AxesImage:
    """Draw numbers as coloured cells; where they are finer than the picture they are averaged, not dropped."""
    interpolation = "none" if max(values.shape) <= 300 else "antialiased"
    return ax.imshow(values, norm=scale.norm, cmap=scale.colormap, aspect="auto", interpolation=interpolation)


@dataclass(frozen=True)
class Cells:
    """The values of one map, and its diagonal where that stands apart from the scale."""

    values: np.ndarray
    diagonal: np.ndarray | None
    faded: bool

    @classmethod
    def of(cls, values: np.ndarray, diagonal: Diagonal, function: str) -> Cells:
        """Separate the diagonal, if it is not shown like the rest."""
        rest, own = without_diagonal(values, diagonal, function)
        return cls(rest, own, diagonal == "faded")

    def draw(self, ax: Axes, scale: Scale) -> AxesImage:
        """Draw the map; a faded diagonal is grey, a hidden one white."""
        if self.diagonal is None:
            return draw_cells(ax, self.values, scale)
        image = draw_cells(ax, np.where(np.isfinite(self.diagonal), 0.0, self.values), scale)
        if self.faded:
            top = float(np.nanmax(np.abs(self.diagonal))) or 1.0
            ax.imshow(np.abs(self.diagonal), vmin=0, vmax=top, cmap=greys(), aspect="auto", interpolation="none")
        return image

    @property
    def note(self) -> str:
        """A note on the diagonal, where it stands apart."""
        if self.diagonal is None:
            return ""
        top = short(float(np.nanmax(np.abs(self.diagonal))))
        return f"own part in grey, to {top}" if self.faded else f"own part not drawn (to {top})"


def cell_inches(count: int) -> float:
    """The edge of one cell of a large map of `count` tokens: generous for few, smaller for many, one page at most.

    >>> [round(cell_inches(count) * count, 1) for count in (10, 60, 400)]
    [3.0, 7.5, 11.0]
    """
    generous, small, largest = 0.30, 0.125, 11.0
    shrinking = generous - (generous - small) * min(1.0, max(0.0, (count - 10) / 50))
    return max(1.6 / count, min(shrinking, largest / count))


def label_tokens(ax: Axes, axis: str, labels: Sequence[str], cell: float) -> int:
    """Write a token at each position of the axis; where cells are too small, at every n-th. Returns n."""
    step = max(1, math.ceil(0.075 / cell))
    size = min(8.0, max(FINE, 72 * 0.8 * cell * step))
    places = list(range(0, len(labels), step))
    words = [labels[place] for place in places]
    if axis == "x":
        ax.set_xticks(places, words, rotation=90, fontsize=size)
    else:
        ax.set_yticks(places, words, fontsize=size)
    return step


def _axis_name(name: str, step: int) -> str:
    return name if step == 1 else f"{name} (one label in {step})"


# ---- one map -------------------------------------------------------------------------------------------------------------


@in_house_style
def plot_map(
    array: xr.DataArray,
    *,
    high: float | None = None,
    sqrt: bool = False,
    row_shares: bool = False,
    diagonal: Diagonal | None = None,
    cross: bool = False,
    title: str | None = None,
    provenance: str | None = None,
    ax: Axes | None = None,
) -> Figure:
    """Draw one `[query, key]` map with every token's label.

    Args:
        array: The map.
        high: The upper end of the scale, to compare two figures; by default the largest value, rounded up.
        sqrt: Colour by the square root, so that small values show beside large ones.
        row_shares: Divide each row by its sum.
        diagonal: How self parts are drawn; by default as in `plot_maps`.
        cross: Label a map of cross-attention, which holds no residual.
        title: A title; by default the layer and head that the array was taken from.
        provenance: A small line at the bottom.
        ax: Axes to draw on; by default those of a new figure.

    Returns:
        The figure.

    Example:
        >>> import xarray as xr
        >>> tokens = {"query_token": ("query", ["a", "a"]), "key_token": ("key", ["a", "a"])}
        >>> map = xr.DataArray([[0.9, 0.1], [0.2, 0.8]], dims=("query", "key"), coords=tokens, name="attn_w")
        >>> [label.get_text() for label in plot_map(map).axes[0].get_yticklabels()]
        ['a', 'a']
    """
    array = arranged(array, ("query", "key"), "plot_map")
    values = numbers(array)
    if row_shares:
        values = shares_of_rows(values)
    queries, keys = token_labels(array, "query"), token_labels(array, "key")
    cells = Cells.of(values, diagonal or _usual_diagonal(queries, keys, cross), "plot_map")
    scale = scale_of([cells.values], high, sqrt)
    cell = cell_inches(max(len(queries), len(keys)))
    if ax is None:
        width = 1.3 + label_inches(queries) + cell * len(keys)
        height = 0.8 + label_inches(keys) + cell * len(queries)
        ax = new_figure(max(width, 2.6), max(height, 2.2)).add_subplot()
    figure = ax.figure.figure
    assert isinstance(figure, Figure)
    if figure.get_layout_engine() is None:  # labels and the colour bar of given axes would lie over their neighbours
        figure.set_layout_engine("constrained")
    image = cells.draw(ax, scale)
    ax.set_aspect("equal", adjustable="box", anchor="NW")
    ax.set_xlabel(_axis_name("key", label_tokens(ax, "x", keys, cell)))
    ax.set_ylabel(_axis_name("query", label_tokens(ax, "y", queries, cell)))
    heading = _selection(array) if title is None else printable(title)
    ax.set_title(" · ".join(part for part in (heading, cells.note) if part))
    label = colour_bar_label(array.name, "   ", below_zero=scale.low < 0, sqrt=sqrt, row_shares=row_shares, cross=cross)
    add_colour_bar(figure, image, ax, scale, label, "right", 6)
    add_provenance(figure, provenance)
    return figure


def _usual_diagonal(queries: Sequence[str], keys: Sequence[str], cross: bool) -> Diagonal:
    """Self parts are faded, since they outweigh the rest; where queries and keys are different tokens there are none."""
    return "shown" if cross or list(queries) != list(keys) else "faded"


def _selection(array: xr.DataArray) -> str:
    """The layer and head that a map was taken from, as far as its scalar coordinates say: `layer 5, head 2`."""
    chosen = [f"{axis} {int(array.coords[axis])}" for axis in ("layer", "head") if axis in array.coords]
    return ", ".join(chosen)


# ---- maps over the layers ------------------------------------------------------------------------------------------------


@in_house_style
def plot_maps(
    dataset: xr.Dataset,
    measures: Sequence[str] | None = None,
    layers: Iterable[int] | Literal["all"] | None = None,
    *,
    scale: Scaling = "measure",
    sqrt: bool = False,
    row_shares: bool = False,
    diagonal: Diagonal | None = None,
    cross: bool = False,
    provenance: str | None = None,
    figure: Figure | None = None,
) -> Figure:
    """Draw maps side by side over the layers: measures as columns, layers as rows (2021, Figure 1).

    Args:
        dataset: The arrays of one kind of site (`analysis.sites["encoder"]`).
        measures: Names of maps of the dataset; by default all that it holds.
        layers: Layer numbers or `"all"`; by default at most twelve, evenly spaced.
        scale: `"measure"`: from 0 to the largest value drawn, rounded up; one scale for each norm, one for all weights
            together. `"unit"`: the same, but weights (and row shares) from 0 to 1. `"panel"`: every map from 0 to its
            own largest value, which stands above it.
        sqrt: Colour by the square root, so that small values show beside large ones.
        row_shares: Divide each row by its sum: the share of each key in all contributions to a query.
        diagonal: How self parts are drawn: `"faded"` in grey and outside the scale (the default in self-attention),
            `"shown"` like the rest, or `"hidden"`.
        cross: Label the maps of cross-attention, which hold no residual.
        provenance: A small line at the bottom.
        figure: A figure to draw on; by default a new one.

    Returns:
        The figure.
    """
    if scale not in ("measure", "unit", "panel"):
        raise InputError(f"scale must be measure, unit or panel, got {scale!r}")
    arrays = _named_maps(dataset, measures)
    names = list(arrays)
    some = arrays[names[0]]
    available = numbering(some, "layer")
    drawn = chosen_layers(available, layers, MOST_LAYERS)
    queries, keys = token_labels(some, "query"), token_labels(some, "key")
    diagonal = diagonal or _usual_diagonal(queries, keys, cross)
    cells: dict[str, list[Cells]] = {}
    for name, array in arrays.items():
        values = numbers(array)
        if row_shares:
            values = shares_of_rows(values)
        cells[name] = [Cells.of(values[available.index(layer)], diagonal, "plot_maps") for layer in drawn]
    scales = _scales(cells, scale, sqrt, row_shares)
    cell = _panel_inches(max(len(queries), len(keys))) / max(len(queries), len(keys))
    figure = figure or new_figure(
        0.7 + label_inches(queries) + len(names) * (cell * len(keys) + 0.15),
        0.9 + label_inches(keys) + len(drawn) * (cell * len(queries) + 0.18),
    )
    figure.set_layout_engine("constrained")
    grid = figure.subplots(len(drawn), len(names), sharex=True, sharey=True, squeeze=False)
    for column, name in enumerate(names):
        bar_scale = scales[name]
        for row, each in enumerate(cells[name]):
            ax = grid[row][column]
            if scale == "panel":
                bar_scale = scale_of([each.values], _largest(each.values), sqrt)
                ax.set_title(f"to {short(bar_scale.high)}", fontsize=NOTE)
            image = each.draw(ax, bar_scale)
        label = colour_bar_label(
            name, "\n", below_zero=bar_scale.low < 0, sqrt=sqrt, row_shares=row_shares, cross=cross
        )
        if scale == "panel":
            label += "\nlast map; each to its own largest value"
        notes = [each.note for each in cells[name] if each.note]
        add_colour_bar(figure, image, list(grid[:, column]), bar_scale, "\n".join([label, *notes[-1:]]), "bottom", 3)
        top = grid[0][column]
        top.set_title("\n".join(part for part in (title_of(name), top.get_title(loc="left")) if part))
        _name_keys(grid[-1][column], keys, cell)
    for row, layer in enumerate(drawn):
        step = label_tokens(grid[row][0], "y", queries, cell)
        grid[row][0].set_ylabel(f"layer {layer}\n{_axis_name('query', step)}")
    if layers is None and len(drawn) < len(available):
        add_provenance(figure, f"{len(drawn)} of {len(available)} layers are drawn")
    add_provenance(figure, provenance)
    return figure


def _name_keys(ax: Axes, keys: Sequence[str], cell: float) -> None:
    ax.set_xlabel(_axis_name("key", label_tokens(ax, "x", keys, cell)))


def _named_maps(dataset: xr.Dataset, measures: Sequence[str] | None) -> dict[str, xr.DataArray]:
    names = [name for name in MAPS if name in dataset] if measures is None else list(measures)
    unknown = [name for name in names if name not in dataset]
    if not names:
        raise InputError("there is no map (layer, query, key) to draw; ask analyze() for one")
    if unknown:
        held = ", ".join(name for name in MAPS if name in dataset)
        raise InputError(f"measures must be among {held}, got {', '.join(map(repr, unknown))}; compute it first")
    arrays = {}
    for name in names:
        array = dataset[name] if "layer" in dataset[name].dims else dataset[name].expand_dims("layer")
        arrays[name] = arranged(array, ("layer", "query", "key"), "plot_maps")
    return arrays


def _panel_inches(count: int) -> float:
    """The edge of a small map of `count` tokens."""
    return min(2.4, max(0.9, 0.11 * count))


def _largest(values: np.ndarray) -> float:
    finite = np.abs(values[np.isfinite(values)])
    return float(finite.max(initial=0.0)) or 1.0


def _scales(cells: dict[str, list[Cells]], scale: Scaling, sqrt: bool, row_shares: bool) -> dict[str, Scale]:
    """One scale for each measure; measures of weights share one, and so does everything that is a share."""
    groups: dict[str, list[str]] = {}
    for name in cells:
        groups.setdefault("weights" if row_shares or is_weight(name) else name, []).append(name)
    scales: dict[str, Scale] = {}
    for group, names in groups.items():
        values = [each.values for name in names for each in cells[name]]
        high = 1.0 if scale == "unit" and group == "weights" else None
        scales |= dict.fromkeys(names, scale_of(values, high, sqrt))
    return scales


# ---- heads ---------------------------------------------------------------------------------------------------------------


@in_house_style
def plot_heads(
    array: xr.DataArray,
    *,
    scale: HeadScaling = "shared",
    high: float | None = None,
    sqrt: bool = False,
    provenance: str | None = None,
    figure: Figure | None = None,
) -> Figure:
    """Draw a `[layer, head, query, key]` measure (`alpha`, `af_norm`) as one map for each head.

    Several layers: thumbnails, layers down and heads across. One layer (`array.sel(layer=3)`): larger maps with token
    labels.

    Args:
        array: The measure.
        scale: `"shared"`: all maps from 0 to the largest value, rounded up. `"panel"`: each map from 0 to its own largest
            value, which shows the patterns and hides the sizes.
        high: The upper end of a shared scale.
        sqrt: Colour by the square root.
        provenance: A small line at the bottom.
        figure: A figure to draw on; by default a new one.

    Returns:
        The figure.
    """
    if scale not in ("shared", "panel"):
        raise InputError(f"scale must be shared or panel, got {scale!r}")
    if scale == "panel" and high is not None:
        raise InputError('high and scale="panel" exclude each other; leave out one')
    if isinstance(array, xr.DataArray) and "layer" not in array.dims:
        array = array.expand_dims("layer")
    array = arranged(array, ("layer", "head", "query", "key"), "plot_heads")
    values = numbers(array)
    shared = scale_of([values], high, sqrt)
    label = colour_bar_label(array.name, "   ", below_zero=shared.low < 0, sqrt=sqrt)
    if scale == "panel":
        largest = np.array([[_largest(cells) for cells in line] for line in values])
        values, shared = values / largest[..., None, None], Scale(-1.0 if shared.low < 0 else 0.0, 1.0, sqrt=sqrt)
        label += "\nof each map's largest value"
    if len(values) == 1:
        figure = _labelled_heads(array, values[0], shared, label, figure)
    else:
        figure = _thumbnails(array, values, shared, label, figure)
    add_provenance(figure, provenance)
    return figure


def _labelled_heads(array: xr.DataArray, values: np.ndarray, scale: Scale, label: str, figure: Figure | None) -> Figure:
    """The heads of one layer with token labels, four or eight across."""
    heads, queries, keys = numbering(array, "head"), token_labels(array, "query"), token_labels(array, "key")
    across = min(len(heads), 4 if len(heads) <= 16 else 8)
    down = math.ceil(len(heads) / across)
    cell = _panel_inches(max(len(queries), len(keys))) / max(len(queries), len(keys))
    figure = figure or new_figure(
        0.6 + label_inches(queries) + across * (cell * len(keys) + 0.15),
        1.0 + label_inches(keys) + down * (cell * len(queries) + 0.3),
    )
    figure.set_layout_engine("constrained")
    grid = figure.subplots(down, across, sharex=True, sharey=True, squeeze=False)
    for ax in grid.flat[len(heads) :]:
        ax.remove()
    for ax, head, cells in zip(grid.flat, heads, values, strict=False):
        image = draw_cells(ax, cells, scale)
        ax.set_title(f"head {head}")
        label_tokens(ax, "x", keys, cell)
        label_tokens(ax, "y", queries, cell)
    figure.suptitle(f"layer {numbering(array, 'layer')[0]}", fontsize=NOTE + 2)
    add_colour_bar(figure, image, list(grid.flat[: len(heads)]), scale, label, "bottom", 6)
    return figure


def _thumbnails(array: xr.DataArray, values: np.ndarray, scale: Scale, label: str, figure: Figure | None) -> Figure:
    """All maps in one image, a gap between neighbours: a thousand axes would take a minute to draw."""
    layers, heads = numbering(array, "layer"), numbering(array, "head")
    _, _, queries, keys = values.shape
    gap = max(1, max(queries, keys) // 12)
    tall, wide = queries + gap, keys + gap
    sheet = np.zeros((len(layers) * tall, len(heads) * wide))
    for row, column in np.ndindex(len(layers), len(heads)):
        sheet[row * tall : row * tall + queries, column * wide : column * wide + keys] = values[row, column]
    side = max(0.28, min(0.85, 6.8 / len(heads)))
    ratio = min(2.0, max(0.5, queries / keys))
    figure = figure or new_figure(0.6 + side * len(heads), 1.1 + side * ratio * len(layers))
    figure.set_layout_engine("constrained")
    ax = figure.add_subplot()
    image = draw_cells(ax, sheet, scale)
    ax.set_xticks([column * wide + (keys - 1) / 2 for column in range(len(heads))], [str(head) for head in heads])
    ax.set_yticks([row * tall + (queries - 1) / 2 for row in range(len(layers))], [str(layer) for layer in layers])
    ax.xaxis.tick_top()
    ax.xaxis.set_label_position("top")
    ax.tick_params(length=0)
    ax.set(xlabel="head", ylabel="layer")
    for spine in ax.spines.values():
        spine.set_visible(False)
    add_colour_bar(figure, image, ax, scale, f"{label}\neach map: queries down, keys across", "bottom", 6)
    return figure


# ---- mixing ratios -------------------------------------------------------------------------------------------------------


@in_house_style
def plot_mixing(
    array: xr.DataArray,
    *,
    measure: str | None = None,
    high: float | None = None,
    cross: bool = False,
    provenance: str | None = None,
    figure: Figure | None = None,
) -> Figure:
    """Draw a `[layer, query]` mixing ratio by layer and token, with the mean over tokens beside each layer.

    Args:
        array: The ratio.
        measure: The map that it belongs to; by default the array's name (`mixing_attnresln_n`) says it.
        high: The upper end of the scale; by default the largest ratio, rounded up.
        cross: Label the ratio of cross-attention: source against residual.
        provenance: A small line at the bottom.
        figure: A figure to draw on; by default a new one.

    Returns:
        The figure.
    """
    if isinstance(array, xr.DataArray) and "layer" not in array.dims:
        array = array.expand_dims("layer")
    array = arranged(array, ("layer", "query"), "plot_mixing")
    values = numbers(array)
    scale = scale_of([values], high)
    if np.nanmax(np.abs(values)) > 1 + 1e-6:
        raise InputError(f"a mixing ratio must be from 0 to 1, got {np.nanmax(np.abs(values)):.3g}; is it a map?")
    layers, tokens = numbering(array, "layer"), token_labels(array, "query")
    mixed = measure or str(array.name).removeprefix(MIXING)
    cell = max(2.0 / len(tokens), cell_inches(len(tokens)))
    row = max(0.15, min(0.24, 6.0 / len(layers)))
    strip_width = cell * len(tokens)
    figure = figure or new_figure(0.7 + strip_width + 2.2, 1.0 + label_inches(tokens) + row * len(layers))
    figure.set_layout_engine("constrained")
    strip, means = figure.subplots(1, 2, sharey=True, width_ratios=[strip_width, 1.7])
    image = draw_cells(strip, values, scale)
    strip.set_title("mixing ratio" + (f", {title_of(mixed)}" if mixed in MEASURES else ""))
    strip.set(xlabel=_axis_name("token", label_tokens(strip, "x", tokens, cell)), ylabel="layer")
    strip.set_yticks(range(len(layers)), [str(layer) for layer in layers])
    _draw_means(means, values, scale)
    label = f"mixing ratio\n{_mixing_formula(mixed, cross)}"
    add_colour_bar(figure, image, means, scale, label, "bottom", 6)
    add_provenance(figure, provenance)
    return figure


def _mixing_formula(measure: str, cross: bool) -> str:
    if is_weight(measure):
        return "share of weight on the source" if cross else "share of weight on other tokens"
    return "‖source‖ / (‖source‖ + ‖residual‖)" if cross else "‖context‖ / (‖context‖ + ‖self‖)"


def _draw_means(ax: Axes, values: np.ndarray, scale: Scale) -> None:
    """One bar for each layer, its value beside it."""
    ax.set_title("mean over tokens")
    ax.set_xlim(scale.low, scale.high)
    ax.grid(axis="x")
    ax.set_axisbelow(True)
    for row, line in enumerate(values):
        if np.isfinite(line).any():
            mean = float(np.nanmean(line))
            bar = ax.barh(row, mean, height=0.62, color=scale.colormap(scale.norm(mean)), edgecolor=INK, linewidth=0.4)
            ax.bar_label(bar, labels=[f"{mean:.2f}".replace("-", "−")], fontsize=NOTE, padding=2)
    ax.tick_params(axis="y", length=0)
