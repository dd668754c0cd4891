"""What normlens does on a device, against what it does on the CPU: one case a line, in a process that pretends the device.

    python -m tests.devices.cases maps words     # cases whose name holds one of these words

Run by `test_devices.py`, with the environment that `pretend.environment` gives.
"""

from __future__ import annotations

import json
import logging
import os
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers as tf
from torch import Tensor, nn

from tests import tiny
from tests.devices import pretend

DEVICE = os.environ.get(pretend.PRETENDED, "cuda")
TEXTS = ["the cat sats on the mats , and the dog ran", "she was very fast", "the cats"]
CASES: dict[str, Callable[[], None]] = {}


def case(*variants: str, only: str = "") -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Register a case once for each variant; `only` names the device that has such a thing."""

    def register(function: Callable[..., None]) -> Callable[..., None]:
        if only in ("", DEVICE):
            for variant in variants or ("",):
                name = f"{function.__name__} {variant}".strip()
                CASES[name] = (lambda variant=variant: function(variant)) if variant else function
        return function

    return register


def on_device(inputs: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: value.to(DEVICE) for name, value in inputs.items()}


def lenses(family: str, **options: Any) -> tuple[Any, Any]:
    """The same tiny model on the CPU and on the device."""
    from normlens.lens import Lens

    here, there = tiny.make(family, **options), tiny.make(family, **options).to(DEVICE)
    assert all(isinstance(parameter, pretend.DeviceTensor) for parameter in there.parameters())
    return Lens(here, tiny.tokenizer_for(family)), Lens(there, tiny.tokenizer_for(family))


def assert_same(expected: Any, found: Any, tolerance: float = 2e-5) -> None:
    """Both lists of analyses must hold the same numbers."""
    for one, other in zip(expected, found, strict=True):
        assert one.sites.keys() == other.sites.keys()
        for kind, dataset in one.sites.items():
            for name in dataset.data_vars:
                a, b = dataset[name].values, other.sites[kind][name].values
                assert a.shape == b.shape, f"{kind} {name}: {a.shape} against {b.shape}"
                if name != "proof":
                    gap = float(np.abs(a - b).max() / max(np.abs(a).max(), 1e-30))
                    assert gap <= tolerance, f"{kind} {name} differs by {gap:.2g}"


def texts(family: str) -> dict[str, Any]:
    return {"text": TEXTS, "target": TEXTS[::-1]} if family in tiny.TWO_SIDED else {"text": TEXTS}


@case("bert", "gpt2", "llama", "t5", "marian", "gemma2", "albert")
def maps(family: str) -> None:
    """All measures and ratios of a padded batch, of texts, and ratios alone; no float64 where nobody asked for it."""
    here, there = lenses(family)
    inputs = tiny.batch(family)
    with pretend.counting() as counts:
        found = there.analyze_inputs(on_device(inputs))
    assert not counts.total("float64"), counts.float64
    assert_same(here.analyze_inputs(inputs), found)
    assert_same(here.analyze(**texts(family)), there.analyze(**texts(family)))
    ratios = {"measures": [], "mixing": ["attnres_w", "attnres_n", "attnresln_n"]}
    assert_same(here.analyze_inputs(inputs, **ratios), there.analyze_inputs(on_device(inputs), **ratios))


@case("bert", "gpt2", "llama", "marian")
def further_maps(family: str) -> None:
    """Maps of shares, and through the feed-forward block, with their mixing ratios."""
    here, there = lenses(family)
    inputs = tiny.batch(family)
    names = ["alti", "projection", "enc_n", "ff_n", "ffres_n", "ffresln_n", "value_zeroing"]
    expected = here.analyze_inputs(inputs, measures=names)
    with pretend.counting() as counts:
        found = there.analyze_inputs(on_device(inputs), measures=names)
    assert not counts.total("float64"), counts.float64
    assert_same(expected, found, tolerance=5e-5)


@case("float32", "bfloat16", only="cuda")
def ratios_alone(dtype: str) -> None:
    """Mixing ratios through the sums that CUDA's fused kernels keep: no weights of pairs, in any layer."""
    here, there = lenses("llama", dtype=getattr(torch, dtype))
    inputs = {"input_ids": torch.randint(3, 60, (2, 30), generator=torch.Generator().manual_seed(0))}
    padded = {**inputs, "attention_mask": (torch.arange(30) < torch.tensor([[30], [17]])).long()}
    ratios = {"measures": [], "mixing": ["attnres_w", "attnres_n", "attnresln_n"]}
    for given in (inputs, padded):
        there.analyze_inputs(on_device(given), **ratios)  # reads the model, and tries the kernel
        with pretend.counting() as counts:
            found = there.analyze_inputs(on_device(given), **ratios)
        assert_same(here.analyze_inputs(given, **ratios), found, tolerance=2e-5 if dtype == "float32" else 3e-2)
        kernel = "flash" if dtype == "bfloat16" and given is inputs else "efficient"
        assert counts.operations[f"_scaled_dot_product_{kernel}_attention"] >= len(there.anatomy.sites), kernel
        assert not counts.operations["_softmax"], "an ordinary softmax has weights"


