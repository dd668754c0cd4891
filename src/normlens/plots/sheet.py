"""A figure as a sheet of paper: places in inches from its top left, restrained type, the provenance line, the files.

Every property that the caller's matplotlib settings could change is set here in so many words: a picture looks the same
under any style sheet, and no setting has to be changed (and put back) while drawing. Saving needs a few of them, and
puts them back.
"""

from __future__ import annotations

import io
import os
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from functools import lru_cache
from pathlib import Path
from threading import Lock
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.cm import ScalarMappable
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties
from matplotlib.text import Text

from normlens.errors import InputError
from normlens.io.writing import whole_file
from normlens.plots.colours import Scale, short
from normlens.plots.fonts import families, printable

POINTS = 72.0  # per inch
INK = "#1f1f1f"
QUIET = "#6b6b6b"
GRID = "#e4e4e4"
HAIRLINE = 0.4

#: Sizes of type, in points: headings, axis names and notes, and the provenance line.
HEADING, BODY, NOTE, FINE = 8.5, 7.5, 6.5, 5.0

MARGIN = 0.08  # of white around everything, in inches
PROVENANCE = "normlens-provenance"

#: Dots per inch of a saved PNG, and of smoothed maps inside the SVG.
RESOLUTION = 300

# The salt makes the identifiers in an SVG repeatable; glyphs as paths look the same where the font is missing. Both can
# only be set through matplotlib's settings, hence the lock: they are put back before anyone else saves here.
_SAVING: Any = {"svg.hashsalt": "normlens", "svg.fonttype": "path", "svg.image_inline": True, "savefig.bbox": None}
_saving_lock = Lock()


def new_figure(width: float, height: float) -> Figure:
    """A white figure of this size in inches that no layout engine will rearrange."""
    figure = Figure(figsize=(width, height), dpi=150, facecolor="white", edgecolor="none")
    figure.set_layout_engine("none")
    return figure


def axes_at(figure: Figure, left: float, top: float, width: float, height: float) -> Axes:
    """Plain axes at a place given in inches from the figure's top left corner."""
    across, down = figure.get_size_inches()
    ax = figure.add_axes((left / across, 1 - (top + height) / down, width / across, height / down))
    plain(ax)
    return ax


def plain(ax: Axes) -> None:
    """Axes with a hairline frame and no ticks, grid or colour of their own."""
    ax.set_facecolor("white")
    ax.grid(False, which="both")
    ax.minorticks_off()
    ax.set_xticks([])
    ax.set_yticks([])
    ax.margins(0)
    for spine in ax.spines.values():
        spine.set(visible=True, linewidth=HAIRLINE, edgecolor=QUIET)


def lettering(size: float, colour: str = INK, weight: str = "normal") -> dict[str, Any]:
    """The properties of a piece of text, all of them; text is data, so `$` never starts a formula."""
    return {
        "fontproperties": FontProperties(family=list(families()), size=size, weight=weight, style="normal"),
        "color": colour,
        "parse_math": False,
        "usetex": False,
    }


def write(figure: Figure, left: float, top: float, string: str, size: float, **options: Any) -> Text:
    """Text at a place in inches from the figure's top left corner."""
    across, down = figure.get_size_inches()
    style = lettering(size, options.pop("colour", INK), options.pop("weight", "normal"))
    return figure.text(left / across, 1 - top / down, string, **style, **options)


def set_ticks(ax: Axes, axis: str, places: Sequence[float], labels: Sequence[str], size: float, **options: Any) -> None:
    """Fixed ticks with their labels on the `x` (bottom) or `y` (left) axis; `length=0` for labels alone."""
    target = ax.xaxis if axis == "x" else ax.yaxis
    length = options.pop("length", 2.0)
    side = {"bottom": True, "top": False} if axis == "x" else {"left": True, "right": False}
    side |= {f"label{place}": shown for place, shown in side.items()}
    target.set_ticks(list(places), list(labels), **lettering(size), **options)
    for tick in target.get_major_ticks():
        # label1 stands at the bottom or left, label2 at the top or right.
        near, far = ("top", "baseline") if axis == "x" else ("right", "left")
        for label, outward in ((tick.label1, near), (tick.label2, far)):
            across, down = ("center", outward) if axis == "x" else (outward, "center_baseline")
            label.set(horizontalalignment=across, verticalalignment=down)
    target.set_tick_params(which="major", direction="out", length=length, width=HAIRLINE, pad=2.0, color=QUIET, **side)


def name_axis(ax: Axes, axis: str, name: str) -> None:
    """The quiet name of an axis."""
    (ax.set_xlabel if axis == "x" else ax.set_ylabel)(name, labelpad=3.0, loc="center", **lettering(BODY, QUIET))


