"""The statistics against numpy and scipy, and their merging against each other."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from normlens.corpus.exact import Spill, exact_rho
from normlens.corpus.grid import CONTRIBUTIONS, NORMS, WEIGHTS, Grid, Scale
from normlens.corpus.histogram import Histogram
from normlens.corpus.moments import Moments
from normlens.corpus.pairs import PairCounts
from normlens.corpus.pearson import Pearson
from normlens.corpus.ranks import CrossedCounts
from normlens.corpus.relative import RelativeMeans
from normlens.corpus.sample import Sample, lowest
from normlens.errors import InputError

from .tester import assert_merges

#: Small grids keep these tests quick; the method does not depend on how fine they are.
SMALL = Scale(fine=Grid(((-8, -2, 3), (-2, 4, 6))), coarse=Grid(((-8, -2, 0), (-2, 4, 2))))


def chunks(seed: int, count: int = 6) -> list[np.ndarray]:
    rng = np.random.default_rng(seed)
    return [rng.lognormal(size=rng.integers(1, 40)) for _ in range(count)]


# ---- grids -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("scale", [WEIGHTS, NORMS, CONTRIBUTIONS, SMALL])
def test_bins_are_where_the_edges_say(scale: Scale) -> None:
    rng = np.random.default_rng(0)
    values = np.concatenate(
        [[0.0, -0.0, -1.0, 1.0, 1e-40, 3e38], np.exp2(rng.uniform(-140, 120, 2000)) * rng.uniform(1, 2, 2000)]
    ).astype(np.float32)
    for grid in (scale.fine, scale.coarse):
        found = grid.bins(torch.from_numpy(values)).numpy()
        edges = grid.edges
        assert len(edges) == grid.size + 1 and (np.diff(edges) > 0).all()
        # Numbers that float32 cannot tell from zero share the bin of zero.
        inside = (values == 0) | (np.abs(values) > 1e-37)
        expected = np.searchsorted(edges, values[inside].astype(np.float64), side="right") - 1
        np.testing.assert_array_equal(found[inside], expected)
    fine, coarse = scale.fine.bins(torch.from_numpy(values)), scale.coarse.bins(torch.from_numpy(values))
    ordinary = torch.from_numpy(np.abs(values) > 1e-37)
    assert torch.equal(scale.coarse_of_fine[fine.long()][ordinary], coarse[ordinary])


def test_a_coarse_grid_must_fit_the_fine_one() -> None:
    with pytest.raises(ValueError, match="edges of the fine grid"):
        Grid(((-2, 0, 1),)).coarsening(Grid(((-2, 0, 2),)))
    with pytest.raises(ValueError, match="adjoin"):
        Grid(((-2, 0, 1), (1, 2, 1)))


# ---- moments, histograms, Pearson, relative positions ------------------------------------------------------------


def test_moments_agree_with_numpy_and_merge() -> None:
    data = chunks(1)
    moments = Moments((1,))
    for chunk in data:
        moments.add_values(chunk[None])
    whole, found = np.concatenate(data), moments.result((0,))
    assert found.count == len(whole)
    expected = [whole.mean(), whole.var(), whole.std(), whole.std() / whole.mean(), whole.min(), whole.max()]
    np.testing.assert_allclose(
        [found.mean, found.variance, found.sd, found.cv, found.low, found.high], expected, rtol=1e-12
    )
    assert_merges(lambda: Moments((1,)), lambda m, c: m.add_values(c[None]), data, lambda m: m.state())


def test_moments_of_numbers_that_hardly_vary() -> None:
    values = 1e6 + np.random.default_rng(0).normal(size=1000)
    moments = Moments((1,))
    for part in np.array_split(values, 7):
        moments.add_values(part[None])
    assert moments.result((0,)).variance == pytest.approx(values.var(), rel=1e-9)


def test_histogram_quantiles_hold_the_true_ones() -> None:
    values = np.random.default_rng(2).lognormal(size=500).astype(np.float32)
    histogram = Histogram(NORMS.coarse, 1)
    histogram.add(torch.zeros(500, dtype=torch.long), NORMS.coarse.bins(torch.from_numpy(values)))
    for q in (0.0, 0.01, 0.25, 0.5, 0.77, 0.99, 1.0):
        true = np.quantile(values.astype(np.float64), q)
        found = histogram.quantile(0, q, low=float(values.min()), high=float(values.max()))
        assert found.low <= true <= found.high and found.low <= found.value <= found.high
        assert found.value == pytest.approx(true, rel=0.05)
    data = [torch.from_numpy(chunk.astype(np.float32)) for chunk in chunks(3)]
    assert_merges(
        lambda: Histogram(NORMS.coarse, 2),
        lambda h, c: h.add(torch.ones(len(c), dtype=torch.long), NORMS.coarse.bins(c)),
        data,
        lambda h: h.counts,
    )


def test_pearson_agrees_with_scipy_and_merges() -> None:
    rng = np.random.default_rng(4)
    data = [rng.normal(loc=[[3.0], [-1.0]], size=(2, n)) for n in (5, 17, 3, 30)]
    pearson = Pearson((1,))
    for x, y in data:
        pearson.add_values(x[None], (x + y)[None])
    x, y = (np.concatenate(side) for side in zip(*data, strict=True))
    assert pearson.result((0,)) == pytest.approx(stats.pearsonr(x, x + y).statistic, rel=1e-12)
    assert_merges(
        lambda: Pearson((1,)), lambda p, c: p.add_values(c[0][None], c[1][None]), data, lambda p: p.result((0,))
    )


@pytest.mark.parametrize("causal", [False, True])
def test_relative_means_agree_with_loops(causal: bool) -> None:
    rng = np.random.default_rng(5)
    data = [rng.random((2, 3, n, n)).astype(np.float32) for n in (1, 2, 5, 9)]
    means = RelativeMeans(rows=3, reach=3)
    sums: dict[tuple[int, int], list[float]] = {}
    for maps in data:
        length = maps.shape[-1]
        keep = torch.ones(length, length, dtype=torch.bool).tril() if causal else None
        means.add(torch.from_numpy(maps), keep)
        for batch, head, query, key in np.ndindex(maps.shape):
            if not causal or key <= query:
                offset = max(-3, min(3, key - query))
                sums.setdefault((head, offset), []).append(float(maps[batch, head, query, key]))
    for head in range(3):
        expected = [np.mean(sums[head, offset]) if (head, offset) in sums else np.nan for offset in range(-3, 4)]
        np.testing.assert_allclose(means.result(head), expected, rtol=1e-12)
    assert_merges(lambda: RelativeMeans(3, 3), lambda m, c: m.add(torch.from_numpy(c)), data, lambda m: m.result(1))


# ---- Spearman ----------------------------------------------------------------------------------------------------


def _shapes(kind: str, rng: np.random.Generator, size: int) -> tuple[np.ndarray, np.ndarray]:
    x = rng.normal(size=size)
    y = 0.6 * x + rng.normal(size=size)
    match kind:
        case "smooth":
            x, y = np.exp(x), np.exp(0.3 * y)
        case "long tails":
            x, y = np.exp(8 * x), np.exp(-5 * y)
        case "heavy ties":
            x, y = np.round(np.exp(x)), np.round(np.exp(y))
        case "ties and tails":
            x, y = np.where(rng.random(size) < 0.4, 0.0, np.exp(6 * x)), np.round(np.exp(y), 1)
        case "one bin":
            x, y = 1 + 1e-3 * rng.random(size), 1 + 1e-3 * rng.random(size)
        case "signed":
            pass
    return x.astype(np.float32), y.astype(np.float32)


KINDS = ("smooth", "long tails", "heavy ties", "ties and tails", "one bin", "signed")


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(KINDS), st.integers(0, 10**6), st.sampled_from([3, 10, 200, 3000]))
def test_rho_lies_within_its_bound(kind: str, seed: int, size: int) -> None:
    x, y = _shapes(kind, np.random.default_rng(seed), size)
    if len(np.unique(x)) < 2 or len(np.unique(y)) < 2:
        return
    true = stats.spearmanr(x, y).statistic
    for scale in (SMALL, NORMS):
        if scale is NORMS and size > 200:
            continue  # the large tables are tested below
        counts = CrossedCounts(scale, scale, groups=1)
        counts.update(torch.from_numpy(x), torch.from_numpy(y), torch.zeros(size, dtype=torch.long))
        found = counts.result([0])
        assert abs(found.rho - true) <= found.bound + 1e-9
        assert found.count == size and 0 <= found.bound <= 2


@pytest.mark.parametrize("kind", ["smooth", "long tails", "heavy ties", "ties and tails"])
def test_the_real_grids_are_fine_enough(kind: str) -> None:
    x, y = _shapes(kind, np.random.default_rng(7), 200_000)
    x = np.minimum(x, 1 / np.maximum(x, 1e-30)).astype(np.float32)  # weights lie between 0 and 1
    y = np.clip(y, 2.0**-16, 2.0**15)  # norms lie within the grid
    counts = CrossedCounts(WEIGHTS, NORMS, groups=1)
    counts.update(torch.from_numpy(x), torch.from_numpy(y), torch.zeros(len(x), dtype=torch.long))
    found, true = counts.result([0]), stats.spearmanr(x, y).statistic
    assert abs(found.rho - true) <= found.bound + 1e-12
    assert abs(found.rho - true) < 1e-4
    assert not found.flagged


def test_what_a_grid_does_not_resolve_is_flagged() -> None:
    x, y = _shapes("one bin", np.random.default_rng(7), 1000)
    counts = CrossedCounts(NORMS, NORMS, groups=1)
    counts.update(torch.from_numpy(x), torch.from_numpy(y), torch.zeros(len(x), dtype=torch.long))
    found = counts.result([0])
    assert found.flagged and abs(found.rho - stats.spearmanr(x, y).statistic) <= found.bound


def test_ties_hide_nothing() -> None:
    rng = np.random.default_rng(8)
    x, y = (torch.from_numpy(rng.integers(1, 6, size=5000).astype(np.float32)) for _ in range(2))
    counts = CrossedCounts(NORMS, NORMS, groups=1)
    counts.update(x, y, torch.zeros(5000, dtype=torch.long))
    # A fine bin holds one value each, so all that is left is the covariance within coarse cells, which is 0 too.
    assert counts.result([0]).bound < 1e-12
    assert counts.result([0]).rho == pytest.approx(stats.spearmanr(x, y).statistic, abs=1e-12)


def test_rho_broadcasts_keeps_and_pools_groups() -> None:
    rng = np.random.default_rng(9)
    alpha = rng.random((2, 3, 5, 4)).astype(np.float32)
    norms = rng.lognormal(size=(2, 3, 4)).astype(np.float32)
    group = np.broadcast_to(rng.integers(0, 3, size=(2, 1, 1, 4)), (2, 3, 1, 4))
    keep = torch.ones(5, 4, dtype=torch.bool).tril()
    counts = CrossedCounts(SMALL, SMALL, groups=3)
    counts.update(torch.from_numpy(alpha), torch.from_numpy(norms)[:, :, None], torch.from_numpy(group.copy()), keep)
    full_y, full_group = np.broadcast_to(norms[:, :, None], alpha.shape), np.broadcast_to(group, alpha.shape)
    kept = np.broadcast_to(keep.numpy(), alpha.shape)
    for groups in ([0], [1, 2], [0, 1, 2]):
        chosen = kept & np.isin(full_group, groups)
        found, true = counts.result(groups), stats.spearmanr(alpha[chosen], full_y[chosen]).statistic
        assert found.count == chosen.sum()
        assert abs(found.rho - true) <= found.bound + 1e-12


def test_rank_counts_merge() -> None:
    rng = np.random.default_rng(10)
    data = [
        (
            torch.from_numpy(rng.lognormal(size=n).astype(np.float32)),
            torch.from_numpy(rng.integers(1, 9, n).astype(np.float32)),
            torch.from_numpy(rng.integers(0, 2, n)),
        )
        for n in (3, 40, 7, 100)
    ]

    def result(counts: CrossedCounts) -> list[float]:
        found = [counts.result([0]), counts.result([1]), counts.result([0, 1])]
        return [number for rho in found for number in (rho.rho, rho.bound, rho.count)]

    assert_merges(lambda: CrossedCounts(SMALL, SMALL, 2), lambda c, d: c.update(*d), data, result)


def test_counts_beyond_thirty_one_bits() -> None:
    one = torch.ones(1, dtype=torch.float32)
    counts = CrossedCounts(SMALL, SMALL, groups=1)
    counts.update(torch.cat([one, 2 * one]), torch.cat([one, 3 * one]), torch.zeros(2, dtype=torch.long))
    state = counts.state()
    for name in ("by_x.count", "by_y.count"):
        state[name] = state[name].astype(np.int64) * 2**30
    for _ in range(5):
        counts.load(state)
    found = counts.result([0])
    assert found.count == 2 + 5 * 2 * 2**30
    assert found.rho == pytest.approx(1.0)


@pytest.mark.parametrize("capacity", [1 << 20, 64])
def test_pair_counts_are_exact_or_bounded_and_merge(capacity: int) -> None:
    rng = np.random.default_rng(11)
    data = [(rng.lognormal(size=n), rng.integers(1, 50, n).astype(float), rng.integers(0, 2, n)) for n in (9, 200, 50)]

    def result(pairs: PairCounts) -> list[float]:
        rho = pairs.result([0, 1])
        return [rho.rho, rho.bound, rho.count, pairs.dropped]

    pairs = PairCounts(capacity)
    for chunk in data:
        pairs.update(*chunk)
    x, y, _ = (np.concatenate(side) for side in zip(*data, strict=True))
    rho, bound, count, dropped = result(pairs)
    assert count == len(x)
    assert abs(rho - stats.spearmanr(x.astype(np.float32), y).statistic) <= bound + 1e-12
    assert (bound == 0.0) == (dropped == 0) == (capacity > 64)
    assert_merges(lambda: PairCounts(capacity), lambda p, c: p.update(*c), data, result)


@settings(max_examples=30, deadline=None)
@given(st.sampled_from(KINDS), st.integers(0, 10**6), st.integers(2, 400), st.integers(1, 50))
def test_the_exact_pass_is_exact(kind: str, seed: int, size: int, bucket: int) -> None:
    x, y = _shapes(kind, np.random.default_rng(seed), size)
    if len(np.unique(x)) < 2 or len(np.unique(y)) < 2:
        return
    with tempfile.TemporaryDirectory() as folder:
        spill = Spill(Path(folder))
        codes = np.arange(size) % 3
        for part in np.array_split(np.arange(size), 4):
            spill.update(x[part], y[part], codes[part])
        files = sorted(Path(folder).glob("*.pairs"))
        found = exact_rho(files, Path(folder) / "sorting", bucket)
    assert found.count == size and found.bound == 0.0
    assert found.rho == pytest.approx(stats.spearmanr(x, y).statistic, abs=1e-12)


# ---- samples -----------------------------------------------------------------------------------------------------


def test_samples_do_not_depend_on_order_or_split() -> None:
    rng = np.random.default_rng(12)
    data = [{"priority": rng.random(n), "value": rng.random(n)} for n in (50, 3, 200, 1)]
    assert_merges(lambda: Sample(20), lambda s, c: s.add(c), data, lambda s: s.result())
    everything = np.concatenate([chunk["priority"] for chunk in data])
    sample = Sample(20)
    for chunk in data:
        sample.add(chunk)
    np.testing.assert_array_equal(sample.result()["priority"], np.sort(everything)[:20])


@given(st.integers(1, 400), st.integers(1, 50), st.integers(0, 10**6), st.floats(0.001, 1.0))
@settings(max_examples=50, deadline=None)
def test_a_lower_threshold_gives_a_prefix(population: int, limit: int, seed: int, threshold: float) -> None:
    def draw(level: float) -> tuple[np.ndarray, np.ndarray]:
        return lowest(np.random.default_rng(seed), population, level, limit)

    priorities, members = draw(1.0)
    assert len(priorities) == min(population, limit) == len(set(members.tolist()))
    assert (np.diff(priorities) > 0).all() and ((members >= 0) & (members < population)).all()
    few, chosen = draw(threshold)
    assert len(few) == (priorities < threshold).sum()
    np.testing.assert_array_equal(few, priorities[: len(few)])
    np.testing.assert_array_equal(chosen, members[: len(few)])


def test_lowest_priorities_are_uniform() -> None:
    drawn = [lowest(np.random.default_rng(seed), 30, 1.0, 30) for seed in range(400)]
    assert stats.kstest(np.concatenate([priority for priority, _ in drawn]), "uniform").pvalue > 1e-3
    first = np.bincount([members[0] for _, members in drawn], minlength=30)
    assert stats.chisquare(first).pvalue > 1e-3
    streamed = [lowest(np.random.default_rng(seed), 30, 1.0, 3)[1][0] for seed in range(400)]
    assert stats.chisquare(np.bincount(streamed, minlength=30)).pvalue > 1e-3


# ---- nothing is an error -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "result",
    [
        lambda: Moments((1,)).result((0,)),
        lambda: Histogram(SMALL.fine, 1).quantile(0, 0.5, low=0.0, high=1.0),
        lambda: Pearson((1,)).result((0,)),
        lambda: RelativeMeans(1, 2).result(0),
        lambda: CrossedCounts(SMALL, SMALL, 1).result([0]),
        lambda: PairCounts().result([0]),
        lambda: Sample(3).result(),
    ],
)
def test_a_statistic_of_nothing_is_an_error(result) -> None:
    with pytest.raises(InputError):
        result()


def test_a_constant_has_no_correlation() -> None:
    counts = CrossedCounts(SMALL, SMALL, 1)
    counts.update(torch.ones(5), torch.arange(5.0), torch.zeros(5, dtype=torch.long))
    with pytest.raises(InputError, match="constant"):
        counts.result([0])
