"""Rows compared along random directions: nothing that is right is refused, and no wrong row hides."""

from __future__ import annotations

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor

from normlens.decompose import kernels
from normlens.decompose.sketch import Sketch


@pytest.fixture(params=[False, True], ids=["plain", "compiled"], autouse=True)
def form(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both ways of computing, whatever the size."""
    if request.param:
        pytest.importorskip("numba", reason="compiled loops come with the extra 'fast'")
    monkeypatch.setattr(kernels, "usable", lambda *_: request.param)


def rows(seed: int, left: int, right: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """A map, its bias, and rows in front of it and behind it."""
    generator = torch.Generator().manual_seed(seed)
    matrix, bias = torch.randn(left, right, generator=generator), torch.randn(right, generator=generator)
    before = torch.randn(2, 5, left, generator=generator)
    return matrix, bias, before, before @ matrix + bias


any_sizes = given(st.integers(1, 40), st.integers(1, 40), st.integers(0, 10**6))
whatever_the_form = settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


@whatever_the_form
@any_sizes
def test_what_the_map_makes_has_no_gap(left: int, right: int, seed: int) -> None:
    matrix, bias, before, behind = rows(seed, left, right)
    gaps, sizes = Sketch.of(matrix, bias).gaps(before, behind)
    assert gaps.shape == sizes.shape == (2, 5)
    assert float((gaps / sizes.max()).max()) < 1e-10
    gaps, _ = Sketch.of(matrix, None).gaps(before, behind - bias)
    assert float((gaps / sizes.max()).max()) < 1e-10


@whatever_the_form
@any_sizes
def test_gaps_and_sizes_are_those_of_the_vectors_along_the_directions(left: int, right: int, seed: int) -> None:
    matrix, bias, before, behind = rows(seed, left, right)
    sketch = Sketch.of(matrix, bias)
    other = torch.randn(2, 5, right, generator=torch.Generator().manual_seed(seed + 1))
    gaps, sizes = sketch.gaps(before, other)
    directions = sketch.behind.double()
    for b in range(2):
        for n in range(5):
            gap = directions @ (behind[b, n] - other[b, n]).double()
            size = directions @ other[b, n].double()
            assert float(gaps[b, n]) == pytest.approx(float(gap @ gap), rel=1e-3, abs=1e-4)
            assert float(sizes[b, n]) == pytest.approx(float(size @ size), rel=1e-3, abs=1e-4)


@pytest.mark.parametrize("row", range(5))
def test_one_wrong_row_shows_in_its_own_place(row: int) -> None:
    matrix, bias, before, behind = rows(row, 32, 48)
    behind[1, row] *= 1.01
    gaps, sizes = Sketch.of(matrix, bias).gaps(before, behind)
    off = (gaps / sizes).sqrt()
    assert 1e-3 < float(off[1, row]) < 1e-1
    off[1, row] = 0
    assert float(off.max()) < 1e-5


def test_a_norm_along_the_directions_is_its_own_on_average() -> None:
    vectors = torch.randn(1, 4000, 64, generator=torch.Generator().manual_seed(3))
    _, sizes = Sketch.of(torch.eye(64), None).gaps(vectors, vectors)
    assert float(sizes.mean() / vectors.square().sum(-1).mean()) == pytest.approx(1.0, abs=0.25)
