"""The page's data: one JSON document made from an analysis, and nothing that a page must compute twice.

Everything that the page says about a measure or a kind of site comes along with the numbers: the front end has no table
of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import xarray as xr
from numpy.typing import NDArray

from normlens.anatomy.kinds import KINDS, TOWERS, Kind, in_order, is_cross, is_kind, kind_title
from normlens.errors import InputError
from normlens.inputs.tokens import is_special, readable_tokens, sentence, words_by_marks
from normlens.measures.table import HEAD_MAPS, MAPS, MEASURES, MIXING
from normlens.types import Json, JsonMapping
from normlens.viewer.alignment_page import suggested_alignment
from normlens.viewer.packed_arrays import Encoding, pack_layers

if TYPE_CHECKING:
    from normlens.results.analysis import Analysis

FORMAT = "normlens-view"
VERSION = 2

#: Under which names an analysis keeps what was written: it is the page's title, not a line of its record.
TEXTS = ("text", "pair", "target")

#: The page draws at most this many positions of an axis at once; beyond, it asks for a span.
DRAWN_TOKENS = 512
#: A page stays below this: its maps are coded in 8 bits where that is needed, and at last left out per head.
PAGE_BYTES = 8_000_000
#: Bytes of one map in float16 beyond which it is left out per head without being looked at.
HEAVY_BYTES = 200_000_000
#: The forms of maps per layer and of maps per head (None: left out), from the finest to the smallest.
_FORMS: tuple[tuple[Encoding, Encoding | None], ...] = (("f16", "f16"), ("f16", "q8"), ("q8", "q8"), ("q8", None))


def analysis_page(analysis: Analysis, *, span: tuple[int, int] | None = None, heads: bool | None = None) -> Json:
    """The page's data for an analysis; `span` and `heads` as in `page_data`.

    Where it has cross-attention and is shown whole, the page also holds the links that `align` would take from it.
    """
    title, record = _title(analysis), _record(analysis)
    document = page_data(analysis.sites, title=title, provenance=record, span=span, heads=heads)
    links = suggested_alignment(analysis.sites["cross"]) if "cross" in analysis.sites and span is None else None
    return document if links is None else document | {"alignment": plain(links)}


def page_data(
    sites: Mapping[str, xr.Dataset],
    *,
    title: str = "",
    provenance: JsonMapping | None = None,
    span: tuple[int, int] | None = None,
    heads: bool | None = None,
) -> Json:
    """The JSON document of one analysis: every map, ratio, token and the record of how they were made.

    `sites` maps `encoder`, `decoder` or `cross` to a Dataset with the measures as variables (`alpha`, `attn_n`, ...),
    ratios as `mixing_<measure>`, and the coordinates `query_token`, `key_token` and, where known, `query_word`,
    `key_word` (-1: no word). `span` keeps the positions `start <= i < stop` only; `heads=False` leaves the maps per
    head out, `heads=True` keeps them however heavy, and `None` leaves out only what would make the page too heavy.
    """
    unknown = sorted(name for name in sites if not is_kind(name))
    if unknown or not sites:
        raise InputError(f"sites must be among {', '.join((*KINDS, *TOWERS))}, got {unknown or 'none'}")
    read = [_SiteMaps.read(name, sites[name], span, heads) for name in in_order(sites)]
    form = _form_that_fits(read, heads)
    return {
        "format": FORMAT,
        "version": VERSION,
        "title": utf8(title),
        "limit": DRAWN_TOKENS,
        "provenance": plain(dict(provenance or {})),
        "measures": {name: _measure_text(name) for name in (*HEAD_MAPS, *MAPS)},
        "sites": [site.packed(*form) for site in read],
    }


def _measure_text(name: str) -> Json:
    """The page's name of a measure: the papers' name, or the equation of one that has none but a description."""
    measure = MEASURES[name]
    return {
        "name": measure.title if measure.is_map else f"{measure.title.capitalize()} {measure.equation}",
        "short": measure.title if measure.is_map else measure.equation,
        "says": measure.description,
        "family": "weight" if measure.is_weight else "norm",
        "perHead": "head" in measure.axes,
    }


def _title(analysis: Analysis) -> str:
    cross, first = analysis.sites.get("cross"), next(iter(analysis.sites.values()))
    if cross is None:
        return title_of(analysis.provenance, _from_tokens(first, "key"))
    return title_of(analysis.provenance, _from_tokens(cross, "key"), _from_tokens(cross, "query"))


def title_of(provenance: JsonMapping, source: str, target: str | None = None) -> str:
    """The text as it was written, or as it was put together again from its tokens; with a target, `source → target`."""
    given = [provenance.get(name) or "" for name in TEXTS]
    texts = [" ".join((text if isinstance(text, str) else " ".join(map(str, text))).split()) for text in given]
    source = " ".join(text for text in texts[:2] if text) or source
    return source if target is None else f"{source} → {texts[2] or target}"


def _from_tokens(data: xr.Dataset, axis: str) -> str:
    named = axis if f"{axis}_token" in data.coords else "query"
    return sentence(words_of_axis(data, named))


def words_of_axis(data: xr.Dataset | xr.DataArray, axis: str) -> list[str]:
    """The tokens of an axis, with one word for all patches of an image and for all frames of sound."""
    tokens = [str(token) for token in data[f"{axis}_token"].values]
    if f"{axis}_modality" not in data.coords:
        return tokens
    found: list[str] = []
    for token, modality in zip(tokens, map(str, data[f"{axis}_modality"].values), strict=True):
        word = token if modality == "text" else "" if modality == "special" else f"▁({modality})"
        if word and (modality == "text" or word not in found[-1:]):
            found.append(word)
    return found


def _record(analysis: Analysis) -> Json:
    kept = {name: value for name, value in analysis.provenance.items() if name not in TEXTS and value is not None}
    return flat_record(kept, {"largest proof error": f"{analysis.max_proof_error:.1e}"})


def flat_record(provenance: JsonMapping, more: JsonMapping) -> Json:
    """The provenance, one line for each item: model, `more`, versions, then the rest."""
    rest = dict(provenance)
    model, versions = dict(rest.pop("model", {})), dict(rest.pop("versions", {}))
    return {"model": model.pop("name", "?"), **model, **more, **versions, **rest}


@dataclass(frozen=True)
class _SiteMaps:
    """The arrays of one site: arrays that are stored, and rules that give a map from another one."""

    name: Kind
    about: Json  # everything of the site that is not packed
    maps: dict[str, NDArray[Any]]
    rules: dict[str, Json]  # only where the numbers confirm them
    ratios: dict[str, NDArray[Any]]
    f_norm: NDArray[Any] | None

    @classmethod
    def read(cls, name: Kind, data: xr.Dataset, span: tuple[int, int] | None, heads: bool | None) -> _SiteMaps:
        total = {axis: int(data.sizes.get(axis, 0)) for axis in ("query", "key")}
        if span is not None:
            data = _within(data, span, max(total.values()))
        omitted = {m: why for m in HEAD_MAPS if m in data and (why := _omitted(2 * data[m].size, heads)) is not None}
        maps = {
            measure: values
            for measure in (*HEAD_MAPS, *MAPS)
            if measure not in omitted and (values := _array(data, measure, measure in HEAD_MAPS)) is not None
        }
        ratios = {
            str(variable).removeprefix(MIXING): np.asarray(data[variable].transpose("layer", "query").values)
            for variable in data.data_vars
            if str(variable).startswith(MIXING)
        }
        if not maps and not ratios and not omitted:
            raise InputError(
                f"the {name} site holds no map to draw; ask analyze() for at least one of {', '.join(HEAD_MAPS + MAPS)}"
            )
        f_norm = np.array(data["f_norm"].transpose("layer", "head", "key").values) if "f_norm" in data else None
        by_head = [maps[m] for m in HEAD_MAPS if m in maps] + ([] if f_norm is None else [f_norm])
        absent = _absent_heads(by_head)
        for layer, head in absent:
            for values in by_head:
                values[layer, head] = 0.0
        about = {
            "name": name,
            "title": kind_title(name),
            "layers": numbers_of(data, "layer"),
            "heads": numbers_of(data, "head") if "head" in data.dims else [],
            "query": axis_data(data, "query", total["query"]),
            "key": axis_data(data, "key" if "key" in data.dims else "query", total["key"] or total["query"]),
            "absent": absent,
            "omitted": omitted,
        }
        return cls(name, about, maps, _rules(maps, f_norm, name), ratios, f_norm)

    def form(self, measure: str, layers: Encoding, heads: Encoding | None) -> Encoding | None:
        """The form in which a map is stored; None: not at all."""
        wanted = heads if measure in HEAD_MAPS else layers
        return "f16" if wanted == "q8" and self.maps[measure].min(initial=0.0) < 0 else wanted

    def estimated_bytes(self, layers: Encoding, heads: Encoding | None) -> float:
        """The size of the stored maps, from the first, the middle and the last layer."""
        size = 0.0
        for measure, values in self.maps.items():
            form = self.form(measure, layers, heads)
            if measure not in self.rules and form is not None and len(values):
                some = values[sorted({0, len(values) // 2, len(values) - 1})]
                packed = pack_layers(some, form, own_apart=self.own_apart(measure))
                size += len(values) * float(np.mean([len(text) for text in packed["data"]]))
        return size

    def own_apart(self, measure: str) -> bool:
        """Does the map have an own part on its diagonal, which stands apart from the rest?"""
        shape = self.maps[measure].shape
        return not is_cross(self.name) and measure not in HEAD_MAPS and shape[-1] == shape[-2]

    def packed(self, layers: Encoding, heads: Encoding | None) -> Json:
        """The site in the page's form."""
        maps: Json = {}
        omitted = dict(self.about["omitted"])
        for measure, values in self.maps.items():
            form = self.form(measure, layers, heads)
            if form is None:
                omitted[measure] = f"left out so that the page stays below {PAGE_BYTES / 1e6:.0f} MB; {_REMEDY}"
                continue
            stored = self.rules.get(measure) or pack_layers(values, form, own_apart=self.own_apart(measure))
            maps[measure] = stored | _tops(values, self_attention=not is_cross(self.name)) | _sign(values)
        site = self.about | {
            "maps": maps,
            "ratios": {m: pack_layers(values) | _sign(values) for m, values in self.ratios.items()},
            "omitted": omitted,
        }
        return site if self.f_norm is None else site | {"f_norm": pack_layers(self.f_norm)}


