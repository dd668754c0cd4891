"""Laws of models that see or hear: rows are themselves in a batch, names follow the inputs, placeholders carry no word."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import transformers as tf
from torch import nn

from normlens import Lens
from normlens.errors import AnatomyError, InputError
from tests.modalities import models

CASES: dict[str, tuple[Callable[..., nn.Module], dict[str, Any], dict[str, Any]]] = {
    "vit": (models.vit, {"pixel_values": models.pixels(3)}, {"output": 2}),
    "clip": (
        models.clip,
        {"pixel_values": models.pixels(3), "input_ids": torch.tensor([[0, 5, 6, 39], [0, 9, 7, 39], [0, 3, 4, 39]])},
        {},
    ),
    "siglip": (
        models.siglip,
        {"pixel_values": models.pixels(3), "input_ids": torch.tensor([[4, 5, 6, 9], [8, 9, 7, 3], [2, 3, 4, 5]])},
        {},
    ),
    "whisper": (
        models.whisper,
        {"input_features": models.features(3), "decoder_input_ids": torch.tensor([[3, 5], [3, 8], [3, 9]])},
        {"output": 7},
    ),
    "ctc": (models.ctc, {"input_values": torch.randn(3, 200, dtype=torch.float64)}, {"output": 4, "position": 6}),
    "wavlm": (models.wavlm, {"input_values": torch.randn(3, 200, dtype=torch.float64)}, {"output": 4, "position": 6}),
    "llava": (
        models.llava,
        {"input_ids": models.prompt().repeat(3, 1), "pixel_values": models.pixels(3)},
        {"output": 7},
    ),
    "detr": (models.detr, {"pixel_values": models.pixels(3, (32, 32))}, {"output": 1, "position": 5}),
}


@pytest.mark.parametrize("name", list(CASES))
def test_a_row_is_itself_in_a_batch(name: str) -> None:
    make, inputs, question = CASES[name]
    lens = Lens(make())
    together = lens.explain_inputs(inputs, **question)
    maps = lens.analyze_inputs(inputs, precision="float64")
    for row in range(3):
        one = {key: value[row : row + 1] for key, value in inputs.items()}
        alone = lens.explain_inputs(one, **question)[0]
        assert float(alone.value) == pytest.approx(float(together[row].value), rel=1e-9)
        assert set(alone.sites) == set(together[row].sites)
        for kind in alone.sites:
            if "tokens" in alone.sites[kind]:
                np.testing.assert_allclose(
                    alone.site(kind)["tokens"].values, together[row].site(kind)["tokens"].values, rtol=1e-5, atol=1e-9
                )
        analysis = lens.analyze_inputs(one, precision="float64")[0]
        for kind, dataset in analysis.sites.items():
            np.testing.assert_allclose(
                dataset["attnres_n"].values, maps[row].sites[kind]["attnres_n"].values, rtol=1e-9, atol=1e-12
            )


@pytest.mark.parametrize(
    ("name", "analysed", "explained"),
    [
        ("vit", ["encoder"], ["encoder"]),
        ("clip", ["text", "vision"], ["text", "vision"]),
        ("siglip", ["text", "vision", "vision_cross"], ["text", "vision"]),
        ("whisper", ["cross", "decoder", "encoder"], ["cross", "decoder", "encoder"]),
        ("llava", ["decoder", "vision"], ["decoder"]),
        ("detr", ["cross", "decoder", "encoder"], ["cross", "decoder", "encoder"]),
    ],
)
def test_towers_are_named_after_what_they_read(name: str, analysed: list[str], explained: list[str]) -> None:
    make, inputs, question = CASES[name]
    lens = Lens(make())
    one = {key: value[:1] for key, value in inputs.items()}
    assert sorted(lens.analyze_inputs(one)[0].sites) == analysed
    assert sorted(lens.explain_inputs(one, **question)[0].sites) == explained


def test_as_many_queries_as_patches_are_told_apart() -> None:
    """DETR's 16 queries and 16 patches: cross-attention is no layer of the encoder, queries have no rows and columns."""
    analysis = Lens(models.detr()).analyze_inputs({"pixel_values": models.pixels(1, (32, 32))})[0]
    assert {kind: dataset.sizes["layer"] for kind, dataset in analysis.sites.items()} == {
        "encoder": 2,
        "decoder": 2,
        "cross": 2,
    }
    assert "query_modality" not in analysis.sites["decoder"].coords
    assert analysis.sites["cross"]["key_modality"].values.tolist() == ["image"] * 16


def test_patches_have_rows_columns_and_boxes() -> None:
    analysis = Lens(models.dinov2()).analyze_inputs({"pixel_values": models.pixels(1, (8, 16))})[0]
    dataset = analysis.sites["encoder"]
    assert dataset["key_token"].values.tolist() == [
        "[CLS]",
        *(f"({row},{column})" for row in (0, 1) for column in range(4)),
    ]
    boxes = np.stack([dataset[f"key_{side}"].values[1:] for side in ("left", "top", "right", "bottom")], 1)
    assert boxes[5].tolist() == [4.0, 4.0, 8.0, 8.0]
    mapped = analysis.image_map("attn_n", query=6)
    assert dict(mapped.sizes) == {"layer": 3, "row": 2, "column": 4}
    np.testing.assert_array_equal(mapped.sel(row=1, column=3).values, analysis["attn_n"].isel(query=6, key=8).values)


