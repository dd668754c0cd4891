"""The Gram form against vectors that are written out, also where heads cancel almost completely."""

from __future__ import annotations

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor

from normlens.decompose.grams import Grams, f_norms, repeat_values, split_heads
from normlens.decompose.steps import Normalization, Scaling


@pytest.fixture(params=[False, True], ids=["plain", "compiled"])
def compiled(request: pytest.FixtureRequest) -> bool:
    """Both ways of computing, whatever the size."""
    if request.param:
        pytest.importorskip("numba", reason="compiled loops come with the extra 'fast'")
    return bool(request.param)


def summed(alpha: Tensor, values: Tensor, weight: Tensor, compiled: bool) -> Tensor:
    return grams_and_norms(alpha, values, weight, compiled)[1]


def grams_and_norms(alpha: Tensor, values: Tensor, weight: Tensor, compiled: bool) -> tuple[Grams, Tensor]:
    grams, out = Grams(values, weight, [()], compiled=compiled), alpha.new_empty(1, alpha.shape[0], *alpha.shape[2:])
    grams.extend_to(values.shape[2], 0)
    grams.norms(alpha, 0, out)
    return grams, out[0]


def explicit(alpha: Tensor, values: Tensor, weight: Tensor) -> Tensor:
    """`‖sum_h alpha_h f_h‖` in float64, pair by pair."""
    batch, _, queries, keys = alpha.shape
    out = torch.zeros(batch, queries, keys, dtype=torch.float64)
    for b in range(batch):
        for i in range(queries):
            for j in range(keys):
                total = torch.zeros(weight.shape[-1], dtype=torch.float64)
                for h in range(alpha.shape[1]):
                    total += alpha[b, h, i, j].double() * (values[b, h, j].double() @ weight[h].double())
                out[b, i, j] = total.norm()
    return out


def relative(found: Tensor, expected: Tensor) -> float:
    return float(((found.double() - expected).abs() / expected.clamp_min(1e-30)).max())


@pytest.mark.parametrize("residue", [1.0, 1e-1, 3e-2, 1e-2, 1e-3, 1e-4, 1e-5, 1e-6])
def test_cancelling_heads(residue: float, compiled: bool) -> None:
    """Pairs of heads whose vectors are opposite up to `residue`: entry by entry, not only against the largest one."""
    generator = torch.Generator().manual_seed(int(1 / residue))
    weight = torch.randn(4, 6, 32, generator=generator)
    weight[1], weight[3] = weight[0], weight[2]
    values = torch.randn(2, 4, 7, 6, generator=generator)
    values[:, 1] = -values[:, 0] + residue * torch.randn(2, 7, 6, generator=generator)
    values[:, 3] = -values[:, 2] + residue * torch.randn(2, 7, 6, generator=generator)
    alpha = torch.rand(2, 1, 5, 7, generator=generator).expand(2, 4, 5, 7).clone()
    assert relative(summed(alpha, values, weight, compiled), explicit(alpha, values, weight)) < 1e-5


def test_exact_cancellation_leaves_float64_rounding(compiled: bool) -> None:
    weight, values = torch.randn(1, 3, 8).repeat(2, 1, 1), torch.randn(1, 1, 4, 3).repeat(1, 2, 1, 1)
    values[:, 1].neg_()
    alpha = torch.rand(1, 1, 3, 4).repeat(1, 2, 1, 1)
    assert float(summed(alpha, values, weight, compiled).abs().max()) < 1e-13


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.integers(1, 6), st.integers(1, 4), st.integers(1, 5), st.integers(1, 5), st.integers(0, 10**6), st.floats(-6, 6)
)
def test_random_heads_of_any_size(
    compiled: bool, h: int, width: int, queries: int, keys: int, seed: int, exponent: float
) -> None:
    generator = torch.Generator().manual_seed(seed)
    weight = torch.randn(h, width, 9, generator=generator) * 10**exponent
    values = torch.randn(2, h, keys, width, generator=generator)
    alpha = torch.randn(2, h, queries, keys, generator=generator).softmax(-1)
    grams, norms = grams_and_norms(alpha, values, weight, compiled)
    assert relative(norms, explicit(alpha, values, weight)) < 1e-5
    f = torch.einsum("bhkc,hcd->bhkd", values.double(), weight.double())
    assert relative(grams.lengths(0), f.norm(dim=-1)) < 1e-5
    assert relative(f_norms(values, weight), f.norm(dim=-1)) < 1e-3  # a product more: small ones lose some digits


