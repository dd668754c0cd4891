"""A grid of small maps over the same tokens: headings, shared token labels, colour bars under the columns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.figure import Figure

from normlens.errors import InputError
from normlens.plots.cells import (
    MOST_LISTED,
    SMALLEST,
    TokenList,
    draw_map,
    label_positions,
    label_size,
    label_tokens,
)
from normlens.plots.colours import Scale, own_scale, short
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
LONGEST_BAR = 3.0
LARGEST_LABEL = 7.0  # the type size of token labels, in points


@dataclass(frozen=True)
class Panel:
    """One small map on its scale, with a heading of its own where the column's does not say it all."""

    values: np.ndarray
    scale: Scale
    heading: str = ""
    note: str = ""
    own: np.ndarray | None = None  # what positions give to themselves, where it is not part of the values
    faded: bool = True  # whether it is drawn at all


@dataclass(frozen=True)
class Bar:
    """A colour bar under the columns `first` to `last`, with the words at its ends and its label."""

    first: int
    last: int
    scale: Scale
    label: str
    ticks: Sequence[str] | int = 3


@dataclass(frozen=True)
class Plan:
    """Where things stand, in inches: a map of `[queries, keys]` cells in each slot, slots one `gap` apart."""

    figure: Figure
    cell: float
    left: float
    top: float
    slot_width: float
    slot_height: float
    gap_down: float
    labels_below: float
    bars_below: float
    by_name: bool
    lists: Sequence[TokenList]

    def column(self, number: int) -> float:
        """The left edge of a column of slots."""
        return self.left + number * (self.slot_width + GAP)

    def row(self, number: int) -> float:
        """The upper edge of a row of slots."""
        return self.top + number * (self.slot_height + self.gap_down)


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

    def draw(self, figure: Figure | None, provenance: str | None) -> Figure:
        """Draw on `figure`, or on a new one made to measure."""
        plan = self._plan(figure, provenance, by_name=True)
        if label_size(plan.cell, LARGEST_LABEL) < SMALLEST:
            plan = self._plan(figure, provenance, by_name=False)
        self._draw_panels(plan)
        self._draw_words(plan)
        bottom = plan.row(len(self.panels)) - plan.gap_down + plan.labels_below
        for bar in self.bars:
            start, length = plan.column(bar.first), plan.column(bar.last) + plan.slot_width - plan.column(bar.first)
            inset = max(0.04 * length, (length - LONGEST_BAR) / 2)
            ax = axes_at(plan.figure, start + inset, bottom + 0.1, length - 2 * inset, BAR)
            colour_bar(ax, bar.scale, bar.label, horizontal=True, ticks=bar.ticks)
        bottom += plan.bars_below
        for part in plan.lists:
            part.draw(plan.figure, bottom + 0.08)
            bottom += part.height
        draw_provenance(plan.figure, provenance)
        return plan.figure

    def _plan(self, figure: Figure | None, provenance: str | None, *, by_name: bool) -> Plan:
        """Measure everything around the maps, then size the figure to the maps or the maps to the figure."""
        queries, keys = len(self.queries), len(self.keys)
        across, down = len(self.panels[0]), len(self.panels)
        cell = map_side(max(queries, keys)) / max(queries, keys)
        size = min(LARGEST_LABEL, max(SMALLEST, label_size(cell, LARGEST_LABEL)))
        ticks_left = width_of(self.queries, size) if by_name else width_of([str(queries)], NOTE)
        ticks_below = width_of(self.keys, size) if by_name else 0.11
        present = [panel for line in self.panels for panel in line if panel]
        gap_down = max([GAP, *(0.2 for panel in present if panel.heading), *(0.15 for panel in present if panel.note)])
        left = MARGIN + (0.17 if any(self.rows) else 0.0) + 0.16 + ticks_left + 0.06
        top = MARGIN + (0.2 if any(self.columns) else 0.24 if self.title else 0.0) + gap_down - GAP
        labels_below = ticks_below + 0.06 + 0.14
        bars_below = 0.12 + BAR + 0.16 + 0.12 * (1 + max(bar.label.count("\n") for bar in self.bars))
        # A map may be narrower or lower than the words that belong to it.
        over = [_width_over(panel) for panel in present]
        least_width = max([*over, width_of(self.columns, HEADING), *(self._bar_width(bar) for bar in self.bars)])
        least_height = max(width_of([_axis_name("query", by_name)], BODY), width_of(self.rows, HEADING))

        def below(width: float) -> tuple[list[TokenList], float]:
            lists = [] if by_name else self._lists(width)
            return lists, sum(part.height for part in lists) + provenance_height(provenance, width) + MARGIN

        if figure is None:
            slot_width, slot_height = max(least_width, cell * keys), max(least_height, cell * queries)
            width = left + across * (slot_width + GAP) - GAP + MARGIN
            lists, foot = below(width)
            height = top + down * (slot_height + gap_down) - gap_down + labels_below + bars_below + foot
            figure = new_figure(width, height)
        else:
            width, height = map(float, figure.get_size_inches())
            lists, foot = below(width)
            slot_width = (width - left - MARGIN + GAP) / across - GAP
            slot_height = (height - top - labels_below - bars_below - foot + gap_down) / down - gap_down
            if slot_width <= 0 or slot_height <= 0:
                raise InputError(
                    f"a figure must leave room for {across} x {down} maps; one of {width:.1f} x {height:.1f} inches "
                    "does not. Give a larger one, or none to have it made to measure."
                )
            cell = min(slot_width / keys, slot_height / queries)
            slot_width, slot_height = min(slot_width, max(least_width, cell * keys)), cell * queries
        return Plan(
            figure, cell, left, top, slot_width, slot_height, gap_down, labels_below, bars_below, by_name, lists
        )

    def _bar_width(self, bar: Bar) -> float:
        columns = bar.last - bar.first + 1
        return (width_of(bar.label.split("\n"), NOTE) + GAP) / columns - GAP

    def _lists(self, width: float) -> list[TokenList]:
        if max(len(self.queries), len(self.keys)) > MOST_LISTED:
            return []
        if list(self.queries) == list(self.keys):
            return [TokenList("tokens by position", self.keys, width)]
        return [TokenList("query tokens", self.queries, width), TokenList("key tokens", self.keys, width)]

    def _draw_panels(self, plan: Plan) -> None:
        """The maps, each in the middle of its slot, with token labels or positions at the outer edges."""
        wide, tall = plan.cell * len(self.keys), plan.cell * len(self.queries)
        note = {"colour": QUIET, "ha": "right", "va": "bottom"}
        for row, panels in enumerate(self.panels):
            for column, panel in enumerate(panels):
                if panel is None:
                    continue
                left = plan.column(column) + (plan.slot_width - wide) / 2
                upper = plan.row(row) + (plan.slot_height - tall) / 2
                ax = axes_at(plan.figure, left, upper, wide, tall)
                draw_map(ax, panel.values, panel.scale, max(wide, tall), panel.own, panel.faded)
                spare = max(0.0, _width_over(panel) - wide) / 2
                write(plan.figure, left - spare, upper - 0.03, panel.heading, BODY, ha="left", va="bottom")
                write(plan.figure, left + wide + spare, upper - 0.02, panel.note, FINE, **note)
                lowest = row == len(self.panels) - 1 or self.panels[row + 1][column] is None
                for axis, labels, outer in (("x", self.keys, lowest), ("y", self.queries, column == 0)):
                    if outer and plan.by_name:
                        label_tokens(ax, axis, labels, plan.cell, LARGEST_LABEL)
                    elif outer:
                        label_positions(ax, axis, len(labels), plan.cell)

    def _draw_words(self, plan: Plan) -> None:
        """Title, headings of columns and rows, and the names of the axes."""
        figure, wide, tall = plan.figure, plan.cell * len(self.keys), plan.cell * len(self.queries)
        write(figure, plan.left, MARGIN, self.title, HEADING, ha="left", va="top")
        for column, heading in enumerate(self.columns):
            write(figure, plan.column(column) + plan.slot_width / 2, MARGIN, heading, HEADING, ha="center", va="top")
        for row, name in enumerate(self.rows):
            upright = {"rotation": 90, "ha": "left", "va": "center"}
            middle = plan.row(row) + plan.slot_height / 2
            left = MARGIN + (plan.slot_width - wide) / 2
            write(figure, left + 0.01, middle, name, HEADING, **upright)
            write(
                figure,
                left + (0.17 if name else 0.0),
                middle,
                _axis_name("query", plan.by_name),
                BODY,
                colour=QUIET,
                **upright,
            )
        middle = (plan.left + plan.column(len(self.panels[0])) - GAP) / 2
        lowest = plan.row(len(self.panels) - 1) + (plan.slot_height + tall) / 2
        bottom = lowest + plan.labels_below - 0.14
        write(figure, middle, bottom, _axis_name("key", plan.by_name), BODY, colour=QUIET, ha="center", va="top")


