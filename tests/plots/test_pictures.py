"""What is drawn is what arrived: values, scales, labels; and what cannot be drawn is refused."""

from __future__ import annotations

import numpy as np
import pytest
import xarray as xr
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from normlens.errors import InputError
from normlens.plots import plot_heads, plot_map, plot_maps, plot_mixing
from normlens.plots.arrays import chosen_layers, shares_of_rows
from normlens.plots.labels import LABELS, LAYER_MAPS
from normlens.plots.sheet import provenance_of
from tests.plots.samples import HOSTILE, dataset, mixing, sentence


def image(ax: Axes) -> np.ndarray:
    return np.ma.filled(ax.images[0].get_array(), np.nan)


def limits(ax: Axes) -> tuple[float, float]:
    return ax.images[0].norm.vmin, ax.images[0].norm.vmax


def texts(figure: Figure) -> list[str]:
    return [text.get_text() for text in figure.texts]


def tick_labels(ax: Axes, axis: str) -> list[str]:
    return [label.get_text() for label in getattr(ax, f"get_{axis}ticklabels")()]


# One map


@pytest.mark.parametrize("count", [1, 10, 60])
def test_a_map_shows_every_value_and_every_token(count: int) -> None:
    array = dataset(count)["attn_n"].sel(layer=2)
    ax = plot_map(array).axes[0]
    np.testing.assert_array_equal(image(ax), array.values)
    assert tick_labels(ax, "x") == tick_labels(ax, "y") == sentence(count)
    assert list(ax.get_xticks()) == list(ax.get_yticks()) == list(range(count)), "equal tokens keep their own places"


def test_the_order_of_the_axes_does_not_matter() -> None:
    array = dataset(4, 7)["attn_n"].sel(layer=2)
    np.testing.assert_array_equal(image(plot_map(array.transpose("key", "query")).axes[0]), array.values)


def test_the_first_query_is_on_top() -> None:
    bottom, top = plot_map(dataset(5)["attn_n"].sel(layer=1)).axes[0].get_ylim()
    assert bottom > top


def test_figures_grow_with_the_text_and_type_shrinks() -> None:
    short, long = (plot_map(dataset(count)["attn_n"].sel(layer=1)) for count in (10, 60))
    assert long.get_size_inches()[0] > 1.5 * short.get_size_inches()[0]
    sizes = [figure.axes[0].get_yticklabels()[0].get_fontsize() for figure in (short, long)]
    assert sizes[0] > sizes[1] >= 6


def test_a_long_text_labels_some_tokens_and_says_so() -> None:
    ax = plot_map(dataset(400)["attn_n"].sel(layer=1)).axes[0]
    step = int(ax.get_xticks()[1])
    assert step > 1 and f"one label in {step}" in ax.get_xlabel()
    assert tick_labels(ax, "x") == sentence(400)[::step]


def test_the_colour_bar_names_measure_and_formula() -> None:
    figure = plot_map(dataset(6)["attnresln_n"].sel(layer=1), row_shares=True, root=True)
    label = figure.axes[0].child_axes[0].get_ylabel()
    assert "ATTNRESLN-N" in label and "‖LN(Σ αf(x) + x)‖ / row sum" in label and "root scale" in label


def test_a_difference_is_centred_on_zero_and_named() -> None:
    maps = dataset(6)["attn_n"]
    ax = plot_map(maps.sel(layer=1) - maps.sel(layer=2)).axes[0]
    low, high = limits(ax)
    assert low == -high < 0
    assert ax.child_axes[0].get_ylabel().startswith("difference in ATTN-N")


def test_a_common_upper_end_makes_figures_comparable() -> None:
    maps = dataset(6)["attn_n"]
    assert {limits(plot_map(maps.sel(layer=layer), high=30).axes[0]) for layer in (1, 2, 3)} == {(0.0, 30.0)}


def test_missing_values_are_drawn_as_missing() -> None:
    array = dataset(4)["attn_n"].sel(layer=1).copy()
    array[1, 2], array[0, 0] = np.nan, np.inf
    ax = plot_map(array).axes[0]
    assert np.isnan(image(ax)[1, 2]) and np.isnan(image(ax)[0, 0])
    assert np.isfinite(limits(ax)).all()


