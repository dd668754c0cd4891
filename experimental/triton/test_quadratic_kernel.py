"""The Triton kernel in Triton's interpreter, against weights and norms written out."""

from __future__ import annotations

import importlib
import importlib.util
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.decompose.test_attention import LENGTH, inputs, masks, written_out
from torch import Tensor

from experimental.triton.kernel_trial import fused_norms
from normlens.decompose.attention import AttentionInputs
from normlens.decompose.fused import attend_fused
from normlens.decompose.grams import Grams
from normlens.decompose.steps import Normalization

needs_triton = pytest.mark.skipif(
    importlib.util.find_spec("triton") is None, reason="Triton is not installed (pip install triton, 290 MB)"
)


@pytest.fixture(scope="module")
def kernel() -> Iterator[Any]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TRITON_INTERPRET", "1")  # read when the kernel is defined
        yield importlib.import_module("experimental.triton.quadratic_kernel").pair_norms


def norms_written_out(alpha: Tensor, given: AttentionInputs, weight: Tensor, norm: Normalization) -> Tensor:
    values = given.value.repeat_interleave(alpha.shape[1] // given.value.shape[1], 1).double()
    f = torch.einsum("bhkw,hwd->bhkd", values, weight.double())
    parts = torch.einsum("bhqk,bhkd->bqkd", alpha, f)
    assert norm.weight is not None
    centred = (parts - parts.mean(-1, keepdim=True)) * norm.weight.double()
    return torch.stack([parts.norm(dim=-1), centred.norm(dim=-1)])


@needs_triton
@pytest.mark.parametrize("name", masks())
@pytest.mark.parametrize("heads", [4, 18])
def test_the_kernel_gives_norms_and_mean_weights(name: str, heads: int, kernel: Any) -> None:
    given = inputs(masks()[name], heads=heads)
    drawn = torch.Generator().manual_seed(1)
    weight = torch.randn(heads, given.value.shape[-1], 20, generator=drawn)
    norm = Normalization(torch.randn(20, generator=drawn), None, centred=True, eps=1e-5)
    fused = attend_fused(given)
    assert fused is not None
    grams = Grams(given.value, weight, [(), (norm,)])
    grams.extend_to(LENGTH, 0)
    out, mean = torch.zeros(2, 2, LENGTH, LENGTH), torch.zeros(2, LENGTH, LENGTH)
    fused_norms(grams, fused, kernel, out, mean)
    alpha, _ = written_out(given)
    expected = norms_written_out(alpha, given, weight, norm)
    torch.testing.assert_close(mean.double(), alpha.mean(1), rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(out.double(), expected, rtol=2e-5, atol=1e-5 * float(expected.max()))


@needs_triton
def test_lost_pairs_are_worked_out_again(kernel: Any) -> None:
    given = inputs(masks()["causal"])
    weight = torch.randn(4, given.value.shape[-1], 20, generator=torch.Generator().manual_seed(1))
    weight[1] = -weight[0] * (1 - 1e-5)  # two heads that share their values nearly cancel ...
    query = given.query.clone()
    query[:, 1], query[:, 2:] = query[:, 0], 0  # ... where their weights are the same
    weight[2:] = 0
    given = AttentionInputs(query, given.key, given.value, given.mask, given.scaling)
    fused = attend_fused(given)
    assert fused is not None
    grams = Grams(given.value, weight, [()])
    grams.extend_to(LENGTH, 0)
    out = torch.zeros(1, 2, LENGTH, LENGTH)
    flags = []

    def noted(*arguments: Any) -> Tensor:
        flags.append(kernel(*arguments))
        assert bool((out == -1).any())
        return flags[-1]

    fused_norms(grams, fused, noted, out, None)
    assert bool(flags[0])
    alpha, _ = written_out(given)
    values = given.value.repeat_interleave(2, 1).double()
    parts = torch.einsum("bhqk,bhkw,hwd->bqkd", alpha, values, weight.double())
    torch.testing.assert_close(out[0].double(), parts.norm(dim=-1), rtol=1e-4, atol=1e-12)


@needs_triton
@pytest.mark.parametrize("capability", ["80", "90"])
def test_the_kernel_compiles_for_cards_that_are_not_here(capability: str) -> None:
    """The interpreter takes what a compiler refuses; in a process of its own, since it changes Triton's language."""
    command = [sys.executable, "-m", "experimental.triton.compile_kernel", capability]
    root = Path(__file__).parents[2]
    variables = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    variables |= {"PYTHONPATH": f"{root / 'src'}{os.pathsep}{root}"}
    done = subprocess.run(command, cwd=root, env=variables, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-3000:]
