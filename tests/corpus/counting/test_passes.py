"""Sequences share a forward pass only where no bit changes."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from normlens.corpus.counting import passes
from normlens.corpus.counting.passes import ForwardPasses
from normlens.corpus.counting.plan import Plan
from normlens.corpus.counting.statistics import CorpusStatistics
from normlens.corpus.counting.worker import Worker, WorkerSettings
from normlens.corpus.reading.sequences import TokenSequence
from normlens.corpus.reading.token_attributes import Categories


@pytest.mark.parametrize("independent", [True, False])
def test_sequences_share_a_pass_only_where_no_bit_changes(lens, monkeypatch, independent: bool) -> None:

    rng = np.random.default_rng(0)
    made = [
        TokenSequence(n, str(n), rng.integers(5, 20, length), None, rng.integers(0, 3, length).astype(np.uint8))
        for n, length in enumerate([24] * 6 + [40] * 3 + [5] * 3)
    ]
    plan = Plan.of(Categories.of(lens.tokenizer).names)
    sizes: list[int] = []
    one_pass = ForwardPasses._pass

    def counted(self, batch, handle) -> None:
        sizes.append(len(batch.sequences))
        one_pass(self, batch, handle)

    monkeypatch.setattr(ForwardPasses, "_pass", counted)
    if not independent:
        monkeypatch.setattr(passes, "rows_stand_alone", lambda model: False)
    statistics = {}
    for size in (1, 3):
        statistics[size] = CorpusStatistics(plan)
        Worker(lens, WorkerSettings(plan, size)).count(statistics[size], made)
        if size == 1:
            assert sizes == [1] * 12
            sizes.clear()
    # Five positions are too few to join. The first batch of 24 is run both ways, and decides about the others.
    assert sizes == [1] * 3 + ([1, 1, 1, 3, 3, 3] if independent else [1] * 9)
    first, second = statistics[1].state(), statistics[3].state()
    for name, array in first.items():
        if name not in ("proof", "empty_places"):
            np.testing.assert_allclose(second[name], array, 1e-12, 1e-15, err_msg=name)


def test_a_machine_that_rounds_by_neighbours_is_noticed() -> None:
    class Neighbours(torch.nn.Linear):
        def forward(self, given: torch.Tensor) -> torch.Tensor:
            return super().forward(given) * (1 + 1e-6 * (len(given) % 2))

    assert passes.rows_stand_alone(torch.nn.Sequential(torch.nn.ReLU()))
    assert not passes.rows_stand_alone(torch.nn.Sequential(Neighbours(8, 8)))


def test_few_positions_are_computed_on_one_thread() -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        with passes._steady_rounding(passes.FEWEST_POSITIONS - 1):
            assert torch.get_num_threads() == 1
        with passes._steady_rounding(passes.FEWEST_POSITIONS):
            assert torch.get_num_threads() == 2
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)
