"""Never silently wrong, class by class: every case is answered exactly or refused with a sentence, whatever ran before.

Each section is a way in which a wrong number once came back without an error. Answers are compared with the slow
reference, or with a lens that has seen nothing yet.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from normlens import Analysis, Lens
from normlens.errors import AnatomyError, DecompositionError, InputError, ModelError, NormlensError
from normlens.families.tiny import randomize, tiny_config, tiny_inputs, tiny_model
from normlens.measures import STANDARD
from tests import tiny
from tests.reference.blocks import blocks
from tests.reference.compare import disagreements
from tests.test_lens import assert_same, snapshot

IDS = tiny.batch("bert", (9, 9))["input_ids"]
CAUSAL = torch.ones(9, 9).tril().bool()
WIDTH = tiny.WIDTH


def agree(lens: Lens, inputs: dict[str, Any], tolerance: float = 0.0) -> Analysis:
    """What a used lens answers must be what a fresh one does."""
    found = lens.analyze_inputs(inputs)
    for left, right in zip(found, Lens(lens.model).analyze_inputs(inputs), strict=True):
        assert_same(left, right, tolerance)
    return found[0]


def look_ahead(analysis: Analysis) -> float:
    return float(np.triu(next(iter(analysis.sites.values()))["alpha"].values, 1).max())


# ---- 1. what was compared is remembered per kind of everything ------------------------------------------------------

MASKS: dict[str, Tensor] = {
    "boolean": CAUSAL.expand(2, 1, 9, 9),
    "one for all rows": CAUSAL.expand(1, 1, 9, 9),
    "by head": CAUSAL.expand(2, 1, 9, 9),
    "added": torch.zeros(2, 1, 9, 9).masked_fill(~CAUSAL, -1e9),
    "minus infinity": torch.zeros(2, 1, 9, 9).masked_fill(~CAUSAL, -torch.inf),
}


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("family", ["bert", "gpt2", "llama"])
def test_prepared_masks_after_a_plain_call(family: str, mask: str) -> None:
    model = tiny.make(family)
    model.set_attn_implementation("sdpa")
    lens = Lens(model)
    lens.analyze_inputs({"input_ids": IDS})
    found = agree(lens, {"input_ids": IDS, "attention_mask": MASKS[mask]})
    assert look_ahead(found) == 0
    explicit = {"input_ids": IDS, "attention_mask": MASKS["added"]}  # which the reference's eager attention understands
    assert not disagreements([found], blocks(family, model, {k: v[:1] for k, v in explicit.items()}))


@pytest.mark.parametrize("family", ["bert", "gpt2", "llama"])
def test_another_attention_implementation_is_another_kind(family: str) -> None:
    """Eager attention adds True and False to the scores: what was right under sdpa is not under eager."""
    model = tiny.make(family)
    model.set_attn_implementation("sdpa")
    lens, inputs = Lens(model), {"input_ids": IDS, "attention_mask": MASKS["boolean"]}
    assert look_ahead(agree(lens, inputs)) == 0
    model.set_attn_implementation("eager")
    found = agree(lens, inputs)
    assert look_ahead(found) > 0
    assert not disagreements([found], blocks(family, model, {k: v[:1] for k, v in inputs.items()}))


def test_kinds_of_input_are_compared_apart() -> None:
    lens = Lens(tiny.make("bert"))
    for inputs in (
        {"input_ids": IDS},
        {"input_ids": IDS, "attention_mask": torch.ones(2, 9)},
        {"input_ids": IDS, "attention_mask": torch.tensor([[1] * 9, [1] * 5 + [0] * 4])},
        {"input_ids": IDS, "attention_mask": torch.tensor([[1] * 9, [1] * 5 + [0] * 4]).bool()},
        {"input_ids": IDS, "attention_mask": MASKS["boolean"]},
        {"input_ids": IDS, "token_type_ids": IDS % 2},
        {"inputs_embeds": torch.randn(2, 9, WIDTH)},
    ):
        before = len(lens._compared)
        lens.analyze_inputs(inputs)
        assert len(lens._compared) == before + 1, f"{list(inputs)} passed for something that was compared before"
        lens.analyze_inputs(inputs)
        assert len(lens._compared) == before + 1
    before = len(lens._compared)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        lens.analyze_inputs({"input_ids": IDS})
    assert len(lens._compared) == before + 1


@pytest.mark.parametrize("family", ["bert", "llama", "gpt2", "t5", "gemma2"])
def test_autocast(family: str) -> None:
    """What the model computes under autocast is taken apart, and the taking apart itself is not rounded to sixteen bits."""
    lens, inputs = Lens(tiny.make(family)), tiny.batch(family)
    plain = lens.analyze_inputs(inputs)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        rounded = lens.analyze_inputs(inputs)
    for left, right in zip(rounded, plain, strict=True):
        for kind in left.sites:
            first, other = (a.site(kind)["attn_n"].values[0] for a in (left, right))
            np.testing.assert_allclose(first, other, atol=0.05 * float(other.max()))
            alpha = left.site(kind)["alpha"].values
            np.testing.assert_allclose(alpha.sum(-1), 1, atol=0.02)
            np.testing.assert_allclose(
                left.site(kind)["af_norm"].values,
                alpha * left.site(kind)["f_norm"].values[:, :, None, :],
                rtol=1e-4,
                atol=1e-6,
            )
    agree(lens, inputs)


@pytest.mark.parametrize("family", ["gpt2", "llama", "gemma2"])
def test_positions_that_jump_are_masked_as_in_the_users_own_call(family: str) -> None:
    """Without a cache, transformers takes a jump of the positions for another sequence in the same row; with one, not."""
    model = tiny.make(family)
    lens, straight = Lens(model), torch.arange(9).unsqueeze(0)
    jumping = straight % 4
    agree(lens, {"input_ids": IDS, "position_ids": straight})
    seen = {}
    for with_cache in ({}, {"use_cache": True}, {"use_cache": False}):
        inputs = {"input_ids": IDS, "position_ids": jumping, **with_cache}
        found = agree(lens, inputs)
        one = {name: value[:1] if name == "input_ids" else value for name, value in inputs.items()}
        assert not disagreements([found], blocks(family, model, one))
        seen[str(with_cache)] = bool((next(iter(found.sites.values()))["alpha"].values[:, :, 4, :4] > 0).any())
    assert list(seen.values()) == [True, True, False], "with a cache position 4 sees what is before it, without not"


def test_a_cache_that_changes_the_pass_is_noticed() -> None:
    """FSMT looks ahead in its decoder where it may use a cache, which is its default: not what one would analyse."""
    lens = Lens(tiny_model("fsmt"))
    inputs = {"input_ids": IDS, "decoder_input_ids": IDS[:, :6]}
    with pytest.raises(DecompositionError, match="the same under capture as when it is called"):
        lens.analyze_inputs(inputs)
    found = lens.analyze_inputs(inputs | {"use_cache": False})[0]
    assert np.triu(found.site("decoder")["alpha"].values, 1).max() == 0


def test_a_hook_of_the_user_is_another_kind() -> None:
    model = tiny.make("bert")
    lens = Lens(model)
    lens.analyze_inputs({"input_ids": IDS})
    handle = model.embeddings.register_forward_hook(lambda module, args, output: output * 2)
    doubled = agree(lens, {"input_ids": IDS})
    handle.remove()
    model.embeddings.register_forward_hook(lambda module, args, output: output * 3)  # as many hooks as before
    tripled = agree(lens, {"input_ids": IDS})
    assert not np.allclose(doubled["x_norm"].values, tripled["x_norm"].values, rtol=1e-2)


# ---- 2. the analysed pass is the user's -----------------------------------------------------------------------------


class Wrapper(nn.Module):
    """Holds a model as `base_model`, as many wrappers do, and calls it in its own way."""

    def __init__(self, way: str) -> None:
        super().__init__()
        self.base_model = tiny.make("bert")
        self.way = way

    def forward(self, input_ids: Tensor, attention_mask: Tensor | None = None) -> Any:
        model: Any = self.base_model
        if self.way == "embeddings doubled":
            return model(inputs_embeds=2 * model.embeddings.word_embeddings(input_ids), attention_mask=attention_mask)
        if self.way == "called twice":
            model(input_ids=input_ids, attention_mask=attention_mask)
        if self.way == "mask forgotten":
            attention_mask = None
        if self.way == "order turned":
            input_ids = input_ids.flip(1)
        if self.way == "layers one by one":
            state = model.embeddings(input_ids=input_ids)
            for layer in model.encoder.layer:
                state = layer(state)
            return state
        if self.way == "encoder alone":
            return model.encoder(2 * model.embeddings(input_ids=input_ids))
        return input_ids if self.way == "never called" else model(input_ids=input_ids, attention_mask=attention_mask)


WAYS = {
    "embeddings doubled": "must compute the same under capture as when it is called",
    "called twice": "the analysed pass must be the user's",
    "mask forgotten": "must compute the same under capture as when it is called",
    "order turned": "must compute the same under capture as when it is called",
    "layers one by one": "the analysed pass must be the user's",
    "encoder alone": "must compute the same under capture as when it is called",
    "never called": "the analysed pass must be the user's",
}


@pytest.mark.parametrize("way", WAYS)
def test_a_wrapper_that_does_something_else_is_refused(way: str) -> None:
    wrapper = Wrapper(way).eval()
    before = snapshot(wrapper)
    with pytest.raises(DecompositionError, match=WAYS[way]):
        Lens(wrapper).analyze_inputs(tiny.batch("bert"))
    assert snapshot(wrapper) == before


def test_a_wrapper_that_changes_its_ways_is_compared_again() -> None:
    wrapper = Wrapper("plain").eval()
    lens = Lens(wrapper)
    plain = lens.analyze_inputs({"input_ids": IDS})
    for left, right in zip(plain, Lens(wrapper.base_model).analyze_inputs({"input_ids": IDS}), strict=True):
        assert_same(left, right, 0)
    wrapper.way = "embeddings doubled"
    with pytest.raises(DecompositionError, match="must compute the same under capture"):
        lens.analyze_inputs({"input_ids": IDS})


PROMPTS = ("PromptTuningConfig", "PrefixTuningConfig", "PromptEncoderConfig")


def prompted(family: str, kind: str) -> tuple[nn.Module, dict[str, Tensor]]:
    import peft

    task = {"bert": "SEQ_CLS", "t5": "SEQ_2_SEQ_LM"}.get(family, "CAUSAL_LM")
    if family == "bert":
        model: nn.Module = transformers.BertForSequenceClassification(tiny_config("bert")).eval()
        randomize(model)
    else:
        model = tiny_model(family)
    config: Any = model.config
    sizes = {
        "token_dim": config.hidden_size,
        "num_layers": config.num_hidden_layers,
        "num_attention_heads": config.num_attention_heads,
    }
    settings = getattr(peft, kind)(task_type=task, num_virtual_tokens=3, **sizes)
    return peft.get_peft_model(model, settings).eval(), tiny_inputs(model, padded=False)


@pytest.mark.parametrize("kind", PROMPTS)
@pytest.mark.parametrize("family", ["gpt2", "llama", "bert", "t5"])
def test_learnt_prompts_are_refused(family: str, kind: str) -> None:
    model, inputs = prompted(family, kind)
    before = snapshot(model)
    with pytest.raises(DecompositionError, match=r"the user's|the same under capture"):
        Lens(model).analyze_inputs(inputs)
    assert snapshot(model) == before


def test_a_prompt_that_was_turned_off_for_a_while() -> None:
    model, inputs = prompted("llama", "PromptTuningConfig")
    lens = Lens(model)
    with model.disable_adapter():  # type: ignore[operator]
        lens.analyze_inputs(inputs)
    with pytest.raises(DecompositionError, match=r"the user's|the same under capture"):
        lens.analyze_inputs(inputs)


# ---- 3. kinds of sites come from where keys and values come from ----------------------------------------------------

TWO_SIDED_INPUTS: dict[str, dict[str, Any]] = {
    "equal lengths": {"inputs_embeds": torch.randn(1, 7, WIDTH), "decoder_inputs_embeds": torch.randn(1, 7, WIDTH)},
    "one position each": {"inputs_embeds": torch.randn(1, 1, WIDTH), "decoder_inputs_embeds": torch.randn(1, 1, WIDTH)},
    "ids of equal lengths": {"input_ids": IDS, "decoder_input_ids": IDS},
    "ids and vectors": {"input_ids": IDS, "decoder_inputs_embeds": torch.randn(2, 9, WIDTH)},
    "vectors and ids": {"inputs_embeds": torch.randn(2, 9, WIDTH), "decoder_input_ids": IDS},
}


@pytest.mark.parametrize("what", TWO_SIDED_INPUTS)
@pytest.mark.parametrize("family", ["t5", "marian"])
def test_sides_of_the_same_length(family: str, what: str) -> None:
    model = tiny.make(family)
    inputs = TWO_SIDED_INPUTS[what]
    found = Lens(model).analyze_inputs(inputs)
    assert tuple(found[0].sites) == ("encoder", "decoder", "cross")
    assert not disagreements(found, blocks(family, model, inputs))


@pytest.mark.parametrize("family", ["t5", "marian"])
def test_encoder_outputs_after_ids_and_back(family: str) -> None:
    model: Any = tiny.make(family)
    lens = Lens(model)
    whole = lens.analyze_inputs({"input_ids": IDS, "decoder_input_ids": IDS})
    with torch.no_grad():
        states = model.get_encoder()(input_ids=IDS)
    for given_as in (states, (states[0],), [states[0]]):
        found = lens.analyze_inputs({"encoder_outputs": given_as, "decoder_input_ids": IDS})
        assert tuple(found[0].sites) == ("decoder", "cross")
        for row in range(2):
            for kind in ("decoder", "cross"):
                left, right = (analysis[row].site(kind)["attnresln_n"].values for analysis in (whole, found))
                np.testing.assert_allclose(left, right, rtol=1e-4, atol=1e-5)
    agree(lens, {"input_ids": IDS, "decoder_input_ids": IDS})


def test_one_embedded_token_does_not_make_an_encoder_a_decoder() -> None:
    lens = Lens(tiny.make("bert"))
    assert tuple(lens.analyze_inputs({"inputs_embeds": torch.randn(1, 1, WIDTH)})[0].sites) == ("encoder",)
    assert tuple(lens.analyze_inputs({"inputs_embeds": torch.randn(1, 6, WIDTH)})[0].sites) == ("encoder",)


def test_a_decoder_that_may_look_at_a_source() -> None:
    model = tiny.randomized(tiny.bert(is_decoder=True, add_cross_attention=True)).eval()
    lens = Lens(model)
    assert tuple(agree(lens, {"input_ids": IDS}).sites) == ("decoder",)
    for length in (9, 6, 1):
        both = {"input_ids": IDS, "encoder_hidden_states": torch.randn(2, length, WIDTH)}
        assert tuple(agree(lens, both).sites) == ("decoder", "cross")
    assert tuple(agree(lens, {"input_ids": IDS}).sites) == ("decoder",)


@pytest.mark.parametrize("length", [9, 6])
def test_padding_of_the_tokens_says_nothing_about_the_source(length: int) -> None:
    """A decoder that is handed states has two masks: keys of cross-attention are dropped by the states' own alone."""
    model = tiny.randomized(tiny.bert(is_decoder=True, add_cross_attention=True)).eval()
    tokens = torch.tensor([[1] * 9, [1] * 5 + [0] * 4])
    states = {"encoder_hidden_states": torch.randn(2, length, WIDTH)}
    found = Lens(model).analyze_inputs({"input_ids": IDS, "attention_mask": tokens, **states})[1]
    assert found.site("cross")["alpha"].shape[-2:] == (5, length)
    np.testing.assert_allclose(found.site("cross")["alpha"].values.sum(-1), 1, atol=1e-5)
    seen = torch.tensor([[1] * length, [0] + [1] * (length - 1)])
    masks = {"attention_mask": tokens, "encoder_attention_mask": seen}
    found = Lens(model).analyze_inputs({"input_ids": IDS, **masks, **states})[1]
    assert found.site("cross")["alpha"].shape[-2:] == (5, length - 1)
    np.testing.assert_allclose(found.site("cross")["alpha"].values.sum(-1), 1, atol=1e-5)


