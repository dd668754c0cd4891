"""Ways out to other viewers: the arguments that BertViz and CircuitsVis take."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import xarray as xr

from normlens.errors import InputError
from normlens.measures import MEASURES

if TYPE_CHECKING:
    import torch


def to_bertviz(sites: Mapping[str, xr.Dataset], measure: str = "alpha") -> dict[str, Any]:
    """The keyword arguments of `bertviz.head_view` and `model_view`.

    BertViz draws a value as opacity between 0 and 1, so norms are given as shares of their row, per head; weights are
    given as they are. A measure without heads (`attn_n`) becomes one head.

    `head_view(**analysis.to_bertviz("af_norm"))`
    """
    if "cross" not in sites:
        ((_, data),) = sites.items()
        return {"attention": _layers(data, measure), "tokens": _tokens(data, "query")}
    arguments: dict[str, Any] = {f"{name}_attention": _layers(data, measure) for name, data in sites.items()}
    arguments["encoder_tokens"] = _tokens(sites["cross"], "key")
    arguments["decoder_tokens"] = _tokens(sites["cross"], "query")
    return arguments


def to_circuitsvis(data: xr.Dataset, layer: int, measure: str = "alpha") -> dict[str, Any]:
    """The keyword arguments of `circuitsvis.attention.attention_patterns` and `attention_heads` for one layer.

    CircuitsVis has one list of tokens for both axes, so cross-attention cannot be shown there.
    """
    tokens = _tokens(data, "query")
    if tokens != _tokens(data, "key"):
        raise InputError(
            "CircuitsVis draws self-attention only: this site has other tokens on its key axis. Use to_bertviz or show."
        )
    if layer not in data["layer"].values:
        raise InputError(f"The layers of this run are {data['layer'].values.tolist()}: got {layer}.")
    values = _per_head(data, measure).sel(layer=layer)
    return {"tokens": tokens, "attention": np.asarray(values.values, dtype=np.float32)}


def _layers(data: xr.Dataset, measure: str) -> list[torch.Tensor]:
    import torch  # BertViz takes tensors; nothing else here needs them

    values = _per_head(data, measure)
    if not (measure in MEASURES and MEASURES[measure].weights):
        sums = values.sum("key")
        values = values / sums.where(sums > 0, 1.0)
    return [
        torch.from_numpy(np.array(values.sel(layer=layer).values, dtype=np.float32))[None]
        for layer in data["layer"].values
    ]


def _per_head(data: xr.Dataset, measure: str) -> xr.DataArray:
    if measure not in data or not {"layer", "query", "key"} <= set(data[measure].dims):
        maps = [str(name) for name in data.data_vars if {"layer", "query", "key"} <= set(data[name].dims)]
        raise InputError(f"The maps of this run are {', '.join(maps)}: got {measure!r}.")
    values = data[measure]
    if "head" not in values.dims:
        values = values.expand_dims(head=[1])
    return values.transpose("layer", "head", "query", "key")


def _tokens(data: xr.Dataset, axis: str) -> list[str]:
    return [str(token) for token in data[f"{axis}_token"].values]
