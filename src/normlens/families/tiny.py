"""A tiny random-weight model of any type that transformers knows.

Shapes, not weights, make a family; so a model of two layers and width 32 shows all that a large one does, in
milliseconds. One general rule shrinks a configuration by the names of its numbers; `OVERRIDES` is the one place for
types where the rule alone does not give a valid (or a telling) model.
"""

from __future__ import annotations

import math
from typing import Any

import torch
import transformers
from torch import Tensor, nn
from transformers import AutoConfig
from transformers.models.auto import modeling_auto
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from normlens.errors import ModelError

#: The mappings whose types are the text families, with the class that each type is built as.
MAPPINGS = {
    "seq2seq": modeling_auto.MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES,
    "masked-lm": modeling_auto.MODEL_FOR_MASKED_LM_MAPPING_NAMES,
    "causal-lm": modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
}

VOCABULARY = 96

#: What a number of this name becomes. Key-value heads are fewer than heads and values narrower than keys, so that a
#: mix-up of either shows.
_SIZES: dict[str, int] = {
    **dict.fromkeys(
        [
            "num_hidden_layers",
            "num_layers",
            "n_layer",
            "n_layers",
            "encoder_layers",
            "decoder_layers",
            "num_decoder_layers",
            "num_encoder_layers",
            "depth",
            "num_layers_per_stack",
            "speech_encoder_layers",
            "t2u_encoder_layers",
            "t2u_decoder_layers",
            "num_hidden_layers_decoder",
            "num_global_layers",
            "text_encoder_layers",
            "vision_layers",
        ],
        2,
    ),
    **dict.fromkeys(
        [
            "hidden_size",
            "d_model",
            "n_embd",
            "dim",
            "emb_dim",
            "width",
            "embed_dim",
            "true_hidden_size",
            "lru_width",
            "attention_hidden_size",
            "backbone_hidden_size",
            "pooler_hidden_size",
            "word_embed_proj_dim",
            "embedding_size",
            "entity_emb_size",
            "d_latents",
            "input_embedding_size",
            "output_embedding_size",
            "prediction_head_size",
            "mm_embed_dim",
            "output_proj_dims",
            "mm_posemb_size",
            "downsample_hidden_size",
            "output_dim",
        ],
        32,
    ),
    **dict.fromkeys(
        [
            "intermediate_size",
            "ffn_dim",
            "encoder_ffn_dim",
            "decoder_ffn_dim",
            "d_ff",
            "d_inner",
            "n_inner",
            "ffn_hidden_size",
            "dim_ff",
            "dff",
            "hidden_dim",
            "moe_intermediate_size",
            "shared_expert_intermediate_size",
            "shared_intermediate_size",
            "feed_forward_size",
            "intermediate_size_mlp",
            "dense_intermediate_size",
            "expert_ffn_hidden_size",
            "speech_encoder_intermediate_size",
            "t2u_encoder_ffn_dim",
            "t2u_decoder_ffn_dim",
            "moe_shared_expert_intermediate_size",
            "mlp_dim",
            "prompt_mid_dim",
        ],
        24,
    ),
    **dict.fromkeys(
        [
            "num_attention_heads",
            "n_head",
            "n_heads",
            "num_heads",
            "encoder_attention_heads",
            "decoder_attention_heads",
            "attention_heads",
            "num_encoder_attention_heads",
            "num_decoder_attention_heads",
            "speech_encoder_attention_heads",
            "index_n_heads",
            "t2u_encoder_attention_heads",
            "t2u_decoder_attention_heads",
            "swa_num_attention_heads",
        ],
        4,
    ),
    **dict.fromkeys(["num_key_value_heads", "num_kv_heads", "swa_num_key_value_heads", "num_query_groups"], 2),
    **dict.fromkeys(
        [
            "head_dim",
            "d_kv",
            "kv_channels",
            "d_head",
            "dim_head",
            "attention_head_size",
            "swa_head_dim",
            "index_head_dim",
            "global_head_dim",
            "attention_head_dim",
            "qk_nope_head_dim",
            "linear_key_head_dim",
            "linear_value_head_dim",
            "linear_head_dim",
            "rotary_dim",
            "head_dim_vision",
        ],
        8,
    ),
    **dict.fromkeys(["qk_rope_head_dim"], 4),
    **dict.fromkeys(["v_head_dim"], 6),
    **dict.fromkeys(["qk_head_dim"], 12),
    **dict.fromkeys(
        ["kv_lora_rank", "q_lora_rank", "o_lora_rank", "laurel_rank", "adapter_rank", "gated_norm_rank"], 8
    ),
    **dict.fromkeys(
        [
            "num_experts",
            "num_local_experts",
            "n_routed_experts",
            "moe_num_experts",
            "zero_expert_num",
            "moe_num_primary_experts",
        ],
        4,
    ),
    **dict.fromkeys(
        [
            "num_experts_per_tok",
            "num_experts_per_token",
            "moe_topk",
            "moe_k",
            "topk_group",
            "n_group",
            "num_expert_group",
            "top_k_experts",
            "num_shared_experts",
            "n_shared_experts",
            "moe_num_shared_experts",
            "hc_mult",
        ],
        2,
    ),
    **dict.fromkeys(
        [
            "max_position_embeddings",
            "n_positions",
            "n_ctx",
            "max_seq_len",
            "max_encoder_position_embeddings",
            "max_decoder_position_embeddings",
            "max_source_positions",
            "max_target_positions",
            "model_max_length",
            "context_length",
            "t2u_max_position_embeddings",
            "original_max_position_embeddings",
        ],
        64,
    ),
    **dict.fromkeys(
        ["sliding_window", "window_size", "attention_window_size", "sliding_window_size", "local_attention"], 4
    ),
    **dict.fromkeys(
        [
            "vocab_size",
            "src_vocab_size",
            "tgt_vocab_size",
            "decoder_vocab_size",
            "t2u_vocab_size",
            "entity_vocab_size",
            "char_vocab_size",
            "vocab_size_per_layer_input",
            "unit_hifi_gan_vocab_size",
            "pronunciation_vocab_size",
            "shape_vocab_size",
            "image_vocab_size",
            "encoder_hash_byte_group_vocab",
        ],
        VOCABULARY,
    ),
    **dict.fromkeys(
        [
            "mamba_d_state",
            "state_size",
            "ssm_state_size",
            "mamba_d_head",
            "mamba_head_dim",
            "mamba_chunk_size",
            "chunk_size",
            "mamba_headdim",
            "time_step_rank",
            "mamba_dt_rank",
            "hidden_size_per_layer_input",
            "shape_embed_dim",
            "pronunciation_embed_dim",
        ],
        8,
    ),
    **dict.fromkeys(["index_topk", "attention_chunk_size", "keep_window_size"], 4),
    **dict.fromkeys(["index_block_size", "index_topk_blocks"], 2),
    **dict.fromkeys(["linear_num_key_heads", "linear_num_value_heads", "linear_num_heads"], 4),
}


