"""Draws on which ids, lengths or widths coincide, and adapters of every kind; `make fuzz` goes on for longer."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import pytest
import torch
import transformers

from tests.adversary.coincidences import judge, judge_adapter

DRAWS, GROUPS = 96, 4


@pytest.mark.parametrize("group", range(GROUPS))
@pytest.mark.parametrize("judged", [judge, judge_adapter])
def test_every_explanation_obeys_the_laws_or_is_refused(group: int, judged: Callable[[int], str]) -> None:
    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    verdicts = {seed: judged(seed) for seed in range(group, DRAWS, GROUPS)}
    wrong = {
        seed: v for seed, v in verdicts.items() if v not in ("equal", "refused") and not v.startswith("not to be had")
    }
    assert not wrong, wrong
    counts = Counter(verdicts.values())
    print(f"{judged.__name__}: {sum(counts.values())} draws, {counts['equal']} equal, {counts['refused']} refused")
    assert counts["equal"] > 2 * counts["refused"], f"an adversary that is mostly turned away says little: {counts}"
