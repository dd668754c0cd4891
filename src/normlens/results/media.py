"""Results on images and sound: an axis of positions as rows and columns of an image, or as stretches of time."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import xarray as xr

from normlens.errors import InputError


def has_image(array: xr.DataArray, axis: str = "key") -> bool:
    """Return True if positions of this axis are patches with rows and columns."""
    return axis in array.dims and f"{axis}_row" in array.coords and f"{axis}_left" in array.coords


def has_sound(array: xr.DataArray, axis: str = "key") -> bool:
    """Return True if positions of this axis are stretches of time."""
    return axis in array.dims and f"{axis}_start" in array.coords


def image_map(array: xr.DataArray, axis: str = "key", image: int = 0) -> xr.DataArray:
    """Lay the numbers of an axis of positions out as the patches of an image.

    Args:
        array: Numbers with this axis last, such as terms (key) or maps (layer, query, key).
        axis: `key` or `query`.
        image: The image of the row, from 0.

    Returns:
        The numbers with `row` and `column` in place of the axis. Special positions have no place in it.
    """
    if not has_image(array, axis):
        raise InputError(f"the {axis} positions of this result are no patches of an image with known rows and columns")
    images, rows, columns = (array[f"{axis}_{name}"].values for name in ("image", "row", "column"))
    chosen = (images == image) & (rows >= 0)
    if not chosen.any():
        raise InputError(f"image must be from 0 to {int(images.max())}, got {image}")
    moved = array.transpose(..., axis)
    shape = (int(rows[chosen].max()) + 1, int(columns[chosen].max()) + 1)
    values = np.full((*moved.shape[:-1], *shape), np.nan)
    values[..., rows[chosen], columns[chosen]] = moved.values[..., chosen]
    kept = {str(name): c for name, c in moved.coords.items() if axis not in c.dims}
    coords = {**kept, "row": np.arange(shape[0]), "column": np.arange(shape[1])}
    return xr.DataArray(values, dims=(*moved.dims[:-1], "row", "column"), coords=coords, name=array.name)


def site_with_places(sites: Mapping[str, xr.DataArray], site: str | None, *, sound: bool = False) -> str:
    """The kind of site whose keys are patches (or stretches of sound): the one that was named, or the first."""
    found = [name for name, array in sites.items() if (has_sound(array) if sound else has_image(array))]
    if site is not None:
        if site not in found:
            raise InputError(f"site must be one with positions of {'sound' if sound else 'an image'}, got {site!r}")
        return site
    if not found:
        raise InputError(f"this result has no positions of {'sound' if sound else 'an image'} with known places")
    return found[0]
