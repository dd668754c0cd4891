from __future__ import annotations

import numpy as np
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from normlens.plots.alignment import head_tables, layer_curves, soft_alignment, soft_alignments

SCORES = np.array([[0.7, 0.2, 0.1], [0.1, 0.6, 0.3]])


def test_a_soft_alignment_shows_links_gold_and_words() -> None:
    axes = Figure().subplots()
    soft_alignment(
        axes, SCORES, ["the", "house"], ["la", "maison"], {(0, 0), (1, 1)}, {(0, 0)}, {(0, 0), (0, 1), (1, 1)}
    )
    frames = [patch for patch in axes.patches if isinstance(patch, Rectangle)]
    assert len(frames) == 3 and len({frame.get_linestyle() for frame in frames}) == 2
    assert sorted((line.get_xdata()[0], line.get_ydata()[0]) for line in axes.lines) == [(0, 0), (1, 1)]
    assert [label.get_text() for label in axes.get_xticklabels()] == ["the", "house", "∅"]
    assert [label.get_text() for label in axes.get_yticklabels()] == ["la", "maison"]
    (image,) = axes.images
    assert np.array_equal(image.get_array(), SCORES)


def test_pictures_carry_their_caption() -> None:
    links = {"weights": frozenset({(0, 0)}), "norms": frozenset({(1, 1)})}
    maps = dict.fromkeys(links, SCORES)
    pictures = [
        soft_alignments(maps, ["the", "house"], ["la", "maison"], links, {(0, 0)}, set(), "tiny · layer 2"),
        layer_curves({"awi": {"weights": [30, 20], "norms": [20, 10]}}, [1, 2], "tiny · layer 2"),
        head_tables(np.array([[10.0, 90.0]]), np.array([[0.4, 0.1]]), [1], "tiny · layer 2"),
    ]
    for picture in pictures:
        picture.draw_without_rendering()
        assert "tiny · layer 2" in picture.get_supxlabel()
    assert [axes.get_title() for axes in pictures[0].axes] == ["weights", "norms"]
    assert list(pictures[1].axes[0].lines[1].get_ydata()) == [20, 10]
    assert {text.get_text() for text in pictures[2].axes[0].texts} == {"10", "90"}
