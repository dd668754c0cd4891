"""A tiny random-weight model of any type that transformers knows.

Shapes, not weights, make a family; so a model of two layers and width 32 shows all that a large one does, in
milliseconds. One general rule shrinks a configuration by the names of its numbers; `OVERRIDES` is the one place for
types where the rule alone does not give a valid (or a telling) model.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
import transformers
from torch import Tensor, nn
from transformers import AutoConfig
from transformers.models.auto import modeling_auto
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from normlens.errors import ModelError
from normlens.families.sizes import OVERRIDES, SIZES, VOCABULARY
from normlens.types import Json

#: The mappings whose types are the text families, with the class that each type is built as.
MAPPINGS = {
    "seq2seq": modeling_auto.MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES,
    "masked-lm": modeling_auto.MODEL_FOR_MASKED_LM_MAPPING_NAMES,
    "causal-lm": modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
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
        raise ModelError(f"{family!r} is no model type of transformers' text mappings")
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
    return CONFIG_MAPPING[family](**shrunk(CONFIG_MAPPING[family], OVERRIDES.get(family, {})))


def shrunk(cls: Any, overrides: Json, sizes: Mapping[str, int] = SIZES) -> Json:
    """The arguments that make a tiny configuration of this class."""
    fields = _defaults(cls)
    chosen: Json = {name: size for name, size in sizes.items() if _is_larger(fields.get(name), size)}
    for name in ("head_dim", "num_key_value_heads", "vocab_size"):
        if name in fields and fields[name] is None:  # left to the checkpoint
            chosen[name] = SIZES[name]
    if "qk_rope_head_dim" in fields and "head_dim" in chosen:  # latent attention: this is what the rotation acts on
        chosen["head_dim"] = SIZES["qk_rope_head_dim"]
    if "qk_rope_head_dim" in fields and "num_key_value_heads" in chosen:  # and every head has values of its own
        chosen["num_key_value_heads"] = SIZES["num_attention_heads"]
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
        if kind is AutoConfig and declared is not None and declared.model_type in CONFIG_MAPPING:
            kind = CONFIG_MAPPING[declared.model_type]
        if isinstance(kind, type) and mine is not None and kind is not AutoConfig:
            chosen[name] = shrunk(kind, mine, sizes) | {"model_type": getattr(kind, "model_type", "")}
    return chosen | {name: value for name, value in overrides.items() if name not in getattr(cls, "sub_configs", {})}


def _defaults(cls: Any) -> Json:
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
