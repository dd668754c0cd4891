"""Layers by heads as colour: the heat maps of the 2020 paper, weights and norms each on one scale."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float
from matplotlib.figure import Figure

from normlens.errors import InputError
from normlens.plots.colours import scale_of
from normlens.plots.panels import draw_cells
from normlens.plots.sheet import (
    HEADING,
    MARGIN,
    NOTE,
    axes_at,
    colour_bar,
    draw_provenance,
    name_axis,
    new_figure,
    provenance_height,
    set_ticks,
    width_of,
    write,
)


@dataclass(frozen=True)
class HeadTable:
    """One panel: a number for each layer and head."""

    title: str
    label: str  # of its colour bar
    values: Float[np.ndarray, "layer head"]


def plot_head_tables(
    tables: Sequence[HeadTable],
    layers: Sequence[int],
    *,
    highs: Mapping[str, float] | None = None,
    provenance: str | None = None,
) -> Figure:
    """Draw tables side by side.

    Tables with the same label share a scale, from 0 to the largest value or that label's entry in `highs`, and a bar.
    """
    if not tables or any(table.values.shape[0] != len(layers) for table in tables):
        raise InputError("each table needs one row per layer: some have more or fewer")
    heads = max(table.values.shape[1] for table in tables)
    cell = min(0.19, max(0.1, 2.3 / heads))
    wide, tall = cell * heads, cell * len(layers)
    left = MARGIN + 0.22 + width_of(map(str, layers), NOTE) + 0.05
    gap, top, below = left + 0.12, MARGIN + 0.26, 0.36 + 0.12 + 0.36
    width = left + len(tables) * wide + (len(tables) - 1) * gap + MARGIN
    figure = new_figure(width, top + tall + below + provenance_height(provenance, width))
    groups: dict[str, list[int]] = {}
    for number, table in enumerate(tables):
        groups.setdefault(table.label, []).append(number)
    for label, members in groups.items():
        scale = scale_of([tables[number].values for number in members], (highs or {}).get(label))
        for number in members:
            table = tables[number]
            across = left + number * (wide + gap)
            own = cell * table.values.shape[1]
            ax = axes_at(figure, across, top, own, tall)
            draw_cells(ax, table.values, scale, max(wide, tall))
            write(figure, across, top - 0.07, table.title, HEADING, va="bottom")
            columns = list(range(table.values.shape[1]))
            shown = columns if len(columns) <= 12 else columns[1::2]
            set_ticks(ax, "x", shown, [str(column + 1) for column in shown], NOTE, length=0)
            rows = list(range(len(layers))) if len(layers) <= 12 else list(range(1, len(layers), 2))
            set_ticks(ax, "y", rows, [str(layers[row]) for row in rows], NOTE, length=0)
            name_axis(ax, "x", "head")
            name_axis(ax, "y", "layer")
        first, last = left + members[0] * (wide + gap), left + members[-1] * (wide + gap) + wide
        length = min(2.2, last - first)
        bar = axes_at(figure, (first + last - length) / 2, top + tall + 0.36, length, 0.08)
        colour_bar(bar, scale, label, horizontal=True, ticks=5)
    draw_provenance(figure, provenance)
    return figure