def families() -> dict[str, str]:
    """Every text model type, with the mapping in which it is found first."""
    found: dict[str, str] = {}
    for mapping, names in MAPPINGS.items():
        for family in names:
            found.setdefault(family, mapping)
    return dict(sorted(found.items()))


def tiny_model(family: str, *, dtype: torch.dtype = torch.float32, seed: int = 0) -> nn.Module:
    """A tiny model of this type with random weights, in evaluation mode and with its own eager attention."""
    mapping = families().get(family)
    if mapping is None:
        raise ModelError(f"a family is a model type of transformers' text mappings: {family!r} is none")
    names = MAPPINGS[mapping][family]
    name = names if isinstance(names, str) else names[0]
    cls = getattr(transformers, name)
    config = tiny_config(family)
    if not isinstance(config, cls.config_class):  # a text class for a type that also has images or sounds
        config = config.get_text_config(decoder=True)
    torch.manual_seed(seed)
    model: nn.Module = cls._from_config(config, attn_implementation="eager")
    if family == "xmod":
        model.set_default_language("en_XX")  # type: ignore[operator]
    randomize(model, seed)
    return model.to(dtype).eval()


def tiny_config(family: str) -> Any:
    """The shrunk configuration of a type."""
    return CONFIG_MAPPING[family](**_shrunk(CONFIG_MAPPING[family], OVERRIDES.get(family, {})))


