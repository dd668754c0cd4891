"""Run-time checks of the axis names in `decompose`, and few threads: tests share the machine."""

from __future__ import annotations

import os
from pathlib import Path

os.environ.setdefault("HF_HUB_OFFLINE", "1")  # a test never waits for the network

from jaxtyping import install_import_hook

# Only while its modules are first imported: from here on every annotated axis in `decompose` is checked at each call.
# Compiled loops are left alone: numba compiles what it is given, and a checked function is not that any more.
_DECOMPOSE = Path(__file__).parent.parent / "src" / "normlens" / "decompose"
_CHECKED = [
    f"normlens.decompose.{file.stem}" for file in _DECOMPOSE.glob("*.py") if file.stem not in ("__init__", "process")
]
install_import_hook(_CHECKED, "beartype.beartype")

import torch  # noqa: E402

torch.set_num_threads(1)
