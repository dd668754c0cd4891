"""Figures of images and sound: maps over a picture, terms over a waveform."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import xarray as xr
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.figure import Figure

from normlens.errors import InputError
from normlens.inputs.media import read_image
from normlens.plots.figure import add_provenance, in_house_style, new_figure
from normlens.plots.style import NOTE, QUIET, Scale, diverging, round_up, scale_of
from normlens.plots.text import printable

#: Panels beside each other.
_MOST_COLUMNS = 4
_PANEL = 2.1  # inches


def fitted(image: Any, geometry: Mapping[str, Any] | None) -> np.ndarray:
    """The part of an image that the model saw, in its shape: scaled and cut as its processor does.

    Args:
        image: The image that was analysed.
        geometry: `resize` and `crop`, as the provenance has them; None: the whole image.
    """
    picture = read_image(image)
    if isinstance(picture, np.ndarray):
        array = picture if picture.shape[2] in (1, 3, 4) else picture.transpose(1, 2, 0)
        array = array.astype(np.float64)
        if array.max() > 1:
            array = array / 255
        return array[..., :3].clip(0, 1)
    for name, size in (geometry or {}).items():
        width, height = picture.size
        if name == "resize" and "shortest_edge" in size:
            scale = size["shortest_edge"] / min(width, height)
            picture = picture.resize((round(width * scale), round(height * scale)))
        elif name == "resize":
            picture = picture.resize((size["width"], size["height"]))
        elif name == "crop":
            left, top = (width - size["width"]) // 2, (height - size["height"]) // 2
            picture = picture.crop((left, top, left + size["width"], top + size["height"]))
    return np.asarray(picture, dtype=np.float64) / 255


@in_house_style
def plot_on_image(
    image: Any,
    maps: Mapping[str, xr.DataArray],
    *,
    geometry: Mapping[str, Any] | None = None,
    signed: bool = False,
    label: str = "",
    title: str = "",
    mark: tuple[int, int] | None = None,
    provenance: str | None = None,
) -> Figure:
    """Draw maps over an image, with the image itself beside them.

    Args:
        image: The image: a path, a PIL image or an array. It is embedded in the figure.
        maps: Maps (row, column) by their titles; all have one scale.
        geometry: How the model's processor scaled and cut the image, from the provenance.
        signed: Blue above zero, orange below; otherwise from white on.
        label: The meaning of the colours.
        title: The title of the figure.
        mark: Row and column of a patch to frame: the query.
        provenance: A small line at the bottom.

    Returns:
        The figure.
    """
    if not maps:
        raise InputError("maps is empty; pass at least one map")
    picture = fitted(image, geometry)
    values = {name: np.asarray(array.values, dtype=np.float64) for name, array in maps.items()}
    for name, each in values.items():
        if each.ndim != 2:
            raise InputError(f"a map on an image must be (row, column), got {maps[name].dims} for {name!r}")
    scale = _scale(list(values.values()), signed)
    count = len(maps) + 1
    columns = min(count, _MOST_COLUMNS)
    rows = -(-count // columns)
    figure = new_figure(_PANEL * columns + 0.3, (_PANEL * picture.shape[0] / picture.shape[1] + 0.2) * rows + 1.0)
    axes = figure.subplots(rows, columns, squeeze=False).ravel()
    axes[0].imshow(picture, interpolation="nearest")
    axes[0].set_title("image", fontsize=NOTE, color=QUIET)
    for ax, (name, each) in zip(axes[1:], values.items(), strict=False):
        _draw_over(ax, picture, each, scale, signed)
        ax.set_title(printable(name), fontsize=NOTE)
        if mark is not None:
            _frame(ax, picture, each.shape, mark)
    for ax in axes:
        ax.set_axis_off()
    bar = figure.colorbar(
        ScalarMappable(norm=scale.norm, cmap=scale.colormap), ax=list(axes), location="bottom", aspect=40, shrink=0.5
    )
    bar.set_label(printable(label), fontsize=NOTE)
    bar.outline.set_linewidth(0.4)
    if title:
        figure.suptitle(printable(title), x=0.01, ha="left", fontsize=9, fontweight="bold")
    add_provenance(figure, provenance)
    return figure


def _scale(values: Sequence[np.ndarray], signed: bool) -> Scale:
    finite = [each[np.isfinite(each)] for each in values]
    if not signed:
        return scale_of(finite)
    high = max((float(np.abs(each).max(initial=0.0)) for each in finite), default=0.0)
    return Scale(-round_up(high), round_up(high))


def _draw_over(ax: Axes, picture: np.ndarray, values: np.ndarray, scale: Scale, signed: bool) -> None:
    """The picture in grey, and the map over it: the larger a number, the less of the picture shows through."""
    grey = picture.mean(axis=-1)
    ax.imshow(0.35 + 0.65 * grey, cmap="gray", vmin=0, vmax=1, interpolation="nearest")
    shares = scale.norm(np.nan_to_num(values))
    colours = scale.colormap(shares)
    strength = np.abs(np.asarray(shares) - 0.5) * 2 if signed else np.asarray(shares)
    colours[..., 3] = 0.15 + 0.75 * np.clip(strength, 0, 1) ** 0.7
    height, width = picture.shape[:2]
    ax.imshow(colours, extent=(-0.5, width - 0.5, height - 0.5, -0.5), interpolation="nearest")


def _frame(ax: Axes, picture: np.ndarray, shape: tuple[int, ...], mark: tuple[int, int]) -> None:
    height, width = picture.shape[0] / shape[0], picture.shape[1] / shape[1]
    left, top = mark[1] * width - 0.5, mark[0] * height - 0.5
    box = ([left, left + width, left + width, left, left], [top, top, top + height, top + height, top])
    ax.plot(*box, color="black", linewidth=1.4)


@in_house_style
def plot_on_sound(
    samples: np.ndarray,
    rate: int,
    terms: Mapping[str, xr.DataArray],
    *,
    axis: str = "key",
    signed: bool = True,
    label: str = "",
    title: str = "",
    provenance: str | None = None,
) -> Figure:
    """Draw terms of sound over time, below its waveform.

    Args:
        samples: The sound, one channel.
        rate: Samples in a second.
        terms: Numbers of one axis of positions by their titles; the positions have `start` and `end`.
        axis: The axis of positions.
        signed: Whether numbers may be below zero.
        label: The meaning of the numbers.
        title: The title of the figure.
        provenance: A small line at the bottom.

    Returns:
        The figure.
    """
    if not terms:
        raise InputError("terms is empty; pass at least one row of numbers")
    seconds = len(samples) / rate
    figure = new_figure(7.0, 1.5 + 0.85 * len(terms))
    wave, *below = figure.subplots(len(terms) + 1, 1, sharex=True)
    low, high = _envelope(np.asarray(samples, dtype=np.float64))
    times = np.linspace(0, seconds, len(low))
    wave.fill_between(times, low, high, color=QUIET, linewidth=0)
    wave.set_yticks([])
    wave.set_title("waveform", fontsize=NOTE, color=QUIET, loc="left")
    largest = max(float(np.abs(array.values).max()) for array in terms.values()) or 1.0
    colours = diverging()
    for ax, (name, array) in zip(below, terms.items(), strict=True):
        starts, ends = array[f"{axis}_start"].values, array[f"{axis}_end"].values
        inside = starts < seconds
        values = np.asarray(array.values, dtype=np.float64)[inside]
        tint = [colours(0.85 if value > 0 else 0.15) for value in values]
        ax.bar(starts[inside], values, width=(ends - starts)[inside], align="edge", color=tint, linewidth=0)
        ax.set_ylim(-largest if signed else 0, largest)
        ax.set_title(printable(name), fontsize=NOTE, loc="left")
    below[-1].set_xlabel("seconds", fontsize=NOTE)
    below[-1].set_xlim(0, seconds)
    figure.supylabel(printable(label), fontsize=NOTE)
    if title:
        figure.suptitle(printable(title), x=0.01, ha="left", fontsize=9, fontweight="bold")
    add_provenance(figure, provenance)
    return figure


def _envelope(samples: np.ndarray, points: int = 1200) -> tuple[np.ndarray, np.ndarray]:
    """The smallest and largest sample of each of so many stretches."""
    count = max(1, min(points, len(samples)))
    pieces = np.array_split(samples, count)
    return np.array([piece.min() for piece in pieces]), np.array([piece.max() for piece in pieces])
