"""Tiny encoders of images and sounds, and something for them to look at or to hear."""

from __future__ import annotations

from typing import Any

import torch
import transformers
from torch import Tensor, nn
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from normlens.families.table import IMAGES
from normlens.families.tiny import randomize, shrunk

_IMAGE = {"image_size": 16, "patch_size": 4}
_SOUND = {
    "conv_dim": [8, 8],
    "conv_stride": [5, 2],
    "conv_kernel": [10, 3],
    "num_feat_extract_layers": 2,
    "num_conv_pos_embeddings": 4,
    "num_conv_pos_embedding_groups": 2,
}
_SPECTROGRAM = {"max_length": 24, "num_mel_bins": 16, "patch_size": 4, "frequency_stride": 4, "time_stride": 4}
_WHISPER = {"max_source_positions": 10, "num_mel_bins": 8, "vocab_size": 96, "decoder_start_token_id": 1}


def example(family: str) -> tuple[nn.Module, dict[str, Tensor]]:
    """A tiny model of images or sounds with random weights, and something for it to look at or to hear."""
    generator = torch.Generator().manual_seed(0)

    def noise(*shape: int) -> Tensor:
        return torch.randn(2, *shape, generator=generator)

    inputs: dict[str, Tensor]
    overrides: dict[str, Any]
    if family in IMAGES:
        overrides, inputs = _IMAGE, {"pixel_values": noise(3, 16, 16)}
    elif family == "audio-spectrogram-transformer":
        overrides, inputs = _SPECTROGRAM, {"input_values": noise(24, 16)}
    elif family == "whisper":
        target = torch.tensor([[4, 9, 7, 30, 8], [3, 5, 6, 11, 2]])
        overrides, inputs = _WHISPER, {"input_features": noise(8, 20), "decoder_input_ids": target}
    else:
        overrides, inputs = _SOUND, {"input_values": noise(400)}
    kind = CONFIG_MAPPING[family]
    torch.manual_seed(0)
    model: nn.Module = transformers.AutoModel.from_config(kind(**shrunk(kind, overrides))).eval()
    randomize(model)
    return model, inputs
