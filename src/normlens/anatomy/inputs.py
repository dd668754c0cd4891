"""Tensors that a user prepared: checked before anything runs, so that a mistake is named and nothing of theirs changes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from normlens.errors import InputError
from normlens.types import Kwargs, ModelInputs

#: Words in the names of inputs that may be the same for all sequences.
_SHARED = ("mask", "position", "bias")
_PLAIN = (
    *(nn.Transformer, nn.TransformerEncoder, nn.TransformerDecoder, nn.TransformerEncoderLayer),
    *(nn.TransformerDecoderLayer, nn.MultiheadAttention),
)


def checked_inputs(model: nn.Module, inputs: ModelInputs) -> Kwargs:
    """The inputs as tensors of the model's device; what cannot be analysed is refused with the rule it breaks."""
    if not isinstance(inputs, Mapping) and not hasattr(inputs, "items"):
        raise InputError(
            f"inputs must be a mapping from argument names to tensors, got {type(inputs).__name__}; pass "
            "{'input_ids': …}, or a text to analyze()"
        )
    if inputs.get("past_key_values") is not None:
        raise InputError(
            "inputs hold past_key_values of an earlier pass; pass the whole sequence as input_ids and leave them out"
        )
    _refuse_sequence_first(model)
    device = next(model.parameters()).device
    checked = {str(name): _tensor(name, value, device) for name, value in inputs.items() if value is not None}
    tensors = {name: value for name, value in checked.items() if isinstance(value, Tensor)}
    if not tensors and "encoder_outputs" not in checked:
        raise InputError("inputs hold no tensor; pass {'input_ids': …}")
    for name, value in tensors.items():
        if value.is_nested or value.layout != torch.strided or value.is_quantized or value.is_meta:
            raise InputError(
                f"{name} is nested, sparse, quantized or on the meta device; pad its rows, or make it dense"
            )
        if 0 in value.shape:
            raise InputError(f"{name} is empty, got shape {tuple(value.shape)}; leave out empty rows")
        if name.endswith("input_ids"):
            _check_ids(model, name, value)
        if value.is_floating_point() and not is_shared(name) and not bool(value.isfinite().all()):
            raise InputError(f"{name} holds NaN or infinity; check how the vectors were made")
        if name in ("attention_mask", "decoder_attention_mask") and value.ndim == 2:
            _check_padding(name, value, tensors)
    rows = {name: value.shape[0] for name, value in tensors.items() if name.endswith(("input_ids", "inputs_embeds"))}
    if len(set(rows.values())) > 1:
        raise InputError(f"inputs have different numbers of rows, got {rows}; pair them up")
    return checked


def sequences_first(inputs: ModelInputs) -> list[tuple[str, Tensor]]:
    """The tensors of the inputs; a mask or a position may be one for all sequences, so these come last."""
    named = sorted(inputs.items(), key=lambda item: is_shared(item[0]))
    return [(name, value) for name, value in named if isinstance(value, Tensor)]


def is_shared(name: str) -> bool:
    """Return True for an input that may be the same for all sequences: a mask, a position, a bias."""
    return any(word in name for word in _SHARED)


def modality_of(name: str) -> str | None:
    """The kind of sequence that an input of this name holds, by the names that transformers gives: None for masks and so on.

    >>> modality_of("pixel_values"), modality_of("input_features"), modality_of("decoder_input_ids"), modality_of("bbox")
    ('vision', 'audio', 'target', None)
    """
    if name in ("decoder_input_ids", "decoder_inputs_embeds"):
        return "target"
    if name.endswith(("input_ids", "inputs_embeds")):
        return "text"
    if is_shared(name) or name.endswith(("_ids", "_sizes", "_thw", "_ratio_ids", "num_frames")):
        return None
    if name.startswith(("pixel_values", "pixels", "image", "video", "flattened_patches")):
        return "vision"
    if name.startswith(("input_features", "input_values", "audio", "speech", "spectrogram")):
        return "audio"
    return None


def holds_media(inputs: ModelInputs) -> bool:
    """Return True if images or sound are among the inputs."""
    for name, value in inputs.items():
        if name.endswith(("input_ids", "attention_mask")):
            continue
        if modality_of(name) in ("vision", "audio") and _is_floating(value):
            return True
    return False


def _is_floating(value: Any) -> bool:
    values = value if isinstance(value, list | tuple) else [value]
    return any(isinstance(x, Tensor) and x.is_floating_point() for x in values)


def rows_of(inputs: ModelInputs) -> int:
    """The number of sequences in the inputs; images of one sequence may be several."""
    named = [inputs[name] for name in ("input_ids", "inputs_embeds") if isinstance(inputs.get(name), Tensor)]
    if named:
        return int(named[0].shape[0])
    return next((int(value.shape[0]) for _, value in sequences_first(inputs) if value.ndim), 1)