def _form_that_fits(sites: Sequence[_SiteMaps], heads: bool | None) -> tuple[Encoding, Encoding | None]:
    """The finest form in which the page stays below its limit, or the smallest that there is."""
    allowed = [form for form in _FORMS if heads is None or form[1] is not None]
    for form in allowed[:-1]:
        if sum(site.estimated_bytes(*form) for site in sites) < 0.9 * PAGE_BYTES:
            return form
    return allowed[-1]


def _within(data: xr.Dataset, span: tuple[int, int], longest: int) -> xr.Dataset:
    start, stop = span
    if not 0 <= start < stop or start >= longest:
        raise InputError(
            f"a span must be start < stop within the {longest} positions, got {start} to {stop}; positions count from 0"
        )
    return data.isel({axis: slice(start, stop) for axis in ("query", "key") if axis in data.dims})


def _array(data: xr.Dataset, measure: str, per_head: bool) -> NDArray[Any] | None:
    if measure not in data:
        return None
    dims = ("layer", "head", "query", "key") if per_head else ("layer", "query", "key")
    if set(data[measure].dims) != set(dims):
        raise InputError(f"{measure} must have the axes {' '.join(dims)}, got {' '.join(map(str, data[measure].dims))}")
    return np.array(data[measure].transpose(*dims).values, dtype=np.float32)


