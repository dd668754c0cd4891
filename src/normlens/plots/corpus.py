"""Figures of corpus results. Each takes a result and returns a figure that says what it was made from."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from normlens.errors import InputError
from normlens.measures.table import quantity_label
from normlens.plots.points import Cloud, plot_points
from normlens.plots.series import Curve, Curves, plot_series
from normlens.plots.style import (
    Scale,
    category_style,
    category_styles,
    ordered_styles,
    round_up,
    short,
)
from normlens.plots.tables import HeadTable, plot_head_tables

if TYPE_CHECKING:
    from normlens.corpus.result import CorpusResult

#: Of one figure of a corpus, in inches.
PANEL = (4.4, 2.6)


def heatmap(
    result: CorpusResult,
    quantity: str,
    category: str = "all",
    *,
    statistic: str = "mean",
    over: str = "values",
    site: str | None = None,
    limits: tuple[float, float] | None = None,
) -> Figure:
    """Draw a statistic by layer and head (2020, Figure 4).

    Args:
        result: A finished run.
        quantity: The quantity.
        category: The category of tokens.
        statistic: The statistic.
        over: `values` or `sequences`.
        site: The kind of site; by default the first.
        limits: The ends of the scale, to compare two figures.
    """
    grid = result.grid(quantity, category, statistic, over, site)
    label = f"{statistic} of {quantity_label(quantity)}"
    title = category_style(category).label
    table = HeadTable(title, label, grid.to_numpy(), None if limits is None else Scale(*limits))
    heads = [str(head) if head else "" for head in grid.columns]
    return plot_head_tables([table], [int(layer) for layer in grid.index], heads=heads, provenance=_record(result))


def by_layer(
    result: CorpusResult,
    quantity: str,
    *,
    categories: Sequence[str] | None = None,
    over: str = "values",
    site: str | None = None,
) -> Figure:
    """Draw the mean by layer, over heads, one line per category (2020 and 2021, Figure 3).

    Args:
        result: A finished run.
        quantity: The quantity.
        categories: The categories; by default all but the unions.
        over: `values` or `sequences`.
        site: The kind of site; by default the first.
    """
    rows = result.statistics
    known = rows[(rows["quantity"] == quantity) & (rows["over"] == over)]["category"].unique()
    chosen = list(categories or [name for name in known if name not in ("normal", "all")])
    means = {name: result.grid(quantity, name, "mean", over, site).mean(axis=1) for name in chosen}
    layers = sorted({int(layer) for mean in means.values() for layer in mean.index})
    curves = tuple(
        Curve(style, mean.reindex(layers).to_numpy(dtype=np.float64))
        for style, mean in zip(category_styles(chosen), means.values(), strict=True)
    )
    name = f"mean {quantity_label(quantity)}" + (" per sequence" if over == "sequences" else "")
    return _one_panel(Curves("", name, curves), [str(layer) for layer in layers], "layer", result)


def scatter(
    result: CorpusResult, x: str = "f_norm", y: str = "alpha", *, points: int = 5000, table: str | None = None
) -> Figure:
    """Draw sampled pairs, one panel per category (2020, Figure 5), or sampled tokens where one of the two is a covariate.

    Args:
        result: A finished run.
        x: The quantity, or covariate, of the x axis.
        y: That of the y axis.
        points: The largest number of points.
        table: `tokens` for sampled tokens.
    """
    pairs, tokens = result.pair_sample, result.token_sample
    sample = tokens if table == "tokens" or not {x, y} <= set(pairs.columns) else pairs
    for name in (x, y):
        if name not in sample.columns:
            raise InputError(f"{name!r} is not in the sample, which has {', '.join(sample.columns)}")
    sample = sample.dropna(subset=[x, y]).iloc[:points]  # rows stand in random order
    across, up = sample[x].to_numpy(dtype=np.float64), sample[y].to_numpy(dtype=np.float64)
    positive = across[across > 0]
    if not positive.size:
        raise InputError(f"no sampled value of {x!r} is above zero, which a logarithmic axis needs")
    sizes = sample["category"].value_counts()
    clouds = []
    for style, category in zip(category_styles([str(name) for name in sizes.index]), sizes.index, strict=True):
        own = (sample["category"] == category).to_numpy()
        note = f"{int(sizes[category]):,} of {len(sample):,} points; the others in grey"
        behind = (across[~own], up[~own])
        clouds.append(Cloud(style.label, note, style, across[own], up[own], behind, quantity_label(y)))
    lowest = float(10 ** np.floor(np.log10(np.quantile(positive, 0.001))))
    top = round_up(float(up.max()))
    return plot_points(
        clouds,
        quantity_label(x),
        lowest=lowest,
        highest=float(across.max()) * 1.1,
        across=3,
        size=(2.2, 1.9),
        top=top,
        provenance=_record(result),
    )


def relative(result: CorpusResult, quantity: str = "alpha", *, site: str | None = None, reach: int = 16) -> Figure:
    """Draw the mean by relative position, over heads, one line per layer.

    Args:
        result: A finished run.
        quantity: The quantity, which has a value per (query, key).
        site: The kind of site; by default the first.
        reach: The largest distance.
    """
    rows = result.relative
    rows = rows[(rows["quantity"] == quantity) & (rows["site"] == (site or rows["site"].iloc[0]))]
    if rows.empty:
        raise InputError(f"the run kept no means by relative position of {quantity!r}")
    # The outermost bins hold everything beyond them, so they are no single position.
    farthest = int(rows["offset"].max())
    rows = rows[rows["offset"].abs() <= min(reach, farthest - 1)]
    layers, offsets = sorted(rows["layer"].unique()), sorted(int(offset) for offset in rows["offset"].unique())
    means = rows.groupby(["layer", "offset"])["mean"].mean()
    curves = tuple(
        Curve(style, means[layer].reindex(offsets).to_numpy(dtype=np.float64))
        for style, layer in zip(ordered_styles([f"layer {layer}" for layer in layers]), layers, strict=True)
    )
    step = max(1, round(len(offsets) / 12))
    ticks = {float(place): short(offset) for place, offset in enumerate(offsets) if offset % step == 0}
    panel = Curves("", f"mean {quantity_label(quantity)}", curves, ticks=ticks)
    return _one_panel(panel, list(map(short, offsets)), "key position relative to the query", result, markers=False)


def histogram(result: CorpusResult, quantity: str, *, layer: int | None = None, site: str | None = None) -> Figure:
    """Draw the distribution of a quantity, one line per category.

    Args:
        result: A finished run.
        quantity: The quantity.
        layer: The layer; by default all.
        site: The kind of site; by default the first.
    """
    rows = result.histograms
    rows = rows[(rows["quantity"] == quantity) & (rows["site"] == (site or rows["site"].iloc[0]))]
    if layer is not None:
        rows = rows[rows["layer"] == layer]
    rows = rows[(rows["low"] > 2.0**-64) & (rows["high"] < 2.0**64)]  # not the open bins at either end
    if rows.empty:
        raise InputError(f"the run kept no histogram of {quantity!r}")
    # Bins of one width per octave, whatever the grid: four of them, so that small categories are not all noise.
    step = np.floor(4 * np.log2(rows["low"].to_numpy()) + 1e-9).astype(int)
    first, bins = int(step.min()), int(step.max() - step.min()) + 1
    categories = sorted(str(name) for name in rows["category"].unique())
    curves = tuple(
        Curve(style, _share_per_octave(rows[rows["category"] == name], step[rows["category"] == name] - first, bins))
        for style, name in zip(category_styles(categories), categories, strict=True)
    )
    octaves = range(-(-first // 4), (first + bins) // 4 + 1)
    every = max(1, -(-len(octaves) // 9))
    # A bin's place is its middle; an octave begins at the edge half a place before it.
    ticks = {4 * octave - first - 0.5: short(2.0**octave) for octave in octaves if octave % every == 0}
    panel = Curves("" if layer is None else f"layer {layer}", "share per octave", curves, ticks=ticks)
    return _one_panel(panel, [""] * bins, quantity_label(quantity), result, markers=False, steps=True)


def _share_per_octave(rows: pd.DataFrame, places: np.ndarray, bins: int) -> np.ndarray:
    counts = np.bincount(places, weights=rows["count"].to_numpy(dtype=np.float64), minlength=bins)
    shares: np.ndarray = 4 * counts / counts.sum()
    return shares


def _one_panel(
    panel: Curves, places: Sequence[str], x: str, result: CorpusResult, *, markers: bool = True, steps: bool = False
) -> Figure:
    return plot_series([panel], places, x, size=PANEL, markers=markers, steps=steps, provenance=_record(result))


def _record(result: CorpusResult) -> str:
    """The provenance of a figure."""
    manifest = result.manifest
    model, counts = manifest["model"], manifest["counts"]
    sources = ", ".join(entry["path"].rsplit("/", 1)[-1] for entry in manifest["inputs"])
    return (
        f"{model['name']} ({model['dtype']}) on {sources}: {counts['sequences']:,} sequences, "
        f"{counts['tokens']:,} tokens; normlens {manifest['versions']['normlens']}"
    )
