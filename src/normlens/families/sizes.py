"""The size of each number of a tiny configuration, by its name; and what a type needs beyond that.

The only tables of `normlens.families.tiny`: `SIZES` is the general rule, `OVERRIDES` its exceptions by type.
"""

from __future__ import annotations

from normlens.types import Json

VOCABULARY = 96

#: Key-value heads are fewer than heads and values narrower than keys, so that a mix-up of either shows.
_NAMES: tuple[tuple[int, str], ...] = (
    (
        2,
        """
        num_hidden_layers num_layers n_layer n_layers encoder_layers decoder_layers num_decoder_layers
        num_encoder_layers depth num_layers_per_stack speech_encoder_layers t2u_encoder_layers
        t2u_decoder_layers num_hidden_layers_decoder num_global_layers text_encoder_layers vision_layers
        """,
    ),
    (
        32,
        """
        hidden_size d_model n_embd dim emb_dim width embed_dim true_hidden_size lru_width
        attention_hidden_size backbone_hidden_size pooler_hidden_size word_embed_proj_dim embedding_size
        entity_emb_size d_latents input_embedding_size output_embedding_size prediction_head_size
        mm_embed_dim output_proj_dims mm_posemb_size downsample_hidden_size output_dim audio_hidden_size
        """,
    ),
    (
        24,
        """
        intermediate_size ffn_dim encoder_ffn_dim decoder_ffn_dim d_ff d_inner n_inner ffn_hidden_size
        dim_ff dff hidden_dim moe_intermediate_size shared_expert_intermediate_size shared_intermediate_size
        feed_forward_size intermediate_size_mlp dense_intermediate_size expert_ffn_hidden_size
        speech_encoder_intermediate_size t2u_encoder_ffn_dim t2u_decoder_ffn_dim
        moe_shared_expert_intermediate_size mlp_dim prompt_mid_dim
        """,
    ),
    (
        4,
        """
        num_attention_heads n_head n_heads num_heads encoder_attention_heads decoder_attention_heads
        attention_heads num_encoder_attention_heads num_decoder_attention_heads
        speech_encoder_attention_heads index_n_heads t2u_encoder_attention_heads t2u_decoder_attention_heads
        swa_num_attention_heads
        """,
    ),
    (
        2,
        """
        num_key_value_heads num_kv_heads swa_num_key_value_heads num_query_groups
        """,
    ),
    (
        8,
        """
        head_dim d_kv kv_channels d_head dim_head attention_head_size swa_head_dim index_head_dim
        global_head_dim attention_head_dim qk_nope_head_dim linear_key_head_dim linear_value_head_dim
        linear_head_dim rotary_dim head_dim_vision
        """,
    ),
    (
        4,
        """
        qk_rope_head_dim
        """,
    ),
    (
        6,
        """
        v_head_dim
        """,
    ),
    (
        12,
        """
        qk_head_dim
        """,
    ),
    (
        8,
        """
        kv_lora_rank q_lora_rank o_lora_rank laurel_rank adapter_rank gated_norm_rank
        """,
    ),
    (
        4,
        """
        num_experts num_local_experts n_routed_experts moe_num_experts zero_expert_num
        moe_num_primary_experts
        """,
    ),
    (
        2,
        """
        num_experts_per_tok num_experts_per_token moe_topk moe_k topk_group n_group num_expert_group
        top_k_experts num_shared_experts n_shared_experts moe_num_shared_experts hc_mult
        """,
    ),
    (
        64,
        """
        max_position_embeddings n_positions n_ctx max_seq_len max_encoder_position_embeddings
        max_decoder_position_embeddings max_source_positions max_target_positions model_max_length
        context_length t2u_max_position_embeddings original_max_position_embeddings
        """,
    ),
    (
        4,
        """
        sliding_window window_size attention_window_size sliding_window_size local_attention
        """,
    ),
    (
        VOCABULARY,
        """
        vocab_size src_vocab_size tgt_vocab_size decoder_vocab_size t2u_vocab_size entity_vocab_size
        char_vocab_size vocab_size_per_layer_input unit_hifi_gan_vocab_size pronunciation_vocab_size
        shape_vocab_size image_vocab_size encoder_hash_byte_group_vocab
        """,
    ),
    (
        8,
        """
        mamba_d_state state_size ssm_state_size mamba_d_head mamba_head_dim mamba_chunk_size chunk_size
        mamba_headdim time_step_rank mamba_dt_rank hidden_size_per_layer_input shape_embed_dim
        pronunciation_embed_dim
        """,
    ),
    (
        4,
        """
        index_topk attention_chunk_size keep_window_size
        """,
    ),
    (
        2,
        """
        index_block_size index_topk_blocks
        """,
    ),
    (
        4,
        """
        linear_num_key_heads linear_num_value_heads linear_num_heads
        """,
    ),
)
SIZES: dict[str, int] = {name: size for size, names in _NAMES for name in names.split()}

