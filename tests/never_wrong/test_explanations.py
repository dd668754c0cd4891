"""Explanations in situations that once gave wrong numbers without an error, by the public interface alone."""

from __future__ import annotations

import threading
import warnings
from contextlib import suppress
from typing import Any

import numpy as np
import pytest
import torch
import transformers as tf
from torch import Tensor, nn
from transformers.activations import ACT2FN

import normlens
from normlens import Lens
from normlens.anatomy.layers import LayerFollower
from normlens.errors import AnatomyError, InputError, NormlensError
from normlens.families.tiny import tiny_model

PARTS = ["states", "heads", "edges", "blocks", "direct", "biases"]
SIZES: dict[str, Any] = {"hidden_size": 16, "intermediate_size": 24, "num_attention_heads": 4, "vocab_size": 40}


def randomized(model: nn.Module, seed: int = 0) -> nn.Module:
    generator = torch.Generator().manual_seed(seed)
    for parameter in model.parameters():
        parameter.data = torch.randn(parameter.shape, generator=generator) * 0.3
    return model.double().eval()


def llama(layers: int = 2) -> Any:
    return randomized(tf.LlamaForCausalLM(tf.LlamaConfig(**SIZES, num_hidden_layers=layers, num_key_value_heads=2)))


def gpt2() -> Any:
    return randomized(tf.GPT2LMHeadModel(tf.GPT2Config(n_embd=16, n_layer=2, n_head=2, vocab_size=40, n_positions=32)))


# ---- threads ---------------------------------------------------------------------------------------------------------


def test_another_thread_calls_the_same_model() -> None:
    model, ids = llama(layers=6), torch.tensor([[5, 6, 7, 8, 9]])
    lens = Lens(model)
    asked: dict[str, Any] = {"output": 7, "position": -1, "parts": PARTS}
    (expected,) = lens.explain_inputs({"input_ids": ids}, **asked)
    stop, failures = threading.Event(), []

    def call(gradients: bool) -> None:
        while not stop.is_set():
            try:
                with torch.set_grad_enabled(gradients):
                    loss = model(input_ids=ids[:, :3]).logits.sum()
                    if gradients:
                        loss.backward()
            except Exception as error:
                failures.append(error)

    threads = [threading.Thread(target=call, args=(gradients,)) for gradients in (False, True)]
    for thread in threads:
        thread.start()
    try:
        for _ in range(20):
            (found,) = lens.explain_inputs({"input_ids": ids}, **asked)
            for name in ("tokens", *PARTS):
                np.testing.assert_array_equal(found[name], expected[name])
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    assert failures == []


# ---- layers and attentions are counted -------------------------------------------------------------------------------


def test_a_pass_that_misses_layers_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """What it saw adds up all the same: only the trace knows that there was more."""
    lens = Lens(llama(layers=6))
    ids = {"input_ids": torch.tensor([[5, 6, 7]])}
    lens.explain_inputs(ids, output=7)
    begin = LayerFollower._is_companion
    seen: list[object] = []

    def skipping(self: LayerFollower, member: Any) -> bool:
        seen.append(member)
        return len(seen) in (3, 4) or begin(self, member)

    monkeypatch.setattr(LayerFollower, "_is_companion", skipping)
    with pytest.raises(AnatomyError, match=r"followed 4 layers of 'llama'.* a trace of the model has 6"):
        lens.explain_inputs(ids, output=7)


# ---- coinciding ids, lengths and widths ------------------------------------------------------------------------------


@pytest.mark.parametrize("ids", [[0, 1, 2, 3, 4], [0], [0, 0, 0], [4, 3, 2, 1, 0]])
def test_token_ids_that_are_position_ids(ids: list[int]) -> None:
    """A table in which all rows are the same has no word that differs from the mean."""
    model = gpt2()
    model.transformer.wte.weight.data[:] = model.transformer.wte.weight.data[:1]
    (found,) = Lens(model).explain_inputs({"input_ids": torch.tensor([ids])}, output=7)
    assert found.provenance["baseline"] == "mean"
    np.testing.assert_allclose(found["tokens"], 0.0, atol=1e-12)


