"""The content hash: equal weights, equal hash; anything else shows, whatever a tensor's layout and dtype."""

from __future__ import annotations

import hashlib
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from normlens.provenance import content_hash


def tensors() -> dict[str, Tensor]:
    drawn = torch.Generator().manual_seed(0)
    return {
        "matrix": torch.randn(37, 41, generator=drawn),
        "of many squares": torch.randn(2100, 2042, generator=drawn),
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


def test_four_numbers_that_cancel_in_every_sum_show() -> None:
    """Row and column sums of the bytes, as whole numbers, stay the same."""
    found = {"matrix": torch.randn(1024, 1024, generator=torch.Generator().manual_seed(0))}
    changed = {"matrix": found["matrix"].clone()}
    pairs = changed["matrix"].view(torch.int64)
    moved = 12345 << 30
    pairs[3, 5] += moved
    pairs[3, 9] -= moved
    pairs[700, 5] -= moved
    pairs[700, 9] += moved
    sums = [(x["matrix"].view(torch.int64).sum(0), x["matrix"].view(torch.int64).sum(1)) for x in (found, changed)]
    assert all(torch.equal(one, two) for one, two in zip(*sums, strict=True))
    assert content_hash(model_of(found)) != content_hash(model_of(changed))


def test_the_hash_is_sha256_of_the_bytes() -> None:
    state = model_of(tensors()).state_dict()
    digest = hashlib.sha256()
    for name in sorted(state):
        tensor = state[name]
        digest.update(hashlib.sha256(f"{name} {tuple(tensor.shape)} {tensor.dtype}".encode()).digest())
        content = bytes(tensor.contiguous().flatten().view(torch.uint8).tolist())
        for start in range(0, max(1, len(content)), 1 << 22):
            digest.update(hashlib.sha256(content[start : start + (1 << 22)]).digest())
    assert content_hash(model_of(tensors())) == f"sha256-tree:{digest.hexdigest()}"


@pytest.mark.parametrize("distance", [2, 512, 1024, 2 * 256 * 256, 4 * 256 * 256, 3_000_000])
def test_two_numbers_that_change_places_show(distance: int) -> None:
    found, changed = tensors(), tensors()
    flat = changed["of many squares"].view(-1)
    flat[[7, 7 + distance]] = flat[[7 + distance, 7]]
    assert content_hash(model_of(found)) != content_hash(model_of(changed))


@pytest.mark.parametrize("rows", [(0, 1), (0, 256), (0, 1021), (5, 2043)])
def test_rows_that_change_places_show(rows: tuple[int, int]) -> None:
    found, changed = tensors(), tensors()
    matrix = changed["of many squares"]
    matrix[list(rows)] = matrix[list(reversed(rows))]
    assert content_hash(model_of(found)) != content_hash(model_of(changed))


def test_names_and_shapes_count() -> None:
    one = {"a": torch.zeros(6)}
    assert content_hash(model_of(one)) != content_hash(model_of({"b": torch.zeros(6)}))
    assert content_hash(model_of(one)) != content_hash(model_of({"a": torch.zeros(2, 3)}))
