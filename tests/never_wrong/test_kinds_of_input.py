"""What was compared is remembered per kind of everything: masks, implementations, autocast, caches, hooks."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from normlens import Lens
from normlens.errors import DecompositionError
from normlens.families.tiny import tiny_model
from tests import tiny
from tests.never_wrong.common import CAUSAL, IDS, WIDTH, agree, look_ahead
from tests.reference.blocks import blocks
from tests.reference.compare import disagreements

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
        before = len(lens.traced.output_errors)
        lens.analyze_inputs(inputs)
        assert len(lens.traced.output_errors) == before + 1, (
            f"{list(inputs)} passed for something that was compared before"
        )
        lens.analyze_inputs(inputs)
        assert len(lens.traced.output_errors) == before + 1
    before = len(lens.traced.output_errors)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        lens.analyze_inputs({"input_ids": IDS})
    assert len(lens.traced.output_errors) == before + 1


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
    with pytest.raises(DecompositionError, match="under capture differs from its own"):
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
