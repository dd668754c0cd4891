"""A few hundred draws of the adversary in every run of the tests; `make fuzz` goes on for an hour."""

from __future__ import annotations

from collections import Counter
from functools import cache

import pytest
import torch

from tests.adversary.draw import Verdict, draw

DRAWS = 300
#: Draws are made in so many groups, for tests that run side by side.
GROUPS = 6


@cache
def verdicts(group: int) -> tuple[Verdict, ...]:
    torch.set_num_threads(1)
    return tuple(verdict for seed in range(group, DRAWS, GROUPS) for verdict in draw(seed))


@pytest.mark.parametrize("group", range(GROUPS))
def test_every_answer_is_equal_or_refused_with_a_sentence(group: int) -> None:
    bad = [str(verdict) for verdict in verdicts(group) if verdict.bad]
    assert not bad, "\n".join(bad)
    counts = Counter(verdict.status for verdict in verdicts(group))
    assert counts["equal"] > 2 * counts["refused"], f"an adversary that is mostly turned away says little: {counts}"


def test_a_draw_follows_from_its_seed() -> None:
    assert [str(verdict) for verdict in draw(7)] == [str(verdict) for verdict in draw(7)]