def own_panel(values: np.ndarray, heading: str = "", root: bool = False) -> Panel:
    """A panel on its own scale, with a note of the value that its darkest colour stands for."""
    known = np.abs(values[np.isfinite(values)])
    return Panel(
        values, own_scale(values, root), heading, f"max {short(float(known.max()))}" if known.size else "no values"
    )


def own_bar(scale: Scale) -> tuple[Scale, Sequence[str]]:
    """The colour bar of panels that each have their own scale, and the words along it."""
    if scale.low < 0:
        return Scale(-1.0, 1.0, root=scale.root), ("−max", "0", "max of map")
    return Scale(0.0, 1.0, root=scale.root), ("0", "max of map")


def map_side(count: int) -> float:
    """The longer edge of a small map: 1.3 to 2 inches while tokens can be written beside it, then what fits a page."""
    by_name = min(2.0, max(1.3, 0.1 * count))
    # Panels too dense for words need no room for them: five columns of these fit the width of a page.
    return by_name if label_size(by_name / count, LARGEST_LABEL) >= SMALLEST else 1.4


def _width_over(panel: Panel) -> float:
    """The width of the words above a map."""
    return width_of([panel.heading], BODY) + 0.06 + width_of([panel.note], FINE)


def _axis_name(axis: str, by_name: bool) -> str:
    return axis if by_name else f"{axis} position"
