"""Nothing falls off the sheet and no two words cover each other, for short and long texts and every picture."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
import xarray as xr
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.text import Text

from normlens.plots import plot_heads, plot_map, plot_maps, plot_mixing
from normlens.plots.cells import SMALLEST
from tests.plots.samples import HOSTILE, dataset, mixing

PROVENANCE = "normlens 0.1.0 · some/model · family bert · layers 1–12 · float32 · torch 2.13.0 · transformers 5.22.2"


def signed(data: Any) -> Any:
    """Values on both sides of zero up to 0.05, whose ticks are long to write: −0.0125."""
    largest = float(abs(data).max() if isinstance(data, xr.DataArray) else abs(data["attnresln_n"]).max())
    return (data / largest - 0.1) * 0.05 / 0.9


PICTURES: dict[str, Callable[[int, int], Figure]] = {
    "map": lambda q, k: plot_map(dataset(q, k)["attnresln_n"].sel(layer=2), provenance=PROVENANCE),
    "map shares": lambda q, k: plot_map(
        dataset(q, k)["attnresln_n"].sel(layer=2), root=True, row_shares=True, provenance=PROVENANCE
    ),
    "map without own": lambda q, k: plot_map(
        dataset(q)["attnresln_n"].sel(layer=2), own="faded", root=True, provenance=PROVENANCE
    ),
    "map signed": lambda q, k: plot_map(
        signed(dataset(q, k)["attnresln_n"].rename("projection").sel(layer=2)), root=True, provenance=PROVENANCE
    ),
    "maps signed": lambda q, k: plot_maps(signed(dataset(q, k)), root=True, provenance=PROVENANCE),
    "maps": lambda q, k: plot_maps(dataset(q, k), provenance=PROVENANCE),
    "maps without own": lambda q, k: plot_maps(dataset(q), own="faded", provenance=PROVENANCE),
    "maps shares": lambda q, k: plot_maps(dataset(q, k), ["attn_w"], row_shares=True, root=True, provenance=PROVENANCE),
    "maps panel": lambda q, k: plot_maps(dataset(q, k, layers=2), scale="panel", provenance=PROVENANCE),
    "heads": lambda q, k: plot_heads(dataset(q, k, heads=12)["alpha"], provenance=PROVENANCE),
    "heads 32": lambda q, k: plot_heads(dataset(q, k, layers=2, heads=32)["af_norm"], provenance=PROVENANCE),
    "heads of one": lambda q, k: plot_heads(dataset(q, k, heads=6)["alpha"].sel(layer=1), provenance=PROVENANCE),
    "heads panel": lambda q, k: plot_heads(
        dataset(q, k, heads=6)["alpha"].sel(layer=1), scale="panel", provenance=PROVENANCE
    ),
    "mixing": lambda q, k: plot_mixing(mixing(q), measure="attnresln_n", provenance=PROVENANCE),
    "mixing deep": lambda q, k: plot_mixing(mixing(q, layers=48), measure="attn_n", cross=True, provenance=PROVENANCE),
}


def words_on(figure: Figure) -> list[tuple[Text, tuple[float, float, float, float]]]:
    """Every visible piece of text with its box `(left, bottom, right, top)` in inches."""
    canvas = FigureCanvasAgg(figure)
    figure.draw_without_rendering()
    found = []
    for text in figure.findobj(Text):
        if text.get_visible() and text.get_text():
            box = text.get_window_extent(canvas.get_renderer())
            found.append((text, tuple(float(edge) / figure.dpi for edge in box.extents)))
    return found


def complaints(figure: Figure) -> list[str]:
    width, height = figure.get_size_inches()
    words = words_on(figure)
    slack = 0.015  # a word's box is a little larger than its ink
    found = [
        f"{text.get_text()!r} falls off the sheet at {box}"
        for text, box in words
        if box[0] < -slack or box[1] < -slack or box[2] > width + slack or box[3] > height + slack
    ]
    for (one, a), (other, b) in itertools.combinations(words, 2):
        across = min(a[2], b[2]) - max(a[0], b[0])
        down = min(a[3], b[3]) - max(a[1], b[1])
        if across > 2 * slack and down > 2 * slack:
            found.append(f"{one.get_text()!r} covers {other.get_text()!r}")
    return found


@pytest.mark.parametrize("size", [(1, 1), (10, 10), (60, 60), (30, 5), (2, 30)], ids=str)
@pytest.mark.parametrize("picture", PICTURES)
def test_words_stay_on_the_sheet_and_apart(picture: str, size: tuple[int, int]) -> None:
    assert complaints(PICTURES[picture](*size)) == []


@pytest.mark.parametrize("count", [150, 300])
@pytest.mark.parametrize("picture", ["map", "maps", "mixing"])
def test_a_very_long_text_still_fits(picture: str, count: int) -> None:
    figure = PICTURES[picture](count, count)
    assert complaints(figure) == []
    assert max(figure.get_size_inches()) <= 15


@pytest.mark.parametrize("picture", ["map", "maps", "heads of one", "mixing"])
def test_no_token_is_smaller_than_can_be_read(picture: str) -> None:
    for count in (10, 60):
        figure = PICTURES[picture](count, count)
        assert min(text.get_fontsize() for text, _ in words_on(figure)) >= SMALLEST


def test_hostile_tokens_stay_on_the_sheet() -> None:
    assert complaints(plot_map(dataset(HOSTILE)["attn_n"].sel(layer=1), provenance="$\x00 </text> 東京")) == []
    assert complaints(plot_mixing(mixing(HOSTILE))) == []
    assert complaints(plot_maps(dataset(HOSTILE))) == []


def test_this_check_can_fail() -> None:
    figure = Figure(figsize=(2, 2))
    figure.text(0.5, 0.5, "one")
    figure.text(0.5, 0.5, "another")
    figure.text(0.9, 0.1, "too far to the right")
    assert len(complaints(figure)) == 2
