"""A grid of small maps over the same tokens: headings, shared token labels, colour bars under the columns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.figure import Figure

from normlens.errors import InputError
from normlens.plots.colours import Scale, own_scale, short
from normlens.plots.panels import (
    MOST_LISTED,
    SMALLEST,
    TokenList,
    draw_cells,
    label_positions,
    label_size,
    label_tokens,
)
from normlens.plots.sheet import (
    BODY,
    FINE,
    HEADING,
    MARGIN,
    NOTE,
    QUIET,
    axes_at,
    colour_bar,
    draw_provenance,
    new_figure,
    provenance_height,
    width_of,
    write,
)

GAP = 0.1
BAR = 0.07  # the thickness of a colour bar, in inches


@dataclass(frozen=True)
class Panel:
    """One small map on its scale, with a heading of its own where the column's does not say it all."""

    values: np.ndarray
    scale: Scale
    heading: str = ""
    note: str = ""


@dataclass(frozen=True)
class Bar:
    """A colour bar under the columns `first` to `last`, with the words at its ends and its label."""

    first: int
    last: int
    scale: Scale
    label: str
    ticks: Sequence[str] | int = 3


@dataclass(frozen=True)
class Grid:
    """Everything that is on a sheet of small maps; `None` leaves a place of the grid empty."""

    panels: Sequence[Sequence[Panel | None]]
    rows: Sequence[str]
    columns: Sequence[str]
    bars: Sequence[Bar]
    queries: Sequence[str]
    keys: Sequence[str]
    title: str = ""

    def draw(self, side: float, figure: Figure | None, provenance: str | None) -> Figure:
        """Draw on `figure`, or on a new one on which each map is `side` inches at its longer edge."""
        longest = max(len(self.queries), len(self.keys))
        across, down = len(self.panels[0]), len(self.panels)
        if figure is not None:
            side = min(float(figure.get_size_inches()[0]) / across, float(figure.get_size_inches()[1]) / down)
        size = label_size(side / longest, 7.0)
        by_name = size >= SMALLEST
        ticks_left = width_of(self.queries, size) if by_name else width_of([str(longest)], NOTE)
        ticks_below = width_of(self.keys, size) if by_name else 0.11
        named = any(self.rows)
        left = MARGIN + (0.17 if named else 0.0) + 0.16 + ticks_left + 0.06
        top = MARGIN + (0.2 if any(self.columns) else 0.24 if self.title else 0.0)
        gap_down = 0.2 if any(panel and panel.heading for row in self.panels for panel in row) else GAP
        if any(panel and panel.note for row in self.panels for panel in row):
            gap_down = max(gap_down, 0.15)
        top += gap_down - GAP
        labels_below = ticks_below + 0.06 + 0.14
        bars_below = 0.12 + BAR + 0.16 + 0.12 * (1 + max(bar.label.count("\n") for bar in self.bars))

        def below(width: float) -> tuple[list[TokenList], float]:
            lists = [] if by_name else self._lists(width)
            return lists, sum(part.height for part in lists) + provenance_height(provenance, width) + MARGIN

        if figure is None:
            cell = side / longest
            width = left + across * len(self.keys) * cell + (across - 1) * GAP + MARGIN
            lists, foot = below(width)
            height = top + down * len(self.queries) * cell + (down - 1) * gap_down + labels_below + bars_below + foot
            figure = new_figure(width, height)
        else:
            width, height = map(float, figure.get_size_inches())
            lists, foot = below(width)
            room_across = (width - left - MARGIN - (across - 1) * GAP) / across / len(self.keys)
            room_down = (height - top - (down - 1) * gap_down - labels_below - bars_below - foot) / down
            cell = min(room_across, room_down / len(self.queries))
            if cell <= 0:
                raise InputError(
                    f"a figure must leave room for {across} x {down} maps; one of {width:.1f} x {height:.1f} inches "
                    "does not. Give a larger one, or none to have it made to measure."
                )
            # The labels were measured for a larger map; on this one they are never larger.
            by_name = by_name and label_size(cell, 7.0) >= SMALLEST * 0.8
        self._draw_panels(figure, cell, left, top, gap_down, by_name)
        map_width, map_height = len(self.keys) * cell, len(self.queries) * cell
        bottom = top + down * map_height + (down - 1) * gap_down
        middle = left + (across * map_width + (across - 1) * GAP) / 2
        write(figure, middle, bottom + ticks_below + 0.06, "key" if by_name else "key position", BODY,
              colour=QUIET, ha="center", va="top")  # fmt: skip
        for bar in self.bars:
            start = left + bar.first * (map_width + GAP)
            length = (bar.last - bar.first + 1) * (map_width + GAP) - GAP
            inset = 0.04 * map_width if bar.first == bar.last else max(0.0, (length - 3.0) / 2)
            ax = axes_at(figure, start + inset, bottom + labels_below + 0.1, length - 2 * inset, BAR)
            colour_bar(ax, bar.scale, bar.label, horizontal=True, ticks=bar.ticks)
        for part in lists:
            part.draw(figure, bottom + labels_below + bars_below + 0.08)
            bottom += part.height
        draw_provenance(figure, provenance)
        return figure

    def _lists(self, width: float) -> list[TokenList]:
        if max(len(self.queries), len(self.keys)) > MOST_LISTED:
            return []
        if list(self.queries) == list(self.keys):
            return [TokenList("tokens by position", self.keys, width)]
        return [TokenList("query tokens", self.queries, width), TokenList("key tokens", self.keys, width)]

    def _draw_panels(self, figure: Figure, cell: float, left: float, top: float, gap: float, by_name: bool) -> None:
        map_width, map_height = len(self.keys) * cell, len(self.queries) * cell
        if self.title:
            write(figure, left, MARGIN, self.title, HEADING, ha="left", va="top")
        for column, heading in enumerate(self.columns):
            middle = left + column * (map_width + GAP) + map_width / 2
            write(figure, middle, MARGIN, heading, HEADING, ha="center", va="top")
        for row, panels in enumerate(self.panels):
            upper = top + row * (map_height + gap)
            middle = upper + map_height / 2
            if self.rows[row]:
                write(figure, MARGIN + 0.01, middle, self.rows[row], HEADING, rotation=90, ha="left", va="center")
            name_left = MARGIN + (0.17 if self.rows[row] else 0.0)
            write(figure, name_left, middle, "query" if by_name else "query position", BODY,
                  colour=QUIET, rotation=90, ha="left", va="center")  # fmt: skip
            for column, panel in enumerate(panels):
                if panel is None:
                    continue
                start = left + column * (map_width + GAP)
                ax = axes_at(figure, start, upper, map_width, map_height)
                draw_cells(ax, panel.values, panel.scale, max(map_width, map_height))
                if panel.heading:
                    write(figure, start, upper - 0.03, panel.heading, BODY, ha="left", va="bottom")
                if panel.note:
                    write(
                        figure, start + map_width, upper - 0.02, panel.note, FINE, colour=QUIET, ha="right", va="bottom"
                    )
                last = row == len(self.panels) - 1 or self.panels[row + 1][column] is None
                for axis, labels, outer in (("x", self.keys, last), ("y", self.queries, column == 0)):
                    if outer and by_name:
                        label_tokens(ax, axis, labels, cell, 7.0)
                    elif outer:
                        label_positions(ax, axis, len(labels))


def own_panel(values: np.ndarray, heading: str = "", root: bool = False) -> Panel:
    """A panel on its own scale, with a note of the value that its darkest colour stands for."""
    known = np.abs(values[np.isfinite(values)])
    return Panel(
        values, own_scale(values, root), heading, f"max {short(float(known.max()))}" if known.size else "no values"
    )


def own_bar(scale: Scale) -> tuple[Scale, Sequence[str]]:
    """The colour bar of panels that each have their own scale, and the words along it."""
    if scale.low < 0:
        return Scale(-1.0, 1.0), ("−max", "0", "max of map")
    return Scale(0.0, 1.0, root=scale.root), ("0", "max of map")


def map_side(count: int) -> float:
    """The longer edge of a small map: 1.3 to 2 inches while tokens can be written beside it, then what fits a page."""
    by_name = min(2.0, max(1.3, 0.1 * count))
    # Panels too dense for words need no room for them: five columns of these fit the width of a page.
    return by_name if label_size(by_name / count, 7.0) >= SMALLEST else 1.4
