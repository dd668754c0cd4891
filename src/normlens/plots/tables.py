"""Layers by heads as colour: the heat maps of the 2020 paper."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float
from matplotlib.figure import Figure

from normlens.errors import InputError
from normlens.plots.figure import add_colour_bar, add_provenance, in_house_style, label_inches, new_figure
from normlens.plots.maps import draw_cells
from normlens.plots.style import BODY, INK, NOTE, Scale, scale_of


@dataclass(frozen=True)
class HeadTable:
    """One panel: a number for each layer and head."""

    title: str
    label: str  # of its colour bar
    values: Float[np.ndarray, "layer head"]
    scale: Scale | None = None  # of its own, instead of one from 0 to the largest value
    number: str | None = None  # the format of the value in its cell, as in "{:.2f}"; not written by default


@in_house_style
def plot_head_tables(
    tables: Sequence[HeadTable],
    layers: Sequence[int],
    *,
    heads: Sequence[str] | None = None,
    highs: Mapping[str, float] | None = None,
    provenance: str | None = None,
) -> Figure:
    """Draw tables side by side. Those with the same label share a scale and a colour bar.

    Args:
        tables: The tables.
        layers: The layers of their rows.
        heads: The labels of the columns: numbers from 1 by default, and empty where a quantity has no heads.
        highs: The upper end of the scale by label; by default the largest value, rounded up.
        provenance: A small line at the bottom.

    Returns:
        The figure.
    """
    if not tables or any(table.values.shape[0] != len(layers) for table in tables):
        raise InputError("a table has more or fewer rows than there are layers")
    columns = max(table.values.shape[1] for table in tables)
    names = [str(column + 1) for column in range(columns)] if heads is None else list(heads)
    cell = 0.28 if any(table.number for table in tables) else min(0.19, max(0.1, 2.3 / columns))
    groups: dict[str, list[int]] = {}
    for number, table in enumerate(tables):
        groups.setdefault(table.label, []).append(number)
    words = [label_inches([label], BODY) / len(members) for label, members in groups.items()]
    figure = new_figure(len(tables) * max(1.6, cell * columns + 0.5, *words), 1.3 + cell * len(layers))
    axes = figure.subplots(1, len(tables), squeeze=False)[0]
    for label, members in groups.items():
        scale = tables[members[0]].scale
        if scale is None:
            scale = scale_of([tables[number].values for number in members], (highs or {}).get(label))
        for number in members:
            ax, table = axes[number], tables[number]
            image = draw_cells(ax, table.values, scale)
            ax.set_title(table.title)
            ax.set(xlabel="head" if any(names) else "all heads together", ylabel="layer")
            across, down = _places(table.values.shape[1]), _places(len(layers))
            ax.set_xticks(across, [names[place] for place in across])
            ax.set_yticks(down, [str(layers[place]) for place in down])
            ax.tick_params(length=0)
            if table.number:
                _write_numbers(ax, table.number, table.values, scale)
        add_colour_bar(figure, image, [axes[number] for number in members], scale, label, "bottom", 5)
    add_provenance(figure, provenance)
    return figure


def _places(count: int) -> list[int]:
    """The rows or columns that have labels: all, or every second of many."""
    return list(range(count)) if count <= 12 else list(range(1, count, 2))


def _write_numbers(ax: object, form: str, values: np.ndarray, scale: Scale) -> None:
    """Write each value in the middle of its cell, white where the cell is dark."""
    for (row, column), value in np.ndenumerate(values):
        if np.isfinite(value):
            colour = "white" if float(scale.norm(value)) > 0.5 else INK
            ax.text(column, row, form.format(value), ha="center", va="center", fontsize=NOTE - 1, color=colour)  # type: ignore[attr-defined]
