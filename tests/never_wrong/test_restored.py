"""After success, error and interruption, the model and the process are as they were before."""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.modules.module import register_module_forward_pre_hook
from torch.overrides import _get_current_function_mode_stack
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

from normlens import Lens
from normlens.errors import NormlensError
from normlens.families.tiny import tiny_inputs, tiny_model

#: Families read through the attention interface, from the inside of their own code, with recurrences, with two sides.
FAMILIES = ("bert", "llama", "deberta-v2", "bloom", "mpnet", "codegen", "t5", "mamba", "gemma3n_text")
PARTS = ["states", "heads", "edges", "blocks", "direct", "biases"]


def process_state() -> dict[str, object]:
    backends = torch.backends.cuda
    return {
        "grad mode": torch.is_grad_enabled(),
        "inference mode": torch.is_inference_mode_enabled(),
        "random numbers": torch.get_rng_state().tolist(),
        "threads": torch.get_num_threads(),
        "warning filters": list(warnings.filters),
        "environment": dict(os.environ),
        "dispatch modes": _get_current_dispatch_mode_stack(),
        "function modes": _get_current_function_mode_stack(),
        "autograd functions": torch.autograd.Function.__dict__["apply"],
        "no_grad": (torch.no_grad.__enter__, torch.no_grad.__exit__),
        "default dtype": torch.get_default_dtype(),
        "autocast": torch.is_autocast_enabled("cpu"),
        "fast path": torch.backends.mha.get_fastpath_enabled(),
        "attention kernels": (backends.flash_sdp_enabled(), backends.math_sdp_enabled()),
        "products": torch.backends.cuda.matmul.fp32_precision,
        "deterministic": torch.are_deterministic_algorithms_enabled(),
        "compiler": torch.compiler.is_compiling(),
    }  # fmt: skip


def model_state(model: nn.Module) -> dict[str, object]:
    found: dict[str, object] = {}
    for name, module in model.named_modules():
        hooks = [list(getattr(module, f"_{kind}")) for kind in ("forward_hooks", "forward_pre_hooks", "backward_hooks")]
        found[name] = (module.training, hooks, sorted(vars(module)), vars(module).get("forward"))
        if hasattr(module, "config"):
            found[f"{name} attention"] = getattr(module.config, "_attn_implementation", None)
        code = sys.modules[type(module).__module__]
        found[f"code of {code.__name__}"] = {n: id(f) for n, f in vars(code).items() if callable(f)}
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        version = None if tensor.is_inference() else tensor._version
        found[f"tensor {name}"] = (tensor.requires_grad, tensor.grad, version, tensor.data_ptr())
    return found


@contextmanager
def unchanged(model: nn.Module) -> Iterator[None]:
    before = process_state(), model_state(model)
    yield
    after = process_state(), model_state(model)
    for now, then in zip(after, before, strict=True):
        assert [key for key in then if now.get(key) != then[key]] == []
        assert now.keys() == then.keys()


class StoppedError(Exception):
    """An error in the middle of a pass."""


@contextmanager
def raising(error: type[BaseException], at: int) -> Iterator[Callable[[], int]]:
    """Raise an error when a module is called for the nth time, whichever it is; gives how many calls there were."""
    calls = 0

    def count(module: nn.Module, args: Any) -> None:
        nonlocal calls
        calls += 1
        if calls == at:
            raise error

    handle = register_module_forward_pre_hook(count)
    try:
        yield lambda: calls
    finally:
        handle.remove()


def analyze(lens: Lens, inputs: dict[str, Any]) -> None:
    lens.analyze_inputs(inputs)


def explain(lens: Lens, inputs: dict[str, Any]) -> None:
    lens.explain_inputs(inputs, output=3, position=1)


def integrate(lens: Lens, inputs: dict[str, Any]) -> None:
    lens.explain_inputs(inputs, output=3, position=1, attention="integrated")


@pytest.mark.parametrize("call", [analyze, explain, integrate])
@pytest.mark.parametrize("family", FAMILIES)
def test_everything_is_restored(family: str, call: Callable[[Lens, dict[str, Any]], None]) -> None:
    model = tiny_model(family).train()
    inputs = tiny_inputs(model, padded=False)
    if family == "mamba" and call is analyze:
        return  # no attention
    with unchanged(model):
        with raising(KeyboardInterrupt, -1) as calls:
            call(Lens(model), inputs)
        count = calls()
    warm = Lens(model)
    call(warm, inputs)
    for error in (KeyboardInterrupt, StoppedError):
        for lens, share in ((None, 0.1), (None, 0.3), (None, 0.6), (None, 0.95), (warm, 0.02), (warm, 0.2)):
            stop = raising(error, max(1, int(share * count)))
            with unchanged(model), stop, suppress(KeyboardInterrupt, NormlensError):
                call(lens or Lens(model), inputs)
    call(Lens(model), inputs)


@pytest.mark.parametrize("family", ["bert", "llama", "deberta-v2"])
def test_a_model_made_under_inference_mode(family: str) -> None:
    plain = tiny_model(family)
    with torch.inference_mode():
        model = tiny_model(family)
        model.load_state_dict(plain.state_dict())
    inputs = tiny_inputs(plain, padded=False)
    with unchanged(model):
        found = Lens(model).explain_inputs(inputs, output=3, position=1, parts=PARTS[:1])[0]
        Lens(model).analyze_inputs(inputs)
    expected = Lens(plain).explain_inputs(inputs, output=3, position=1, parts=PARTS[:1])[0]
    for name in ("tokens", "states"):
        assert abs(found[name] - expected[name].values).max() < 1e-6