def test_ids_that_are_those_of_the_other_side() -> None:
    model = tiny_model("t5").double()
    for table in (model.shared, model.decoder.embed_tokens):  # type: ignore[union-attr]
        table.weight.data[:] = table.weight.data[:1]  # type: ignore[union-attr, index]
    ids = torch.tensor([[5, 6, 7]])
    for inputs in ({"input_ids": ids, "decoder_input_ids": ids}, {"decoder_input_ids": ids, "input_ids": ids}):
        (found,) = Lens(model).explain_inputs(inputs, output=3, position=1)
        for side in ("encoder", "decoder"):
            np.testing.assert_allclose(found.site(side)["tokens"], 0.0, atol=1e-12)


def test_a_text_as_long_as_the_model_is_wide() -> None:
    model = tiny_model("xlnet").double()
    width = model.config.d_model
    ids = torch.randint(5, 40, (1, width), generator=torch.Generator().manual_seed(0))
    longer = {
        "input_ids": torch.cat([ids, ids[:, :1]], 1),
        "attention_mask": torch.tensor([[1] * width + [0]]),
    }
    lens = Lens(model)
    (found,) = lens.explain_inputs({"input_ids": ids}, output=3, position=2)
    (padded,) = lens.explain_inputs(longer, output=3, position=2)
    np.testing.assert_allclose(found["tokens"], padded["tokens"], atol=1e-9)


@pytest.mark.parametrize("target", [3, 5, 6])
def test_virtual_tokens_are_never_words(target: int) -> None:
    """Three words and two virtual tokens are as many as the decoder has."""
    import peft

    torch.manual_seed(0)
    config = peft.PromptTuningConfig(task_type="SEQ_2_SEQ_LM", num_virtual_tokens=2)
    model = peft.get_peft_model(tiny_model("t5"), config).double().eval()
    inputs = {"input_ids": torch.tensor([[5, 6, 7]]), "decoder_input_ids": torch.arange(8, 8 + target)[None]}
    with pytest.raises(NormlensError, match="belong to no token"):
        Lens(model).explain_inputs(inputs, output=3, position=1)


@pytest.mark.parametrize("queries", [4, 7])
def test_as_many_queries_as_image_positions(queries: int) -> None:
    backbone = tf.ResNetConfig(
        embedding_size=8, hidden_sizes=[8] * 4, depths=[1] * 4, layer_type="basic", out_features=["stage4"]
    )
    heads = {"encoder_attention_heads": 2, "decoder_attention_heads": 2, "encoder_ffn_dim": 16, "decoder_ffn_dim": 16}
    config = tf.DetrConfig(
        backbone_config=backbone, use_timm_backbone=False, use_pretrained_backbone=False, d_model=16, encoder_layers=2,
        decoder_layers=2, num_queries=queries, **heads,
    )  # fmt: skip
    torch.manual_seed(0)
    image = torch.randn(1, 3, 64, 64)  # four positions
    (found,) = Lens(tf.DetrModel(config).eval()).analyze_inputs({"pixel_values": image})
    shapes = {kind: found.site(kind)["attn_n"].shape for kind in found.sites}
    assert shapes == {"encoder": (2, 4, 4), "decoder": (2, queries, queries), "cross": (2, queries, 4)}


# ---- inputs ----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def pair_reader() -> Lens:
    """A causal model with token types."""
    tokenizer = normlens.load().tokenizer
    settings = SIZES | {"vocab_size": len(tokenizer), "num_hidden_layers": 2, "is_decoder": True}
    return Lens(randomized(tf.BertLMHeadModel(tf.BertConfig(**settings))), tokenizer)


def continued(lens: Lens, written: list[int]) -> tuple[Tensor, int]:
    """The model's own logits for a pair of texts that goes on, and where it ended."""
    encoding = lens.tokenizer("the cat", "sat on it", return_tensors="pt")
    types = encoding["token_type_ids"]
    ids = torch.cat([encoding["input_ids"], torch.tensor([written[:-1]], dtype=torch.long)], 1)
    types = torch.cat([types, types[:, -1:].expand(1, len(written) - 1)], 1)
    with torch.no_grad():
        return lens.model(input_ids=ids, token_type_ids=types).logits[0], encoding["input_ids"].shape[1]


def test_an_output_of_several_tokens_keeps_every_input(pair_reader: Lens) -> None:
    found = pair_reader.explain("the cat", pair="sat on it", output="red big dog")
    written = pair_reader.tokenizer("red big dog", add_special_tokens=False)["input_ids"]
    logits, start = continued(pair_reader, written)
    own = [float(logits[start - 1 + step, token]) for step, token in enumerate(written)]
    np.testing.assert_allclose(found.value, own, atol=1e-9)


