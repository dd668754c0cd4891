"""The only home of colours: maps of equal perceived steps with their scales, and how a category or a series is drawn.

Colours of categories are those of Okabe and Ito, which stay apart under every common kind of colour blindness; markers
differ too.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
from matplotlib.colors import Colormap, FuncNorm, ListedColormap, Normalize, PowerNorm, to_hex, to_rgb

from normlens.errors import InputError

#: Values that are missing: a warm grey, unlike any step of the bluish ramp.
MISSING = "#d8d2c8"

# Lightness falls from one end to the other (so it survives print in grey) and no hue of the ramp relies on red against
# green; blue against orange is the pair that all common kinds of colour blindness keep apart.
BLUE_RAMP = ("#ffffff", "#c9e3ee", "#6fb0d2", "#2a6fae", "#173c78", "#0a1638")
ORANGE_RAMP = ("#ffffff", "#f9dcb8", "#eda55d", "#c4661f", "#7f3a11", "#3a1707")

#: For lines that have an order, such as layers: lightness falls, and hues change enough to follow one line.
ORDERED_RAMP = ("#e6b000", "#4aa564", "#0f7f95", "#0a4f8a", "#2a1650")

#: Okabe and Ito's colours, by name; the yellow is darkened so that a thin line of it can be seen on white.
BLUE, VERMILION, GREEN, PURPLE = "#0072b2", "#d55e00", "#009e73", "#cc79a7"
YELLOW, ORANGE, SKY, GREY, BLACK = "#f0c000", "#e69f00", "#56b4e9", "#7a7a7a", "#1f1f1f"
PALE = "#dcdcdc"


@dataclass(frozen=True)
class Style:
    """How a category, a model or a measure is drawn, and what the legend calls it."""

    label: str
    colour: str
    marker: str = "o"
    dashed: bool = False


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
    """The styles of categories side by side: known ones as everywhere, each of the caller's own unlike any of them."""
    known = {style.colour for style in CATEGORY_STYLES.values()}
    spare = [(colour, marker) for colour, marker in _NUMBERED if colour not in known]
    styles, own = [], 0
    for name in names:
        if name in CATEGORY_STYLES:
            styles.append(CATEGORY_STYLES[name])
        else:
            colour, marker = spare[own % len(spare)]
            styles.append(Style(name, colour, marker, dashed=own >= len(spare)))
            own += 1
    return styles


def numbered_style(label: str, number: int) -> Style:
    """The style of the n-th of several equals."""
    colour, marker = _NUMBERED[number % len(_NUMBERED)]
    return Style(label, colour, marker, dashed=number >= len(_NUMBERED))


def ordered_styles(labels: Sequence[str]) -> list[Style]:
    """Styles from light to dark for things that have an order, such as layers."""
    ramp = _even_ramp(ORDERED_RAMP, max(2, len(labels)))
    return [Style(label, to_hex(colour)) for label, colour in zip(labels, ramp, strict=False)]


def _oklab(rgb: np.ndarray) -> np.ndarray:
    """sRGB in 0..1 to OKLab, a space in which equal distances look about equal."""
    linear = np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4)
    cones = linear @ np.array(
        [[0.4122214708, 0.2119034982, 0.0883024619],
         [0.5363325363, 0.6806995451, 0.2817188376],
         [0.0514459929, 0.1073969566, 0.6299787005]]
    )  # fmt: skip
    lab: np.ndarray = np.cbrt(cones) @ np.array(
        [[0.2104542553, 1.9779984951, 0.0259040371],
         [0.7936177850, -2.4285922050, 0.7827717662],
         [-0.0040720468, 0.4505937099, -0.8086757660]]
    )  # fmt: skip
    return lab


def _even_ramp(colours: Sequence[str], steps: int) -> np.ndarray:
    """`steps` colours along the polyline through `colours`, equally far apart in OKLab."""
    corners = np.array([to_rgb(colour) for colour in colours])
    fine = np.linspace(0, len(corners) - 1, 4096)
    path = np.stack([np.interp(fine, np.arange(len(corners)), corners[:, channel]) for channel in range(3)], axis=1)
    travelled = np.concatenate([[0.0], np.cumsum(np.linalg.norm(np.diff(_oklab(path), axis=0), axis=1))])
    wanted = np.linspace(0, travelled[-1], steps)
    return np.stack([np.interp(wanted, travelled, path[:, channel]) for channel in range(3)], axis=1)


