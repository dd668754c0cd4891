from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from normlens.alignment.links import swap
from normlens.alignment.symmetrize import HEURISTICS, symmetrize
from normlens.errors import InputError
from tests.reference import alignment as reference

SIZE = 6
links = st.frozensets(st.tuples(st.integers(0, SIZE - 1), st.integers(0, SIZE - 1)), max_size=14)


@given(links, links)
def test_grow_diag_is_the_published_pseudo_code(forward: frozenset, reverse: frozenset) -> None:
    grown = reference.grow_diag(set(forward), set(reverse), SIZE, SIZE)
    assert symmetrize("grow-diag", forward, reverse) == grown
    for name, both in (("grow-diag-final", False), ("grow-diag-final-and", True)):
        expected = grown
        for direction in (forward, reverse):
            expected = reference.final(expected, set(direction), SIZE, SIZE, both)
        assert symmetrize(name, forward, reverse) == expected


@given(links, links)
def test_the_heuristics_are_nested(forward: frozenset, reverse: frozenset) -> None:
    chain = ["intersection", "grow-diag", "grow-diag-final-and", "union"]
    results = [symmetrize(name, forward, reverse) for name in chain]
    for small, large in itertools.pairwise(results):
        assert small <= large
    assert results[1] <= symmetrize("grow-diag-final", forward, reverse) <= results[-1]


@given(links)
@pytest.mark.parametrize("name", HEURISTICS)
def test_a_direction_with_itself_is_itself(name: str, forward: frozenset) -> None:
    assert symmetrize(name, forward, forward) == forward


@given(links, links)
def test_intersection_and_union_do_not_care_for_orientation(forward: frozenset, reverse: frozenset) -> None:
    for name in ("intersection", "union"):
        assert swap(symmetrize(name, forward, reverse)) == symmetrize(name, swap(forward), swap(reverse))


def test_an_unknown_name_lists_the_known_ones() -> None:
    with pytest.raises(InputError, match="grow-diag-final-and"):
        symmetrize("grow", frozenset(), frozenset())
