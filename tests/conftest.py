"""Run-time checks of the axis names in `decompose`, and few threads: tests share the machine."""

from __future__ import annotations

import os

os.environ.setdefault("HF_HUB_OFFLINE", "1")  # a test never waits for the network

from jaxtyping import install_import_hook

# Only while its modules are first imported: from here on every annotated axis in `decompose` is checked at each call.
install_import_hook("normlens.decompose", "beartype.beartype")

import torch  # noqa: E402

torch.set_num_threads(1)
