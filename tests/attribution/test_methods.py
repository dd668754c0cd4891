"""Every method gives one number per token; it is the number of its equation; padding and neighbours change nothing."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
import transformers

from normlens.errors import InputError, NormlensError
from normlens.faithfulness import erasure as erasing
from normlens.faithfulness import gradients
from normlens.faithfulness.gradients import completeness_error, integrated_gradients
from normlens.faithfulness.items import Item, batches, item_of, probabilities, values
from normlens.faithfulness.methods import METHODS, Method, find_methods, scores
from normlens.families.tiny import tiny_inputs, tiny_model
from normlens.lens import Lens
from tests import tiny
from tests.attribution.models import headed, ids_of
from tests.reference import methods as slow


def _classifier(dtype: torch.dtype = torch.float64) -> Any:
    torch.manual_seed(0)
    config = tiny.bert(id2label={0: "bad", 1: "good"}, label2id={"bad": 0, "good": 1}).config
    return tiny.randomized(transformers.BertForSequenceClassification(config)).to(dtype).eval()


def _tagger() -> Any:
    torch.manual_seed(0)
    return tiny.randomized(transformers.BertForTokenClassification(tiny.bert().config)).double().eval()


def _lens(kind: str) -> Lens:
    model = {"sequence": _classifier, "token": _tagger}.get(kind, lambda: headed(kind))()
    model.set_attn_implementation("eager")
    return Lens(model, tiny.tokenizer("none" if kind in ("gpt2", "llama") else "both"))


def _item(kind: str, length: int = 6, seed: int = 0) -> Item:
    ids = tuple(int(i) for i in ids_of(length, seed))
    output = {"sequence": 1, "token": 1}.get(kind, 11)
    return Item(ids, output, None if kind == "token" else 0, None if kind == "sequence" else length - 1)


KINDS = ("gpt2", "llama", "bert", "sequence", "token")


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("kind", ["llama", "bert", "sequence", "token"])
def test_one_number_per_token_whatever_stands_beside_it(kind: str, method: str) -> None:
    lens = _lens(kind)
    items = [_item(kind, 6), _item(kind, 6, 1), _item(kind, 4, 2)]
    together = scores(lens, items, method)
    assert [len(found) for found in together] == [6, 6, 4]
    alone = scores(lens, [items[1]], method)[0]
    np.testing.assert_allclose(together[1], alone, rtol=1e-5, atol=1e-7)
    padded = scores(lens, [replace(items[1], padding=3)], method)[0]
    np.testing.assert_allclose(padded, alone, rtol=1e-4, atol=1e-6)
    if not METHODS[method].signed:
        assert (alone >= 0).all()


@pytest.mark.parametrize("kind", KINDS)
def test_gradients_are_those_of_differences(kind: str) -> None:
    lens, item = _lens(kind), _item(kind)
    vectors = lens.model.get_input_embeddings()(torch.tensor(item.ids)).detach()
    value = slow.value_of(lens.model, item.output, item.against, item.position)
    found = scores(lens, [item], "gradient_x_input")[0]
    np.testing.assert_allclose(found, slow.gradient_x_input(value, vectors), atol=2e-3 * np.abs(found).max())
    found = integrated_gradients(lens, [item], steps=4, most=4)[0]
    np.testing.assert_allclose(found, slow.integrated_gradients(value, vectors, 4), atol=2e-3 * np.abs(found).max())


def test_integrated_gradients_add_up_in_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    lens, item = _lens("gpt2"), _item("gpt2")
    vectors = lens.model.get_input_embeddings()(torch.tensor(item.ids)).detach()
    value = slow.value_of(lens.model, item.output, item.against, item.position)
    total = value(vectors) - value(torch.zeros_like(vectors))
    scores = integrated_gradients(lens, [item], most=810)
    assert scores[0].sum() == pytest.approx(total, rel=0.01)
    assert completeness_error(lens, [item], scores)[0] <= 0.01
    monkeypatch.setattr(gradients, "COMPLETE", 0.0)  # steps are tripled to the end, and no point is lost on the way
    nested = integrated_gradients(lens, [item], steps=10, most=90)[0]
    np.testing.assert_allclose(nested, integrated_gradients(lens, [item], steps=90, most=90)[0], rtol=1e-9)


def test_erasure_is_a_loop_over_tokens() -> None:
    lens, item = _lens("gpt2"), replace(_item("gpt2"), against=None)
    found = scores(lens, [item], "erasure")[0]
    np.testing.assert_allclose(found, slow.erasure(lens.model, list(item.ids), 11, None, 5), atol=1e-6)
    lens, item = _lens("sequence"), replace(_item("sequence"), against=None)
    mask = int(lens.tokenizer.mask_token_id)
    expected = slow.erasure(lens.model, list(item.ids), 1, mask, None)
    np.testing.assert_allclose(scores(lens, [item], "erasure")[0], expected, atol=1e-6)


@pytest.mark.parametrize("kind", ["gpt2", "sequence"])
def test_rollout_is_the_product_of_layers(kind: str) -> None:
    lens, item = _lens(kind), _item(kind)
    found = scores(lens, [item], "rollout")[0]
    expected = slow.attention_rollout(lens.model, list(item.ids), 0 if kind == "sequence" else 5)
    np.testing.assert_allclose(found, expected, atol=1e-6)
    assert found.sum() == pytest.approx(1, abs=1e-6)


def test_decompx_is_the_recipe_of_its_authors() -> None:
    lens, item = _lens("sequence"), _item("sequence")
    expected = slow.decompx_bert(lens.model, list(item.ids), 1, 0)
    np.testing.assert_allclose(scores(lens, [item], "decompx")[0], expected, atol=1e-9)


@pytest.mark.parametrize("kind", [*KINDS, "llama_bias"])
def test_shares_of_biases_add_up_to_the_number(kind: str) -> None:
    lens, item = _lens(kind), _item(kind)
    assert scores(lens, [item], "decompx")[0].sum() == pytest.approx(float(values(lens, [item])[0]), abs=1e-6)


def test_alti_logit_is_the_recipe_of_its_authors() -> None:
    lens, item = _lens("gpt2"), _item("gpt2")
    expected = slow.alti_logit_gpt2(lens.model, list(item.ids), item.output, item.against or 0)
    np.testing.assert_allclose(scores(lens, [item], "alti_logit")[0], expected, atol=1e-6)


def test_globenc_multiplies_raw_norms() -> None:
    lens, item = _lens("sequence"), _item("sequence")
    (analysis,) = lens.analyze_inputs({"input_ids": torch.tensor([item.ids])}, measures=["enc_n"])
    expected = slow.globenc_rollout(analysis["enc_n"].values.astype(np.float64), 0)
    np.testing.assert_allclose(scores(lens, [item], "globenc")[0], expected, rtol=1e-6)


def _normed_words() -> Lens:
    """A model whose word vectors enter a normalization directly, as DeBERTa's do."""
    torch.manual_seed(0)
    config = transformers.DebertaV2Config(
        vocab_size=60, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=48,
        max_position_embeddings=32, type_vocab_size=0, position_biased_input=False, num_labels=2,
    )  # fmt: skip
    model = tiny.randomized(transformers.DebertaV2ForSequenceClassification(config)).eval()
    return Lens(model, tiny.tokenizer("both"))