def test_axes_of_the_callers_are_used() -> None:
    figure = Figure(figsize=(9, 4), layout="constrained")
    left, right = figure.subplots(1, 2)
    maps = dataset(8)["attn_n"]
    assert plot_map(maps.sel(layer=1), ax=left, provenance="one") is figure
    plot_map(maps.sel(layer=2), ax=right, provenance="two")
    np.testing.assert_array_equal(image(right), maps.sel(layer=2).values)
    assert provenance_of(figure) == "one\ntwo", "the second line joins the first"


def test_axes_in_a_subfigure_are_used() -> None:
    figure = Figure(figsize=(9, 4))
    ax = figure.subfigures(1, 2)[1].subplots()
    assert plot_map(dataset(8)["attn_n"].sel(layer=1), ax=ax) is figure


def test_a_title_says_what_the_map_is() -> None:
    array = dataset(4)["alpha"].sel(layer=2, head=3)
    assert plot_map(array).axes[0].get_title(loc="left") == "layer 2, head 3"
    assert plot_map(array, title="before $tuning$").axes[0].get_title(loc="left") == "before $tuning$"


def test_without_tokens_positions_are_written() -> None:
    array = xr.DataArray(np.eye(3), dims=("query", "key"))
    assert tick_labels(plot_map(array).axes[0], "x") == ["0", "1", "2"]


# The five maps over the layers


def test_the_five_maps_stand_in_the_papers_order() -> None:
    data = dataset(7)
    figure = plot_maps(data)
    panels = [ax for ax in figure.axes if ax.images]
    for place, ax in enumerate(panels):
        layer, measure = divmod(place, 5)
        np.testing.assert_array_equal(image(ax), data[LAYER_MAPS[measure]].values[layer])
    headings = [word for word in texts(figure) if word in {LABELS[name].name for name in LAYER_MAPS}]
    assert headings == [LABELS[name].name for name in LAYER_MAPS]
    assert [word for word in texts(figure) if word.startswith("layer")] == ["layer 1", "layer 2", "layer 3"]


def test_one_measure_has_one_scale_and_weights_share_theirs() -> None:
    panels = [ax for ax in plot_maps(dataset(7)).axes if ax.images]
    by_measure = [{limits(ax) for ax in panels[column::5]} for column in range(5)]
    assert all(len(scales) == 1 for scales in by_measure)
    assert by_measure[0] == by_measure[2]
    assert len({scale.copy().pop() for scale in by_measure[1::2]}) == 2, "norms of different measures are not compared"


def test_the_colour_bars_end_where_the_maps_do() -> None:
    figure = plot_maps(dataset(7), ["attn_n", "attnres_n"])
    panels, bars = ([ax for ax in figure.axes if bool(ax.images) == wanted] for wanted in (True, False))
    for panel, bar in zip(panels, bars, strict=False):
        assert bar.get_xlim() == pytest.approx(limits(panel))
        assert float(tick_labels(bar, "x")[-1]) == pytest.approx(limits(panel)[1])


def test_unit_scale_is_for_weights_and_shares() -> None:
    data = dataset(7)
    ends = [limits(ax)[1] for ax in plot_maps(data, scale="unit", layers=[1]).axes if ax.images]
    assert ends[0] == ends[2] == 1.0 and ends[1] > 1
    shares = [ax for ax in plot_maps(data, scale="unit", row_shares=True, layers=[1]).axes if ax.images]
    assert {limits(ax)[1] for ax in shares} == {1.0}
    for ax in shares:
        np.testing.assert_allclose(image(ax).sum(axis=1), 1)


def test_own_scales_are_stated_on_each_panel() -> None:
    data = dataset(7)
    figure = plot_maps(data, ["attn_n"], scale="panel")
    for layer, ax in enumerate(ax for ax in figure.axes if ax.images):
        largest = data["attn_n"].values[layer].max()
        assert limits(ax)[1] == pytest.approx(largest)
        assert f"max {largest:.3g}" in texts(figure)


def test_many_layers_are_thinned_unless_asked_for() -> None:
    data = dataset(5, layers=12)[["attn_w"]]
    drawn = [word for word in texts(plot_maps(data)) if word.startswith("layer")]
    assert drawn == [f"layer {layer}" for layer in (1, 3, 5, 8, 10, 12)]
    assert sum(word.startswith("layer") for word in texts(plot_maps(data, layers="all"))) == 12
    chosen = [ax for ax in plot_maps(data, layers=[11, 2]).axes if ax.images]
    np.testing.assert_array_equal(image(chosen[0]), data["attn_w"].sel(layer=11).values)


