"""Darker means more, also to the colour-blind; scales say what they show."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from normlens.errors import InputError
from normlens.plots.style import Scale, diverging, round_up, scale_of, sequential

# Machado, Oliveira and Fernandes (2009), severity 1, for linear RGB.
BLINDNESS = {
    "protanopia": [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]],
    "deuteranopia": [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]],
    "tritanopia": [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.303900]],
    "none": np.eye(3).tolist(),
}


def cielab(rgb: np.ndarray, blindness: str = "none") -> np.ndarray:
    """sRGB to CIELAB (D65): another space than the one in which the colours were chosen."""
    linear = np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4)
    linear = np.clip(linear @ np.array(BLINDNESS[blindness]).T, 0, 1)
    xyz = linear @ np.array(
        [[0.4124564, 0.2126729, 0.0193339], [0.3575761, 0.7151522, 0.1191920], [0.1804375, 0.0721750, 0.9503041]]
    )
    ratio = xyz / np.array([0.95047, 1.0, 1.08883])
    f = np.where(ratio > (6 / 29) ** 3, np.cbrt(ratio), ratio / (3 * (6 / 29) ** 2) + 4 / 29)
    return np.stack([116 * f[:, 1] - 16, 500 * (f[:, 0] - f[:, 1]), 200 * (f[:, 1] - f[:, 2])], axis=1)


def colours_of(colormap: object, count: int) -> np.ndarray:
    return colormap(np.linspace(0, 1, count))[:, :3]


@pytest.mark.parametrize("blindness", BLINDNESS)
def test_darker_always_means_more(blindness: str) -> None:
    lightness = cielab(colours_of(sequential(), 64), blindness)[:, 0]
    assert (np.diff(lightness) < -0.5).all()


@pytest.mark.parametrize("blindness", BLINDNESS)
def test_both_signs_of_a_difference_are_told_apart(blindness: str) -> None:
    lab = cielab(colours_of(diverging(), 65), blindness)
    assert (np.diff(lab[:32, 0]) > 0.5).all()
    assert (np.diff(lab[33:, 0]) < -0.5).all()
    opposite = np.linalg.norm(lab[:24] - lab[:-25:-1], axis=1)
    assert opposite.min() > 15, "values of the same size and opposite sign must not look alike"


def test_the_two_arms_of_a_difference_weigh_the_same() -> None:
    lightness = cielab(colours_of(diverging(), 65))[:, 0]
    assert np.abs(lightness - lightness[::-1]).max() < 8


def test_zero_is_white_and_missing_is_neither_end() -> None:
    assert sequential()(0.0)[:3] == (1.0, 1.0, 1.0)
    missing = np.array(sequential()(np.ma.masked_invalid([np.nan]))[0, :3])
    gaps = np.linalg.norm(cielab(colours_of(sequential(), 256)) - cielab(missing[None]), axis=1)
    assert gaps.min() > 8


@given(st.floats(1e-30, 1e30))
def test_rounding_up_reaches_the_value_and_not_much_more(value: float) -> None:
    assert value * (1 - 2e-6) <= round_up(value) <= value * 1.34
    assert round_up(round_up(value)) == round_up(value)
    assert len(f"{round_up(value):.6e}".rstrip("0123456789").rstrip("e+-").rstrip("0")) <= 4, "at most two digits"


def test_a_root_scale_keeps_its_ends_and_lifts_the_middle() -> None:
    plain, root = Scale(0, 4), Scale(0, 4, sqrt=True)
    assert [float(root.norm(value)) for value in (0, 1, 4)] == pytest.approx([0, 0.5, 1])
    assert float(plain.norm(1)) == pytest.approx(0.25)


def test_missing_values_do_not_count() -> None:
    assert scale_of([np.array([np.nan, 0.3]), np.array([np.inf, 0.7])]) == Scale(0.0, 0.8)


def test_a_lower_end_is_marked_as_clipping() -> None:
    assert scale_of([np.array([2.0])], high=1.0).clipped
    assert not scale_of([np.array([2.0])], high=2.0).clipped


@pytest.mark.parametrize("high", [0.0, -1.0, float("nan"), float("inf")])
def test_an_upper_end_is_a_positive_number(high: float) -> None:
    with pytest.raises(InputError, match="high must be a positive number"):
        scale_of([np.array([2.0])], high=high)


def test_nothing_to_draw_is_an_error() -> None:
    with pytest.raises(InputError, match="finite"):
        scale_of([np.array([np.nan])])


def test_a_root_scale_of_signed_values_has_its_middle_at_zero() -> None:
    scale = scale_of([np.array([-1.0, 4.0])], sqrt=True)
    assert (scale.low, scale.high) == (-4.0, 4.0)
    assert [float(scale.norm(value)) for value in (-4, -1, 0, 1, 4)] == pytest.approx([0, 0.25, 0.5, 0.75, 1])
    assert np.allclose(scale.norm.inverse([0.0, 0.25, 0.5, 0.75, 1.0]), [-4, -1, 0, 1, 4])
    assert scale.colormap is diverging()
