"""Uniform samples."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from normlens.corpus.samples import UniformSample, lowest_priorities


def test_a_sample_is_what_has_the_lowest_priorities() -> None:
    rng = np.random.default_rng(12)
    data = [{"priority": rng.random(n), "value": rng.random(n)} for n in (50, 3, 200, 1)]
    everything = np.concatenate([chunk["priority"] for chunk in data])
    sample = UniformSample(20)
    for chunk in data:
        sample.update(chunk)
    np.testing.assert_array_equal(sample.state()["priority"], np.sort(everything)[:20])


@given(st.integers(1, 400), st.integers(1, 50), st.integers(0, 10**6), st.floats(0.001, 1.0))
@settings(max_examples=50, deadline=None)
def test_a_lower_threshold_gives_a_prefix(population: int, limit: int, seed: int, threshold: float) -> None:
    def draw(level: float) -> tuple[np.ndarray, np.ndarray]:
        return lowest_priorities(np.random.default_rng(seed), population, level, limit)

    priorities, members = draw(1.0)
    assert len(priorities) == min(population, limit) == len(set(members.tolist()))
    assert (np.diff(priorities) > 0).all() and ((members >= 0) & (members < population)).all()
    few, chosen = draw(threshold)
    assert len(few) == (priorities < threshold).sum()
    np.testing.assert_array_equal(few, priorities[: len(few)])
    np.testing.assert_array_equal(chosen, members[: len(few)])


def test_lowest_priorities_are_uniform() -> None:
    drawn = [lowest_priorities(np.random.default_rng(seed), 30, 1.0, 30) for seed in range(400)]
    assert stats.kstest(np.concatenate([priority for priority, _ in drawn]), "uniform").pvalue > 1e-3
    first = np.bincount([members[0] for _, members in drawn], minlength=30)
    assert stats.chisquare(first).pvalue > 1e-3
    streamed = [lowest_priorities(np.random.default_rng(seed), 30, 1.0, 3)[1][0] for seed in range(400)]
    assert stats.chisquare(np.bincount(streamed, minlength=30)).pvalue > 1e-3
