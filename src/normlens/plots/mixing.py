"""The mixing ratio by layer and token, with its mean for each layer."""

from __future__ import annotations

import math

import numpy as np
import xarray as xr
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from normlens.errors import InputError
from normlens.measures.table import MEASURES, MIXING
from normlens.plots.arrays import arranged, is_weight, numbering, numbers, title_of, token_labels
from normlens.plots.cells import draw_cells, label_tokens, written_size
from normlens.plots.colours import Scale, scale_of
from normlens.plots.maps import cell_inches
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
    colour_bar,
    draw_provenance,
    lettering,
    name_axis,
    new_figure,
    provenance_height,
    set_ticks,
    width_of,
    write,
)

MEAN = 1.7  # the width of the panel of means, in inches: its formula fits below it
GAP = 0.12


def plot_mixing(
    array: xr.DataArray,
    *,
    measure: str | None = None,
    high: float | None = None,
    cross: bool = False,
    provenance: str | None = None,
    figure: Figure | None = None,
) -> Figure:
    """Draw a `[layer, query]` mixing ratio as a strip of tokens by layers, with the mean over tokens beside each layer.

    The colour bar is also the axis of the means; it runs from 0 to the largest ratio, rounded up, or to `high`.
    `measure` names the map that the ratio belongs to; without it, the array's name (`mixing_attnresln_n`) says it, or
    else nothing is claimed. `cross=True` labels the ratio of cross-attention: source against residual.
    """
    if isinstance(array, xr.DataArray) and "layer" not in array.dims:
        array = array.expand_dims("layer")
    array = arranged(array, ("layer", "query"), "plot_mixing")
    values = numbers(array)
    scale = scale_of([values], high)
    if np.nanmax(np.abs(values)) > 1 + 1e-6:
        raise InputError(
            f"a mixing ratio lies between 0 and 1; {np.nanmax(np.abs(values)):.3g} arrived. Was it a map, not a ratio?"
        )
    layers, tokens = numbering(array, "layer"), token_labels(array, "query")
    mixed = measure or str(array.name).removeprefix(MIXING)
    if cross:
        formula = "share of weight on the source" if is_weight(mixed) else "‖source‖ / (‖source‖ + ‖residual‖)"
    else:
        formula = "share of weight on other tokens" if is_weight(mixed) else "‖context‖ / (‖context‖ + ‖self‖)"
    title = "mixing ratio" + (f", {title_of(mixed)}" if mixed in MEASURES else "")

    cell = max(2.0 / len(tokens), cell_inches(len(tokens)))
    row = max(0.15, min(0.24, 6.0 / len(layers)))
    left = MARGIN + 0.2 + width_of(map(str, layers), BODY) + 0.08
    right = 0.36 + MARGIN
    top = MARGIN + 0.22
    below = max(0.08 + width_of(tokens, written_size(cell)) + 0.22, 0.62) + MARGIN / 2
    if figure is None:
        wide, tall = cell * len(tokens), row * len(layers)
        width = left + wide + GAP + MEAN + right
        figure = new_figure(width, top + tall + below + provenance_height(provenance, width))
    else:
        width, height = map(float, figure.get_size_inches())
        wide = width - left - GAP - MEAN - right
        tall = height - top - below - provenance_height(provenance, width)
        if wide <= 0 or tall <= 0:
            raise InputError(
                f"a figure must leave room for the strip beside its labels; one of {width:.1f} x {height:.1f} inches "
                "does not. Give a larger one, or none to have it made to measure."
            )
    strip = axes_at(figure, left, top, wide, tall)
    draw_cells(strip, values, scale, max(wide, tall))
    step = label_tokens(strip, "x", tokens, wide / len(tokens))
    every = max(1, math.ceil(0.11 * len(layers) / tall))
    set_ticks(strip, "y", range(0, len(layers), every), [str(layer) for layer in layers[::every]], BODY, length=0)
    name_axis(strip, "y", "layer")
    name_axis(strip, "x", "token" if step == 1 else f"token (one label in {step})")
    write(figure, left, top - 0.06, title, HEADING, ha="left", va="bottom")

    beside = left + wide + GAP
    means = axes_at(figure, beside, top, MEAN, tall)
    _draw_means(means, values, scale, every)
    write(figure, beside, top - 0.06, "mean over tokens", HEADING, ha="left", va="bottom")
    bar = axes_at(figure, beside, top + tall + 0.06, MEAN, 0.07)
    colour_bar(bar, scale, f"mixing ratio\n{formula}", horizontal=True, ticks=6)
    draw_provenance(figure, provenance)
    return figure


def _draw_means(ax: Axes, values: np.ndarray, scale: Scale, every: int) -> None:
    """One bar for each layer on the colour bar's own axis, its value beside it (of every `every`-th layer)."""
    ax.set_xlim(scale.low, scale.high)
    ax.set_ylim(len(values) - 0.5, -0.5)
    for tick in scale.ticks(6)[1:-1]:
        ax.axvline(tick, color=GRID, linewidth=HAIRLINE, zorder=0)
    for row, line in enumerate(values):
        if not np.isfinite(line).any():
            continue
        mean = float(np.nanmean(line))
        ax.barh(row, mean, height=0.62, color=scale.colormap(scale.norm(mean)), edgecolor=INK, linewidth=HAIRLINE)
        if row % every == 0:
            ax.annotate(
                f"{mean:.2f}".replace("-", "−"),
                (1.0, row),
                xycoords=("axes fraction", "data"),
                xytext=(4, 0),
                textcoords="offset points",
                va="center",
                ha="left",
                annotation_clip=False,
                **lettering(NOTE, QUIET),
            )
