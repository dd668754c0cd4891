"""Tiny random models in float64 and inputs for them."""

from __future__ import annotations

from typing import Any

import peft
import torch
import transformers as tf
from torch import Tensor

from tests import tiny
from tests.attribution.models import headed

#: Options of Llama and its kin: grouped heads that are wider than the model.
LLAMA = {
    "vocab_size": tiny.VOCABULARY,
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 6,
    "max_position_embeddings": 20,
    "sliding_window": 3,
}


def llama_dora() -> Any:
    lora = peft.LoraConfig(r=3, use_dora=True, init_lora_weights=False, target_modules=["o_proj", "down_proj"])
    return peft.get_peft_model(headed("llama_bias"), lora)


def mixtral() -> Any:
    model = tf.MixtralForCausalLM(tf.MixtralConfig(**LLAMA, num_local_experts=3, num_experts_per_tok=2))
    model.set_experts_implementation("eager")  # the other one has no float64
    return model


def gemma3() -> Any:
    layers = ["sliding_attention", "full_attention"]
    config = tf.Gemma3TextConfig(**LLAMA, layer_types=layers, query_pre_attn_scalar=6, final_logit_softcapping=4.0)
    return tf.Gemma3ForCausalLM(config)


def gemma3n() -> Any:
    """Three layers: the first selects in its feed-forward block, the last takes keys and values from the first."""
    config = tf.Gemma3nTextConfig(
        **LLAMA | {"num_hidden_layers": 3, "intermediate_size": [24, 24, 24]},
        vocab_size_per_layer_input=tiny.VOCABULARY,
        hidden_size_per_layer_input=6,
        altup_num_inputs=3,
        laurel_rank=4,
        layer_types=["sliding_attention", "full_attention", "sliding_attention"],
        num_kv_shared_layers=1,
        activation_sparsity_pattern=[0.6, 0.0, 0.0],
        final_logit_softcapping=4.0,
    )
    return tf.Gemma3nForCausalLM(config)


def xlnet() -> Any:
    config = tf.XLNetConfig(vocab_size=tiny.VOCABULARY, d_model=16, n_layer=2, n_head=2, d_inner=24)
    return tf.XLNetLMHeadModel(config)


BUILDERS = {
    "llama_dora": llama_dora,
    "mixtral": mixtral,
    "gemma2": lambda: tf.Gemma2ForCausalLM(tiny.gemma2().config),
    "gemma3": gemma3,
    "gemma3n": gemma3n,
    "xlnet": xlnet,
}


def build(family: str) -> Any:
    """A tiny model with every parameter random."""
    if family not in BUILDERS:
        model = headed(family)
    else:
        torch.manual_seed(0)
        model = tiny.randomized(BUILDERS[family]()).double().eval()
    if family == "marian":
        model.final_logits_bias.normal_(generator=torch.Generator().manual_seed(1))
    return model


ORDINARY = [7, 3, 11, 7, 20]
#: Ids that are also the numbers of positions, of segments, or the ids of the other side.
CONFUSABLE = {
    "bert counting": [0, 1, 2, 3, 4],
    "bert zeros": [0, 0, 0, 0, 0],
    "gpt2 counting": [0, 1, 2, 3, 4],
    "t5 both sides": ORDINARY,
    "marian both sides": ORDINARY,
}


def inputs_of(case: str) -> dict[str, Tensor]:
    """One row of inputs of a family, or of a case with confusable ids."""
    ids = torch.tensor([CONFUSABLE.get(case, ORDINARY)])
    inputs = {"input_ids": ids}
    if case.startswith(("marian", "t5")):
        inputs["decoder_input_ids"] = torch.tensor([[2, 9, 4, 13]])
        if case in CONFUSABLE:
            inputs["decoder_input_ids"] = ids
    if case == "xlnet":
        inputs["token_type_ids"] = torch.tensor([[0, 0, 0, 1, 1]])
    return inputs
