"""Nothing stale, and nothing of another thread: a changed model is a new one, a pass belongs to its caller."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from normlens import Lens
from normlens.errors import AnatomyError, InputError
from normlens.families.tiny import tiny_inputs, tiny_model
from tests import tiny
from tests.never_wrong.common import IDS, WIDTH, agree
from tests.test_lens import snapshot

# ---- 7. nothing stale -----------------------------------------------------------------------------------------------


def fused_step(model: nn.Module) -> None:
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.05, fused=True)
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    optimizer.zero_grad()


def data_added(model: nn.Module) -> None:
    for parameter in model.parameters():
        parameter.data.add_(0.05)


def one_weight_changed(model: Any) -> None:
    model.encoder.layer[1].attention.output.dense.weight.data.mul_(1.5)


def assigned(model: nn.Module) -> None:
    model.load_state_dict(tiny.make("bert", seed=7).state_dict(), assign=True)


def module_replaced(model: Any) -> None:
    model.encoder.layer[0].attention.output.dense = nn.Linear(WIDTH, WIDTH)


def layer_dropped(model: Any) -> None:
    model.encoder.layer = model.encoder.layer[:2]
    model.config.num_hidden_layers = 2


def norm_changed(model: Any) -> None:
    for layer in model.encoder.layer:
        layer.attention.output.LayerNorm.eps = 0.5


CHANGES: dict[str, Callable[[Any], object]] = {
    "AdamW(fused=True).step()": fused_step,
    "p.data.add_()": data_added,
    "one weight through .data": one_weight_changed,
    ".double()": lambda model: model.double(),
    ".bfloat16()": lambda model: model.bfloat16(),
    ".half()": lambda model: model.half(),
    "load_state_dict(assign=True)": assigned,
    "a module replaced": module_replaced,
    "a layer dropped": layer_dropped,
    "another eps": norm_changed,
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_changed_model_is_a_new_one(change: str) -> None:
    model = tiny.make("bert")
    lens, inputs = Lens(model), tiny.batch("bert")
    before = lens.analyze_inputs(inputs)[0]
    CHANGES[change](model)
    after = agree(lens, inputs)
    fresh = Lens(model)
    assert after.provenance["model"] == fresh.identity == lens.identity
    if change != "another eps":
        assert after.provenance["model"]["content"] != before.provenance["model"]["content"]
    assert after.provenance["model"]["dtype"] == str(next(model.parameters()).dtype).removeprefix("torch.")
    np.testing.assert_array_equal(lens.singular_values().values, fresh.singular_values().values)
    assert next(lens.stream_inputs(inputs)).proof.max() < 1e-1


@contextmanager
def with_lora() -> Iterator[tuple[Any, Lens, dict[str, Tensor]]]:
    import peft

    model = tiny_model("llama")
    inputs = tiny_inputs(model, padded=True)
    config = peft.LoraConfig(r=4, target_modules=["q_proj", "v_proj", "o_proj"], init_lora_weights=False)
    torch.manual_seed(0)
    wrapped: Any = peft.get_peft_model(model, config).eval()
    wrapped.add_adapter("other", config)
    lens = Lens(wrapped)
    lens.analyze_inputs(inputs)
    yield wrapped, lens, inputs


def test_lora_switched_disabled_rescaled_and_merged() -> None:
    with with_lora() as (model, lens, inputs):
        seen = [agree(lens, inputs)["attn_n"].values]
        model.set_adapter("other")
        seen.append(agree(lens, inputs)["attn_n"].values)
        with model.disable_adapter():
            seen.append(agree(lens, inputs)["attn_n"].values)
        layers = [module for module in model.modules() if hasattr(module, "lora_A")]
        for layer in layers:
            layer.set_scale("other", 3.0)
        seen.append(agree(lens, inputs)["attn_n"].values)
        model.set_adapter("default")
        seen.append(agree(lens, inputs)["attn_n"].values)
        np.testing.assert_array_equal(seen[0], seen[-1])
        for left in range(4):
            for right in range(left):
                assert not np.allclose(seen[left], seen[right], rtol=1e-2), f"{left} and {right} should differ"
        model.merge_adapter()
        np.testing.assert_allclose(agree(lens, inputs)["attn_n"].values, seen[0], rtol=1e-3, atol=1e-4)
        model.unmerge_adapter()
        np.testing.assert_allclose(agree(lens, inputs)["attn_n"].values, seen[0], rtol=1e-3, atol=1e-4)
        merged = model.merge_and_unload()
        np.testing.assert_allclose(
            Lens(merged).analyze_inputs(inputs)[0]["attn_n"].values, seen[0], rtol=1e-3, atol=1e-4
        )


def test_a_request_made_before_the_model_changed_is_refused() -> None:
    from normlens.measures.request import Request

    model = tiny.make("bert")
    lens, inputs = Lens(model), tiny.batch("bert")
    request = Request.of(lens.anatomy)
    assigned(model)
    with pytest.raises(AnatomyError, match="make the request again"):
        lens.run(inputs, request, lambda result, block: None)


# ---- 8. threads -----------------------------------------------------------------------------------------------------


def in_threads(work: Callable[[int], None], count: int) -> list[BaseException]:
    """Run `work(0)`, `work(1)`, … at the same time; what went wrong."""
    failures: list[BaseException] = []

    def guarded(n: int) -> None:
        try:
            work(n)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=guarded, args=(n,)) for n in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return failures


def test_three_hundred_calls_from_six_threads() -> None:
    model = tiny.make("bert").train()
    before = snapshot(model)
    shared, batches = Lens(model), [tiny.batch("bert", (5, 3)), tiny.batch("bert", (6,)), {"input_ids": IDS}]
    expected = [
        Lens(model).analyze_inputs(inputs, measures=["alpha", "attn_n"])[0]["attn_n"].values for inputs in batches
    ]

    def work(n: int) -> None:
        lens = shared if n % 2 else Lens(model)  # the same lens, and several on one model
        for call in range(50):
            which = (n + call) % len(batches)
            found = lens.analyze_inputs(batches[which], measures=["alpha", "attn_n"])[0]
            np.testing.assert_array_equal(found["attn_n"].values, expected[which])

    assert in_threads(work, 6) == []
    assert snapshot(model) == before


def test_the_users_own_calls_meanwhile_are_not_listened_to() -> None:
    """A model that is called by its user while a pass runs in another thread: neither notices the other."""
    model = tiny.make("gpt2")
    lens = Lens(model)
    expected = lens.analyze_inputs({"input_ids": IDS})[0]["attn_n"].values
    with torch.no_grad():
        own = model(input_ids=IDS[:, :4]).last_hidden_state
    stop = threading.Event()

    def work(n: int) -> None:
        if n:
            while not stop.is_set():
                with torch.no_grad():
                    torch.testing.assert_close(model(input_ids=IDS[:, :4]).last_hidden_state, own, rtol=1e-4, atol=1e-5)
            return
        try:
            for _ in range(15):
                np.testing.assert_array_equal(lens.analyze_inputs({"input_ids": IDS})[0]["attn_n"].values, expected)
        finally:
            stop.set()

    assert in_threads(work, 2) == []


def test_an_open_stream_in_the_same_thread_is_named() -> None:
    model = tiny.make("bert")
    before, lens = snapshot(model), Lens(model)
    stream = lens.stream_inputs({"input_ids": IDS})
    next(stream)
    for call in (lens, Lens(model)):
        with pytest.raises(
            InputError, match="a stream on this model is still open in this thread; read it to its end, or close"
        ):
            call.analyze_inputs({"input_ids": IDS})
    assert lens.anatomy.kinds == ("encoder",)
    stream.close()  # type: ignore[attr-defined]
    assert len(lens.analyze_inputs({"input_ids": IDS})) == 2
    assert snapshot(model) == before


def test_a_pass_that_fails_lets_the_next_one_in(monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny.make("bert")
    before, lens = snapshot(model), Lens(model)
    lens.analyze_inputs({"input_ids": IDS})
    with monkeypatch.context() as patch:
        patch.setattr("normlens.measures.run.measure_block", lambda *args: 1 / 0)
        failures = in_threads(lambda n: lens.analyze_inputs({"input_ids": IDS}) and None, 3)
        assert [type(failure.__cause__) for failure in failures] == [ZeroDivisionError] * 3
        with pytest.raises(AnatomyError, match=r"BertModel .* is not supported on this input: ZeroDivisionError"):
            list(lens.stream_inputs({"input_ids": IDS}))
    assert snapshot(model) == before
    agree(lens, {"input_ids": IDS})
