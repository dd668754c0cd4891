"""Short texts: sites of one form are measured at once, as a stack, with the numbers that each has alone."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from normlens import Lens, seen_site
from normlens.capture import SiteResult, _Pass
from normlens.decompose.block import Block, RandomCheck
from normlens.decompose.grams import Grams
from normlens.decompose.steps import Normalization, Scaling, Shift, at_rows, form, linear, stacked
from normlens.errors import DecompositionError
from normlens.families.tiny import tiny_inputs, tiny_model
from normlens.measures import measure
from normlens.proof import Subject, prove, prove_weights
from normlens.request import Request
from tests import tiny

#: Post-norm, pre-norm, norm on the branch, shared modules, grouped heads, relative positions, parallel blocks, sinks, gates,
#: attention in a family's own code, several kinds of site.
FAMILIES = (
    "bert", "albert", "roberta", "distilbert", "deberta-v2", "xlnet", "funnel", "mpnet", "gpt2", "gpt_neox", "gptj", "llama",
    "qwen3", "gemma2", "olmo2", "gpt_oss", "cohere", "phi", "falcon", "bloom", "opt", "diffllama", "qwen3_next", "granite",
    "t5", "marian", "bart", "mt5", "pegasus",
)  # fmt: skip


@pytest.fixture
def sizes(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """How many sites were measured at once, each time."""
    found: list[int] = []
    whole = _Pass._measure

    def noted(self: _Pass, seen: Any) -> Any:
        found.append(len(seen.sites))
        return whole(self, seen)

    monkeypatch.setattr(_Pass, "_measure", noted)
    return found


def bert(layers: int) -> nn.Module:
    return tiny.randomized(tiny.bert(num_hidden_layers=layers, vocab_size=1000)).eval()


def results(model: nn.Module, inputs: dict[str, Tensor], **asked: Any) -> list[SiteResult]:
    found: list[SiteResult] = []
    lens = Lens(model)
    lens.run(inputs, Request.of(lens.anatomy, **asked), lambda result, block: found.append(result))
    return found


def same(one: SiteResult, other: SiteResult) -> None:
    """But for rounding: a model multiplies other shapes in a batch."""
    assert (one.kind, one.layer) == (other.kind, other.layer)
    for mine, theirs in ((one.values, other.values), (one.mixing, other.mixing), (one.residual, other.residual)):
        assert mine.keys() == theirs.keys()
        for name, value in mine.items():
            gap = (value - theirs[name][:1]).abs().max() / theirs[name].abs().max()
            assert float(gap) < 1e-5, (one.layer, name)


@pytest.mark.parametrize("family", FAMILIES)
def test_sites_have_the_numbers_that_each_has_alone(family: str, sizes: list[int]) -> None:
    """One text is stacked, two of the same are not."""
    model = tiny_model(family)
    inputs = tiny_inputs(model, padded=False)
    once = results(model, inputs)
    together = list(sizes)
    twice = results(model, {name: value.repeat(2, 1) for name, value in inputs.items()})
    assert len(once) == len(twice)
    assert max(sizes[len(together) :]) == 1
    if family not in ("xlnet", "diffllama", "qwen3_next", "funnel"):  # steps before the projection, other lengths
        assert max(together) > 1, together
    for one, other in zip(once, twice, strict=True):
        same(one, other)
        assert float(one.proof.max()) < 1e-5


def test_stacks_of_any_size_give_the_same_bits(monkeypatch: pytest.MonkeyPatch, sizes: list[int]) -> None:
    model = bert(5)
    inputs = tiny_inputs(model, padded=False)
    whole = results(model, inputs)
    assert sizes == [5]
    heads, width = model.config.num_attention_heads, model.config.hidden_size
    for most, expected in ((2, [2, 2, 1]), (3, [3, 2]), (1, [1] * 5)):
        sizes.clear()
        monkeypatch.setattr(seen_site, "CPU_BLOCK_NUMBERS", most * heads * 9 * width)
        parts = results(model, inputs)
        assert sizes == expected
        for one, other in zip(whole, parts, strict=True):
            for name in one.values:
                assert torch.equal(one.values[name], other.values[name]), (most, name)


def test_layers_that_were_asked_for_are_stacked_alone(sizes: list[int]) -> None:
    model = bert(5)
    inputs = tiny_inputs(model, padded=False)
    whole = {result.layer: result for result in results(model, inputs)}
    some = results(model, inputs, layers=[2, 5], measures=["attnresln_n"])
    assert sizes == [5, 2]
    assert [result.layer for result in some] == [2, 5]
    for result in some:
        assert torch.equal(result.values["attnresln_n"], whole[result.layer].values["attnresln_n"])


@pytest.mark.parametrize("asked", [{"words": "norms"}, {"measures": ["alti"]}, {"measures": ["ff_n"]}])
def test_what_looks_further_goes_alone(asked: dict[str, Any], sizes: list[int]) -> None:
    lens = Lens(tiny.make("bert"), tiny.tokenizer_for("bert"))
    lens.analyze("a b c", **asked)
    assert set(sizes) == {1}


def test_sites_are_handed_over_in_the_order_in_which_they_ran() -> None:
    model = tiny_model("marian")
    found = [(result.kind, result.layer) for result in results(model, tiny_inputs(model, padded=False))]
    assert found == [(site.kind, site.layer) for site in Lens(model).anatomy.sites]


def test_a_change_between_two_calls_is_seen_in_a_stack() -> None:
    """Stacked weights are good for one state of the model, like all that is kept of it."""
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


# ---- the proof says which site it was ------------------------------------------------------------------------------------


def stack_of_bert(monkeypatch: pytest.MonkeyPatch) -> Block:
    found: list[Block] = []
    whole = _Pass._measure

    def noted(self: _Pass, seen: Any) -> Any:
        block, measured = whole(self, seen)
        found.append(block)
        return block, measured

    monkeypatch.setattr(_Pass, "_measure", noted)
    model = bert(3)
    results(model, tiny_inputs(model, padded=False))
    (block,) = found
    return block


SUBJECTS = [Subject("bert", f"encoder layer {n}", f"encoder.layer.{n - 1}", torch.float32) for n in (1, 2, 3)]


@pytest.mark.parametrize("site", [0, 1, 2])
@pytest.mark.parametrize("where", ["projected", "total", "normalized", "x", "attn_n", "af_norm", "attnresln_n"])
def test_a_wrong_number_is_laid_to_its_own_site(site: int, where: str, monkeypatch: pytest.MonkeyPatch) -> None:
    block = stack_of_bert(monkeypatch)
    t, mask = block.tensors, torch.ones(3, 9, dtype=torch.bool)
    names = ["f_norm", "af_norm", "attn_n", "attnresln_n"]
    values = measure(block, names, ()).values
    prove(block, values, mask, mask, SUBJECTS)
    if where in names:
        values[where] = values[where].clone()
        values[where][site] *= 1.01
        wrong = block
    else:
        changed = getattr(t, where).clone()
        changed[site] += torch.randn(changed.shape[1:], generator=torch.Generator().manual_seed(0))
        wrong = Block(replace(t, **{where: changed}))
    with pytest.raises(DecompositionError, match=f"encoder layer {site + 1}, module encoder.layer.{site}"):
        prove(wrong, values, mask, mask, SUBJECTS)


@pytest.mark.parametrize("site", [0, 2])
def test_weights_above_one_are_laid_to_their_own_site(site: int) -> None:
    alpha = torch.rand(3, 2, 5, 5).softmax(-1)
    mask = torch.ones(3, 5, dtype=torch.bool)
    prove_weights(alpha, mask, SUBJECTS)
    alpha[site] *= 1.5
    with pytest.raises(DecompositionError, match=f"encoder layer {site + 1}, .* at most 1, is off by 0.5"):
        prove_weights(alpha, mask, SUBJECTS)


# ---- the mathematics of a stack ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "steps",
    [
        [Normalization(torch.rand(6), torch.rand(6), True, 1e-5) for _ in range(3)],
        [Normalization(None, None, False, 1e-6) for _ in range(3)],
        [Scaling(torch.rand(6)) for _ in range(3)],
        [Scaling(0.5) for _ in range(3)],
        [Shift(torch.rand(6)) for _ in range(3)],
    ],
)
def test_stacked_steps_do_to_each_row_what_its_own_does(steps: list[Any]) -> None:
    assert len({form(step) for step in steps}) == 1
    vectors = torch.randn(3, 5, 6)
    wanted = torch.stack([linear([step], row) for step, row in zip(steps, vectors, strict=True)])
    torch.testing.assert_close(linear([stacked(steps)], vectors), wanted)
    rows = [2, 0, 0, 1]
    singles = torch.stack([linear([steps[row]], vectors[row, 1]) for row in rows])
    torch.testing.assert_close(linear([at_rows(stacked(steps), rows)], vectors[rows, 1]), singles)


def test_steps_that_differ_have_other_forms() -> None:
    norm = Normalization(torch.rand(6), None, True, 1e-5, path="here")
    assert form(norm) == form(replace(norm, weight=torch.rand(6), path="there"))
    for other in (replace(norm, eps=1e-6), replace(norm, centred=False), replace(norm, weight=None), Scaling(2.0)):
        assert form(other) != form(norm)
    assert form(Scaling(2.0)) != form(Scaling(3.0))
    assert form(Scaling(torch.rand(()))) is None  # would meet the wrong axis


def test_norms_of_a_stack_keep_their_digits() -> None:
    """Heads that cancel in one site of three: worked out again with that site's own weights and steps."""
    generator = torch.Generator().manual_seed(0)

    def random(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator)

    weights = [random(4, 3, 9) for _ in range(3)]
    weights[1][1] = weights[1][0]
    values, alpha = random(3, 4, 7, 3), random(3, 4, 5, 7).softmax(-1)
    values[1, 1] = -values[1, 0] * (1 - 1e-5)
    alpha[1, 1], alpha[1, 2:] = alpha[1, 0], 0
    norms = [Normalization(random(9), None, True, 1e-5) for _ in range(3)]
    out = torch.empty(2, 3, 5, 7)
    grams = Grams(values, weights, [(), (stacked(norms),)])
    grams.reach(7, 0)
    grams.norms(alpha, 0, out)
    for n, (weight, norm) in enumerate(zip(weights, norms, strict=True)):
        parts = torch.einsum("hqk,hkc,hcd->qkd", alpha[n].double(), values[n].double(), weight.double())
        torch.testing.assert_close(out[0, n].double(), parts.norm(dim=-1), rtol=1e-5, atol=0)
        exact = linear([norm.to(torch.float64)], parts).norm(dim=-1)
        torch.testing.assert_close(out[1, n].double(), exact, rtol=1e-5, atol=0)


def test_checks_of_a_stack_are_those_of_its_maps() -> None:
    matrices, biases = torch.randn(3, 6, 5), torch.randn(3, 5)
    left = torch.randn(3, 4, 6)
    right = left @ matrices + biases.unsqueeze(1)
    right[1, 2] += 1
    checks = [RandomCheck.of(matrix, bias) for matrix, bias in zip(matrices, biases, strict=True)]
    gaps, sizes = RandomCheck.stacked(checks).gaps(left, right)
    for n, check in enumerate(checks):
        own = check.gaps(left[n : n + 1], right[n : n + 1])
        torch.testing.assert_close(gaps[n], own[0][0], rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(sizes[n], own[1][0])
    assert float(gaps[1, 2]) > 0.1


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
def test_memory_that_layers_share_is_copied(name: str, sizes: list[int]) -> None:
    model = bert(3)
    plain = results(model, tiny_inputs(model, padded=False))
    for layer in model.encoder.layer:
        getattr(layer.attention.self, name).__class__ = _SharedBuffer
    with torch.no_grad():
        found = results(model, tiny_inputs(model, padded=False))
    assert sizes == [3, 3]
    for one, other in zip(plain, found, strict=True):
        same(one, other)
