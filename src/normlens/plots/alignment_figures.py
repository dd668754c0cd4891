"""Figures of word alignment: soft alignments with extracted and gold links, AER by layer, AER and norms by head."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set

import numpy as np
from jaxtyping import Float
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from normlens.plots.cells import draw_cells, label_size, label_tokens
from normlens.plots.colours import BLUE, GREY, ORANGE, VERMILION, Scale, Style, numbered_style
from normlens.plots.fonts import printable
from normlens.plots.head_tables import HeadTable, plot_head_tables
from normlens.plots.series import Curve, Curves, plot_series
from normlens.plots.sheet import (
    BODY,
    HEADING,
    INK,
    MARGIN,
    axes_at,
    colour_bar,
    draw_provenance,
    new_figure,
    provenance_height,
    width_of,
    wrapped,
    write,
)

#: (source word, target word), counted from 0.
Links = Set[tuple[int, int]]

#: How the two readings of attention are drawn, in the order of the papers.
READINGS = {"weights": Style("weights", GREY, "s"), "norms": Style("norms", BLUE, "o")}

_CELL = 0.22  # inches
_LABEL = 7.5  # points
_KEY = "dot: extracted link · frame: gold link (dashed: only possible)"
_NOTHING = "∅"  # aligned to no source word


def soft_alignment(
    axes: Axes,
    scores: Float[np.ndarray, "target source_and_null"],
    source: Sequence[str],
    target: Sequence[str],
    links: Links = frozenset(),
    sure: Links = frozenset(),
    possible: Links = frozenset(),
    scale: Scale | None = None,
) -> None:
    """Draw one map: darker is more; a dot is an extracted link, a frame a gold link (dashed: only possible)."""
    scale = scale or Scale(0.0, float(np.nanmax(scores)) or 1.0)
    draw_cells(axes, scores, scale, _CELL * max(scores.shape))
    label_tokens(axes, "x", [*(printable(word, 20) for word in source), _NOTHING], _CELL, _LABEL)
    label_tokens(axes, "y", [printable(word, 20) for word in target], _CELL, _LABEL)
    for s, t in sorted(sure | possible):
        certain = (s, t) in sure
        axes.add_patch(
            Rectangle(
                (s - 0.44, t - 0.44),
                0.88,
                0.88,
                fill=False,
                linewidth=1.4 if certain else 1.0,
                edgecolor=VERMILION if certain else ORANGE,
                linestyle="-" if certain else (0, (2, 1.5)),
            )
        )
    for s, t in sorted(links):
        dark = scores[t, s] > 0.45 * scale.high
        axes.plot(s, t, "o", markersize=3.6, markeredgewidth=0, color="white" if dark else INK)


def soft_alignments(
    maps: Mapping[str, Float[np.ndarray, "target source_and_null"]],
    source: Sequence[str],
    target: Sequence[str],
    links: Mapping[str, Links],
    sure: Links = frozenset(),
    possible: Links = frozenset(),
    *,
    provenance: str | None = None,
) -> Figure:
    """One sentence pair, its maps side by side on one scale, with the links of each (2020, Figures 7, 8 and 13-17)."""
    words = [printable(word, 20) for word in (*source, *target)]
    size = label_size(_CELL, _LABEL)
    wide, tall = _CELL * (len(source) + 1), _CELL * len(target)
    beside = width_of(words[len(source) :], size) + 0.1
    below = width_of(words[: len(source)], size) + 0.12
    pitch = beside + max(wide, width_of(maps, HEADING)) + 0.2
    width = MARGIN + len(maps) * pitch
    notes = wrapped(_KEY, BODY, width - 2 * MARGIN)
    bar, line = 0.5, 0.13
    top = MARGIN + 0.24
    height = top + tall + below + bar + line * len(notes) + MARGIN + provenance_height(provenance, width)
    figure = new_figure(width, height)
    scale = Scale(0.0, max(float(np.nanmax(scores)) for scores in maps.values()) or 1.0)
    for column, (name, scores) in enumerate(maps.items()):
        left = MARGIN + column * pitch + beside
        axes = axes_at(figure, left, top, wide, tall)
        soft_alignment(axes, scores, source, target, links[name], sure, possible, scale)
        write(figure, left, top - 0.07, name, HEADING, va="bottom")
    length = min(1.6, wide)
    strip = axes_at(figure, MARGIN + beside, top + tall + below, length, 0.07)
    colour_bar(strip, scale, "share of the target word", horizontal=True, ticks=3)
    for number, note in enumerate(notes):
        write(figure, MARGIN, top + tall + below + bar + line * number, note, BODY, va="top")
    draw_provenance(figure, provenance)
    return figure


def layer_curves(
    by_layer: Mapping[str, Mapping[str, Sequence[float]]], layers: Sequence[int], *, provenance: str | None = None
) -> Figure:
    """AER of weights and norms by layer, one panel per setting."""
    panels = [
        Curves(
            setting.upper(),
            "AER (%)",
            tuple(
                Curve(READINGS.get(name, numbered_style(name, number)), np.asarray(values, dtype=np.float64))
                for number, (name, values) in enumerate(curves.items())
            ),
        )
        for setting, curves in by_layer.items()
    ]
    return plot_series(panels, [str(layer) for layer in layers], "layer", shared=True, provenance=provenance)


def head_tables(
    aer: Float[np.ndarray, "layer head"],
    mean_norm: Float[np.ndarray, "layer head"],
    layers: Sequence[int],
    *,
    provenance: str | None = None,
) -> Figure:
    """AER and mean norm of every head, side by side, with the numbers written in the cells."""
    tables = [
        HeadTable("AER by norms, AWI", "AER (%)", aer, number="{:.0f}"),
        HeadTable("mean norm", "mean ‖αf(x)‖", mean_norm, number="{:.2f}"),
    ]
    return plot_head_tables(tables, layers, provenance=provenance)