@case("bert", "marian")
def too_long_for_its_memory(family: str) -> None:
    """What does not fit on the device is refused before anything runs, with what makes it fit."""
    from normlens.errors import InputError

    _, there = lenses(family)
    there.analyze(**texts(family))
    with pretend.free_memory(20_000):
        there.analyze(**texts(family), batch_size=1, measures=["attn_n"])
        try:
            there.analyze(**texts(family), batch_size=3)
        except InputError as error:
            assert f"{DEVICE}:0" in str(error) and "batch_size" in str(error), error
            return
    raise AssertionError("the batch does not fit, and nobody said so")


@case("bert", "gpt2", "llama")
def parameters_are_not_copied(family: str) -> None:
    """The output projection is a view of the model's own parameter where dtypes agree."""
    from normlens.anatomy.weights import SiteWeights

    _, there = lenses(family)
    owned = {parameter.untyped_storage().data_ptr() for parameter in there.model.parameters()}
    for site in there.anatomy.sites:
        assert SiteWeights.of(site, torch.float32).w_o.untyped_storage().data_ptr() in owned, site


@case("bert", "llama", "marian")
def in_blocks(family: str) -> None:
    """Little memory: attention and vectors in small blocks. Digits lost everywhere: each pair is worked out again."""
    from normlens.decompose import devices, grams

    here, there = lenses(family)
    inputs = tiny.batch(family, lengths=(30, 30, 30), targets=(30, 30, 30))
    expected = here.analyze_inputs(inputs)
    with tiny.changed(devices, "block_numbers", lambda device: 500):
        assert_same(expected, there.analyze_inputs(on_device(inputs)))
    with (
        tiny.changed(devices, "block_numbers", lambda device: 5000),
        tiny.changed(grams, "CANCELLATION", 0.9),
        pretend.counting() as counts,
    ):
        assert_same(expected, there.analyze_inputs(on_device(inputs)))
    assert not counts.total("float64"), counts.float64


@case("bert", "llama", "t5")
def float64_asked_for(family: str) -> None:
    from normlens.errors import InputError

    here, there = lenses(family)
    inputs = tiny.batch(family)
    if DEVICE == "mps":
        try:
            there.analyze_inputs(on_device(inputs), precision="float64")
        except InputError as error:
            assert "float64" in str(error) and "mps" in str(error), error
            return
        raise AssertionError("float64 does not exist there, and nobody said so")
    expected = here.analyze_inputs(inputs, precision="float64")
    assert_same(expected, there.analyze_inputs(on_device(inputs), precision="float64"))


@case("norms bert", "vectors bert", "vectors llama", "vectors marian")
def words(what: str) -> None:
    mode, family = what.split()
    here, there = lenses(family)
    assert_same(here.analyze(**texts(family), words=mode), there.analyze(**texts(family), words=mode))


@case("bert", "marian")
def stream(family: str) -> None:
    """Each site stays on the device until somebody takes it off."""
    here, there = lenses(family)
    inputs = tiny.batch(family)
    for a, b in zip(here.stream_inputs(inputs), there.stream_inputs(on_device(inputs)), strict=True):
        assert (a.kind, a.layer) == (b.kind, b.layer)
        for name, value in b.values.items():
            assert value.device.type == DEVICE
            torch.testing.assert_close(value.cpu() * 1, a.values[name], rtol=2e-4, atol=2e-5)
        assert b.proof.device.type == "cpu"


@case("bert", "llama")
def weights_alone(family: str) -> None:
    """Singular values and expansion rates, which need no pass."""
    here, there = lenses(family)
    np.testing.assert_allclose(there.singular_values().values, here.singular_values().values, rtol=1e-6, atol=1e-9)
    for variant in ("paper", "code") if family == "bert" else ("paper",):
        np.testing.assert_allclose(there.expansion_rate(variant).values, here.expansion_rate(variant).values, rtol=1e-6)


