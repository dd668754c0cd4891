"""Rollout: what a stack of layers makes of maps that each describe one layer.

Each layer's map says where the vector of a position comes from, as shares; a position of layer `l` draws on the input as
the product of all maps up to `l` says (Abnar and Zuidema 2020). Rollout of attention, GlobEnc and ALTI differ in the map.
"""

from __future__ import annotations

import numpy as np
import xarray as xr
from jaxtyping import Float

from normlens.errors import InputError


def row_shares(maps: Float[np.ndarray, "*layers query key"]) -> Float[np.ndarray, "*layers query key"]:
    """Each row divided by its sum, signed entries by their magnitude; a row of zeros stays zero."""
    sizes = np.abs(np.asarray(maps, dtype=np.float64))
    totals = sizes.sum(-1, keepdims=True)
    shares: np.ndarray = np.divide(sizes, totals, out=np.zeros_like(sizes), where=totals > 0)
    return shares


def rollout(maps: xr.DataArray) -> xr.DataArray:
    """`R_l = M_l M_(l-1) … M_1`, with `M` the maps (layer, query, key) whose rows were divided by their sums.

    Entry `(l, i, j)` is the share of input position `j` in position `i` after layer `l`, so the last layer holds the
    whole stack; rows sum to 1.

    >>> import numpy as np, xarray as xr
    >>> maps = xr.DataArray(np.full((2, 3, 3), 0.2), dims=("layer", "query", "key"))
    >>> rollout(maps).sum("key").values.round(6).tolist()
    [[1.0, 1.0, 1.0], [1.0, 1.0, 1.0]]
    """
    if set(maps.dims) != {"layer", "query", "key"} or maps.sizes["query"] != maps.sizes["key"]:
        raise InputError(
            f"rollout multiplies maps of a sequence onto itself (layer, query, key): got {dict(maps.sizes)}; name a map of "
            "the encoder or the decoder"
        )
    ordered = maps.sortby("layer") if "layer" in maps.coords else maps
    ordered = ordered.transpose("layer", "query", "key")
    shares = row_shares(ordered.values)
    product = np.empty_like(shares)
    reached = np.eye(shares.shape[-1])
    for layer, share in enumerate(shares):
        reached = share @ reached
        product[layer] = reached
    return ordered.copy(data=product).rename("rollout").assign_attrs(map=str(maps.name))
