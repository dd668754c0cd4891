"""Rows compared along random directions: nothing that is right is refused, and no wrong row hides."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from normlens.decompose.block import RandomCheck


def rows(seed: int, left: int, right: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """A map, its bias, and rows before it and after it."""
    generator = torch.Generator().manual_seed(seed)
    matrix, bias = torch.randn(left, right, generator=generator), torch.randn(right, generator=generator)
    before = torch.randn(2, 5, left, generator=generator)
    return matrix, bias, before, before @ matrix + bias


any_sizes = given(st.integers(1, 40), st.integers(1, 40), st.integers(0, 10**6))
few = settings(max_examples=25, deadline=None)


@few
@any_sizes
def test_what_the_map_makes_has_no_gap(left: int, right: int, seed: int) -> None:
    matrix, bias, before, after = rows(seed, left, right)
    gaps, sizes = RandomCheck.of(matrix, bias).gaps(before, after)
    assert gaps.shape == sizes.shape == (2, 5)
    assert float((gaps / sizes.max()).max()) < 1e-5  # norms, of which the squares are below 1e-10
    gaps, _ = RandomCheck.of(matrix, None).gaps(before, after - bias)
    assert float((gaps / sizes.max()).max()) < 1e-5


@few
@any_sizes
def test_gaps_and_sizes_are_those_of_the_vectors_along_the_directions(left: int, right: int, seed: int) -> None:
    matrix, bias, before, after = rows(seed, left, right)
    check = RandomCheck.of(matrix, bias)
    other = torch.randn(2, 5, right, generator=torch.Generator().manual_seed(seed + 1))
    gaps, sizes = check.gaps(before, other)
    directions = check.after.double()
    for b in range(2):
        for n in range(5):
            gap = directions @ (after[b, n] - other[b, n]).double()
            size = directions @ other[b, n].double()
            assert float(gaps[b, n]) == pytest.approx(float(gap.norm()), rel=1e-3, abs=1e-2)
            assert float(sizes[b, n]) == pytest.approx(float(size.norm()), rel=1e-3, abs=1e-2)


@pytest.mark.parametrize("row", range(5))
def test_one_wrong_row_shows_in_its_own_place(row: int) -> None:
    matrix, bias, before, after = rows(row, 32, 48)
    after[1, row] *= 1.01
    gaps, sizes = RandomCheck.of(matrix, bias).gaps(before, after)
    off = gaps / sizes
    assert 1e-3 < float(off[1, row]) < 1e-1
    off[1, row] = 0
    assert float(off.max()) < 1e-5


def test_a_norm_along_the_directions_is_its_own_on_average() -> None:
    vectors = torch.randn(1, 4000, 64, generator=torch.Generator().manual_seed(3))
    _, sizes = RandomCheck.of(torch.eye(64), None).gaps(vectors, vectors)
    assert float(sizes.square().mean() / vectors.square().sum(-1).mean()) == pytest.approx(1.0, abs=0.25)