def _shrunk(cls: Any, overrides: dict[str, Any]) -> dict[str, Any]:
    fields = _defaults(cls)
    chosen = {name: size for name, size in _SIZES.items() if _is_larger(fields.get(name), size)}
    for name in ("head_dim", "num_key_value_heads", "vocab_size"):
        if name in fields and fields[name] is None:  # left to the checkpoint
            chosen[name] = _SIZES[name]
    if "qk_rope_head_dim" in fields and "head_dim" in chosen:  # latent attention: this is what the rotation acts on
        chosen["head_dim"] = _SIZES["qk_rope_head_dim"]
    if "qk_rope_head_dim" in fields and "num_key_value_heads" in chosen:  # and every head has values of its own
        chosen["num_key_value_heads"] = _SIZES["num_attention_heads"]
    if "vocab_size" in fields:
        chosen["vocab_size"] = VOCABULARY
    kinds = fields.get("layer_types")
    if isinstance(kinds, list) and len(set(kinds)) > 1:  # one layer of each kind
        chosen["layer_types"] = list(dict.fromkeys(kinds))
        chosen["num_hidden_layers"] = len(chosen["layer_types"])
    for name, value in fields.items():
        if name.endswith(("_token_id", "_token_index", "_index")) and isinstance(value, int) and value >= VOCABULARY:
            chosen[name] = VOCABULARY - 1
    for name, sub in getattr(cls, "sub_configs", {}).items():
        mine = overrides.get(name, {})
        default = fields.get(name)
        declared = getattr(cls, "sub_configs_defaults", {}).get(name)
        kind = type(default) if hasattr(default, "to_dict") else sub
        if kind is AutoConfig and getattr(declared, "model_type", None) in CONFIG_MAPPING:
            kind = CONFIG_MAPPING[declared.model_type]
        if isinstance(kind, type) and mine is not None and kind is not AutoConfig:
            chosen[name] = _shrunk(kind, mine) | {"model_type": getattr(kind, "model_type", "")}
    return chosen | {name: value for name, value in overrides.items() if name not in getattr(cls, "sub_configs", {})}


def _defaults(cls: Any) -> dict[str, Any]:
    try:
        made = cls()
    except Exception:
        return {name: getattr(cls, name, None) for name in getattr(cls, "__annotations__", {})}
    aliases = getattr(cls, "attribute_map", {})
    return {name: value for name, value in vars(made).items() if name not in aliases}


