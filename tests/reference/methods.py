"""Methods the slow way: one token, one step, one layer at a time, from the equations; nothing here knows normlens."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

#: The number that a model puts out for word vectors (position, width).
Value = Callable[[Tensor], float]


def value_of(model: Any, output: int, against: int | None, position: int | None) -> Value:
    """The logit of `output`, less that of `against`, for word vectors that are handed in."""

    def value(vectors: Tensor) -> float:
        with torch.no_grad():
            logits = model(inputs_embeds=vectors[None]).logits[0]
        scores = logits if position is None else logits[position]
        return float(scores[output]) - (0.0 if against is None else float(scores[against]))

    return value


def gradient_x_input(value: Value, vectors: Tensor, at: Tensor | None = None, step: float = 1e-3) -> np.ndarray:
    """`x_k · ∂value/∂x_k` by central differences along `x_k`, at `at` (the vectors themselves without it)."""
    point = vectors if at is None else at
    found = []
    for k in range(len(vectors)):
        moved = []
        for sign in (1, -1):
            shifted = point.clone()
            shifted[k] += sign * step * vectors[k]
            moved.append(value(shifted))
        found.append((moved[0] - moved[1]) / (2 * step))
    return np.array(found)


def integrated_gradients(value: Value, vectors: Tensor, steps: int) -> np.ndarray:
    """The mean over midpoints of `[0, 1]` of the above at `t x`."""
    return np.mean([gradient_x_input(value, vectors, vectors * (i + 0.5) / steps) for i in range(steps)], axis=0)


def erasure(model: Any, ids: list[int], output: int, mask: int | None, position: int | None) -> np.ndarray:
    """`value - value without token k`: deleted without a mask, else masked."""

    def value(kept: list[int], place: int | None) -> float:
        with torch.no_grad():
            logits = model(input_ids=torch.tensor([kept])).logits[0]
        return float((logits if place is None else logits[place])[output])

    whole = value(ids, position)
    found = []
    for k in range(len(ids)):
        if mask is None:
            kept, place = ids[:k] + ids[k + 1 :], None if position is None else len(ids) - 2
        else:
            kept, place = [*ids[:k], mask, *ids[k + 1 :]], position
        found.append(whole - value(kept, place))
    return np.array(found)


def attention_rollout(model: Any, ids: list[int], row: int) -> np.ndarray:
    """A row of the product over layers of `½ mean over heads of α + ½ I`."""
    with torch.no_grad():
        layers = model(input_ids=torch.tensor([ids]), output_attentions=True).attentions
    joint = np.eye(len(ids))
    for layer in layers:
        mean = layer[0].double().numpy().mean(0)
        mixed = 0.5 * mean + 0.5 * np.eye(len(ids))
        joint = (mixed / mixed.sum(-1, keepdims=True)) @ joint
    return joint[row]
