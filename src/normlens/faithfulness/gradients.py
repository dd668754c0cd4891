"""Gradient methods: gradient x input, integrated gradients, SmoothGrad.

They use the plain gradient of the unmodified model, attention, normalizations and activations included. Each can be taken
at the word vectors or at the vectors that enter the first layer. The choice matters: where word vectors enter a
normalization directly, `x · ∂value/∂x` is 0 at them whatever the model does.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from normlens.anatomy.scope import PassScope
from normlens.errors import InputError
from normlens.faithfulness.items import At, Change, Item, in_batches, numbers, values

if TYPE_CHECKING:
    from normlens.lens import Lens

Scores = list[np.ndarray]
#: Items of a batch to the points at which gradients are taken, each with its weight.
GradientPath = Callable[[Sequence[Item]], Sequence[tuple[Change, float]]]

#: Steps of integrated gradients, the first try and the most; and the completeness error at which they suffice.
FIRST_STEPS, MOST_STEPS, COMPLETE = 10, 90, 0.01
#: Samples of SmoothGrad, and their noise as a share of the range of the vectors.
SAMPLES, NOISE = 10, 0.15
#: Terms below this share of `Σ |x_d g_d|` are rounding error of their own dot products.
_ROUNDING = 1e-4


def gradient_x_input(lens: Lens, items: Sequence[Item], at: At = "words") -> Scores:
    """Return `x_k · ∂value/∂x_k` for each token."""
    return _average(lens, items, at, lambda rows: [(lambda x: x, 1.0)])


def integrated_gradients(
    lens: Lens, items: Sequence[Item], at: At = "words", steps: int = FIRST_STEPS, most: int = MOST_STEPS
) -> Scores:
    """Return `x_k · ∫₀¹ ∂value(t x)/∂x_k dt` for each token, from vectors of zero, by the midpoint rule.

    The steps are tripled, item by item, until the terms add up to `value(x) - value(0)` within 1 %, or up to `most`. A
    third of the midpoints are those of the step before, so that no gradient is computed twice.

    Args:
        lens: The model.
        items: The items.
        at: Where the input vectors are taken.
        steps: Steps of the first try.
        most: The largest number of steps.
    """
    change = _change_of_value(lens, items, at)
    scores = _average(lens, items, at, _midpoints(steps, range(steps)))
    left = _incomplete(range(len(items)), scores, change)
    while left and 3 * steps <= most:
        steps *= 3
        added = [step for step in range(steps) if step % 3 != 1]
        for i, terms in zip(left, _average(lens, [items[i] for i in left], at, _midpoints(steps, added)), strict=True):
            scores[i] = scores[i] / 3 + terms * (2 / 3)
        left = _incomplete(left, scores, change)
    return scores


def _midpoints(steps: int, chosen: Sequence[int]) -> GradientPath:
    """The path from zero, at some of the midpoints of its steps."""
    points = [(_scaled((step + 0.5) / steps), 1 / len(chosen)) for step in chosen]
    return lambda rows: points


def _incomplete(indices: Sequence[int], scores: Scores, change: np.ndarray) -> list[int]:
    """The items whose terms do not add up yet."""
    return [i for i in indices if abs(scores[i].sum() - change[i]) > COMPLETE * abs(change[i])]


def completeness_error(
    lens: Lens, items: Sequence[Item], scores: Scores, at: At = "words", **settings: int
) -> np.ndarray:
    """Return how far the terms of each item are from `value(x) - value(0)`, over its size."""
    change = _change_of_value(lens, items, at)
    sums = np.array([terms.sum() for terms in scores])
    errors: np.ndarray = np.abs(sums - change) / np.maximum(np.abs(change), np.finfo(np.float64).tiny)
    return errors


def smoothgrad(
    lens: Lens, items: Sequence[Item], at: At = "words", samples: int = SAMPLES, noise: float = NOISE
) -> Scores:
    """Return `x_k ·` the mean gradient over vectors with noise, which is seeded by the item."""

    def path(rows: Sequence[Item]) -> Sequence[tuple[Change, float]]:
        generators = [torch.Generator().manual_seed(item.seed) for item in rows]
        length = len(rows[0].ids)

        def add_noise(x: Tensor) -> Tensor:
            vectors, padding = x[:, :length], x[:, length:]
            drawn = torch.stack([torch.randn(vectors.shape[1:], generator=g, dtype=torch.float64) for g in generators])
            spread = vectors.amax((1, 2), keepdim=True) - vectors.amin((1, 2), keepdim=True)
            return torch.cat([vectors + noise * spread * drawn.to(x), padding], 1)

        return [(add_noise, 1 / samples)] * samples

    return _average(lens, items, at, path)


def _scaled(factor: float) -> Change:
    return lambda x: x * factor


def _change_of_value(lens: Lens, items: Sequence[Item], at: At) -> np.ndarray:
    """The number of each item, less that of input vectors of zero."""
    change: np.ndarray = (values(lens, items) - values(lens, items, torch.zeros_like, at)).numpy()
    return change


def _average(lens: Lens, items: Sequence[Item], at: At, path: GradientPath) -> Scores:
    """`x_k ·` the weighted sum of gradients at the points of a path; 0 for an item of which all terms are rounding error."""

    def answer(rows: Sequence[Item]) -> np.ndarray:
        total: Tensor | None = None
        for change, weight in path(rows):
            gradient, vectors = _gradient(lens, rows, change, at)
            total = gradient * weight if total is None else total + gradient * weight
        assert total is not None, "a path has at least one point"
        products = (total * vectors)[:, : len(rows[0].ids)]
        terms = products.sum(-1)
        rounding = terms.abs().sum(1, keepdim=True) <= _ROUNDING * products.abs().sum((1, 2)).unsqueeze(1)
        found: np.ndarray = terms.masked_fill(rounding, 0.0).cpu().double().numpy()
        return found

    with PassScope(lens.model, grad=True):
        return in_batches(items, answer)


def _gradient(lens: Lens, rows: Sequence[Item], change: Change, at: At) -> tuple[Tensor, Tensor]:
    """The gradient at the changed input vectors, and the vectors as they are (row, position, width)."""
    found: list[Tensor] = []

    def leaf(x: Tensor) -> Tensor:
        x = x.detach()
        point = change(x).requires_grad_()
        found.extend((point, x))
        return point

    value = numbers(lens, rows, leaf, at)
    gradient = None
    if found and value.requires_grad:
        (gradient,) = torch.autograd.grad(value.sum(), found[0], allow_unused=True)
    if gradient is None:
        raise InputError(
            f"the number of {type(lens.model).__name__} does not depend on vectors of (row, position, width) that could be "
            f"found at its {at}; use another method"
        )
    return gradient, found[1].detach()
