"""One map in one axes, its token labels, and the numbered list of tokens where labels would be too small to read."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from normlens.plots.colours import Scale
from normlens.plots.sheet import MARGIN, NOTE, POINTS, QUIET, set_ticks, width_of, write

#: Type smaller than this is not read, only guessed.
SMALLEST = 4.5

#: A longer text is not listed under a figure: the list would be longer than the figure.
MOST_LISTED = 200


def label_size(cell: float, largest: float = 8.0) -> float:
    """The type size in points that fits a row or column of `cell` inches."""
    return min(largest, 0.82 * cell * POINTS)


def written_size(cell: float, largest: float = 8.0) -> float:
    """The type size in which `label_tokens` writes: what fits, or the smallest that is read, for some tokens only."""
    return max(label_size(cell, largest), SMALLEST)


def draw_cells(ax: Axes, values: np.ndarray, scale: Scale, side: float, extent: Sequence[float] | None = None) -> None:
    """Draw the cells of a `[row, column]` map that is `side` inches at its longer edge."""
    # Cells wider than two dots of a saved picture keep sharp edges; narrower ones are averaged, not dropped.
    sharp = max(values.shape) / side <= 150
    ax.imshow(
        values,
        norm=scale.norm,
        cmap=scale.colormap,
        origin="upper",
        aspect="auto",
        interpolation="none" if sharp else "antialiased",
        interpolation_stage="data",
        resample=True,
        extent=None if extent is None else (extent[0], extent[1], extent[2], extent[3]),
    )


def draw_map(
    ax: Axes, values: np.ndarray, scale: Scale, side: float, own: np.ndarray | None = None, faded: bool = True
) -> None:
    """Draw a map from which the own part may be taken out; faded, it stands in grey where it was.

    Where it is not drawn its cells are white, unlike those of missing values.
    """
    if own is None:
        draw_cells(ax, values, scale, side)
        return
    draw_cells(ax, np.where(np.isfinite(own), 0.0, values), scale, side)
    if faded:
        top = float(np.nanmax(np.abs(own))) or 1.0
        grey = Scale(0.0, top, neutral=True)
        ax.imshow(
            np.abs(own),
            norm=grey.norm,
            cmap=grey.colormap,
            origin="upper",
            aspect="auto",
            interpolation="none",
            resample=True,
        )


def label_tokens(ax: Axes, axis: str, labels: Sequence[str], cell: float, largest: float = 8.0) -> int:
    """Write a token at each position of the axis, so that equal tokens stay apart; return the step between labels.

    Where a cell is too small for the smallest readable type, only every second, third, ... token is written.
    """
    size = written_size(cell, largest)
    step = max(1, math.ceil(SMALLEST / label_size(cell, largest)))
    places = range(0, len(labels), step)
    if axis == "x":
        set_ticks(ax, "x", places, [labels[place] for place in places], size, length=1.5, rotation=90)
    else:
        set_ticks(ax, "y", places, [labels[place] for place in places], size, length=1.5)
    return step


def label_positions(ax: Axes, axis: str, count: int, cell: float) -> None:
    """Write positions from 0 in round steps, at least 0.2 inches apart."""
    step = next(step for step in (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 10**9) if step * cell >= 0.2)
    places = list(range(0, count, step))
    set_ticks(ax, axis, places, [str(place) for place in places], NOTE - 0.5, length=1.5)


class TokenList:
    """Tokens with their positions, in columns over a given width: what the ticks `0, 10, 20` stand for."""

    def __init__(self, title: str, labels: Sequence[str], width: float) -> None:
        self.title, self.labels = title, list(labels)
        self.number = width_of([str(len(labels))], NOTE) + 0.04
        widest = self.number + width_of(labels, NOTE) + 0.12
        self.columns = max(1, int((width - 2 * MARGIN) / widest))
        self.rows = math.ceil(len(labels) / self.columns)
        # As many columns as needed, spread over the whole width.
        self.pitch = (width - 2 * MARGIN) / math.ceil(len(labels) / self.rows)
        self.line = 1.35 * NOTE / POINTS

    @property
    def height(self) -> float:
        return (self.rows + 1.3) * self.line + 0.08

    def draw(self, figure: Figure, top: float) -> None:
        write(figure, MARGIN, top, self.title, NOTE, colour=QUIET, va="top")
        for position, label in enumerate(self.labels):
            column, row = divmod(position, self.rows)
            left, line = MARGIN + column * self.pitch, top + (row + 1.2) * self.line
            write(figure, left + self.number - 0.04, line, str(position), NOTE, colour=QUIET, va="top", ha="right")
            write(figure, left + self.number, line, label, NOTE, va="top", ha="left")