_REMEDY = "choose a span, or keep it with heads=True"


def _omitted(bytes_: int, heads: bool | None) -> str | None:
    """The reason why a map per head is left out, or None where it is kept."""
    if heads is False:
        return "left out on request (heads=False)"
    if heads is None and bytes_ > HEAVY_BYTES:
        return f"left out: {bytes_ / 1e6:,.0f} MB for all heads; {_REMEDY}"
    return None


def _rules(maps: Mapping[str, NDArray[Any]], f_norm: NDArray[Any] | None, site: str) -> dict[str, Json]:
    """The maps that follow from another one, with the rule; a rule is used only where the numbers confirm it."""

    def confirmed(values: NDArray[Any], other: Callable[[int], NDArray[Any]]) -> bool:
        # One layer at a time: the whole of a large map would be held several times over.
        top = float(np.abs(values).max(initial=0.0))
        return all(np.allclose(layer, other(i), rtol=1e-4, atol=1e-9 * top) for i, layer in enumerate(values))

    rules: dict[str, Json] = {}
    if {"af_norm", "alpha"} <= set(maps) and f_norm is not None:
        norms, alpha = f_norm, maps["alpha"]
        if confirmed(maps["af_norm"], lambda i: np.abs(alpha[i]) * norms[i, :, None, :]):
            rules["af_norm"] = {"rule": "alpha_f_norm"}
    if {"attnres_w", "attn_w"} <= set(maps):
        weights, values = maps["attn_w"], maps["attnres_w"]
        if is_cross(site) or values.shape[-2] == values.shape[-1]:
            own = 0.0 if is_cross(site) else 0.5 * np.eye(values.shape[-1])
            if confirmed(values, lambda i: 0.5 * weights[i] + own):
                rules["attnres_w"] = {"rule": "half_attn_w" if is_cross(site) else "half_attn_w_half_self"}
    if {"attnresln_n", "attnres_n"} <= set(maps) and confirmed(maps["attnresln_n"], lambda i: maps["attnres_n"][i]):
        rules["attnresln_n"] = {"rule": "same", "of": "attnres_n"}
    return rules