def test_terms_that_are_rounding_error_are_zero() -> None:
    lens, item = _normed_words(), _item("sequence")
    assert not scores(lens, [item], "gradient_x_input")[0].any()
    assert scores(lens, [item], "gradient_x_state")[0].all()


def test_gradients_at_states_do_not_depend_on_neighbours() -> None:
    """As many rows as tokens, in a model with positions in front: which axis is which cannot be told by their sizes."""
    lens = Lens(tiny_model("xlnet").double())
    items = [Item(tuple(int(i) for i in ids_of(6, seed)), 11, 0, 5) for seed in range(6)]
    together = scores(lens, items, "gradient_x_state")
    for item, terms in zip(items, together, strict=True):
        np.testing.assert_allclose(terms, scores(lens, [item], "gradient_x_state")[0], rtol=1e-6)


def test_gradients_at_states_are_those_of_differences() -> None:
    lens, item = _lens("sequence"), _item("sequence")
    states = lens.model.bert.embeddings(torch.tensor([item.ids]))[0].detach()

    def value(changed: torch.Tensor) -> float:
        handle = lens.model.bert.encoder.layer[0].register_forward_pre_hook(
            lambda module, args, kwargs: ((changed[None], *args[1:]), kwargs), with_kwargs=True
        )
        try:
            with torch.no_grad():
                logits = lens.model(input_ids=torch.tensor([item.ids])).logits[0]
        finally:
            handle.remove()
        return float(logits[1] - logits[0])

    found = scores(lens, [item], "gradient_x_state")[0]
    np.testing.assert_allclose(found, slow.gradient_x_input(value, states), atol=2e-3 * np.abs(found).max())


