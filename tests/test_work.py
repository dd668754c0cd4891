"""A guard on cost that cannot be noisy: work is counted, not timed."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import pytest
import torch
import transformers
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

from normlens.anatomy.operations import tensors_in
from normlens.decompose import process
from normlens.lens import Lens
from normlens.measures.request import Request

ALL = ["f_norm", "attn_w", "attn_n", "attnres_w", "attnres_n", "attnresln_n"]


@pytest.fixture(autouse=True)
def plain_form(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compiled loops are invisible to the counters; the plain form does the same work."""
    monkeypatch.setattr(process, "COMPILED_LENGTH", 10**9)


def bert(layers: int = 2) -> Lens:
    config = transformers.BertConfig(
        vocab_size=100, hidden_size=384, intermediate_size=1536, num_hidden_layers=layers, num_attention_heads=6
    )
    return Lens(transformers.BertModel(config, add_pooling_layer=False).eval())


def llama() -> Lens:
    config = transformers.LlamaConfig(
        vocab_size=100,
        hidden_size=384,
        intermediate_size=1056,
        num_hidden_layers=2,
        num_attention_heads=6,
        num_key_value_heads=2,
    )
    return Lens(transformers.LlamaModel(config).eval())


def inputs(rows: int, length: int) -> dict[str, torch.Tensor]:
    ids = torch.randint(5, 99, (rows, length), generator=torch.Generator().manual_seed(0))
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids)}


def flops(lens: Lens, given: dict[str, torch.Tensor], measures: list[str], mixing: list[str] | None = None) -> float:
    """Floating-point operations of an analysis over those of the plain forward pass."""
    settings = Request.of(lens.anatomy, measures=measures, mixing=mixing)
    lens.run(given, settings, lambda *_: None)  # the first run compares outputs and prepares weights
    with FlopCounterMode(display=False) as analysed:
        lens.run(given, settings, lambda *_: None)
    # The counter does not see into the fused attention of CPUs: the plain pass is counted with eager attention.
    lens.model.set_attn_implementation("eager")
    with torch.no_grad(), FlopCounterMode(display=False) as alone:
        lens.model(**given)
    return analysed.get_total_flops() / alone.get_total_flops()


@pytest.mark.parametrize(
    ("make", "shape", "measures", "most"),
    [
        (bert, (4, 128), ALL, 1.12),
        (bert, (4, 128), ["attnresln_n"], 1.11),
        (bert, (1, 512), ALL, 1.12),
        (llama, (1, 512), ALL, 1.11),
        (llama, (1, 512), [], 1.09),
    ],
)
def test_operations_stay_close_to_the_forward_pass(
    make: Any, shape: tuple[int, int], measures: list[str], most: float
) -> None:
    ratio = flops(make(), inputs(*shape), measures, ["attnresln_n"])
    assert 1.0 < ratio <= most


class Peak(TorchDispatchMode):
    """The largest number of bytes that tensors made inside the block held at once."""

    def __init__(self) -> None:
        super().__init__()
        self.now = self.most = 0
        self._alive: dict[int, int] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for _, tensor in tensors_in(result):
            pointer, size = tensor.untyped_storage().data_ptr(), tensor.untyped_storage().nbytes()
            if pointer not in self._alive:
                self._alive[pointer] = 0
                self.now += size
                self.most = max(self.most, self.now)
            self._alive[pointer] += 1
            weakref.finalize(tensor, self._gone, pointer, size)
        return result

    def _gone(self, pointer: int, size: int) -> None:
        if pointer in self._alive:
            self._alive[pointer] -= 1
            if not self._alive[pointer]:
                del self._alive[pointer]
                self.now -= size


def peak(lens: Lens, given: dict[str, torch.Tensor], measures: list[str]) -> int:
    settings = Request.of(lens.anatomy, measures=measures, mixing=["attnresln_n"])
    lens.run(given, settings, lambda *_: None)
    with Peak() as counted:
        lens.run(given, settings, lambda *_: None)
    return counted.most


def test_memory_does_not_know_the_depth() -> None:
    given = inputs(1, 256)
    assert peak(bert(6), given, ALL) <= 1.1 * peak(bert(2), given, ALL)


def test_nothing_quadratic_by_head_and_width_is_built() -> None:
    """The materializing method would hold head x query x key x model numbers: 0.6 GB here."""
    assert peak(bert(), inputs(1, 256), ALL) < 60e6


def test_ratios_alone_hold_nothing_quadratic(monkeypatch: pytest.MonkeyPatch) -> None:

    from normlens.decompose import attention

    monkeypatch.setattr(attention, "WHOLE_NUMBERS", 1)  # every input counts as long
    lens = bert()
    short, long = (peak(lens, inputs(1, length), []) for length in (128, 512))
    assert long <= 4.5 * short


@pytest.mark.parametrize("make", [bert, llama])
def test_a_pass_leaves_nothing_to_the_garbage_collector(make: Any) -> None:
    """Blocks of memory in a reference cycle stay until the collector comes by: passes would pile up."""
    lens, given = make(), inputs(1, 32)
    settings = Request.of(lens.anatomy, measures=ALL)
    lens.run(given, settings, lambda *_: None)
    made: list[weakref.ref[torch.Tensor]] = []

    class Births(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            result = func(*args, **(kwargs or {}))
            made.extend(weakref.ref(tensor) for _, tensor in tensors_in(result))
            return result

    kept = {id(tensor) for tensor in (*lens.model.parameters(), *lens.model.buffers())}
    gc.collect()
    gc.disable()
    try:
        with Births():
            lens.run(given, settings, lambda *_: None)
        left = [tensor for ref in made if (tensor := ref()) is not None and id(tensor) not in kept]
    finally:
        gc.enable()
    assert len(made) > 50
    assert not left
