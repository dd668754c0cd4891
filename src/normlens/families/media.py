"""Tiny random-weight models of the types that see or hear, and inputs for them.

The general rule of `tiny` with more sizes, lists of widths, heads and depths for hierarchical models, and inputs that follow
from the arguments of a model's forward pass. A type for which the rule gives no model that runs is listed with that reason.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

import torch
import transformers
from torch import Tensor, nn
from transformers.models.auto import modeling_auto
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from normlens.attribution.questions import first_tensor
from normlens.errors import ModelError
from normlens.families.sizes import MEDIA_OVERRIDES, MEDIA_SIZES, OVERRIDES, SIZES, VOCABULARY
from normlens.families.tiny import randomize, shrunk
from normlens.types import Json

#: The mappings whose types see or hear; a type is built as the class of the first one that has it.
MEDIA_MAPPINGS: dict[str, Mapping[str, Any]] = {
    "zero-shot-image-classification": modeling_auto.MODEL_FOR_ZERO_SHOT_IMAGE_CLASSIFICATION_MAPPING_NAMES,
    "image-text-to-text": modeling_auto.MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES,
    "speech-seq2seq": modeling_auto.MODEL_FOR_SPEECH_SEQ_2_SEQ_MAPPING_NAMES,
    "image-classification": modeling_auto.MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING_NAMES,
    "ctc": modeling_auto.MODEL_FOR_CTC_MAPPING_NAMES,
    "audio-classification": modeling_auto.MODEL_FOR_AUDIO_CLASSIFICATION_MAPPING_NAMES,
    "multimodal-lm": modeling_auto.MODEL_FOR_MULTIMODAL_LM_MAPPING_NAMES,
    "visual-question-answering": modeling_auto.MODEL_FOR_VISUAL_QUESTION_ANSWERING_MAPPING_NAMES,
    "object-detection": modeling_auto.MODEL_FOR_OBJECT_DETECTION_MAPPING_NAMES,
    "video-classification": modeling_auto.MODEL_FOR_VIDEO_CLASSIFICATION_MAPPING_NAMES,
    "semantic-segmentation": modeling_auto.MODEL_FOR_SEMANTIC_SEGMENTATION_MAPPING_NAMES,
    "depth-estimation": modeling_auto.MODEL_FOR_DEPTH_ESTIMATION_MAPPING_NAMES,
    "image": modeling_auto.MODEL_FOR_IMAGE_MAPPING_NAMES,
}
_WIDTHS = ("hidden_sizes", "embed_dims", "embed_dim", "encoder_hidden_sizes")
_HEADS = ("num_heads", "num_attention_heads")
_DEPTHS = ("depths", "depth", "num_encoder_blocks", "layers_depths")
_FRAMES, _SAMPLES = 64, 7680
#: Types that take several frames, or several images of a row.
_VIDEO = ("timesformer", "vivit", "videomae")
_SEVERAL = ("idefics", "idefics2", "idefics3", "inkling_mm_model", "smolvlm", "modernvbert")
#: An id for each placeholder, by the word in its name.
_PLACES = {"image": 90, "video": 91, "audio": 92, "vision_start": 88, "vision_end": 89, "boi": 86, "eoi": 87}


def media_families() -> dict[str, str]:
    """Every type that sees or hears, with the mapping in which it is found first."""
    found: dict[str, str] = {}
    for mapping, names in MEDIA_MAPPINGS.items():
        for family in names:
            found.setdefault(family, mapping)
    return dict(sorted(found.items()))


def tiny_media_model(family: str, *, seed: int = 0) -> nn.Module:
    """A tiny model of this type with random weights, in evaluation mode."""
    mapping = media_families().get(family)
    if mapping is None:
        raise ModelError(f"{family!r} is no model type of transformers' image, sound and multimodal mappings")
    names = MEDIA_MAPPINGS[mapping][family]
    cls = getattr(transformers, names if isinstance(names, str) else names[0])
    kind = CONFIG_MAPPING[family]
    overrides = _merged(OVERRIDES.get(family, {}), MEDIA_OVERRIDES.get(family, {}))
    config = kind(**_adjusted(kind, shrunk(kind, overrides, SIZES | MEDIA_SIZES), overrides))
    torch.manual_seed(seed)
    try:
        model: nn.Module = cls._from_config(config, attn_implementation="eager")
    except (TypeError, ValueError) as error:
        if "eager" not in str(error) and "attn_implementation" not in str(error):
            raise
        model = cls._from_config(config)
    if sum(parameter.numel() for parameter in model.parameters()) > 100e6:
        raise ModelError(f"the tiny {family!r} has more than 100 million parameters")
    randomize(model, seed)
    for module in model.modules():  # statistics away from 0 and 1
        if isinstance(getattr(module, "running_mean", None), Tensor):
            module.running_mean.add_(0.1)  # type: ignore[operator]
    return model.eval()


def _merged(one: Json, other: Json) -> Json:
    found = dict(one)
    for name, value in other.items():
        both = isinstance(value, dict) and isinstance(found.get(name), dict)
        found[name] = _merged(found[name], value) if both else value
    return found


def _adjusted(kind: Any, chosen: Json, overrides: Json) -> Json:
    """Lists of hierarchical models, ids of placeholders, and rotary sections, in a configuration and its parts."""
    try:
        fields = vars(kind())
    except Exception:
        return chosen
    found = dict(chosen)
    for name, value in overrides.items():
        if isinstance(value, dict) and "model_type" in value:  # a part of another type than by default
            found[name] = value
    for name, value in fields.items():
        if name in overrides and not hasattr(value, "to_dict"):
            continue
        numbers = isinstance(value, list | tuple) and bool(value) and all(type(x) is int for x in value)
        if numbers and name in _WIDTHS:
            found[name] = [32 * 2 ** min(place, 2) for place in range(len(value))]
        elif numbers and name in _HEADS:
            found[name] = [2 * 2 ** min(place, 2) for place in range(len(value))]
        elif numbers and name in _DEPTHS:
            found[name] = [min(x, 2) for x in value]
            for count in ("num_layers", "num_hidden_layers"):
                found.pop(count, None)
        elif name.endswith(("_token_id", "_token_index")) and isinstance(value, int):
            known = [number for word, number in _PLACES.items() if name.startswith(word)]
            found[name] = known[0] if known else min(value, VOCABULARY - 1)
        elif isinstance(value, dict) and any("section" in str(key) for key in value):
            found[name] = {**value, **{key: [2, 1, 1] for key in value if key == "mrope_section"}}
        elif hasattr(value, "to_dict") and isinstance(found.get(name), dict):
            inner = overrides.get(name, {})
            found[name] = _adjusted(type(value), found[name], inner if isinstance(inner, dict) else {})
    return found


# ---- inputs ------------------------------------------------------------------------------------------------------------


def media_inputs(model: nn.Module) -> dict[str, Tensor]:
    """Noise to look at or to hear, and text around it, as the arguments of the model's forward pass ask for."""
    config: Any = model.config
    asked = inspect.signature(model.forward).parameters
    inputs: dict[str, Tensor] = {}
    if "pixel_values_videos" in asked and "pixel_values" not in asked:
        size = _find(config, "image_size", "crop_size") or 64
        inputs["pixel_values_videos"] = _noise(_find(config, "num_frames", "frames_per_clip") or 2, 3, size, size)
    elif "pixel_values" in asked:
        inputs |= _pixels(config, asked)
    elif "input_features" in asked:
        bands = _find(config, "num_mel_bins", "feature_projection_input_dim", "input_feat_per_channel", "n_mels") or 8
        frames = 2 * (_find(config, "max_source_positions") or _FRAMES // 2)
        inputs["input_features"] = _noise(bands, frames)
        if getattr(model, "main_input_name", "") == "input_features" and not _takes(model, inputs):
            inputs["input_features"] = _noise(frames, bands)
    elif "input_values" in asked:
        inputs["input_values"] = _noise(_SAMPLES)
        if _find(config, "max_length") and _find(config, "num_mel_bins"):  # a spectrogram
            inputs["input_values"] = _noise(_find(config, "max_length") or 1, _find(config, "num_mel_bins") or 1)
    for name in ("feature_attention_mask", "input_features_mask"):
        if name in asked and "input_features" in inputs:
            inputs[name] = torch.ones(1, inputs["input_features"].shape[-1], dtype=torch.long)
    if "input_ids" in asked:
        inputs |= _text(model, config, inputs)
    if "qformer_input_ids" in asked:
        inputs["qformer_input_ids"] = torch.tensor([[11, 12, 13]])
    if "decoder_input_ids" in asked:
        inputs["decoder_input_ids"] = torch.randint(10, 60, (1, 6), generator=torch.Generator().manual_seed(2))
    return inputs


def _noise(*shape: int) -> Tensor:
    return torch.randn(1, *shape, generator=torch.Generator().manual_seed(len(shape)))


def _find(config: Any, *names: str) -> int | None:
    """The first of these numbers in a configuration, its vision or audio part before the rest."""
    parts = [
        config,
        *(getattr(config, name, None) for name in ("vision_config", "audio_config", "encoder", "backbone_config")),
    ]
    for name in names:
        for part in parts:
            value = getattr(part, name, None)
            if isinstance(value, int) and not isinstance(value, bool):
                return value
            if isinstance(value, list | tuple) and value and isinstance(value[0], int):
                return int(value[0])
    return None


def _pixels(config: Any, asked: Mapping[str, Any]) -> dict[str, Tensor]:
    channels, size = _find(config, "num_channels", "in_channels") or 3, _find(config, "image_size", "img_size") or 64
    if "spatial_shapes" in asked:
        patch = _find(config, "patch_size") or 8
        pixels, shapes = _noise(16, channels * patch**2), torch.tensor([[4, 4]])
        return {"pixel_values": pixels, "spatial_shapes": shapes, "pixel_attention_mask": torch.ones(1, 16).long()}
    if "image_grid_thw" in asked:
        patch, frames = _find(config, "patch_size") or 8, _find(config, "temporal_patch_size") or 1
        pixels = torch.randn(32, channels * frames * patch**2, generator=torch.Generator().manual_seed(1))
        return {"pixel_values": pixels, "image_grid_thw": torch.tensor([[1, 4, 8]])}
    image = _noise(channels, size, size)
    if config.model_type in _VIDEO:
        return {"pixel_values": _noise(_find(config, "num_frames") or 2, channels, size, size)}
    if getattr(config, "image_grid_pinpoints", None):  # the whole image, and one part of it
        return {"pixel_values": torch.stack([image, image], 1), "image_sizes": torch.tensor([[size, size]])}
    found = {"pixel_values": image[:, None] if config.model_type in _SEVERAL else image}
    if getattr(getattr(config, "vision_config", None), "model_type", "") == "pixtral":
        found["image_sizes"] = torch.tensor([[size, size]])
    return found


def _text(model: nn.Module, config: Any, media: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Nine tokens, with a placeholder for each position that the features of an image or sound take."""
    ids = torch.randint(10, 60, (9,), generator=torch.Generator().manual_seed(1)).tolist()
    for name, what in (("image", "pixel_values"), ("audio", "input_features"), ("audio", "input_values")):
        marks = [getattr(config, f"{name}_token_{ending}", None) for ending in ("id", "index")]
        mark = next((mark for mark in marks if isinstance(mark, int)), None)
        count = _positions(model, f"get_{name}_features", media) if what in media and mark is not None else 0
        ids = [*ids[:3], *[mark] * count, *ids[3:]]
    found = {"input_ids": torch.tensor([ids])}
    found["attention_mask"] = torch.ones_like(found["input_ids"])
    if "mm_token_type_ids" in inspect.signature(model.forward).parameters:
        found["mm_token_type_ids"] = (found["input_ids"] == getattr(config, "image_token_id", -1)).long()
    return found


def _positions(model: nn.Module, name: str, media: Mapping[str, Tensor]) -> int:
    """How many positions the features of an image or sound take in the language model."""
    for owner in (getattr(model, "model", None), model):
        features = getattr(owner, name, None)
        if features is None:
            continue
        try:
            taken = inspect.signature(features).parameters
            with torch.no_grad():
                output = features(**{key: value for key, value in media.items() if key in taken})
        except Exception:  # it takes more than these inputs
            continue
        pooled = getattr(output, "pooler_output", None)
        pooled = output if pooled is None else pooled
        pieces = (
            pooled
            if isinstance(pooled, list | tuple)
            else [pooled if isinstance(pooled, Tensor) else first_tensor(pooled)]
        )
        return sum(piece.numel() // piece.shape[-1] for piece in pieces)
    return 0


def _takes(model: nn.Module, inputs: Mapping[str, Tensor]) -> bool:
    """Return True if a model runs on these inputs, with a few decoder tokens where it needs them."""
    asked = inspect.signature(model.forward).parameters
    more = {"decoder_input_ids": torch.tensor([[10, 11]])} if "decoder_input_ids" in asked else {}
    try:
        with torch.no_grad():
            model(**inputs, **more)
    except Exception:
        return False
    return True