def test_what_is_generated_is_what_the_model_generates(pair_reader: Lens) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = pair_reader.explain("the cat", pair="sat on it", generate=True)
        encoding = pair_reader.tokenizer("the cat", "sat on it", return_tensors="pt")
        model: Any = pair_reader.model
        written = model.generate(**encoding, do_sample=False, max_new_tokens=len(found.value))[0]
        analysis = pair_reader.analyze("the cat", pair="sat on it", generate=True)
    written = written[encoding["input_ids"].shape[1] :].tolist()
    assert found.provenance["output_id"] == written
    logits, start = continued(pair_reader, written)
    np.testing.assert_allclose(found.value, [float(logits[start - 1 + i, t]) for i, t in enumerate(written)], atol=1e-9)
    assert analysis["attn_n"].sizes["query"] == start + len(written)


@pytest.mark.parametrize("keep", [1, 3, torch.tensor([0, 2])])
def test_a_shortened_output_is_refused(keep: Any) -> None:
    inputs = {"input_ids": torch.tensor([[5, 6, 7, 8, 9]]), "logits_to_keep": keep}
    with pytest.raises(InputError, match="needs the whole output, got logits_to_keep"):
        Lens(llama()).explain_inputs(inputs, output=7, position=1)


# ---- blocks and activations ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("targets", [["o_proj"], ["down_proj"], ["o_proj", "down_proj", "v_proj", "gate_proj"]])
def test_a_branch_that_uses_its_output_twice(targets: list[str]) -> None:
    """DoRA computes `y + g(y)`: the block is that sum, once."""
    import peft

    torch.manual_seed(0)
    config = peft.LoraConfig(r=2, target_modules=targets, use_dora=True, init_lora_weights=False)
    model = peft.get_peft_model(llama(), config).eval()
    asked: dict[str, Any] = {"output": 7, "position": -1, "parts": PARTS}
    ids = {"input_ids": torch.tensor([[5, 6, 7, 8]])}
    (found,) = Lens(model).explain_inputs(ids, **asked)
    (merged,) = Lens(model.merge_and_unload()).explain_inputs(ids, **asked)
    for name in ("tokens", *PARTS):
        np.testing.assert_allclose(found[name], merged[name], atol=1e-9, err_msg=name)


class _FeedForward(nn.Module):
    """One layer: an activation, or a gated unit."""

    def __init__(self, activation: str, gated: bool) -> None:
        super().__init__()
        self.a, self.b, self.out = nn.Linear(6, 8), nn.Linear(6, 8), nn.Linear(8, 6)
        self.act, self.gated = ACT2FN[activation], gated

    def forward(self, x: Tensor) -> Tensor:
        h = self.act(self.a(x))
        y: Tensor = self.out(h * self.b(x) if self.gated else h)
        return y


class _Model(nn.Module):
    def __init__(self, activation: str, gated: bool) -> None:
        super().__init__()
        self.layers = nn.ModuleList([_FeedForward(activation, gated)])

    def forward(self, vectors: Tensor) -> Tensor:
        y: Tensor = self.layers[0](vectors)
        return y


def mean_over_path(act: Any, a: Tensor, pieces: int = 4000) -> Tensor:
    """`∫₀¹ act(t a) dt` by Gauss points in many pieces, so that bends anywhere do no harm."""
    nodes, weights = np.polynomial.legendre.leggauss(6)
    start = torch.arange(pieces, dtype=torch.float64) / pieces
    total = torch.zeros_like(a)
    for node, weight in zip(nodes, weights, strict=True):
        t = start + (float(node) + 1) / 2 / pieces
        total += (act(a.unsqueeze(-1) * t) * float(weight) / 2 / pieces).sum(-1)
    return total


