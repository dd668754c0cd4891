"""Tiny models with heads, every parameter random."""

from __future__ import annotations

from typing import Any

import torch
import transformers as tf
from torch import Tensor

from tests import tiny

HEADED = {
    "bert": lambda: tf.BertForMaskedLM(tiny.bert().config),
    "gpt2": lambda: tf.GPT2LMHeadModel(tiny.gpt2().config),
    "llama": lambda: tf.LlamaForCausalLM(tiny.llama().config),
    "llama_bias": lambda: tf.LlamaForCausalLM(tiny.llama(bias=True).config),
    "t5": lambda: tf.T5ForConditionalGeneration(tiny.t5().config),
    "marian": lambda: tf.MarianMTModel(tiny.marian().config),
}


def headed(family: str, dtype: torch.dtype = torch.float64, seed: int = 0, implementation: str = "sdpa") -> Any:
    """A tiny model with its head."""
    torch.manual_seed(seed)
    model = tiny.randomized(HEADED[family](), seed).to(dtype).eval()
    model.set_attn_implementation(implementation)
    return model


def ids_of(length: int, seed: int = 0) -> Tensor:
    """Random ordinary ids."""
    return torch.randint(5, 50, (length,), generator=torch.Generator().manual_seed(seed))
