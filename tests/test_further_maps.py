"""Maps beyond the norms of the attention block against loops over explicit vectors, and the laws that they obey."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
import xarray as xr
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from normlens import Analysis, Lens
from normlens.decompose import feed_forward as trees
from normlens.decompose.block import Block
from normlens.decompose.parts import pair_blocks
from normlens.decompose.steps import Normalization
from normlens.errors import DecompositionError, InputError
from normlens.families.tiny import tiny_inputs, tiny_model
from normlens.measures.proof import Subject, prove, prove_sums
from normlens.measures.request import Request
from normlens.measures.run import SiteResult
from normlens.measures.table import MEASURES, STANDARD, SiteValues
from normlens.results.analysis import rollout, row_shares
from tests import tiny
from tests.reference import layers as slow
from tests.reference.blocks import Attention, blocks
from tests.reference.measures import Parts, parts_of
from tests.test_reference import assert_close, real

FURTHER = tuple(name for name in MEASURES if name not in STANDARD)


@cache
def case(family: str) -> tuple[dict[str, torch.Tensor], list[Analysis], list[tuple[Attention, slow.Layer | None]]]:
    model, inputs = tiny.make(family, torch.float64), tiny.batch(family, lengths=(7, 5), targets=(6, 4))
    found = Lens(model).analyze_inputs(inputs, measures=[*FURTHER, "attnresln_n"], precision="float64")
    rest = {(layer.kind, layer.layer): layer for layer in slow.layers(family, model, inputs)}
    return inputs, found, [(b, rest.get((b.kind, b.layer))) for b in blocks(family, model, inputs)]


def rows(family: str) -> list[tuple[str, Analysis, Attention, slow.Layer | None, Parts, slow.Further]]:
    inputs, analyses, found = case(family)
    out = []
    for block, layer in found:
        for row, analysis in enumerate(analyses):
            queries, keys = real(inputs, block, row)
            parts = parts_of(block, row, queries, keys)
            where = f"{family} {block.kind} layer {block.layer} row {row}"
            out.append((where, analysis, block, layer, parts, slow.further(block, layer, parts, row, queries)))
    return out


def _prove(block: Block, values: dict[str, Tensor], subject: Subject) -> None:
    """The whole proof of a block, with these measures."""
    queries, keys = (
        torch.ones(len(block.x), count, dtype=torch.bool) for count in (block.total.shape[1], block.x.shape[1])
    )
    prove(block, SiteValues(values, {}, {}), queries, keys, subject)


@pytest.mark.parametrize("family", tiny.FAMILIES)
def test_further_maps_against_the_reference(family: str) -> None:
    # Gemma and T5 normalize in float32 whatever the model's dtype.
    tolerance = 1e-5 if family in ("gemma2", "t5", "llama", "llama_bias") else 1e-9
    for where, analysis, block, layer, parts, further in rows(family):
        site, cross = analysis.site(block.kind), block.kind == "cross"
        shares, beside = slow.alti(parts, further.output)
        assert_close(site["alti"].sel(layer=block.layer).values, shares, tolerance, f"{where}: alti")
        expected = slow.projection(parts, further.output)
        assert_close(site["projection"].sel(layer=block.layer).values, expected, tolerance, f"{where}: projection")
        if cross:
            found = site.residual_norm("alti").sel(layer=block.layer).values
            assert_close(found, beside, tolerance, f"{where}: residual of alti")
        own = beside if cross else shares.diagonal()
        ratio = (shares.sum(1) - (0 if cross else own)) / (shares.sum(1) + (own if cross else 0))
        assert_close(site.mixing_ratio("alti").sel(layer=block.layer).values, ratio, tolerance, f"{where}: alti ratio")
        if layer is None:
            assert "enc_n" not in site.dataset
            with pytest.raises(InputError, match="site\\('cross'\\) has it"):
                site["enc_n"]
            continue
        found = site["value_zeroing"].sel(layer=block.layer).values
        assert_close(found, further.value_zeroing, tolerance, f"{where}: value_zeroing")
        for name in further.parts:
            expected = np.linalg.norm(further.parts[name], axis=-1)
            assert_close(site[name].sel(layer=block.layer).values, expected, tolerance, f"{where}: {name}")
            ratio = slow.ratios(further.parts[name], further.residual[name], cross)
            found = site.mixing_ratio(name).sel(layer=block.layer).values
            assert_close(found, ratio, tolerance, f"{where}: mixing ratio of {name}")
            if cross:
                expected = np.linalg.norm(further.residual[name], axis=-1)
                found = site.residual_norm(name).sel(layer=block.layer).values
                assert_close(found, expected, tolerance, f"{where}: residual of {name}")


@pytest.mark.parametrize("family", tiny.FAMILIES)
def test_laws_of_shares(family: str) -> None:
    _, analyses, _ = case(family)
    for analysis in analyses:
        for kind in analysis.sites:
            site = analysis.site(kind)
            beside = site.residual_norm("alti") if kind == "cross" else 0
            np.testing.assert_allclose(site["alti"].sum("key") + beside, 1, atol=1e-9)
            assert bool((site["alti"] >= 0).all())
            unseen = site["attnresln_n"] == 0
            for name in [name for name in FURTHER if name in site.dataset]:
                assert not bool(site[name].where(unseen, 0).any()), f"{name} of a key without weight"


def test_default_measures_are_the_nine() -> None:
    found = Lens(tiny.make("bert")).analyze_inputs(tiny.batch("bert"))[0]
    assert found.measures == STANDARD
    assert STANDARD == (
        "alpha", "f_norm", "af_norm", "x_norm", "attn_w", "attn_n", "attnres_w", "attnres_n", "attnresln_n",
    )  # fmt: skip


def test_pre_norm_layers_end_as_their_attention_block_does() -> None:
    for family in ("gpt2", "llama", "gemma2"):
        for analysis in case(family)[1]:
            np.testing.assert_allclose(analysis["enc_n"], analysis["attnresln_n"], rtol=1e-12)


@pytest.mark.parametrize("how", ["norms", "vectors"])
def test_words_add_columns_and_average_rows(how: str) -> None:
    lens = Lens(tiny.make("bert"), tiny.tokenizer())
    text, names = "The cats sat slowly , the dogs sat .", ["projection", "enc_n"]
    tokens, words = lens.analyze(text, measures=names), lens.analyze(text, measures=names, words=how)
    groups = [0, 1, 2, 2, 3, 4, 4, 5, 6, 7, 7, 8, 9, 10]
    assert len(groups) == tokens["enc_n"].sizes["key"]
    for name in ("projection",) if how == "vectors" else names:
        value = tokens[name].values
        added = np.stack([value[..., [g == w for g in groups]].sum(-1) for w in range(11)], -1)
        expected = np.stack([added[:, [g == w for g in groups]].mean(1) for w in range(11)], 1)
        np.testing.assert_allclose(words[name].values, expected, rtol=1e-4, atol=1e-6)
    if how == "vectors":
        with pytest.raises(InputError, match="alti does not add over vectors"):
            lens.analyze(text, measures=["alti"], words=how)
        summed = lens.analyze(text, measures=names, words="norms")
        assert bool((words["enc_n"] <= summed["enc_n"] * (1 + 1e-5)).all())


# ---- every kind of feed-forward block --------------------------------------------------------------------------------

#: Post-norm, pre-norm, norm on the branch, one matrix for gate and up, beside attention, experts, shared experts.
KINDS = ("bert", "opt", "olmo2", "phi3", "gptj", "cohere", "mixtral", "qwen2_moe")


@pytest.mark.parametrize("family", KINDS)
def test_parts_of_pairs_add_up_to_what_the_block_gave(family: str) -> None:
    """Pairs go through the block by heads, ratios as two vectors and a remainder: the sums must agree."""
    model = tiny_model(family)
    lens, inputs = Lens(model), tiny_inputs(model, padded=False)
    request = Request.of(lens.anatomy, measures=["ff_n", "ffres_n", "ffresln_n"])
    seen = []

    def take(result: SiteResult, block: Block) -> None:
        layer, t = block.layer, block
        seen.append(result.layer)
        assert float(result.proof.max()) < 1e-5
        if layer.tensors.beside is not None:
            norms = layer.norms["ff"]
            assert not bool((norms - norms.diagonal(dim1=-2, dim2=-1).diag_embed()).any()), "it reads its own position"
            assert torch.equal(result.mixing["ff_n"], torch.zeros_like(result.mixing["ff_n"]))
            return
        total = torch.zeros_like(t.projected)
        for chosen in pair_blocks(block.edge_weights, t.projected.shape[-1]):
            total[chosen.row, chosen.queries] += layer.pairs(chosen)[0].sum(1)
        expected = layer.own["ff"] + layer.context["ff"]
        assert float((total - expected).norm() / expected.norm()) < 1e-5

    lens.run(inputs, request, take)
    assert seen


@pytest.mark.parametrize("family", ["bert", "llama", "mixtral"])
def test_a_wrong_feed_forward_block_is_refused(family: str) -> None:
    """What the tree says must be what the model computed, wherever it goes wrong."""
    model = tiny_model(family)
    lens, inputs = Lens(model), tiny_inputs(model, padded=False)
    request = Request.of(lens.anatomy, measures=["ffresln_n"])
    blocks: list[Block] = []
    lens.run(inputs, request, lambda result, block: blocks.append(block))
    block, subject = blocks[-1], Subject(family, "a layer", "a module", torch.float32)
    end = block.end
    assert end is not None and end.feed_forward is not None
    mask = torch.ones(block.total.shape[:2], dtype=torch.bool)
    assert float(prove_sums(block, mask, subject).max()) < 1e-5
    fed = end.feed_forward
    changed = [replace(end, total=end.total + 1), replace(end, feed_forward=replace(fed, output=fed.output * 1.01))]
    for name, tensor in fed.captured.items():
        other = tensor * 1.01 if tensor.is_floating_point() else (tensor + 1) % 2
        changed.append(replace(end, feed_forward=replace(fed, captured={**fed.captured, name: other})))
    for wrong in changed:
        with pytest.raises(DecompositionError, match="is off by"):
            prove_sums(replace(block, end=wrong), mask, subject)
    values = {"ffresln_n": block.layer.norms["ffln"] * 1.01}
    with pytest.raises(DecompositionError, match="ffresln_n of query"):
        _prove(block, values, subject)


def test_the_spot_check_of_a_block_does_not_share_what_it_checks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Slopes that are wrong where parts are carried, and right in the sums, are found."""
    model = tiny_model("bert")
    lens, inputs = Lens(model), tiny_inputs(model, padded=False)
    own = trees.slope_of
    monkeypatch.setattr(trees, "slope_of", lambda *args: own(*args) * 1.01)
    with pytest.raises(DecompositionError, match="activation's parts"):
        lens.analyze_inputs(inputs, measures=["ff_n"])


