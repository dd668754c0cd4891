"""Kinds of sites come from where keys and values come from, not from lengths, masks or padding."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from normlens import Lens
from normlens.families.tiny import randomize
from tests import tiny
from tests.never_wrong.common import IDS, WIDTH, agree, plain_encoder
from tests.reference.blocks import blocks
from tests.reference.compare import disagreements

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
