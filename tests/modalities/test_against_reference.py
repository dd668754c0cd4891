"""Models that see or hear against loops over their equations, in double precision (`tests/reference/modalities.py`)."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
import pytest
import torch

from normlens import Lens
from tests.modalities import models
from tests.reference import modalities as reference

BASELINES: tuple[Literal["mean", "zero"], ...] = ("mean", "zero")


def close(found: Any, expected: Any, tolerance: float = 1e-6) -> None:
    found, expected = np.asarray(found, dtype=float), np.asarray(expected, dtype=float)
    assert found.shape == expected.shape
    assert np.abs(found - expected).max() <= tolerance * np.abs(expected).max()


@pytest.mark.parametrize("make", [lambda: models.vit(head=False), models.dinov2])
def test_maps_of_an_image(make: Any) -> None:
    model, image = make(), models.pixels()
    analysis = Lens(model).analyze_inputs({"pixel_values": image}, precision="float64")[0]
    expected = reference.vit_maps(model, image)
    for name in ("alpha", "f_norm", "af_norm", "x_norm", "attn_n", "attnres_n"):
        close(analysis[name].values, expected[name], 1e-12)
    close(analysis.mixing_ratio("attnres_n").values, expected["ratio"], 1e-12)


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
def test_terms_of_an_image_classifier(attention: str) -> None:
    model, image = models.vit(), models.pixels(2)
    expected = [reference.vit_tokens(model, image, 3, row) for row in (0, 1)]
    model.set_attn_implementation(attention)  # type: ignore[operator]
    found = Lens(model).explain_inputs({"pixel_values": image}, output=3)
    for explanation, terms in zip(found, expected, strict=True):
        close(explanation["tokens"].values, terms["tokens"])
        assert float(explanation["biases"].sum()) == pytest.approx(float(terms["biases"]), abs=1e-6)


@pytest.mark.parametrize("baseline", BASELINES)
def test_terms_of_an_image_and_its_text(baseline: Literal["mean", "zero"]) -> None:
    model, image = models.clip(), models.pixels(2)
    ids = torch.tensor([[0, 5, 6, 7, 39, 1], [0, 9, 8, 39, 1, 1]])
    mask = torch.tensor([[1, 1, 1, 1, 1, 0], [1, 1, 1, 1, 0, 0]])
    inputs = {"pixel_values": image, "input_ids": ids, "attention_mask": mask}
    for row, explanation in enumerate(Lens(model).explain_inputs(inputs, baseline=baseline)):
        terms = reference.clip_tokens(model, ids, mask, image, row, row, baseline)
        close(explanation.site("vision")["tokens"].values, terms["vision"])
        close(explanation.site("text")["tokens"].values, terms["text"][: int(mask[row].sum())])
        assert explanation.value == pytest.approx(float(terms["value"]))


def test_cross_attention_to_sound() -> None:
    model, sound, ids = models.whisper(), models.features(2), torch.tensor([[3, 5, 6, 7], [3, 9, 8, 4]])
    inputs = {"input_features": sound, "decoder_input_ids": ids}
    for row, analysis in enumerate(Lens(model).analyze_inputs(inputs, precision="float64")):
        expected, cross = reference.whisper_cross(model, sound, ids, row), analysis.site("cross")
        for name in ("alpha", "f_norm", "af_norm", "x_norm", "attn_n", "attnres_n"):
            close(cross[name].values, expected[name], 1e-12)
        close(cross.residual_norm("attnres_n").values, expected["residual_norm"], 1e-12)
        close(cross.mixing_ratio("attnres_n").values, expected["ratio"], 1e-12)


@pytest.mark.parametrize("baseline", BASELINES)
def test_terms_of_sound_and_decoder(baseline: Literal["mean", "zero"]) -> None:
    model, sound, ids = models.whisper(), models.features(2), torch.tensor([[3, 5, 6, 7], [3, 9, 8, 4]])
    inputs = {"input_features": sound, "decoder_input_ids": ids}
    found = Lens(model).explain_inputs(inputs, output=11, position=2, baseline=baseline)
    for row, explanation in enumerate(found):
        terms = reference.whisper_tokens(model, sound, ids, 2, 11, row, baseline)
        close(explanation.site("encoder")["tokens"].values, terms["encoder"])
        close(explanation.site("decoder")["tokens"].values, terms["decoder"])


@pytest.mark.parametrize("baseline", BASELINES)
@pytest.mark.parametrize(
    ("layer", "strategy", "images"), [(-2, "default", 1), (-1, "full", 1), ([-3, -1], "default", 2)]
)
def test_terms_of_a_language_model_that_sees(
    layer: Any, strategy: str, images: int, baseline: Literal["mean", "zero"]
) -> None:
    """At the entrance of the language model, and carried on through projector and vision tower to the patches."""
    model = models.llava(layer, strategy)
    ids, image = models.prompt(images, 9 + (strategy == "full")), models.pixels(images)
    lens, inputs = Lens(model), {"input_ids": ids, "pixel_values": image}
    plain = lens.explain_inputs(inputs, output=7, baseline=baseline)[0]
    close(plain["tokens"].values, reference.llava_tokens(model, ids, image, -1, 7, None, baseline)["tokens"])
    carried = lens.explain_inputs(inputs, output=7, baseline=baseline, through="vision")[0]
    terms = reference.llava_tokens(model, ids, image, -1, 7, "vision", baseline)
    close(carried.site("decoder")["tokens"].values, terms["tokens"])
    close(carried.site("vision")["tokens"].values, np.asarray(terms["patches"]).ravel())
    total = sum(float(arrays[name].sum()) for arrays in carried.sites.values() for name in ("tokens", "biases"))
    assert total == pytest.approx(float(carried.value), rel=1e-5)