def test_frames_have_seconds() -> None:
    extractor = tf.Wav2Vec2FeatureExtractor(sampling_rate=16_000)
    lens = Lens(models.ctc(dtype=torch.float32), extractor)
    analysis = lens.analyze(audio=np.random.default_rng(0).standard_normal(400), sampling_rate=16_000)
    starts = analysis.sites["encoder"]["key_start"].values
    assert starts[:3].tolist() == pytest.approx([0.0, 10 / 16_000, 20 / 16_000])
    assert analysis.sites["encoder"]["key_end"].values[0] == pytest.approx(20 / 16_000)  # 10 samples, and 2 steps of 5


def test_placeholders_of_an_image_have_no_average_word() -> None:
    """Their terms are the same from both baselines, wherever the image stands in the text."""
    lens = Lens(models.llava())
    for ends in (False, True):
        inputs = {"input_ids": models.prompt(ends_with_image=ends), "pixel_values": models.pixels()}
        marked = inputs["input_ids"][0] == models.IMAGE_TOKEN
        mean, zero = (lens.explain_inputs(inputs, output=7, baseline=baseline)[0] for baseline in ("mean", "zero"))
        np.testing.assert_allclose(mean["tokens"].values[marked], zero["tokens"].values[marked], rtol=1e-9)
        assert np.abs(mean["tokens"].values[~marked] - zero["tokens"].values[~marked]).max() > 1e-6
        assert mean["tokens"]["key_modality"].values[marked].tolist() == ["image"] * 9


def test_images_of_a_row_are_apart() -> None:
    lens, ids = Lens(models.llava()), models.prompt(2)
    image = models.pixels(2)
    both = lens.analyze_inputs({"input_ids": ids, "pixel_values": image})[0]
    assert sorted(both.sites) == ["decoder", "vision", "vision_image2"]
    alone = lens.analyze_inputs({"input_ids": models.prompt(), "pixel_values": image[1:]})[0]
    np.testing.assert_allclose(
        both.sites["vision_image2"]["attn_n"].values, alone.sites["vision"]["attn_n"].values, rtol=1e-4
    )
    assert both.sites["decoder"]["key_image"].values.max() == 1
    second = both.image_map("attn_n", image=1, site="decoder", query=-1)
    marked = both.sites["decoder"]["key_image"].values == 1
    np.testing.assert_array_equal(
        second.isel(layer=0).values.ravel(), both.site("decoder")["attn_n"].isel(layer=0, query=-1).values[marked]
    )


def test_rows_with_images_of_unknown_owners_are_refused() -> None:
    lens = Lens(models.llava())
    ids = models.prompt(2).repeat(2, 1)
    ids[1, 14:23] = 30  # the second row has one image less
    with pytest.raises(InputError, match="not known which image"):
        lens.analyze_inputs({"input_ids": ids, "pixel_values": models.pixels(3)})
    with pytest.raises(InputError, match="not known which image"):
        lens.explain_inputs({"input_ids": ids, "pixel_values": models.pixels(3)}, output=3)


def test_windows_are_not_images() -> None:
    """MobileViT attends within pieces of an image that stand in the batch: refused, and not taken for several images."""
    torch.manual_seed(0)
    config = tf.MobileViTConfig(image_size=128, hidden_sizes=[24, 32, 40], neck_hidden_sizes=[8, 8, 16, 16, 16, 16, 32])
    lens = Lens(models.filled(tf.MobileViTModel(config), dtype=torch.float32))
    with pytest.raises(AnatomyError, match="windows"):
        lens.analyze_inputs({"pixel_values": models.pixels(1, (128, 128)).float()})


def test_random_masks_are_the_same_in_every_pass() -> None:
    torch.manual_seed(0)
    sizes = models.VISION
    model = models.filled(tf.ViTMAEModel(tf.ViTMAEConfig(**sizes, mask_ratio=0.5)), dtype=torch.float32)
    lens, inputs = Lens(model), {"pixel_values": models.pixels().float()}
    state = torch.get_rng_state()
    first, second = lens.analyze_inputs(inputs)[0], lens.analyze_inputs(inputs)[0]
    assert torch.equal(torch.get_rng_state(), state)
    assert first["attn_n"].equals(second["attn_n"]) and first.provenance["pass_seed"] == 0
    assert lens.explain_inputs(inputs, direction=[1.0] * 24)[0].proof.gap < 1e-5


def test_terms_of_an_image_are_the_same_sum_on_both_sides_of_its_projector() -> None:
    """What image positions gave at the entrance of the language model is what patches and the tower's biases gave."""
    lens, ids = Lens(models.llava()), models.prompt(2)
    inputs = {"input_ids": ids, "pixel_values": models.pixels(2)}
    entered = lens.explain_inputs(inputs, output=7, baseline="zero")[0]
    carried = lens.explain_inputs(inputs, output=7, baseline="zero", through="vision")[0].site("vision")
    marked = (ids[0] == models.IMAGE_TOKEN).numpy()
    expected = float(entered["tokens"].values[marked].sum())
    assert float(carried["tokens"].sum() + carried["biases"].sum()) == pytest.approx(expected, rel=1e-9)
