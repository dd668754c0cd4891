"""Ranks, ties, order and intervals."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from normlens.errors import InputError
from normlens.faithfulness.bootstrap import difference, estimate
from normlens.faithfulness.ranking import order, ranks, reciprocal_rank
from normlens.statistics import spearman

NUMBERS = st.lists(st.integers(-5, 5).map(float), min_size=3, max_size=9).map(np.array)


@given(NUMBERS)
def test_ranks_share_the_mean_of_ties(numbers: np.ndarray) -> None:
    np.testing.assert_array_equal(ranks(numbers), stats.rankdata(-numbers))


@given(NUMBERS, st.integers(0, 9))
def test_spearman_is_the_correlation_of_ranks(numbers: np.ndarray, seed: int) -> None:
    other = np.random.default_rng(seed).permutation(numbers)
    if np.ptp(numbers) == 0:
        assert np.isnan(spearman(numbers, other))
    else:
        assert spearman(numbers, other) == pytest.approx(stats.spearmanr(numbers, other).statistic, abs=1e-9)


@given(NUMBERS, st.data())
def test_the_reciprocal_rank_of_one_token_is_one_over_its_rank(numbers: np.ndarray, data: st.DataObject) -> None:
    wanted = data.draw(st.integers(0, len(numbers) - 1))
    assert reciprocal_rank(numbers, {wanted}) == pytest.approx(1 / ranks(numbers)[wanted])


def test_several_wanted_tokens_count_as_one() -> None:
    assert reciprocal_rank(np.array([1.0, 3.0, 5.0, 4.0]), {1, 3}) == 0.5
    assert reciprocal_rank(np.array([1.0, 1.0]), {0, 1}) == 1.0


@given(NUMBERS)
def test_order_puts_the_earlier_first_among_equals(numbers: np.ndarray) -> None:
    expected = np.argsort(-numbers, kind="stable").tolist()
    assert order(numbers, range(len(numbers))) == expected


def test_intervals_are_the_same_every_time_and_hold_the_mean() -> None:
    groups = [np.random.default_rng(i).normal(i, 1, 50) for i in range(3)]
    one, two = estimate(groups), estimate(groups)
    assert one == two
    assert one.low < one.mean < one.high
    assert one.mean == pytest.approx(np.mean([g.mean() for g in groups]))
    width = 2 * 1.96 * np.sqrt(sum(g.var() / 50 for g in groups)) / 3
    assert one.high - one.low == pytest.approx(width, rel=0.15)


def test_a_difference_is_taken_item_by_item() -> None:
    hard = np.random.default_rng(0).normal(0, 10, 40)
    found = difference([hard + 0.1], [hard])
    assert found.mean == pytest.approx(0.1) and found.excludes_zero


def test_what_has_no_number_is_not_counted_and_nothing_is_an_error() -> None:
    assert estimate([np.array([1.0, np.nan])]).count == 1
    with pytest.raises(InputError, match="no item has a number"):
        estimate([np.array([np.nan])])