@cache
def sequential() -> Colormap:
    """White to dark blue in equal steps: nothing is white, much is dark."""
    return ListedColormap(_even_ramp(BLUE_RAMP, 256), name="normlens").with_extremes(bad=MISSING)


@cache
def diverging() -> Colormap:
    """Dark orange, white, dark blue: for differences, white at zero."""
    arms = [_even_ramp(ORANGE_RAMP[:-1], 128)[::-1], _even_ramp(BLUE_RAMP[:-1], 128)]
    return ListedColormap(np.concatenate(arms), name="normlens_difference").with_extremes(bad=MISSING)


@cache
def greys() -> Colormap:
    """Pale to middle grey, never as light as paper nor as dark as ink; what is missing is not drawn at all."""
    return ListedColormap(_even_ramp(("#f0f0f0", "#8c8c8c"), 256), name="normlens_own").with_extremes(bad=(0, 0, 0, 0))


@dataclass(frozen=True)
class Scale:
    """The values at the two ends of a colour bar; below zero only where the data are differences.

    On a `root` scale a colour stands for the square root of the value, on either side of zero: small values are told
    apart better. A `neutral` one is grey: for what stands apart from the others' scale.
    """

    low: float
    high: float
    clipped: bool = False
    root: bool = False
    neutral: bool = False

    @property
    def norm(self) -> Normalize:
        if not self.root:
            return Normalize(self.low, self.high)
        if self.low < 0:
            return FuncNorm((_signed_root, _signed_square), self.low, self.high)
        return PowerNorm(0.5, self.low, self.high)

    @property
    def colormap(self) -> Colormap:
        return greys() if self.neutral else diverging() if self.low < 0 else sequential()

    def ticks(self, most: int) -> list[float]:
        """At most `most` ticks from end to end, zero among them, in the steps that are shortest to write."""
        if self.root:
            shares = (0.0, 0.25, 1.0) if most < 5 else (0.0, 0.04, 0.25, 0.5, 1.0)
            if self.low < 0:
                shares = (-1.0, 0.0, 1.0) if most < 5 else (-1.0, -0.25, 0.0, 0.25, 1.0)
            return [self.high * share for share in shares]
        counts = [count for count in (4, 5, 3, 2) if count < most or count == 2]
        if self.low < 0:
            counts = [count for count in counts if count % 2 == 0]
        count = min(counts, key=lambda count: len(short((self.high - self.low) / count)))
        step = (self.high - self.low) / count
        return [self.low + step * place for place in range(count + 1)]


def _signed_root(values: np.ndarray) -> np.ndarray:
    roots: np.ndarray = np.copysign(np.sqrt(np.abs(values)), values)
    return roots


def _signed_square(roots: np.ndarray) -> np.ndarray:
    values: np.ndarray = np.copysign(np.square(roots), roots)
    return values


def scale_of(values: Sequence[np.ndarray], high: float | None = None, root: bool = False) -> Scale:
    """The scale from 0 to the largest of all the values, rounded up to a number that divides well; or to `high`.

    Differences, and measures with a sign, have values below zero: their scale is symmetric about zero.
    """
    finite = np.concatenate([np.ravel(part)[np.isfinite(np.ravel(part))] for part in values])
    if finite.size == 0:
        raise InputError("a picture needs at least one finite value; all that arrived are missing. Check the analysis.")
    if high is not None and not (math.isfinite(high) and high > 0):
        raise InputError(
            f"the upper end of a scale must be a positive number; {high!r} arrived. Leave it out for the maximum."
        )
    reach = float(np.abs(finite).max())
    end = round_up(reach) if high is None else float(high)
    differences = float(finite.min()) < 0
    return Scale(-end if differences else 0.0, end, clipped=reach > end * (1 + 1e-6), root=root)


def own_scale(values: np.ndarray, root: bool = False) -> Scale:
    """The scale of one map alone: its end is exactly its largest value."""
    finite = np.abs(values[np.isfinite(values)])
    reach = float(finite.max()) if finite.size else 0.0
    return Scale(0.0, 1.0, root=root) if reach == 0 else scale_of([values], reach, root)


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
    """A tick's number in at most three significant digits, with a real minus sign."""
    return f"{value:.3g}".replace("-", "−")
