"""Standard attention, a block of queries at a time, so that the weights never need to exist all at once."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from normlens.decompose import devices
from normlens.decompose.process import raise_mmap_threshold

#: On a CPU, up to so many weights are computed at once; another device takes what its memory holds.
WHOLE_NUMBERS = 4_000_000
#: Weights per block where there are more: little enough to stay in caches, and to see little under a causal mask.
BLOCK_NUMBERS = 2_000_000
#: Numbers in one sequence's queries (or weights) from which on, on a CPU, its own product costs less than laying out all.
WORTH_A_CALL = 50_000
#: Rows of a mask that are looked at together.
MASK_ROWS = 1024
#: Masks that are remembered; models with more than one (windows of attention beside full attention) take turns.
MASKS = 4

Feed = Callable[[Float[Tensor, "batch head block key"], int], None]


@dataclass(frozen=True)
class AttentionInputs:
    """The inputs of standard attention: `softmax(softcap(q k^T scaling) + bias + mask) v`, with an optional sink."""

    query: Float[Tensor, "batch head query width"]
    key: Float[Tensor, "batch kv_head key width"]
    value: Float[Tensor, "batch kv_head key value_width"]
    mask: Float[Tensor, "mask_batch mask_head mask_query key"] | None  # added to the scores
    scaling: float
    bias: Float[Tensor, "bias_batch head bias_query key"] | None = None  # relative positions
    softcap: float | None = None


@dataclass(frozen=True)
class MaskExtent:
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
        """Return True if the mask hides exactly the later keys from each of as many queries."""
        return self.untouched == self.shown == tuple(range(1, self.keys + 1))


def extent_of(mask: Float[Tensor, "mask_batch mask_head mask_query key"]) -> MaskExtent:
    """Look at a mask once: masks are quadratic, so a block of rows at a time."""
    keys, floor = mask.shape[-1], torch.finfo(mask.dtype).min / 2
    position = torch.arange(1, keys + 1, device=mask.device, dtype=torch.int32)
    untouched: list[Tensor] = []
    shown: list[Tensor] = []
    for start in range(0, mask.shape[-2], MASK_ROWS):
        rows = mask[..., start : start + MASK_ROWS, :].flatten(0, 1)
        touched = rows[0] != 0 if len(rows) == 1 else (rows != 0).any(0)  # query key
        untouched.append(torch.where(touched, position - 1, keys).amin(-1))
        # A row that shows nothing at all is spread over every key by softmax.
        last = ((rows > floor) * position).amax(-1)
        shown.append(torch.where(last == 0, keys, last).amax(0))
    both = torch.stack([torch.cat(untouched), torch.cat(shown)]).tolist()  # one wait
    return MaskExtent(keys, tuple(both[0]), tuple(both[1]))


class Scratch:
    """Resources that one forward pass reuses in every layer: memory for large blocks, and what is known of its masks.

    A system hands out large blocks page by page and takes them back when they are let go. For blocks that live for
    milliseconds that is expensive, so a pass keeps the few it needs.
    """

    def __init__(self) -> None:
        raise_mmap_threshold()
        self._blocks: dict[str, Tensor] = {}
        self._masks: list[tuple[Tensor, int, MaskExtent]] = []
        self._numbers: dict[torch.device, int] = {}

    def take(self, name: str, shape: tuple[int, ...], like: Tensor) -> Tensor:
        """A tensor of any content; it holds until the same name is taken again."""
        size, block = math.prod(shape), self._blocks.get(name)
        if block is None or block.numel() < size or (block.dtype, block.device) != (like.dtype, like.device):
            block = self._blocks[name] = like.new_empty(size)
        return block[:size].view(shape)

    def is_whole(self, numbers: int, device: torch.device) -> bool:
        """Return True if so many weights are computed at once."""
        return numbers <= (WHOLE_NUMBERS if device.type == "cpu" else self.block_numbers(device))

    def prefers_fused(self, numbers: int, device: torch.device) -> bool:
        """Return True if so many weights are better never computed, where only the diagonal is wanted."""
        return device.type == "cuda" or numbers > WHOLE_NUMBERS

    def rows(self, row: int, device: torch.device) -> int:
        """The number of queries in a block, where each has a row of so many weights."""
        if device.type == "cpu":
            return max(16, BLOCK_NUMBERS // row)
        return max(1, self.block_numbers(device) // row)

    def block_numbers(self, device: torch.device) -> int:
        """The number of entries that a block on another device than the CPU may hold."""
        if device not in self._numbers:  # asked once a pass
            self._numbers[device] = devices.block_numbers(device)
        return self._numbers[device]

    def extent(self, mask: Float[Tensor, "mask_batch mask_head mask_query key"]) -> MaskExtent:
        """The extent of a mask, worked out when it is first seen: layers are given the same one."""
        version = 0 if mask.is_inference() else mask._version
        for known, then, extent in self._masks:
            if known is mask and then == version:
                return extent
        found = extent_of(mask)
        self._masks = [*self._masks[1 - MASKS :], (mask, version, found)]
        return found


def attend(
    inputs: AttentionInputs, feed: Feed | None = None, scratch: Scratch | None = None
) -> Float[Tensor, "batch query head value_width"]:
    """The attention output; each block of weights is given to `feed` on the way, and is overwritten by the next one."""
    scratch = Scratch() if scratch is None else scratch
    batch, heads, queries, _ = inputs.query.shape
    keys = inputs.key.shape[2]
    row = max(1, batch * heads * keys)
    step = queries if scratch.is_whole(row * queries, inputs.query.device) else scratch.rows(row, inputs.query.device)
    output = inputs.query.new_empty(batch, queries, heads, inputs.value.shape[-1])
    for start in range(0, queries, step):
        stop = min(queries, start + step)
        alpha = _weights(inputs, start, stop, scratch)
        mixed = _grouped(alpha, inputs.value[:, :, : alpha.shape[-1]], "mixed", scratch)
        output[:, start:stop] = mixed.transpose(1, 2)
        if feed is not None:
            feed(alpha, start)
    return output


def _weights(
    inputs: AttentionInputs, start: int, stop: int, scratch: Scratch
) -> Float[Tensor, "batch head block seen"]:
    """The weights of a block of queries, on the keys that it can see at all: after them there is nothing to compute."""
    keys = inputs.key.shape[2]
    untouched, seen = (keys, keys) if inputs.mask is None else scratch.extent(inputs.mask).of(start, stop)
    query, key = inputs.query[:, :, start:stop], inputs.key[:, :, :seen].transpose(-1, -2)
    scores = _grouped(query, key, "scores", scratch, inputs.scaling)
    if inputs.softcap is not None:
        scores = scores.div_(inputs.softcap).tanh_().mul_(inputs.softcap)
    for term, first in ((inputs.bias, 0), (inputs.mask, untouched)):
        if term is not None and first < seen:
            rows = term if term.shape[-2] == 1 else term[..., start:stop, :]
            scores[..., first:] += rows[..., first:seen]
    if scores.device.type == "cpu" and scores.dtype in (torch.float32, torch.float64):
        return torch.softmax(scores, dim=-1, out=scores)
    return torch.softmax(scores, dim=-1, dtype=torch.promote_types(scores.dtype, torch.float32)).to(scores.dtype)


def _grouped(
    left: Float[Tensor, "batch head rows inner"],
    right: Float[Tensor, "batch kv_head inner columns"],
    name: str,
    scratch: Scratch,
    factor: float = 1.0,
) -> Float[Tensor, "batch head rows columns"]:
    """A matrix product times a factor, in which the heads of one group share the right-hand side; nothing is repeated."""
    batch, heads, rows, inner = left.shape
    groups, columns = right.shape[1], right.shape[-1]
    shared = heads // groups * rows
    out = scratch.take(name, (batch, groups, shared, columns), left)
    left = left.reshape(batch, groups, shared, inner)
    # A model's heads lie side by side in each position: one sequence is multiplied as it lies, several are laid out anew.
    if left.device.type == "cpu" and heads * rows * inner >= WORTH_A_CALL:
        products = zip(left.unbind(0), right.unbind(0), out.unbind(0), strict=True)
    else:
        products = zip(*((t.reshape(-1, *t.shape[2:]),) for t in (left, right, out)), strict=True)
    for a, b, to in products:
        torch.baddbmm(to, a, b, beta=0, alpha=factor, out=to)  # beta 0: what is in the block does not count
    return out.view(batch, heads, rows, columns)