@pytest.mark.parametrize("method", ["fixed", "fixed_zero", "integrated"])
def test_complete_methods_are_the_terms_of_explain(method: str) -> None:
    lens, item = _lens("llama"), _item("llama")
    assert METHODS[method].complete
    found = scores(lens, [item], method)[0]
    inputs = {"input_ids": torch.tensor([item.ids])}
    settings: Any = {"attention": method.removesuffix("_zero")} | ({"baseline": "zero"} if "zero" in method else {})
    own = lens.explain_inputs(inputs, output=11, against=0, **settings)[0]
    np.testing.assert_allclose(found, own["tokens"], atol=1e-9)
    assert found.sum() + float(own["biases"].sum()) == pytest.approx(float(values(lens, [item])[0]), abs=1e-4)


def test_a_word_that_is_average_gives_nothing() -> None:
    """Under the default reference; from zero it gives what its vector gives."""
    model = headed("llama")
    with torch.no_grad():
        table = model.model.embed_tokens.weight
        table[7] = 0.0
        table[7] = table.sum(0) / (len(table) - 1)  # now row 7 is the mean of all rows
    item = Item((9, 7, 12), 11, 13, 2)
    assert abs(scores(Lens(model), [item], "fixed")[0][1]) < 1e-9
    assert abs(scores(Lens(model), [item], "fixed_zero")[0][1]) > 1e-3


def test_vectors_that_were_handed_in_are_measured_from_zero() -> None:
    model = headed("llama")
    vectors = model.model.embed_tokens(ids_of(5)[None]).detach()
    (found,) = Lens(model).explain_inputs({"inputs_embeds": vectors}, output=3)
    assert found.provenance["baseline"] == "zero"
    (words,) = Lens(model).explain_inputs({"input_ids": ids_of(5)[None]}, output=3, baseline="zero")
    np.testing.assert_allclose(found["tokens"], words["tokens"], atol=1e-9)


def test_what_is_taken_away() -> None:
    lens, item = _lens("gpt2"), _item("gpt2")
    assert erasing.without(lens, item, {5}, "delete").position == 4
    assert erasing.without(lens, item, {1}, "zero").blank == {1}
    with pytest.raises(InputError, match="all tokens of an item would be deleted"):
        erasing.without(lens, item, set(range(6)), "delete")
    with pytest.raises(InputError, match="one of delete, mask, zero"):
        erasing.check_way(lens, "burn")
    masked = _lens("bert")
    asked = Item((1, 20, 21, 22, 2), 11, None, 2)
    assert 2 not in erasing.removable(masked, asked, "mask")
    assert erasing.without(masked, asked, {1}, "mask").ids[1] == masked.tokenizer.mask_token_id


