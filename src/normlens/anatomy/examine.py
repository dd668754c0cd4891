"""Run a model once on a few tokens and read its anatomy."""

from __future__ import annotations

import inspect
from itertools import islice
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import _disable_current_modes

from normlens.anatomy.declarations import declaration, refuse_declared
from normlens.anatomy.description import Anatomy
from normlens.anatomy.inputs import rows_of
from normlens.anatomy.interface import (
    AttentionCall,
    Rounding,
    clone_inputs,
    intercept_attention,
    is_standard,
    run_arguments,
)
from normlens.anatomy.operations import tensors_in
from normlens.anatomy.reading import read_anatomy
from normlens.anatomy.scope import PassScope, seed_passes, seeded, unfused
from normlens.anatomy.trace import Recorder, Trace
from normlens.errors import AnatomyError
from normlens.types import Kwargs, ModelInputs

if TYPE_CHECKING:
    from normlens.anatomy.layers import LayerFollower

#: Lengths on which a model is read: the first two of them that are no number of its configuration (of heads, say), one
#: for the source and one for the target, so that nothing coincides.
_LENGTHS = (7, 5, 11, 13, 17, 19)


def family_of(model: nn.Module) -> str:
    """The model's type as its configuration names it (`bert`, `llama`), or its class."""
    config = getattr(model, "config", None)
    return str(getattr(config, "model_type", "") or type(model).__name__)


def is_encoder_decoder(model: nn.Module) -> bool:
    """Return True if the model reads a source and writes a target."""
    return bool(getattr(getattr(model, "config", None), "is_encoder_decoder", False))


def backbone(model: nn.Module) -> nn.Module:
    """The part of a model that holds its attention, without the task head that nobody asked about."""
    base = getattr(model, "base_model", model)
    if not isinstance(base, nn.Module):
        return model
    own = inspect.signature(model.forward).parameters
    for name, parameter in inspect.signature(base.forward).parameters.items():
        plain = parameter.kind in (parameter.POSITIONAL_OR_KEYWORD, parameter.POSITIONAL_ONLY)
        if plain and parameter.default is parameter.empty and name not in own:
            return model  # a part that takes what another part of the model makes
    return base


def examine(model: nn.Module, inputs: ModelInputs | None = None) -> Anatomy:
    """The anatomy of a model, from one forward pass over `inputs` (a few tokens where none are given)."""
    family = family_of(model)
    refuse_declared(family, model)
    return read_anatomy(family, trace_of(model, inputs), declaration(family))


def trace_of(model: nn.Module, inputs: ModelInputs | None = None) -> Trace:
    """The record of one forward pass over `inputs`."""
    recorder = Recorder(model)
    trace_pass(model, inputs, recorder)
    recorder.trace.lost = recorder.lost()
    return recorder.trace


def trace_pass(
    model: nn.Module, inputs: ModelInputs | None, recorder: Recorder, layers: LayerFollower | None = None
) -> None:
    """Run one forward pass under a recorder; `layers` follows the layers of the same pass."""

    def note(call: AttentionCall) -> Tensor:
        recorder.before_attention()
        output, alpha = call.eager()
        with _disable_current_modes():  # what is tried out here is no part of the model
            standard = is_standard(call, output, alpha)
        recorder.attention(call.module, call.value, alpha, output, standard)
        return output

    with PassScope(model) as scope, seeded(), unfused(), Rounding.of(model).full_precision():
        intercept_attention(scope, note)
        if layers is not None:
            layers.watch(scope)
        recorder.watch(scope)
        model(**run_arguments(model, few_tokens(model) if inputs is None else clone_inputs(dict(inputs))))
    if recorder.trace.draws:
        seed_passes(model)


def few_tokens(model: nn.Module) -> dict[str, Tensor]:
    """A few ordinary token ids, enough to see every attention of a text model at work."""
    config = getattr(model, "config", None)
    parts = (config, *(getattr(config, name, None) for name in ("text_config", "decoder", "encoder")))
    sizes = (getattr(part, "vocab_size", None) for part in parts)
    size = next((size for size in sizes if isinstance(size, int)), None)
    if not isinstance(size, int):
        raise AnatomyError(
            f"{family_of(model)!r} has no vocabulary and reads no text; pass images=… or audio=…, or prepared tensors to "
            "analyze_inputs()"
        )
    source, target = _lengths(model)
    special = _special_ids(config)
    ordinary = list(islice((i for i in reversed(range(size)) if i not in special), 2 * source))[::-1]
    device = next(model.parameters()).device
    inputs = {"input_ids": torch.tensor([ordinary[:source]], device=device)}
    if is_encoder_decoder(model):
        inputs["decoder_input_ids"] = torch.tensor([ordinary[-target:]], device=device)
    return inputs


