"""Tiny models that see or hear, with random weights in double precision, and inputs for them."""

from __future__ import annotations

from typing import Any

import torch
import transformers as tf
from torch import Tensor, nn

VISION: dict[str, Any] = {
    "hidden_size": 24,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "intermediate_size": 32,
    "image_size": 12,
    "patch_size": 4,
}
TEXT: dict[str, Any] = {
    "vocab_size": 60,
    "hidden_size": 24,
    "intermediate_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
IMAGE_TOKEN = 59


def filled(model: nn.Module, dtype: torch.dtype = torch.float64, attention: str = "eager") -> nn.Module:
    """Random numbers of telling sizes in every weight."""
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            if parameter.ndim == 1:
                parameter.add_(0.4 * noise)
            elif parameter.ndim > 1:
                parameter.copy_(noise * parameter[0].numel() ** -0.5)
    model.set_attn_implementation(attention)  # type: ignore[operator]
    return model.to(dtype).eval()


def vit(head: bool = True, **options: Any) -> nn.Module:
    torch.manual_seed(0)
    config = tf.ViTConfig(**VISION, num_labels=5, layer_norm_eps=1e-3)
    return filled(tf.ViTForImageClassification(config) if head else tf.ViTModel(config), **options)


def dinov2(**options: Any) -> nn.Module:
    torch.manual_seed(0)
    sizes = {name: value for name, value in VISION.items() if name != "intermediate_size"}
    return filled(tf.Dinov2Model(tf.Dinov2Config(**sizes, mlp_ratio=2, layerscale_value=0.5)), **options)


def clip(**options: Any) -> nn.Module:
    torch.manual_seed(0)
    text = {**TEXT, "hidden_size": 20, "num_attention_heads": 2, "eos_token_id": 39, "vocab_size": 40}
    config = tf.CLIPConfig(
        text_config={**text, "projection_dim": 16},
        vision_config={**VISION, "projection_dim": 16},
        projection_dim=16,
    )
    return filled(tf.CLIPModel(config), **options)


def siglip(**options: Any) -> nn.Module:
    torch.manual_seed(0)
    return filled(tf.SiglipModel(tf.SiglipConfig(text_config=TEXT, vision_config=VISION)), **options)


def whisper(positions: int = 9, **options: Any) -> nn.Module:
    torch.manual_seed(0)
    config = tf.WhisperConfig(
        vocab_size=50,
        num_mel_bins=6,
        d_model=24,
        encoder_layers=2,
        decoder_layers=3,
        encoder_attention_heads=4,
        decoder_attention_heads=3,
        encoder_ffn_dim=32,
        decoder_ffn_dim=28,
        max_source_positions=positions,
        max_target_positions=14,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
        decoder_start_token_id=3,
        suppress_tokens=None,
        begin_suppress_tokens=None,
    )
    return filled(tf.WhisperForConditionalGeneration(config), **options)


def wavlm(**options: Any) -> nn.Module:
    """A relative position bias for each row and head, in PyTorch's own attention with separate weights."""
    return ctc(tf.WavLMConfig, tf.WavLMForCTC, **options)


def ctc(config_class: Any = tf.Wav2Vec2Config, model_class: Any = tf.Wav2Vec2ForCTC, **options: Any) -> nn.Module:
    torch.manual_seed(0)
    config = config_class(
        vocab_size=20,
        hidden_size=24,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=32,
        conv_dim=(8, 8),
        conv_stride=(5, 2),
        conv_kernel=(10, 3),
        num_feat_extract_layers=2,
        num_conv_pos_embeddings=4,
        num_conv_pos_embedding_groups=2,
    )
    return filled(model_class(config), **options)


def llava(layer: Any = -2, strategy: str = "default", **options: Any) -> nn.Module:
    torch.manual_seed(0)
    config = tf.LlavaConfig(
        vision_config=tf.CLIPVisionConfig(**VISION, projection_dim=16),
        text_config=tf.LlamaConfig(**TEXT, num_key_value_heads=2, head_dim=8),
        image_token_index=IMAGE_TOKEN,
        image_seq_length=9 + (strategy == "full"),
        vision_feature_layer=layer,
        vision_feature_select_strategy=strategy,
    )
    return filled(tf.LlavaForConditionalGeneration(config), **options)


def detr(**options: Any) -> nn.Module:
    torch.manual_seed(0)
    backbone = tf.ResNetConfig(embedding_size=8, hidden_sizes=[8, 8], depths=[1, 1], out_features=["stage2"])
    config = tf.DetrConfig(
        d_model=24,
        encoder_layers=2,
        decoder_layers=2,
        encoder_attention_heads=4,
        decoder_attention_heads=4,
        encoder_ffn_dim=32,
        decoder_ffn_dim=32,
        num_queries=16,  # as many as patches of the image below
        backbone_config=backbone,
        use_timm_backbone=False,
        use_pretrained_backbone=False,
    )
    return filled(tf.DetrForObjectDetection(config), **options)


def pixels(count: int = 1, size: tuple[int, int] = (12, 12), seed: int = 1) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(count, 3, *size, generator=generator, dtype=torch.float64)


def features(count: int = 1, seed: int = 1) -> Tensor:
    return torch.randn(count, 6, 18, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def prompt(images: int = 1, each: int = 9, ends_with_image: bool = False) -> Tensor:
    ids = [1, 7, 12]
    for number in range(images):
        ids += [IMAGE_TOKEN] * each + [20 + number, 8]
    if ends_with_image:
        ids = ids[:-2]
    else:
        ids += [13, 4]
    return torch.tensor([ids])
