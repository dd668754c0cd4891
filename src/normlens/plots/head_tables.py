"""Layers by heads as colour: the heat maps of the 2020 paper, weights and norms each on one scale."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from normlens.errors import InputError
from normlens.plots.cells import draw_cells
from normlens.plots.colours import Scale, scale_of
from normlens.plots.sheet import (
    HEADING,
    INK,
    MARGIN,
    NOTE,
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


@dataclass(frozen=True)
class HeadTable:
    """One panel: a number for each layer and head."""

    title: str
    label: str  # of its colour bar
    values: Float[np.ndarray, "layer head"]
    scale: Scale | None = None  # of its own, instead of one from 0 to the largest value
    number: str | None = None  # how a value is written into its cell, as in "{:.2f}"; not at all by default


def plot_head_tables(
    tables: Sequence[HeadTable],
    layers: Sequence[int],
    *,
    heads: Sequence[str] | None = None,
    highs: Mapping[str, float] | None = None,
    provenance: str | None = None,
) -> Figure:
    """Draw tables side by side.

    Tables with the same label share a scale, from 0 to the largest value or that label's entry in `highs`, and a bar.
    `heads` are the labels of the columns: numbers from 1 by default, and empty where a quantity has no heads.
    """
    if not tables or any(table.values.shape[0] != len(layers) for table in tables):
        raise InputError("each table needs one row per layer: some have more or fewer")
    columns = max(table.values.shape[1] for table in tables)
    names = [str(column + 1) for column in range(columns)] if heads is None else list(heads)
    cell = min(0.19, max(0.1, 2.3 / columns))
    written = [table.number.format(value) for table in tables if table.number for value in table.values.flat]
    cell = max(cell, width_of(written, NOTE) + 0.05 if written else 0.0)
    groups: dict[str, list[int]] = {}
    for number, table in enumerate(tables):
        groups.setdefault(table.label, []).append(number)
    # A table of few heads is narrower than what is written above and below it.
    wide, tall = cell * columns, cell * len(layers)
    words = [width_of([label], NOTE) / len(members) for label, members in groups.items()]
    slot = max(wide, width_of([table.title for table in tables], HEADING), *words, 0.9)
    left = MARGIN + 0.22 + width_of(map(str, layers), NOTE) + 0.05
    gap, top, below = left + 0.12, MARGIN + 0.26, 0.36 + 0.12 + 0.36
    width = left + len(tables) * slot + (len(tables) - 1) * gap + MARGIN
    figure = new_figure(width, top + tall + below + provenance_height(provenance, width))
    for label, members in groups.items():
        own = tables[members[0]].scale
        scale = own or scale_of([tables[number].values for number in members], (highs or {}).get(label))
        for number in members:
            _draw_table(figure, tables[number], scale, layers, names, (left + number * (slot + gap), top, cell))
        first, last = left + members[0] * (slot + gap), left + members[-1] * (slot + gap) + slot
        length = min(2.2, last - first)
        bar = axes_at(figure, (first + last - length) / 2, top + tall + 0.36, length, 0.08)
        colour_bar(bar, scale, label, horizontal=True, ticks=5)
    draw_provenance(figure, provenance)
    return figure


def _draw_table(
    figure: Figure,
    table: HeadTable,
    scale: Scale,
    layers: Sequence[int],
    heads: Sequence[str],
    place: tuple[float, float, float],
) -> None:
    """One table; its place is the left and upper edge and the edge of a cell, in inches."""
    left, top, cell = place
    rows, columns = table.values.shape
    ax = axes_at(figure, left, top, cell * columns, cell * rows)
    draw_cells(ax, table.values, scale, cell * max(rows, columns))
    write(figure, left, top - 0.07, table.title, HEADING, va="bottom")
    if table.number:
        _write_numbers(ax, table, scale)
    across = list(range(columns)) if columns <= 12 else list(range(1, columns, 2))
    set_ticks(ax, "x", across, [heads[column] for column in across], NOTE, length=0)
    down = list(range(rows)) if rows <= 12 else list(range(1, rows, 2))
    set_ticks(ax, "y", down, [str(layers[row]) for row in down], NOTE, length=0)
    name_axis(ax, "x", "head" if any(heads) else "all heads together")
    name_axis(ax, "y", "layer")


def _write_numbers(ax: Axes, table: HeadTable, scale: Scale) -> None:
    """Each value in the middle of its cell, white where the cell is dark."""
    assert table.number is not None, "only tables that have a form for their numbers are written"
    for (row, column), value in np.ndenumerate(table.values):
        if np.isfinite(value):
            colour = "white" if float(scale.norm(value)) > 0.5 else INK
            style = lettering(NOTE, colour)
            ax.text(column, row, table.number.format(value), ha="center", va="center_baseline", **style)
