"""What must hold for every explanation, whatever the model."""

from __future__ import annotations

import copy
import gc
import weakref
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from normlens.attribution.observer import TermSelection
from normlens.attribution.terms import Run
from normlens.errors import AnatomyError, InputError
from normlens.lens import Lens
from normlens.results.explanation import PARTS, Explanation, open_explanation
from tests import tiny
from tests.attribution.models import headed, ids_of


def _explained(model: Any, ids: Tensor, **options: Any) -> Explanation:
    return Lens(model).explain_inputs({"input_ids": ids[None]}, **options)[0]


def _total(found: Explanation) -> float:
    sides = [site for site in found.sites if site != "cross"]
    return sum(float(found.site(s)["tokens"].sum()) + float(found.site(s)["biases"].sum()) for s in sides)


@pytest.mark.parametrize("attention", ["fixed", "integrated"])
@pytest.mark.parametrize("family", ["bert", "gpt2", "llama_bias"])
def test_terms_add_up(family: str, attention: str) -> None:
    found = _explained(headed(family, torch.float32), ids_of(8), output=11, position=5, attention=attention)
    assert _total(found) == pytest.approx(found.value, abs=1e-4)
    assert found.proof.gap < 1e-5
    assert found.proof.replay < 1e-4


@pytest.mark.parametrize("integrated", [False, True])
@pytest.mark.parametrize("wanted", [TermSelection(), TermSelection(heads=True, edges=True, blocks=True, direct=True)])
@pytest.mark.parametrize("family", ["bert", "llama_bias", "gpt2"])
def test_a_pass_leaves_no_graph_behind(family: str, wanted: TermSelection, integrated: bool) -> None:
    """A hook that holds its own tensor keeps the whole graph, for ever: no collector sees a ring through it."""
    run = Run(headed(family, torch.float32), {"input_ids": ids_of(6)[None]}, wanted, integrated=integrated)
    leaf = weakref.ref(run.observer.stacks[0].leaf)
    run.explain(lambda output: output.logits[:, 3, 11])
    del run
    gc.collect()
    assert leaf() is None


def test_a_pass_that_fails_leaves_no_graph_behind() -> None:
    run = Run(headed("bert"), {"input_ids": ids_of(6)[None]}, TermSelection(), integrated=False)
    leaf = weakref.ref(run.observer.stacks[0].leaf)
    with pytest.raises(AnatomyError, match="cuts the way from the input vectors"):
        run.explain(lambda output: output.logits[:, 3, 11].detach())
    del run
    gc.collect()
    assert leaf() is None


@settings(max_examples=8, deadline=None)
@given(length=st.integers(1, 9), token=st.integers(5, 50), other=st.integers(5, 50), seed=st.integers(0, 99))
def test_a_contrast_is_a_difference(length: int, token: int, other: int, seed: int) -> None:
    model, ids = headed("gpt2"), ids_of(length, seed)
    one, two = (_explained(model, ids, output=t, parts=["tokens", "biases"]) for t in (token, other))
    both = _explained(model, ids, output=token, against=other, parts=["tokens", "biases"])
    np.testing.assert_allclose(both["tokens"], one["tokens"].values - two["tokens"].values, atol=1e-9)
    assert float(both["biases"].sum()) == pytest.approx(float(one["biases"].sum() - two["biases"].sum()), abs=1e-9)


def test_a_constant_on_all_logits_changes_no_contrast() -> None:
    model, ids = headed("bert"), ids_of(6)
    other = copy.deepcopy(model)
    with torch.no_grad():
        other.cls.predictions.decoder.bias.add_(3.0)
    one, two = (_explained(m, ids, output=8, against=9, position=2) for m in (model, other))
    np.testing.assert_allclose(one["tokens"], two["tokens"], atol=1e-9)
    assert one.value == pytest.approx(two.value, abs=1e-9)
    np.testing.assert_allclose(one["biases"], two["biases"], atol=1e-9)


