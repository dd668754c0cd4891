"""Odd configurations of families whose blocks the reference can read by name (`tests.reference.blocks`)."""

from __future__ import annotations

from random import Random
from typing import Any

import torch
import transformers as tf
from torch import nn

from tests import tiny

VOCABULARY = tiny.VOCABULARY


def odd_family(random: Random) -> tuple[str, nn.Module]:
    """The name under which the reference knows the family, and a model with drawn settings."""
    family = random.choice(("bert", "roberta", "distilbert", "albert", "gpt2", "llama", "gemma2", "t5", "marian"))
    heads = random.choice((1, 2, 4))
    head = random.choice((2, 4, 6))
    layers = random.choice((1, 2, 3))
    settings = {"vocab_size": VOCABULARY, "max_position_embeddings": 40}
    encoder = {
        "hidden_size": heads * head,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "intermediate_size": random.choice((8, 20)),
        "hidden_act": random.choice(("gelu", "relu")),
        "layer_norm_eps": random.choice((1e-12, 1e-5, 1e-2)),
    }
    decoder = {
        "hidden_size": random.choice((8, 12, 24)),
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": random.choice([n for n in (1, 2, heads) if heads % n == 0]),
        "head_dim": random.choice((4, 6)),
        "intermediate_size": 16,
        "rms_norm_eps": random.choice((1e-6, 1e-2)),
    }
    torch.manual_seed(random.randrange(2**31))
    model: Any
    if family == "bert":
        model = tf.BertModel(tf.BertConfig(**settings, **encoder))
    elif family == "roberta":
        model = tf.RobertaModel(tf.RobertaConfig(**settings, **encoder, type_vocab_size=2))
    elif family == "distilbert":
        sizes = {"dim": heads * head, "n_layers": layers, "n_heads": heads, "hidden_dim": 16}
        model = tf.DistilBertModel(tf.DistilBertConfig(**settings, **sizes))
    elif family == "albert":
        groups = random.choice([n for n in (1, layers) if layers % n == 0])
        inner = random.choice((1, 2))
        repeated = {"num_hidden_groups": groups, "inner_group_num": inner, "embedding_size": 6}
        model = tf.AlbertModel(tf.AlbertConfig(**settings, **encoder, **repeated))
    elif family == "gpt2":
        scaled = {
            "scale_attn_weights": random.random() < 0.8,
            "scale_attn_by_inverse_layer_idx": random.random() < 0.3,
            "layer_norm_epsilon": random.choice((1e-5, 1e-2)),
        }
        sizes = {"n_embd": heads * head, "n_layer": layers, "n_head": heads, "n_positions": 40}
        model = tf.GPT2Model(tf.GPT2Config(vocab_size=VOCABULARY, bos_token_id=0, eos_token_id=0, **sizes, **scaled))
    elif family == "llama":
        model = tf.LlamaModel(tf.LlamaConfig(**settings, **decoder, attention_bias=random.random() < 0.5))
    elif family == "gemma2":
        odd = {
            "sliding_window": random.choice((2, 4, 64)),
            "attn_logit_softcapping": random.choice((None, 2.0)),
            "query_pre_attn_scalar": random.choice((4, 16)),
        }
        model = tf.Gemma2Model(tf.Gemma2Config(**settings, **decoder, **odd))
    elif family == "t5":
        sizes = {"d_model": random.choice((8, 12)), "d_kv": head, "d_ff": 16, "num_layers": layers, "num_heads": heads}
        odd = {
            "num_decoder_layers": random.choice((1, 2)),
            "relative_attention_num_buckets": 8,
            "relative_attention_max_distance": 12,
            "feed_forward_proj": random.choice(("relu", "gated-gelu")),
        }
        model = tf.T5Model(tf.T5Config(vocab_size=VOCABULARY, **sizes, **odd, decoder_start_token_id=0))
    else:
        model = tf.MarianModel(
            tf.MarianConfig(
                **settings,
                d_model=heads * head,
                encoder_layers=layers,
                decoder_layers=random.choice((1, 2)),
                encoder_attention_heads=heads,
                decoder_attention_heads=random.choice((1, heads)),
                encoder_ffn_dim=16,
                decoder_ffn_dim=16,
                pad_token_id=VOCABULARY - 1,
                decoder_start_token_id=VOCABULARY - 1,
                eos_token_id=0,
                forced_eos_token_id=0,
                scale_embedding=random.random() < 0.5,
            )
        )
    tiny.randomized(model, random.randrange(2**31))
    if family != "gemma2":  # which has no sdpa
        model.set_attn_implementation(random.choice(("eager", "sdpa")))
    return family, model.eval()
