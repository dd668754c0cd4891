"""Run a model once on a few tokens and read its anatomy."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import _disable_current_modes

from normlens.anatomy.declarations import declaration, refuse_declared
from normlens.anatomy.description import Anatomy
from normlens.anatomy.interface import AttentionCall, answering, evaluating
from normlens.anatomy.reading import read_anatomy
from normlens.anatomy.textbook import is_textbook
from normlens.anatomy.trace import Recorder, Trace
from normlens.errors import AnatomyError

#: Source and target of different lengths, so that keys that are no queries show themselves.
_SOURCE_LENGTH, _TARGET_LENGTH = 7, 5


def family_of(model: nn.Module) -> str:
    """The model's type as its configuration names it (`bert`, `llama`), or its class."""
    config = getattr(model, "config", None)
    return str(getattr(config, "model_type", "") or type(model).__name__)


def is_encoder_decoder(model: nn.Module) -> bool:
    """Whether the model reads a source and writes a target."""
    return bool(getattr(getattr(model, "config", None), "is_encoder_decoder", False))


def backbone(model: nn.Module) -> nn.Module:
    """The part of a model that holds its attention, without the task head that nobody asked about."""
    base = getattr(model, "base_model", model)
    return base if isinstance(base, nn.Module) else model


def examine(model: nn.Module, inputs: Mapping[str, Any] | None = None) -> Anatomy:
    """The anatomy of a model, from one forward pass over `inputs` (a few tokens where none are given)."""
    family = family_of(model)
    refuse_declared(family, model)
    return read_anatomy(family, trace_of(model, inputs), declaration(family))


def trace_of(model: nn.Module, inputs: Mapping[str, Any] | None = None) -> Trace:
    """The record of one forward pass over `inputs`."""
    recorder = Recorder(model)

    def note(call: AttentionCall) -> Tensor:
        recorder.before_attention()
        output, alpha = call.eager()
        with _disable_current_modes():  # what is tried out here is no part of the model
            textbook = is_textbook(call, output, alpha)
        recorder.attention(call.module, call.value, alpha, output, textbook)
        return output

    with evaluating(model), answering(model, note), recorder.watching():
        model(**run_arguments(model, inputs if inputs is not None else few_tokens(model)))
    recorder.trace.lost = recorder.lost()
    return recorder.trace


def few_tokens(model: nn.Module) -> dict[str, Tensor]:
    """A few ordinary token ids, enough to see every attention of a text model at work."""
    config = getattr(model, "config", None)
    parts = (config, *(getattr(config, name, None) for name in ("text_config", "decoder", "encoder")))
    sizes = (getattr(part, "vocab_size", None) for part in parts)
    size = next((size for size in sizes if isinstance(size, int)), None)
    if not isinstance(size, int):
        raise AnatomyError(
            f"a model is read on a few tokens and so must have a vocabulary: {family_of(model)!r} has none; "
            "give it inputs of its own with `analyze_inputs`"
        )
    ordinary = [i for i in range(size) if i not in _special_ids(config)][-2 * _SOURCE_LENGTH :]
    device = next(model.parameters()).device
    inputs = {"input_ids": torch.tensor([ordinary[:_SOURCE_LENGTH]], device=device)}
    if is_encoder_decoder(model):
        inputs["decoder_input_ids"] = torch.tensor([ordinary[-_TARGET_LENGTH:]], device=device)
    return inputs


def _special_ids(config: Any) -> set[Any]:
    """Every id that the configuration gives a meaning of its own, images and sounds included."""
    found: set[Any] = set()
    for name, value in vars(config).items():
        if name.endswith(("_token_id", "_token_index")):
            found |= set(value) if isinstance(value, list) else {value}
    return found


def run_arguments(model: nn.Module, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """The inputs plus what keeps a run plain: no cache of keys and values, where the model knows such a thing."""
    arguments = dict(inputs)
    if "use_cache" in inspect.signature(model.forward).parameters:
        arguments.setdefault("use_cache", False)
    return arguments