def plain_transformer() -> nn.Module:
    model = nn.Transformer(WIDTH, 4, 2, 2, 32, batch_first=True).eval()
    randomize(model)
    return model


@pytest.mark.parametrize("lengths", [(7, 5), (7, 7), (3, 8)])
@pytest.mark.parametrize("masked", [False, True])
def test_plain_transformers_with_any_lengths(lengths: tuple[int, int], masked: bool) -> None:
    """The decoder's self-attention is the decoder's, whether a mask hides later positions or not."""
    source, target = lengths
    inputs = {"src": torch.randn(2, source, WIDTH), "tgt": torch.randn(2, target, WIDTH)}
    if masked:
        inputs["tgt_mask"] = nn.Transformer.generate_square_subsequent_mask(target)
    found = Lens(plain_transformer()).analyze_inputs(inputs)[0]
    assert {kind: dict(site["alpha"].sizes)["layer"] for kind, site in found.sites.items()} == {
        "encoder": 2,
        "decoder": 2,
        "cross": 2,
    }
    assert found.sites["cross"]["alpha"].shape[-2:] == (target, source)
    assert (look_ahead_of(found.sites["decoder"]) == 0) == masked


def look_ahead_of(site: Any) -> float:
    return float(np.triu(site["alpha"].values, 1).max())


