"""The look of every figure: matplotlib settings, colours, colour scales, and the styles of categories and series.

Categories have the colours of Okabe and Ito, which stay apart under every common kind of colour blindness; markers differ
too.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
from matplotlib.colors import Colormap, FuncNorm, LinearSegmentedColormap, Normalize, PowerNorm, to_hex

from normlens.errors import InputError
from normlens.types import Kwargs

INK, QUIET, GRID = "#1f1f1f", "#6b6b6b", "#e4e4e4"
#: Missing values: a warm grey, unlike any step of the bluish ramp.
MISSING = "#d8d2c8"
#: Sizes of type in points: headings, axis names, ticks and notes, provenance.
HEADING, BODY, NOTE, FINE = 8.5, 7.5, 6.5, 5.0

#: Every setting that a figure depends on; the rest are matplotlib's defaults, whatever the caller's are.
SETTINGS: Kwargs = {
    "figure.facecolor": "white",
    "figure.dpi": 150,
    "figure.constrained_layout.h_pad": 0.03,
    "figure.constrained_layout.w_pad": 0.03,
    "axes.edgecolor": QUIET,
    "axes.labelcolor": QUIET,
    "axes.labelsize": BODY,
    "axes.linewidth": 0.4,
    "axes.titlesize": HEADING,
    "axes.titlelocation": "left",
    "axes.titlecolor": INK,
    "axes.titlepad": 4.0,
    "axes.labelpad": 3.0,
    "grid.color": GRID,
    "grid.linewidth": 0.4,
    "xtick.color": QUIET,
    "ytick.color": QUIET,
    "xtick.labelcolor": INK,
    "ytick.labelcolor": INK,
    "xtick.labelsize": NOTE,
    "ytick.labelsize": NOTE,
    "xtick.major.size": 2.0,
    "ytick.major.size": 2.0,
    "xtick.major.width": 0.4,
    "ytick.major.width": 0.4,
    "legend.fontsize": BODY,
    "legend.frameon": False,
    "text.color": INK,
    "text.parse_math": False,  # text is data: `$` never starts a formula
    "svg.hashsalt": "normlens",  # makes the identifiers in an SVG repeatable
    "svg.fonttype": "path",  # looks the same where the font is missing
}

# Lightness falls from one end to the other, so the ramps survive print in grey.
_BLUES = ("#ffffff", "#c9e3ee", "#6fb0d2", "#2a6fae", "#173c78", "#0a1638")
_ORANGES = ("#743410", "#b65c18", "#e89a4e", "#f9dcb8")
_ORDERED = ("#e6b000", "#4aa564", "#0f7f95", "#0a4f8a", "#2a1650")

BLUE, VERMILION, GREEN, PURPLE = "#0072b2", "#d55e00", "#009e73", "#cc79a7"
YELLOW, ORANGE, SKY, GREY, BLACK = "#f0c000", "#e69f00", "#56b4e9", "#7a7a7a", "#1f1f1f"
PALE = "#dcdcdc"


@cache
def sequential() -> Colormap:
    """White to dark blue."""
    return LinearSegmentedColormap.from_list("normlens", _BLUES).with_extremes(bad=MISSING)


@cache
def diverging() -> Colormap:
    """Dark orange, white, dark blue: for differences and signed terms."""
    return LinearSegmentedColormap.from_list("normlens_signed", [*_ORANGES, *_BLUES[:-1]]).with_extremes(bad=MISSING)


@cache
def greys() -> Colormap:
    """Pale to middle grey; missing values are not drawn."""
    return LinearSegmentedColormap.from_list("normlens_grey", ["#f0f0f0", "#8c8c8c"]).with_extremes(bad=(0, 0, 0, 0))


# ---- scales --------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Scale:
    """The values at the two ends of a colour bar; below zero only where the data are signed.

    With `sqrt`, a colour stands for the square root of the value on either side of zero: small values show.
    """

    low: float
    high: float
    clipped: bool = False
    sqrt: bool = False

    @property
    def norm(self) -> Normalize:
        """The mapping to [0, 1]."""
        if not self.sqrt:
            return Normalize(self.low, self.high)
        if self.low < 0:
            return FuncNorm((_signed_root, _signed_square), self.low, self.high)
        return PowerNorm(0.5, self.low, self.high)

    @property
    def colormap(self) -> Colormap:
        """The colours."""
        return diverging() if self.low < 0 else sequential()

    @property
    def extend(self) -> str:
        """The ends of the colour bar that values lie beyond."""
        if not self.clipped:
            return "neither"
        return "both" if self.low < 0 else "max"


def _signed_root(values: np.ndarray) -> np.ndarray:
    roots: np.ndarray = np.copysign(np.sqrt(np.abs(values)), values)
    return roots


def _signed_square(roots: np.ndarray) -> np.ndarray:
    values: np.ndarray = np.copysign(np.square(roots), roots)
    return values


def scale_of(values: Sequence[np.ndarray], high: float | None = None, sqrt: bool = False) -> Scale:
    """The scale from 0 to the largest of all the values, rounded up; or to `high`. Signed values: symmetric about 0."""
    flat = np.concatenate([np.ravel(part) for part in values])
    finite = flat[np.isfinite(flat)]
    if finite.size == 0:
        raise InputError("there is no finite value to draw; check the analysis")
    if high is not None and not (math.isfinite(high) and high > 0):
        raise InputError(f"high must be a positive number, got {high!r}; leave it out for the maximum")
    reach = float(np.abs(finite).max())
    end = round_up(reach) if high is None else float(high)
    low = -end if float(finite.min()) < 0 else 0.0
    return Scale(low, end, clipped=reach > end * (1 + 1e-6), sqrt=sqrt)


def round_up(value: float) -> float:
    """The next number at or above `value` whose half and quarter are short to write.

    >>> round_up(0.87), round_up(17.0), round_up(0.5)
    (1.0, 20.0, 0.5)
    """
    if value <= 0:
        return 1.0
    decade = 10.0 ** math.floor(math.log10(value))
    for step in (1.0, 1.2, 1.6, 2.0, 2.4, 3.0, 4.0, 5.0, 6.0, 8.0):
        # The margin forgives what float32 adds: 0.5 stored as 0.50000001 is still 0.5.
        if value <= step * decade * (1 + 1e-6):
            return float(f"{step * decade:.6g}")
    return float(f"{10 * decade:.6g}")


def short(value: float) -> str:
    """A number in at most three significant digits, with a real minus sign."""
    return f"{value:.3g}".replace("-", "−")


# ---- styles --------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Style:
    """The look of a category, a model or a measure, and its name in the legend."""

    label: str
    colour: str
    marker: str = "o"
    dashed: bool = False

    def line(self, markers: bool = True) -> Kwargs:
        """The arguments of matplotlib's `plot`."""
        return {
            "label": self.label,
            "color": self.colour,
            "marker": self.marker if markers else "",
            "markersize": 3.6,
            "markeredgewidth": 0.9 if self.marker in "x+" else 0.0,
            "linestyle": (0, (3, 1.5)) if self.dashed else "-",
            "linewidth": 1.1,
            "clip_on": False,
        }