_MAMBA = {"mamba_n_heads": 8, "mamba_d_head": 8, "mamba_d_state": 8}
_ZAMBA = {
    "num_hidden_layers": 4,
    "layers_block_type": ["linear_attention", "hybrid"] * 2,
    "attention_hidden_size": 64,
    "attention_head_dim": 16,
}
_BOTH = ["linear_attention", "full_attention"]
_WINDOWED = ["sliding_attention", "full_attention"]

#: What the general rule cannot know about a type.
OVERRIDES: dict[str, Json] = {
    # Hybrid stacks: two layers of which one attends.
    "bamba": {**_MAMBA, "attn_layer_indices": [1]},
    "granitemoehybrid": {**_MAMBA, "layer_types": _BOTH, "residual_multiplier": 0.7},
    "falcon_h1": {**_MAMBA, "mamba_d_ssm": 64, "attention_out_multiplier": 0.7},
    "zamba": _ZAMBA,
    "zamba2": {**_ZAMBA, "n_mamba_heads": 8},
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
}

OVERRIDES["qwen4_exp"] = {"text_config": OVERRIDES["qwen4_exp_text"]}

#: More sizes for types that see or hear, which the tiny models of texts do not take.
_MEDIA_NAMES: tuple[tuple[int, str], ...] = (
    (
        2,
        "num_blocks num_attention_layers resampler_depth num_frames frames_per_clip num_temporal_layers num_spatial_layers",
    ),
    (4, "mm_tokens_per_image num_conv_pos_embedding_groups resampler_n_heads decoder_num_attention_heads"),
    (8, "num_mel_bins input_feat_per_channel patch_size num_queries num_query_tokens resampler_n_latents num_latents"),
    (16, "num_conv_pos_embeddings num_image_tokens"),
    (24, "encoder_linear_units decoder_intermediate_size"),
    (
        32,
        """
        image_size projection_dim projection_hidden_size out_hidden_size vision_hidden_size text_hidden_size
        decoder_hidden_size encoder_hidden_size classifier_proj_size codevector_dim proj_codevector_dim output_hidden_size
        projector_hidden_size fusion_hidden_size cross_hidden_size image_text_hidden_size projection_size
        """,
    ),
    (64, "num_position_embeddings max_2d_position_embeddings crop_size"),
    (VOCABULARY, "num_codevectors_per_group"),
)
MEDIA_SIZES: dict[str, int] = {name: size for size, names in _MEDIA_NAMES for name in names.split()}

_RESNET = {
    "model_type": "resnet",
    "embedding_size": 8,
    "hidden_sizes": [8, 8],
    "depths": [1, 1],
    "out_features": ["stage2"],
}
_DETR = {"backbone_config": _RESNET, "use_timm_backbone": False, "use_pretrained_backbone": False, "backbone": None}
_MROPE = {"text_config": {"rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [2, 1, 1]}}}
_HALF_MROPE = {
    "text_config": {"rope_parameters": {**_MROPE["text_config"]["rope_parameters"], "mrope_section": [1, 1, 0]}}
}
_WINDOW = {"vision_config": {"window_size": 32}}
#: What the rule for types that see or hear cannot know.
MEDIA_OVERRIDES: dict[str, Json] = {
    **dict.fromkeys(("detr", "conditional_detr", "dab-detr", "table-transformer", "deformable_detr"), _DETR),
    **dict.fromkeys(("qwen2_vl", "glm4v", "glm46v", "glmga", "paddleocr_vl"), _MROPE),
    **dict.fromkeys(("glm4v_moe", "glm_ocr"), _HALF_MROPE),
    **dict.fromkeys(("exaone4_5", "hyperclovax_vision_v2", "qwen2_5_omni_thinker"), _WINDOW),
    "qwen2_5_vl": {**_MROPE, **_WINDOW},
    "glmasr": {"audio_config": {"intermediate_size": 128}},
    "voxtral": {"audio_config": {"intermediate_size": 128}, "audio_token_id": 90},
    "granite_speech": {"encoder_config": {"hidden_dim": 32}, "window_size": 15},
    "granite_speech_plus": {"encoder_config": {"hidden_dim": 32}, "window_size": 15},
    "efficientnet": {"hidden_dim": 2560},
    "donut-swin": {"depths": [2, 2], "num_heads": [2, 4]},
    "levit": {"image_size": 64, "patch_size": 16},
    "align": {"projection_dim": 640},
    "bit": {"num_groups": 2, "hidden_sizes": [32, 64, 128, 256]},
    "aria": {"projector_patch_to_query_dict": {16: 4}},
    "dinov3_vit": {"patch_size": 8},
    "instructblip": {"image_token_index": 90},
    "blip-2": {"image_token_index": 90},
    "layoutlmv3": {"coordinate_size": 6, "input_size": 32, "shape_size": 4},
    "llama4": {"vision_config": {"intermediate_size": 128}},
    "llava_next": {"image_grid_pinpoints": [[32, 32], [64, 32]]},
    "swin": {"depths": [2, 2], "num_heads": [2, 4], "patch_size": 4},
    "swinv2": {"depths": [2, 2], "num_heads": [2, 4], "patch_size": 4},
    "vipllava": {"vision_feature_layers": [-1, -2]},
}
