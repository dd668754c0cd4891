"""Tiny random models in float64, two layers each, and one input for each."""

from __future__ import annotations

from typing import Any

import torch
import transformers as tf
from torch import Tensor

from tests.tiny import randomized

VOCABULARY = 30


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


BUILDERS = {"bert": bert}
TWO_SIDED = ("t5", "marian")


def build(family: str) -> Any:
    """A tiny model with every parameter random."""
    torch.manual_seed(0)
    return randomized(BUILDERS[family]()).double().eval()


def inputs_of(family: str) -> dict[str, Tensor]:
    """Ids that are not the numbers of their positions; one occurs twice."""
    inputs = {"input_ids": torch.tensor([[7, 3, 11, 7, 20]])}
    if family in TWO_SIDED:
        inputs["decoder_input_ids"] = torch.tensor([[2, 9, 4, 13]])
    return inputs