def _tensor(name: str, value: Any, device: torch.device) -> Any:
    if not isinstance(value, list | tuple | np.ndarray) or name == "encoder_outputs":
        return value
    if isinstance(value, list | tuple) and any(isinstance(item, Tensor) for item in value):
        if name.endswith(("_ids", "_embeds", "mask")):
            raise InputError(
                f"{name} must be a tensor, or rows of numbers of one length, got a {type(value).__name__} of "
                "tensors; torch.stack them"
            )
        return value  # a structure of tensors, which the model knows what to do with
    try:
        return torch.as_tensor(np.asarray(value), device=device)
    except (TypeError, ValueError) as error:
        raise InputError(
            f"{name} must be a tensor, or rows of numbers of one length ({error}); pad the rows, or pass texts to "
            "analyze()"
        ) from error


def _check_ids(model: nn.Module, name: str, ids: Tensor) -> None:
    if ids.ndim != 2:
        raise InputError(
            f"{name} must be (batch, position), got shape {tuple(ids.shape)}; one sequence is ids.unsqueeze(0)"
        )
    if ids.is_floating_point() or ids.dtype == torch.bool:
        raise InputError(f"{name} must be whole numbers, got {ids.dtype}; did embeddings or a mask get this name?")
    table = _embedding(model)
    if table is not None and not (int(ids.min()) >= 0 and int(ids.max()) < table.num_embeddings):
        wrong = int(ids.min()) if int(ids.min()) < 0 else int(ids.max())
        raise InputError(
            f"{name} must be ids of the model's vocabulary, 0 to {table.num_embeddings - 1}, got {wrong}; is this "
            "the right tokenizer?"
        )


def _check_padding(name: str, mask: Tensor, tensors: Mapping[str, Tensor]) -> None:
    """A padding mask says 1 or 0 of every position; models make different things of anything else."""
    if not bool(((mask == 0) | (mask == 1)).all()):
        raise InputError(
            f"{name} must hold 1 for real positions and 0 for padding, got other numbers; sequences packed into "
            "one row need a mask over pairs, (batch, 1, query, key)"
        )
    empty = (mask == 0).all(-1).nonzero().flatten().tolist()
    if empty:
        raise InputError(f"{name} is all zero in row {empty[0]}; drop that row")
    side = name.removesuffix("attention_mask")
    given = next((tensors[side + what] for what in ("input_ids", "inputs_embeds") if side + what in tensors), None)
    if given is not None and given.ndim > 1 and tuple(given.shape[:2]) != tuple(mask.shape):
        raise InputError(
            f"{name} has shape {tuple(mask.shape)}, there are {tuple(given.shape[:2])} positions; make them the same"
        )


def _embedding(model: nn.Module) -> nn.Embedding | None:
    try:
        found = model.get_input_embeddings()  # type: ignore[operator]
    except (AttributeError, NotImplementedError):
        return None
    return found if isinstance(found, nn.Embedding) else None


def _refuse_sequence_first(model: nn.Module) -> None:
    """PyTorch's own modules take (position, batch, width) unless told otherwise: then rows cannot be told apart."""
    if not isinstance(model, _PLAIN):
        return
    for path, module in model.named_modules():
        if isinstance(module, nn.MultiheadAttention) and not module.batch_first:
            raise InputError(
                f"{path} of {type(model).__name__} was made with batch_first=False; make it with batch_first=True "
                "and pass (batch, position, width)"
            )


def failed_on(model: nn.Module, inputs: ModelInputs, error: Exception, limit: int | None) -> InputError:
    """The error for inputs on which the model itself fails; `limit` is how many positions it takes."""
    shapes = {name: tuple(v.shape) if isinstance(v, Tensor) else type(v).__name__ for name, v in inputs.items()}
    reason = (str(error).strip().splitlines() or [""])[0][:200]
    sides = [name for name in inputs if name.endswith(("input_ids", "inputs_embeds"))]
    long = [name for name in sides if limit is not None and _length(inputs[name]) > limit]
    hint = (
        f"{long[0]} is longer than the {limit} positions that it takes" if long else "check names, lengths and values"
    )
    return InputError(
        f"{type(model).__name__} failed on the given inputs {shapes}: {type(error).__name__}: {reason}; {hint}"
    )


def _length(value: Any) -> int:
    return int(value.shape[1]) if isinstance(value, Tensor) and value.ndim > 1 else 0


def longest_input(model: nn.Module, tokenizer: Any) -> int | None:
    """The largest number of tokens that the model takes, from its position embeddings, configuration and tokenizer."""
    config = getattr(model, "config", None)
    limits = [getattr(config, "max_position_embeddings", None), getattr(tokenizer, "model_max_length", None)]
    for name, module in model.named_modules():
        if isinstance(module, nn.Embedding) and "position_embeddings" in name and module.padding_idx is not None:
            limits.append(module.num_embeddings - module.padding_idx - 1)  # RoBERTa counts from after the padding
    known = [int(limit) for limit in limits if isinstance(limit, int | float) and 0 < limit < 10**9]
    return min(known, default=None)
