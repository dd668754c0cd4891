"""Laws of every accumulator: any division agrees, and unlike states do not merge."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from scipy import stats

from normlens.corpus.correlations import Products
from normlens.corpus.ranks import BinnedRanks, DistinctPairs
from normlens.corpus.samples import UniformSample
from normlens.corpus.statistics import Moments
from normlens.errors import InputError

from .tester import SMALL_BINS, assert_any_split_agrees


class UpdatedMoments(Moments):
    """Moments with an `update` for plain values."""

    def update(self, values: np.ndarray) -> None:
        self.add(Moments.of_values(values))


class UpdatedProducts(Products):
    """Products with an `update` for plain values."""

    def update(self, x: np.ndarray, y: np.ndarray) -> None:
        count = np.full(x.shape[:-1], x.shape[-1])
        self.add(Products.of_sums([count, *(part.sum(-1) for part in (x, y, x * x, y * y, x * y))]))


@dataclass(frozen=True)
class Case:
    """An accumulator, data for its `update`, and all that its result says."""

    make: Callable[[], Any]
    chunks: list[tuple[Any, ...]]
    result: Callable[[Any], Any]


def _pairs(seed: int, sizes: tuple[int, ...]) -> list[tuple[np.ndarray, ...]]:
    rng = np.random.default_rng(seed)
    return [
        (rng.lognormal(size=n).astype(np.float32), rng.integers(1, 9, n).astype(np.float32), rng.integers(0, 2, n))
        for n in sizes
    ]


def _rhos(ranks: Any) -> list[float]:
    found = [ranks.result([0]), ranks.result([1]), ranks.result([0, 1])]
    return [number for rho in found for number in (rho.rho, rho.bound, rho.count)]


def _rhos_and_bits(ranks: DistinctPairs) -> list[float]:
    return [*_rhos(ranks), ranks.dropped]


def _cases() -> dict[str, Case]:
    rng = np.random.default_rng(1)
    values = [rng.lognormal(size=rng.integers(1, 40)) for _ in range(6)]
    sides = [rng.normal(loc=[[3.0], [-1.0]], size=(2, n)) for n in (5, 17, 3, 30)]
    samples = [{"priority": rng.random(n), "value": rng.random(n)} for n in (50, 3, 200, 1)]
    return {
        "moments": Case(lambda: UpdatedMoments((1,)), [(part[None],) for part in values], lambda m: m.summary()),
        "products": Case(lambda: UpdatedProducts((1,)), [(x[None], y[None]) for x, y in sides], lambda p: p.pearson()),
        "sample": Case(lambda: UniformSample(20), [(part,) for part in samples], lambda sample: sample.state()),
        "ranks in bins": Case(lambda: BinnedRanks(SMALL_BINS, SMALL_BINS, 2), _pairs(10, (3, 40, 7, 100)), _rhos),
        "ranks of distinct pairs": Case(DistinctPairs, _pairs(11, (9, 200, 50)), _rhos_and_bits),
        "ranks of too many distinct pairs": Case(lambda: DistinctPairs(64), _pairs(11, (9, 200, 50)), _rhos_and_bits),
    }


CASES = _cases()


@pytest.mark.parametrize("name", CASES)
def test_any_split_agrees(name: str) -> None:
    case = CASES[name]
    assert_any_split_agrees(case.make, case.chunks, case.result)


@pytest.mark.parametrize("make", [CASES["ranks in bins"].make, DistinctPairs])
def test_a_correlation_of_nothing_is_an_error(make) -> None:
    with pytest.raises(InputError, match="at least two pairs"):
        make().result([0])


def test_cells_of_another_shape_do_not_merge() -> None:
    for kind in (Moments, Products):
        with pytest.raises(InputError, match="shape"):
            kind((1,)).merge(kind((2,)).state())


def test_moments_agree_with_numpy() -> None:
    rng = np.random.default_rng(1)
    data = [rng.lognormal(size=rng.integers(1, 40)) for _ in range(6)]
    moments = UpdatedMoments((1,))
    for chunk in data:
        moments.update(chunk[None])
    whole = np.concatenate(data)
    found = {name: float(value[0]) for name, value in moments.summary().items()}
    expected = {
        "count": len(whole), "mean": whole.mean(), "variance": whole.var(), "sd": whole.std(),
        "cv": whole.std() / whole.mean(), "min": whole.min(), "max": whole.max(),
    }  # fmt: skip
    assert found == pytest.approx(expected, rel=1e-12)


def test_moments_of_numbers_that_hardly_vary() -> None:
    values = 1e6 + np.random.default_rng(0).normal(size=1000)
    moments = UpdatedMoments((1,))
    for part in np.array_split(values, 7):
        moments.update(part[None])
    assert moments.summary()["variance"][0] == pytest.approx(values.var(), rel=1e-9)


def test_pearson_agrees_with_scipy() -> None:
    rng = np.random.default_rng(4)
    data = [rng.normal(loc=[[3.0], [-1.0]], size=(2, n)) for n in (5, 17, 3, 30)]
    products = UpdatedProducts((1,))
    for x, y in data:
        products.update(x[None], (x + y)[None])
    x, y = (np.concatenate(side) for side in zip(*data, strict=True))
    assert products.pearson()[0] == pytest.approx(stats.pearsonr(x, x + y).statistic, rel=1e-12)
    assert np.isnan(Products((1,)).pearson()).all()
