"""Maps: what is drawn is what arrived (values, scales, labels), and what cannot be drawn is refused."""

from __future__ import annotations

import numpy as np
import pytest
import xarray as xr
from matplotlib.figure import Figure

from normlens.errors import InputError
from normlens.measures.table import BLOCK_MAPS, MEASURES
from normlens.plots import plot_map, plot_maps
from normlens.plots.figure import provenance_of
from normlens.plots.style import round_up
from tests.plots.samples import HOSTILE, complaints, dataset, image, limits, sentence, texts, tick_labels, titles

# One map


@pytest.mark.parametrize("count", [1, 10, 60])
def test_a_map_shows_every_value_and_every_token(count: int) -> None:
    array = dataset(count)["attn_n"].sel(layer=2)
    ax = plot_map(array, diagonal="shown").axes[0]
    np.testing.assert_array_equal(image(ax), array.values)
    assert tick_labels(ax, "x") == tick_labels(ax, "y") == sentence(count)
    assert list(ax.get_xticks()) == list(ax.get_yticks()) == list(range(count)), "equal tokens keep their own places"


def test_the_order_of_the_axes_does_not_matter() -> None:
    array = dataset(4, 7)["attn_n"].sel(layer=2)
    np.testing.assert_array_equal(
        image(plot_map(array.transpose("key", "query"), diagonal="shown").axes[0]), array.values
    )


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
    figure = plot_map(dataset(6)["attnresln_n"].sel(layer=1), row_shares=True, sqrt=True)
    label = figure.axes[-1].get_ylabel()
    assert "ATTNRESLN-N" in label and "‖LN(Σ αf(x) + x)‖ / row sum" in label and "square-root scale" in label


def test_a_difference_is_centred_on_zero_and_named() -> None:
    maps = dataset(6)["attn_n"]
    ax, bar = plot_map(maps.sel(layer=1) - maps.sel(layer=2)).axes
    low, high = limits(ax)
    assert low == -high < 0
    assert bar.get_ylabel().startswith("difference in ATTN-N")


def test_a_common_upper_end_makes_figures_comparable() -> None:
    maps = dataset(6)["attn_n"]
    assert {limits(plot_map(maps.sel(layer=layer), high=30).axes[0]) for layer in (1, 2, 3)} == {(0.0, 30.0)}


def test_missing_values_are_drawn_as_missing() -> None:
    array = dataset(4)["attn_n"].sel(layer=1).copy()
    array[1, 2], array[0, 0] = np.nan, np.inf
    ax = plot_map(array).axes[0]
    assert np.isnan(image(ax)[1, 2]) and np.isnan(image(ax)[0, 0])
    assert np.isfinite(limits(ax)).all()


def test_the_own_part_can_stand_apart_from_the_scale() -> None:
    array = dataset(6)["attnresln_n"].sel(layer=1)
    own = np.eye(6, dtype=bool)
    faded, hidden = (plot_map(array, diagonal=own_part).axes[0] for own_part in ("faded", "hidden"))
    for ax in (faded, hidden):
        np.testing.assert_array_equal(image(ax), np.where(own, 0.0, array.values))
        assert limits(ax)[1] == round_up(array.values[~own].max()) < array.values[own].max()
    assert len(faded.images) == 2 and len(hidden.images) == 1
    grey = faded.images[1]
    np.testing.assert_array_equal(np.ma.filled(grey.get_array(), np.nan)[own], array.values[own])
    colours = grey.cmap(grey.norm(array.values[own]))[:, :3]
    assert np.ptp(colours, axis=1).max() < 0.01, "grey has no hue"
    largest = f"{array.values[own].max():.3g}"
    assert faded.get_title(loc="left") == f"layer 1 · own part in grey, to {largest}"
    assert hidden.get_title(loc="left") == f"layer 1 · own part not drawn (to {largest})"