@pytest.mark.parametrize("gated", [False, True])
@pytest.mark.parametrize("activation", sorted(ACT2FN))
def test_every_activation_follows_the_rule(activation: str, gated: bool) -> None:
    torch.manual_seed(0)
    model = _Model(activation, gated).double().eval()
    with torch.no_grad():
        for parameter in model.layers[0].a.parameters():  # type: ignore[union-attr]
            parameter.mul_(12)  # beyond all bends of `relu6` and `hardswish`
    x, direction = torch.randn(1, 4, 6).double(), torch.randn(6).double()
    (found,) = Lens(model).explain_inputs({"vectors": x}, direction=direction, position=2)
    layer: Any = model.layers[0]
    with torch.no_grad():
        part_a, part_b = layer.a.weight @ x[0, 2], layer.b.weight @ x[0, 2]
        a, b = layer.a(x[0, 2]), layer.b(x[0, 2])
        if gated:
            c = mean_over_path(layer.act, a)
            part = part_a * b * (layer.act(a) - c) / a + part_b * c
        else:
            part = part_a * (layer.act(a) - layer.act(torch.zeros_like(a))) / a
        expected = float(layer.out.weight @ part @ direction)
    assert float(found["tokens"].sum()) == pytest.approx(expected, abs=1e-6 * max(1.0, abs(expected)))


# ---- requests --------------------------------------------------------------------------------------------------------


def test_parts_may_come_from_a_generator() -> None:
    asked = (part for part in ("states", "heads"))
    (found,) = Lens(llama()).explain_inputs({"input_ids": torch.tensor([[5, 6, 7]])}, output=7, parts=asked)  # type: ignore[arg-type]
    assert list(found.sites["decoder"]) == ["tokens", "states", "heads"]


@pytest.mark.parametrize(
    "spans", [{"a": (0, 2.5)}, "x", [1], {}, {"a": "b"}, {"a": (2, 1)}, {"a": None}, {"a": (0, 9)}]
)
def test_spans_are_whole_numbers_within_the_text(spans: Any) -> None:
    (found,) = Lens(llama()).explain_inputs({"input_ids": torch.tensor([[5, 6, 7]])}, output=7)
    with pytest.raises(InputError, match="span"):
        found.by_span(spans)


@pytest.mark.parametrize("size", ["a", 1.5, True, 0, None])
def test_a_batch_size_is_a_positive_whole_number(size: Any) -> None:
    lens = normlens.load()
    for call in (lens.analyze, lens.explain):
        with pytest.raises(InputError, match="batch_size must be a whole number of at least 1"):
            call("a text", batch_size=size)  # type: ignore[operator]


def test_models_that_cannot_be_handled_end_in_a_sentence() -> None:
    """Nothing but `NormlensError` leaves the public interface."""
    sizes: dict[str, Any] = {
        "hidden_size": 16,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "intermediate_size": 16,
    }
    text = sizes | {"vocab_size": 40, "max_position_embeddings": 20}
    clip = tf.CLIPModel(tf.CLIPConfig(text_config=text, vision_config=sizes | {"image_size": 16, "patch_size": 4}))
    swin = tf.SwinModel(
        tf.SwinConfig(image_size=16, patch_size=2, embed_dim=8, depths=[2, 2], num_heads=[2, 2], window_size=4)
    )
    image = torch.randn(1, 3, 16, 16)
    cases = ((clip, {"input_ids": torch.tensor([[5, 6, 39]]), "pixel_values": image}), (swin, {"pixel_values": image}))
    for model, inputs in cases:
        lens = Lens(model.eval())
        calls = (
            lambda lens=lens: lens.anatomy,
            lambda lens=lens, inputs=inputs: lens.analyze_inputs(inputs),
            lambda lens=lens, inputs=inputs: list(lens.stream_inputs(inputs)),
            lambda lens=lens, inputs=inputs: lens.explain_inputs(inputs, direction=[1.0] * 16),
            lambda lens=lens: lens.singular_values(),
        )
        for call in calls:
            with suppress(NormlensError):
                call()
    with pytest.raises(NormlensError):  # shifted windows
        Lens(swin).analyze_inputs({"pixel_values": image})


class _Packed(torch.Tensor):
    """A weight whose numbers no ordinary operation reads, as quantized tensors are."""

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in (torch.Tensor.sum, torch.sum):
            raise NotImplementedError("sum of packed numbers")
        return super().__torch_function__(func, types, args, kwargs or {})


def test_weights_that_cannot_be_read_are_refused() -> None:
    model = llama()
    projection = model.model.layers[0].self_attn.q_proj
    projection.weight = nn.Parameter(projection.weight.data.as_subclass(_Packed), requires_grad=False)
    with pytest.raises(NormlensError, match=r"q_proj.weight is a .*_Packed, whose numbers cannot be read"):
        Lens(model)
