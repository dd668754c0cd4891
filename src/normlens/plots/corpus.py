"""Pictures of corpus results. Each takes a result and returns a matplotlib figure that says what it shows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from matplotlib.figure import Figure

from normlens.corpus.plan import MIXING
from normlens.errors import InputError
from normlens.measures import MEASURES

if TYPE_CHECKING:
    from normlens.corpus.result import CorpusResult

#: Okabe and Ito's colours, which people with any colour vision can tell apart, with a marker each.
_STYLES = {
    "cls": ("#0072B2", "o", "[CLS]"),
    "sep": ("#D55E00", "s", "[SEP]"),
    "mask": ("#CC79A7", "D", "[MASK]"),
    "special": ("#56B4E9", "v", "other special"),
    "comma_period": ("#009E73", "^", "comma and period"),
    "other": ("#999999", ".", "others"),
    "normal": ("#E69F00", "P", "not special"),
    "all": ("#000000", "x", "all tokens"),
}
_SPARE = ("#E69F00", "#F0E442", "#009E73", "#56B4E9", "#CC79A7", "#D55E00", "#0072B2")


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
    """Layers by heads (2020, Figure 4); give `limits` to compare two pictures on one scale."""
    table = result.grid(quantity, category, statistic, over, site)
    figure = Figure(figsize=(1.6 + 0.42 * table.shape[1], 1.4 + 0.34 * table.shape[0]), layout="constrained")
    axes = figure.add_subplot()
    low, high = limits or (0.0, float(table.to_numpy().max()))
    image = axes.imshow(table.to_numpy(), cmap="viridis", vmin=low, vmax=high, aspect="auto")
    axes.set_xticks(range(table.shape[1]), [str(head) if head else "" for head in table.columns])
    axes.set_yticks(range(table.shape[0]), [str(layer) for layer in table.index])
    axes.set_xlabel("head")
    axes.set_ylabel("layer")
    axes.set_title(f"{statistic} of {label(quantity)}, {_style(category, 0)[2]}")
    figure.colorbar(image, ax=axes)
    return _signed(figure, result)


def by_layer(
    result: CorpusResult,
    quantity: str,
    *,
    categories: Sequence[str] | None = None,
    over: str = "values",
    site: str | None = None,
) -> Figure:
    """The mean by layer, over heads, one line per category (2020 and 2021, Figure 3)."""
    rows = result.statistics
    known = rows[(rows["quantity"] == quantity) & (rows["over"] == over)]["category"].unique()
    chosen = list(categories or [name for name in known if name not in ("normal", "all")])
    figure = Figure(figsize=(6.4, 3.8), layout="constrained")
    axes = figure.add_subplot()
    for number, category in enumerate(chosen):
        means = result.grid(quantity, category, "mean", over, site).mean(axis=1)
        colour, marker, text = _style(category, number)
        axes.plot(means.index.astype(int), means.to_numpy(), color=colour, marker=marker, label=text)
    axes.set_xlabel("layer")
    axes.set_ylabel(f"mean {label(quantity)}" + (" per sequence" if over == "sequences" else ""))
    axes.set_ylim(bottom=0)
    axes.legend(frameon=False, fontsize="small")
    return _signed(figure, result)


def scatter(
    result: CorpusResult, x: str = "f_norm", y: str = "alpha", *, points: int = 5000, table: str | None = None
) -> Figure:
    """Sampled pairs, coloured by category (2020, Figure 5), or sampled tokens where a covariate is one of the two."""
    pairs, tokens = result.pair_sample, result.token_sample
    sample = tokens if table == "tokens" or not {x, y} <= set(pairs.columns) else pairs
    for name in (x, y):
        if name not in sample.columns:
            raise InputError(f"a sample holds what was measured: {name!r} is none of {', '.join(sample.columns)}")
    sample = sample.iloc[:points]  # rows stand in random order
    figure = Figure(figsize=(5.6, 4.4), layout="constrained")
    axes = figure.add_subplot()
    # The largest category first, so that it does not cover the others.
    for number, (category, part) in enumerate(sorted(sample.groupby("category"), key=lambda item: -len(item[1]))):
        colour, marker, text = _style(str(category), number)
        axes.scatter(part[x], part[y], s=9, color=colour, marker=marker, alpha=0.6, linewidths=0, label=text)
    axes.set_xlabel(label(x))
    axes.set_ylabel(label(y))
    axes.legend(frameon=False, fontsize="small")
    return _signed(figure, result)


def relative(result: CorpusResult, quantity: str = "alpha", *, site: str | None = None, reach: int = 16) -> Figure:
    """The mean by relative position, over heads, one line per layer."""
    rows = result.relative
    rows = rows[(rows["quantity"] == quantity) & (rows["site"] == (site or rows["site"].iloc[0]))]
    if rows.empty:
        raise InputError(f"means by relative position are kept for what was asked: {quantity!r} is not among them")
    # The outermost bins hold everything beyond them, so they are no single position.
    farthest = int(rows["offset"].max())
    rows = rows[rows["offset"].abs() <= min(reach, farthest - 1)]
    figure = Figure(figsize=(6.4, 3.8), layout="constrained")
    axes = figure.add_subplot()
    layers = sorted(rows["layer"].unique())
    shades = _shades(len(layers))
    for layer, shade in zip(layers, shades, strict=True):
        means = rows[rows["layer"] == layer].groupby("offset")["mean"].mean()
        axes.plot(means.index, means.to_numpy(), color=shade, label=str(layer))
    axes.axvline(0, color="0.8", linewidth=0.8, zorder=0)
    axes.set_xlabel("key position relative to the query")
    axes.set_ylabel(f"mean {label(quantity)}")
    axes.set_ylim(bottom=0)
    axes.legend(title="layer", frameon=False, fontsize="small", ncols=2)
    return _signed(figure, result)


def histogram(result: CorpusResult, quantity: str, *, layer: int | None = None, site: str | None = None) -> Figure:
    """The distribution of a quantity, one line per category, over all layers or in one."""
    rows = result.histograms
    rows = rows[(rows["quantity"] == quantity) & (rows["site"] == (site or rows["site"].iloc[0]))]
    if layer is not None:
        rows = rows[rows["layer"] == layer]
    if rows.empty:
        raise InputError(f"histograms are kept for what was asked: {quantity!r} is not among them")
    figure = Figure(figsize=(6.4, 3.8), layout="constrained")
    axes = figure.add_subplot()
    rows = rows[(rows["low"] > 2.0**-64) & (rows["high"] < 2.0**64)]  # not the open bins at either end
    # Bins of one width per octave, whatever the grid: four of them, so that small categories are not all noise.
    step = np.floor(4 * np.log2(rows["low"].to_numpy()) + 1e-9).astype(int)
    edges = 2.0 ** (np.arange(step.min(), step.max() + 2) / 4)
    for number, category in enumerate(sorted(rows["category"].unique())):
        inside = (rows["category"] == category).to_numpy()
        counts = np.bincount(
            step[inside] - step.min(), weights=rows["count"].to_numpy()[inside], minlength=len(edges) - 1
        )
        colour, _, text = _style(str(category), number)
        axes.stairs(4 * counts / counts.sum(), edges, color=colour, label=text)
    axes.set_xscale("log", base=2)
    axes.set_xlabel(label(quantity))
    axes.set_ylabel("share per octave")
    axes.legend(frameon=False, fontsize="small")
    return _signed(figure, result)


def label(quantity: str) -> str:
    """What an axis calls a quantity."""
    if quantity.startswith(MIXING):
        return f"mixing ratio, {MEASURES[quantity.removeprefix(MIXING)].title}"
    measure = MEASURES.get(quantity)
    return quantity.replace("_", " ") if measure is None else f"{measure.title} {measure.equation}"


def _style(category: str, number: int) -> tuple[str, str, str]:
    return _STYLES.get(category, (_SPARE[number % len(_SPARE)], "o", category))


def _shades(count: int) -> list[Any]:
    import matplotlib

    return list(matplotlib.colormaps["viridis"](np.linspace(0.0, 0.9, count)))


def _signed(figure: Figure, result: CorpusResult) -> Figure:
    """Every picture says what it was made from."""
    manifest = result.manifest
    model, counts = manifest["model"], manifest["counts"]
    sources = ", ".join(entry["path"].rsplit("/", 1)[-1] for entry in manifest["inputs"])
    line = (
        f"{model['name']} ({model['dtype']}) on {sources}: {counts['sequences']:,} sequences, "
        f"{counts['tokens']:,} tokens; normlens {manifest['versions']['normlens']}"
    )
    figure.supxlabel(line, fontsize=6, color="0.4")
    return figure
