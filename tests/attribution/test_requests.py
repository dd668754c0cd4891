"""What may be asked and what may not: sentences that list what is valid, kinds of numbers, modes of a user's process."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import transformers

from normlens.errors import InputError
from normlens.lens import Lens
from normlens.results.explanation import PARTS, Explanation
from tests import tiny
from tests.attribution.models import headed, ids_of


@pytest.fixture(scope="module")
def lens() -> Lens:
    return Lens(headed("llama", torch.float32), tiny.tokenizer("none"))


@pytest.fixture(scope="module")
def translator() -> Lens:
    return Lens(headed("marian", torch.float32), tiny.tokenizer_for("marian"))


@pytest.mark.parametrize(
    ("text", "options", "says"),
    [
        (5, {}, "text must be a string"),
        (b"the cat", {}, "got bytes"),
        ([], {}, "the list of texts is empty"),
        ("", {}, "is empty"),
        ("the cat", {"output": True}, "a token, a label or its number, got bool"),
        ("the cat", {"output": 1.5}, "got float"),
        ("the cat", {"output": -1}, "from 0 to 59, got -1"),
        ("the cat", {"position": 2}, "0 to 1, or negative from the end, got 2"),
        ("the cat", {"position": -3}, "got -3"),
        (["the cat", "she"], {"output": [3]}, "one for all 2 texts, .*got 1"),
        ("the cat", {"batch_size": 0}, "batch_size must be a whole number"),
        ("the cat", {"parts": "tokens"}, "a list of tokens, states"),
        ("the cat", {"target": "a mat"}, "encoder-decoder"),
    ],
)
def test_bad_requests_are_sentences(lens: Lens, text: Any, options: dict[str, Any], says: str) -> None:
    with pytest.raises(InputError, match=says) as caught:
        lens.explain(text, **options)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("direction", "says"),
    [
        ("up", "got str"),
        ([float("nan")] * tiny.WIDTH, "NaN"),
        ([1.0] * 5, "of the last state, 24"),
        ([[1.0]], "a shape of"),
    ],
)
def test_a_direction_is_one_vector(direction: Any, says: str) -> None:
    body = Lens(tiny.make("bert", torch.float32))
    with pytest.raises(InputError, match=says):
        body.explain_inputs({"input_ids": ids_of(4)[None]}, direction=direction)


def test_inputs_on_which_the_model_fails_are_the_users_to_mend(lens: Lens) -> None:
    with pytest.raises(InputError, match="LlamaForCausalLM failed on the given inputs"):
        lens.explain_inputs({"input_idz": ids_of(4)[None]}, output=3)


def test_numbers_of_numpy_are_numbers(lens: Lens) -> None:
    found = lens.explain("the cat sat", output=np.int64(7), position=np.int64(-2))  # type: ignore[arg-type]
    assert found.value == lens.explain("the cat sat", output=7, position=1).value
    assert found.provenance["position"] == 1


def test_positions_are_those_of_the_key_axis_in_padded_rows_too() -> None:
    inputs = {
        "input_ids": torch.stack([ids_of(5), ids_of(5, 1)]),
        "attention_mask": torch.tensor([[1] * 5, [0, 0, 1, 1, 1]]),
    }
    found = Lens(headed("gpt2")).explain_inputs(inputs, output=8, position=[-2, 0])
    assert [one.provenance["position"] for one in found] == [3, 0]
    assert found[1]["tokens"].sizes["key"] == 3


def test_a_target_token_is_explained_where_it_is_written(translator: Lens) -> None:
    written = [
        translator.explain("the cat sat", target="a red mat", position=p).provenance["output"] for p in (0, 1, 2)
    ]
    assert written == ["a", "red", "mat"]
    assert translator.explain("the cat sat", target="a red mat").provenance["output"] == "[SEP]"
    whole = translator.explain("the cat sat", output="a red")  # no target: what it is made to write from the start
    for step in range(2):
        one = translator.explain("the cat sat", target="a red mat", position=step)
        assert float(whole.value[step]) == pytest.approx(one.value, abs=1e-5)
        np.testing.assert_allclose(whole.site("encoder")["tokens"][step], one.site("encoder")["tokens"], atol=1e-5)


def test_states_that_are_handed_in_belong_to_no_input(translator: Lens) -> None:
    states = torch.randn(1, 5, translator.model.config.d_model, generator=torch.Generator().manual_seed(0))
    inputs = {"encoder_outputs": (states,), "decoder_input_ids": ids_of(4)[None]}
    (found,) = translator.explain_inputs(inputs, output=3, parts=["tokens", "biases"])
    assert list(found.sites) == ["decoder"] and found["tokens"].sizes["key"] == 4
    assert abs(float(found["biases"].sel(block="cross_attention").sum())) > 1e-3
    assert float(found["tokens"].sum() + found["biases"].sum()) == pytest.approx(found.value, abs=1e-4)


def test_a_text_that_is_continued_keeps_its_record(lens: Lens) -> None:
    found = lens.explain("the cat sat", output="red tree")
    assert found.provenance["text"] == "the cat sat" and "generated" not in found.provenance
    assert lens.explain("the cat sat", generate=True).provenance["generated"] is True


# ---- kinds of numbers and modes ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("family", ["llama", "bert"])
def test_half_precision_has_every_part(family: str, dtype: torch.dtype) -> None:
    inputs = {"input_ids": ids_of(6)[None]}
    (found,) = Lens(headed(family, dtype)).explain_inputs(inputs, output=8, position=3, parts=PARTS)
    (exact,) = Lens(headed(family).to(dtype).double()).explain_inputs(inputs, output=8, position=3, parts=PARTS)
    for name in PARTS:
        allowed = (0.2 if dtype == torch.bfloat16 else 0.03) * float(abs(exact[name]).max())
        np.testing.assert_allclose(found[name], exact[name], atol=allowed, err_msg=name)


def test_whatever_mode_gradients_are_in(lens: Lens) -> None:
    plain = lens.explain("the cat sat", output=7)
    for mode in (torch.no_grad, torch.inference_mode):
        with mode():
            np.testing.assert_array_equal(lens.explain("the cat sat", output=7)["tokens"], plain["tokens"])
    with (
        torch.autocast("cpu", dtype=torch.bfloat16),
        pytest.raises(InputError, match=r"does not support torch\.autocast"),
    ):
        lens.explain("the cat sat", output=7)


def test_a_number_of_zero_has_terms_of_zero() -> None:
    model = headed("llama", torch.float32)
    with torch.no_grad():
        model.lm_head.weight.zero_()
    (found,) = Lens(model).explain_inputs({"input_ids": ids_of(5)[None]}, output=3)
    assert found.value == 0 and not found["tokens"].any() and found.proof.gap == 0 and not found.warning


def test_a_direction_along_which_nothing_is_but_rounding() -> None:
    model = tiny.bert().eval()  # normalized states without beta add up to nothing
    (found,) = Lens(model).explain_inputs({"input_ids": ids_of(5)[None]}, direction=torch.ones(tiny.WIDTH))
    assert abs(found.value) < 1e-5 and float(abs(found["tokens"]).sum()) < 1e-5


def test_probabilities_are_those_of_the_head() -> None:
    def explained(**settings: Any) -> Explanation:
        torch.manual_seed(0)
        model = tiny.randomized(transformers.BertForSequenceClassification(tiny.bert(**settings).config)).eval()
        return Lens(model, tiny.tokenizer("both")).explain("the cat sat", output=0)

    assert explained(num_labels=1).probability is None
    several = explained(num_labels=3, problem_type="multi_label_classification")
    assert several.probability == pytest.approx(1 / (1 + np.exp(-several.value)), abs=1e-5)
    assert 0 < explained(num_labels=3).probability < 1


def test_a_decoder_is_called_so_whatever_its_head() -> None:
    config = tiny.llama().config
    config.pad_token_id, config.num_labels = 0, 2
    model = tiny.randomized(transformers.LlamaForSequenceClassification(config)).eval()
    assert list(Lens(model, tiny.tokenizer("none")).explain("the cat sat", output=1).sites) == ["decoder"]
