"""The Triton kernel in Triton's interpreter, against weights and norms written out; and when it is used at all."""

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
from torch import Tensor

from normlens.decompose import kernel_choice, process
from normlens.decompose.attention import AttentionInputs
from normlens.decompose.fused import attend_fused
from normlens.decompose.grams import Grams
from normlens.decompose.kernel_choice import Trial
from normlens.decompose.steps import Normalization
from tests import tiny
from tests.decompose.test_attention import LENGTH, inputs, masks, written_out

needs_triton = pytest.mark.skipif(
    importlib.util.find_spec("triton") is None, reason="Triton is not installed (pip install triton, 290 MB)"
)


@pytest.fixture(scope="module")
def kernel() -> Iterator[Any]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TRITON_INTERPRET", "1")  # read when the kernel is defined
        yield importlib.import_module("normlens.decompose.quadratic_kernel").pair_norms


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
    grams = Grams(given.value, (weight,), [(), (norm,)])
    grams.reach(LENGTH, 0)
    out, mean = torch.zeros(2, 2, LENGTH, LENGTH), torch.zeros(2, LENGTH, LENGTH)
    grams.fused_norms(fused, kernel, out, mean)
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
    grams = Grams(given.value, (weight,), [()])
    grams.reach(LENGTH, 0)
    out = torch.zeros(1, 2, LENGTH, LENGTH)
    flags = []

    def noted(*arguments: Any) -> Tensor:
        flags.append(kernel(*arguments))
        assert bool((out == -1).any())
        return flags[-1]

    grams.fused_norms(fused, noted, out, None)
    assert bool(flags[0])
    alpha, _ = written_out(given)
    values = given.value.repeat_interleave(2, 1).double()
    parts = torch.einsum("bhqk,bhkw,hwd->bqkd", alpha, values, weight.double())
    torch.testing.assert_close(out[0].double(), parts.norm(dim=-1), rtol=1e-4, atol=1e-12)


@needs_triton
@pytest.mark.parametrize("capability", ["80", "90"])
def test_the_kernel_compiles_for_cards_that_are_not_here(capability: str) -> None:
    """The interpreter takes what a compiler refuses; in a process of its own, since it changes Triton's language."""
    command = [sys.executable, "-m", "tests.decompose.compile_kernel", capability]
    root = Path(__file__).parents[2]
    variables = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    variables |= {"PYTHONPATH": f"{root / 'src'}{os.pathsep}{root}"}
    done = subprocess.run(command, cwd=root, env=variables, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-3000:]


@needs_triton
@pytest.mark.parametrize("family", ["bert", "gpt2", "llama", "albert"])
def test_an_analysis_by_the_kernel_is_the_same(family: str, kernel: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The whole way through a lens, its proof included; the kernel must have been called in every layer."""
    from normlens.lens import Lens

    batch = tiny.batch(family, lengths=(30, 21))
    measures = ["f_norm", "attn_w", "attn_n", "attnres_w", "attnres_n", "attnresln_n"]
    expected = Lens(tiny.make(family)).analyze_inputs(batch, measures=measures)
    calls = []

    def counted(*arguments: Any) -> Tensor:
        calls.append(arguments)
        found: Tensor = kernel(*arguments)
        return found

    monkeypatch.setattr(kernel_choice, "takes_kernel", lambda inputs, stages: True)
    monkeypatch.setattr("normlens.decompose.quadratic_kernel.pair_norms", counted)
    monkeypatch.setattr(process, "fits_compiled", lambda like: False)
    lens = Lens(tiny.make(family))
    found = lens.analyze_inputs(batch, measures=measures)
    assert len(calls) >= len(lens.anatomy.sites)
    for one, other in zip(expected, found, strict=True):
        for kind, dataset in one.sites.items():
            for name in (*measures, *(n for n in dataset.data_vars if str(n).startswith("mixing"))):
                a, b = dataset[name].values, other.sites[kind][name].values
                assert abs(a - b).max() <= 2e-5 * abs(a).max(), name


@needs_triton
def test_a_wrong_kernel_loses_its_trial(kernel: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter([3.0, 1.0] * 10)  # the kernel takes a third
    monkeypatch.setattr(kernel_choice, "seconds", lambda work, device: next(clock))
    arguments = (torch.device("cpu"), torch.float32, 3, 8, 2)
    right = kernel_choice.trial(*arguments, length=40)
    assert right.won and right.gap < 1e-6, right

    def wrong(*given: Any) -> Tensor:
        lost: Tensor = kernel(*given)
        given[4][..., 7] *= 1.001
        return lost

    monkeypatch.setattr("normlens.decompose.quadratic_kernel.pair_norms", wrong)
    assert not kernel_choice.trial(*arguments, length=40).won


def test_a_kernel_must_be_clearly_quicker() -> None:
    assert Trial(plain=1.0, kernel=0.5, gap=1e-6).won
    assert not Trial(plain=1.0, kernel=0.9, gap=1e-6).won
    assert not Trial(plain=1.0, kernel=0.5, gap=1e-3).won
    assert not Trial(plain=1.0, kernel=0.5, gap=float("nan")).won


def test_a_kernel_that_cannot_be_compiled_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuses(*given: Any) -> Trial:
        raise RuntimeError("no such card")

    monkeypatch.setattr(kernel_choice, "trial", refuses)
    assert not kernel_choice.tried(torch.device("cpu"), torch.float32, 7, 8, 1)


def test_the_cpu_never_asks_for_it() -> None:
    assert not kernel_choice.takes_kernel(inputs(None), 1)
