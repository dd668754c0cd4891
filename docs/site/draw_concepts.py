"""Draw the pictures of docs/concepts.md: two sketches, and two figures measured on the embedded model.

python docs/site/draw_concepts.py
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

import normlens
from normlens.experiments import kobayashi2020_bert, kobayashi2021
from normlens.experiments.encoder_study import EncoderStudy
from normlens.plots import save_figure

IMAGES = Path(__file__).parent.parent / "images"
BLUE, AMBER, GREY, INK = "#1f5fa8", "#a35f00", "#9aa2ab", "#1b1f24"


def arrow(
    axes: Axes, start: np.ndarray, vector: np.ndarray, colour: str, width: float = 2.2, alpha: float = 1.0
) -> None:
    style = {"arrowstyle": "-|>", "color": colour, "lw": width, "alpha": alpha, "shrinkA": 0, "shrinkB": 0}
    axes.annotate("", start + vector, start, arrowprops=style)


def vectors() -> Figure:
    """2020, the idea of Figures 1 and 2: weights, transformed vectors, weighted vectors and their sum."""
    tokens, weights = ["[SEP]", "store", "milk"], np.array([0.6, 0.25, 0.15])
    f = np.array([[0.22, -0.12], [1.5, 0.9], [-0.7, 2.1]])
    figure = Figure(figsize=(9, 3.1), layout="constrained")
    left, middle, right = figure.subplots(1, 3)
    colours = [AMBER, BLUE, "#3b8f6b"]
    left.barh(tokens[::-1], weights[::-1], color=colours[::-1], height=0.55)
    for place, weight in enumerate(weights[::-1]):
        left.text(weight + 0.015, place, f"α = {weight}", va="center", fontsize=9)
    left.set_xlim(0, 0.85)
    left.set_title("attention weights", fontsize=10)
    left.spines[["top", "right", "bottom"]].set_visible(False)
    left.tick_params(bottom=False, labelbottom=False, left=False)
    for axes, title in ((middle, "transformed vectors f(x)"), (right, "what arrives: Σ α f(x)")):
        axes.set_title(title, fontsize=10)
        axes.set_aspect("equal")
        axes.axis("off")
    for token, vector, colour in zip(tokens, f, colours, strict=True):
        arrow(middle, np.zeros(2), vector, colour)
        middle.text(vector[0] * 1.04 + 0.08, vector[1] * 1.04 + 0.02, f"f({token})", color=colour, fontsize=9)
    middle.set_xlim(-1.1, 2.6)
    middle.set_ylim(-0.5, 2.5)
    start = np.zeros(2)
    for token, weight, vector, colour in zip(tokens, weights, f, colours, strict=True):
        arrow(right, start, weight * vector, colour)
        middle_of = start + weight * vector / 2
        length = np.linalg.norm(weight * vector)
        right.text(
            middle_of[0] + 0.04,
            middle_of[1] - (0.1 if token == tokens[0] else 0.045),
            f"{token}: {length:.2f}",
            color=colour,
            fontsize=9,
        )
        start = start + weight * vector
    arrow(right, np.zeros(2), start, INK, 1.4, 0.55)
    right.text(start[0] * 0.5 - 0.2, start[1] * 0.5 + 0.05, "y", color=INK, fontsize=10, style="italic")
    right.set_xlim(-0.15, 0.95)
    right.set_ylim(-0.2, 0.62)
    return figure


def block() -> Figure:
    """2021, the idea of Figure 2: a block, and what each measure includes of it."""
    figure = Figure(figsize=(9, 3.2), layout="constrained")
    axes = figure.subplots()
    axes.set_xlim(0, 10)
    axes.set_ylim(-2.55, 1.5)
    axes.axis("off")
    steps = [("α", "attention\nweights"), ("α f(x)", "weighted\nvectors"), ("Σ heads", "added\nover heads"),
             ("+ x", "residual\nconnection"), ("LN", "layer\nnormalization")]  # fmt: skip
    for place, (sign, text) in enumerate(steps):
        x = 1 + 2 * place
        box = {"boxstyle": "round,pad=0.5", "fc": "white", "ec": BLUE if place else AMBER, "lw": 1.5}
        axes.text(x, 0.9, sign, ha="center", va="center", fontsize=12, bbox=box, color=INK)
        axes.text(x, 0.12, text, ha="center", va="center", fontsize=8.5, color="#5c646d")
        if place:
            axes.annotate("", (x - 0.62, 0.9), (x - 1.38, 0.9), arrowprops={"arrowstyle": "-|>", "color": GREY})
    scopes = [("ATTN-W", 1, 1, AMBER), ("ATTN-N", 1, 5, BLUE), ("ATTNRES-N", 1, 7, BLUE), ("ATTNRESLN-N", 1, 9, BLUE)]
    for row, (name, first, last, colour) in enumerate(scopes):
        y = -0.45 - 0.5 * row
        axes.plot([first - 0.6, last + 0.6], [y, y], color=colour, lw=5, solid_capstyle="round", alpha=0.85)
        axes.text(
            last + 0.75 if last < 8 else 8.3, y if last < 8 else y - 0.3, name, va="center", fontsize=9.5, color=colour
        )
    return figure


def main() -> None:
    matplotlib.rcParams["svg.hashsalt"] = "normlens"
    save_figure(vectors(), IMAGES / "concepts-vectors")
    save_figure(block(), IMAGES / "concepts-block")
    lens = normlens.load()
    with tempfile.TemporaryDirectory() as folder:
        weights = kobayashi2020_bert.run(EncoderStudy(lens, Path(folder) / "2020"))
        mixing = kobayashi2021.run(EncoderStudy(lens, Path(folder) / "2021"))
        for outcome, name, wanted in (
            (weights, "concepts-categories", "figure-03"),
            (mixing, "concepts-mixing", "figure-03-methods"),
        ):
            (picture,) = [one for one in outcome.pictures if one.name == wanted]
            save_figure(picture.figure, IMAGES / name)


if __name__ == "__main__":
    main()