def plain_encoder() -> nn.Module:
    layer = nn.TransformerEncoderLayer(WIDTH, 4, 32, batch_first=True)
    model = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False).eval()
    randomize(model)
    return model


def test_a_mask_that_was_causal_says_nothing_about_the_next_one() -> None:
    lens, x = Lens(plain_encoder()), torch.randn(2, 7, WIDTH)
    causal = nn.Transformer.generate_square_subsequent_mask(7)
    for _ in range(2):
        assert tuple(lens.analyze_inputs({"src": x})[0].sites) == ("encoder",)
        assert tuple(lens.analyze_inputs({"src": x, "mask": causal})[0].sites) == ("decoder",)
        assert tuple(lens.analyze_inputs({"src": x, "mask": torch.zeros(7, 7)})[0].sites) == ("encoder",)
        assert tuple(lens.analyze_inputs({"mask": causal != 0, "src": x})[1].sites) == ("decoder",)


def test_padding_in_the_first_row_does_not_make_a_decoder() -> None:
    padding = torch.tensor([[False] + [True] * 6, [False] * 7])
    found = Lens(plain_encoder()).analyze_inputs({"src": torch.randn(2, 7, WIDTH), "src_key_padding_mask": padding})
    assert tuple(found[0].sites) == ("encoder",)


