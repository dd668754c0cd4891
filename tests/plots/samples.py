"""Labelled arrays like those of an analysis, from a seed; and what a figure shows, read back from it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import xarray as xr
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.text import Text

WORDS = ("the", "committee", ",", "that", "##ed", "bridge", "of", "engineers", "was", ".", "river")

HOSTILE = (
    *("$x^2$", "$", "\\frac{1}{0}", "a\x00b", "\n", "\t", " the", "東京", "👨\u200d👩\u200d👧", "السلام", "שלום"),
    *("</text>", "<!-- -->", "&amp;", "]]>", "--", "\u202eevil", "\ud800", "", "%", "{}", "\u0301", "\x1b[31m"),
    "incomprehensibilities",
)


def sentence(count: int) -> list[str]:
    """A text of `count` tokens in which most occur several times."""
    return ["[CLS]", *(WORDS[place % len(WORDS)] for place in range(count - 1))][:count]


def dataset(
    queries: int | Sequence[str], keys: int | Sequence[str] | None = None, layers: int = 3, heads: int = 4
) -> xr.Dataset:
    """All measures that are drawn, for texts of so many tokens or of these tokens."""
    query_tokens = sentence(queries) if isinstance(queries, int) else list(queries)
    keys = query_tokens if keys is None else keys
    key_tokens = sentence(keys) if isinstance(keys, int) else list(keys)
    generator = np.random.default_rng(len(query_tokens))
    rows, columns = len(query_tokens), len(key_tokens)
    alpha = generator.dirichlet(np.full(columns, 0.3), size=(layers, heads, rows))
    lengths = generator.uniform(0.5, 9.0, size=(layers, heads, 1, columns))
    same = np.eye(rows, columns)
    maps = {
        "attn_w": alpha.mean(1),
        "attn_n": (alpha * lengths).sum(1),
        "attnres_w": 0.5 * alpha.mean(1) + 0.5 * same,
        "attnres_n": (alpha * lengths).sum(1) + 11 * same,
        "attnresln_n": 2.5 * (alpha * lengths).sum(1) + 20 * same,
    }
    coordinates = {
        "layer": np.arange(1, layers + 1),
        "head": np.arange(1, heads + 1),
        "query": np.arange(rows),
        "key": np.arange(columns),
        "query_token": ("query", np.array(query_tokens)),
        "key_token": ("key", np.array(key_tokens)),
    }
    variables = {name: (("layer", "query", "key"), values) for name, values in maps.items()}
    by_head = {
        name: (("layer", "head", "query", "key"), v) for name, v in (("alpha", alpha), ("af_norm", alpha * lengths))
    }
    return xr.Dataset(variables | by_head, coords=coordinates)


def mixing(count: int | Sequence[str], layers: int = 3) -> xr.DataArray:
    """A mixing ratio for a text of so many tokens."""
    tokens = sentence(count) if isinstance(count, int) else list(count)
    ratios = np.random.default_rng(len(tokens)).uniform(0.05, 0.45, size=(layers, len(tokens)))
    coordinates = {
        "layer": np.arange(1, layers + 1),
        "query": np.arange(len(tokens)),
        "query_token": ("query", np.array(tokens)),
    }
    return xr.DataArray(ratios, dims=("layer", "query"), coords=coordinates, name="mixing_ratio")


def image(ax: Axes) -> np.ndarray:
    """The numbers that an axes draws as colours."""
    return np.ma.filled(ax.images[0].get_array(), np.nan)


def limits(ax: Axes) -> tuple[float, float]:
    """The ends of the scale that an axes draws on."""
    return ax.images[0].norm.vmin, ax.images[0].norm.vmax


def texts(figure: Figure) -> list[str]:
    """Everything that is written on a figure, wherever it stands."""
    return [text.get_text() for text in figure.findobj(Text) if text.get_text()]


def titles(figure: Figure) -> list[str]:
    """The titles of its axes."""
    return [ax.get_title(loc="left") for ax in figure.axes if ax.get_title(loc="left")]


def complaints(figure: Figure) -> list[str]:
    """Texts that do not stand on the sheet once matplotlib has laid it out."""
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    sheet, renderer = figure.bbox, canvas.get_renderer()
    ticks = {id(label) for ax in figure.axes for label in (*ax.get_xticklabels(), *ax.get_yticklabels())}
    outside = []
    for text in figure.findobj(Text):
        if id(text) in ticks or not text.get_visible() or not text.get_text().strip():
            continue
        box = text.get_window_extent(renderer)
        if box.x0 < -2 or box.y0 < -2 or box.x1 > sheet.x1 + 2 or box.y1 > sheet.y1 + 2:
            outside.append(text.get_text())
    return outside


def tick_labels(ax: Axes, axis: str) -> list[str]:
    """The labels along `x` or `y`."""
    return [label.get_text() for label in getattr(ax, f"get_{axis}ticklabels")()]
