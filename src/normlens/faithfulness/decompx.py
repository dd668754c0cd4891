"""DecompX as released (Modarressi et al. 2023): vectors of all tokens carried forward, biases shared among them.

The map is the frozen one of `explain` (attention weights, denominators and slopes held). In `explain` a bias belongs to no
token. DecompX gives each bias `b` to the tokens in proportion to `|part_k · b|`, at the place where it is added; the biases
of an attention block are added up first and shared where its output meets the residual stream.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch

from normlens.anatomy.interface import clone_inputs, run_arguments
from normlens.anatomy.scope import PassScope
from normlens.attribution.observer import TermSelection
from normlens.attribution.questions import Numbers, Question
from normlens.attribution.terms import Run
from normlens.errors import AnatomyError
from normlens.faithfulness.items import Item, inputs_of

if TYPE_CHECKING:
    from normlens.lens import Lens


def decompx(lens: Lens, items: Sequence[Item]) -> list[np.ndarray]:
    """Return the share of each token in the number of each item; shares add up to the number."""
    return [_shares(lens, item) for item in items]


def _shares(lens: Lens, item: Item) -> np.ndarray:
    model = getattr(lens.model, "_orig_mod", lens.model)
    length = len(item.ids)
    # One row for the vectors of each token, and one for the biases of an attention block on their way to the stream.
    rows = [item] * (length + 1)
    question = Question(item.position or 0, item.output, item.against)
    numbers = Numbers([question] * len(rows), None, "none")
    with PassScope(model, grad=True):
        arguments = run_arguments(model, clone_inputs(inputs_of(lens, rows)))
        run = Run(model, arguments, TermSelection(), integrated=False, record=True)
        factors = []
        for stack in run.observer.stacks:
            if stack.entrance.axes != (0, 1):
                raise AnatomyError(
                    f"decompx needs a model with rows in front, {type(model).__name__} has positions there"
                )
            positions = stack.leaf.shape[stack.entrance.axes[1]]
            factors.append(torch.eye(length + 1, positions))
            factors[-1][-1] = 0.0
        shares = run.carried(factors, numbers)
        run.release()
    found: np.ndarray = shares[:length].numpy()
    return found