def _lengths(model: nn.Module) -> tuple[int, int]:
    """The lengths of source and target on which this model is read."""
    config = getattr(model, "config", None)
    parts = (config, *(getattr(config, name, None) for name in ("text_config", "decoder", "encoder")))
    settings = [item for part in parts for item in getattr(part, "__dict__", {}).items()]
    taken = {value for name, value in settings if "head" in name and isinstance(value, int)}
    source, target, *_ = (length for length in _LENGTHS if length not in taken)
    return source, target


def one_row(inputs: ModelInputs) -> Kwargs:
    """One sequence of what a foreign module takes: the one from which its masks hide least, as far as one can tell."""
    rows = rows_of(inputs)
    if rows == 1:
        return dict(inputs)
    padding = [value for name, value in inputs.items() if _by_position(name, value)]
    # A mask that says one and the same of every position hides nothing, whichever of its values stands for hiding.
    alike = sum((((m == m[:, :1]).float().mean(1)).cpu() for m in padding), torch.zeros(1))
    row = int(alike.argmax()) if padding else 0
    found = {}
    for name, value in inputs.items():
        one = isinstance(value, Tensor) and value.ndim > 0 and value.shape[0] == rows
        over_pairs = one and "mask" in name and not _by_position(name, value) and value.ndim < 3
        found[name] = value[row : row + 1] if one and not over_pairs else value
    return found


def _by_position(name: str, value: Any) -> bool:
    """Return True for a mask with a row of positions per sequence; any other mask is over pairs of positions."""
    return isinstance(value, Tensor) and value.ndim == 2 and name.endswith(("padding_mask", "attention_mask"))


def form_of(name: str, value: Any) -> tuple[str, object]:
    """The properties of a foreign module's input that decide what runs: of a mask over pairs, its two sides."""
    if "mask" not in name or not isinstance(value, Tensor) or value.ndim < 2 or value.shape[-1] != value.shape[-2]:
        return name, None
    if _by_position(name, value):
        return name, None
    ahead = torch.ones(value.shape[-2:], dtype=torch.bool, device=value.device).triu(1)
    sides = (value[..., ahead].cpu().double(), value[..., ~ahead].cpu().double())
    return name, tuple(
        float(side.min()) if bool((side == side.min()).all()) else None for side in sides if side.numel()
    )


#: Inputs that change which attentions run, or where their keys come from.
DECIDING = ("inputs_embeds", "decoder_inputs_embeds", "encoder_outputs", "encoder_hidden_states")


def reading_inputs(model: nn.Module, inputs: ModelInputs) -> Kwargs | None:
    """On what a transformers model is read that will be run on `inputs`; None: a few tokens.

    Stand-ins are chosen so that nothing coincides: sides of different lengths, several positions, no mask.
    """
    known = [name for name in DECIDING if inputs.get(name) is not None]
    if not known:
        return None
    source, target = _lengths(model)
    tokens = few_tokens(model) if any(name.endswith("input_ids") for name in inputs) else {}
    given: Kwargs = {name: ids for name, ids in tokens.items() if inputs.get(name) is not None}
    for name in known:
        value = inputs[name]
        states = next(tensor for _, tensor in tensors_in(dict(value) if hasattr(value, "items") else value))
        length = target if name.startswith("decoder") else source + (2 if name == "encoder_hidden_states" else 0)
        drawn = torch.randn(1, length, states.shape[-1], generator=torch.Generator().manual_seed(0))
        drawn = (drawn * states.float().std().cpu().nan_to_num(1.0)).to(states)
        if isinstance(value, Tensor):
            given[name] = drawn
        else:
            given[name] = (drawn,) if isinstance(value, tuple | list) else type(value)(last_hidden_state=drawn)
    return given


def _special_ids(config: Any) -> set[Any]:
    """Every id that the configuration gives a meaning of its own, images and sounds included."""
    found: set[Any] = set()
    for name, value in vars(config).items():
        if name.endswith(("_token_id", "_token_index")):
            found |= set(value) if isinstance(value, list) else {value}
    return found