@pytest.mark.parametrize("heads", [1, 3, 4, 5, 8, 11, 12, 16])
@pytest.mark.parametrize(("queries", "keys"), [(1, 127), (16, 128), (17, 129), (33, 300)])
def test_more_queries_and_keys_than_are_worked_out_at_a_time(
    heads: int, queries: int, keys: int, compiled: bool
) -> None:
    """Queries from a later block, keys that end inside a tile, and a pair in the last tile whose digits are lost."""
    generator = torch.Generator().manual_seed(heads * keys)
    weight = torch.randn(heads, 3, 9, generator=generator)
    values = torch.randn(2, heads, keys, 3, generator=generator)
    alpha = torch.randn(2, heads, queries, keys, generator=generator).softmax(-1)
    if heads > 1:  # the last key's heads cancel but for the first one's small part
        weight[:2] = weight[0]
        alpha[1, :, -1, -1] = 0
        alpha[1, :2, -1, -1] = 1
        values[1, 1, -1] = -values[1, 0, -1] * (1 - 1e-4)
    out = torch.full((1, 2, queries + 3, keys), torch.nan)
    grams = Grams(values, weight, [()], compiled=compiled)
    grams.extend_to(keys, 0)
    grams.norms(alpha, 2, out)
    parts = torch.einsum("bhqk,bhkc,hcd->bqkd", alpha.double(), values.double(), weight.double())
    assert relative(out[0, :, 2:-1], parts.norm(dim=-1)) < 1e-5
    assert bool(out[0, :, [0, 1, -1]].isnan().all())


@pytest.mark.parametrize("heads", [1, 2, 4, 5, 12])
def test_every_stage_and_the_own_part_come_from_the_same_vectors(heads: int, compiled: bool) -> None:
    """Two reaches of keys in a batch of two; steps that are one, and steps that are more than one."""
    generator = torch.Generator().manual_seed(heads)

    def random(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator)

    weight, values, alpha = random(heads, 3, 9), random(2, heads, 7, 3), random(2, heads, 7, 7).softmax(-1)
    post, scale = Normalization(random(9), None, True, 1e-5), Scaling(random(9))
    stages = [(), (Scaling(-0.7),), (scale,), (post,), (Normalization(None, None, False, 1e-5),), (scale, post)]
    for steps in (*([stage] for stage in stages), stages[:-1]):
        diagonal, out = alpha.diagonal(dim1=2, dim2=3).contiguous(), torch.empty(len(steps), 2, 7, 7)
        grams = Grams(values, weight, steps, diagonal, compiled=compiled)
        grams.extend_to(4, 4)
        grams.extend_to(7, 7)
        grams.norms(alpha, 0, out)
        f = torch.einsum("bhkc,hcd->bkhd", values.double(), weight.double())
        assert grams.late == 7
        assert grams.own is not None
        torch.testing.assert_close(
            grams.own.double(), torch.einsum("bhk,bkhd->bkd", diagonal.double(), f), rtol=1e-5, atol=1e-5
        )
        parts = torch.einsum("bhqk,bkhd->bqkd", alpha.double(), f)
        for stage, norms in zip(steps, out, strict=True):
            expected = parts
            for step in stage:
                if isinstance(step, Normalization) and step.centred:
                    expected = expected - expected.mean(-1, keepdim=True)
                factor = step.factor if isinstance(step, Scaling) else step.weight
                expected = expected if factor is None else expected * factor
            assert relative(norms, expected.norm(dim=-1)) < 1e-5


def test_heads_are_consecutive_rows_and_groups_stand_side_by_side() -> None:
    weight = torch.arange(12.0).view(6, 2)
    assert split_heads(weight, 3)[1].tolist() == [[4, 5], [6, 7]]
    values = torch.arange(2.0).view(1, 2, 1, 1)
    assert repeat_values(values, 6).flatten().tolist() == [0, 0, 0, 1, 1, 1]


def test_axes_are_checked_while_testing() -> None:
    """The run-time checks are on: a weight without its width axis is refused by its annotation."""
    from jaxtyping import TypeCheckError

    with pytest.raises(TypeCheckError):
        split_heads(torch.zeros(6), 3)
