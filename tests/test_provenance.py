"""The content hash: equal weights, equal hash; anything else shows, whatever a tensor's layout and dtype."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from normlens.provenance import content_hash


def tensors() -> dict[str, Tensor]:
    drawn = torch.Generator().manual_seed(0)
    return {
        "matrix": torch.randn(37, 41, generator=drawn),
        "as wide as the lanes": torch.randn(2100, 2042, generator=drawn),
        "number": torch.randn((), generator=drawn),
        "transposed": torch.randn(64, 32, generator=drawn).T,
        "part of another": torch.randn(9000, generator=drawn).half()[1:],
        "flags": torch.tensor([True, False, True]),
        "bfloat16": torch.randn(7, generator=drawn).bfloat16(),
        "whole numbers": torch.arange(5000)[3:],
        "complex": torch.randn(9, generator=drawn, dtype=torch.complex64),
        "nothing": torch.randn(0, 3),
    }


def model_of(found: dict[str, Tensor]) -> nn.Module:
    model = nn.Module()
    for name, tensor in found.items():
        model.register_buffer("of_" + name.replace(" ", "_"), tensor)
    return model


def test_equal_weights_have_an_equal_hash() -> None:
    copied: dict[str, Any] = {name: tensor.clone() for name, tensor in tensors().items()}
    assert content_hash(model_of(tensors())) == content_hash(model_of(copied))


@pytest.mark.parametrize("name", [name for name in tensors() if name != "nothing"])
def test_one_changed_number_shows(name: str) -> None:
    found, changed = tensors(), tensors()
    last = tuple(size - 1 for size in changed[name].shape)
    changed[name][last] = ~changed[name][last] if changed[name].dtype is torch.bool else changed[name][last] + 1
    assert content_hash(model_of(found)) != content_hash(model_of(changed))


@pytest.mark.parametrize("rows", [(0, 1), (0, 1019), (0, 1021), (5, 2043)])
def test_rows_that_change_places_show(rows: tuple[int, int]) -> None:
    found, changed = tensors(), tensors()
    matrix = changed["as wide as the lanes"]
    matrix[list(rows)] = matrix[list(reversed(rows))]
    assert content_hash(model_of(found)) != content_hash(model_of(changed))


def test_names_and_shapes_count() -> None:
    one = {"a": torch.zeros(6)}
    assert content_hash(model_of(one)) != content_hash(model_of({"b": torch.zeros(6)}))
    assert content_hash(model_of(one)) != content_hash(model_of({"a": torch.zeros(2, 3)}))
