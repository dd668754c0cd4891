"""The Gram form against vectors that are written out, also where heads cancel almost completely."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from normlens.decompose import heads
from normlens.decompose.heads import head_gram, repeat_values, split_heads, summed_norm, vector_norms


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
def test_cancelling_heads(residue: float) -> None:
    """Pairs of heads whose vectors are opposite up to `residue`: entry by entry, not only against the largest one."""
    generator = torch.Generator().manual_seed(int(1 / residue))
    weight = torch.randn(4, 6, 32, generator=generator)
    weight[1], weight[3] = weight[0], weight[2]
    values = torch.randn(2, 4, 7, 6, generator=generator)
    values[:, 1] = -values[:, 0] + residue * torch.randn(2, 7, 6, generator=generator)
    values[:, 3] = -values[:, 2] + residue * torch.randn(2, 7, 6, generator=generator)
    alpha = torch.rand(2, 1, 5, 7, generator=generator).expand(2, 4, 5, 7).clone()
    found = summed_norm(alpha, head_gram(values, weight), values, weight)
    assert relative(found, explicit(alpha, values, weight)) < 1e-5


def test_exact_cancellation_is_zero() -> None:
    weight, values = torch.randn(1, 3, 8).repeat(2, 1, 1), torch.randn(1, 1, 4, 3).repeat(1, 2, 1, 1)
    values[:, 1].neg_()
    alpha = torch.rand(1, 1, 3, 4).repeat(1, 2, 1, 1)
    assert float(summed_norm(alpha, head_gram(values, weight), values, weight).abs().max()) == 0.0


@settings(max_examples=40, deadline=None)
@given(
    st.integers(1, 6), st.integers(1, 4), st.integers(1, 5), st.integers(1, 5), st.integers(0, 10**6), st.floats(-6, 6)
)
def test_random_heads_of_any_size(h: int, width: int, queries: int, keys: int, seed: int, exponent: float) -> None:
    generator = torch.Generator().manual_seed(seed)
    weight = torch.randn(h, width, 9, generator=generator) * 10**exponent
    values = torch.randn(2, h, keys, width, generator=generator)
    alpha = torch.randn(2, h, queries, keys, generator=generator).softmax(-1)
    gram = head_gram(values, weight)
    assert relative(summed_norm(alpha, gram, values, weight), explicit(alpha, values, weight)) < 1e-5
    f = torch.einsum("bhkc,hcd->bhkd", values.double(), weight.double())
    assert relative(vector_norms(gram), f.norm(dim=-1)) < 1e-5


def test_blocks_of_keys_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    generator = torch.Generator().manual_seed(0)
    weight, values = torch.randn(3, 4, 10, generator=generator), torch.randn(2, 3, 11, 4, generator=generator)
    whole = head_gram(values, weight)
    monkeypatch.setattr(heads, "BLOCK_NUMBERS", 2 * 3 * 10 * 2)  # two keys at a time, the last block smaller
    torch.testing.assert_close(head_gram(values, weight), whole)


def test_heads_are_consecutive_rows_and_groups_stand_side_by_side() -> None:
    weight = torch.arange(12.0).view(6, 2)
    assert split_heads(weight, 3)[1].tolist() == [[4, 5], [6, 7]]
    values = torch.arange(2.0).view(1, 2, 1, 1)
    assert repeat_values(values, 6).flatten().tolist() == [0, 0, 0, 1, 1, 1]
