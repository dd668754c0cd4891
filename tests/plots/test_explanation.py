"""The figure of an explanation: every term in its colour, the heads, the states, and what it is about."""

from __future__ import annotations

import numpy as np
import pytest
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure

from normlens.errors import InputError
from normlens.plots import plot_explanation, save_figure
from normlens.results.explanation import Explanation
from tests.plots.samples import HOSTILE, complaints, image, texts, tick_labels
from tests.viewer.explained import explanation, translation


def grounds(figure: Figure) -> list[tuple[float, float, float]]:
    """The colours behind the tokens, in their order."""
    return [
        to_rgb(text.get_bbox_patch().get_facecolor())
        for ax in figure.axes
        for text in ax.texts
        if text.get_bbox_patch() is not None
    ]


def numbers(figure: Figure) -> list[float]:
    """The numbers below the tokens, in their order."""
    written = [text for ax in figure.axes for text in ax.texts if text.get_bbox_patch() is None]
    return [float(text.get_text().replace("−", "-")) for text in written]


def grids(figure: Figure) -> list[np.ndarray]:
    return [image(ax) for ax in figure.axes if ax.images]


def test_each_token_has_the_colour_of_its_sign_and_its_number() -> None:
    given = explanation()
    figure = plot_explanation(given)
    values = given["tokens"].values
    np.testing.assert_allclose(numbers(figure), values, rtol=6e-3)
    for (red, _, blue), value in zip(grounds(figure), values, strict=True):
        assert (blue > red) == (value > 0), "blue for the output, orange against it"
    sizes = [1 - min(colour) for colour in grounds(figure)]
    above = values > 0
    assert (np.diff(np.array(sizes)[above][np.argsort(values[above])]) >= 0).all()
    said = "\n".join(texts(figure))
    assert f"Paris rather than London: difference of logits {given.value:+.3g}".replace("-", "−") in said
    assert "← for London" in said and "for Paris →" in said and "gap of the proof 3e-07" in said


def test_heads_and_states_are_drawn_as_they_are() -> None:
    given = explanation()
    heads, states = grids(plot_explanation(given))
    np.testing.assert_allclose(heads, given["heads"].values)
    np.testing.assert_allclose(states, given["states"].values)
    assert grids(plot_explanation(explanation(parts=[]))) == []


def test_words_add_their_tokens() -> None:
    given = explanation()
    figure = given.plot(words=True)
    np.testing.assert_allclose(numbers(figure), given.by_word().values, rtol=6e-3)
    np.testing.assert_allclose(grids(figure)[1], given.by_word("states").values)
    panel = next(ax for ax in figure.axes if ax.images and "France" in tick_labels(ax, "x"))
    assert tick_labels(panel, "x") == ["The", "capital", "of", "France", "is"]


def test_steps_are_added_or_chosen() -> None:
    given = explanation(steps=3, against=None)
    np.testing.assert_allclose(numbers(given.plot()), given["tokens"].sum("step").values, rtol=6e-3)
    np.testing.assert_allclose(numbers(given.plot(step=2)), given["tokens"].sel(step=2).values, rtol=6e-3)
    assert "out2: logit" in "".join(texts(given.plot(step=2))) and "sum of logits" in "".join(texts(given.plot()))
    for bad in (0, 4):
        with pytest.raises(InputError, match="1 to 3"):
            given.plot(step=bad)
    with pytest.raises(InputError, match="has one step"):
        explanation().plot(step=1)


def test_both_sides_of_an_encoder_decoder() -> None:
    given = translation()
    figure = given.plot()
    both = np.concatenate([given.site(kind)["tokens"].values for kind in ("encoder", "decoder")])
    np.testing.assert_allclose(numbers(figure), both, rtol=6e-3)
    for drawn, kind in zip(grids(figure), ("encoder", "decoder", "cross"), strict=True):
        np.testing.assert_allclose(drawn, given.site(kind)["heads"].values)
    assert "source" in texts(figure) and "target" in texts(figure)


def test_a_long_text_is_wrapped_and_stays_inside() -> None:
    figure = explanation(tokens=[f"Ġword{i}" for i in range(120)]).plot(width=4.0)
    width, _ = figure.get_size_inches()
    assert width <= 4.0 and len(grounds(figure)) == 120
    assert complaints(figure) == []
    with pytest.raises(InputError, match="at most 1500"):
        explanation(tokens=["a"] * 1501, parts=[]).plot()
    with pytest.raises(InputError, match="at least 2"):
        explanation().plot(width=1.0)


def test_hostile_tokens_and_names_are_drawn_and_saved(tmp_path) -> None:
    given = explanation(tokens=[token for token in HOSTILE if token.isprintable() or token < "~"])
    record = {**given.provenance, "output": "$x^2$", "against": "</text>\x00" * 40}
    figure = Explanation(given.sites, given.value, given.proof, record).plot()
    png, svg = save_figure(figure, tmp_path / "e")
    assert png.read_bytes().startswith(b"\x89PNG") and "synthetic · float32" in svg.read_text(encoding="utf-8")
