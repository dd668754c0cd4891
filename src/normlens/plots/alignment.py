"""Figures of word alignment: soft alignments of one sentence pair, AER by layer, AER by head."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set

import numpy as np
from jaxtyping import Float
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.image import AxesImage
from matplotlib.patches import Rectangle

from normlens.plots.figure import add_colour_bar, add_provenance, in_house_style, label_inches, new_figure
from normlens.plots.maps import draw_cells, label_tokens
from normlens.plots.series import Curve, Curves, plot_series
from normlens.plots.style import BLUE, BODY, GREY, INK, ORANGE, VERMILION, Scale, Style, numbered_style
from normlens.plots.tables import HeadTable, plot_head_tables
from normlens.plots.text import printable

#: (source word, target word), counted from 0.
Links = Set[tuple[int, int]]

#: The two readings of attention, in the order of the papers.
READINGS = {"weights": Style("weights", GREY, "s"), "norms": Style("norms", BLUE, "o")}

_CELL = 0.22  # inches
_KEY = "dot: extracted link · frame: gold link (dashed: only possible)"
_NOTHING = "∅"  # aligned to no source word


@in_house_style
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
    """Draw one sentence pair, its maps side by side on one scale, with the links of each (2020, Figures 7, 8, 13-17).

    Args:
        maps: The maps by name.
        source: The source words.
        target: The target words.
        links: The extracted links of each map.
        sure: Gold links.
        possible: Gold links that are only possible.
        provenance: A small line at the bottom.

    Returns:
        The figure.
    """
    across = [*(printable(word, 20) for word in source), _NOTHING]
    down = [printable(word, 20) for word in target]
    scale = Scale(0.0, max(float(np.nanmax(scores)) for scores in maps.values()) or 1.0)
    width = len(maps) * (_CELL * len(across) + label_inches(down) + 0.3)
    height = _CELL * len(down) + label_inches(across) + 1.1
    figure = new_figure(max(width, label_inches([_KEY], BODY)), height)
    axes = figure.subplots(1, len(maps), squeeze=False)[0]
    for ax, (name, scores) in zip(axes, maps.items(), strict=True):
        image = _soft_alignment(ax, scores, scale, links[name], sure, possible)
        ax.set_title(name)
        label_tokens(ax, "x", across, _CELL)
        label_tokens(ax, "y", down, _CELL)
    add_colour_bar(figure, image, list(axes), scale, f"share of the target word\n{_KEY}", "bottom", 3)
    add_provenance(figure, provenance)
    return figure


def _soft_alignment(
    ax: Axes, scores: np.ndarray, scale: Scale, links: Links, sure: Links, possible: Links
) -> AxesImage:
    """Draw one map: darker is more; a dot is an extracted link, a frame a gold link (dashed: only possible)."""
    image = draw_cells(ax, scores, scale)
    for s, t in sorted(sure | possible):
        frame = Rectangle((s - 0.44, t - 0.44), 0.88, 0.88, fill=False)
        if (s, t) in sure:
            frame.set(linewidth=1.4, edgecolor=VERMILION)
        else:
            frame.set(linewidth=1.0, edgecolor=ORANGE, linestyle=(0, (2, 1.5)))
        ax.add_patch(frame)
    for s, t in sorted(links):
        dark = scores[t, s] > 0.45 * scale.high
        ax.plot(s, t, "o", markersize=3.6, markeredgewidth=0, color="white" if dark else INK)
    return image


def layer_curves(
    by_layer: Mapping[str, Mapping[str, Sequence[float]]], layers: Sequence[int], *, provenance: str | None = None
) -> Figure:
    """Draw AER of weights and norms by layer, one panel per setting."""
    panels = []
    for setting, curves in by_layer.items():
        lines = []
        for number, (name, values) in enumerate(curves.items()):
            style = READINGS.get(name, numbered_style(name, number))
            lines.append(Curve(style, np.asarray(values, dtype=np.float64)))
        panels.append(Curves(setting.upper(), "AER (%)", tuple(lines)))
    return plot_series(panels, [str(layer) for layer in layers], "layer", shared=True, provenance=provenance)


def head_tables(
    aer: Float[np.ndarray, "layer head"],
    mean_norm: Float[np.ndarray, "layer head"],
    layers: Sequence[int],
    *,
    provenance: str | None = None,
) -> Figure:
    """Draw AER and mean norm of every head, side by side, with the numbers in the cells."""
    tables = [
        HeadTable("AER by norms, AWI", "AER (%)", aer, number="{:.0f}"),
        HeadTable("mean norm", "mean ‖αf(x)‖", mean_norm, number="{:.2f}"),
    ]
    return plot_head_tables(tables, layers, provenance=provenance)
