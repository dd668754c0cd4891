"""The usual pictures of an analysis, all at once: what `normlens analyze --out` writes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import xarray as xr
from matplotlib.figure import Figure

from normlens.anatomy.kinds import is_cross
from normlens.measures.table import HEAD_MAPS, MAPS, MIXING
from normlens.plots.arrays import Diagonal, chosen_layers, numbering
from normlens.plots.figure import save_figure
from normlens.plots.maps import plot_heads, plot_map, plot_maps, plot_mixing

if TYPE_CHECKING:  # drawing needs no model library, and importing Analysis would bring one
    from normlens.results.analysis import Analysis

#: More thumbnails than this are too small to look at; layers are then left out evenly.
MOST_THUMBNAILS = 200

#: Up to so many tokens the contributions of others are large enough to be told apart on a linear scale.
FEW = 24


def save_all(analysis: Analysis, folder: Path) -> list[Path]:
    """Draw everything that the analysis holds into a folder that exists, and return the files."""
    files: list[Path] = []
    for kind, dataset in analysis.sites.items():
        prefix = f"{kind}_" if len(analysis.sites) > 1 else ""
        for name, figure in pictures(dataset, f"{kind} sites · {analysis.provenance_line()}", cross=is_cross(kind)):
            files += save_figure(figure, folder / f"{prefix}{name}")
    return files


def pictures(dataset: xr.Dataset, provenance: str, *, cross: bool = False) -> Iterator[tuple[str, Figure]]:
    """The pictures of one kind of site with their names, drawn one after the other.

    `maps` (all over the layers), `map_<measure>` (the last of them, mean over the layers), `heads_<measure>`, and
    `mixing_<measure>` for the first and the last map, both on a scale from 0 to 1: the two that the papers set against
    each other. In self-attention the diagonal of maps is faded, so that the rest is seen; among more than `FEW` tokens
    most contributions are small, and colours stand for square roots.
    """
    maps = [name for name in MAPS if name in dataset]
    if maps:
        array = dataset[maps[-1]]
        diagonal: Diagonal = "shown" if cross else "faded"
        sqrt = array.sizes["key"] > FEW
        yield "maps", plot_maps(dataset, maps, sqrt=sqrt, diagonal=diagonal, cross=cross, provenance=provenance)
        title = "mean over layers " + _span(numbering(array, "layer"))
        mean = array.mean("layer")
        yield (
            f"map_{maps[-1]}",
            plot_map(mean, title=title, sqrt=sqrt, diagonal=diagonal, cross=cross, provenance=provenance),
        )
    for name in HEAD_MAPS:
        if name in dataset:
            array = dataset[name]
            most = max(1, MOST_THUMBNAILS // array.sizes["head"])
            layers = chosen_layers(numbering(array, "layer"), None, most)
            yield f"heads_{name}", plot_heads(array.sel(layer=layers), provenance=provenance)
    ratios = [MIXING + name for name in MAPS if MIXING + name in dataset]
    for name in dict.fromkeys([*ratios[:1], *ratios[-1:]]):
        yield name, plot_mixing(dataset[name], high=1.0, cross=cross, provenance=provenance)


def _span(numbers: list[int]) -> str:
    """`1–6` where nothing is left out, else every number."""
    whole = len(numbers) > 2 and numbers == list(range(numbers[0], numbers[-1] + 1))
    return f"{numbers[0]}–{numbers[-1]}" if whole else ", ".join(map(str, numbers))


def save_on_image(analysis: Analysis, image: Path, folder: Path) -> list[Path]:
    """Each map of each tower over the image, for the first position (`[CLS]`) and over all positions."""
    from normlens.results.media import has_image

    files = []
    for kind, dataset in analysis.sites.items():
        if not has_image(dataset["key_token"]):
            continue
        prefix = f"{kind}_" if len(analysis.sites) > 1 else ""
        for name in (name for name in MAPS if name in dataset):
            for query, which in ((0, "first"), (None, "all")):
                figure = analysis.plot(name, site=kind, image=image, query=query)
                files += save_figure(figure, folder / f"{prefix}{name}_{which}")
    return files
