from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from normlens.alignment import extraction
from normlens.errors import InputError
from tests.reference import alignment as reference

positive = st.floats(0.001, 1.0)
maps = st.tuples(st.integers(1, 6), st.integers(1, 6)).flatmap(
    lambda size: arrays(np.float64, (size[0], size[1] + 1), elements=positive)
)


@given(maps)
def test_argmax_links_each_row_once_or_to_nothing(scores: np.ndarray) -> None:
    links = {target: source for source, target in extraction.argmax_links(scores)}
    for row, values in enumerate(scores):
        if row in links:
            assert values[links[row]] == values.max()
        else:
            assert values[-1] == values.max()


@given(maps)
def test_mutual_is_the_largest_of_row_and_column(scores: np.ndarray) -> None:
    joint = scores[:, :-1] + np.arange(scores[:, :-1].size).reshape(scores[:, :-1].shape) * 1e-6  # no ties
    assert extraction.mutual_links(joint) == reference.mutual(joint)


@given(maps)
def test_a_word_without_subwords_keeps_its_place_and_gets_no_link(scores: np.ndarray) -> None:
    scores = np.insert(np.insert(scores, 0, 0.0, axis=0), 0, 0.0, axis=1)
    for how in extraction.EXTRACTIONS:
        links = extraction.extract_links(scores, how, 0.3)
        assert not any(source == 0 or target == 0 for source, target in links)


@given(maps, st.floats(0.5, 0.99))
def test_above_one_half_a_word_has_at_most_one_link_per_row_share(scores: np.ndarray, threshold: float) -> None:
    links = extraction.threshold_links(scores, threshold)
    assert len({target for _, target in links}) == len(links)


@given(maps)
def test_shares_of_a_row_sum_to_one_and_a_link_share_is_a_share(scores: np.ndarray) -> None:
    assert np.allclose(extraction.row_shares(scores).sum(-1), 1)
    joint = scores[:, :-1]
    shares = extraction.cell_shares(joint)
    assert (shares >= 0).all() and (shares <= 1 + 1e-12).all()
    expected = (joint / joint.sum(0) + joint / joint.sum(1, keepdims=True)) / 2
    assert np.allclose(shares, expected)


uneven = st.tuples(st.integers(1, 5), st.integers(1, 5)).flatmap(
    lambda size: arrays(np.float64, size, elements=st.sampled_from([0.0, 0.013, 0.11, 0.29, 0.71, 1.03, 1.97]))
)


@given(uneven, st.sampled_from([0.41, 0.5, 0.62]))
def test_share_links_are_their_definition_from_either_side(joint: np.ndarray, threshold: float) -> None:
    links = extraction.share_links(joint, threshold)
    assert links == reference.share_links(joint, threshold)
    assert extraction.share_links(joint.T, threshold) == {(target, source) for source, target in links}
    assert extraction.share_links(joint * 5, threshold) == links


@given(uneven)
def test_a_link_has_the_majority_of_its_row_or_column(joint: np.ndarray) -> None:
    for source, target in extraction.share_links(joint):
        cell = joint[target, source]
        assert cell > 0.5 * joint[target].sum() or cell > 0.5 * joint[:, source].sum()


def test_one_word_has_the_words_that_stand_out_and_not_all_of_the_other_side() -> None:
    assert extraction.share_links(np.array([[0.02, 0.5, 0.45, 0.03]])) == {(1, 0), (2, 0)}
    assert extraction.share_links(np.array([[0.2]])) == {(0, 0)}
    assert extraction.share_links(np.ones((1, 3))) == {(0, 0), (1, 0), (2, 0)}, "none stands out, each has its third"


@given(maps)
def test_the_product_of_two_directions_does_not_care_which_comes_first(scores: np.ndarray) -> None:
    reverse = np.random.default_rng(0).random((scores.shape[1] - 1, scores.shape[0] + 1))
    for how in ("product", "sum"):
        joint = extraction.join_directions(scores, reverse, how)
        assert np.allclose(joint, extraction.join_directions(reverse, scores, how).T)


def test_maps_of_different_pairs_cannot_be_combined() -> None:
    with pytest.raises(InputError, match="one sentence pair"):
        extraction.join_directions(np.ones((2, 4)), np.ones((2, 3)))


def test_empty_sentences_have_no_links() -> None:
    for shape in ((0, 1), (3, 1), (0, 4)):
        for how in extraction.EXTRACTIONS:
            assert extraction.extract_links(np.zeros(shape), how) == frozenset()


def test_a_joint_map_has_no_plain_argmax() -> None:
    with pytest.raises(InputError, match="mutual or share"):
        extraction.extract_joint_links(np.ones((2, 2)), "argmax")
    with pytest.raises(InputError, match="extraction must be one of"):
        extraction.extract_joint_links(np.ones((2, 2)), "viterbi")
    with pytest.raises(InputError, match="threshold must be at least 0"):
        extraction.extract_joint_links(np.ones((2, 2)), "share", 1.5)


views = st.tuples(st.integers(1, 3), st.integers(1, 4), st.integers(2, 5)).flatmap(
    lambda shape: arrays(np.float64, shape, elements=st.sampled_from([0.0, 0.1, 0.5, 1.0, 2.0]))
)


@given(views)
def test_joined_views_are_their_definition_whatever_the_scale(maps: np.ndarray) -> None:
    joined = extraction.joined_views(maps)
    np.testing.assert_allclose(joined, reference.joined_views(maps), atol=1e-12)
    np.testing.assert_allclose(extraction.joined_views(maps * 7), joined, atol=1e-12)
    assert (joined >= 0).all() and (joined <= 1 + 1e-12).all()
    turned = np.concatenate([maps[..., :-1].transpose(0, 2, 1), maps[..., :-1].sum(1)[..., None]], axis=-1)
    np.testing.assert_allclose(
        extraction.join_view_directions(joined, extraction.joined_views(turned)), joined, atol=1e-12
    )
    with pytest.raises(InputError, match="one sentence pair"):
        extraction.join_view_directions(joined, np.zeros((joined.shape[1] + 1, joined.shape[0])))


@given(st.floats(0, 1), st.floats(0, 1))
def test_confidence_is_a_probability_that_grows_with_the_share(one: float, other: float) -> None:
    assert 0 <= extraction.confidence(one) <= 1
    assert (one < other) <= (extraction.confidence(one) <= extraction.confidence(other))