# ---- 4. alpha is what the softmax gave ------------------------------------------------------------------------------


def factors(family: str, model: Any, inputs: dict[str, Tensor]) -> list[np.ndarray]:
    """What a norm in front of the projection divides each query by, read by name: (query,) or (head, query)."""
    seen: dict[nn.Module, Tensor] = {}
    norms = [m for n, m in model.named_modules() if n.endswith(("attn_sub_norm", "g_norm"))]
    handles = [m.register_forward_pre_hook(lambda module, args: seen.update({module: args[0]})) for m in norms]
    with torch.no_grad():
        model(**inputs)
    for handle in handles:
        handle.remove()
    return [
        (1 / (seen[m][0].double().square().mean(-1) + m.variance_epsilon).sqrt()).numpy() for m in norms if m in seen
    ]


@pytest.mark.parametrize("family", ["bitnet", "laguna", "bailing_hybrid", "gpt_oss", "qwen3_next", "llama", "gemma2"])
def test_alpha_is_the_attention_weight(family: str) -> None:
    model: Any = tiny_model(family)
    inputs = tiny_inputs(model, padded=False)
    found = Lens(model).analyze_inputs(inputs)[0]
    with torch.no_grad():
        shown = [a[0] for a in model.base_model(**inputs, output_attentions=True).attentions if a is not None]
    site = next(iter(found.sites.values()))
    assert len(shown) == len(site["alpha"])
    for n, alpha in enumerate(shown):
        keys = site["alpha"].shape[-1]
        np.testing.assert_allclose(site["alpha"].values[n], alpha[..., :keys].numpy(), rtol=1e-4, atol=1e-6)
    sums = site["alpha"].values.sum(-1)
    assert (sums <= 1 + 1e-5).all()
    if family != "gpt_oss":  # whose sinks take a share
        np.testing.assert_allclose(sums, 1, atol=1e-5)
        np.testing.assert_allclose(site["attn_w"].values.sum(-1), 1, atol=1e-5)
        np.testing.assert_allclose(site["attnres_w"].values.sum(-1), 1, atol=1e-5)


