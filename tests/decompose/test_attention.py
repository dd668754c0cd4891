"""Attention in blocks, and its diagonal from fused attention, against softmax written out."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from normlens.decompose import attention as module
from normlens.decompose.attention import AttentionInputs, attend
from normlens.decompose.fused import attend_fused

LENGTH = 37


def inputs(mask: Tensor | None, heads: int = 4, groups: int = 2) -> AttentionInputs:
    generator = torch.Generator().manual_seed(0)

    def random(count: int) -> Tensor:
        return torch.randn(2, count, LENGTH, 8, generator=generator)

    return AttentionInputs(random(heads), random(groups), random(groups), mask, 8**-0.5)


def masks() -> dict[str, Tensor | None]:
    floor = torch.finfo(torch.float32).min
    causal = torch.full((LENGTH, LENGTH), floor).triu(1)[None, None]
    padding = torch.zeros(2, 1, LENGTH, LENGTH)
    padding[1, ..., 30:] = floor
    window = causal + torch.full((LENGTH, LENGTH), floor).tril(-5)[None, None] / 2
    return {"none": None, "causal": causal, "padding": padding, "both": causal.minimum(padding), "window": window}


def written_out(given: AttentionInputs) -> tuple[Tensor, Tensor]:
    group = given.query.shape[1] // given.key.shape[1]
    key, value = (tensor.repeat_interleave(group, 1).double() for tensor in (given.key, given.value))
    scores = given.query.double() @ key.transpose(-1, -2) * given.scaling
    alpha = (scores if given.mask is None else scores + given.mask.double()).softmax(-1)
    return alpha, (alpha @ value).transpose(1, 2)


@pytest.mark.parametrize("name", masks())
def test_blocks_give_all_weights_and_the_output(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "WHOLE_NUMBERS", 1)
    monkeypatch.setattr(module, "BLOCK_NUMBERS", 1)  # the smallest blocks there are
    given = inputs(masks()[name])
    alpha, output = written_out(given)
    seen = torch.zeros_like(alpha)

    def feed(block: Tensor, start: int) -> None:
        seen[:, :, start : start + block.shape[2], : block.shape[3]] = block.double()

    torch.testing.assert_close(attend(given, feed).double(), output, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(seen, alpha, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", masks())
def test_single_weights_come_without_all_of_them(name: str) -> None:
    given = inputs(masks()[name])
    alpha, output = written_out(given)
    found = attend_fused(given)
    assert found is not None
    torch.testing.assert_close(found.output.double(), output, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(found.diagonal().double(), alpha.diagonal(dim1=-2, dim2=-1), rtol=1e-5, atol=1e-6)
