"""An explanation for a paper: the text coloured by signed terms, and what passed through each head."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import xarray as xr
from matplotlib.figure import Figure
from matplotlib.patches import FancyBboxPatch

from normlens.errors import InputError
from normlens.plots.arrays import numbering
from normlens.plots.cells import draw_cells
from normlens.plots.colours import Scale, round_up
from normlens.plots.fonts import printable
from normlens.plots.sheet import (
    BODY,
    HEADING,
    INK,
    MARGIN,
    NOTE,
    POINTS,
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
    wrapped,
    write,
)
from normlens.viewer.explanation_page import SIDES, output_names, side_tokens

if TYPE_CHECKING:  # drawing needs no model library, and importing Explanation would bring one
    from normlens.results.explanation import Explanation

#: The width in inches of a page with two columns of text.
WIDTH = 6.6
#: Up to so many tokens their numbers stand below them.
NUMBERED = 48
#: A longer text is not read in a figure.
MOST_TOKENS = 1500
#: Beyond so many tokens their columns would be too narrow to be named.
MOST_COLUMNS = 60

_GRIDS = {"encoder": "encoder heads", "decoder": "decoder heads", "cross": "cross-attention heads"}
_TEXT = 9.0  # points
_PAD = 0.035  # inches on both sides of a token
_TITLE_LINE = 1.3 * HEADING / POINTS
_LONGEST_NAME = 18  # characters of an output below the colour bar
_BAR = 2.3  # inches of the text's colour bar


@dataclass(frozen=True)
class _Token:
    """A token at its place in the block of text, in inches from the top left."""

    text: str
    number: str
    value: float
    left: float
    top: float
    width: float


def plot_explanation(
    explanation: Explanation,
    *,
    words: bool = False,
    step: int | None = None,
    width: float = WIDTH,
    provenance: str | None = None,
) -> Figure:
    """Draw the text of an explanation coloured by what each token gave; below it what passed through heads and layers.

    Blue speaks for the output, orange against it (or for what it is set against). `words=True` adds the terms of each
    word's tokens; `step` chooses one step (from 1) where there are several, and without it they are added: both are
    exact. `provenance` is the small line at the bottom; by default model, settings and gap of the proof.
    """
    if not width >= 2.5:
        raise InputError(f"a figure of an explanation is at least 2.5 inches wide; {width} arrived. Give it more room.")
    chosen = _OneStep(explanation, step)
    sides = {kind: chosen.tokens(kind, words) for kind, terms in explanation.sites.items() if "tokens" in terms}
    total = sum(len(values) for _, values, _ in sides.values())
    if total > MOST_TOKENS:
        raise InputError(
            f"a figure holds at most {MOST_TOKENS} tokens; {total} arrived. Look at them with show(), or draw fewer."
        )
    scale = _two_sided([values for _, values, _ in sides.values()])
    line = provenance if provenance is not None else _provenance(explanation)

    inner = width - 2 * MARGIN
    title = wrapped(printable(chosen.title), HEADING, inner)
    blocks = {kind: _placed(texts, values, spaces, inner) for kind, (texts, values, spaces) in sides.items()}
    heights = {kind: _height(block) for kind, block in blocks.items()}
    label = 0.17 if len(sides) > 1 else 0.0
    text_top = MARGIN + len(title) * _TITLE_LINE + 0.08
    bar_top = text_top + sum(heights.values()) + len(sides) * label + 0.05
    panels = _Panels(chosen.panels(words), inner)
    panels_top = bar_top + 0.1 + 0.36 + 0.2
    # No wider than what is drawn: a short text leaves no white beside it.
    ends = [token.left + token.width for block in blocks.values() for token in block]
    used = max(*ends, _BAR, width_of(title, 1.1 * HEADING), panels.width)
    width = min(width, used + 2 * MARGIN + 0.05)
    height = panels_top + panels.height + MARGIN + provenance_height(line, width)

    figure = new_figure(width, height)
    for number, words_ in enumerate(title):
        write(figure, MARGIN, MARGIN + number * _TITLE_LINE, words_, HEADING, va="top", weight="bold")
    top = text_top
    for kind, block in blocks.items():
        if label:
            write(figure, MARGIN, top + 0.02, SIDES[kind], NOTE, colour=QUIET, va="top")
            top += label
        _draw_text(figure, block, scale, (MARGIN, top, inner, heights[kind]))
        top += heights[kind]
    bar = axes_at(figure, MARGIN + 0.02, bar_top, _BAR, 0.08)
    colour_bar(bar, scale, "", horizontal=True, ticks=5)
    write(figure, MARGIN + 0.02, bar_top + 0.26, f"← {chosen.below}", NOTE, va="top")
    write(figure, MARGIN + 0.02 + _BAR, bar_top + 0.26, f"{chosen.above} →", NOTE, va="top", ha="right")
    panels.draw(figure, MARGIN, panels_top)
    draw_provenance(figure, line)
    return figure


class _OneStep:
    """An explanation read for one step, or with its steps added."""

    def __init__(self, explanation: Explanation, step: int | None) -> None:
        names, against = output_names(explanation)
        count = np.size(explanation.value)
        stepwise = np.ndim(explanation.value) > 0
        if step is not None and not (stepwise and 1 <= step <= count):
            given = f"1 to {count}" if stepwise else "none"
            raise InputError(f"a step is one of the explanation's ({given}); {step} arrived. Leave it out to add them.")
        self._explanation, self._step = explanation, step
        values = np.atleast_1d(np.asarray(explanation.value, dtype=np.float64))
        self.value = float(values.sum() if step is None else values[step - 1])
        output = " · ".join(names) if step is None else names[step - 1]
        self.above, self.below = "raises it", "lowers it"
        if against:
            self.above, self.below = (f"for {printable(name, _LONGEST_NAME)}" for name in (output, against))
        self.title = f"{output} rather than {against}" if against else output
        what = "difference of logits" if against else "sum of logits" if stepwise and step is None else "logit"
        if explanation.provenance.get("direction"):
            what = "number"
        self.title += f": {what} {self.value:+.3g}".replace("-", "−")

    def _of(self, array: xr.DataArray) -> xr.DataArray:
        if "step" not in array.dims:
            return array
        return array.sum("step") if self._step is None else array.sel(step=self._step, drop=True)

    def tokens(self, kind: str, words: bool) -> tuple[list[str], np.ndarray, list[bool]]:
        """What stands on one side: texts, terms, and whether a space stands before each."""
        array = self._explanation.sites[kind]["tokens"]
        texts, spaces = side_tokens(array)
        values = np.asarray(self._of(array).values, dtype=np.float64)
        if words and "key_word" in array.coords:
            first = _word_starts(array["key_word"].values.tolist())
            ends = [*first[1:], len(texts)]
            texts = ["".join(texts[a:b]) for a, b in zip(first, ends, strict=True)]
            values = np.add.reduceat(values, first)
            spaces = [spaces[a] for a in first]
        return [printable(text) for text in texts], values, spaces

    def panels(self, words: bool) -> list[_Panel]:
        """What passed through the heads of each site; for a model with one side, also its states by layer."""
        sites = self._explanation.sites
        found = []
        for kind, terms in sites.items():
            if "heads" in terms:
                array = self._of(terms["heads"]).transpose("layer", "head")
                layers, names = numbering(array, "layer"), [str(number) for number in numbering(array, "head")]
                title = "heads" if len(sites) == 1 else _GRIDS[kind]
                found.append(_Panel(title, "head", layers, names, array.values, "passed through the head"))
        only = next(iter(sites))
        if len(sites) == 1 and "states" in sites[only] and sites[only]["states"].sizes["key"] <= MOST_COLUMNS:
            array = self._of(sites[only]["states"]).transpose("layer", "key")
            texts, _, _ = self.tokens(only, words)
            values = np.asarray(array.values, dtype=np.float64)
            if len(texts) < values.shape[1]:
                values = np.add.reduceat(values, _word_starts(array["key_word"].values.tolist()), axis=1)
            found.append(_Panel("states", "", numbering(array, "layer"), texts, values, "entering each layer"))
        return found


@dataclass(frozen=True)
class _Panel:
    """A grid of numbers: layers by heads or by tokens."""

    title: str
    axis: str  # the name of its columns; empty where their labels say it
    layers: list[int]
    columns: list[str]
    values: np.ndarray
    label: str


class _Panels:
    """Grids side by side; those with the same label share a scale and a bar."""

    def __init__(self, panels: Sequence[_Panel], room: float) -> None:
        self._panels = panels
        self._gap = 0.44
        most = max((len(panel.layers) for panel in panels), default=1)
        self._row = min(0.16, max(0.075, 2.6 / most))
        free = room - self._gap * len(panels)
        # Heads have narrow columns; what is left is for tokens.
        heads = sum(len(panel.columns) for panel in panels if panel.axis)
        tokens = sum(len(panel.columns) for panel in panels if not panel.axis)
        narrow = min(0.2, free / max(1, heads + tokens))
        wide = min(0.3, (free - narrow * heads) / max(1, tokens))
        self._cells = [narrow if panel.axis else wide for panel in panels]
        self._below = max(
            (0.36 if panel.axis else 0.1 + width_of(panel.columns, NOTE) for panel in panels), default=0.0
        )
        self.width = sum(self._gap + max(c * len(p.columns), 1.0) for c, p in zip(self._cells, panels, strict=True))
        self.height = (self._row * most + self._below + 0.4) if panels else 0.0

    def draw(self, figure: Figure, left: float, top: float) -> None:
        start = left + self._gap
        bars: dict[str, float] = {}
        scales = {p.label: _two_sided([q.values for q in self._panels if q.label == p.label]) for p in self._panels}
        tallest = max((self._row * len(panel.layers) for panel in self._panels), default=0.0)
        for panel, cell in zip(self._panels, self._cells, strict=True):
            wide, tall = cell * len(panel.columns), self._row * len(panel.layers)
            ax = axes_at(figure, start, top, wide, tall)
            draw_cells(ax, np.asarray(panel.values, dtype=np.float64), scales[panel.label], max(wide, tall))
            write(figure, start, top - 0.06, panel.title, BODY, va="bottom")
            every = max(1, math.ceil((0.14 if panel.axis else 0.095) / cell))
            across = range(0, len(panel.columns), every)
            turned = {} if panel.axis else {"rotation": 90}
            set_ticks(ax, "x", list(across), [panel.columns[place] for place in across], NOTE, length=0, **turned)
            down = range(0, len(panel.layers), max(1, math.ceil(0.11 / self._row)))
            set_ticks(ax, "y", list(down), [str(panel.layers[place]) for place in down], NOTE, length=0)
            if panel.axis:
                name_axis(ax, "x", panel.axis)
            if panel is self._panels[0]:
                name_axis(ax, "y", "layer")
            bars.setdefault(panel.label, start)
            start += max(wide, 1.0) + self._gap
        for label, place in bars.items():
            bar = axes_at(figure, place, top + tallest + self._below, 1.5, 0.08)
            colour_bar(bar, scales[label], label, horizontal=True, ticks=3)


def _word_starts(words: Sequence[int]) -> list[int]:
    return [place for place, word in enumerate(words) if place == 0 or word != words[place - 1]]


def _two_sided(values: Sequence[np.ndarray]) -> Scale:
    reach = max((float(np.abs(part).max(initial=0.0)) for part in values), default=0.0)
    end = round_up(reach)
    return Scale(-end, end)


def _number(value: float) -> str:
    return "0" if value == 0 else f"{value:+#.3g}".replace("-", "−")


def _placed(texts: Sequence[str], values: np.ndarray, spaces: Sequence[bool], room: float) -> list[_Token]:
    """Tokens in lines that are no wider than `room` inches."""
    numbered = len(texts) <= NUMBERED
    line = _line(numbered)
    placed: list[_Token] = []
    left, top = 0.0, 0.0
    for text, value, space in zip(texts, values.tolist(), spaces, strict=True):
        number = _number(value) if numbered else ""
        width = min(room, max(width_of([text], _TEXT), width_of([number], NOTE - 1)) + 2 * _PAD)
        begin = left + (0.06 if space else 0.015) if left else 0.0
        if left and begin + width > room:
            begin, top = 0.0, top + line
        placed.append(_Token(text, number, value, begin, top, width))
        left = begin + width
    return placed


def _line(numbered: bool) -> float:
    return 0.34 if numbered else 0.23


def _height(block: Sequence[_Token]) -> float:
    numbered = bool(block) and bool(block[0].number)
    return (block[-1].top if block else 0.0) + _line(numbered) + 0.02


def _draw_text(figure: Figure, block: Sequence[_Token], scale: Scale, place: tuple[float, float, float, float]) -> None:
    left, top, width, height = place
    ax = axes_at(figure, left, top, width, height)
    ax.set_axis_off()
    ax.set_xlim(0, width)
    ax.set_ylim(height, 0)
    tall = 0.18
    for token in block:
        colour = scale.colormap(float(scale.norm(token.value)))
        ax.add_patch(
            FancyBboxPatch(
                (token.left + 0.01, token.top + 0.03),
                token.width - 0.02,
                tall - 0.02,
                boxstyle="round,pad=0.01,rounding_size=0.03",
                linewidth=0,
                facecolor=colour,
            )
        )
        red, green, blue = (c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in colour[:3])
        light = 0.2126 * red + 0.7152 * green + 0.0722 * blue
        style = lettering(_TEXT, INK if light > 0.19 else "white")
        middle = token.left + token.width / 2
        ax.text(middle, token.top + 0.02 + tall / 2, token.text, ha="center", va="center_baseline", **style)
        if token.number:
            quiet = lettering(NOTE - 1, QUIET)
            ax.text(middle, token.top + tall + 0.09, token.number, ha="center", va="center_baseline", **quiet)


def _provenance(explanation: Explanation) -> str:
    model = explanation.provenance.get("model", {})
    parts = [
        str(model.get("name", "?")),
        str(model.get("dtype", "")),
        f"attention {explanation.provenance.get('attention', '?')}",
        f"gap of the proof {explanation.proof.gap:.0e}",
        f"normlens {explanation.provenance.get('versions', {}).get('normlens', '?')}",
    ]
    return " · ".join(part for part in parts if part)
