"""Alignment: words, scores, extracted links and gold in one picture, and the same system as every other figure."""

from __future__ import annotations

import numpy as np
from matplotlib.patches import Rectangle

from normlens.plots.alignment import head_tables, layer_curves, soft_alignments
from normlens.plots.figure import provenance_of
from tests.plots.samples import complaints, image, limits, tick_labels, titles

SCORES = np.array([[0.7, 0.2, 0.1], [0.1, 0.6, 0.3]])


def test_a_soft_alignment_shows_links_gold_and_words() -> None:
    links, gold = {"norms": {(0, 0), (1, 1)}}, ({(0, 0)}, {(0, 0), (0, 1), (1, 1)})
    axes = soft_alignments({"norms": SCORES}, ["the", "house"], ["la", "maison"], links, *gold).axes[0]
    frames = [patch for patch in axes.patches if isinstance(patch, Rectangle)]
    assert len(frames) == 3 and len({frame.get_linestyle() for frame in frames}) == 2
    assert sorted((line.get_xdata()[0], line.get_ydata()[0]) for line in axes.lines) == [(0, 0), (1, 1)]
    assert tick_labels(axes, "x") == ["the", "house", "∅"]
    assert tick_labels(axes, "y") == ["la", "maison"]
    np.testing.assert_array_equal(image(axes), SCORES)


def test_pictures_carry_their_record() -> None:
    links = {"weights": frozenset({(0, 0)}), "norms": frozenset({(1, 1)})}
    maps = {"weights": SCORES, "norms": SCORES / 2}
    words = ["the", "house"], ["la", "maison"]
    pictures = [
        soft_alignments(maps, *words, links, {(0, 0)}, set(), provenance="tiny · layer 2"),
        layer_curves({"awi": {"weights": [30, 20], "norms": [20, 10]}}, [1, 2], provenance="tiny · layer 2"),
        head_tables(np.array([[10.0, 90.0]]), np.array([[0.4, 0.1]]), [1], provenance="tiny · layer 2"),
    ]
    for picture in pictures:
        assert provenance_of(picture) == "tiny · layer 2"
        assert complaints(picture) == []
    assert titles(pictures[0]) == ["weights", "norms"]
    ends = {limits(axes) for axes in pictures[0].axes[:2]}
    assert ends == {(0.0, 0.7)}, "both maps are on one scale"
    assert list(pictures[1].axes[0].lines[-1].get_ydata()) == [20, 10]
    assert {text.get_text() for text in pictures[2].axes[0].texts} == {"10", "90"}


def test_a_long_pair_stays_on_the_sheet() -> None:
    source, target = [f"source{i}" for i in range(40)], [f"target{i}" for i in range(30)]
    scores = np.random.default_rng(0).dirichlet(np.ones(41), size=30)
    links = {"norms": frozenset({(0, 0)})}
    assert complaints(soft_alignments({"norms": scores}, source, target, links, provenance="p")) == []
