from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from normlens.alignment.extraction import argmax_links
from normlens.alignment.layer_choice import Agreement
from normlens.errors import InputError

LAYERS = (1, 2, 4)


def maps(seed: int, rows: int = 5, columns: int = 4) -> tuple[np.ndarray, np.ndarray]:
    generator = np.random.default_rng(seed)
    return generator.random((3, rows, columns + 1)), generator.random((3, rows, columns + 1))


@given(st.integers(0, 1000))
def test_agreement_is_the_f1_of_the_links_of_the_two_readings(seed: int) -> None:
    awi, awo = maps(seed)
    counted = Agreement.of(LAYERS, awi, awo)
    for one in range(3):
        for other in range(3):
            a, b = argmax_links(awi[one]), argmax_links(awo[other])
            expected = 2 * len(a & b) / (len(a) + len(b)) if a or b else 0
            assert counted.matrix[one, other] == pytest.approx(expected)


@given(st.lists(st.integers(0, 1000), min_size=1, max_size=5), st.integers(0, 5))
def test_counts_of_any_split_add_up_and_survive_json(seeds: list[int], cut: int) -> None:
    counted = [Agreement.of(LAYERS, *maps(seed)) for seed in seeds]
    whole = sum(counted, Agreement.empty(LAYERS))
    parts = sum(counted[:cut], Agreement.empty(LAYERS)) + sum(counted[cut:], Agreement.empty(LAYERS))
    for other in (parts, Agreement.from_dict(json.loads(json.dumps(whole.to_dict())))):
        assert other.to_dict() == whole.to_dict()


def test_layers_that_read_their_input_are_told_from_those_that_read_their_output() -> None:
    """Layers 1 and 2 look at the source word of the token they take in, layer 4 at that of the next one."""
    source_of = np.array([2, 0, 3, 1])  # target word → source word

    def look(at: np.ndarray) -> np.ndarray:
        rows = np.full((len(at), 5), 0.1)
        rows[np.arange(len(at)), at] = 1
        return rows

    before = np.array([4, *source_of[:-1]])  # one row up: what the step saw whose *output* is this word
    after = np.array([*source_of[1:], 4])
    awi = np.stack([look(source_of), look(source_of), look(after)])
    awo = np.stack([look(before), look(before), look(source_of)])
    counted = Agreement.of(LAYERS, awi, awo)
    assert counted.auto("awi") == (1, 2)
    assert counted.auto("awo") == (4,)
    assert counted.best("awi") == 1 and counted.best("awo") == 4
    assert "    4  " in counted.table("awi") and counted.table("awi").count("*") == 3


def test_a_map_that_does_not_move_is_no_alignment() -> None:
    """Layer 2 looks at one place whatever is decoded: its own readings agree fully, and that must not count."""
    still = np.full((4, 5), 0.1)
    still[:, 0] = 1
    right = np.eye(4, 5) + 0.1
    before, after = np.roll(right, 1, axis=0), np.roll(right, -1, axis=0)
    counted = Agreement.of(LAYERS, np.stack([right, still, after]), np.stack([before, still, right]))
    assert counted.matrix[1, 1] == 1
    assert counted.auto("awi") == (1,) and counted.auto("awo") == (4,)


def test_where_no_layer_stands_out_the_best_one_is_taken() -> None:
    rows = np.full((1, 3, 4), 0.1)
    rows[0, :, 1] = 1
    assert Agreement.of((1,), rows, rows).auto("awi") == (1,)


def test_no_text_and_unknown_settings_are_errors() -> None:
    with pytest.raises(InputError, match="no words have been seen"):
        Agreement.empty(LAYERS).auto("awi")
    with pytest.raises(InputError, match="awi, awo"):
        Agreement.of(LAYERS, *maps(1)).auto("in")
    with pytest.raises(InputError, match="different layers"):
        Agreement.empty((1,)) + Agreement.empty((2,))
