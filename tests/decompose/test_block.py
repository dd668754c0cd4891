"""Laws of the decomposition on random blocks, with the parts written out as vectors in float64."""

from __future__ import annotations

from dataclasses import replace

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from normlens.decompose.block import Block, stage_steps
from normlens.decompose.pairs import PairCollector
from normlens.decompose.stages import STAGES, PairRequest
from normlens.decompose.steps import Normalization, Scaling, applied
from normlens.measures.table import BLOCK_MAPS, MEASURES, mixing_ratio

BATCH = 2


@st.composite
def random_blocks(draw: st.DrawFn, dtype: torch.dtype = torch.float64) -> Block:
    """A block that could have been captured: everything observed follows from weights, values and inputs."""
    groups, per_group = draw(st.integers(1, 3)), draw(st.integers(1, 3))
    heads, width, model = groups * per_group, draw(st.integers(1, 5)), draw(st.integers(2, 9))
    queries = draw(st.integers(1, 6))
    crossing = draw(st.booleans())
    keys = draw(st.integers(1, 6)) if crossing else queries
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**20)))

    def random(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    def norm() -> Normalization:
        gamma = random(model) if draw(st.booleans()) else None
        return Normalization(gamma, random(model) if draw(st.booleans()) else None, draw(st.booleans()), 1e-3)

    options = {"none": (), "norm": (norm(),), "scale": (Scaling(-0.7),), "both": (Scaling(random(model)), norm())}
    branch = options[draw(st.sampled_from(sorted(options)))]
    post = norm() if draw(st.booleans()) else None
    alpha = random(BATCH, heads, queries, keys).softmax(-1)
    if draw(st.booleans()):
        alpha = alpha * 0.8  # an attention sink takes a share
    values, weight = random(BATCH, groups, keys, width), random(heads, width, model)
    bias = random(model) if draw(st.booleans()) else None
    mixed = alpha @ values.repeat_interleave(per_group, 1)
    projected = torch.einsum("bhqc,hcd->bqd", mixed, weight) + (0 if bias is None else bias)
    arriving = projected
    for step in branch:
        arriving = applied(step, arriving)
    residual = random(BATCH, queries, model)
    others = random(BATCH, queries, model) if draw(st.booleans()) else None
    total = arriving + residual + (0 if others is None else others)
    everything = PairRequest(True, True, True, not crossing, True, frozenset(STAGES))
    samples = ((0, 0, 0),)
    work = PairCollector(values, queries, weight, stage_steps(branch, post), everything, samples)
    half = queries // 2  # the weights arrive in two blocks of queries
    if half:
        work.feed(alpha[:, :, :half], 0)
    work.feed(alpha[:, :, half:], half)
    return Block(
        pairs=work.result(mixed.transpose(1, 2)),
        values=values,
        w_o=weight,
        bias=bias,
        projected=projected,
        branch=branch,
        residual=residual,
        others=others,
        total=total,
        norm=post,
        normalized=None if post is None else applied(post, total),
        x=random(BATCH, keys, model),
        self_attends=not crossing,
    )


def materialized(t: Block, stage: str) -> tuple[Tensor, Tensor]:
    """Every part as a vector (batch query key model) and every residual, one step after the other."""
    weight = t.w_o
    values = t.values.repeat_interleave(weight.shape[0] // t.values.shape[1], 1)
    parts = torch.einsum("bhqk,bhkc,hcd->bqkd", t.pairs.alpha, values, weight)
    if stage == "attn":
        return parts, torch.zeros_like(t.residual)
    y = t.projected
    for step in t.branch:
        parts, y = _carried(step, parts, y), applied(step, y)
    residual = t.residual
    if stage == "ln" and t.norm is not None:
        parts = _carried(t.norm, parts, t.total)
        residual = _carried(t.norm, residual.unsqueeze(2), t.total).squeeze(2)
    if t.self_attends:
        for i in range(parts.shape[1]):
            parts[:, i, i] += residual[:, i]
    return parts, residual


def _carried(step: Normalization | Scaling, parts: Tensor, y: Tensor) -> Tensor:
    if isinstance(step, Scaling):
        return parts * step.factor
    if step.centred:
        parts, y = parts - parts.mean(-1, keepdim=True), y - y.mean(-1, keepdim=True)
    s = ((y**2).mean(-1) + step.eps).sqrt()
    parts = parts / s[:, :, None, None]
    return parts if step.weight is None else parts * step.weight


@settings(max_examples=60, deadline=None)
@given(random_blocks())
def test_parts_and_biases_rebuild_every_stage(t: Block) -> None:
    """And what is off at one stage shows at that stage, not at the one before."""
    gaps = t.gaps()
    assert len(gaps) == (2 if t.norm is None else 3)
    assert bool((gaps[:, 0] <= 1e-9 * (1 + gaps[:, 1])).all())
    for stage, name in enumerate(("projected", "total", "normalized")[: len(gaps)]):
        wrong = replace(t, **{name: getattr(t, name) + 1.0}).gaps()
        assert bool((wrong[stage, 0] > 1e-3).all())
        assert bool((wrong[:stage, 0] <= 1e-9 * (1 + wrong[:stage, 1])).all())


@settings(max_examples=60, deadline=None)
@given(random_blocks())
def test_norms_are_those_of_the_vectors(t: Block) -> None:
    block = t
    for stage in STAGES:
        parts, _ = materialized(t, stage)
        torch.testing.assert_close(block.part_norms(stage), parts.norm(dim=-1), rtol=1e-7, atol=1e-7)


@settings(max_examples=60, deadline=None)
@given(random_blocks())
def test_context_and_self_are_sums_of_vectors(t: Block) -> None:
    block = t
    for stage in STAGES:
        parts, residual = materialized(t, stage)
        own = parts.diagonal(dim1=1, dim2=2).transpose(1, 2) if t.self_attends else residual
        context = parts.sum(2) - own if t.self_attends else parts.sum(2)
        torch.testing.assert_close(block.self_vectors(stage), own, rtol=1e-8, atol=1e-8)
        torch.testing.assert_close(block.context_vectors(stage), context, rtol=1e-8, atol=1e-8)


@settings(max_examples=60, deadline=None)
@given(random_blocks())
def test_mixing_ratios_are_shares(t: Block) -> None:
    for name in BLOCK_MAPS:
        if t.self_attends or MEASURES[name].crosses:
            ratio = mixing_ratio(t, name)
            assert bool(((ratio >= 0) & (ratio <= 1)).all()), name


@settings(max_examples=40, deadline=None)
@given(random_blocks())
def test_all_positions_as_one_word_leave_no_context(t: Block) -> None:
    if not t.self_attends:
        return
    same_word = torch.ones(t.pairs.alpha.shape[-2:], dtype=torch.bool)
    block = replace(t, same_word=same_word)
    for stage in STAGES:
        assert float(block.context_vectors(stage).norm()) < 1e-8
    torch.testing.assert_close(mixing_ratio(block, "attn_w"), torch.zeros_like(t.pairs.alpha[:, 0, :, 0]))
