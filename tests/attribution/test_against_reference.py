"""Terms are those of the table: the same numbers as vectors carried through the model explicitly, to 1e-6."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from normlens.lens import Lens
from tests.attribution.models import headed, ids_of
from tests.reference.explanations import REFERENCES

ONE_SIDED = ("bert", "gpt2", "llama", "llama_bias")


@pytest.mark.parametrize("baseline", ["mean", "zero"])
@pytest.mark.parametrize("attention", ["fixed", "integrated"])
@pytest.mark.parametrize("implementation", ["eager", "sdpa"])
@pytest.mark.parametrize("family", ONE_SIDED)
def test_one_side(family: str, implementation: str, attention: str, baseline: str) -> None:
    model, ids = headed(family, implementation=implementation), ids_of(7)
    with torch.no_grad():
        slow = REFERENCES[family.removesuffix("_bias")]
        expected = slow(model, ids, 4, 17, attention == "integrated", baseline == "mean")
        own = float(model(input_ids=ids[None]).logits[0, 4, 17])
    asked = {"output": 17, "position": 4, "attention": attention, "baseline": baseline}
    (found,) = Lens(model).explain_inputs({"input_ids": ids[None]}, **asked)
    assert expected.value == pytest.approx(own, abs=1e-6)  # Llama and T5 normalize in single precision
    size = np.abs(expected.tokens).max()
    np.testing.assert_allclose(found["tokens"], expected.tokens, atol=1e-6 * size)
    assert float(found["biases"].sum()) == pytest.approx(expected.biases, abs=1e-6 * size)


@pytest.mark.parametrize("baseline", ["mean", "zero"])
@pytest.mark.parametrize("attention", ["fixed", "integrated"])
@pytest.mark.parametrize("family", ["t5", "marian"])
def test_two_sides(family: str, attention: str, baseline: str) -> None:
    model, ids, target = headed(family), ids_of(6), ids_of(5, seed=1)
    with torch.no_grad():
        expected = REFERENCES[family](model, ids, target, 3, 17, attention == "integrated", baseline == "mean")
        own = float(model(input_ids=ids[None], decoder_input_ids=target[None]).logits[0, 3, 17])
    inputs = {"input_ids": ids[None], "decoder_input_ids": target[None]}
    (found,) = Lens(model).explain_inputs(inputs, output=17, position=3, attention=attention, baseline=baseline)
    assert expected.value == pytest.approx(own, abs=1e-6)  # Llama and T5 normalize in single precision
    tokens = np.concatenate([found.site("encoder")["tokens"], found.site("decoder")["tokens"]])
    size = np.abs(expected.tokens).max()
    np.testing.assert_allclose(tokens, expected.tokens, atol=1e-6 * size)
    biases = sum(float(found.site(side)["biases"].sum()) for side in ("encoder", "decoder"))
    assert biases == pytest.approx(expected.biases, abs=1e-6 * size)
