"""The sites of one pass: delivered in their order, read from memory of their own, from the weights as they are now."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from normlens import Lens
from normlens.families.tiny import tiny_inputs, tiny_model
from normlens.measures.request import Request
from normlens.measures.run import SiteResult
from tests import tiny

#: Post-norm, pre-norm, norm on the branch, shared modules, grouped heads, relative positions, parallel blocks, sinks, gates,
#: attention in a family's own code, several kinds of site.
FAMILIES = (
    "bert",
    "albert",
    "deberta-v2",
    "xlnet",
    "gptj",
    "gemma2",
    "gpt_oss",
    "diffllama",
    "qwen3_next",
    "t5",
    "marian",
)


def bert(layers: int) -> nn.Module:
    return tiny.randomized(tiny.bert(num_hidden_layers=layers, vocab_size=1000)).eval()


def results(model: nn.Module, inputs: dict[str, Tensor], **options: Any) -> list[SiteResult]:
    lens, delivered = Lens(model), []
    lens.run(inputs, Request.of(lens.anatomy, **options), lambda result, block: delivered.append(result))
    return delivered


def same(one: SiteResult, other: SiteResult) -> None:
    """Equal but for rounding: a model multiplies other shapes in a batch."""
    assert (one.kind, one.layer) == (other.kind, other.layer)
    for mine, theirs in ((one.values, other.values), (one.mixing, other.mixing), (one.residual, other.residual)):
        assert mine.keys() == theirs.keys()
        for name, value in mine.items():
            gap = (value - theirs[name][:1]).abs().max() / theirs[name].abs().max()
            assert float(gap) < 1e-5, (one.layer, name)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_sequence_has_the_numbers_that_it_has_in_a_batch(family: str) -> None:
    model = tiny_model(family)
    inputs = tiny_inputs(model, padded=False)
    once = results(model, inputs)
    twice = results(model, {name: value.repeat(2, 1) for name, value in inputs.items()})
    for one, other in zip(once, twice, strict=True):
        same(one, other)
        assert float(one.proof.max()) < 1e-5


def test_a_layer_alone_has_the_bits_that_it_has_among_all() -> None:
    model = bert(5)
    inputs = tiny_inputs(model, padded=False)
    whole = {result.layer: result for result in results(model, inputs)}
    some = results(model, inputs, layers=[2, 5], measures=["attnresln_n"])
    assert [result.layer for result in some] == [2, 5]
    for result in some:
        assert torch.equal(result.values["attnresln_n"], whole[result.layer].values["attnresln_n"])


def test_sites_are_delivered_in_the_order_in_which_they_ran() -> None:
    model = tiny_model("marian")
    delivered = [(result.kind, result.layer) for result in results(model, tiny_inputs(model, padded=False))]
    assert delivered == [(site.kind, site.layer) for site in Lens(model).anatomy.sites]


def test_a_change_between_two_calls_is_seen() -> None:
    model = bert(3)
    lens, inputs = Lens(model), tiny_inputs(model, padded=False)
    before = lens.analyze_inputs(inputs)[0]
    layer = model.encoder.layer[1].attention.output
    with torch.no_grad():
        layer.LayerNorm.weight.data.mul_(2.0)
        layer.dense.bias.data.add_(0.3)
    after, fresh = lens.analyze_inputs(inputs)[0], Lens(model).analyze_inputs(inputs)[0]
    assert not before["attnresln_n"].sel(layer=2).equals(after["attnresln_n"].sel(layer=2))
    assert after["attnresln_n"].equals(fresh["attnresln_n"])


class _SharedBuffer(nn.Linear):
    """A linear map that writes its result into memory that all layers use."""

    buffer = torch.empty(0)

    def forward(self, x: Tensor) -> Tensor:
        if _SharedBuffer.buffer.shape != (*x.shape[:-1], self.out_features):
            _SharedBuffer.buffer = x.new_empty(*x.shape[:-1], self.out_features)
        return torch.addmm(self.bias, x.flatten(0, -2), self.weight.T, out=_SharedBuffer.buffer.flatten(0, -2)).view_as(
            _SharedBuffer.buffer
        )


@pytest.mark.parametrize("name", ["value", "query"])
def test_memory_that_layers_share_is_read_in_time(name: str) -> None:
    model = bert(3)
    plain = results(model, tiny_inputs(model, padded=False))
    for layer in model.encoder.layer:
        getattr(layer.attention.self, name).__class__ = _SharedBuffer
    with torch.no_grad():
        shared = results(model, tiny_inputs(model, padded=False))
    for one, other in zip(plain, shared, strict=True):
        same(one, other)
