"""Labelled arrays for figures: checked once, put in the order of the axes, and named."""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from typing import Literal

import numpy as np
import xarray as xr

from normlens.errors import InputError
from normlens.inputs.tokens import is_byte_level, readable_tokens
from normlens.measures.table import MEASURES
from normlens.plots.text import printable

#: How what a position gives to itself is drawn: like the rest, in grey and outside the scale, or not at all.
Diagonal = Literal["shown", "faded", "hidden"]

#: Longer tokens are cut in a label: their position still tells them apart.
LONGEST_LABEL = 16


def arranged(array: xr.DataArray, dims: tuple[str, ...], function: str) -> xr.DataArray:
    """The array with exactly these dimensions in this order; others must have length 1 and become scalars."""
    if not isinstance(array, xr.DataArray):
        raise InputError(f"{function}() needs an xarray.DataArray, got {type(array).__name__}")
    # Not squeezed: a map of one token has length 1 along the very axes that are drawn.
    slim = array.squeeze([dim for dim in array.dims if dim not in dims and array.sizes[dim] == 1])
    if set(slim.dims) != set(dims):
        raise InputError(
            f"{function}() needs the axes {', '.join(dims)}, got {_sizes(array)}; choose one entry of every other "
            "axis, as in array.sel(layer=1)"
        )
    if not all(slim.sizes.values()):
        raise InputError(f"{function}() needs at least one value along each axis, got {_sizes(array)}")
    if not (np.issubdtype(slim.dtype, np.floating) or np.issubdtype(slim.dtype, np.integer)):
        raise InputError(f"{function}() needs real numbers, got {slim.dtype}")
    return slim.transpose(*dims)


def numbers(array: xr.DataArray) -> np.ndarray:
    """The values in float64, infinities as missing."""
    values = np.asarray(array.values, dtype=np.float64)
    return np.where(np.isfinite(values), values, np.nan)


def token_labels(array: xr.DataArray, axis: str) -> list[str]:
    """One drawable label per position of `query` or `key`: its token, or its position where tokens are not known."""
    coordinate = array.coords.get(f"{axis}_token")
    if coordinate is None:
        return [str(position) for position in numbering(array, axis, first=0)]
    tokens = [str(token) for token in np.atleast_1d(coordinate.values)]
    # Bytes in a tokenizer's own alphabet say nothing to a reader; the marks of other tokenizers tell pieces apart.
    return [printable(text, LONGEST_LABEL) for text in (readable_tokens(tokens) if is_byte_level(tokens) else tokens)]


def numbering(array: xr.DataArray, axis: str, first: int = 1) -> list[int]:
    """The numbers along `layer` or `head` (from 1 where the array does not say)."""
    if axis in array.coords:
        return [int(number) for number in np.atleast_1d(array.coords[axis].values)]
    return list(range(first, first + array.sizes[axis]))


def shares_of_rows(values: np.ndarray) -> np.ndarray:
    """Each row divided by its sum, so that a row says how its total is shared out; an empty row is missing."""
    if np.nanmin(values) < 0:
        raise InputError("row shares need values of at least zero, got a difference; pass row_shares=False")
    totals = np.nansum(values, axis=-1, keepdims=True)
    shares: np.ndarray = np.divide(values, totals, out=np.full_like(values, np.nan), where=totals > 0)
    return shares


def without_diagonal(values: np.ndarray, diagonal: Diagonal, function: str) -> tuple[np.ndarray, np.ndarray | None]:
    """The map without what positions give to themselves, which is missing there, and that part alone.

    Where the own part is drawn like the rest, the map stays as it is and there is nothing apart.
    """
    if diagonal not in ("shown", "faded", "hidden"):
        raise InputError(f"diagonal must be shown, faded or hidden, got {diagonal!r}")
    if diagonal == "shown":
        return values, None
    if values.shape[-1] != values.shape[-2]:
        raise InputError(
            f"{function}() got {values.shape[-2]} queries and {values.shape[-1]} keys, which are not the same "
            'tokens and have no diagonal; pass diagonal="shown"'
        )
    own = np.eye(values.shape[-1], dtype=bool)
    if own.size == 1 or not np.isfinite(np.where(own, np.nan, values)).any():
        return values, None  # nothing but self parts: there is no rest to see
    return np.where(own, np.nan, values), np.where(own, values, np.nan)


def chosen_layers(available: list[int], layers: Iterable[int] | str | None, most: int) -> list[int]:
    """The layers to draw: all that are named, `"all"`, or at most `most` of them, evenly spaced with both ends.

    >>> chosen_layers(list(range(1, 13)), None, most=6)
    [1, 3, 5, 8, 10, 12]
    """
    if layers is None:
        places = np.linspace(0, len(available) - 1, min(most, len(available)))
        return [available[int(place + 0.5)] for place in places]
    if isinstance(layers, str):
        if layers != "all":
            raise InputError(f'layers must be a list of layer numbers or "all", got {layers!r}')
        return available
    wanted = [int(layer) for layer in layers]
    unknown = [layer for layer in wanted if layer not in available]
    if unknown or not wanted:
        raise InputError(
            f"layers must be among {', '.join(map(str, available))}, got {', '.join(map(str, unknown)) or 'none'}"
        )
    return wanted


def title_of(measure: object) -> str:
    """The papers' name of a measure; a name that is not in the table (an array of the caller's own) is its own."""
    return MEASURES[str(measure)].title if str(measure) in MEASURES else str(measure or "value")


def is_weight(measure: object) -> bool:
    """Return True for a measure of attention weights, which are shares, not norms."""
    return str(measure) in MEASURES and MEASURES[str(measure)].is_weight


def colour_bar_label(
    measure: object, between: str, *, below_zero: bool, sqrt: bool, row_shares: bool = False, cross: bool = False
) -> str:
    """The label of a colour bar: name, formula, and what was done to the values.

    >>> colour_bar_label("attn_n", ": ", below_zero=False, sqrt=False, row_shares=True)
    'ATTN-N: ‖Σ αf(x)‖ / row sum'
    """
    known = MEASURES.get(str(measure))
    # A norm below zero can only be a difference of two; weights may be negative by themselves (differential attention).
    difference = below_zero and known is not None and not known.is_weight and not known.signed
    name = ("difference in " if difference else "") + title_of(measure) + (", square-root scale" if sqrt else "")
    equation = "" if known is None else (known.cross_equation if cross else None) or known.equation
    formula = " / ".join(part for part in (equation, "row sum" if row_shares else "") if part)
    return f"{name}{between}{formula}" if formula else name


def _sizes(array: xr.DataArray) -> str:
    sizes: dict[Hashable, int] = dict(array.sizes)
    return ", ".join(f"{dim}={size}" for dim, size in sizes.items()) or "a single number"