def test_the_norm_before_the_projection_goes_to_the_vectors() -> None:
    """`af_norm = alpha · f_norm · factor`, with the norm's gamma inside of `f`."""
    model: Any = tiny_model("bitnet")
    inputs = tiny_inputs(model, padded=False)
    found = Lens(model).analyze_inputs(inputs)[0]
    for n, factor in enumerate(factors("bitnet", model, inputs)):
        alpha, f_norm, af_norm = (found[name].values[n] for name in ("alpha", "f_norm", "af_norm"))
        expected = alpha * f_norm[:, None, :] * factor[None, :, None]
        np.testing.assert_allclose(af_norm, expected, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("family", ["bitnet", "diffllama"])
def test_a_value_that_is_taken_away_would_change_the_norm_before_the_projection(family: str) -> None:
    model = tiny_model(family)
    with pytest.raises(InputError, match=r"value_zeroing computes the layer again.*before the output projection"):
        Lens(model).analyze_inputs(tiny_inputs(model, padded=False), measures=["value_zeroing"])


def test_weights_that_are_more_than_a_softmax_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    from normlens.anatomy.interface import AttentionCall

    original = AttentionCall.eager

    def inflated(call: AttentionCall) -> tuple[Tensor, Tensor]:
        output, alpha = original(call)
        return output, alpha * 1.5

    lens = Lens(tiny_model("gpt_oss"))
    lens.anatomy  # noqa: B018
    monkeypatch.setattr(AttentionCall, "eager", inflated)
    monkeypatch.setattr(lens, "_forget", lambda: None)
    with pytest.raises(DecompositionError, match="sum of a query's attention weights, at most 1"):
        lens.analyze_inputs(tiny_inputs(lens.model, padded=False))


# ---- 5. a measure does not depend on what else was asked for --------------------------------------------------------

LAST_HIDDEN = torch.ones(2, 1, 9, 9).bool()
LAST_HIDDEN[..., -1] = False
SUBSET_CASES: dict[str, Callable[[], tuple[nn.Module, dict[str, Tensor]]]] = {
    "bert, last key hidden": lambda: (
        tiny.make("bert"),
        {"input_ids": IDS, "attention_mask": torch.zeros(2, 1, 9, 9).masked_fill(~LAST_HIDDEN, -1e9)},
    ),
    "doge": lambda: (tiny_model("doge", seed=3), tiny_inputs(tiny_model("doge"), padded=False)),
    "bitnet": lambda: (tiny_model("bitnet"), tiny_inputs(tiny_model("bitnet"), padded=True)),
    "gemma2": lambda: (tiny.make("gemma2"), tiny.batch("gemma2")),
    "long bert": lambda: (
        tiny.randomized(tiny.bert(max_position_embeddings=90)).eval(),
        {"input_ids": torch.randint(4, 50, (1, 80), generator=torch.Generator().manual_seed(0))},
    ),
}


@cache
def subset_case(name: str) -> tuple[Lens, dict[str, Tensor], list[Analysis]]:
    model, inputs = SUBSET_CASES[name]()
    lens = Lens(model)
    return lens, inputs, lens.analyze_inputs(inputs)


@pytest.mark.parametrize("case", SUBSET_CASES)
@given(names=st.sets(st.sampled_from(sorted(STANDARD)), min_size=1))
@settings(max_examples=8, deadline=None, suppress_health_check=list(HealthCheck))
def test_any_subset_of_measures_has_the_same_numbers(case: str, names: set[str]) -> None:
    lens, inputs, whole = subset_case(case)
    for some, all_of_it in zip(lens.analyze_inputs(inputs, measures=sorted(names)), whole, strict=True):
        for kind, site in some.sites.items():
            for name in names:
                left, right = site[name].values, all_of_it.site(kind)[name].values
                np.testing.assert_allclose(left, right, rtol=2e-5, atol=1e-6 * float(np.abs(right).max()))


def test_f_norm_of_keys_that_nobody_sees() -> None:
    lens, inputs, whole = subset_case("bert, last key hidden")
    assert float(whole[0]["f_norm"].values[..., -1].min()) > 0
    assert not disagreements(whole, blocks("bert", lens.model, inputs))


# ---- 6. one definition of f -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("family", ["xlnet", "bitnet", "bert", "llama", "gpt2", "falcon", "deberta-v2", "gemma2"])
def test_f_stretches_no_vector_beyond_its_largest_singular_value(family: str) -> None:
    model = tiny_model(family)
    lens, inputs = Lens(model), tiny_inputs(model, padded=False)
    site = next(iter(lens.analyze_inputs(inputs, precision="float64")[0].sites.values()))
    largest = lens.singular_values().values[..., 0]  # layer head
    extended = np.sqrt(site["x_norm"].values ** 2 + 1)[:, None, :]  # layer 1 key
    ratio = site["f_norm"].values / (largest[..., None] * extended)
    assert ratio.max() <= 1 + 1e-6
    assert ratio.max() > 0.05, "a bound that nothing comes near says little"


@pytest.mark.parametrize("family", ["xlnet", "bitnet", "llama"])
def test_f_as_an_affine_map_gives_f_norm(family: str) -> None:
    """`‖f(x)‖` from the same matrices that singular values are taken of."""
    from normlens.anatomy.expansion import _value_weights
    from normlens.anatomy.weights import head_weights

    model = tiny_model(family)
    lens, inputs = Lens(model), tiny_inputs(model, padded=False)
    found: dict[int, Tensor] = {}
    from normlens.request import Request

    request = Request.of(lens.anatomy, measures=["f_norm"], precision="float64")
    norms: dict[int, Tensor] = {}

    def take(result: Any, block: Any) -> None:
        found[result.layer], norms[result.layer] = block.tensors.x[0], result.values["f_norm"][0]

    lens.run(inputs, request, take)
    for site in lens.anatomy.sites:
        weights, biases = _value_weights(site)
        output = head_weights(site, torch.float64)
        for head in range(site.heads):
            value = found[site.layer] @ weights[head].double()
            value = value if biases is None else value + biases[head].double()
            torch.testing.assert_close(
                (value @ output[head]).norm(dim=-1), norms[site.layer][head], rtol=1e-5, atol=1e-8
            )


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
    from normlens.request import Request

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
            InputError, match="a stream on it is still open in this thread; read it to its end, or close"
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
        patch.setattr("normlens.capture.measure", lambda *args: 1 / 0)
        failures = in_threads(lambda n: lens.analyze_inputs({"input_ids": IDS}) and None, 3)
        assert [type(failure) for failure in failures] == [ZeroDivisionError] * 3
        with pytest.raises(ZeroDivisionError):
            list(lens.stream_inputs({"input_ids": IDS}))
    assert snapshot(model) == before
    agree(lens, {"input_ids": IDS})


# ---- found by the adversary -----------------------------------------------------------------------------------------


class OddBlock(nn.Module):
    """One post-norm block whose parts can be arranged oddly."""

    def __init__(self, arrangement: str) -> None:
        super().__init__()
        self.arrangement = arrangement
        self.v, self.o = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.q, self.k = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.beside = nn.Linear(WIDTH, WIDTH)
        self.gate = nn.Linear(WIDTH, 4)
        self.norm = nn.LayerNorm(WIDTH)
        randomize(self)
        self.eval()

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (f(x).unflatten(-1, (4, 6)).transpose(1, 2) for f in (self.q, self.k, self.v))
        heads = (torch.softmax(q @ k.transpose(-1, -2) / 6**0.5, dim=-1) @ v).transpose(1, 2)
        if self.arrangement == "gate":
            heads = heads * torch.sigmoid(self.gate(x)).unsqueeze(-1)
        attention, beside = self.o(heads.flatten(2)), torch.tanh(self.beside(x))
        if self.arrangement == "branch before the sum":
            return self.normalized(x + (attention + beside))
        total = x + attention
        if self.arrangement == "branch after the sum":
            total = total + beside
        return self.normalized(total * 3.0 if self.arrangement == "constant after the sum" else total)

    def normalized(self, total: Tensor) -> Tensor:
        output: Tensor = self.norm(total)
        return output


def test_a_branch_added_after_the_residual_does_not_hide_the_normalization() -> None:
    """`norm(x + attention + beside)`, whichever is added first."""
    x = torch.randn(1, 7, WIDTH)
    after, before = (Lens(OddBlock(f"branch {when} the sum")) for when in ("after", "before"))
    before.model.load_state_dict(after.model.state_dict())
    left, right = (lens.analyze_inputs({"x": x})[0] for lens in (after, before))
    assert [site.placement for lens in (after, before) for site in lens.anatomy.sites] == ["post", "post"]
    assert_same(left, right, 1e-5)
    assert not np.allclose(left["attnresln_n"].values, left["attnres_n"].values)


def test_a_constant_between_the_sum_and_its_normalization_is_refused() -> None:
    with pytest.raises(AnatomyError, match="a normalization after the residual sum must follow it directly"):
        Lens(OddBlock("constant after the sum")).analyze_inputs({"x": torch.randn(1, 7, WIDTH)})


def test_as_many_queries_as_heads() -> None:
    """A gate of one number per query and head, read where there are four of each, can be taken for its transpose."""
    lens, four, seven = Lens(OddBlock("gate")), torch.randn(2, 4, WIDTH), torch.randn(2, 7, WIDTH)
    with pytest.raises(AnatomyError, match=r"heads and queries must be told apart.*analyse an input of another length"):
        lens.analyze_inputs({"x": four})
    lens.analyze_inputs({"x": seven})
    sums = lens.analyze_inputs({"x": four})[0]["alpha"].values.sum(-1)
    np.testing.assert_allclose(sums, 1, atol=1e-5)


# ---- foreign tracebacks and side effects ----------------------------------------------------------------------------

REFUSED: dict[str, tuple[Any, str]] = {
    "no mapping": (None, "must be a mapping from the names of the model's arguments to tensors: got NoneType"),
    "a text": ("the cat", "must be a mapping"),
    "a tensor": (IDS, "must be a mapping"),
    "nothing": ({}, "must hold at least one tensor"),
    "one dimension": ({"input_ids": IDS[0]}, r"must be \(batch, position\): got shape \(9,\); .*unsqueeze"),
    "ragged": ({"input_ids": [[1, 2], [3]]}, "rows of numbers of one length"),
    "words": ({"input_ids": [["the"]]}, "rows of numbers of one length"),
    "a list of tensors": ({"input_ids": [IDS[0], IDS[1]]}, "list of tensors; torch.stack them"),
    "outside the vocabulary": ({"input_ids": IDS + 100}, "ids of the model's vocabulary, 0 to 59: got"),
    "negative": ({"input_ids": -IDS}, "ids of the model's vocabulary"),
    "fractions": ({"input_ids": IDS.float()}, "must be whole numbers: got torch.float32"),
    "too long": ({"input_ids": torch.ones(1, 80).long()}, "input_ids is longer than the 40 positions that it takes"),
    "empty": ({"input_ids": torch.ones(1, 0).long()}, r"must hold something: input_ids has shape \(1, 0\)"),
    "no rows": ({"input_ids": torch.ones(0, 5).long()}, "must hold something"),
    "a row without tokens": (
        {"input_ids": IDS, "attention_mask": torch.tensor([[1] * 9, [0] * 9])},
        "all zero in row 1; drop that row",
    ),
    "a mask of counts": ({"input_ids": IDS, "attention_mask": IDS % 3}, "1 for real positions and 0 for padding"),
    "a mask of shares": ({"input_ids": IDS, "attention_mask": torch.full((2, 9), 0.5)}, "1 for real positions and 0"),
    "a mask that is no number": ({"input_ids": IDS, "attention_mask": torch.full((2, 9), torch.nan)}, "1 for real"),
    "a short mask": ({"input_ids": IDS, "attention_mask": torch.ones(2, 8)}, r"\(2, 8\), and there are \(2, 9\)"),
    "a mask of one row": ({"input_ids": IDS, "attention_mask": torch.ones(1, 9)}, "must match the positions"),
    "without memory": ({"input_ids": IDS.to("meta")}, "must be a plain tensor in memory"),
    "sparse": ({"input_ids": IDS.to_sparse()}, "must be a plain tensor in memory"),
    "nested": (
        {"input_ids": torch.nested.nested_tensor([IDS[0], IDS[1, :4]], layout=torch.jagged)},
        "must be a plain tensor in memory: input_ids is nested",
    ),
    "not numbers": ({"inputs_embeds": torch.full((1, 5, WIDTH), torch.nan)}, "must be finite numbers"),
    "wrong width": ({"inputs_embeds": torch.randn(1, 5, 20)}, "the model must run on its inputs"),
    "unknown name": ({"input_id": IDS}, "the model must run on its inputs"),
    "ids and vectors": ({"input_ids": IDS, "inputs_embeds": torch.randn(2, 9, WIDTH)}, "must run on its inputs"),
    "token types outside": ({"input_ids": IDS, "token_type_ids": IDS}, "the model must run on its inputs"),
    "a mask of rank three": ({"input_ids": IDS, "attention_mask": CAUSAL.expand(2, 9, 9)}, "must run on its inputs"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_prepared_inputs_that_cannot_be(what: str) -> None:
    inputs, message = REFUSED[what]
    model = tiny.make("bert")
    before, drawn = snapshot(model), torch.get_rng_state()
    with pytest.raises(InputError, match=message) as caught:
        Lens(model).analyze_inputs(inputs)
    assert "\n" not in str(caught.value)
    assert caught.value._render_traceback_() == [f"InputError: {caught.value}"]
    assert snapshot(model) == before
    assert torch.equal(torch.get_rng_state(), drawn)


@pytest.mark.parametrize("given_as", [lambda ids: ids.tolist(), lambda ids: ids.numpy(), lambda ids: ids.int(), tuple])
def test_ids_as_lists_and_arrays(given_as: Callable[[Tensor], Any]) -> None:
    lens = Lens(tiny.make("bert"))
    expected = lens.analyze_inputs({"input_ids": IDS})
    as_given = given_as(IDS.tolist() if given_as is tuple else IDS)
    for left, right in zip(lens.analyze_inputs({"input_ids": as_given}), expected, strict=True):
        assert_same(left, right, 0)


@pytest.mark.parametrize("text", [None, 3, 2.5, b"the cat", {"the": 1}, IDS, object()])
def test_texts_that_are_none(text: Any) -> None:
    with pytest.raises(
        InputError, match=r"must be a string, or a list of strings: got .*; tensors go to analyze_inputs"
    ):
        Lens(tiny.make("bert"), tiny.tokenizer_for("bert")).analyze(text)


@pytest.mark.parametrize("model", ["bert-base-uncased", None, 3, {}])
def test_models_that_are_none(model: Any) -> None:
    with pytest.raises(ModelError, match=r"a lens needs a model in memory.*normlens\.load\("):
        Lens(model)


def test_a_module_without_weights() -> None:
    with pytest.raises(ModelError, match="must have weights to be analysed: Identity has none"):
        Lens(nn.Identity())


def test_what_only_the_head_takes_is_named() -> None:
    """Labels become decoder inputs in the head of a translation model; its body, which is analysed, never sees them."""
    config = transformers.MarianConfig(
        **{"d_model": 16, "encoder_layers": 1, "decoder_layers": 1, "encoder_attention_heads": 2},
        **{
            "decoder_attention_heads": 2,
            "encoder_ffn_dim": 8,
            "decoder_ffn_dim": 8,
            "vocab_size": 60,
            "pad_token_id": 0,
        },
        decoder_start_token_id=0,
    )
    lens = Lens(transformers.MarianMTModel(config).eval())
    with pytest.raises(InputError, match=r"must run on its inputs: MarianModel does not on .*labels"):
        lens.analyze_inputs({"input_ids": IDS, "labels": IDS})


def test_every_row_of_a_batch_is_answered_whatever_comes_first() -> None:
    """A mask may be one for all rows and stand first: rows are counted by sequences."""
    inputs = {"attention_mask": MASKS["one for all rows"], "input_ids": IDS}
    assert len(Lens(tiny.make("bert")).analyze_inputs(inputs)) == 2


@pytest.mark.parametrize("family", ["llama", "gpt2", "marian", "t5"])
def test_a_cache_is_refused_and_does_not_grow(family: str) -> None:
    model: Any = tiny.make(family)
    inputs: dict[str, Any] = {"input_ids": IDS}
    if family in tiny.TWO_SIDED:
        inputs["decoder_input_ids"] = IDS
    with torch.no_grad():
        cache = model(**inputs, use_cache=True).past_key_values
    before = cache.get_seq_length()
    for past in (cache, transformers.DynamicCache()):
        length = past.get_seq_length()
        with pytest.raises(InputError, match="a pass is analysed as a whole"):
            Lens(model).analyze_inputs({**inputs, "past_key_values": past})
        assert past.get_seq_length() == length
    assert cache.get_seq_length() == before


def test_memories_of_an_earlier_pass_are_refused() -> None:
    model: Any = tiny_model("xlnet")
    with torch.no_grad():
        memories = list(model.base_model(input_ids=IDS, use_mems=True).mems)
    before = [memory.clone() for memory in memories]
    with pytest.raises(InputError, match="a pass is analysed as a whole"):
        Lens(model).analyze_inputs({"input_ids": IDS, "mems": memories})
    assert all(torch.equal(left, right) for left, right in zip(before, memories, strict=True))


class Scribbler(nn.Module):
    """Writes into what it is given, and counts in an object that it is given."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = plain_encoder()

    def forward(self, x: Tensor, seen: dict[str, int]) -> Tensor:
        seen["calls"] = seen.get("calls", 0) + 1
        output: Tensor = self.inner(x.mul_(2.0))
        return output


def test_nothing_that_was_handed_over_changes() -> None:
    x, seen = torch.randn(2, 7, WIDTH), {"calls": 0}
    before = x.clone()
    Lens(Scribbler().eval()).analyze_inputs({"x": x, "seen": seen})
    assert torch.equal(x, before)
    assert seen == {"calls": 0}


def test_sequence_first_modules_are_refused() -> None:
    for model, inputs in (
        (nn.TransformerEncoder(nn.TransformerEncoderLayer(WIDTH, 4, 32), 2), {"src": torch.randn(7, 2, WIDTH)}),
        (nn.Transformer(WIDTH, 4, 1, 1, 32), {"src": torch.randn(7, 2, WIDTH), "tgt": torch.randn(5, 2, WIDTH)}),
        (
            nn.TransformerDecoderLayer(WIDTH, 4, 32),
            {"tgt": torch.randn(7, 2, WIDTH), "memory": torch.randn(5, 2, WIDTH)},
        ),
    ):
        with pytest.raises(InputError, match=r"inputs must have the batch first: .*batch_first=True"):
            Lens(model.eval()).analyze_inputs(inputs)


def compiled_whole(model: Any) -> Any:
    model.compile()
    return model


def compiled_layers(model: Any) -> Any:
    for layer in model.encoder.layer:
        layer.compile()
    return model


def one_layer_wrapped(model: Any) -> Any:
    model.encoder.layer[1] = torch.compile(model.encoder.layer[1])
    return model


def compiled_forward(model: Any) -> Any:
    model.forward = torch.compile(model.forward)
    return model


@pytest.mark.parametrize(
    "way",
    [compiled_whole, compiled_layers, one_layer_wrapped, compiled_forward, torch.compile],
    ids=lambda way: way.__name__,
)
def test_compiled_models(way: Callable[[Any], Any]) -> None:
    plain = Lens(tiny.make("bert")).analyze_inputs({"input_ids": IDS})
    model = way(tiny.make("bert"))
    for left, right in zip(Lens(model).analyze_inputs({"input_ids": IDS}), plain, strict=True):
        for name in ("alpha", "attnresln_n"):
            np.testing.assert_array_equal(left[name].values, right[name].values)
    assert torch._dynamo.eval_frame._stance.stance == "default"


def test_random_numbers_and_modes_are_left_alone() -> None:
    model = tiny.make("t5").train()
    model.decoder.eval()
    before, drawn = snapshot(model), torch.get_rng_state()
    threads, fast = torch.get_num_threads(), torch.backends.mha.get_fastpath_enabled()
    Lens(model).analyze_inputs(tiny.batch("t5"))
    assert torch.equal(torch.get_rng_state(), drawn)
    assert snapshot(model) == before
    assert (torch.get_num_threads(), torch.backends.mha.get_fastpath_enabled()) == (threads, fast)


def test_every_refusal_is_one_of_ours() -> None:
    """The base class tells a program that nothing was returned, and a notebook shows one line."""
    for error in (AnatomyError, DecompositionError, InputError, ModelError):
        assert issubclass(error, NormlensError)
