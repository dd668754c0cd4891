"""Protocols the slow way: one item, one set of tokens at a time; nothing here knows normlens."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch


def chance(model: Any, ids: list[int], output: int) -> float:
    """The probability of a label."""
    with torch.no_grad():
        return float(model(input_ids=torch.tensor([ids])).logits[0].double().softmax(-1)[output])


def drops(
    model: Any, ids: list[int], output: int, scores: np.ndarray, places: list[int], mask: int
) -> dict[str, float]:
    """ERASER's comprehensiveness and sufficiency, DecompX' AOPC from the top and from the bottom, with masked tokens."""
    whole = chance(model, ids, output)
    ranked = sorted(places, key=lambda k: (-scores[k], k))

    def without(gone: list[int]) -> float:
        return whole - chance(model, [mask if k in gone else token for k, token in enumerate(ids)], output)

    found: dict[str, list[float]] = {"comprehensiveness": [], "sufficiency": [], "aopc_top": [], "aopc_bottom": []}
    for percent in (1, 5, 10, 20, 50):
        count = math.ceil(percent * len(places) / 100)
        found["comprehensiveness"].append(without(ranked[:count]))
        found["sufficiency"].append(without(ranked[count:]))
    for percent in range(0, 100, 10):
        count = math.ceil(percent * len(places) / 100)
        found["aopc_top"].append(without(ranked[:count]))
        found["aopc_bottom"].append(without(ranked[::-1][:count]))
    return {name: float(np.mean(numbers)) for name, numbers in found.items()}