def test_scaling_the_unembedding_scales_all_terms() -> None:
    model, ids = headed("llama"), ids_of(6)
    other = copy.deepcopy(model)
    with torch.no_grad():
        other.lm_head.weight.mul_(2.5)
    one, two = (_explained(m, ids, output=8, parts=PARTS) for m in (model, other))
    for name in ("tokens", "states", "edges", "heads", "blocks", "direct", "biases"):
        np.testing.assert_allclose(two[name], 2.5 * one[name].values, atol=1e-6, err_msg=name)


def test_a_later_token_gives_nothing_to_an_earlier_position() -> None:
    found = _explained(headed("llama"), ids_of(7), output=8, position=3, parts=PARTS)
    assert np.abs(found["tokens"].values[4:]).max() == 0
    assert np.abs(found["edges"].values[..., 4:]).max() == 0
    assert np.abs(found["states"].values[:, 4:]).max() == 0


OUTPUT_BIAS = {"bert": "attention.output.dense.bias", "gpt2": "attn.c_proj.bias", "llama_bias": "o_proj.bias"}


@pytest.mark.parametrize("implementation", ["eager", "sdpa"])
@pytest.mark.parametrize("family", ["bert", "gpt2", "llama_bias"])
def test_heads_edges_and_blocks(family: str, implementation: str) -> None:
    model = headed(family, implementation=implementation)
    with_bias = _explained(model, ids_of(7), output=8, position=5, parts=PARTS)
    np.testing.assert_allclose(with_bias["edges"].sum(("query", "key")), with_bias["heads"], atol=1e-6)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith(OUTPUT_BIAS[family]):
                parameter.zero_()
    # A block is the sum of its edges and its output's bias; b_V goes with its key.
    without = _explained(model, ids_of(7), output=8, position=5, parts=PARTS)
    gaps = [
        found["blocks"].sel(block="attention").sum("key") - found["edges"].sum(("head", "query", "key"))
        for found in (with_bias, without)
    ]
    assert np.abs(gaps[0]).max() > 1e-3
    np.testing.assert_allclose(gaps[1], 0, atol=1e-6)


@pytest.mark.parametrize("family", ["bert", "gpt2", "llama_bias"])
def test_direct_terms_add_up(family: str) -> None:
    found = _explained(headed(family), ids_of(7), output=8, position=5)
    total = sum(float(found[name].sum()) for name in ("direct", "direct_entrance", "direct_biases"))
    assert total == pytest.approx(found.value, abs=1e-6)


@pytest.mark.parametrize("family", ["bert", "gpt2", "llama"])
def test_padding_changes_no_number(family: str) -> None:
    model = headed(family)
    long, short = ids_of(9), ids_of(5, 1)
    padded = torch.stack([long, torch.cat([short, torch.full((4,), 2)])])
    mask = torch.tensor([[1] * 9, [1] * 5 + [0] * 4])
    inputs = {"input_ids": padded, "attention_mask": mask}
    batch = Lens(model).explain_inputs(inputs, output=8, position=3, parts=PARTS)
    for found, ids in zip(batch, (long, short), strict=True):
        alone = _explained(model, ids, output=8, position=3, parts=PARTS)
        assert found.value == pytest.approx(alone.value, abs=1e-6)
        for name in ("tokens", "states", "edges", "heads", "blocks", "direct", "biases"):
            np.testing.assert_allclose(found[name], alone[name], atol=1e-6, err_msg=name)


def test_steps_are_those_of_the_prefixes() -> None:
    model = headed("llama", torch.float32)
    lens = Lens(model, tiny.tokenizer("none"))
    whole = lens.explain("the cat sat", output="red tree")
    assert whole["tokens"].dims == ("step", "key")
    first, second = lens.explain("the cat sat", output="red"), lens.explain("the cat sat red", output="tree")
    np.testing.assert_allclose(whole["tokens"].values[0, :3], first["tokens"], atol=1e-4)
    np.testing.assert_allclose(whole["tokens"].values[1], second["tokens"], atol=1e-4)
    np.testing.assert_allclose(whole.value, [first.value, second.value], atol=1e-4)


