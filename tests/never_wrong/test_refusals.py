"""Odd blocks and impossible inputs: answered exactly or refused with a sentence, and nothing of the user is changed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from torch import Tensor, nn

from normlens import Lens
from normlens.errors import AnatomyError, DecompositionError, InputError, ModelError, NormlensError
from normlens.families.tiny import randomize, tiny_model
from tests import tiny
from tests.never_wrong.common import CAUSAL, IDS, WIDTH, plain_encoder
from tests.test_lens import assert_same, snapshot

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
    "no mapping": (None, "must be a mapping from argument names to tensors, got NoneType"),
    "a text": ("the cat", "must be a mapping"),
    "a tensor": (IDS, "must be a mapping"),
    "nothing": ({}, "inputs hold no tensor"),
    "one dimension": ({"input_ids": IDS[0]}, r"must be \(batch, position\), got shape \(9,\); .*unsqueeze"),
    "ragged": ({"input_ids": [[1, 2], [3]]}, "rows of numbers of one length"),
    "words": ({"input_ids": [["the"]]}, "rows of numbers of one length"),
    "a list of tensors": ({"input_ids": [IDS[0], IDS[1]]}, "list of tensors; torch.stack them"),
    "outside the vocabulary": ({"input_ids": IDS + 100}, "ids of the model's vocabulary, 0 to 59, got"),
    "negative": ({"input_ids": -IDS}, "ids of the model's vocabulary"),
    "fractions": ({"input_ids": IDS.float()}, "must be whole numbers, got torch.float32"),
    "too long": ({"input_ids": torch.ones(1, 80).long()}, "input_ids is longer than the 40 positions that it takes"),
    "empty": ({"input_ids": torch.ones(1, 0).long()}, r"input_ids is empty, got shape \(1, 0\)"),
    "no rows": ({"input_ids": torch.ones(0, 5).long()}, "is empty, got shape"),
    "a row without tokens": (
        {"input_ids": IDS, "attention_mask": torch.tensor([[1] * 9, [0] * 9])},
        "all zero in row 1; drop that row",
    ),
    "a mask of counts": ({"input_ids": IDS, "attention_mask": IDS % 3}, "1 for real positions and 0 for padding"),
    "a mask of shares": ({"input_ids": IDS, "attention_mask": torch.full((2, 9), 0.5)}, "1 for real positions and 0"),
    "a mask that is no number": ({"input_ids": IDS, "attention_mask": torch.full((2, 9), torch.nan)}, "1 for real"),
    "a short mask": ({"input_ids": IDS, "attention_mask": torch.ones(2, 8)}, r"\(2, 8\), there are \(2, 9\)"),
    "a mask of one row": ({"input_ids": IDS, "attention_mask": torch.ones(1, 9)}, "make them the same"),
    "without memory": ({"input_ids": IDS.to("meta")}, "is nested, sparse, quantized or on the meta device"),
    "sparse": ({"input_ids": IDS.to_sparse()}, "is nested, sparse, quantized or on the meta device"),
    "nested": (
        {"input_ids": torch.nested.nested_tensor([IDS[0], IDS[1, :4]], layout=torch.jagged)},
        "input_ids is nested",
    ),
    "not numbers": ({"inputs_embeds": torch.full((1, 5, WIDTH), torch.nan)}, "holds NaN or infinity"),
    "wrong width": ({"inputs_embeds": torch.randn(1, 5, 20)}, "failed on the given inputs"),
    "unknown name": ({"input_id": IDS}, "failed on the given inputs"),
    "ids and vectors": ({"input_ids": IDS, "inputs_embeds": torch.randn(2, 9, WIDTH)}, "failed on the given inputs"),
    "token types outside": ({"input_ids": IDS, "token_type_ids": IDS}, "failed on the given inputs"),
    "a mask of rank three": (
        {"input_ids": IDS, "attention_mask": CAUSAL.expand(2, 9, 9)},
        "failed on the given inputs",
    ),
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
        InputError, match=r"must be a string or a list of strings, got .*; tensors go to analyze_inputs"
    ):
        Lens(tiny.make("bert"), tiny.tokenizer_for("bert")).analyze(text)


@pytest.mark.parametrize("model", ["bert-base-uncased", None, 3, {}])
def test_models_that_are_none(model: Any) -> None:
    with pytest.raises(ModelError, match=r"Lens.. needs a torch.nn.Module.*normlens\.load\("):
        Lens(model)


def test_a_module_without_weights() -> None:
    with pytest.raises(ModelError, match="Identity has no weights"):
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
    with pytest.raises(InputError, match=r"MarianModel failed on the given inputs .*labels"):
        lens.analyze_inputs({"input_ids": IDS, "labels": IDS})


def test_every_row_of_a_batch_is_answered_whatever_comes_first() -> None:
    """A mask may be one for all rows and stand first: rows are counted by sequences."""
    inputs = {"attention_mask": CAUSAL.expand(1, 1, 9, 9), "input_ids": IDS}
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
        with pytest.raises(InputError, match="pass the whole sequence"):
            Lens(model).analyze_inputs({**inputs, "past_key_values": past})
        assert past.get_seq_length() == length
    assert cache.get_seq_length() == before


def test_memories_of_an_earlier_pass_are_refused() -> None:
    model: Any = tiny_model("xlnet")
    with torch.no_grad():
        memories = list(model.base_model(input_ids=IDS, use_mems=True).mems)
    before = [memory.clone() for memory in memories]
    with pytest.raises(InputError, match="pass the whole sequence"):
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
        with pytest.raises(InputError, match=r"was made with batch_first=False"):
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
