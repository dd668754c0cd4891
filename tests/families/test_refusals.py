"""What must not pass: wrong parts with a right look, types nobody has seen, attention that is not over all keys."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor
from transformers.models.bert import modeling_bert
from transformers.models.llama import modeling_llama

from normlens import Lens
from normlens.decompose.block import Block
from normlens.errors import AnatomyError, DecompositionError, InputError
from normlens.families.checks import with_rotated_heads
from normlens.families.tiny import randomize, tiny_config, tiny_inputs, tiny_model
from normlens.measures.proof import Subject, prove_sums
from normlens.measures.request import Request


def blocks(family: str) -> list[tuple[str, Block, Tensor]]:
    """Every site of a tiny model on a padded batch, with the mask of its queries."""
    model = tiny_model(family)
    lens = Lens(model)
    found: list[tuple[str, Block, Tensor]] = []
    lens.run(
        tiny_inputs(model, padded=True),
        Request.of(lens.anatomy),
        lambda result, block: found.append((f"{result.kind} layer {result.layer}", block, result.query_mask)),
    )
    return found


def turned_values(tensors: Block) -> Block:
    """Key-value heads in a wrong order: what attention mixed belongs to other heads."""
    return replace(tensors, pairs=replace(tensors.pairs, mixed=tensors.pairs.mixed.roll(1, dims=2)))


def tiled_values(tensors: Block) -> Block:
    """Key-value heads repeated as (1, 2, 1, 2) where the model repeats them as (1, 1, 2, 2)."""
    order = torch.arange(tensors.w_o.shape[0]).view(tensors.values.shape[1], -1).T.flatten()
    return replace(tensors, w_o=tensors.w_o[order].contiguous(), output_check=None)


MISTAKES = {"heads turned": with_rotated_heads, "values turned": turned_values, "values tiled": tiled_values}


@pytest.mark.parametrize("family", ["llama", "gemma2", "gpt_oss", "qwen3_next", "mistral"])
@pytest.mark.parametrize("mistake", MISTAKES)
def test_wrong_heads_are_caught(family: str, mistake: str) -> None:
    for site, block, mask in blocks(family):
        subject = Subject(family, site, "attention", torch.float32)
        prove_sums(block, mask, subject)
        with pytest.raises(DecompositionError, match="is off by"):
            prove_sums(MISTAKES[mistake](block), mask, subject)


class ScaledAttention(modeling_llama.LlamaAttention):
    """A type that normlens has never seen: its output is doubled on the way into the residual stream."""

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        output, weights = super().forward(*args, **kwargs)
        return output * 2.0, weights


class SquaredAttention(modeling_llama.LlamaAttention):
    """Another one, which no constant explains."""

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        output, weights = super().forward(*args, **kwargs)
        return output.square(), weights


def unknown(attention: type) -> transformers.LlamaModel:
    config = tiny_config("llama")
    config.model_type = "never_seen"
    model = transformers.LlamaModel._from_config(config, attn_implementation="eager")
    for number, layer in enumerate(model.layers):
        layer.self_attn = attention(config, number)
    randomize(model)
    return model.eval()


def test_unknown_type_is_read_by_the_rule() -> None:
    model = unknown(ScaledAttention)
    inputs = tiny_inputs(model, padded=True)
    lens = Lens(model)
    analysis = lens.analyze_inputs(inputs)[0]
    assert lens.family == "never_seen"
    assert float(analysis.sites["decoder"]["proof"].max()) < 1e-6
    plain = Lens(_with(modeling_llama.LlamaAttention, model)).analyze_inputs(inputs)[0]
    ours, theirs = (torch.tensor(a["attn_n"].sel(layer=1).values) for a in (analysis, plain))
    torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-6)  # the constant comes after this stage
    assert not torch.allclose(
        torch.tensor(analysis["attnres_n"].sel(layer=1).values), torch.tensor(plain["attnres_n"].sel(layer=1).values)
    )


def _with(attention: type, like: transformers.LlamaModel) -> transformers.LlamaModel:
    model = unknown(attention)
    model.load_state_dict(like.state_dict())
    return model


def test_unknown_type_that_the_rule_cannot_read_is_refused() -> None:
    model = unknown(SquaredAttention)
    with pytest.raises(AnatomyError, match=r"'never_seen' at layers\.0\.self_attn.*docs/adding_a_family\.md"):
        Lens(model).analyze_inputs(tiny_inputs(model, padded=False))


class HiddenNorm(torch.nn.LayerNorm):
    """A normalization that cannot be asked: it must not be taken for none."""

    def forward(self, x: Tensor) -> Tensor:
        if x.shape[1] == 4:  # what it is asked with
            raise RuntimeError("not now")
        return super().forward(x) * 1.5


def test_unreadable_normalization_is_refused() -> None:
    model = transformers.BertModel(tiny_config("bert")).eval()
    for layer in model.encoder.layer:
        layer.attention.output.LayerNorm = HiddenNorm(32)
    randomize(model)
    with pytest.raises(AnatomyError, match="a normalization after the residual sum must be readable"):
        Lens(model).analyze_inputs({"input_ids": torch.tensor([[5, 6, 7, 8, 9]])})


def test_sparse_indices_are_honoured() -> None:
    model = tiny_model("deepseek_v32")
    analysis = Lens(model).analyze_inputs(tiny_inputs(model, padded=False))[0]
    alpha = torch.tensor(analysis["alpha"].values)
    assert int((alpha[:, :, -1] > 0).sum(-1).max()) == model.config.index_topk  # of nine keys


def test_block_sparse_attention_is_refused_before_it_changes_the_model() -> None:
    model = transformers.BigBirdModel(tiny_config("big_bird")).eval()
    with pytest.raises(AnatomyError, match="original_full"):
        Lens(model).analyze_inputs({"input_ids": torch.tensor([[5, 6, 7]])})
    assert model.config.attention_type == "block_sparse"
    full = tiny_config("big_bird")
    full.attention_type = "original_full"
    model = transformers.BigBirdModel(full).eval()
    randomize(model)
    assert Lens(model).analyze_inputs({"input_ids": torch.tensor([[5, 6, 7]])})


def test_f_norm_behind_a_gate_is_refused() -> None:
    model = tiny_model("qwen3_next")
    inputs = tiny_inputs(model, padded=False)
    lens = Lens(model)
    with pytest.raises(InputError, match="f_norm does not exist for"):
        lens.analyze_inputs(inputs, measures=["f_norm"])
    assert "f_norm" not in lens.analyze_inputs(inputs)[0].sites["decoder"]


def test_wrong_eager_function_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    model = transformers.BertModel(tiny_config("bert")).eval()
    model.set_attn_implementation("sdpa")
    randomize(model)
    original = modeling_bert.eager_attention_forward

    def forgetful(module: Any, query: Tensor, key: Tensor, value: Tensor, mask: Any, **kwargs: Any) -> Any:
        return original(module, query, key, value, None, **kwargs)  # ignores the padding

    monkeypatch.setattr(modeling_bert, "eager_attention_forward", forgetful)
    lens = Lens(model)
    # Read on full rows, where no mask is missed; and run by the family's own function, not by the standard one.
    anatomy = replace(lens.anatomy, sites=tuple(replace(site, standard=False) for site in lens.anatomy.sites))
    lens.traced._anatomies[frozenset()] = anatomy
    lens.traced.forget = lambda: None  # type: ignore[method-assign]
    with pytest.raises(DecompositionError, match="under capture differs from its own"):
        lens.analyze_inputs(tiny_inputs(model, padded=True))