def test_generated_tokens_are_explained_step_by_step() -> None:
    model = headed("marian", torch.float32)
    model.generation_config.max_new_tokens = 3
    found = Lens(model, tiny.tokenizer_for("marian")).explain("the cat sat", generate=True)
    assert found.site("decoder")["tokens"].sizes["step"] == found.value.sizes["step"]
    assert list(found.site("cross")["heads"].dims) == ["step", "layer", "head"]


def test_saved_and_opened(tmp_path: Any) -> None:
    found = Lens(headed("llama", torch.float32), tiny.tokenizer("none")).explain(
        "the cat sat on", output="red tree", edges_top=5
    )
    back = open_explanation(found.save(tmp_path / "e.zarr"))
    for name, array in found.sites["decoder"].items():
        assert array.identical(back[name]), name
    assert back.proof == found.proof
    assert dict(back.provenance) == dict(found.provenance)
    assert found.value.identical(back.value)
    with pytest.raises(InputError, match="overwrite"):
        found.save(tmp_path / "e.zarr")


def test_words_and_spans_are_sums() -> None:
    found = Lens(headed("llama", torch.float32), tiny.tokenizer("none")).explain("cats sat slowly on", output="red")
    assert float(found.by_word().sum()) == pytest.approx(float(found["tokens"].sum()))
    spans = found.by_span({"a": (0, 2), "b": (2, found["tokens"].sizes["key"])})
    assert float(spans.sum()) == pytest.approx(float(found["tokens"].sum()))
    with pytest.raises(InputError, match="within"):
        found.by_span({"a": (2, 99)})


def test_results_are_frozen_and_read_in_one_line() -> None:
    found = _explained(headed("llama", torch.float32), ids_of(5), output=3, parts=PARTS)
    with pytest.raises(ValueError, match="read-only"):
        found["tokens"].values[0] = 1
    assert "\n" not in repr(found)
    assert set(found.to_frame()["part"]) >= {"tokens", "edges", "biases"}
    assert all(paper in found.cite() for paper in ("kobayashi-etal-2020", "kobayashi-etal-2024", "decompx"))


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"output": "rojo verde", "position": 1}, "one token"),
        ({"output": 10**6}, "from 0 to"),
        ({"position": 99}, "0 to"),
        ({"parts": ["nothing"]}, "tokens, states"),
        ({"attention": "both"}, "fixed, integrated"),
        ({"direction": [1.0]}, "direction"),
    ],
)
def test_bad_requests(options: dict[str, Any], says: str) -> None:
    lens = Lens(headed("llama", torch.float32), tiny.tokenizer("none"))
    with pytest.raises(InputError, match=says):
        lens.explain("the cat sat", **options)


def test_masked_models_are_asked_at_their_mask() -> None:
    lens = Lens(headed("bert", torch.float32), tiny.tokenizer("both"))
    assert lens.explain("the cat [MASK] on", output="sat").provenance["position"] == 3
    with pytest.raises(InputError, match="the text has no mask"):
        lens.explain("the cat sat", output="red")
    with pytest.raises(InputError, match="has 2"):
        lens.explain("the [MASK] [MASK]", output="red")


