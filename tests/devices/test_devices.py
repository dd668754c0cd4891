"""normlens on a CUDA and on an MPS device, where there is none: see `pretend` and `cases`."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.devices import pretend

ROOT = Path(__file__).parents[2]
#: Cases of one process, by a word in their names: a few processes are started, not one for each case.
GROUPS = {
    "maps": ("maps", "in_blocks", "stream", "float64", "ratios_alone", "too_long", "parameters"),
    "uses": ("words", "further_maps", "weights_alone", "generate", "corpus", "alignment", "explain"),
    "precision": ("half", "autocast", "tensor_float32", "two_devices", "compiled", "bench"),
}


@pytest.mark.parametrize("group", GROUPS)
@pytest.mark.parametrize("device", pretend.DISPATCH_KEYS)
def test_a_device_gives_the_numbers_of_the_cpu(device: str, group: str) -> None:
    reason = pretend.missing_compiler()
    if reason is not None:
        pytest.skip(reason)
    environment = {**os.environ, **pretend.environment(device), "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}"}
    command = [sys.executable, "-m", "tests.devices.cases", *GROUPS[group]]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-6000:]


def test_a_layer_asks_little_of_the_device() -> None:
    """Waits, copies and launches of one layer: see `counts`."""
    reason = pretend.missing_compiler()
    if reason is not None:
        pytest.skip(reason)
    environment = {**os.environ, **pretend.environment("cuda"), "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}"}
    command = [sys.executable, "-m", "tests.devices.counts"]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-6000:]