@case()
def generate() -> None:
    from normlens.lens import Lens

    config = tf.GPT2Config(
        vocab_size=60, n_embd=24, n_layer=2, n_head=4, n_positions=24, bos_token_id=0, eos_token_id=0
    )
    models = [tiny.randomized(tf.GPT2LMHeadModel(config).eval()) for _ in range(2)]
    here, there = (Lens(m.to(d), tiny.tokenizer("none")) for m, d in zip(models, ("cpu", DEVICE), strict=True))
    for model in models:
        model.generation_config.max_new_tokens = 4
    assert_same([here.analyze("the cat sat", generate=True)], [there.analyze("the cat sat", generate=True)])


@case()
def corpus() -> None:
    from normlens.lens import Lens
    from tests.corpus import conftest

    with tempfile.TemporaryDirectory() as folder:
        text = Path(folder) / "text.txt"
        text.write_text("\n".join(conftest.paragraphs(12)) + "\n")
        means = []
        for device, size in (("cpu", 1), (DEVICE, 1), (DEVICE, 64)):
            lens = Lens(conftest.tiny_bert().to(device), conftest.tiny_tokenizer())
            done = lens.corpus(text, Path(folder) / f"{device}{size}", batch_size=size, per_token=True, workers=1)
            means.append(done.statistics.select_dtypes("number").to_numpy(dtype=float))
        for other in means[1:]:
            np.testing.assert_allclose(other, means[0], rtol=2e-3, atol=1e-4)


@case("marian")
def alignment(family: str) -> None:
    from normlens.alignment.aligner import Aligner
    from normlens.lens import Lens
    from tests.alignment import models_for_tests as models

    expected = list(Aligner(models.lens(family)).align(models.SENTENCES))
    models.lens.cache_clear()
    lens = models.lens(family)
    there = Lens(lens.model.to(DEVICE), lens.tokenizer)
    assert [one.links for one in Aligner(there).align(models.SENTENCES)] == [one.links for one in expected]


@case("bert", "gpt2", "llama")
def explain(family: str) -> None:
    """A backward pass: its hooks run in a thread of the device."""
    from normlens.lens import Lens

    head = {"bert": tf.BertForMaskedLM, "gpt2": tf.GPT2LMHeadModel, "llama": tf.LlamaForCausalLM}[family]
    parts, rule = ["heads", "edges", "biases"], "integrated" if family == "gpt2" else "fixed"
    found = []
    for device in ("cpu", DEVICE):
        torch.manual_seed(0)
        model = tiny.randomized(head(tiny.make(family).config)).eval().to(device)
        lens = Lens(model, tiny.tokenizer_for(family))
        inputs = {"input_ids": torch.tensor([[2, 6, 4, 8, 3]], device=device)}
        found.append(lens.explain_inputs(inputs, position=2 if family == "bert" else None, parts=parts)[0])
        found.append(lens.explain("the cat sat on the [MASK]", attention=rule, parts=parts))
    for one, other in zip(found[:2], found[2:], strict=True):
        for part in ("tokens", "heads", "edges", "biases"):
            np.testing.assert_allclose(other[part].values, one[part].values, rtol=1e-3, atol=1e-4)


@case("bfloat16 bert", "bfloat16 llama", "float16 gpt2")
def half_precision(what: str) -> None:
    dtype, family = what.split()
    here, there = lenses(family, dtype=getattr(torch, dtype))
    inputs = tiny.batch(family)
    assert_same(here.analyze_inputs(inputs), there.analyze_inputs(on_device(inputs)), tolerance=3e-2)


@case("bert", "llama", "t5")
def autocast(family: str) -> None:
    """The model's products in bfloat16, its parameters in float32; ours in float32."""
    here, there = lenses(family)
    inputs = tiny.batch(family)
    with torch.autocast("cpu", torch.bfloat16):
        expected = here.analyze_inputs(inputs)
    with switched_autocast():
        found = there.analyze_inputs(on_device(inputs))
    assert_same(expected, found, tolerance=5e-2)


@contextmanager
def switched_autocast() -> Iterator[None]:
    """`torch.autocast` itself looks for hardware first."""
    before = torch.is_autocast_enabled(DEVICE), torch.get_autocast_dtype(DEVICE)
    torch.set_autocast_enabled(DEVICE, True)
    torch.set_autocast_dtype(DEVICE, torch.bfloat16)
    try:
        yield
    finally:
        torch.set_autocast_enabled(DEVICE, before[0])
        torch.set_autocast_dtype(DEVICE, before[1])
        torch.clear_autocast_cache()


