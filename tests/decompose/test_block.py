"""Laws of the decomposition on random blocks, with the parts written out as vectors in float64."""

from __future__ import annotations

from dataclasses import replace

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from normlens.decompose.block import Block, BlockTensors, projections_of
from normlens.decompose.pairs import PLACES, Needs, PairWork
from normlens.decompose.steps import Normalizing, Scaling, apply
from normlens.measures import MAPS, mixing_ratio

BATCH = 2


@st.composite
def random_blocks(draw: st.DrawFn, dtype: torch.dtype = torch.float64) -> BlockTensors:
    """A block that could have been captured: everything observed follows from weights, values and inputs."""
    groups, per_group = draw(st.integers(1, 3)), draw(st.integers(1, 3))
    heads, width, model = groups * per_group, draw(st.integers(1, 5)), draw(st.integers(2, 9))
    queries = draw(st.integers(1, 6))
    crossing = draw(st.booleans())
    keys = draw(st.integers(1, 6)) if crossing else queries
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**20)))

    def random(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    def norm() -> Normalizing:
        gamma = random(model) if draw(st.booleans()) else None
        return Normalizing(gamma, random(model) if draw(st.booleans()) else None, draw(st.booleans()), 1e-3)

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
        arriving = apply(step, arriving)
    residual = random(BATCH, queries, model)
    others = random(BATCH, queries, model) if draw(st.booleans()) else None
    total = arriving + residual + (0 if others is None else others)
    projections = projections_of(weight, branch, post)
    everything = Needs(True, True, True, True, True, frozenset(PLACES))
    work = PairWork(values, queries, projections, everything, torch.zeros(1, 3, dtype=torch.long))
    half = queries // 2  # the weights arrive in two blocks of queries
    if half:
        work.feed(alpha[:, :, :half], 0)
    work.feed(alpha[:, :, half:], half)
    return BlockTensors(
        pairs=work.result(mixed.transpose(1, 2)),
        values=values,
        projections=projections,
        bias=bias,
        projected=projected,
        branch=branch,
        residual=residual,
        others=others,
        total=total,
        norm=post,
        normalized=None if post is None else apply(post, total),
        x=random(BATCH, keys, model),
        self_attends=not crossing,
    )


def materialized(t: BlockTensors, place: str) -> tuple[Tensor, Tensor]:
    """Every part as a vector (batch query key model) and every residual, one step after the other."""
    weight = t.projections["attn"].weight
    values = t.values.repeat_interleave(weight.shape[0] // t.values.shape[1], 1)
    parts = torch.einsum("bhqk,bhkc,hcd->bqkd", t.pairs.alpha, values, weight)
    if place == "attn":
        return parts, torch.zeros_like(t.residual)
    y = t.projected
    for step in t.branch:
        parts, y = _carried(step, parts, y), apply(step, y)
    residual = t.residual
    if place == "ln" and t.norm is not None:
        parts = _carried(t.norm, parts, t.total)
        residual = _carried(t.norm, residual.unsqueeze(2), t.total).squeeze(2)
    if t.self_attends:
        for i in range(parts.shape[1]):
            parts[:, i, i] += residual[:, i]
    return parts, residual


def _carried(step: Normalizing | Scaling, parts: Tensor, y: Tensor) -> Tensor:
    if isinstance(step, Scaling):
        return parts * step.factor
    if step.centred:
        parts, y = parts - parts.mean(-1, keepdim=True), y - y.mean(-1, keepdim=True)
    s = ((y**2).mean(-1) + step.eps).sqrt()
    parts = parts / s[:, :, None, None]
    return parts if step.gamma is None else parts * step.gamma


@settings(max_examples=60, deadline=None)
@given(random_blocks())
def test_parts_and_biases_rebuild_every_place(t: BlockTensors) -> None:
    block = Block(t)
    for place in PLACES:
        torch.testing.assert_close(
            block.rebuilt(place, block.project(t.pairs.mixed)), block.observed[place], rtol=1e-9, atol=1e-9
        )


@settings(max_examples=60, deadline=None)
@given(random_blocks())
def test_norms_are_those_of_the_vectors(t: BlockTensors) -> None:
    block = Block(t)
    for place in PLACES:
        parts, _ = materialized(t, place)
        torch.testing.assert_close(block.part_norms(place), parts.norm(dim=-1), rtol=1e-7, atol=1e-7)


@settings(max_examples=60, deadline=None)
@given(random_blocks())
def test_context_and_self_are_sums_of_vectors(t: BlockTensors) -> None:
    block = Block(t)
    for place in PLACES:
        parts, residual = materialized(t, place)
        own = parts.diagonal(dim1=1, dim2=2).transpose(1, 2) if t.self_attends else residual
        context = parts.sum(2) - own if t.self_attends else parts.sum(2)
        torch.testing.assert_close(block.self_vectors(place), own, rtol=1e-8, atol=1e-8)
        torch.testing.assert_close(block.context_vectors(place), context, rtol=1e-8, atol=1e-8)


@settings(max_examples=60, deadline=None)
@given(random_blocks())
def test_mixing_ratios_are_shares(t: BlockTensors) -> None:
    for name in MAPS:
        if t.self_attends or name not in ("attn_w", "attn_n"):
            ratio = mixing_ratio(Block(t), name)
            assert bool(((ratio >= 0) & (ratio <= 1)).all()), name


@settings(max_examples=40, deadline=None)
@given(random_blocks())
def test_all_positions_together_leave_no_context(t: BlockTensors) -> None:
    if not t.self_attends:
        return
    together = torch.ones(t.pairs.alpha.shape[-2:], dtype=torch.bool)
    block = Block(replace(t, together=together))
    for place in PLACES:
        assert float(block.context_vectors(place).norm()) < 1e-8
    torch.testing.assert_close(mixing_ratio(block, "attn_w"), torch.zeros_like(t.pairs.alpha[:, 0, :, 0]))