@pytest.mark.parametrize("family", ["bert", "llama", "gpt2", "gemma2", "gpt_neox"])
def test_value_zeroing_is_spot_checked(family: str) -> None:
    model = tiny_model(family)
    lens, inputs = Lens(model), tiny_inputs(model, padded=False)
    blocks: list[Block] = []
    lens.run(inputs, Request.of(lens.anatomy, measures=["value_zeroing"]), lambda result, block: blocks.append(block))
    subject = Subject(family, "a layer", "a module", torch.float32)
    for block in blocks:
        found = block.layer.value_zeroing
        _prove(block, {"value_zeroing": found}, subject)
        with pytest.raises(DecompositionError, match="value_zeroing of query"):
            _prove(block, {"value_zeroing": found * 1.01}, subject)
        with pytest.raises(DecompositionError, match="value_zeroing of query"):
            _prove(block, {"value_zeroing": found.roll(1, -1)}, subject)


def test_what_cannot_be_read_is_refused_for_those_measures_alone() -> None:
    model = tiny_model("gpt_oss")
    lens, inputs = Lens(model), tiny_inputs(model, padded=False)
    assert lens.analyze_inputs(inputs)[0].measures == STANDARD
    lens.analyze_inputs(inputs, measures=["alti", "enc_n"])
    with pytest.raises(InputError, match="ff_n looks into the feed-forward block"):
        lens.analyze_inputs(inputs, measures=["ff_n"])
    routed = tiny_model("mixtral")
    with pytest.raises(InputError, match="a router would choose anew"):
        Lens(routed).analyze_inputs(tiny_inputs(routed, padded=False), measures=["value_zeroing"])
    with pytest.raises(InputError, match="ask for the cross sites"):
        next(Lens(tiny.make("t5")).stream_inputs(tiny.batch("t5"), measures=["ff_n"], sites=["decoder"]))