def test_an_own_part_needs_the_same_tokens_on_both_axes() -> None:
    with pytest.raises(InputError, match='diagonal="shown"'):
        plot_map(dataset(4, 7)["attn_n"].sel(layer=1), diagonal="faded")
    with pytest.raises(InputError, match="hidden"):
        plot_map(dataset(4)["attn_n"].sel(layer=1), diagonal="gone")
    assert len(plot_map(dataset(1)["attn_n"].sel(layer=1), diagonal="faded").axes[0].images) == 1, (
        "there is no rest to see"
    )


def test_axes_of_the_callers_are_used() -> None:
    figure = Figure(figsize=(9, 4), layout="constrained")
    left, right = figure.subplots(1, 2)
    maps = dataset(8)["attn_n"]
    assert plot_map(maps.sel(layer=1), ax=left, diagonal="shown", provenance="one") is figure
    plot_map(maps.sel(layer=2), ax=right, diagonal="shown", provenance="two")
    np.testing.assert_array_equal(image(right), maps.sel(layer=2).values)
    assert provenance_of(figure) == "one\ntwo", "the second line joins the first"


def test_axes_in_a_subfigure_are_used() -> None:
    figure = Figure(figsize=(9, 4))
    ax = figure.subfigures(1, 2)[1].subplots()
    assert plot_map(dataset(8)["attn_n"].sel(layer=1), ax=ax) is figure


def test_a_title_says_what_the_map_is() -> None:
    array = dataset(4)["alpha"].sel(layer=2, head=3)
    assert plot_map(array, diagonal="shown").axes[0].get_title(loc="left") == "layer 2, head 3"
    assert plot_map(array, title="before $tuning$", diagonal="shown").axes[0].get_title(loc="left") == "before $tuning$"


def test_without_tokens_positions_are_written() -> None:
    array = xr.DataArray(np.eye(3), dims=("query", "key"))
    assert tick_labels(plot_map(array).axes[0], "x") == ["0", "1", "2"]


def test_a_map_of_several_layers_says_how_to_choose() -> None:
    with pytest.raises(InputError, match=r"layer=3.*array\.sel\(layer=1\)"):
        plot_map(dataset(5)["attn_w"])


def test_token_text_is_never_a_formula() -> None:
    ax = plot_map(dataset(HOSTILE)["attn_n"].sel(layer=1)).axes[0]
    assert not any(label.get_parse_math() for label in [*ax.get_xticklabels(), *ax.get_yticklabels()])


# The five maps over the layers


def test_the_five_maps_stand_in_the_papers_order() -> None:
    data = dataset(7)
    figure = plot_maps(data, diagonal="shown")
    panels = [ax for ax in figure.axes if ax.images]
    for place, ax in enumerate(panels):
        layer, measure = divmod(place, 5)
        np.testing.assert_array_equal(image(ax), data[BLOCK_MAPS[measure]].values[layer])
    assert titles(figure) == [MEASURES[name].title for name in BLOCK_MAPS]
    rows = [ax.get_ylabel() for ax in panels if ax.get_ylabel()]
    assert rows == [f"layer {layer}\nquery" for layer in (1, 2, 3)]


def test_one_measure_has_one_scale_and_weights_share_theirs() -> None:
    panels = [ax for ax in plot_maps(dataset(7), diagonal="shown").axes if ax.images]
    by_measure = [{limits(ax) for ax in panels[column::5]} for column in range(5)]
    assert all(len(scales) == 1 for scales in by_measure)
    assert by_measure[0] == by_measure[2]
    assert len({scale.copy().pop() for scale in by_measure[1::2]}) == 2, "norms of different measures are not compared"


def test_the_colour_bars_end_where_the_maps_do() -> None:
    figure = plot_maps(dataset(7), ["attn_n", "attnres_n"])
    panels, bars = ([ax for ax in figure.axes if bool(ax.images) == wanted] for wanted in (True, False))
    for panel, bar in zip(panels, bars, strict=False):
        assert bar.get_xlim() == pytest.approx(limits(panel))


