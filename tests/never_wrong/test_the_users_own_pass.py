"""The analysed pass is the user's: wrappers and prompts that change it are refused."""

from __future__ import annotations

from typing import Any

import pytest
import transformers
from torch import Tensor, nn

from normlens import Lens
from normlens.errors import DecompositionError
from normlens.families.tiny import randomize, tiny_config, tiny_inputs, tiny_model
from tests import tiny
from tests.never_wrong.common import IDS
from tests.test_lens import assert_same, snapshot


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
    "embeddings doubled": "under capture differs from its own",
    "called twice": "gives tensors of shape",
    "mask forgotten": "under capture differs from its own",
    "order turned": "under capture differs from its own",
    "layers one by one": "gives tensors of shape",
    "encoder alone": "under capture differs from its own",
    "never called": "gives tensors of shape",
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
    with pytest.raises(DecompositionError, match="under capture differs from its own"):
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
    with pytest.raises(DecompositionError, match=r"gives tensors of shape|under capture differs"):
        Lens(model).analyze_inputs(inputs)
    assert snapshot(model) == before


def test_a_prompt_that_was_turned_off_for_a_while() -> None:
    model, inputs = prompted("llama", "PromptTuningConfig")
    lens = Lens(model)
    with model.disable_adapter():  # type: ignore[operator]
        lens.analyze_inputs(inputs)
    with pytest.raises(DecompositionError, match=r"gives tensors of shape|under capture differs"):
        lens.analyze_inputs(inputs)