@settings(max_examples=30, deadline=None)
@given(st.sampled_from(["gelu", "silu", "tanh", "relu"]), st.booleans(), st.integers(0, 2**31))
def test_a_frozen_block_is_the_block_where_it_was_frozen(name: str, gated: bool, seed: int) -> None:
    """What is left without a part and the constants is the other part; a part scales with what is given."""
    generator = torch.Generator().manual_seed(seed)

    def drawn(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    norm = Normalization(drawn(6), drawn(6), True, 1e-5)
    stem = trees.InputLinear((norm,), drawn(6, 8), drawn(8))
    bend = trees.Activation(stem, getattr(torch.nn.functional, name), name)
    inner = trees.Gated(bend, trees.InputLinear((norm,), drawn(6, 8), drawn(8))) if gated else bend
    root = trees.Affine(inner, drawn(8, 6), drawn(6))
    x, part = drawn(5, 6), drawn(5, 6)
    frozen, every = trees.FeedForwardPass(root, x, {}), slice(None)
    first, second = (frozen.carry(frozen.vectors_at(v), every) for v in (part, x - part))
    at_stem = frozen.vectors_at(part)
    known = {stem: at_stem(stem, every) for stem in trees.input_linears(root)}
    torch.testing.assert_close(frozen.carry(frozen.rest_at(known, trees.Constants(5)), every), second)
    plain = _without_constants(root)
    bare = trees.FeedForwardPass(plain, x, {})
    torch.testing.assert_close(bare.carry(bare.vectors_at(x), every), bare.value(plain))
    torch.testing.assert_close(frozen.carry(frozen.vectors_at(-3 * part), every), -3 * first)


def _without_constants(node: Any) -> Any:
    """The same block with no bias anywhere: all that it gives is parts'."""
    inner = {name: _without_constants(x) for name, x in vars(node).items() if isinstance(x, trees.Node)}
    bare = {"bias": None} if hasattr(node, "bias") else {}
    if isinstance(node, trees.InputLinear):
        bare["steps"] = tuple(replace(step, beta=None) for step in node.steps)
    return replace(node, **inner, **bare)


# ---- rollout ---------------------------------------------------------------------------------------------------------


def stack(values: np.ndarray) -> xr.DataArray:
    return xr.DataArray(values, dims=("layer", "query", "key"), coords={"layer": np.arange(1, len(values) + 1)})


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 5), st.integers(1, 6), st.integers(0, 2**31))
def test_rollout_rows_sum_to_one_and_identity_stays(layers: int, size: int, seed: int) -> None:
    maps = np.random.default_rng(seed).random((layers, size, size)) + 1e-3
    rolled = rollout(stack(maps))
    np.testing.assert_allclose(rolled.sum("key"), 1, atol=1e-12)
    product = np.eye(size)
    for one in maps:
        product = (one / one.sum(-1, keepdims=True)) @ product
    np.testing.assert_allclose(rolled.values[-1], product, atol=1e-12)
    # Scaling a map's rows changes nothing, and neither do layers in which positions give to themselves alone.
    np.testing.assert_allclose(rollout(stack(maps * 7)).values, rolled.values, atol=1e-12)
    identity = np.broadcast_to(np.eye(size), maps.shape)
    np.testing.assert_array_equal(rollout(stack(identity)), identity)
    longer = rollout(stack(np.concatenate([identity, maps])))
    np.testing.assert_allclose(longer.values[-1], rolled.values[-1], atol=1e-12)


