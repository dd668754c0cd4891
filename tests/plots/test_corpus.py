"""Figures of a corpus: the numbers of the result's tables, in the colours of every other figure, with their record."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest
from matplotlib.figure import Figure

from normlens.errors import InputError
from normlens.plots.corpus import by_layer, heatmap, histogram, relative, scatter
from normlens.plots.figure import provenance_of
from normlens.plots.style import category_style
from tests.plots.samples import complaints, image, limits, tick_labels

CATEGORIES = ("cls", "sep", "article", "other")
LAYERS, HEADS = [1, 2, 3], [1, 2]


@pytest.fixture(scope="module")
def result() -> Any:
    rng = np.random.default_rng(0)
    means = {name: pd.DataFrame(rng.random((3, 2)), index=LAYERS, columns=HEADS) for name in (*CATEGORIES, "all")}

    def grid(quantity: str, category: str, statistic: str, over: str, site: str | None) -> pd.DataFrame:
        return means[category] if quantity != "x_norm" else means[category][[1]].set_axis([0], axis=1)

    sample = pd.DataFrame(
        {"category": rng.choice(CATEGORIES, 400), "alpha": rng.random(400), "f_norm": rng.random(400)}
    )
    offsets = [(layer, head, offset) for layer in LAYERS for head in HEADS for offset in range(-20, 21)]
    bins = [(category, 2.0 ** (step / 8), 2.0 ** ((step + 1) / 8)) for category in CATEGORIES for step in range(-40, 8)]
    return SimpleNamespace(
        grid=grid,
        means=means,
        statistics=pd.DataFrame({"quantity": "alpha", "over": "values", "category": [*CATEGORIES, "all", "normal"]}),
        pair_sample=sample,
        token_sample=sample.assign(rank=rng.integers(1, 30000, 400).astype(float)).drop(columns="alpha"),
        relative=pd.DataFrame(offsets, columns=["layer", "head", "offset"]).assign(
            quantity="alpha", site="encoder", mean=rng.random(len(offsets))
        ),
        histograms=pd.DataFrame(bins, columns=["category", "low", "high"]).assign(
            quantity="f_norm", site="encoder", layer=1, count=rng.integers(0, 50, len(bins))
        ),
        manifest={
            "model": {"name": "tiny", "dtype": "float32"},
            "inputs": [{"path": "data/corpus.txt"}],
            "counts": {"sequences": 40, "tokens": 1200},
            "versions": {"normlens": "0.1.0"},
        },
    )


def drawn_lines(figure: Figure) -> list[Any]:
    """The curves of the first panel, without its grid."""
    return list(figure.axes[0].lines)


def test_each_figure_is_whole_and_says_what_it_was_made_from(result: Any) -> None:
    figures = {
        "heatmap": heatmap(result, "f_norm", "sep"),
        "without heads": heatmap(result, "x_norm", "all"),
        "layers": by_layer(result, "alpha"),
        "pairs": scatter(result),
        "tokens": scatter(result, "rank", "f_norm"),
        "relative": relative(result),
        "histogram": histogram(result, "f_norm"),
    }
    for name, figure in figures.items():
        assert provenance_of(figure).startswith("tiny (float32) on corpus.txt: 40 sequences, 1,200 tokens"), name
        assert complaints(figure) == [], name
        assert figure.axes[0].get_xlabel() and figure.axes[0].get_ylabel(), name


def test_a_heatmap_shows_every_head_and_keeps_to_its_limits(result: Any) -> None:
    ax = heatmap(result, "f_norm", "sep", limits=(0.0, 4.0)).axes[0]
    np.testing.assert_array_equal(image(ax), result.means["sep"].to_numpy())
    assert limits(ax) == (0.0, 4.0)
    assert tick_labels(ax, "x") == ["1", "2"] and tick_labels(ax, "y") == ["1", "2", "3"]
    assert heatmap(result, "x_norm", "all").axes[0].get_xlabel() == "all heads together"


def test_categories_look_the_same_in_every_figure(result: Any) -> None:
    figure = by_layer(result, "alpha")
    lines = drawn_lines(figure)
    for category, line in zip(CATEGORIES, lines, strict=True):
        np.testing.assert_allclose(line.get_ydata(), result.means[category].mean(axis=1))
    assert [line.get_color() for line in lines[:2]] == [category_style(name).colour for name in ("cls", "sep")]
    for drawn in (lines, drawn_lines(histogram(result, "f_norm"))):
        assert len({line.get_color() for line in drawn}) == 4, "a category of the caller's own has a colour of its own"


def test_a_scatter_shows_each_category_before_all_others(result: Any) -> None:
    figure = scatter(result)
    counts = result.pair_sample["category"].value_counts()
    for ax, count in zip(figure.axes, counts, strict=True):
        behind, own = ax.collections
        assert len(own.get_offsets()) == count and len(behind.get_offsets()) == 400 - count
    with pytest.raises(InputError, match="is not in the sample"):
        scatter(result, "nonsense", "alpha")


def test_relative_means_are_over_heads_and_zero_is_marked(result: Any) -> None:
    figure = relative(result)
    rows = result.relative
    expected = rows[(rows["layer"] == 2) & (rows["offset"].abs() <= 16)].groupby("offset")["mean"].mean()
    np.testing.assert_allclose(drawn_lines(figure)[1].get_ydata(), expected)
    assert "0" in tick_labels(figure.axes[0], "x")
    with pytest.raises(InputError, match="the run kept no"):
        relative(result, "af_norm")


def test_a_histogram_holds_all_that_was_counted(result: Any) -> None:
    figure = histogram(result, "f_norm")
    for line in drawn_lines(figure):
        assert np.sum(line.get_ydata()) / 4 == pytest.approx(1.0), "four bins to an octave"
    ax = figure.axes[0]
    one = ax.get_xticks()[tick_labels(ax, "x").index("1")]
    assert one == pytest.approx(19.5), "2 to the 0 stands at the edge before the twenty-first bin of a quarter octave"
    with pytest.raises(InputError, match="the run kept no"):
        histogram(result, "alpha")
