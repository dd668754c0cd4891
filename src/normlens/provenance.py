"""Where a result comes from: model, content, settings, versions."""

from __future__ import annotations

import hashlib
import platform
from importlib import metadata
from typing import Any

import torch
import transformers
from torch import nn

#: Above this many bytes of weights a hash takes a sample of each parameter, and says so in its name.
_HASH_WHOLE = 4 * 2**30
_SAMPLE = 4096


def normlens_version() -> str:
    """The installed version of normlens."""
    try:
        return metadata.version("normlens")
    except metadata.PackageNotFoundError:
        return "uninstalled"


def versions() -> dict[str, str]:
    """The versions that a result depends on."""
    return {
        "normlens": normlens_version(),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "python": platform.python_version(),
    }


def content_hash(model: nn.Module) -> str:
    """A hash over names, shapes and numbers of all parameters and buffers: equal weights, equal hash."""
    state = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    size = sum(tensor.numel() * tensor.element_size() for tensor in state.values())
    digest = hashlib.blake2b(digest_size=16)
    for name in sorted(state):
        flat = state[name].detach().flatten()
        if size > _HASH_WHOLE:
            flat = flat[:: max(1, flat.numel() // _SAMPLE)]
        digest.update(f"{name} {tuple(state[name].shape)} {state[name].dtype}".encode())
        digest.update(flat.cpu().contiguous().view(torch.uint8).numpy().data)
    return f"{'blake2b' if size <= _HASH_WHOLE else 'blake2b-sampled'}:{digest.hexdigest()}"


def describe_model(model: nn.Module, name: str | None, family: str) -> dict[str, Any]:
    """What identifies a model in a record."""
    config = getattr(model, "config", None)
    return {
        "name": name or getattr(config, "_name_or_path", "") or type(model).__name__,
        "class": type(model).__name__,
        "family": family,
        "revision": getattr(config, "_commit_hash", None),
        "content": content_hash(model),
        "dtype": str(next(model.parameters()).dtype).removeprefix("torch."),
    }
