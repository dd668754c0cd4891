"""Images and sound as their user has them: paths, arrays and processors; bad ones end in one sentence."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers as tf
from PIL import Image
from scipy.io import wavfile

import normlens
from normlens import Lens
from normlens.cli.main import build
from normlens.errors import InputError
from normlens.faithfulness.images import IMAGE_METHODS, SHARES, Picture, image_study, read_picture
from tests.modalities import models

PROCESSOR = tf.ViTImageProcessorPil if hasattr(tf, "ViTImageProcessorPil") else tf.ViTImageProcessor


@pytest.fixture(scope="module")
def seeing() -> Lens:
    processor = PROCESSOR(size={"height": 12, "width": 12})
    return Lens(models.vit(dtype=torch.float32), processor)


@pytest.fixture(scope="module")
def hearing() -> Lens:
    extractor = tf.WhisperFeatureExtractor(feature_size=6, hop_length=160, chunk_length=1, n_fft=400, nb_max_frames=18)
    extractor.nb_max_frames, extractor.n_samples = 18, 18 * 160
    return Lens(models.whisper(dtype=torch.float32), extractor)


@pytest.fixture(scope="module")
def picture(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("pictures") / "noise.png"
    noise = np.random.default_rng(0).integers(0, 256, (20, 30, 3), dtype=np.uint8)
    Image.fromarray(noise).save(path)
    return path


def test_an_image_is_the_same_in_every_form(seeing: Lens, picture: Path) -> None:
    opened = Image.open(picture).convert("RGB")
    forms: list[Any] = [picture, str(picture), opened, np.asarray(opened), torch.from_numpy(np.array(opened))]
    found = [seeing.analyze(images=form) for form in forms]
    for other in found[1:]:
        np.testing.assert_array_equal(found[0]["attn_n"].values, other["attn_n"].values)
    record = found[0].provenance["images"][0]
    assert record["file"] == "noise.png" and record["shape"] == [20, 30, 3]
    several = seeing.analyze(images=[picture, opened])
    np.testing.assert_allclose(several[1]["attn_n"].values, found[0]["attn_n"].values, rtol=1e-5)


def test_labels_of_a_classifier(seeing: Lens, picture: Path) -> None:
    found = seeing.explain(images=picture, output="label_3", against=0)
    assert found.provenance["output"] == "LABEL_3" and found.image_map().shape == (3, 3)
    total = float(found["tokens"].sum() + found["biases"].sum())
    assert total == pytest.approx(found.value, abs=1e-4)


def test_what_is_set_against_an_output(hearing: Lens) -> None:
    sound = np.random.default_rng(1).standard_normal(2_000).astype(np.float32)
    one, other = (hearing.explain(audio=sound, sampling_rate=16_000, output=number).value for number in (5, 7))
    both = hearing.explain(audio=sound, sampling_rate=16_000, output=5, against=7)
    assert both.value == pytest.approx(one - other, abs=1e-4) and both.provenance["against"] == "7"
    with pytest.raises(InputError, match="position needs a target"):
        hearing.explain(audio=sound, sampling_rate=16_000, output=5, position=2)


def test_channels_may_stand_on_either_side(hearing: Lens) -> None:
    sound = np.random.default_rng(1).standard_normal((2, 2_000)).astype(np.float32)
    values = [
        hearing.explain(audio=form, sampling_rate=16_000, output=5).value for form in (sound, sound.T, sound.mean(0))
    ]
    assert values[0] == values[1] == values[2]


def test_sound_is_resampled_and_has_seconds(hearing: Lens, tmp_path: Path) -> None:
    tone = np.sin(np.arange(1_200) / 8_000 * 2 * np.pi * 440).astype(np.float32)
    wavfile.write(tmp_path / "tone.wav", 8_000, (tone * 32_767).astype(np.int16))
    explained = hearing.explain(audio=tmp_path / "tone.wav", generate=True, max_new_tokens=2)
    assert explained.provenance["audio"]["sampling_rate"] == 8_000
    assert explained.provenance["audio"]["seconds"] == pytest.approx(0.15)
    assert explained.site("encoder")["tokens"]["key_start"].values[1] == pytest.approx(0.02)


def test_results_are_stored_with_their_places(seeing: Lens, picture: Path, tmp_path: Path) -> None:
    analysis = seeing.analyze(images=picture)
    analysis.save(tmp_path / "a.zarr")
    opened = normlens.open(tmp_path / "a.zarr")
    assert isinstance(opened, normlens.Analysis)
    assert opened.image_map("attn_n").equals(analysis.image_map("attn_n"))
    explanation = seeing.explain(images=picture, output=1)
    explanation.save(tmp_path / "e.zarr")
    again = normlens.open(tmp_path / "e.zarr")
    assert isinstance(again, normlens.Explanation)
    assert again.image_map().equals(explanation.image_map())


def test_figures_over_an_image(seeing: Lens, picture: Path) -> None:
    figure = seeing.analyze(images=picture).plot("attn_n", image=picture)
    assert [ax.get_title(loc="left") for ax in figure.axes[:4]] == ["image", "layer 1", "layer 2", "layer 3"]
    explained = seeing.explain(images=picture, output=1).plot(image=picture)
    assert explained.axes[1].get_title(loc="left") == "LABEL_1"
    assert explained.axes[2].get_xlabel() == "← lowers it    term of each patch    raises it →"


def test_figures_over_sound(hearing: Lens) -> None:
    sound = np.random.default_rng(0).standard_normal(2_880).astype(np.float32)
    explanation = hearing.explain(audio=sound, sampling_rate=16_000, generate=True, max_new_tokens=2)
    figure = explanation.plot(audio=sound, sampling_rate=16_000)
    assert figure.axes[0].get_title(loc="left") == "waveform" and len(figure.axes) == 1 + explanation.value.size
    assert figure.axes[-1].get_xlim() == (0.0, pytest.approx(0.18))


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (lambda lens, picture: lens.analyze("a cat"), "reads no text"),
        (lambda lens, picture: lens.analyze(images="/no/such.png"), "cannot be read as an image"),
        (lambda lens, picture: lens.analyze(images=np.zeros((5, 4, 7))), "height, width and 3 channels"),
        (lambda lens, picture: lens.analyze(images=np.full((8, 8, 3), np.nan)), "NaN"),
        (lambda lens, picture: lens.analyze(images=[]), "images is empty"),
        (lambda lens, picture: lens.analyze(audio=np.zeros(100), sampling_rate=16_000), "reads no sound"),
        (lambda lens, picture: lens.analyze(images=picture, words="norms"), "words cannot be used"),
        (lambda lens, picture: lens.explain(images=picture, output="dog"), "output must be one of the labels"),
        (lambda lens, picture: lens.explain(images=picture, position=3), "position is not used"),
        (lambda lens, picture: lens.explain(images=picture, messages=[{"role": "user"}]), "messages cannot be used"),
        (lambda lens, picture: lens.explain(images=picture, generate=True), "cannot generate"),
    ],
)
def test_mistakes_end_in_a_sentence(seeing: Lens, picture: Path, call: Any, sentence: str) -> None:
    with pytest.raises(normlens.errors.NormlensError, match=sentence):
        call(seeing, picture)


def test_a_keyword_that_is_misspelt(seeing: Lens, picture: Path) -> None:
    with pytest.raises(TypeError, match="did you mean 'images'"):
        seeing.analyze(image=picture)  # type: ignore[call-overload]


def test_sound_without_a_rate(hearing: Lens) -> None:
    with pytest.raises(InputError, match="sampling_rate must be given with samples"):
        hearing.explain(audio=np.zeros(1_000), output=3)


def test_a_lens_without_a_processor() -> None:
    with pytest.raises(InputError, match="no processor"):
        Lens(models.vit()).analyze(images=np.zeros((12, 12, 3)))


def test_loading_and_the_shell(seeing: Lens, picture: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "model"
    seeing.model.save_pretrained(folder)  # type: ignore[operator]
    seeing.processor.save_pretrained(folder)
    loaded = normlens.load(folder)
    np.testing.assert_array_equal(
        loaded.analyze(images=picture)["attn_n"].values, seeing.analyze(images=picture)["attn_n"].values
    )
    common = ["--image", str(picture), "--model", str(folder), "--json"]
    app = build()
    app(["analyze", *common, "--measure", "attn_n", "--out", str(tmp_path / "out")], standalone_mode=False)
    written = json.loads(capsys.readouterr().out)
    assert written["sites"]["encoder"]["key_tokens"][:2] == ["[CLS]", "(0,0)"]
    assert (tmp_path / "out" / "attn_n_first.png").exists()
    app(["explain", *common, "--output", "LABEL_2", "--picture", str(tmp_path / "e.svg")], standalone_mode=False)
    assert json.loads(capsys.readouterr().out)["provenance"]["output"] == "LABEL_2"
    assert (tmp_path / "e.svg").exists()


def test_judging_by_patches(seeing: Lens, picture: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    study = image_study(seeing, [picture, picture])
    table = study.table()
    assert sorted(table["method"]) == sorted(IMAGE_METHODS)
    assert study.against("fixed", "fixed").mean == 0.0
    for column in ("deletion", "insertion"):  # the same picture twice has the same number twice, whatever the method
        assert all(values[0] == pytest.approx(values[1]) for values in getattr(study, column).values())
    folder = tmp_path / "model"
    seeing.model.save_pretrained(folder)  # type: ignore[operator]
    seeing.processor.save_pretrained(folder)
    arguments = ["faithful", "--image", str(picture), "--model", str(folder), "--out", str(tmp_path / "out"), "--json"]
    build()([*arguments, "--method", "fixed", "--method", "random"], standalone_mode=False)
    written = json.loads(capsys.readouterr().out)
    assert [row["method"] for row in written["rows"]] == list(
        table["method"][table["method"].isin(["fixed", "random"])]
    )
    assert (tmp_path / "out" / "images.csv").exists()


def test_the_patches_of_a_perfect_method_are_all_that_matters(seeing: Lens, picture: Path) -> None:
    """Scores by removing each patch alone find what deletion asks for at least as well as numbers that are drawn."""

    def erasure(lens: Lens, one: Picture) -> np.ndarray:
        pixels = one.inputs["pixel_values"]
        levels = []
        for place in one.places:
            changed = pixels.clone()
            changed[..., int(place.top) : int(place.bottom), int(place.left) : int(place.right)] = 0
            levels.append(float(lens.model(pixel_values=changed).logits.softmax(-1)[0, one.output]))
        return -np.array(levels)

    IMAGE_METHODS["erasure"] = erasure
    try:
        study = image_study(seeing, [picture], ["erasure", "random"])
    finally:
        del IMAGE_METHODS["erasure"]
    assert study.deletion["erasure"][0] >= study.deletion["random"][0]


def test_pointing_at_an_object(seeing: Lens, picture: Path) -> None:
    """A method that scores what the mask covers points at it, and ranks all of its patches first."""
    mask = np.zeros((20, 30), dtype=bool)
    mask[:7, :10] = True  # the first patch of 3 x 3, in the shape of the picture

    def first(lens: Lens, one: Picture) -> np.ndarray:
        return np.array([float(place.row == place.column == 0) for place in one.places])

    def last(lens: Lens, one: Picture) -> np.ndarray:
        return -first(lens, one)

    IMAGE_METHODS["first"], IMAGE_METHODS["last"] = first, last
    try:
        study = image_study(seeing, [picture], ["first", "last"], masks=[mask])
    finally:
        del IMAGE_METHODS["first"], IMAGE_METHODS["last"]
    assert study.pointing["first"][0] == 1.0 and study.pointing["last"][0] == 0.0
    assert study.segmentation["first"][0] == 1.0 and study.segmentation["last"][0] == pytest.approx(1 / 9)
    assert list(study.table().columns[-6:]) == [
        f"{name}{end}" for name in ("pointing", "segmentation") for end in ("", "_low", "_high")
    ]
    with pytest.raises(InputError, match="each image needs its mask"):
        image_study(seeing, [picture], ["random"], masks=[mask, mask])


def test_judging_by_frames_of_sound() -> None:
    """Deletion by silence, for a classifier of recordings: the steps against removing the samples by hand."""
    model = models.ctc(tf.Wav2Vec2Config, tf.Wav2Vec2ForSequenceClassification, dtype=torch.float32)
    lens = Lens(model, tf.Wav2Vec2FeatureExtractor(sampling_rate=16_000, do_normalize=False))
    sound = np.random.default_rng(0).standard_normal(400).astype(np.float32)
    study = image_study(lens, [sound], ["fixed", "gradient_x_input", "attention_rollout"], sampling_rate=16_000)
    assert set(study.columns) == {"deletion", "insertion"}
    picture = read_picture(lens, sound, 16_000)
    order = np.argsort(-IMAGE_METHODS["fixed"](lens, picture), kind="stable")
    levels = []
    for share in SHARES:
        changed = picture.inputs["input_values"].clone()
        for frame in order[: max(1, round(share * len(order)))]:
            place = picture.places[frame]
            changed[:, round(place.start * 16_000) : round(place.end * 16_000)] = 0
        levels.append(float(model(changed).logits.softmax(-1)[0, picture.output]))
    whole = float(model(picture.inputs["input_values"]).logits.softmax(-1)[0, picture.output])
    assert study.deletion["fixed"][0] == pytest.approx(1 - np.mean(levels) / whole, abs=1e-5)
