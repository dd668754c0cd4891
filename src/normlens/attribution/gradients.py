"""Gradients with respect to the word vectors: gradient x input, integrated gradients, SmoothGrad.

The plain gradient of the unmodified model, attention, normalizations and activations included; its terms add up to the
number only where a path is integrated over, and there only as far as the steps reach.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from normlens.anatomy.interface import evaluating
from normlens.attribution.items import Change, Item, batches, numbers

if TYPE_CHECKING:
    from normlens.lens import Lens

Scores = list[np.ndarray]

#: Steps of integrated gradients, samples of SmoothGrad and their noise (as a share of the vectors' range).
STEPS, SAMPLES, NOISE = 10, 10, 0.15


def gradient_x_input(lens: Lens, items: Sequence[Item]) -> Scores:
    """`x_k · ∂value/∂x_k` at the word vectors."""

    def one(rows: Sequence[Item]) -> Tensor:
        gradient, vectors = _gradient(lens, rows)
        return (gradient * vectors).sum(-1)

    return _each(lens, items, one)


def integrated_gradients(lens: Lens, items: Sequence[Item], steps: int = STEPS) -> Scores:
    """`x_k · ∫₀¹ ∂value(t x)/∂x_k dt`, from word vectors of zero, by the midpoint rule."""

    def one(rows: Sequence[Item]) -> Tensor:
        total: Tensor | None = None
        for step in range(steps):
            gradient, vectors = _gradient(lens, rows, partial(_shrunk, (step + 0.5) / steps))
            total = gradient if total is None else total + gradient
        assert total is not None
        return (total / steps * vectors).sum(-1)

    return _each(lens, items, one)


def smoothgrad(lens: Lens, items: Sequence[Item], samples: int = SAMPLES, noise: float = NOISE) -> Scores:
    """`x_k ·` the mean gradient over word vectors with noise; what is drawn belongs to the item."""

    def one(rows: Sequence[Item]) -> Tensor:
        generators = [torch.Generator().manual_seed(item.seed) for item in rows]
        length = len(rows[0].ids)

        def shaken(x: Tensor) -> Tensor:
            words, padding = x[:, :length], x[:, length:]
            drawn = torch.stack([torch.randn(words.shape[1:], generator=g, dtype=torch.float64) for g in generators])
            spread = words.amax((1, 2), keepdim=True) - words.amin((1, 2), keepdim=True)
            return torch.cat([words + noise * spread * drawn.to(x), padding], 1)

        total: Tensor | None = None
        for _ in range(samples):
            gradient, vectors = _gradient(lens, rows, shaken)
            total = gradient if total is None else total + gradient
        assert total is not None
        return (total / samples * vectors).sum(-1)

    return _each(lens, items, one)


def _shrunk(share: float, x: Tensor) -> Tensor:
    return share * x


def _gradient(lens: Lens, rows: Sequence[Item], change: Change | None = None) -> tuple[Tensor, Tensor]:
    """The gradient at the changed word vectors, and the word vectors as they are: row position width."""
    found: list[Tensor] = []

    def leaf(x: Tensor) -> Tensor:
        x = x.detach()
        point = (x if change is None else change(x)).requires_grad_()
        found.extend((point, x))
        return point

    value = numbers(lens, rows, leaf)
    point, vectors = found
    (gradient,) = torch.autograd.grad(value.sum(), point)
    return gradient, vectors.detach()


def _each(lens: Lens, items: Sequence[Item], one: Callable[[Sequence[Item]], Tensor]) -> Scores:
    scores: dict[int, np.ndarray] = {}
    with evaluating(lens.model), torch.enable_grad():
        for batch in batches(items):
            found = one([items[i] for i in batch]).detach().cpu().double().numpy()
            scores.update((i, given[: len(items[i].ids)]) for i, given in zip(batch, found, strict=True))
    return [scores[i] for i in range(len(items))]
