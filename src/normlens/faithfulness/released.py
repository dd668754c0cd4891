"""DecompX and ALTI-Logit as their authors released them, on the frozen pass of `explain`.

DecompX (Modarressi et al. 2023) carries the vectors of all tokens forward through the frozen map. In `explain` a bias
belongs to no token. DecompX gives each bias `b` to the tokens in proportion to `|part_k · b|`, at the place where it is
added; the biases of an attention block are added up first and shared where its output meets the residual stream.

ALTI-Logit (Ferrando et al. 2023) takes what each attention edge at the explained position gives directly to the number, and
follows it from the layer's input to the tokens by ALTI: `Σ_l direct_l R_(l-1)`, `R` the rollout of ALTI's maps.
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
from normlens.errors import AnatomyError, DecompositionError
from normlens.faithfulness.items import Item, in_batches, inputs_of, values

if TYPE_CHECKING:
    from normlens.lens import Lens

_TOLERANCE = 1e-3  # of the sum of absolute shares; float32 carries them through all layers


def decompx(lens: Lens, items: Sequence[Item]) -> list[np.ndarray]:
    """Return the share of each token in the number of each item; shares add up to the number."""
    return [_shares(lens, item) for item in items]


def alti_logit(lens: Lens, items: Sequence[Item]) -> list[np.ndarray]:
    """Return what attention gave directly to the number of each item, followed to the tokens by ALTI."""

    def answer(rows: Sequence[Item]) -> list[np.ndarray]:
        direct = _direct_by_key(lens, rows)
        analyses = lens.analyze_inputs(inputs_of(lens, rows), measures=["alti"])
        scores = []
        for row, (item, analysis) in enumerate(zip(rows, analyses, strict=True)):
            length = len(item.ids)
            rolled = analysis.rollout("alti").values
            followed = np.zeros(length)
            for layer, given in enumerate(direct):
                below = rolled[layer - 1] if layer else np.eye(length)
                followed += given[row, :length] @ below
            scores.append(followed)
        return scores

    return in_batches(items, answer)


def _direct_by_key(lens: Lens, rows: Sequence[Item]) -> list[np.ndarray]:
    """For each layer, what attention to each key gave directly to the number: (row, key)."""
    with PassScope(lens.model, grad=True):
        run = _run(lens, rows, TermSelection(direct=True, direct_keys=True))
        terms = run.explain(_numbers(rows))
    layers = sorted(where for where in terms.direct_keys if where[2] == "attention")
    if len(layers) != len(lens.anatomy.sites):
        raise AnatomyError(
            f"alti_logit needs the direct terms of every attention, {lens.family} gives those of {len(layers)} of "
            f"{len(lens.anatomy.sites)}"
        )
    return [terms.direct_keys[where].numpy() for where in layers]


def _shares(lens: Lens, item: Item) -> np.ndarray:
    length = len(item.ids)
    # One row for the vectors of each token, and one for the biases of an attention block on their way to the stream.
    rows = [item] * (length + 1)
    with PassScope(lens.model, grad=True):
        run = _run(lens, rows, TermSelection(), record=True)
        factors = []
        for stack in run.observer.stacks:
            if stack.entrance.axes != (0, 1):
                raise AnatomyError(f"decompx needs a model with rows in front, {lens.family} has positions there")
            positions = stack.leaf.shape[stack.entrance.axes[1]]
            factors.append(torch.eye(length + 1, positions))
            factors[-1][-1] = 0.0
        shares = run.carried(factors, _numbers(rows))
        run.release()
    found: np.ndarray = shares[:length].numpy()
    value = float(values(lens, [item])[0])
    gap = abs(found.sum() - value) / max(float(np.abs(found).sum()), abs(value), np.finfo(np.float64).tiny)
    if not gap <= _TOLERANCE:
        raise DecompositionError(f"the shares of decompx miss the number by {gap:.1e} of their absolute sum")
    return found


def _run(lens: Lens, rows: Sequence[Item], selection: TermSelection, *, record: bool = False) -> Run:
    model = getattr(lens.model, "_orig_mod", lens.model)
    arguments = run_arguments(model, clone_inputs(inputs_of(lens, rows)))
    return Run(model, arguments, selection, integrated=False, record=record)


def _numbers(rows: Sequence[Item]) -> Numbers:
    questions = [Question(item.position or 0, item.output, item.against) for item in rows]
    return Numbers(questions, None, "none")
