"""Odd models explained: every term is what is missing when its vector is, or the model is refused with a sentence."""

from __future__ import annotations

import warnings
from collections import Counter
from random import Random

import pytest
import torch
from torch import Tensor

from normlens import Lens
from normlens.errors import NormlensError
from normlens.results.explanation import PARTS
from tests.adversary.draw import _adapt, _hook, _named, _own_inputs
from tests.adversary.frozen import disagreements
from tests.adversary.models import odd_model
from tests.test_lens import snapshot

DRAWS, GROUPS = 36, 3


def verdict(seed: int) -> str:
    """`equal`, `refused`, or what is wrong."""
    random = Random(f"explained {seed}")
    model = odd_model(random)
    if random.random() < 0.2:
        names = {name.rpartition(".")[2] for name, _ in _named(model)}
        _adapt(random, model, [name for name in ("qkv", "v", "o") if name in names])
    if random.random() < 0.3:
        _hook(random, model)
    model = model.double()
    inputs = _own_inputs(random, model)
    sequences = next(v for n, v in inputs.items() if n in ("input_ids", "vectors"))
    direction = torch.randn(model.recipe.width, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    before, drawn = snapshot(model), torch.get_rng_state()
    wanted = PARTS if random.random() < 0.7 else ["tokens", "states", "blocks", "biases"]
    try:
        found = Lens(model).explain_inputs(inputs, direction=direction, position=-1, parts=wanted, baseline="zero")
    except NormlensError as error:
        return "refused" if "\n" not in str(error) else f"more than one line: {error}"
    if snapshot(model) != before or not torch.equal(torch.get_rng_state(), drawn):
        return "something is left changed"
    wrong = []
    mask = inputs.get("attention_mask")
    for row, explanation in enumerate(found):
        real = list(range(sequences.shape[1]))
        if isinstance(mask, Tensor):
            real = [int(i) for i in (mask[row] > 0).nonzero().flatten()]
        wrong += disagreements(explanation, model, inputs, row, real, direction, random)
    return f"{wrong[:4]} of {model.recipe} on {list(inputs)}" if wrong else "equal"


@pytest.mark.parametrize("group", range(GROUPS))
def test_every_explanation_is_right_or_refused(group: int) -> None:
    torch.set_num_threads(1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        verdicts = {seed: verdict(seed) for seed in range(group, DRAWS, GROUPS)}
    wrong = {seed: found for seed, found in verdicts.items() if found not in ("equal", "refused")}
    assert not wrong, wrong
    counts = Counter(verdicts.values())
    assert counts["equal"] > 2 * counts["refused"], f"an adversary that is mostly turned away says little: {counts}"
