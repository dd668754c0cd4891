"""Gradients with respect to the word vectors: gradient x input, integrated gradients, SmoothGrad.

The plain gradient of the unmodified model, attention, normalizations and activations included; its terms add up to the
number only where a path is integrated over, and there only as far as the steps reach.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from normlens.anatomy.scope import PassScope
from normlens.faithfulness.items import Change, Item, in_batches, numbers

if TYPE_CHECKING:
    from normlens.lens import Lens

Scores = list[np.ndarray]

#: Steps of integrated gradients, samples of SmoothGrad and their noise (as a share of the vectors' range).
STEPS, SAMPLES, NOISE = 10, 10, 0.15


def gradient_x_input(lens: Lens, items: Sequence[Item]) -> Scores:
    """`x_k · ∂value/∂x_k` at the word vectors."""
    return _each(lens, items, lambda rows: [lambda x: x])


def integrated_gradients(lens: Lens, items: Sequence[Item], steps: int = STEPS) -> Scores:
    """`x_k · ∫₀¹ ∂value(t x)/∂x_k dt`, from word vectors of zero, by the midpoint rule."""
    shrunk = [partial(operator.mul, (step + 0.5) / steps) for step in range(steps)]
    return _each(lens, items, lambda rows: shrunk)


def smoothgrad(lens: Lens, items: Sequence[Item], samples: int = SAMPLES, noise: float = NOISE) -> Scores:
    """`x_k ·` the mean gradient over word vectors with noise; what is drawn belongs to the item."""

    def shaking(rows: Sequence[Item]) -> list[Change]:
        generators = [torch.Generator().manual_seed(item.seed) for item in rows]
        length = len(rows[0].ids)

        def shaken(x: Tensor) -> Tensor:
            words, padding = x[:, :length], x[:, length:]
            drawn = torch.stack([torch.randn(words.shape[1:], generator=g, dtype=torch.float64) for g in generators])
            spread = words.amax((1, 2), keepdim=True) - words.amin((1, 2), keepdim=True)
            return torch.cat([words + noise * spread * drawn.to(x), padding], 1)

        return [shaken] * samples

    return _each(lens, items, shaking)


def _each(lens: Lens, items: Sequence[Item], changing: Callable[[Sequence[Item]], Sequence[Change]]) -> Scores:
    """`x_k ·` the mean gradient at the word vectors of a batch, changed in several ways in turn."""

    def answer(rows: Sequence[Item]) -> np.ndarray:
        changes = changing(rows)
        total: Tensor | None = None
        for change in changes:
            gradient, vectors = _gradient(lens, rows, change)
            total = gradient if total is None else total + gradient
        assert total is not None
        found: np.ndarray = (total / len(changes) * vectors).sum(-1).cpu().double().numpy()
        return found

    with PassScope(lens.model, grad=True):
        found = in_batches(items, answer)
    return [given[: len(item.ids)] for item, given in zip(items, found, strict=True)]


def _gradient(lens: Lens, rows: Sequence[Item], change: Change) -> tuple[Tensor, Tensor]:
    """The gradient at the changed word vectors, and the word vectors as they are: row position width."""
    found: list[Tensor] = []

    def leaf(x: Tensor) -> Tensor:
        x = x.detach()
        point = change(x).requires_grad_()
        found.extend((point, x))
        return point

    value = numbers(lens, rows, leaf)
    point, vectors = found
    (gradient,) = torch.autograd.grad(value.sum(), point)
    return gradient, vectors.detach()