def _absent_heads(by_head: Sequence[NDArray[Any]]) -> list[list[int]]:
    """Absent heads, where layers differ in their number: those that are not a number throughout, by their places."""
    if not by_head:
        return []
    missing = np.isnan(by_head[0]).all(axis=tuple(range(2, by_head[0].ndim)))
    return [[int(layer), int(head)] for layer, head in np.argwhere(missing)]


def _sign(values: NDArray[Any]) -> dict[str, bool]:
    """Says that an array has two sides of zero: a difference of two runs, or differential attention."""
    return {"signed": True} if values.min(initial=0.0) < 0 else {}


def _tops(values: NDArray[Any], *, self_attention: bool) -> Json:
    """Per layer, the largest value and the largest share of a row: the ends of scales that all layers share.

    Where a position is among its own keys, also without it: `top_rest` and `top_rest_share`.
    """
    apart = self_attention and values.shape[-1] == values.shape[-2]
    rest = ~np.eye(values.shape[-1], dtype=bool) if apart else np.ones(values.shape[-2:], dtype=bool)
    found: dict[str, list[float]] = {"top": [], "top_share": [], "top_rest": [], "top_rest_share": []}
    for layer in values:
        sizes = np.abs(layer)
        sums = sizes.sum(axis=-1)
        for name, kept in (("top", sizes), ("top_rest", sizes * rest)):
            most = kept.max(axis=-1, initial=0.0)
            found[name].append(float(most.max(initial=0.0)))
            found[f"{name}_share"].append(float((most / np.where(sums > 0, sums, 1.0)).max(initial=0.0)))
    return found if apart else {name: found[name] for name in ("top", "top_share")}


def numbers_of(data: xr.Dataset | xr.DataArray, dim: str) -> list[int]:
    """The numbers along `layer` or `head`, from 1 where the data do not say."""
    return [int(number) for number in data[dim].values] if dim in data.coords else list(range(1, data.sizes[dim] + 1))


def axis_data(data: xr.Dataset | xr.DataArray, dim: str, total: int) -> Json:
    """An axis in the page's form: tokens raw and readable, positions and words."""
    size = data.sizes[dim]
    positions = [int(number) for number in data[dim].values] if dim in data.coords else list(range(size))
    label, word = f"{dim}_token", f"{dim}_word"
    tokens = [str(token) for token in data[label].values] if label in data.coords else [str(p) for p in positions]
    if word in data.coords:
        words = [None if _no_word(number) else int(number) for number in data[word].values]
    else:
        by_marks = words_by_marks(tokens, {token for token in tokens if is_special(token)})
        words = [None if is_special(token) else word for token, word in zip(tokens, by_marks, strict=True)]
    found: Json = {
        "tokens": [utf8(token) for token in tokens],
        "text": readable_tokens(tokens),
        "positions": positions,
        "words": words,
        "total": total,
    }
    if f"{dim}_row" in data.coords and f"{dim}_column" in data.coords:
        places = zip(data[f"{dim}_row"].values.tolist(), data[f"{dim}_column"].values.tolist(), strict=True)
        found["cells"] = [[row, column] if row >= 0 else None for row, column in places]
    return found


def _no_word(number: Any) -> bool:
    """Does a word coordinate say that its token belongs to no word: -1, NaN or None?"""
    return number is None or number != number or int(number) < 0


def utf8(token: str) -> str:
    """The token with lone surrogates replaced: JSON for a page is UTF-8 and cannot hold them."""
    return token.encode("utf-8", "replace").decode()


def plain(value: Any) -> Any:
    """The value in JSON's own types, so that a record of any origin can be written."""
    if isinstance(value, Mapping):
        return {utf8(str(key)): plain(item) for key, item in value.items()}
    if isinstance(value, Sequence | set | frozenset) and not isinstance(value, str | bytes):
        return [plain(item) for item in value]
    if isinstance(value, np.ndarray):
        return plain(value.tolist())
    if isinstance(value, np.generic):
        return plain(value.item())
    if isinstance(value, float) and not np.isfinite(value):
        return str(value)
    if isinstance(value, bool | int | float) or value is None:
        return value
    return utf8(str(value))
