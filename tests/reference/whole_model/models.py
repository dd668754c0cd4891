"""Tiny random models in float64, two layers each, and one input for each."""

from __future__ import annotations

from typing import Any

import peft
import torch
import transformers as tf
from torch import Tensor

from tests.tiny import randomized

VOCABULARY = 30
#: Options of Llama and its kin: grouped heads that are wider than the model.
LLAMA = {
    "vocab_size": VOCABULARY,
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 6,
    "max_position_embeddings": 20,
}
GEMMA = LLAMA | {"sliding_window": 3, "query_pre_attn_scalar": 6, "final_logit_softcapping": 4.0}


def bert() -> Any:
    config = tf.BertConfig(
        vocab_size=VOCABULARY,
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=24,
        max_position_embeddings=10,
    )
    return tf.BertForMaskedLM(config)


def gpt2() -> Any:
    config = tf.GPT2Config(vocab_size=VOCABULARY, n_embd=16, n_layer=2, n_head=2, n_positions=10)
    return tf.GPT2LMHeadModel(config)


def llama() -> Any:
    return tf.LlamaForCausalLM(tf.LlamaConfig(**LLAMA, attention_bias=True, mlp_bias=True))


def llama_dora() -> Any:
    lora = peft.LoraConfig(r=3, use_dora=True, init_lora_weights=False, target_modules=["o_proj", "down_proj"])
    return peft.get_peft_model(randomized(llama()), lora)


def mixtral() -> Any:
    model = tf.MixtralForCausalLM(tf.MixtralConfig(**LLAMA, num_local_experts=3, num_experts_per_tok=2))
    model.set_experts_implementation("eager")  # the other one has no float64
    return model


def gemma2() -> Any:
    return tf.Gemma2ForCausalLM(tf.Gemma2Config(**GEMMA, attn_logit_softcapping=2.0))


def gemma3() -> Any:
    layers = ["sliding_attention", "full_attention"]
    return tf.Gemma3ForCausalLM(tf.Gemma3TextConfig(**GEMMA, layer_types=layers))


def gemma3n() -> Any:
    """Three layers: the first selects in its feed-forward block, the last takes keys and values from the first."""
    config = tf.Gemma3nTextConfig(
        **LLAMA | {"num_hidden_layers": 3, "intermediate_size": [24, 24, 24]},
        vocab_size_per_layer_input=VOCABULARY,
        hidden_size_per_layer_input=6,
        altup_num_inputs=3,
        laurel_rank=4,
        layer_types=["sliding_attention", "full_attention", "sliding_attention"],
        sliding_window=3,
        num_kv_shared_layers=1,
        activation_sparsity_pattern=[0.6, 0.0, 0.0],
        final_logit_softcapping=4.0,
    )
    return tf.Gemma3nForCausalLM(config)


def marian() -> Any:
    config = tf.MarianConfig(
        vocab_size=VOCABULARY,
        d_model=16,
        encoder_layers=2,
        decoder_layers=2,
        encoder_attention_heads=2,
        decoder_attention_heads=4,
        encoder_ffn_dim=24,
        decoder_ffn_dim=24,
        max_position_embeddings=10,
        activation_function="swish",
        pad_token_id=VOCABULARY - 1,
        decoder_start_token_id=VOCABULARY - 1,
        eos_token_id=0,
        forced_eos_token_id=0,
        scale_embedding=True,
    )
    model = tf.MarianMTModel(config)
    model.final_logits_bias.normal_(generator=torch.Generator().manual_seed(1))
    return model


def t5() -> Any:
    config = tf.T5Config(
        vocab_size=VOCABULARY,
        d_model=16,
        d_kv=5,
        d_ff=24,
        num_layers=2,
        num_heads=2,
        relative_attention_num_buckets=8,
        relative_attention_max_distance=12,
        decoder_start_token_id=0,
    )
    return tf.T5ForConditionalGeneration(config)


def xlnet() -> Any:
    config = tf.XLNetConfig(vocab_size=VOCABULARY, d_model=16, n_layer=2, n_head=2, d_inner=24)
    return tf.XLNetLMHeadModel(config)


BUILDERS = {
    "bert": bert,
    "gpt2": gpt2,
    "llama": llama,
    "llama_dora": llama_dora,
    "mixtral": mixtral,
    "gemma2": gemma2,
    "gemma3": gemma3,
    "gemma3n": gemma3n,
    "marian": marian,
    "t5": t5,
    "xlnet": xlnet,
}


def build(family: str) -> Any:
    """A tiny model with every parameter random."""
    torch.manual_seed(0)
    return randomized(BUILDERS[family]()).double().eval()


def inputs_of(family: str) -> dict[str, Tensor]:
    """One row of inputs. The ids of GPT-2 are the numbers of their positions; elsewhere one id occurs twice."""
    inputs = {"input_ids": torch.tensor([[7, 3, 11, 7, 20]])}
    if family == "gpt2":
        inputs["input_ids"] = torch.arange(5)[None]
    if family in ("marian", "t5"):
        inputs["decoder_input_ids"] = torch.tensor([[2, 9, 4, 13]])
    if family == "xlnet":
        inputs["token_type_ids"] = torch.tensor([[0, 0, 0, 1, 1]])
    return inputs