def _is_larger(value: Any, size: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value > size


def randomize(model: nn.Module, seed: int = 0) -> None:
    """Give every weight a telling size: biases away from zero, scales away from one, attention away from uniform."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            noise = torch.randn(parameter.shape, generator=generator).to(parameter.dtype)
            if parameter.ndim < 2:
                parameter.add_(0.2 * noise)
            else:
                parameter.copy_(noise * (1.5 / math.sqrt(parameter.shape[-1])))


def tiny_inputs(model: nn.Module, *, padded: bool) -> dict[str, Tensor]:
    """Token ids for a tiny model: one row, or three rows of different lengths padded on the right."""
    generator = torch.Generator().manual_seed(1)
    lengths, target_lengths = ((9, 4, 6), (6, 3, 5)) if padded else ((9,), (6,))
    inputs = _rows(lengths, generator, "")
    if getattr(getattr(model, "config", None), "is_encoder_decoder", False):
        inputs |= _rows(target_lengths, generator, "decoder_")
    return inputs


def _rows(lengths: tuple[int, ...], generator: torch.Generator, prefix: str) -> dict[str, Tensor]:
    ids = torch.randint(10, VOCABULARY - 10, (len(lengths), max(lengths)), generator=generator)
    mask = torch.arange(max(lengths)) < torch.tensor(lengths).unsqueeze(1)
    return {f"{prefix}input_ids": torch.where(mask, ids, 0), f"{prefix}attention_mask": mask.long()}


_MAMBA = {"mamba_n_heads": 8, "mamba_d_head": 8, "mamba_d_state": 8}
_BOTH = ["linear_attention", "full_attention"]
_WINDOWED = ["sliding_attention", "full_attention"]

#: What the general rule cannot know about a type.
OVERRIDES: dict[str, dict[str, Any]] = {
    # Hybrid stacks: two layers of which one attends.
    "bamba": {**_MAMBA, "attn_layer_indices": [1]},
    "granitemoehybrid": {**_MAMBA, "layer_types": _BOTH, "residual_multiplier": 0.7},
    "falcon_h1": {**_MAMBA, "mamba_d_ssm": 64, "attention_out_multiplier": 0.7},
    "zamba": {
        "num_hidden_layers": 4,
        "layers_block_type": ["linear_attention", "hybrid"] * 2,
        "attention_hidden_size": 64,
        "attention_head_dim": 16,
    },
    "zamba2": {
        "num_hidden_layers": 4,
        "layers_block_type": ["linear_attention", "hybrid"] * 2,
        "attention_hidden_size": 64,
        "attention_head_dim": 16,
        "n_mamba_heads": 8,
    },
    "deepseek_v2": {"num_experts_per_tok": 2},
    "dbrx": {"attn_config": {"rope_theta": 1e4, "kv_n_heads": 2, "clip_qkv": 8.0}},
    "jamba": {"attn_layer_period": 2, "attn_layer_offset": 1, "use_mamba_kernels": False},
    "lfm2": {"layer_types": ["conv", "full_attention"]},
    "lfm2_moe": {"layer_types": ["conv", "full_attention"], "num_dense_layers": 1},
    "recurrent_gemma": {"num_hidden_layers": 3},
    "nemotron_h": {"num_hidden_layers": 4, "n_groups": 2, "mamba_num_heads": 8},
    "mamba2": {"head_dim": 16, "n_groups": 2},
    "qwen4_exp_text": {
        "indexer_n_heads": 4,
        "indexer_kv_heads": 1,
        "indexer_head_dim": 8,
        "indexer_budget": 4,
        "indexer_compress_ratio": 2,
        "ngram_vocab_size_base": 100,
    },
    # Both kinds of mask in two layers.
    "cohere_compass_text": {"rope_parameters": {"full_attention": {"rope_type": "default", "rope_theta": 1e4}}},
    "gemma3n_text": {
        "num_hidden_layers": 3,
        "intermediate_size": 24,
        "num_kv_shared_layers": 1,
        "layer_types": [*_WINDOWED, "sliding_attention"],
    },
    "gemma4_unified_assistant": {"text_config": {"layer_types": _WINDOWED}},
    "gemma4_assistant": {
        "text_config": {"layer_types": _WINDOWED, "hidden_size_per_layer_input": 0, "vocab_size_per_layer_input": 0}
    },
    "neomme": {"head_dim": 16, "layer_types": _WINDOWED},
    "encoder-decoder": {"decoder": {"is_decoder": True, "add_cross_attention": True}},
    # Parts that the text never meets, made small.
    "vibevoice_asr": {
        "acoustic_tokenizer_encoder_config": {"num_filters": 2, "depths": [1] * 7, "hidden_size": 8},
        "semantic_tokenizer_encoder_config": {"num_filters": 2, "depths": [1] * 7, "hidden_size": 8},
    },
    "funnel": {"block_sizes": [1, 1], "num_decoder_layers": 1},
    # Numbers that must agree with each other.
    "esmc": {"num_key_value_heads": 4},
    "esm": {"vocab_size": VOCABULARY, "pad_token_id": 0, "mask_token_id": 1},
    "gpt_neo": {"attention_types": [[["global", "local"], 1]]},
    "led": {"attention_window": [4, 4]},
    "mobilebert": {"true_hidden_size": 32, "intra_bottleneck_size": 32, "num_feedforward_networks": 2},
    "reformer": {"axial_pos_shape": [8, 8], "axial_pos_embds_dim": [16, 16], "attn_layers": ["local", "lsh"]},
    "dots1": {"n_routed_experts": 4, "n_shared_experts": 1, "n_group": 1, "topk_group": 1, "num_experts_per_tok": 2},
    "nemo_speechlm": {"head_config": {"audio_hidden_size": 32}},
}

OVERRIDES["qwen4_exp"] = {"text_config": OVERRIDES["qwen4_exp_text"]}
