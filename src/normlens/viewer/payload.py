"""The page's data: one JSON document made from labelled arrays, and nothing that a page must compute twice."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import xarray as xr
from numpy.typing import NDArray

from normlens.errors import InputError
from normlens.viewer.pack import Encoding, pack
from normlens.viewer.text import readable, word_ids

FORMAT = "normlens-view"
VERSION = 1
SITES = ("encoder", "decoder", "cross")
HEAD_MAPS = ("alpha", "af_norm")
LAYER_MAPS = ("attn_w", "attn_n", "attnres_w", "attnres_n", "attnresln_n")
RATIO = "mixing_"

#: The page draws at most this many positions of an axis at once; beyond, it asks for a span.
DRAWN_TOKENS = 512
#: Float16 bytes of one map beyond which it is coded in 8 bits, and beyond which it is left out unless asked for.
COARSE_BYTES = 24_000_000
HEAVY_BYTES = 96_000_000


def payload(
    sites: Mapping[str, xr.Dataset],
    *,
    title: str = "",
    provenance: Mapping[str, Any] | None = None,
    span: tuple[int, int] | None = None,
    heads: bool | None = None,
) -> dict[str, Any]:
    """The JSON document of one analysis: every map, ratio, token and the record of how they were made.

    `sites` maps `encoder`, `decoder` or `cross` to a Dataset with the measures as variables (`alpha`, `attn_n`, ...),
    ratios as `mixing_<measure>`, and the coordinates `query_token`, `key_token` and, where known, `query_word`,
    `key_word` (-1: no word). `span` keeps the positions `start <= i < stop` only; `heads=False` leaves the maps per
    head out, `heads=True` keeps them however heavy, and `None` leaves out only what would make the page too heavy.
    """
    unknown = sorted(set(sites) - set(SITES))
    if unknown or not sites:
        raise InputError(f"A page shows at least one of the sites {', '.join(SITES)}: got {unknown or 'none'}.")
    return {
        "format": FORMAT,
        "version": VERSION,
        "title": _utf8(title),
        "limit": DRAWN_TOKENS,
        "provenance": _plain(dict(provenance or {})),
        "sites": [_site(name, sites[name], span, heads) for name in SITES if name in sites],
    }


def _site(name: str, data: xr.Dataset, span: tuple[int, int] | None, heads: bool | None) -> dict[str, Any]:
    total = {axis: int(data.sizes.get(axis, 0)) for axis in ("query", "key")}
    if span is not None:
        start, stop = span
        longest = max(total.values())
        if not 0 <= start < stop or start >= longest:
            raise InputError(
                f"A span is start < stop within the {longest} positions: got {start} to {stop}. Count positions from 0."
            )
        data = data.isel({axis: slice(start, stop) for axis in ("query", "key") if axis in data.dims})
    omitted = {m: why for m in HEAD_MAPS if m in data and (why := _omitted(2 * data[m].size, heads)) is not None}
    maps = {
        measure: values
        for measure in (*HEAD_MAPS, *LAYER_MAPS)
        if measure not in omitted and (values := _array(data, measure, measure in HEAD_MAPS)) is not None
    }
    ratios = {
        str(variable).removeprefix(RATIO): np.asarray(data[variable].transpose("layer", "query").values)
        for variable in data.data_vars
        if str(variable).startswith(RATIO)
    }
    if not maps and not ratios and not omitted:
        raise InputError(
            f"The {name} site holds no map to draw. "
            f"Ask `analyze` for at least one of: {', '.join(HEAD_MAPS + LAYER_MAPS)}."
        )
    f_norm = np.array(data["f_norm"].transpose("layer", "head", "key").values) if "f_norm" in data else None
    absent = _absent_heads(maps, f_norm)
    for layer, head in absent:
        for values in (
            *(maps[measure] for measure in HEAD_MAPS if measure in maps),
            *([] if f_norm is None else [f_norm]),
        ):
            values[layer, head] = 0.0
    site: dict[str, Any] = {
        "name": name,
        "layers": _numbers(data, "layer"),
        "heads": _numbers(data, "head") if "head" in data.dims else [],
        "query": _axis(data, "query", total["query"]),
        "key": _axis(data, "key" if "key" in data.dims else "query", total["key"] or total["query"]),
        "maps": _pack_maps(maps, f_norm, name),
        "ratios": {m: pack(values) | _sign(values) for m, values in ratios.items()},
        "absent": absent,
        "omitted": omitted,
    }
    if f_norm is not None:
        site["f_norm"] = pack(f_norm)
    return site


def _array(data: xr.Dataset, measure: str, per_head: bool) -> NDArray[Any] | None:
    if measure not in data:
        return None
    dims = ("layer", "head", "query", "key") if per_head else ("layer", "query", "key")
    if set(data[measure].dims) != set(dims):
        raise InputError(
            f"The axes of {measure} must be {' '.join(dims)}: got {' '.join(map(str, data[measure].dims))}."
        )
    return np.array(data[measure].transpose(*dims).values, dtype=np.float32)


def _omitted(bytes_: int, heads: bool | None) -> str | None:
    """Why a map per head is left out, or None where it is kept."""
    if heads is False:
        return "left out on request (heads=False)"
    if heads is None and bytes_ > HEAVY_BYTES:
        return f"left out: {bytes_ / 1e6:,.0f} MB for all heads; choose a span, or keep it with heads=True"
    return None


def _pack_maps(maps: Mapping[str, NDArray[Any]], f_norm: NDArray[Any] | None, site: str) -> dict[str, Any]:
    """Each map packed, or a rule that gives it from another one; a rule is used only where the numbers confirm it."""
    packed: dict[str, Any] = {}
    for measure, values in maps.items():
        if (rule := _rule(measure, values, maps, f_norm, packed, site)) is not None:
            packed[measure] = rule
        else:
            coarse: Encoding = "q8" if 2 * values.size > COARSE_BYTES and values.min(initial=0.0) >= 0 else "f16"
            packed[measure] = pack(values, coarse)
        packed[measure] |= _tops(values) | _sign(values)
    return packed


def _rule(
    measure: str,
    values: NDArray[Any],
    maps: Mapping[str, NDArray[Any]],
    f_norm: NDArray[Any] | None,
    packed: Mapping[str, Any],
    site: str,
) -> dict[str, Any] | None:
    def confirmed(other: Callable[[int], NDArray[Any]]) -> bool:
        # One layer at a time: the whole of a large map would be held several times over.
        top = float(np.abs(values).max(initial=0.0))
        return all(np.allclose(layer, other(i), rtol=1e-4, atol=1e-9 * top) for i, layer in enumerate(values))

    if measure == "af_norm" and "alpha" in packed and f_norm is not None:
        norms, alpha = f_norm, maps["alpha"]
        if confirmed(lambda i: np.abs(alpha[i]) * norms[i, :, None, :]):
            return {"rule": "alpha_f_norm"}
    elif measure == "attnres_w" and "attn_w" in packed and (site == "cross" or values.shape[-2] == values.shape[-1]):
        own = 0.0 if site == "cross" else 0.5 * np.eye(values.shape[-1])
        if confirmed(lambda i: 0.5 * maps["attn_w"][i] + own):
            return {"rule": "half_attn_w" if site == "cross" else "half_attn_w_half_self"}
    elif measure == "attnresln_n" and "attnres_n" in packed and confirmed(lambda i: maps["attnres_n"][i]):
        return {"rule": "same", "of": "attnres_n"}
    return None


def _absent_heads(maps: Mapping[str, NDArray[Any]], f_norm: NDArray[Any] | None) -> list[list[int]]:
    """Where layers differ in their number of heads: those that are not a number throughout, by their places."""
    for values in (*(maps[measure] for measure in HEAD_MAPS if measure in maps), *([] if f_norm is None else [f_norm])):
        missing = np.isnan(values).all(axis=tuple(range(2, values.ndim)))
        return [[int(layer), int(head)] for layer, head in np.argwhere(missing)]
    return []


def _sign(values: NDArray[Any]) -> dict[str, bool]:
    """Says that an array has two sides of zero: a difference of two runs, or differential attention."""
    return {"signed": True} if values.min(initial=0.0) < 0 else {}


def _tops(values: NDArray[Any]) -> dict[str, Any]:
    """Per layer, the largest value and the largest share of a row: the ends of scales that all layers share."""
    tops, shares = [], []
    for layer in values:
        sizes = np.abs(layer)
        sums = sizes.sum(axis=-1)
        most = sizes.max(axis=-1, initial=0.0)
        tops.append(float(most.max(initial=0.0)))
        shares.append(float((most / np.where(sums > 0, sums, 1.0)).max(initial=0.0)))
    return {"top": tops, "top_share": shares}


def _numbers(data: xr.Dataset, dim: str) -> list[int]:
    return [int(number) for number in data[dim].values] if dim in data.coords else list(range(1, data.sizes[dim] + 1))


def _axis(data: xr.Dataset, dim: str, total: int) -> dict[str, Any]:
    size = data.sizes[dim]
    positions = [int(number) for number in data[dim].values] if dim in data.coords else list(range(size))
    label, word = f"{dim}_token", f"{dim}_word"
    tokens = [str(token) for token in data[label].values] if label in data.coords else [str(p) for p in positions]
    if word in data.coords:
        words = [None if _no_word(number) else int(number) for number in data[word].values]
    else:
        words = word_ids(tokens)
    return {
        "tokens": [_utf8(token) for token in tokens],
        "text": readable(tokens),
        "positions": positions,
        "words": words,
        "total": total,
    }


def _no_word(number: Any) -> bool:
    """Does a word coordinate say that its token belongs to no word: -1, NaN or None?"""
    return number is None or number != number or int(number) < 0


def _utf8(token: str) -> str:
    """The token with lone surrogates replaced: JSON for a page is UTF-8 and cannot hold them."""
    return token.encode("utf-8", "replace").decode()


def _plain(value: Any) -> Any:
    """The value in JSON's own types, so that a record of any origin can be written."""
    if isinstance(value, Mapping):
        return {_utf8(str(key)): _plain(item) for key, item in value.items()}
    if isinstance(value, Sequence | set | frozenset) and not isinstance(value, str | bytes):
        return [_plain(item) for item in value]
    if isinstance(value, np.ndarray):
        return _plain(value.tolist())
    if isinstance(value, np.generic):
        return _plain(value.item())
    if isinstance(value, float) and not np.isfinite(value):
        return str(value)
    if isinstance(value, bool | int | float) or value is None:
        return value
    return _utf8(str(value))