@pytest.mark.parametrize("count", range(1, 40))
def test_chosen_layers_hold_both_ends_once(count: int) -> None:
    chosen = chosen_layers(list(range(1, count + 1)), None, most=6)
    assert chosen == sorted(set(chosen)) and len(chosen) == min(count, 6)
    assert (chosen[0], chosen[-1]) == (1, count)


def test_layers_with_gaps_are_found_by_number() -> None:
    data = dataset(5, layers=3)[["attn_w"]].assign_coords(layer=[2, 5, 9])
    (ax,) = (ax for ax in plot_maps(data, layers=[5]).axes if ax.images)
    np.testing.assert_array_equal(image(ax), data["attn_w"].values[1])


def test_long_texts_are_listed_once_with_positions() -> None:
    figure = plot_maps(dataset(60), layers=[1])
    assert texts(figure).count("committee") == sentence(60).count("committee")
    assert "key position" in texts(figure) and "59" in texts(figure)
    crossed = texts(plot_maps(dataset(40, 60), layers=[1]))
    assert "query tokens" in crossed and "key tokens" in crossed


def test_a_figure_of_the_callers_is_used_at_its_size() -> None:
    figure = Figure(figsize=(9, 6))
    assert plot_maps(dataset(9), figure=figure) is figure
    assert tuple(figure.get_size_inches()) == (9, 6)
    with pytest.raises(InputError, match="larger"):
        plot_maps(dataset(9), figure=Figure(figsize=(1, 1)))


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"measures": ["attn_x"]}, "attn_x"),
        ({"measures": []}, "no known map"),
        ({"measures": ["alpha"]}, "axes layer, query, key"),
        ({"layers": [4]}, "1, 2, 3"),
        ({"layers": []}, "1, 2, 3"),
        ({"layers": "some"}, "all"),
        ({"scale": "log"}, "panel"),
    ],
)
def test_what_cannot_be_drawn_is_refused_with_what_can(options: dict[str, object], said: str) -> None:
    with pytest.raises(InputError, match=said):
        plot_maps(dataset(5), **options)


# Mixing ratio


def test_mixing_shows_every_ratio_and_the_mean_of_each_layer() -> None:
    array = mixing(10)
    array[1, 3] = np.nan
    strip, means, bar = plot_mixing(array, measure="attnresln_n").axes
    np.testing.assert_array_equal(image(strip), array.values)
    assert tick_labels(strip, "x") == sentence(10) and tick_labels(strip, "y") == ["1", "2", "3"]
    expected = np.nanmean(array.values, axis=1)
    assert [patch.get_width() for patch in means.patches] == pytest.approx(expected)
    assert [text.get_text() for text in means.texts] == [f"{mean:.2f}" for mean in expected]
    assert means.get_xlim() == pytest.approx(bar.get_xlim()), "the colour bar is the axis of the means"
    assert means.get_ylim() == strip.get_ylim(), "a bar stands beside its layer"


def test_mixing_says_which_ratio_it_is() -> None:
    array = mixing(6)
    assert "mixing ratio, ATTN-W" in texts(plot_mixing(array, measure="attn_w"))
    assert "share of weight" in plot_mixing(array, measure="attn_w").axes[-1].get_xlabel()
    named = plot_mixing(array.rename("mixing_attnres_n"))
    assert "mixing ratio, ATTNRES-N" in texts(named) and "‖context‖" in named.axes[-1].get_xlabel()
    assert "mixing ratio" in texts(plot_mixing(array)), "nothing is claimed that is not known"


def test_a_map_is_not_a_mixing_ratio() -> None:
    with pytest.raises(InputError, match="between 0 and 1"):
        plot_mixing(dataset(5)["attnres_n"].max("key"))
    with pytest.raises(InputError, match="axes layer, query"):
        plot_mixing(dataset(5)["attn_w"])


# Heads


