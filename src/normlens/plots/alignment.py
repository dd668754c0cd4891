"""Pictures of word alignment: soft alignment matrices with links and gold, AER by layer, heads."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set

import numpy as np
from jaxtyping import Float
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

#: (source word, target word), counted from 0.
Links = Set[tuple[int, int]]
INK, FAINT = "#1a1a1a", "#6b6b6b"
SURE, POSSIBLE = "#c1272d", "#e08a3c"
LINES = {"weights": "#8a8a8a", "norms": "#1f5fa8"}


def soft_alignment(
    axes: Axes,
    scores: Float[np.ndarray, "target source_and_null"],
    source: Sequence[str],
    target: Sequence[str],
    links: Links = frozenset(),
    sure: Links = frozenset(),
    possible: Links = frozenset(),
) -> Axes:
    """Draw one map: darker is more; a dot is an extracted link, a frame a gold link (dashed: only possible)."""
    axes.imshow(scores, cmap="Blues", vmin=0, vmax=float(scores.max()) or 1.0, aspect="equal")
    axes.set_xticks(range(len(source) + 1), [*source, "∅"], rotation=90)
    axes.set_yticks(range(len(target)), list(target))
    axes.tick_params(length=0, labelsize=8, colors=INK)
    for spine in axes.spines.values():
        spine.set_visible(False)
    for s, t in sorted(sure | possible):
        certain = (s, t) in sure
        axes.add_patch(
            Rectangle(
                (s - 0.46, t - 0.46),
                0.92,
                0.92,
                fill=False,
                linewidth=1.6 if certain else 1.1,
                edgecolor=SURE if certain else POSSIBLE,
                linestyle="-" if certain else (0, (2, 1.5)),
            )
        )
    for s, t in links:
        dark = scores[t, s] > 0.55 * scores.max()
        axes.plot(s, t, "o", markersize=4, color="white" if dark else INK)
    return axes


def soft_alignments(
    maps: Mapping[str, Float[np.ndarray, "target source_and_null"]],
    source: Sequence[str],
    target: Sequence[str],
    links: Mapping[str, Links],
    sure: Links,
    possible: Links,
    caption: str,
) -> Figure:
    """One sentence pair, its maps side by side, with the links that each gives (2020, Figures 7, 8 and 13-17)."""
    width, height = len(source) + 1, len(target)
    labels = 0.075 * max(map(len, target)), 0.075 * max(map(len, source))
    figure = Figure(
        figsize=(len(maps) * (0.3 * width + labels[0] + 0.5) + 0.3, 0.3 * height + labels[1] + 1.3),
        layout="constrained",
    )
    for axes, (name, scores) in zip(figure.subplots(1, len(maps), squeeze=False)[0], maps.items(), strict=True):
        soft_alignment(axes, scores, source, target, links[name], sure, possible)
        axes.set_title(name, fontsize=10, color=INK)
    figure.supxlabel(f"dot: extracted link · frame: gold (dashed: possible)\n{caption}", fontsize=7, color=FAINT)
    return figure


def layer_curves(by_layer: Mapping[str, Mapping[str, Sequence[float]]], layers: Sequence[int], caption: str) -> Figure:
    """AER of weights and norms by layer, one panel per setting."""
    figure = Figure(figsize=(7.2, 3.2), layout="constrained")
    panels = figure.subplots(1, len(by_layer), sharey=True, squeeze=False)[0]
    for axes, (setting, curves) in zip(panels, by_layer.items(), strict=True):
        for name, values in curves.items():
            axes.plot(layers, values, "o-", color=LINES.get(name, INK), label=name, markersize=4)
        axes.set_title(setting.upper(), fontsize=10, color=INK)
        axes.set_xlabel("layer", fontsize=9)
        axes.set_xticks(list(layers))
        axes.set_ylim(0, 100)
        axes.grid(axis="y", color="#e6e6e6", linewidth=0.8)
        axes.set_axisbelow(True)
        for side in ("top", "right"):
            axes.spines[side].set_visible(False)
    panels[0].set_ylabel("AER (%)", fontsize=9)
    panels[0].legend(frameon=False, fontsize=9)
    figure.supxlabel(caption, fontsize=7, color=FAINT)
    return figure


def head_tables(
    aer: Float[np.ndarray, "layer head"],
    mean_norm: Float[np.ndarray, "layer head"],
    layers: Sequence[int],
    caption: str,
) -> Figure:
    """AER and mean norm of every head, side by side."""
    figure = Figure(figsize=(8.4, 0.42 * len(layers) + 1.6), layout="constrained")
    for axes, (title, values, form, colours) in zip(
        figure.subplots(1, 2),
        (("AER by norms, AWI (%)", aer, "{:.0f}", "Blues_r"), ("mean ‖αf(x)‖", mean_norm, "{:.2f}", "Blues")),
        strict=True,
    ):
        axes.imshow(values, cmap=colours, aspect="auto")
        middle = (values.max() + values.min()) / 2
        for (row, column), value in np.ndenumerate(values):
            dark = value < middle if colours.endswith("_r") else value > middle
            axes.text(
                column, row, form.format(value), ha="center", va="center", fontsize=7, color="white" if dark else INK
            )
        axes.set_xticks(range(values.shape[1]), range(1, values.shape[1] + 1))
        axes.set_yticks(range(len(layers)), list(layers))
        axes.set_xlabel("head", fontsize=9)
        axes.set_ylabel("layer", fontsize=9)
        axes.set_title(title, fontsize=10, color=INK)
        axes.tick_params(length=0, labelsize=8)
        for spine in axes.spines.values():
            spine.set_visible(False)
    figure.supxlabel(caption, fontsize=7, color=FAINT)
    return figure
