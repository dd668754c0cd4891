"""What one forward pass uses in every layer again: memory for large blocks, and what is known of a mask.

A system hands out large blocks page by page and takes them back when they are let go. For blocks that live for
milliseconds that is dear, so a pass keeps the few it needs.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache

import torch
from jaxtyping import Float
from torch import Tensor

#: Rows of a mask that are looked at together: masks are quadratic, and what is made of them on the way should not be.
MASK_ROWS = 1024
#: Just below 32 MiB, the largest block whose release moves glibc's thresholds.
THRESHOLD_BYTES = 2**25 - 2**16
#: Masks that are remembered; models with more than one (windows of attention beside full attention) take turns.
MASKS = 4


@dataclass(frozen=True)
class Outline:
    """Of a mask that is added to scores, for each of its rows: how many keys it leaves alone, and how many it shows."""

    keys: int
    untouched: tuple[int, ...]  # leading keys to which nothing is added, in any sequence and head
    shown: tuple[int, ...]  # keys up to the last one that is visible in some sequence and head

    def of(self, start: int, stop: int) -> tuple[int, int]:
        """The same two numbers for the queries from `start` to `stop` together."""
        rows = slice(start, stop) if len(self.shown) > 1 else slice(None)
        return min(self.untouched[rows]), max(self.shown[rows])

    @property
    def causal(self) -> bool:
        """Whether the mask hides exactly the later keys from each of as many queries."""
        return self.untouched == self.shown == tuple(range(1, self.keys + 1))


def outline_of(mask: Float[Tensor, "mask_batch mask_head mask_query key"]) -> Outline:
    """Look at a mask once."""
    keys, floor = mask.shape[-1], torch.finfo(mask.dtype).min / 2
    position = torch.arange(1, keys + 1, device=mask.device, dtype=torch.int32)
    untouched: list[int] = []
    shown: list[int] = []
    for start in range(0, mask.shape[-2], MASK_ROWS):
        rows = mask[..., start : start + MASK_ROWS, :].flatten(0, 1)
        touched = rows[0] != 0 if len(rows) == 1 else (rows != 0).any(0)  # query key
        untouched += torch.where(touched, position - 1, keys).amin(-1).tolist()
        # A row that shows nothing at all is spread over every key by softmax.
        last = ((rows > floor) * position).amax(-1)
        shown += torch.where(last == 0, keys, last).amax(0).tolist()
    return Outline(keys, tuple(untouched), tuple(shown))


@cache
def settle_heap() -> None:
    """Ask once for a large block, and let it go untouched.

    glibc returns the top of its heap to the system as soon as enough of it is free, which in a model is so in every layer,
    and the next tensors come back page by page: up to a fifth of a pass. "Enough" is twice the largest block that was
    mapped and released so far (`M_MMAP_THRESHOLD` in mallopt(3)); other allocators do not notice this call.
    """
    torch.empty(THRESHOLD_BYTES, dtype=torch.uint8)


class Workspace:
    """Blocks of memory by name, and outlines of masks."""

    def __init__(self) -> None:
        settle_heap()
        self._blocks: dict[str, Tensor] = {}
        self._masks: list[tuple[Tensor, int, Outline]] = []

    def take(self, name: str, shape: tuple[int, ...], like: Tensor) -> Tensor:
        """A tensor of any content; it holds until the same name is taken again."""
        size, block = math.prod(shape), self._blocks.get(name)
        if block is None or block.numel() < size or (block.dtype, block.device) != (like.dtype, like.device):
            block = self._blocks[name] = like.new_empty(size)
        return block[:size].view(shape)

    def outline(self, mask: Float[Tensor, "mask_batch mask_head mask_query key"]) -> Outline:
        """The outline of a mask, worked out when it is first seen: layers are given the same one."""
        version = 0 if mask.is_inference() else mask._version
        for known, then, outline in self._masks:
            if known is mask and then == version:
                return outline
        found = outline_of(mask)
        self._masks = [*self._masks[1 - MASKS :], (mask, version, found)]
        return found