def test_every_head_has_its_thumbnail_at_its_place() -> None:
    array = dataset(6, layers=3, heads=5)["af_norm"]
    ax = plot_heads(array).axes[0]
    for place, drawn in enumerate(ax.images):
        layer, head = divmod(place, 5)
        np.testing.assert_array_equal(np.ma.filled(drawn.get_array(), np.nan), array.values[layer, head])
        left, right, bottom, top = drawn.get_extent()
        assert ((left + right) / 2, (bottom + top) / 2) == pytest.approx((head, layer))
        assert bottom > top, "the first query is on top"
    assert len(ax.images) == 15
    assert tick_labels(ax, "x") == list("12345") and tick_labels(ax, "y") == list("123")
    assert len({(drawn.norm.vmin, drawn.norm.vmax) for drawn in ax.images}) == 1


def test_the_heads_of_one_layer_are_larger_and_labelled() -> None:
    array = dataset(6, heads=6)["alpha"].sel(layer=2)
    figure = plot_heads(array)
    panels = [ax for ax in figure.axes if ax.images]
    for head, ax in enumerate(panels):
        np.testing.assert_array_equal(image(ax), array.values[head])
    assert [word for word in texts(figure) if word.startswith("head")] == [f"head {head}" for head in range(1, 7)]
    assert "layer 2" in texts(figure)
    assert tick_labels(panels[0], "y") == sentence(6)
    labelled = [head for head, ax in enumerate(panels, 1) if tick_labels(ax, "x")]
    assert labelled == [3, 4, 5, 6], "keys are written under the lowest map of each column"


def test_own_scales_of_heads() -> None:
    array = dataset(6)["alpha"]
    ends = [drawn.norm.vmax for drawn in plot_heads(array, scale="panel").axes[0].images]
    assert ends == pytest.approx(array.max(("query", "key")).values.ravel())
    with pytest.raises(InputError, match="contradicts"):
        plot_heads(array, scale="panel", high=1.0)


def test_heads_need_heads() -> None:
    with pytest.raises(InputError, match="layer, head, query, key"):
        plot_heads(dataset(5)["attn_w"])


# All of them


@pytest.mark.parametrize("draw", [plot_map, plot_mixing, plot_heads])
def test_only_labelled_arrays_are_drawn(draw: object) -> None:
    with pytest.raises(InputError, match="DataArray"):
        draw(np.eye(3))
    with pytest.raises(InputError, match="at least one value"):
        empty = {"plot_map": ("query", "key"), "plot_mixing": ("layer", "query")}
        dims = empty.get(draw.__name__, ("layer", "head", "query", "key"))
        draw(xr.DataArray(np.zeros((0,) * len(dims)), dims=dims))
    with pytest.raises(InputError, match="real numbers"):
        dims = empty.get(draw.__name__, ("layer", "head", "query", "key"))
        draw(xr.DataArray(np.ones((1,) * len(dims), dtype=complex), dims=dims))


def test_a_map_of_several_layers_says_how_to_choose() -> None:
    with pytest.raises(InputError, match=r"layer=3.*array\.sel\(layer=1\)"):
        plot_map(dataset(5)["attn_w"])


def test_row_shares_of_an_empty_row_are_missing() -> None:
    shares = shares_of_rows(np.array([[1.0, 3.0], [0.0, 0.0]]))
    np.testing.assert_array_equal(shares, [[0.25, 0.75], [np.nan, np.nan]])
    with pytest.raises(InputError, match="row_shares=False"):
        shares_of_rows(np.array([[1.0, -3.0]]))


def test_provenance_is_drawn_small_at_the_bottom() -> None:
    line = "normlens 0.1.0 · model $x$ · measures attn_w · float32"
    for figure in (
        plot_map(dataset(5)["attn_w"].sel(layer=1), provenance=line),
        plot_maps(dataset(5), provenance=line),
        plot_mixing(mixing(5), provenance=line),
        plot_heads(dataset(5)["alpha"], provenance=line),
    ):
        (text,) = (text for text in figure.texts if text.get_text().replace("\n", " ") == line)
        assert text.get_position()[1] < 0.05 and text.get_fontsize() <= 5
        assert provenance_of(figure) == line


def test_every_measure_of_the_library_has_a_label() -> None:
    measures = pytest.importorskip("normlens.measures", reason="the core is not there yet")
    assert set(measures.MEASURES) <= set(LABELS)


def test_token_text_is_never_a_formula() -> None:
    ax = plot_map(dataset(HOSTILE)["attn_n"].sel(layer=1)).axes[0]
    assert not any(label.get_parse_math() for label in [*ax.get_xticklabels(), *ax.get_yticklabels()])