def test_probabilities_are_those_of_the_softmax() -> None:
    lens = _lens("sequence")
    item = replace(_item("sequence"), against=None)
    with torch.no_grad():
        logits = lens.model(input_ids=torch.tensor([item.ids])).logits[0].double()
    assert float(probabilities(lens, [item])[0]) == pytest.approx(float(logits.softmax(-1)[1]))
    assert sum(map(len, batches([item] * 5000))) == 5000


def test_a_method_of_ones_own_is_held_to_its_shape() -> None:
    lens, item = _lens("gpt2"), _item("gpt2")
    short = Method("short", "", "", "", "", "", lambda lens, items: [np.ones(2) for _ in items])
    with pytest.raises(InputError, match="one finite number for each token"):
        short.scores(lens, [item])
    with pytest.raises(InputError, match="returned 0 arrays"):
        Method("few", "", "", "", "", "", lambda lens, items: []).scores(lens, [item])
    with pytest.raises(InputError, match="a method must be one of fixed"):
        find_methods(["nothing"])


def test_models_with_two_sides_are_refused() -> None:
    with pytest.raises(InputError, match="reads one text and writes another"):
        scores(Lens(headed("t5")), [_item("gpt2")], "random")


def test_items_of_texts() -> None:
    lens = _lens("bert")
    item = item_of(lens, "the [MASK] sat", output="cat")
    assert item.ids[item.position or 0] == lens.tokenizer.mask_token_id
    own = item_of(_lens("sequence"), "the cat sat")
    assert own.output in (0, 1) and own.position is None


@pytest.mark.parametrize("family", ["gemma3n_text", "hrm_text", "mobilebert"])
def test_words_that_are_used_twice_or_by_their_neighbours_still_add_up(family: str) -> None:
    """A layer may look back at what was looked up, and a first layer's vector may be made of several words."""
    model = tiny_model(family)
    asked: Any = {"output": 3, "position": [3, 2, 2], "parts": ["tokens", "biases"]}
    for found in Lens(model).explain_inputs(tiny_inputs(model, padded=True), **asked):
        assert found.provenance["baseline"] == "mean"
        total = float(found["tokens"].sum() + found["biases"].sum())
        assert total == pytest.approx(found.value, abs=1e-4 * max(1.0, abs(found.value)))


def test_vectors_that_are_not_the_tokens_are_refused() -> None:
    """A model may put a learned prompt in front of its tokens: the first vectors are not theirs."""
    lens = Lens(tiny_model("cpmant"))
    item = Item((11, 12, 13, 14), 20, None, 3)
    for method in ("gradient_x_input", "gradient_x_state", "smoothgrad"):
        with pytest.raises(NormlensError):
            scores(lens, [item], method)


def test_blanks_stand_at_their_token_whatever_axis_is_in_front() -> None:
    model = tiny_model("xlnet").double()
    item = Item((11, 12, 13, 14), 20, None, 3)
    found = [float(values(Lens(model), [replace(item, blank=frozenset({k}))])[0]) for k in range(4)]
    for k, value in enumerate(found):
        handle = model.get_input_embeddings().register_forward_hook(lambda module, args, out, k=k: _without_row(out, k))
        with torch.no_grad():
            expected = float(model(input_ids=torch.tensor([item.ids])).logits[0, 3, 20])
        handle.remove()
        assert value == pytest.approx(expected, rel=1e-6)


def _without_row(vectors: torch.Tensor, row: int) -> torch.Tensor:
    changed = vectors.clone()
    changed[row] = 0.0
    return changed


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"position": -1}, "position must be from 0 to 5"),
        ({"position": 6}, "position must be from 0 to 5"),
        ({"position": None}, "needs a position"),
        ({"output": -1}, "must be at least 0"),
        ({"padding": -1}, "padding must be at least 0"),
        ({"blank": frozenset({1})}, "no method explains it"),
    ],
)
def test_items_that_methods_would_read_in_different_ways_are_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        scores(_lens("gpt2"), [replace(_item("gpt2"), **change)], "random")