def test_rollout_of_attention_weights_is_the_published_one() -> None:
    lens = Lens(tiny.make("bert"), tiny.tokenizer())
    analysis = lens.analyze("the cat sat", measures=["alpha", "attnres_w"])
    product = np.eye(analysis["alpha"].sizes["key"])
    for alpha in analysis["alpha"].values:
        with_residual = alpha.mean(0) + np.eye(len(product))
        product = with_residual / with_residual.sum(-1, keepdims=True) @ product
    rolled = analysis.rollout("attnres_w")
    np.testing.assert_allclose(rolled.sel(layer=3), product, atol=1e-6)
    assert list(rolled["key_token"].values) == ["[CLS]", "the", "cat", "sat", "[SEP]"]


def test_rollout_is_of_one_sequence_onto_itself() -> None:
    _, analyses, _ = case("t5")
    for kind in ("encoder", "decoder"):
        np.testing.assert_allclose(analyses[0].site(kind).rollout("alti").sum("key"), 1, atol=1e-9)
    with pytest.raises(InputError, match="cross-attention has no rollout"):
        analyses[0].site("cross").rollout("alti")
    with pytest.raises(InputError, match="choose one"):
        analyses[0].rollout("alti")
    with pytest.raises(InputError, match="one of the maps"):
        analyses[0].site("encoder").rollout("f_norm")
    with pytest.raises(InputError, match="rollout needs maps of a sequence onto itself"):
        rollout(xr.DataArray(np.ones((2, 3, 4)), dims=("layer", "query", "key")))


def test_a_row_of_zeros_stays_zero() -> None:
    assert row_shares(np.array([[0.0, 0.0], [1.0, -3.0]])).tolist() == [[0.0, 0.0], [0.25, 0.75]]