def colour_bar(bar: Axes, scale: Scale, label: str, *, horizontal: bool, ticks: Sequence[str] | int) -> None:
    """Fill `bar` with the scale's colours; ticks are their greatest number, or the words for evenly spaced places."""
    mappable = ScalarMappable(norm=scale.norm, cmap=scale.colormap)
    figure = bar.get_figure()
    assert figure is not None, "an axes that is drawn on belongs to a figure"
    drawn = figure.colorbar(
        mappable,
        cax=bar,
        orientation="horizontal" if horizontal else "vertical",
        extend=("both" if scale.low < 0 else "max") if scale.clipped else "neither",
        extendfrac=0.06,
    )
    drawn.outline.set(linewidth=HAIRLINE, edgecolor=QUIET)
    drawn.minorticks_off()
    bar.grid(False, which="both")
    if isinstance(ticks, int):
        places = scale.ticks(ticks)
        words = [short(place) for place in places]
    else:
        words = list(ticks)
        places = [scale.low + (scale.high - scale.low) * place / (len(words) - 1) for place in range(len(words))]
    set_ticks(bar, "x" if horizontal else "y", places, words, NOTE, length=1.5)
    if horizontal:
        bar.set_xlabel(label, labelpad=2.0, loc="center", linespacing=1.25, **lettering(NOTE))
        outer = bar.get_xticklabels()
        outer[0].set_horizontalalignment("left")
        outer[-1].set_horizontalalignment("right")
    else:
        bar.yaxis.set_ticks_position("right")
        bar.yaxis.set_label_position("right")
        bar.set_ylabel(label, labelpad=6.0, loc="center", **lettering(BODY))


def width_of(strings: Iterable[str], size: float) -> float:
    """The width in inches of the widest of these strings."""
    return max((_width(string, size, families()) for string in strings), default=0.0)


@lru_cache(maxsize=4096)
def _width(string: str, size: float, names: tuple[str, ...]) -> float:
    canvas = FigureCanvasAgg(Figure(figsize=(1, 1), dpi=288))
    extent = canvas.figure.text(0, 0, string, **lettering(size)).get_window_extent(canvas.get_renderer())
    return float(extent.width) / 288


def wrapped(string: str, size: float, width: float) -> list[str]:
    """The string in lines no wider than `width` inches, broken at spaces; a separating dot never starts a line."""
    lines: list[str] = []
    for word in string.split(" "):
        longer = f"{lines[-1]} {word}" if lines else word
        if lines and (word == "·" or width_of([longer], size) <= width):
            lines[-1] = longer
        else:
            lines.append(word)
    return lines


def provenance_height(provenance: str | None, width: float) -> float:
    """The inches that the provenance line needs at the bottom of a figure of this width."""
    if not provenance:
        return 0.0
    return len(wrapped(printable(provenance.strip()), FINE, width - 2 * MARGIN)) * _line(FINE) + 0.04


def draw_provenance(figure: Figure, provenance: str | None) -> None:
    """Draw the line small at the bottom; a figure that already carries another one carries both."""
    if not provenance:
        return
    across, down = figure.get_size_inches()
    earlier = [text for text in figure.texts if text.get_gid() == PROVENANCE]
    words = dict.fromkeys(
        [*(line for line in provenance_of(figure).split("\n") if line), printable(provenance.strip())]
    )
    for text in earlier:
        text.remove()
    lines = [part for line in words for part in wrapped(line, FINE, across - 2 * MARGIN)]
    text = figure.text(
        MARGIN / across,
        MARGIN / 2 / down,
        "\n".join(lines),
        **lettering(FINE, QUIET),
        va="bottom",
        ha="left",
        linespacing=1.2,
        gid=PROVENANCE,
    )
    text.set_label("\n".join(words))


def provenance_of(figure: Figure) -> str:
    """The provenance that a figure carries, without the line breaks of its layout; empty if it has none."""
    return next((str(text.get_label()) for text in figure.texts if text.get_gid() == PROVENANCE), "")


def root_figure(ax: Axes) -> Figure:
    """The whole figure that these axes stand in, also through subfigures."""
    # A subfigure's own `.figure` is the root; `get_figure(root=True)` is younger than the oldest matplotlib we support.
    root = ax.figure.figure
    assert isinstance(root, Figure), "an axes that is drawn on belongs to a figure"
    return root


def save_figure(figure: Figure, path_without_suffix: str | os.PathLike[str]) -> list[Path]:
    """Write `<path>.png` and `<path>.svg` and return both paths.

    Both are drawn in memory first and take their places when complete, so a failure leaves neither half a file nor a
    changed old one. The SVG carries no date; the provenance line is also in both files' metadata.
    """
    base = Path(path_without_suffix)
    if not base.name:
        raise InputError(
            f"a figure needs a file name; {str(path_without_suffix)!r} arrived. Give a name without suffix."
        )
    # Not with_suffix: "bert.layer5" is a whole name, not one with the suffix ".layer5".
    paths = {kind: base.with_name(f"{base.name}.{kind}") for kind in ("png", "svg")}
    taken = next((path for path in paths.values() if path.is_dir()), None)
    if taken is not None or not base.parent.is_dir():
        what = f"{taken} is a folder itself" if taken else f"{base.parent} is none"
        raise InputError(f"figures are written as files into a folder that exists; {what}. Choose another name.")
    contents = {path: _drawn(figure, kind) for kind, path in paths.items()}
    with ExitStack() as stack:
        for path, content in contents.items():
            stack.enter_context(whole_file(path)).write(content)
    return list(contents)


def _drawn(figure: Figure, kind: str) -> bytes:
    buffer = io.BytesIO()
    description = provenance_of(figure)
    metadata: dict[str, str | None] = {"Description": description} if description else {}
    if kind == "svg":
        metadata["Date"] = None
    with _saving_lock, matplotlib.rc_context(_SAVING):
        figure.savefig(buffer, format=kind, dpi=RESOLUTION, metadata=metadata, facecolor="white", edgecolor="none")
    return buffer.getvalue()


def _line(size: float) -> float:
    return 1.25 * size / POINTS
