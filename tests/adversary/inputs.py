"""Odd inputs: masks of every rank and dtype, vectors, positions, packed rows, one token, equal lengths, left padding."""

from __future__ import annotations

from random import Random
from typing import Any

import torch
from torch import Tensor

Inputs = dict[str, Any]


def lengths_of(random: Random, rows: int) -> list[int]:
    """One to nine positions each, often equal."""
    if random.random() < 0.4:
        return [random.choice((1, 2, 5, 9))] * rows
    return [random.randint(1, 9) for _ in range(rows)]


def padding(random: Random, lengths: list[int]) -> Tensor:
    """1 where a position is real: padded on the right, on the left, or with holes."""
    longest = max(lengths)
    mask = torch.zeros(len(lengths), longest, dtype=torch.long)
    how = random.choice(("right", "right", "left", "holes"))
    for row, length in enumerate(lengths):
        if how == "right":
            mask[row, :length] = 1
        elif how == "left":
            mask[row, longest - length :] = 1
        else:
            mask[row, random.sample(range(longest), length)] = 1
    return mask


def pair_mask(random: Random, rows: int, n: int) -> Tensor:
    """True where a query sees a key; every query sees itself. Causal, packed sequences, a window, or any."""
    how = random.choice(("causal", "packed", "window", "any", "last key hidden"))
    place = torch.arange(n)
    if how == "causal":
        shown = place.unsqueeze(1) >= place
    elif how == "packed":
        part = place >= random.randint(1, max(1, n - 1))
        shown = (part.unsqueeze(1) == part) & (place.unsqueeze(1) >= place)
    elif how == "window":
        shown = (place.unsqueeze(1) - place).abs() <= random.choice((0, 1, 2))
    elif how == "any":
        generator = torch.Generator().manual_seed(random.randrange(2**31))
        shown = torch.rand(rows, n, n, generator=generator) < 0.6
    else:
        shown = (place != n - 1).expand(n, n)
    shown = shown | torch.eye(n, dtype=torch.bool)
    return shown.expand(rows, n, n) if shown.ndim == 2 else shown


def ids_of(random: Random, rows: int, n: int, vocabulary: int) -> Tensor:
    generator = torch.Generator().manual_seed(random.randrange(2**31))
    return torch.randint(4, vocabulary - 2, (rows, n), generator=generator)


def vectors_of(random: Random, rows: int, n: int, width: int, dtype: torch.dtype) -> Tensor:
    generator = torch.Generator().manual_seed(random.randrange(2**31))
    return torch.randn(rows, n, width, generator=generator).to(dtype)


def dressed(random: Random, mask: Tensor) -> Tensor:
    """The same mask in another dtype."""
    return mask.to(random.choice((torch.long, torch.bool, torch.float32, torch.int32)))


def additive(shown: Tensor, dtype: torch.dtype, lowest: float) -> Tensor:
    return torch.zeros(shown.shape, dtype=dtype).masked_fill(~shown, lowest)
