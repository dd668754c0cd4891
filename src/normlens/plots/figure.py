"""Figures in the house style with matplotlib's constrained layout; their provenance line; their files."""

from __future__ import annotations

import io
import os
import textwrap
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import wraps
from pathlib import Path
from threading import RLock
from typing import ParamSpec, TypeVar

import matplotlib.style
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.image import AxesImage
from matplotlib.ticker import MaxNLocator

from normlens.errors import InputError
from normlens.io.writing import atomic_write
from normlens.plots.style import FINE, NOTE, QUIET, SETTINGS, Scale
from normlens.plots.text import families, printable
from normlens.types import Kwargs

#: Dots per inch of a saved PNG.
RESOLUTION = 300
_KINDS = (".png", ".svg", ".pdf")
PROVENANCE = "normlens-provenance"

P = ParamSpec("P")
T = TypeVar("T")
_settings_lock = RLock()  # matplotlib's settings belong to the whole process


@contextmanager
def house_style() -> Iterator[None]:
    """Apply the settings of every figure inside the block, and put the caller's back."""
    fonts = list(families())
    with _settings_lock, matplotlib.style.context({**SETTINGS, "font.family": fonts}, after_reset=True):
        yield


def in_house_style(draw: Callable[P, T]) -> Callable[P, T]:
    """Draw a figure under the house style."""

    @wraps(draw)
    def styled(*args: P.args, **kwargs: P.kwargs) -> T:
        with house_style():
            return draw(*args, **kwargs)

    return styled


def new_figure(width: float, height: float) -> Figure:
    """A figure of this size in inches."""
    return Figure(figsize=(width, height), layout="constrained")


def label_inches(labels: Sequence[str], size: float = NOTE) -> float:
    """About how long the longest of these labels is, in inches."""
    return max((len(label) for label in labels), default=0) * size * 0.62 / 72


def add_colour_bar(
    figure: Figure, image: AxesImage, axes: Sequence[Axes] | Axes, scale: Scale, label: str, location: str, ticks: int
) -> None:
    """Add a colour bar with its label beside some axes."""
    bar = figure.colorbar(image, ax=axes, location=location, label=label, extend=scale.extend, aspect=30, shrink=0.9)
    bar.outline.set_linewidth(0.4)
    bar.locator = MaxNLocator(ticks)
    bar.update_ticks()


def add_provenance(figure: Figure, provenance: str | None) -> None:
    """Write the provenance line small at the bottom; a figure that has another one keeps both."""
    if not provenance:
        return
    lines = [line for line in provenance_of(figure).split("\n") if line]
    line = printable(provenance.strip())
    if line not in lines:
        lines.append(line)
    width = max(20, int(figure.get_size_inches()[0] * 72 / (FINE * 0.58)))
    wrapped = [part for each in lines for part in textwrap.wrap(each, width)]
    text = figure.supxlabel("\n".join(wrapped), x=0.01, ha="left", fontsize=FINE, color=QUIET)
    text.set_gid(PROVENANCE)
    text.set_label("\n".join(lines))


def provenance_of(figure: Figure) -> str:
    """The provenance of a figure, without the line breaks of its layout; empty if it has none."""
    return next((str(text.get_label()) for text in figure.texts if text.get_gid() == PROVENANCE), "")


def save_figure(figure: Figure, path: str | os.PathLike[str]) -> list[Path]:
    """Write a figure to files, which are drawn in memory first and take their places when complete.

    Args:
        figure: The figure.
        path: A name that ends in `.png`, `.svg` or `.pdf`; any other name gets a PNG and an SVG.

    Returns:
        The files. They carry no date; the provenance line is also in their metadata.
    """
    base = Path(path)
    if not base.name:
        raise InputError(f"a file name is missing, got {str(path)!r}")
    if base.suffix.lower() in _KINDS:
        paths = {base.suffix[1:].lower(): base}
    else:  # not with_suffix: "bert.layer5" is a whole name
        paths = {kind: base.with_name(f"{base.name}.{kind}") for kind in ("png", "svg")}
    taken = next((file for file in paths.values() if file.is_dir()), None)
    if taken is not None or not base.parent.is_dir():
        what = f"{taken} is a folder" if taken else f"{base.parent} is not a folder"
        raise InputError(f"the figure cannot be written: {what}; choose another name")
    with house_style(), _laid_out(figure):
        contents = {file: _drawn(figure, kind) for kind, file in paths.items()}
    with ExitStack() as stack:
        for file, content in contents.items():
            stack.enter_context(atomic_write(file)).write(content)
    return list(contents)


def _drawn(figure: Figure, kind: str) -> bytes:
    metadata: Kwargs = {}
    if provenance_of(figure):
        metadata["Subject" if kind == "pdf" else "Description"] = provenance_of(figure)
    if kind == "svg":
        metadata["Date"] = None
    if kind == "pdf":
        metadata["CreationDate"] = None
    buffer = io.BytesIO()
    figure.savefig(buffer, format=kind, dpi=RESOLUTION, metadata=metadata, facecolor="white")
    return buffer.getvalue()


@contextmanager
def _laid_out(figure: Figure) -> Iterator[None]:
    """Lay the figure out once for all its files: that takes longer than drawing it."""
    figure.draw_without_rendering()
    engine = figure.get_layout_engine()
    figure.set_layout_engine("none")
    try:
        yield
    finally:
        figure.set_layout_engine(engine)
