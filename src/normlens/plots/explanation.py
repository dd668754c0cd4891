"""An explanation for a paper: the text coloured by signed terms, and the terms of heads and layers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import xarray as xr
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.figure import Figure, SubFigure
from matplotlib.ticker import MaxNLocator

from normlens.errors import InputError
from normlens.plots.arrays import numbering
from normlens.plots.figure import add_provenance, in_house_style, new_figure
from normlens.plots.maps import draw_cells
from normlens.plots.style import INK, NOTE, QUIET, Scale, round_up
from normlens.plots.text import printable
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
_CHARACTER = 0.075  # inches, about, of a token's type
_LONGEST_NAME = 18  # characters of an output beside the colour bar


@in_house_style
def plot_explanation(
    explanation: Explanation,
    *,
    words: bool = False,
    step: int | None = None,
    width: float = WIDTH,
    provenance: str | None = None,
) -> Figure:
    """Draw the text of an explanation coloured by the term of each token, and below it the terms of heads and layers.

    Blue raises the output, orange lowers it (or raises what it is set against).

    Args:
        explanation: The explanation.
        words: Add the terms of each word's tokens.
        step: One step (from 1) where there are several; without it they are added. Both are exact.
        width: The width of the figure in inches.
        provenance: A small line at the bottom; by default model, settings and gap of the proof.

    Returns:
        The figure.
    """
    if not width >= 2.5:
        raise InputError(f"width must be at least 2.5 inches, got {width}")
    chosen = _OneStep(explanation, step)
    sides = {kind: chosen.tokens(kind, words) for kind, terms in explanation.sites.items() if "tokens" in terms}
    total = sum(len(side.values) for side in sides.values())
    if total > MOST_TOKENS:
        raise InputError(
            f"the explanation has {total} tokens, a figure holds at most {MOST_TOKENS}; use show(), or draw fewer"
        )
    scale = _signed_scale([side.values for side in sides.values()])
    lines = {kind: side.lines(width - 0.2) for kind, side in sides.items()}
    line_height = 0.36 if total <= NUMBERED else 0.24
    text_height = sum(len(each) for each in lines.values()) * line_height + 0.2 * len(sides)
    grids = chosen.grids(words)
    grid_height = max((0.14 * len(grid.layers) + 1.1 for grid in grids), default=0.0)
    figure = new_figure(width, 0.75 + text_height + grid_height)
    figure.suptitle(chosen.title, x=0.01, ha="left", fontsize=9, fontweight="bold", wrap=True)
    heights = [text_height + 0.5, grid_height] if grids else [1.0]
    upper, *lower = figure.subfigures(len(heights), 1, squeeze=False, height_ratios=heights)[:, 0]
    for below in lower:
        _draw_grids(below, grids)
    axes = upper.subplots(len(sides), 1, squeeze=False, height_ratios=[len(each) for each in lines.values()])[:, 0]
    for ax, kind in zip(axes, sides, strict=True):
        _draw_text(ax, lines[kind], scale, width - 0.2, total <= NUMBERED)
        if len(sides) > 1:
            ax.set_title(SIDES.get(kind, kind), fontsize=NOTE, color=QUIET)
    colours = ScalarMappable(norm=scale.norm, cmap=scale.colormap)
    bar = upper.colorbar(colours, ax=list(axes), location="bottom", aspect=30, shrink=0.4, anchor=(0.0, 0.5))
    bar.set_label(f"← {chosen.below}    {chosen.above} →", fontsize=NOTE)
    bar.outline.set_linewidth(0.4)
    add_provenance(figure, provenance if provenance is not None else _provenance(explanation))
    return figure


@dataclass(frozen=True)
class _Side:
    """The tokens of one side: texts, terms, and whether a space stands before each."""

    texts: list[str]
    values: np.ndarray
    spaces: list[bool]

    def lines(self, width: float) -> list[list[tuple[str, float, float]]]:
        """Tokens in lines of this width in inches: text, term, and left edge."""
        lines: list[list[tuple[str, float, float]]] = [[]]
        left = 0.0
        for text, value, space in zip(self.texts, self.values.tolist(), self.spaces, strict=True):
            wide = _token_inches(text, len(self.texts))
            left += 0.06 if space else 0.015
            if lines[-1] and left + wide > width:
                lines.append([])
                left = 0.0
            lines[-1].append((text, value, left))
            left += wide
        return lines


def _token_inches(text: str, count: int) -> float:
    """About how wide a token is, with its number below it."""
    number = 5 * 0.055 if count <= NUMBERED else 0.0
    return max(len(text) * _CHARACTER, number) + 0.08


class _OneStep:
    """An explanation read for one step, or with its steps added."""

    def __init__(self, explanation: Explanation, step: int | None) -> None:
        names, against = output_names(explanation)
        count = np.size(explanation.value)
        stepwise = np.ndim(explanation.value) > 0
        if step is not None and not (stepwise and 1 <= step <= count):
            if stepwise:
                raise InputError(f"step must be from 1 to {count}, got {step}; leave it out to add all steps")
            raise InputError(f"this explanation has one step, got step={step}; leave it out")
        self._explanation, self._step = explanation, step
        values = np.atleast_1d(np.asarray(explanation.value, dtype=np.float64))
        value = float(values.sum() if step is None else values[step - 1])
        output = " · ".join(names) if step is None else names[step - 1]
        self.above, self.below = "raises it", "lowers it"
        title = output
        if against:
            self.above, self.below = (f"for {printable(name, _LONGEST_NAME)}" for name in (output, against))
            title = f"{output} rather than {against}"
        what = "logit"
        if explanation.provenance.get("direction"):
            what = "number"
        elif against:
            what = "difference of logits"
        elif stepwise and step is None:
            what = "sum of logits"
        self.title = printable(f"{title}: {what} {value:+.3g}".replace("-", "−"))

    def _of(self, array: xr.DataArray) -> xr.DataArray:
        if "step" not in array.dims:
            return array
        return array.sum("step") if self._step is None else array.sel(step=self._step, drop=True)

    def tokens(self, kind: str, words: bool) -> _Side:
        """The tokens of one side, or its words."""
        array = self._explanation.sites[kind]["tokens"]
        texts, spaces = side_tokens(array)
        values = np.asarray(self._of(array).values, dtype=np.float64)
        if words and "key_word" in array.coords:
            first = _word_starts(array["key_word"].values.tolist())
            ends = [*first[1:], len(texts)]
            texts = ["".join(texts[start:end]) for start, end in zip(first, ends, strict=True)]
            values = np.add.reduceat(values, first)
            spaces = [spaces[start] for start in first]
        return _Side([printable(text) for text in texts], values, spaces)

    def grids(self, words: bool) -> list[_Grid]:
        """The terms of the heads of each site; for a model with one side, also of its states by layer."""
        sites = self._explanation.sites
        grids = []
        for kind, terms in sites.items():
            if "heads" in terms:
                array = self._of(terms["heads"]).transpose("layer", "head")
                columns = [str(number) for number in numbering(array, "head")]
                title = "heads" if len(sites) == 1 else _GRIDS.get(kind, f"{kind} heads")
                values = np.asarray(array.values, dtype=np.float64)
                grids.append(_Grid(title, "head", numbering(array, "layer"), columns, values))
        only = next(iter(sites))
        if len(sites) == 1 and "states" in sites[only] and sites[only]["states"].sizes["key"] <= MOST_COLUMNS:
            array = self._of(sites[only]["states"]).transpose("layer", "key")
            texts = self.tokens(only, words).texts
            values = np.asarray(array.values, dtype=np.float64)
            if len(texts) < values.shape[1]:
                values = np.add.reduceat(values, _word_starts(array["key_word"].values.tolist()), axis=1)
            grids.append(_Grid("states", "", numbering(array, "layer"), texts, values))
        return grids


@dataclass(frozen=True)
class _Grid:
    """Numbers of layers by heads, or by tokens."""

    title: str
    axis: str  # the name of the columns; empty where their labels say it
    layers: list[int]
    columns: list[str]
    values: np.ndarray

    @property
    def label(self) -> str:
        """The label of the colour bar; grids with the same label share a scale."""
        return "passed through the head" if self.axis else "entering each layer"


def _draw_grids(figure: SubFigure, grids: Sequence[_Grid]) -> None:
    widths = [max(3, len(grid.columns)) for grid in grids]
    axes = figure.subplots(1, len(grids), squeeze=False, width_ratios=widths)[0]
    for label in dict.fromkeys(grid.label for grid in grids):
        members = [number for number, grid in enumerate(grids) if grid.label == label]
        scale = _signed_scale([grids[number].values for number in members])
        for number in members:
            grid, ax = grids[number], axes[number]
            image = draw_cells(ax, grid.values, scale)
            ax.set_title(grid.title)
            across = range(0, len(grid.columns), max(1, math.ceil(len(grid.columns) / 30)))
            ax.set_xticks(list(across), [grid.columns[place] for place in across], rotation=0 if grid.axis else 90)
            down = range(0, len(grid.layers), max(1, math.ceil(len(grid.layers) / 16)))
            ax.set_yticks(list(down), [str(grid.layers[place]) for place in down])
            ax.set(xlabel=grid.axis, ylabel="layer" if number == 0 else "")
            ax.tick_params(length=0)
        bar = figure.colorbar(image, ax=[axes[number] for number in members], location="bottom", label=label, aspect=30)
        bar.locator = MaxNLocator(3)
        bar.update_ticks()
        bar.outline.set_linewidth(0.4)


def _word_starts(words: Sequence[int]) -> list[int]:
    return [place for place, word in enumerate(words) if place == 0 or word != words[place - 1]]


def _signed_scale(values: Sequence[np.ndarray]) -> Scale:
    reach = max((float(np.abs(part).max(initial=0.0)) for part in values), default=0.0)
    return Scale(-round_up(reach), round_up(reach))


def _draw_text(
    ax: Axes, lines: Sequence[Sequence[tuple[str, float, float]]], scale: Scale, width: float, numbered: bool
) -> None:
    """Draw lines of tokens, each on its colour, its number below it."""
    ax.set_axis_off()
    ax.set_xlim(0, width)
    ax.set_ylim(len(lines), 0)
    count = sum(len(line) for line in lines)
    for row, line in enumerate(lines):
        for text, value, left in line:
            colour = scale.colormap(float(scale.norm(value)))
            middle = left + _token_inches(text, count) / 2
            ink = INK if _luminance(colour) > 0.19 else "white"
            box = {"boxstyle": "round,pad=0.15", "facecolor": colour, "linewidth": 0}
            ax.text(middle, row + 0.35, text, ha="center", va="center", fontsize=8.5, color=ink, bbox=box)
            if numbered:
                number = "0" if value == 0 else f"{value:+#.3g}".replace("-", "−")
                ax.text(middle, row + 0.85, number, ha="center", va="center", fontsize=NOTE - 1, color=QUIET)


def _luminance(colour: Sequence[float]) -> float:
    """Relative luminance of an sRGB colour."""
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in colour[:3]]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def _provenance(explanation: Explanation) -> str:
    record = explanation.provenance
    model = record.get("model", {})
    parts = [
        str(model.get("name", "?")),
        str(model.get("dtype", "")),
        f"attention {record.get('attention', '?')}",
        f"gap of the proof {explanation.proof.gap:.0e}",
        f"normlens {record.get('versions', {}).get('normlens', '?')}",
    ]
    return " · ".join(part for part in parts if part)