@case("bert", "llama", "t5", only="cuda")
def tensor_float32(family: str) -> None:
    """The model's products rounded to ten bits: allowed to it, not to us; the setting is as it was afterwards."""
    here, there = lenses(family)
    inputs = tiny.batch(family, lengths=(30, 30, 30))
    expected = here.analyze_inputs(inputs)
    with pretend.tensor_cores():
        found = there.analyze_inputs(on_device(inputs))
        assert torch.get_float32_matmul_precision() == "high"
    assert_same(expected, found, tolerance=2e-2)
    exact = there.analyze_inputs(on_device(inputs))
    assert float(exact[0].max_proof_error) < 1e-5 < float(found[0].provenance["output_check"]) + 1


@case("bert", "t5", "llama", only="cuda")
def two_devices(family: str) -> None:
    """Layers on different devices, as `device_map` lays them out; in T5, encoder and decoder apart as well."""
    from accelerate.hooks import AlignDevicesHook, add_hook_to_module

    from normlens.lens import Lens

    model = tiny.make(family).to("cuda:0")
    stacks = [module for module in model.modules() if isinstance(module, nn.ModuleList) and len(module) > 1]
    outer = [stack for stack in stacks if not any(stack is not other and stack in other.modules() for other in stacks)]
    inside: set[nn.Module] = set()
    for number, stack in enumerate(outer):
        inside |= set(stack.modules())
        for n, layer in enumerate(stack):
            place = f"cuda:{number if len(outer) > 1 else int(2 * n >= len(stack))}"
            layer.to(place)
            add_hook_to_module(layer, AlignDevicesHook(execution_device=place))
    for module in set(model.modules()) - inside:
        if not list(module.children()):
            add_hook_to_module(module, AlignDevicesHook(execution_device="cuda:0"), append=True)
    add_hook_to_module(model, AlignDevicesHook(execution_device="cuda:0", io_same_device=True), append=True)
    inputs = tiny.batch(family)
    found = Lens(model, tiny.tokenizer_for(family)).analyze_inputs(on_device(inputs))
    assert_same(Lens(tiny.make(family)).analyze_inputs(inputs), found)


@case(only="cuda")
def bench() -> None:
    """`make bench-gpu`, as a user with a GPU will see it."""
    from benchmarks import gpu

    shapes = (
        gpu.Shape("tiny BERT", "bert", 2, 12, 1, 16, 2, 2, 16),
        gpu.Shape("tiny Llama", "llama", 1, 12, 1, 32, 4, 2, 16, "bfloat16"),
    )
    with tempfile.TemporaryDirectory() as folder:
        gpu.write(gpu.measure(shapes, rounds=3), Path(folder))
        report = json.loads((Path(folder) / "gpu_report.json").read_text())
        text = (Path(folder) / "gpu_report.md").read_text()
    assert [shape["name"] for shape in report["shapes"]] == ["tiny BERT", "tiny Llama"]
    for shape in report["shapes"]:
        assert shape["works"].keys() == gpu.WORKS.keys()
        assert all(found["ratio_low"] <= found["ratio"] <= found["ratio_high"] for found in shape["works"].values())
        assert f"| {shape['name']}, 1 layers | {gpu.WORKS['maps']} |" in text
    assert report["device"] in text and len(report["kernel"]) == 2


@case("wrapped", "in place", only="cuda")
def compiled(how: str) -> None:
    """`torch.compile` (on the CPU, with the eager backend: what is traced, not what is generated)."""
    from normlens.lens import Lens

    logging.getLogger("torch._dynamo").setLevel(logging.CRITICAL)
    model, inputs = tiny.make("bert"), tiny.batch("bert")
    if how == "wrapped":
        model = torch.compile(model, backend="eager")
    else:
        model.compile(backend="eager")
    model(**inputs)
    assert_same(Lens(tiny.make("bert")).analyze_inputs(inputs), Lens(model).analyze_inputs(inputs))


def main(wanted: list[str]) -> int:
    """Run the cases by these words; a line each, and the traceback of each that fails."""
    pretend.install()
    torch.set_num_threads(1)
    chosen = {name: run for name, run in CASES.items() if not wanted or any(word in name for word in wanted)}
    failed = []
    for name, run in chosen.items():
        try:
            run()
        except Exception:
            failed.append(name)
            traceback.print_exc()
        print(f"{'FAIL' if name in failed else 'ok  '}  {name}", flush=True)
    print(f"{len(failed)} of {len(chosen)} cases failed on pretend {DEVICE}: {', '.join(failed) or 'none'}")
    return int(bool(failed) or not chosen)


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