def test_a_direction_on_a_model_without_a_head() -> None:
    model = tiny.make("bert", torch.float64)
    direction = torch.randn(tiny.WIDTH, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    ids = ids_of(6)
    (found,) = Lens(model).explain_inputs({"input_ids": ids[None]}, direction=direction, position=2)
    with torch.no_grad():
        own = float(model(input_ids=ids[None]).last_hidden_state[0, 2] @ direction)
    assert found.value == pytest.approx(own, abs=1e-9)
    with pytest.raises(InputError, match="direction"):
        Lens(model).explain_inputs({"input_ids": ids[None]})


def test_nothing_is_left_changed() -> None:
    model = headed("llama", torch.float32)
    before = {name: (p.requires_grad, p.detach().clone()) for name, p in model.named_parameters()}
    forwards = [m.__dict__.get("forward") for m in model.modules()]
    apply, enter = torch.autograd.Function.apply, torch.no_grad.__enter__
    _explained(model, ids_of(5), output=3)
    assert torch.autograd.Function.apply == apply and torch.no_grad.__enter__ is enter
    assert [m.__dict__.get("forward") for m in model.modules()] == forwards
    for name, p in model.named_parameters():
        assert p.requires_grad == before[name][0] and torch.equal(p, before[name][1])
        assert p.grad is None


def test_a_model_that_padding_changes_is_run_row_by_row() -> None:
    config = transformers.FNetConfig(
        vocab_size=60,
        hidden_size=24,
        num_hidden_layers=2,
        intermediate_size=32,
        max_position_embeddings=40,
        pad_token_id=0,
    )
    torch.manual_seed(0)
    lens = Lens(tiny.randomized(transformers.FNetForMaskedLM(config)).eval(), tiny.tokenizer("both"))
    texts = ["the cat [MASK] on a very red mat", "she [MASK]"]
    together = lens.explain(texts, output="sat", parts=["tokens"])
    for text, found in zip(texts, together, strict=True):
        alone = lens.explain(text, output="sat", parts=["tokens"])
        np.testing.assert_allclose(found["tokens"], alone["tokens"], atol=1e-6)


# ---- edges, steps, states of a model ---------------------------------------------------------------------------------


@pytest.mark.parametrize("block", [1 << 24, 40])
@pytest.mark.parametrize(("family", "implementation"), [("llama", "sdpa"), ("gpt2", "eager"), ("bert", "sdpa")])
def test_the_strongest_edges_are_those_of_all(
    family: str, implementation: str, block: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("normlens.attribution.edges._CACHED", block)  # a few queries at a time, or all of them
    model, lens_inputs = headed(family, implementation=implementation), {"input_ids": ids_of(7)[None]}
    lens_inputs["attention_mask"] = torch.tensor([[1] * 6 + [0]])
    (whole,) = Lens(model).explain_inputs(lens_inputs, output=8, position=5, parts=["edges"])
    (top,) = Lens(model).explain_inputs(lens_inputs, output=8, position=5, parts=["edges"], edges_top=9)
    assert "edges" not in next(iter(top.sites.values()))
    edges, strongest = whole["edges"], top["edges_top"]
    values = np.sort(np.abs(edges.values).ravel())[::-1]
    np.testing.assert_allclose(np.abs(strongest), values[:9], atol=1e-9)
    for edge in strongest:
        place = {axis: int(edge[axis]) for axis in ("layer", "head", "query", "key")}
        assert float(edge) == pytest.approx(float(edges.sel(place)), abs=1e-9)
        assert str(edge["key_token"].values) == str(edges["key_token"].sel(key=place["key"]).values)
    assert strongest.attrs["edges_omitted"] == edges.size - 9
    assert float(strongest.sum()) + strongest.attrs["omitted_sum"] == pytest.approx(float(edges.sum()), abs=1e-9)
    rest = np.abs(edges.values).sum() - values[:9].sum()
    assert strongest.attrs["omitted_absolute_sum"] == pytest.approx(rest, abs=1e-9)


def test_edges_that_do_not_fit_are_refused_before_the_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("normlens.attribution.request.available_bytes", lambda: 10_000)
    lens = Lens(headed("llama", torch.float32))
    calls: list[int] = []
    lens.model.register_forward_pre_hook(lambda *_: calls.append(1))
    with pytest.raises(InputError, match=r"the edges take .*edges_top"):
        lens.explain_inputs({"input_ids": ids_of(30)[None]}, output=3, parts=["edges"])
    assert not calls
    lens.explain_inputs({"input_ids": ids_of(30)[None]}, output=3)  # without edges it does fit
    lens.explain_inputs({"input_ids": ids_of(30)[None]}, output=3, edges_top=3)


def test_the_sum_of_steps_is_a_sum() -> None:
    lens = Lens(headed("llama", torch.float32), tiny.tokenizer("none"))
    steps = lens.explain("the cat sat", output="red tree", edges_top=4)
    whole = steps.sum_of_steps()
    assert whole.value == pytest.approx(float(steps.value.sum()))
    np.testing.assert_allclose(whole["tokens"], steps["tokens"].sum("step"))
    assert _total(whole) == pytest.approx(whole.value, abs=1e-4)
    assert whole.probability == pytest.approx(np.prod(steps.probability))
    assert "edges_top" not in whole.sites["decoder"]  # of each step others are the strongest
    assert whole.sum_of_steps() is whole


def _replays(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    from normlens.attribution.terms import Run

    found: list[int] = []
    own = Run.replayed

    def counted(*args: Any, **options: Any) -> Any:
        found.append(1)
        return own(*args, **options)

    monkeypatch.setattr(Run, "replayed", counted)
    return found


def test_the_whole_proof_runs_once_for_each_state_of_a_model(monkeypatch: pytest.MonkeyPatch) -> None:
    lens, replays = Lens(headed("llama", torch.float32)), _replays(monkeypatch)
    inputs = {"input_ids": ids_of(6)[None]}

    def value() -> float:
        return float(lens.explain_inputs(inputs, output=3)[0].value)

    first = value()
    assert value() == first and len(replays) == 1
    content = lens.explain_inputs(inputs, output=3)[0].provenance["model"]["content"]
    lens.model.lm_head.weight.data.mul_(2.0)  # leaves the version alone
    assert value() == pytest.approx(2 * first, rel=1e-4) and len(replays) == 2
    assert lens.explain_inputs(inputs, output=3)[0].provenance["model"]["content"] != content
    with torch.no_grad():
        lens.model.lm_head.weight.mul_(0.5)
    value()
    assert len(replays) == 3
    lens.model.set_attn_implementation("eager")
    value()
    assert len(replays) == 4
    handle = lens.model.model.layers[0].register_forward_hook(lambda module, given, out: None)
    value()
    handle.remove()
    assert len(replays) == 5
    lens.explain_inputs({**inputs, "attention_mask": torch.tensor([[1] * 5 + [0]])}, output=3)
    assert len(replays) == 6
    lens.explain_inputs(inputs, output=3, attention="integrated")
    assert len(replays) == 7


def test_adapters_are_explained_and_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    peft = pytest.importorskip("peft")
    torch.manual_seed(0)
    config = peft.LoraConfig(r=2, target_modules=["q_proj", "v_proj"], init_lora_weights=False, task_type="CAUSAL_LM")
    model = peft.get_peft_model(headed("llama", torch.float32), config).eval()
    lens, inputs, replays = Lens(model), {"input_ids": ids_of(6)[None]}, _replays(monkeypatch)
    (adapted,) = lens.explain_inputs(inputs, output=3)
    with torch.no_grad():
        assert adapted.value == pytest.approx(float(model(**inputs).logits[0, -1, 3]), abs=1e-4)
    assert _total(adapted) == pytest.approx(adapted.value, abs=1e-4)
    with model.disable_adapter():
        (plain,) = lens.explain_inputs(inputs, output=3)
    own = _explained(headed("llama", torch.float32), ids_of(6), output=3)
    np.testing.assert_allclose(plain["tokens"], own["tokens"], atol=1e-5)
    assert abs(plain.value - adapted.value) > 1e-3 and len(replays) == 3


# ---- kinds of heads and inputs -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("family", ["gpt2", "llama"])
def test_left_padding_changes_no_number(family: str) -> None:
    model = headed(family)
    long, short = ids_of(9), ids_of(5, 1)
    padded = torch.stack([long, torch.cat([torch.full((4,), 2), short])])
    mask = torch.tensor([[1] * 9, [0] * 4 + [1] * 5])
    inputs = {"input_ids": padded, "attention_mask": mask, "position_ids": (mask.cumsum(1) - 1).clamp_min(0)}
    batch = Lens(model).explain_inputs(inputs, output=8, position=-1, parts=PARTS)
    for found, ids in zip(batch, (long, short), strict=True):
        alone = _explained(model, ids, output=8, position=-1, parts=PARTS)
        assert found.value == pytest.approx(alone.value, abs=1e-6)
        for name in PARTS:
            np.testing.assert_allclose(found[name], alone[name], atol=1e-6, err_msg=name)


def test_sequence_classification_by_label_and_number() -> None:
    labels = {0: "bad", 1: "fine"}
    torch.manual_seed(0)
    config = tiny.bert(id2label=labels, label2id={v: k for k, v in labels.items()}).config
    model = tiny.randomized(transformers.BertForSequenceClassification(config)).eval()
    lens = Lens(model, tiny.tokenizer("both"))
    by_name, by_number = (lens.explain("the cat sat", output=which) for which in ("Fine", 1))
    assert by_name.value == by_number.value and by_name.provenance["output"] == "fine"
    assert _total(by_name) == pytest.approx(by_name.value, abs=1e-4)
    batch = lens.explain(["the cat sat", "she sat on a very red mat"], output=["bad", "fine"], against=["fine", "bad"])
    assert batch[0].value == pytest.approx(lens.explain("the cat sat", output="bad", against="fine").value, abs=1e-5)
    with pytest.raises(InputError, match="labels bad, fine"):
        lens.explain("the cat", output="great")


def test_token_classification_at_a_position() -> None:
    torch.manual_seed(0)
    model = tiny.randomized(transformers.BertForTokenClassification(tiny.bert(num_labels=3).config)).eval()
    lens = Lens(model, tiny.tokenizer("both"))
    found = lens.explain("the cat sat", position=2, output=1)
    ids = torch.tensor([lens.tokenizer("the cat sat")["input_ids"]])
    with torch.no_grad():
        assert found.value == pytest.approx(float(model(ids).logits[0, 2, 1]), abs=1e-4)
    assert _total(found) == pytest.approx(found.value, abs=1e-4)
    with pytest.raises(InputError, match=r"one of 0 to 4 \(0 \[CLS\], 1 the, 2 cat, 3 sat, 4 \[SEP\]\)"):
        lens.explain("the cat sat", output=1)


@pytest.mark.parametrize(
    ("family", "text", "options", "says"),
    [
        ("bert", "the [MASK] sat", {"output": "red tree"}, "must be one token for BertForMaskedLM"),
        ("bert", "the [MASK] sat", {"generate": True}, "BertForMaskedLM cannot generate text"),
        ("marian", "the cat sat", {"target": "a mat", "output": "red tree"}, "must be one token for MarianMTModel"),
        ("marian", "the cat sat", {"target": "a mat", "generate": True}, "drop them"),
        ("llama", "the cat sat", {"edges_top": 0}, "at least 1"),
    ],
)
def test_what_a_model_cannot_be_asked(family: str, text: str, options: dict[str, Any], says: str) -> None:
    tokenizer = {"bert": "both", "llama": "none"}.get(family)
    lens = Lens(headed(family, torch.float32), tiny.tokenizer(tokenizer) if tokenizer else tiny.tokenizer_for(family))
    with pytest.raises(InputError, match=says):
        lens.explain(text, **options)


def test_threads_wait_for_each_other() -> None:
    from concurrent.futures import ThreadPoolExecutor

    lens, inputs = Lens(headed("llama", torch.float32)), [{"input_ids": ids_of(5, seed)[None]} for seed in range(4)]
    alone = [lens.explain_inputs(given, output=3)[0]["tokens"].values for given in inputs]
    with ThreadPoolExecutor(4) as pool:
        together = list(pool.map(lambda given: lens.explain_inputs(given, output=3)[0]["tokens"].values, inputs * 3))
    for one, other in zip(alone * 3, together, strict=True):
        np.testing.assert_array_equal(one, other)
