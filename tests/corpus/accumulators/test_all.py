"""What holds for every accumulator: any split agrees, a result of nothing is an error, unlike parts do not merge."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from normlens.corpus.accumulators.histogram import NORM_BINS, Histogram
from normlens.corpus.accumulators.moments import Moments, Pearson, RelativePositionMeans
from normlens.corpus.accumulators.sample import UniformSample
from normlens.corpus.accumulators.spearman_binned import BinnedSpearman
from normlens.corpus.accumulators.spearman_pairs import DiskSpearman, DistinctPairSpearman
from normlens.errors import InputError

from .tester import SMALL_BINS, assert_any_split_agrees


@dataclass(frozen=True)
class Case:
    """An accumulator, data for its `update`, and all that its `result` says."""

    make: Callable[[], Any]
    chunks: list[tuple[Any, ...]]
    result: Callable[[Any], Any]
    unlike: Callable[[], Any] | None = None  # one that must not be merged into it


def _pairs(seed: int, sizes: tuple[int, ...]) -> list[tuple[np.ndarray, ...]]:
    rng = np.random.default_rng(seed)
    return [
        (rng.lognormal(size=n).astype(np.float32), rng.integers(1, 9, n).astype(np.float32), rng.integers(0, 2, n))
        for n in sizes
    ]


def _rhos(ranks: Any) -> list[float]:
    found = [ranks.result([0]), ranks.result([1]), ranks.result([0, 1])]
    return [number for rho in found for number in (rho.rho, rho.bound, rho.count)]


def _rhos_and_bits(ranks: DistinctPairSpearman) -> list[float]:
    return [*_rhos(ranks), ranks.dropped]


def _cases() -> dict[str, Case]:
    rng = np.random.default_rng(1)
    values = [rng.lognormal(size=rng.integers(1, 40)) for _ in range(6)]
    sides = [rng.normal(loc=[[3.0], [-1.0]], size=(2, n)) for n in (5, 17, 3, 30)]
    maps = [rng.random((2, 3, n, n)).astype(np.float32) for n in (1, 2, 5, 9)]
    samples = [{"priority": rng.random(n), "value": rng.random(n)} for n in (50, 3, 200, 1)]
    return {
        "moments": Case(
            lambda: Moments((1,)),
            [(part[None],) for part in values],
            lambda moments: vars(moments.result((0,))),
            lambda: Moments((2,)),
        ),
        "pearson": Case(
            lambda: Pearson((1,)),
            [(x[None], y[None]) for x, y in sides],
            lambda pearson: pearson.result((0,)),
            lambda: Pearson((2,)),
        ),
        "relative position": Case(
            lambda: RelativePositionMeans(3, 3),
            [(part,) for part in maps],
            lambda means: [means.result(row) for row in range(3)],
            lambda: RelativePositionMeans(3, 4),
        ),
        "histogram": Case(
            lambda: Histogram(NORM_BINS.coarse, 2),
            [(np.ones(len(part), dtype=int), NORM_BINS.coarse.find(part)) for part in values],
            lambda histogram: histogram.result([0, 1]).counts,
            lambda: Histogram(NORM_BINS.fine, 2),
        ),
        "sample": Case(
            lambda: UniformSample(20),
            [(part,) for part in samples],
            lambda sample: sample.result(),
            lambda: UniformSample(21),
        ),
        "spearman in bins": Case(
            lambda: BinnedSpearman(SMALL_BINS, SMALL_BINS, 2),
            _pairs(10, (3, 40, 7, 100)),
            _rhos,
            lambda: BinnedSpearman(SMALL_BINS, NORM_BINS, 2),
        ),
        "spearman of distinct pairs": Case(
            DistinctPairSpearman, _pairs(11, (9, 200, 50)), _rhos_and_bits, lambda: DistinctPairSpearman(64)
        ),
        "spearman of too many distinct pairs": Case(
            lambda: DistinctPairSpearman(64), _pairs(11, (9, 200, 50)), _rhos_and_bits, DistinctPairSpearman
        ),
        "spearman of pairs on disk": Case(
            lambda: DiskSpearman(Path(tempfile.mkdtemp())), _pairs(12, (3, 40, 7, 100)), _rhos
        ),
    }


CASES = _cases()


@pytest.fixture(autouse=True)
def temporary_files_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))


@pytest.mark.parametrize("name", CASES)
def test_any_split_agrees(name: str) -> None:
    case = CASES[name]
    assert_any_split_agrees(case.make, case.chunks, case.result)


@pytest.mark.parametrize("name", CASES)
def test_a_result_of_nothing_is_an_error(name: str) -> None:
    with pytest.raises(InputError):
        CASES[name].result(CASES[name].make())


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if case.unlike is not None])
def test_unlike_parts_do_not_merge(name: str) -> None:
    case = CASES[name]
    assert case.unlike is not None
    with pytest.raises(InputError, match="merge"):
        case.make().merge(case.unlike())