CATEGORY_STYLES: dict[str, Style] = {
    "cls": Style("[CLS]", BLUE, "o"),
    "sep": Style("[SEP]", VERMILION, "s"),
    "mask": Style("[MASK]", PURPLE, "D"),
    "special": Style("other special tokens", YELLOW, "p"),
    "comma_period": Style("comma and period", GREEN, "^"),
    "other": Style("others", GREY, "v"),
    "normal": Style("other tokens", GREY, "v"),
    "all": Style("all tokens", BLACK, "x", dashed=True),
}

#: For things without a meaning of their own, such as models side by side.
_NUMBERED = (
    (BLUE, "o"), (VERMILION, "s"), (GREEN, "^"), (PURPLE, "D"), (ORANGE, "v"), (SKY, "p"), (BLACK, "X"), (GREY, "*"),
)  # fmt: skip


def category_style(name: str) -> Style:
    """The style of a category; one of the caller's own is grey."""
    return CATEGORY_STYLES.get(name, Style(name, GREY, "v"))


def category_styles(names: Sequence[str]) -> list[Style]:
    """Return the styles of categories side by side; no two have the same colour, marker and line.

    >>> styles = category_styles([f"tag {number}" for number in range(30)])
    >>> len({(style.colour, style.marker, style.dashed) for style in styles})
    30
    """
    used = {CATEGORY_STYLES[name].colour for name in names if name in CATEGORY_STYLES}
    colours = [colour for colour, _ in _NUMBERED if colour not in used] or [GREY]
    markers = [marker for _, marker in _NUMBERED]
    styles: list[Style] = []
    own = 0
    for name in names:
        if name in CATEGORY_STYLES:
            styles.append(CATEGORY_STYLES[name])
            continue
        turn, place = divmod(own, len(colours))
        marker = markers[(place + turn) % len(markers)]
        styles.append(Style(name, colours[place], marker, dashed=turn % 2 == 1))
        own += 1
    return styles


def numbered_style(label: str, number: int) -> Style:
    """The style of the n-th of several equals."""
    colour, marker = _NUMBERED[number % len(_NUMBERED)]
    return Style(label, colour, marker, dashed=number >= len(_NUMBERED))


def ordered_styles(labels: Sequence[str]) -> list[Style]:
    """Styles from light to dark for things that have an order, such as layers."""
    ramp = LinearSegmentedColormap.from_list("normlens_ordered", _ORDERED)
    colours = ramp(np.linspace(0, 1, max(2, len(labels))))
    return [Style(label, to_hex(colour)) for label, colour in zip(labels, colours, strict=False)]
