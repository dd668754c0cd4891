"""Quantities that need the weights alone: singular values of `f` and expansion rates, by layer and head."""

from __future__ import annotations

from typing import get_args

import numpy as np
import torch
import xarray as xr
from torch import Tensor

from normlens.anatomy.description import Anatomy, Site, ValueMap
from normlens.anatomy.weights import head_weights
from normlens.decompose.singular_values import Variant, expansion_rate, singular_values
from normlens.errors import AnatomyError, InputError


def singular_value_table(anatomy: Anatomy) -> xr.DataArray:
    """(site, layer, head, rank): the singular values of each head's `f`, largest first, from the weights."""
    rows = []
    for site in anatomy.sites:
        weights, biases = _value_weights(site)
        output = head_weights(site, torch.float64, torch.device("cpu"))
        rows.append(
            torch.stack(
                [
                    singular_values(weights[h], None if biases is None else biases[h], output[h])
                    for h in range(site.heads)
                ]
            ).numpy()
        )
    return _table(anatomy, rows, ("head", "rank"), "singular_value")


def expansion_rates(anatomy: Anatomy, variant: Variant) -> xr.DataArray:
    """(site, layer): the expansion rate of each layer's `f`, all heads together."""
    if variant not in get_args(Variant):
        raise InputError(f"variant must be one of {', '.join(get_args(Variant))}, got {variant!r}")
    rates = []
    for site in anatomy.sites:
        weights, biases = _value_weights(site)
        value = weights.transpose(0, 1).flatten(1)  # model, heads_width
        bias = None if biases is None else biases.flatten()
        output_bias = site.projection.bias()
        output_bias = None if output_bias is None else output_bias.cpu()
        if variant == "code" and output_bias is not None and value.shape[1] != output_bias.shape[0]:
            raise InputError(
                f"{site} has heads of width {value.shape[1]} in a model of width {output_bias.shape[0]}, so that "
                "the authors' variant (W_V times b_O) does not exist; pass variant='paper'"
            )
        output = head_weights(site, torch.float64, torch.device("cpu")).flatten(0, 1)
        rates.append(np.asarray(expansion_rate(value, bias, output, output_bias, variant)))
    return _table(anatomy, rates, (), "expansion_rate").assign_attrs(variant=variant)


def _value_weights(site: Site) -> tuple[Tensor, Tensor | None]:
    """`W_V` and `b_V` by query head: (head, model, width) and (head, width)."""
    found: ValueMap | None = site.value_map
    if found is None:
        raise AnatomyError(
            f"the values of {site} are no affine function of x (something stands between the value projection and "
            "attention), so they have no singular values"
        )
    group = site.heads // site.kv_heads
    columns = found.columns.cpu().repeat_interleave(group, dim=0)  # head, width
    matrix, bias = found.linear.matrix().cpu(), found.linear.bias()
    bias = None if bias is None else bias.cpu()
    return matrix[:, columns].transpose(0, 1), None if bias is None else bias[columns]


def _table(anatomy: Anatomy, rows: list[np.ndarray], axes: tuple[str, ...], name: str) -> xr.DataArray:
    most = [max(row.shape[axis] for row in rows) for axis in range(len(axes))]
    padded = [np.full(most, np.nan) for _ in rows]
    for whole, row in zip(padded, rows, strict=True):
        whole[tuple(slice(size) for size in row.shape)] = row  # layers may differ in heads or widths
    sites, layers = [site.kind for site in anatomy.sites], [site.layer for site in anatomy.sites]
    coordinates: dict[str, object] = {axis: np.arange(1, size + 1) for axis, size in zip(axes, most, strict=True)}
    if len(anatomy.kinds) == 1:
        return xr.DataArray(np.stack(padded), dims=("layer", *axes), coords={"layer": layers, **coordinates}, name=name)
    coordinates |= {"site": ("place", np.array(sites, dtype=object)), "layer": ("place", layers)}
    return xr.DataArray(np.stack(padded), dims=("place", *axes), coords=coordinates, name=name)
