"""Analysis: labelled arrays, tokens and provenance of one analysed sequence. Frozen; holds no model."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import xarray as xr
from jaxtyping import Float

from normlens.anatomy.kinds import Kind, is_cross, of_image
from normlens.errors import AnatomyError, InputError
from normlens.inputs.places import coordinates
from normlens.measures.table import MAPS, MEASURES, MIXING, PROOF, RESIDUAL, no_self_part
from normlens.provenance import references
from normlens.results.base import Result, array_rows, tidy
from normlens.types import Json, JsonMapping

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from rich.console import Console, RenderableType
    from torch import Tensor

    from normlens.decompose.devices import HostCopies
    from normlens.inputs.tokens import Tokens
    from normlens.measures.run import SiteResult
    from normlens.viewer.display import View


@dataclass(frozen=True, eq=False)
class Analysis(Result["SiteAnalysis"]):
    """The analysis of one sequence by one model.

    >>> import normlens
    >>> analysis = normlens.load().analyze("The cat sat on the mat.", measures=["attnresln_n"])
    >>> analysis["attnresln_n"].dims
    ('layer', 'query', 'key')
    """

    sites: Mapping[str, xr.Dataset]
    provenance: JsonMapping

    def __post_init__(self) -> None:
        for dataset in self.sites.values():
            for variable in dataset.variables.values():
                if isinstance(variable.values, np.ndarray):
                    variable.values.flags.writeable = False
        object.__setattr__(self, "sites", MappingProxyType(dict(self.sites)))
        object.__setattr__(self, "provenance", MappingProxyType(dict(self.provenance)))

    # ---- reading -------------------------------------------------------------------------------------------------

    def site(self, kind: str) -> SiteAnalysis:
        """Return the results of one kind of site: `encoder`, `decoder` or `cross`."""
        return SiteAnalysis(self._checked_kind(kind), self.sites[kind])

    @property
    def tokens(self) -> list[str]:
        """The tokens of the text; of an encoder-decoder model, those of the source."""
        return self.site(next(iter(self.sites))).key_tokens

    def mixing_ratio(self, name: str = "attnresln_n") -> xr.DataArray:
        """The mixing ratio of a map (layer, query), for models with one kind of site."""
        return self._only.mixing_ratio(name)

    def rollout(self, name: str = "attnresln_n", *, normalize: bool = True) -> xr.DataArray:
        """Multiply a map through the layers, for models with one kind of site.

        `attnres_w` gives the rollout of attention weights (Abnar and Zuidema 2020: half residual), `alti` ALTI (Ferrando
        et al. 2022), `enc_n` with `normalize=False` GlobEnc as released (Modarressi et al. 2022).

        Args:
            name: The map.
            normalize: Divide the rows of each map by their sums.

        Returns:
            The products (layer, query, key); the last layer holds that of all layers.

        >>> import normlens
        >>> rolled = normlens.load().analyze("The cat sat.", measures=["attnres_w"]).rollout("attnres_w")
        >>> float(abs(rolled.sum("key") - 1).max()) < 1e-12
        True
        """
        return self._only.rollout(name, normalize=normalize)

    @property
    def proof(self) -> xr.DataArray:
        """The proof error per layer, for models with one kind of site."""
        return self._only.proof

    @property
    def max_proof_error(self) -> float:
        """The largest proof error over all sites and layers."""
        return max(float(dataset[PROOF].max()) for dataset in self.sites.values())

    @property
    def measures(self) -> tuple[str, ...]:
        """The measures that were kept."""
        kept = {str(name) for dataset in self.sites.values() for name in dataset.data_vars}
        return tuple(name for name in MEASURES if name in kept)

    # ---- tables and other forms ----------------------------------------------------------------------------------

    def to_frame(self, measures: Sequence[str] | None = None) -> pd.DataFrame:
        """Return a tidy table: one row per number, with site, measure, layer, head, positions, tokens and value."""
        frames = []
        held = {str(name) for dataset in self.sites.values() for name in dataset.data_vars}
        if measures is not None and not set(measures) <= held:
            unknown = sorted(set(measures) - held)
            raise InputError(f"measures must be among those that were kept ({', '.join(self.measures)}), got {unknown}")
        for kind, dataset in self.sites.items():
            for name in measures if measures is not None else map(str, dataset.data_vars):
                if name in dataset:
                    frames.append(array_rows(dataset[name], site=kind, measure=name))
        if not frames:
            raise InputError(
                f"measures must be among those that were kept ({', '.join(self.measures)}), got {measures}"
            )
        return tidy(frames)

    def to_bertviz(self, measure: str = "alpha") -> Json:
        """The keyword arguments of `bertviz.head_view` and `model_view`; norms as shares of their row."""
        from normlens.viewer.other_viewers import to_bertviz

        return to_bertviz(self.sites, measure)

    def to_circuitsvis(self, layer: int, measure: str = "alpha", site: str | None = None) -> Json:
        """The keyword arguments of `circuitsvis.attention.attention_patterns` for one layer."""
        from normlens.viewer.other_viewers import to_circuitsvis

        return to_circuitsvis((self._only if site is None else self.site(site)).dataset, layer, measure)

    # ---- seeing --------------------------------------------------------------------------------------------------

    def show(self, *, span: tuple[int, int] | None = None, heads: bool | None = None, view: str = "") -> View:
        """See it: the viewer in a notebook, a page in the browser elsewhere.

        `span=(start, stop)` shows those positions only, `heads=False` leaves the maps per head out, and `view` opens
        a state of the page (what its address says after the `#`).
        """
        from normlens.viewer.display import show
        from normlens.viewer.page_data import analysis_page

        return show(analysis_page(self, span=span, heads=heads), view, self._still, len(self.tokens))

    def image_map(
        self, measure: str = "attnresln_n", *, query: int | None = 0, image: int = 0, site: str | None = None
    ) -> xr.DataArray:
        """Lay a map out over the patches of an image: the contribution of each patch to one position.

        Args:
            measure: A map, or a measure by head.
            query: The position, by default the first (`[CLS]` where the model has it); None: the mean over all positions.
            image: The image, where there are several.
            site: The kind of site; by default the first whose keys are patches.

        Returns:
            The numbers (layer, row, column), with the head where the measure has one.
        """
        from normlens.results.media import image_map, site_with_places

        keys = {kind: dataset["key_token"] for kind, dataset in self.sites.items() if "key_token" in dataset}
        array = self.site(site_with_places(keys, site))[measure]
        if "query" in array.dims:
            count = array.sizes["query"]
            if query is not None and not -count <= query < count:
                raise InputError(f"query must be from 0 to {count - 1}, or negative from the end, got {query}")
            array = array.mean("query") if query is None else array.isel(query=query)
        return image_map(array, "key", image)

    def plot(
        self,
        measure: str | None = None,
        *,
        layer: int | None = None,
        site: str | None = None,
        image: Any = None,
        query: int | None = 0,
    ) -> Figure:
        """Draw maps for a paper; `normlens.plots.save_figure` writes the figure.

        Args:
            measure: A map; by default all maps that were kept, side by side, and of one layer the last of them.
            layer: One layer at full size; by default all layers.
            site: The kind of site; by default the only one.
            image: The image that was analysed, over which the contributions to one position are drawn. It is embedded.
            query: That position; None: the mean over all positions.

        Returns:
            A matplotlib figure.
        """
        from normlens.plots.maps import plot_map, plot_maps

        if image is not None:
            return self._plot_on_image(measure or "attnresln_n", layer, site, image, query)
        chosen = self._only if site is None else self.site(site)
        cross = is_cross(chosen.kind)
        line = self.provenance_line()
        if layer is not None:
            kept = [name for name in MAPS if name in chosen.dataset]
            array = chosen[measure or next(reversed(kept), "attnresln_n")]
            if layer not in array["layer"]:
                layers = ", ".join(map(str, array["layer"].values))
                raise InputError(f"layer must be one of {layers}, got {layer}")
            return plot_map(array.sel(layer=layer), cross=cross, provenance=line)
        names = None if measure is None else [measure]
        return plot_maps(chosen.dataset, names, cross=cross, provenance=line)

    def _plot_on_image(
        self, measure: str, layer: int | None, site: str | None, image: Any, query: int | None
    ) -> Figure:
        from normlens.plots.media import plot_on_image

        maps = self.image_map(measure, query=query, site=site)
        if "head" in maps.dims:
            maps = maps.mean("head")
        layers = [int(number) for number in maps["layer"].values]
        if layer is not None and layer not in layers:
            raise InputError(f"layer must be one of {', '.join(map(str, layers))}, got {layer}")
        chosen = layers if layer is None else [layer]
        to = "all positions, on average" if query is None else str(maps["query_token"].values)
        largest = maps.max(("row", "column"))
        shares = maps / largest.where(largest > 0, 1.0)  # the norms of layers differ by orders of magnitude
        return plot_on_image(
            image,
            {f"layer {number}": shares.sel(layer=number) for number in chosen},
            geometry=self.provenance.get("image_geometry"),
            label=f"{measure}: contribution of each patch to {to}; 1 is the largest of each layer",
            mark=_patch_of(maps),
            provenance=self.provenance_line(),
        )

    def save_html(self, path: str | Path, *, span: tuple[int, int] | None = None, heads: bool | None = None) -> Path:
        """Write the viewer as one HTML file that opens offline."""
        from normlens.viewer.page import save_html
        from normlens.viewer.page_data import analysis_page

        return save_html(analysis_page(self, span=span, heads=heads), path)

    # ---- where it comes from -------------------------------------------------------------------------------------

    def cite(self) -> str:
        """The references (BibTeX) for the measures of this analysis."""
        return references({MEASURES[name].paper for name in self.measures} | self._mixing_papers())

    def _mixing_papers(self) -> set[str]:
        mixed = any(str(name).startswith(MIXING) for dataset in self.sites.values() for name in dataset.data_vars)
        return {MEASURES["attnresln_n"].paper} if mixed else set()

    def provenance_line(self) -> str:
        """Return one line that says where the numbers come from."""
        words = f", words: {self.provenance['words']}" if self.provenance.get("words") else ""
        return f"{self._model_line(words)} · proof {self.max_proof_error:.0e}"

    def __sub__(self, other: Analysis) -> Analysis:
        """The difference of two analyses of the same text, such as before and after fine-tuning."""
        return difference(self, other)

    def __rich_console__(self, console: Console, options: object) -> Iterator[RenderableType]:
        from normlens.results.tables import analysis_tables

        return analysis_tables(self)

    def _still(self) -> Figure:
        """A picture for where no script runs."""
        return self.plot(site=list(self.sites)[-1])

    def _repr_html_(self) -> str:
        from normlens.viewer.inline_text import analysis_html

        return analysis_html(self)

    def __repr__(self) -> str:
        sizes = "; ".join(f"{kind}: {dict(dataset.sizes)}" for kind, dataset in self.sites.items())
        return f"<normlens.Analysis of {self.provenance.get('model', {}).get('name', '?')!r}: {sizes}>"

    # ---- files ---------------------------------------------------------------------------------------------------

    def save(self, path: str | Path, *, overwrite: bool = False) -> Path:
        """Write everything to a Zarr folder; `normlens.open` gives back the same, to the last bit."""
        from normlens.results.storage import save_analysis

        return save_analysis(self, path, overwrite=overwrite)


@dataclass(frozen=True, eq=False)
class SiteAnalysis:
    """The results of one kind of site."""

    kind: str
    dataset: xr.Dataset

    def __getitem__(self, name: str) -> xr.DataArray:
        """A measure by its name."""
        if name not in MEASURES:
            raise InputError(f"a measure must be one of {', '.join(MEASURES)}, got {name!r}")
        if name not in self.dataset:
            further = self.kind == "decoder" and MEASURES[name].reach != "block"
            where = "; where cross-attention follows in the layer, site('cross') has it" if further else ""
            raise InputError(f"{name!r} was not computed; call analyze(measures=[…, {name!r}]){where}")
        return self.dataset[name]

    def mixing_ratio(self, name: str = "attnresln_n") -> xr.DataArray:
        """The mixing ratio of a map, (layer, query)."""
        if name not in MAPS:
            raise InputError(f"a mixing ratio belongs to one of {', '.join(MAPS)}, got {name!r}")
        if is_cross(self.kind) and not MEASURES[name].crosses:
            raise no_self_part(name)
        return self._kept(MIXING, name, f"call analyze(mixing=[{name!r}])")

    def rollout(self, name: str = "attnresln_n", *, normalize: bool = True) -> xr.DataArray:
        """Multiply a map through the layers that were analysed (layer, query, key); see `Analysis.rollout`.

        Each sequence is rolled out by itself: in an encoder-decoder model the encoder's maps and the decoder's, each onto
        its own tokens. Maps of cross-attention lead from one sequence to the other and have no product.
        """
        if is_cross(self.kind):
            raise InputError(
                'cross-attention has no rollout: it leads from the target to the source; use site("encoder") '
                'or site("decoder")'
            )
        if name not in MAPS:
            raise InputError(f"rollout needs one of the maps {', '.join(MAPS)}, got {name!r}")
        return rollout(self[name], normalize=normalize)

    def residual_norm(self, name: str = "attnresln_n") -> xr.DataArray:
        """The norm of the residual beside the source positions, (layer, query); cross-attention only."""
        if not is_cross(self.kind):
            raise InputError(
                f"{self.kind} sites hold the residual on the diagonal; residual_norm() is for cross-attention"
            )
        return self._kept(RESIDUAL, name, f"call analyze(measures=[{name!r}])")

    def _kept(self, prefix: str, name: str, remedy: str) -> xr.DataArray:
        if prefix + name not in self.dataset:
            raise InputError(f"{name!r} was not computed; {remedy}")
        return self.dataset[prefix + name]

    @property
    def proof(self) -> xr.DataArray:
        """The largest relative error over the places of each layer."""
        return self.dataset[PROOF]

    @property
    def query_tokens(self) -> list[str]:
        """The tokens at the query axis."""
        return [str(token) for token in self.dataset["query_token"].values]

    @property
    def key_tokens(self) -> list[str]:
        """The tokens at the key axis."""
        return [str(token) for token in self.dataset["key_token"].values]


def _patch_of(maps: xr.DataArray) -> tuple[int, int] | None:
    """Row and column of the query that a map was taken of, where it is a patch itself."""
    row, column = (maps.coords.get(f"query_{name}") for name in ("row", "column"))
    if row is None or column is None or row.ndim or int(row) < 0:
        return None
    return int(row), int(column)


def difference(left: Analysis, right: Analysis) -> Analysis:
    """`left - right`, number by number; both must be about the same tokens, layers and measures."""
    if set(left.sites) != set(right.sites):
        raise InputError(
            f"analyses with different sites cannot be compared: {', '.join(left.sites)} against "
            f"{', '.join(right.sites)}"
        )
    sites = {}
    for kind, dataset in left.sites.items():
        other = right.sites[kind]
        for axis in ("query", "key"):
            tokens, theirs = dataset[f"{axis}_token"].values.tolist(), other[f"{axis}_token"].values.tolist()
            if tokens != theirs:
                raise InputError(
                    f"the analyses have different tokens ({len(tokens)} {axis} tokens against {len(theirs)}); "
                    "analyse the same text with the same tokenizer"
                )
        common = [name for name in dataset.data_vars if name in other]
        if not any(name != PROOF for name in common):
            raise InputError("the analyses have no measure in common; ask both for the same")
        layers, theirs = dataset["layer"].values.tolist(), other["layer"].values.tolist()
        # Equal numbers are not enough: arithmetic would silently keep the layers that both have.
        if layers != theirs or any(dataset[name].shape != other[name].shape for name in common):
            raise InputError(
                f"the analyses have different layers ({layers} against {theirs}) or numbers of heads; analyse "
                "both with the same layers"
            )
        subtracted = dataset[common] - other[common]
        subtracted[PROOF] = np.maximum(dataset[PROOF], other[PROOF])
        sites[kind] = subtracted
    model = {"name": f"{left.provenance['model']['name']} − {right.provenance['model']['name']}"}
    record = {**left.provenance, "model": {**left.provenance["model"], **model}}
    record["difference"] = {"left": dict(left.provenance["model"]), "right": dict(right.provenance["model"])}
    return Analysis(sites, record)


class AnalysisBuilder:
    """The arrays of a batch as they arrive, one layer of one kind of site at a time.

    Maps of another device travel to the host while it computes the next site, and are cut to each row's real positions here.
    """

    def __init__(self, rows: int, sites: int, progress: Callable[[int, int], None] | None, *, images: int = 1) -> None:
        self._images = images  # of a row
        self._sites, self._done, self._progress = sites, 0, progress
        #: By row, then by kind and layer.
        self._layers: list[dict[Kind, dict[int, dict[str, np.ndarray]]]] = [defaultdict(dict) for _ in range(rows)]
        self._travelling: tuple[SiteResult, HostCopies] | None = None
        #: By mask, which is kept with them: each row's real positions, a slice where there is no padding.
        self._real: dict[int, tuple[Tensor, list[slice | np.ndarray]]] = {}
        self._masks: dict[Kind, tuple[Tensor, Tensor]] = {}  # of the queries and keys of each kind of site

    def update(self, result: SiteResult, block: object) -> None:
        """OnSite one site; of its block nothing is kept."""
        self._masks[result.kind] = result.query_mask, result.key_mask
        self._unpack()  # what was sent with the site before has arrived: the host has waited for this one's proof since
        if result.words:
            self._take_words(result)
        else:
            self._travelling = result, result.to_host()
            if self._travelling[1].immediate:
                self._unpack()
        self._done += 1
        if self._progress is not None:
            self._progress(self._done, self._sites)

    def result(
        self, row: int, sides: Mapping[Kind, tuple[Tokens, Tokens]], record: JsonMapping, *, by_word: bool
    ) -> Analysis:
        """The analysis of a row; `sides` are the query and key tokens of each kind of site."""
        if self._travelling is not None:
            self._travelling[1].wait()
            self._unpack()
        sites: dict[str, xr.Dataset] = {}
        for kind, layers in self._layers[row].items():
            labels = [side.word_strings() if by_word else side.strings for side in sides[kind]]
            sites[kind] = _dataset(layers, *labels)
            for axis, side in zip(("query", "key"), sides[kind], strict=True):
                if side.places:
                    sites[kind] = sites[kind].assign_coords(coordinates(side.places, axis))
        return Analysis(sites, record)

    @property
    def kinds(self) -> tuple[Kind, ...]:
        """The kinds of site that arrived."""
        return tuple(self._masks)

    def masks_of(self, row: int) -> dict[Kind, tuple[Tensor, Tensor]]:
        """The masks of a row's queries and keys, by kind of site; one for each of several images."""
        found = {}
        for kind, (queries, keys) in self._masks.items():
            each = self._items_of_row(len(queries))
            for number in range(each):
                item = row * each + number
                found[of_image(kind, number)] = queries[item], keys[item]
        return found

    def _items_of_row(self, batch: int) -> int:
        """The number of items that a row has in a batch: several images of one row stand in a batch of their own."""
        if batch == len(self._layers):
            return 1
        if len(self._layers) > 1 or batch != self._images:
            raise AnatomyError(
                f"attention runs over {batch} sequences for {len(self._layers)} rows with {self._images} images (windows or "
                "parts of an image), which is not supported"
            )
        return batch

    def _unpack(self) -> None:
        """Cut what has arrived into rows."""
        if self._travelling is None:
            return
        (result, copies), self._travelling = self._travelling, None
        arrays = copies.arrays()
        by_query = {MIXING + name: ratio.numpy() for name, ratio in result.mixing.items()}
        by_query |= {RESIDUAL + name: norm.numpy() for name, norm in result.residual.items()}
        masks = (result.query_mask, result.key_mask)
        for mask in masks:
            if id(mask) not in self._real:
                self._real[id(mask)] = mask, [slice(None) if row.all() else row.nonzero()[0] for row in mask.numpy()]
        queries, keys = (self._real[id(mask)][1] for mask in masks)
        each = 1 if len(result.proof) == len(self._layers) else self._items_of_row(len(result.proof))
        for item in range(len(result.proof)):
            row, number = divmod(item, each)
            found = {
                name: array[item][..., queries[item], :][..., keys[item]]
                if "query" in MEASURES[name].axes
                else array[item][..., keys[item]]
                for name, array in arrays.items()
            }
            found |= {name: array[item][queries[item]] for name, array in by_query.items()}
            found[PROOF] = np.asarray(float(result.proof[item]))
            kind = of_image(result.kind, number) if number else result.kind
            self._layers[row][kind][result.layer] = found

    def _take_words(self, result: SiteResult) -> None:
        for row, (layers, words) in enumerate(zip(self._layers, result.words, strict=True)):
            found = {name: value[0].cpu().numpy() for name, value in words.values.items()}
            for prefix, numbers in ((MIXING, words.mixing), (RESIDUAL, words.residual)):
                found |= {prefix + name: value[0].cpu().numpy() for name, value in numbers.items()}
            found[PROOF] = np.asarray(float(result.proof[row]))
            layers[result.kind][result.layer] = found