def test_unit_scale_is_for_weights_and_shares() -> None:
    data = dataset(7)
    ends = [limits(ax)[1] for ax in plot_maps(data, scale="unit", layers=[1], diagonal="shown").axes if ax.images]
    assert ends[0] == ends[2] == 1.0 and ends[1] > 1
    shares = [
        ax for ax in plot_maps(data, scale="unit", row_shares=True, layers=[1], diagonal="shown").axes if ax.images
    ]
    assert {limits(ax)[1] for ax in shares} == {1.0}
    for ax in shares:
        np.testing.assert_allclose(image(ax).sum(axis=1), 1)


def test_the_maps_of_all_layers_say_what_became_of_the_own_part() -> None:
    data = dataset(7)
    figure = plot_maps(data, ["attn_w", "attnresln_n"], diagonal="faded")
    own = np.eye(7, dtype=bool)
    panels = [ax for ax in figure.axes if len(ax.images) == 2]
    assert len(panels) == 6
    for ax, name in zip(panels, ["attn_w", "attnresln_n"] * 3, strict=True):
        assert limits(ax)[1] == round_up(data[name].values[:, ~own].max())
    labels = [ax.get_xlabel() for ax in figure.axes if "own part" in ax.get_xlabel()]
    tops = [f"{data[name].values[:, own].max():.3g}" for name in ("attn_w", "attnresln_n")]
    assert [label.splitlines()[-1] for label in labels] == [f"own part in grey, to {top}" for top in tops]


def test_own_scales_are_stated_on_each_panel() -> None:
    data = dataset(7)
    figure = plot_maps(data, ["attn_n"], scale="panel")
    for layer, ax in enumerate(ax for ax in figure.axes if ax.images):
        largest = data["attn_n"].values[layer].max()
        assert limits(ax)[1] == pytest.approx(largest)
        assert ax.get_title(loc="left").endswith(f"to {largest:.3g}")


def test_many_layers_are_thinned_unless_asked_for() -> None:
    data = dataset(5, layers=24)[["attn_w"]]
    figure = plot_maps(data)
    drawn = [word for word in texts(figure) if word.startswith("layer")]
    assert len(drawn) == 12 and drawn[0] == "layer 1\nquery" and drawn[-1] == "layer 24\nquery"
    assert "12 of 24 layers are drawn" in provenance_of(figure)
    whole = plot_maps(data, layers="all")
    assert sum(word.startswith("layer") for word in texts(whole)) == 24 and "drawn" not in provenance_of(whole)
    chosen = [ax for ax in plot_maps(data, layers=[11, 2], diagonal="shown").axes if ax.images]
    np.testing.assert_array_equal(image(chosen[0]), data["attn_w"].sel(layer=11).values)


def test_layers_with_gaps_are_found_by_number() -> None:
    data = dataset(5, layers=3)[["attn_w"]].assign_coords(layer=[2, 5, 9])
    (ax,) = (ax for ax in plot_maps(data, layers=[5], diagonal="shown").axes if ax.images)
    np.testing.assert_array_equal(image(ax), data["attn_w"].values[1])


def test_long_texts_label_some_tokens_and_stay_on_the_sheet() -> None:
    for figure in (plot_maps(dataset(60), layers=[1], provenance="p" * 300), plot_maps(dataset(40, 60), layers=[1, 2])):
        assert "one label in" in "".join(texts(figure))
        assert complaints(figure) == []


def test_a_figure_of_the_callers_is_used_at_its_size() -> None:
    figure = Figure(figsize=(9, 6))
    assert plot_maps(dataset(9), figure=figure) is figure
    assert tuple(figure.get_size_inches()) == (9, 6)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"measures": ["attn_x"]}, "attn_x"),
        ({"measures": []}, "there is no map"),
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
