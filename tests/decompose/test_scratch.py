"""What a pass keeps from layer to layer must not show in any number."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from normlens.decompose import attention as module
from normlens.decompose.attention import AttentionInputs, Scratch, attend, extent_of

FLOOR = torch.finfo(torch.float32).min


@st.composite
def some_masks(draw: st.DrawFn) -> Tensor:
    """Masks of any kind: nothing hidden, a few numbers added, keys hidden anywhere, whole rows hidden."""
    shape = draw(st.tuples(st.integers(1, 2), st.integers(1, 2), st.integers(1, 5), st.integers(1, 6)))
    numbers = st.sampled_from([0.0, 0.0, 0.0, -1.5, FLOOR, float("-inf")])
    count = shape[0] * shape[1] * shape[2] * shape[3]
    return torch.tensor(draw(st.lists(numbers, min_size=count, max_size=count))).view(shape)


@given(some_masks(), st.integers(1, 3))
def test_an_extent_says_what_loops_over_the_mask_say(mask: Tensor, rows_at_once: int) -> None:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(module, "MASK_ROWS", rows_at_once)
        found = extent_of(mask)
    keys = mask.shape[-1]
    for query in range(mask.shape[-2]):
        rows = [sequence_head[query].tolist() for sequence_head in mask.flatten(0, 1)]
        untouched = next((j for j in range(keys) if any(row[j] != 0 for row in rows)), keys)
        ends = [max((j + 1 for j in range(keys) if row[j] > FLOOR / 2), default=keys) for row in rows]
        assert (found.untouched[query], found.shown[query]) == (untouched, max(ends))


def test_a_causal_mask_is_told_from_others() -> None:
    causal = torch.full((2, 1, 4, 4), FLOOR).triu(1)
    assert extent_of(causal).causal
    padded, biased, wider = causal.clone(), causal.clone(), torch.zeros(1, 1, 3, 4)
    padded[1, ..., 0] = FLOOR
    biased[0, 0, 2, 1] = -1.0
    wider[..., 3] = FLOOR
    assert not any(
        extent_of(mask).causal for mask in (padded, biased, wider, torch.zeros(1, 1, 4, 4), causal[:, :, 1:])
    )


def test_a_mask_is_looked_at_again_when_it_changed() -> None:
    space, mask = Scratch(), torch.zeros(1, 1, 3, 3)
    assert space.extent(mask).of(0, 3) == (3, 3)
    assert space.extent(mask) is space.extent(mask)
    mask[..., 1:] = FLOOR
    assert space.extent(mask).of(0, 3) == (1, 1)


def test_only_a_few_masks_are_remembered() -> None:
    space, first = Scratch(), torch.zeros(1, 1, 2, 2)
    known = space.extent(first)
    for _ in range(module.MASKS):
        space.extent(torch.zeros(1, 1, 2, 2))
    assert space.extent(first) is not known


def test_memory_is_used_again_and_grows() -> None:
    space, like = Scratch(), torch.zeros(1)
    small = space.take("scores", (2, 3), like)
    assert space.take("scores", (3, 2), like).data_ptr() == small.data_ptr()
    assert space.take("vectors", (3, 2), like).data_ptr() != small.data_ptr()
    assert space.take("scores", (4, 4), like).shape == (4, 4)
    assert space.take("scores", (2, 2), like.double()).dtype == torch.float64


@pytest.mark.parametrize("apart", [1, 10**9])
def test_layers_of_different_size_in_one_workspace(apart: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each attention on memory full of another's numbers, and as models lay their heads out: side by side."""
    monkeypatch.setattr(module, "WORTH_A_CALL", apart)
    space, generator = Scratch(), torch.Generator().manual_seed(0)
    space.take("scores", (4096,), torch.zeros(1)).fill_(torch.nan)
    for length, groups in ((9, 4), (5, 2), (12, 1)):
        query, key, value = (
            torch.randn(3, length, heads, 8, generator=generator).transpose(1, 2) for heads in (4, groups, groups)
        )
        mask = torch.full((1, 1, length, length), FLOOR).triu(1)
        key_by_head, value_by_head = (t.repeat_interleave(4 // groups, 1) for t in (key, value))
        alpha = (query @ key_by_head.transpose(-1, -2) * 0.3 + mask).softmax(-1)
        found: list[Tensor] = []
        output = attend(
            AttentionInputs(query, key, value, mask, 0.3),
            lambda block, start, found=found: found.append(block.clone()),
            space,
        )
        torch.testing.assert_close(output, (alpha @ value_by_head).transpose(1, 2), rtol=1e-5, atol=1e-6)
        torch.testing.assert_close(found[0], alpha, rtol=1e-5, atol=1e-6)
