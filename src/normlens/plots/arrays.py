"""What arrives: labelled arrays, checked once and put in the order that the pictures use."""

from __future__ import annotations

from collections.abc import Hashable, Iterable

import numpy as np
import xarray as xr

from normlens.errors import InputError
from normlens.plots.text import printable

#: Longer tokens are cut in a label: their position still tells them apart.
LONGEST_LABEL = 16


def arranged(array: xr.DataArray, dims: tuple[str, ...], function: str) -> xr.DataArray:
    """The array with exactly these dimensions in this order; others must have length 1 and become scalars."""
    if not isinstance(array, xr.DataArray):
        raise InputError(f"{function} draws an xarray.DataArray; {type(array).__name__} arrived.")
    # Not squeezed: a map of one token has length 1 along the very axes that are drawn.
    slim = array.squeeze([dim for dim in array.dims if dim not in dims and array.sizes[dim] == 1])
    if set(slim.dims) != set(dims):
        raise InputError(
            f"{function} draws an array with the axes {', '.join(dims)}; {_sizes(array)} arrived. "
            "Choose one entry of every other axis, as in array.sel(layer=1)."
        )
    if not all(slim.sizes.values()):
        raise InputError(f"{function} draws at least one value along each axis; {_sizes(array)} arrived.")
    if not (np.issubdtype(slim.dtype, np.floating) or np.issubdtype(slim.dtype, np.integer)):
        raise InputError(f"{function} draws real numbers; an array of {slim.dtype} arrived.")
    return slim.transpose(*dims)


def numbers(array: xr.DataArray) -> np.ndarray:
    """The values in float64, infinities as missing."""
    values = np.asarray(array.values, dtype=np.float64)
    return np.where(np.isfinite(values), values, np.nan)


def token_labels(array: xr.DataArray, axis: str) -> list[str]:
    """One drawable label per position of `query` or `key`: its token, or its position where tokens are not known."""
    tokens = array.coords.get(f"{axis}_token")
    if tokens is None:
        return [str(position) for position in numbering(array, axis, first=0)]
    return [printable(str(token), LONGEST_LABEL) for token in np.atleast_1d(tokens.values)]


def numbering(array: xr.DataArray, axis: str, first: int = 1) -> list[int]:
    """The numbers along `layer` or `head` (from 1 where the array does not say)."""
    if axis in array.coords:
        return [int(number) for number in np.atleast_1d(array.coords[axis].values)]
    return list(range(first, first + array.sizes[axis]))


def shares_of_rows(values: np.ndarray) -> np.ndarray:
    """Each row divided by its sum, so that a row says how its total is shared out; an empty row is missing."""
    if np.nanmin(values) < 0:
        raise InputError(
            "row shares need values of at least zero; a difference arrived. Draw it with row_shares=False."
        )
    totals = np.nansum(values, axis=-1, keepdims=True)
    shares: np.ndarray = np.divide(values, totals, out=np.full_like(values, np.nan), where=totals > 0)
    return shares


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
            raise InputError(f'layers is a list of layer numbers or "all"; {layers!r} arrived.')
        return available
    wanted = [int(layer) for layer in layers]
    unknown = [layer for layer in wanted if layer not in available]
    if unknown or not wanted:
        raise InputError(
            f"the layers to draw must be among {', '.join(map(str, available))}; "
            f"{', '.join(map(str, unknown)) or 'none'} arrived."
        )
    return wanted


def _sizes(array: xr.DataArray) -> str:
    sizes: dict[Hashable, int] = dict(array.sizes)
    return ", ".join(f"{dim}={size}" for dim, size in sizes.items()) or "a single number"
