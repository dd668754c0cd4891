"""Numbers mean what they are called: `alpha` is what the softmax gave, a measure is one number, and `f` one map."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from normlens import Analysis, Lens
from normlens.errors import DecompositionError, InputError
from normlens.families.tiny import tiny_inputs, tiny_model
from normlens.measures.table import STANDARD
from tests import tiny
from tests.never_wrong.common import IDS
from tests.reference.blocks import blocks
from tests.reference.compare import disagreements

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
    monkeypatch.setattr(lens.traced, "forget", lambda: None)
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
    lens, inputs = Lens(model), tiny_inputs(model, padded=True)  # in a batch, each site has a block of its own
    found: dict[int, Tensor] = {}
    from normlens.measures.request import Request

    request = Request.of(lens.anatomy, measures=["f_norm"], precision="float64")
    norms: dict[int, Tensor] = {}

    def take(result: Any, block: Any) -> None:
        found[result.layer], norms[result.layer] = block.x[0], result.values["f_norm"][0]

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