def _dataset(
    layers: Mapping[int, Mapping[str, np.ndarray]], query_tokens: Sequence[str], key_tokens: Sequence[str]
) -> xr.Dataset:
    numbers = sorted(layers)
    variables = {}
    for name in layers[numbers[0]]:
        axes = MEASURES[name].axes if name in MEASURES else ("layer",) if name == PROOF else ("layer", "query")
        arrays = [layers[number][name] for number in numbers]
        if "head" in axes and len({len(array) for array in arrays}) > 1:
            arrays = _same_heads(arrays)
        variables[name] = (axes, np.stack(arrays))
    heads = max((array.shape[1] for axes, array in variables.values() if "head" in axes), default=0)
    coordinates: dict[str, object] = {
        "layer": numbers,
        "query": np.arange(len(query_tokens)),
        "key": np.arange(len(key_tokens)),
        # Left as they are: xarray would look through all of them for dates and times.
        "query_token": xr.Variable("query", np.array(query_tokens, dtype=object), fastpath=True),
        "key_token": xr.Variable("key", np.array(key_tokens, dtype=object), fastpath=True),
    }
    if heads:
        coordinates["head"] = np.arange(1, heads + 1)
    return xr.Dataset(variables, coords=coordinates)


def _same_heads(arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Layers may differ in their number of heads: the missing ones are not a number."""
    most = max(array.shape[0] for array in arrays)
    return [
        np.pad(array, [(0, most - array.shape[0])] + [(0, 0)] * (array.ndim - 1), constant_values=np.nan)
        for array in arrays
    ]


# ---- what a stack of layers makes of its maps ---------------------------------------------------------------------------


def row_shares(maps: Float[np.ndarray, "*layers query key"]) -> Float[np.ndarray, "*layers query key"]:
    """Each row divided by its sum, signed entries by their magnitude; a row of zeros stays zero."""
    sizes = np.abs(np.asarray(maps, dtype=np.float64))
    totals = sizes.sum(-1, keepdims=True)
    shares: np.ndarray = np.divide(sizes, totals, out=np.zeros_like(sizes), where=totals > 0)
    return shares


def rollout(maps: xr.DataArray, *, normalize: bool = True) -> xr.DataArray:
    """Return `R_l = M_l M_(l-1) … M_1` for the maps `M` (layer, query, key).

    Entry `(l, i, j)` is the share of input position `j` in position `i` after layer `l`.

    Args:
        maps: The maps.
        normalize: Divide the rows of each map by their sums; then the rows of every product sum to 1.

    >>> import numpy as np, xarray as xr
    >>> maps = xr.DataArray(np.full((2, 3, 3), 0.2), dims=("layer", "query", "key"))
    >>> rollout(maps).sum("key").values.round(6).tolist()
    [[1.0, 1.0, 1.0], [1.0, 1.0, 1.0]]
    >>> rollout(maps, normalize=False).sum("key").values.round(6).tolist()
    [[0.6, 0.6, 0.6], [0.36, 0.36, 0.36]]
    """
    if set(maps.dims) != {"layer", "query", "key"} or maps.sizes["query"] != maps.sizes["key"]:
        raise InputError(
            f"rollout needs maps of a sequence onto itself (layer, query, key), got {dict(maps.sizes)}; name a "
            "map of the encoder or the decoder"
        )
    ordered = maps.sortby("layer") if "layer" in maps.coords else maps
    ordered = ordered.transpose("layer", "query", "key")
    factors = ordered.values.astype(np.float64)
    if normalize:
        factors = row_shares(factors)
    product = np.empty_like(factors)
    reached = np.eye(factors.shape[-1])
    for layer, factor in enumerate(factors):
        reached = factor @ reached
        product[layer] = reached
    rolled = ordered.copy(data=product).rename("rollout")
    return rolled.assign_attrs(map=str(maps.name), normalize=int(normalize))
