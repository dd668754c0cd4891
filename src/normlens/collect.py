"""Gather the numbers of one sequence, layer by layer, into labelled arrays."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

import numpy as np
import xarray as xr
from torch import Tensor

from normlens.analysis import MIXING, PROOF, RESIDUAL
from normlens.measures import MEASURES, SiteValues
from normlens.observe import SiteResult


class RowCollector:
    """The arrays of one sequence as they arrive, one layer of one kind of site at a time."""

    def __init__(self) -> None:
        self._layers: dict[str, dict[int, dict[str, np.ndarray]]] = defaultdict(dict)

    def add_tokens(self, result: SiteResult, row: int) -> None:
        """Take one row of a batch, without its padding."""
        queries, keys = result.query_mask[row], result.key_mask[row]
        arrays = {name: _trim(name, value[row], queries, keys) for name, value in result.values.items()}
        arrays |= {MIXING + name: _array(ratio[row, queries]) for name, ratio in result.mixing.items()}
        arrays |= {RESIDUAL + name: _array(norm[row, queries]) for name, norm in result.residual.items()}
        arrays[PROOF] = np.asarray(float(result.proof[row]))
        self._layers[result.kind][result.layer] = arrays

    def add_words(self, result: SiteResult, row: int, words: SiteValues) -> None:
        """Take one sequence's numbers by word."""
        arrays = {name: _array(value[0]) for name, value in words.values.items()}
        arrays |= {MIXING + name: _array(ratio[0]) for name, ratio in words.mixing.items()}
        arrays |= {RESIDUAL + name: _array(norm[0]) for name, norm in words.residual.items()}
        arrays[PROOF] = np.asarray(float(result.proof[row]))
        self._layers[result.kind][result.layer] = arrays

    def datasets(self, labels: Mapping[str, tuple[Sequence[str], Sequence[str]]]) -> dict[str, xr.Dataset]:
        """One labelled dataset per kind of site; `labels` are the query and key tokens of each kind."""
        return {kind: _dataset(layers, *labels[kind]) for kind, layers in self._layers.items()}


def _dataset(
    layers: Mapping[int, Mapping[str, np.ndarray]], query_tokens: Sequence[str], key_tokens: Sequence[str]
) -> xr.Dataset:
    numbers = sorted(layers)
    variables = {}
    for name in layers[numbers[0]]:
        axes = _axes(name)
        arrays = [layers[number][name] for number in numbers]
        variables[name] = (axes, np.stack(_same_heads(arrays) if "head" in axes else arrays))
    heads = max((array.shape[1] for axes, array in variables.values() if "head" in axes), default=0)
    coordinates: dict[str, object] = {
        "layer": numbers,
        "query": np.arange(len(query_tokens)),
        "key": np.arange(len(key_tokens)),
        "query_token": ("query", np.array(query_tokens, dtype=object)),
        "key_token": ("key", np.array(key_tokens, dtype=object)),
    }
    if heads:
        coordinates["head"] = np.arange(1, heads + 1)
    return xr.Dataset(variables, coords=coordinates)


def _axes(name: str) -> tuple[str, ...]:
    if name == PROOF:
        return ("layer",)
    return MEASURES[name].axes if name in MEASURES else ("layer", "query")


def _same_heads(arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Layers may differ in their number of heads: the missing ones are not a number."""
    most = max(array.shape[0] for array in arrays)
    return [
        np.pad(array, [(0, most - array.shape[0])] + [(0, 0)] * (array.ndim - 1), constant_values=np.nan)
        for array in arrays
    ]


def _trim(name: str, value: Tensor, queries: Tensor, keys: Tensor) -> np.ndarray:
    axes = MEASURES[name].axes[1:]  # without the layer
    if "query" in axes:
        value = value[..., queries, :]
    return _array(value[..., keys])


def _array(tensor: Tensor) -> np.ndarray:
    return tensor.detach().cpu().contiguous().numpy()
