"""The terms of attention edges: `alpha_hij f_h(x_j) · ∂value/∂(attention output at i)`, a few queries at a time."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from normlens.types import Options

#: Numbers in a block of pairs: what a processor's cache holds twice; elsewhere what is held beside the result.
_CACHED, _HELD = 1 << 18, 1 << 24
#: Below this a mask hides a key.
_HIDDEN = -1e30


@dataclass(frozen=True)
class FusedWeights:
    """Attention weights that were never there as a whole: queries and keys, from which a few rows can be had."""

    query: Tensor  # … head query width
    key: Tensor  # … head key width
    mask: Tensor | None
    options: Options  # is_causal, scale, enable_gqa

    def rows(self, first: int, last: int) -> Tensor:
        """The weights of some queries, over the keys that any of them sees (from the first on)."""
        mask = self.mask
        if mask is not None and mask.shape[-2] > 1:
            mask = mask[..., first:last, :]
        keys = self._seen(mask, last)
        mask = mask if mask is None or mask.shape[-1] == 1 else mask[..., :keys]
        query, key = self.query[..., first:last, :], self.key[..., :keys, :]
        weights = torch.softmax(scores_of(query, key, mask, self.options, first), -1)
        return weights if mask is None else weights.nan_to_num_(0.0)  # a row of padding may see nothing at all

    def _seen(self, mask: Tensor | None, last: int) -> int:
        keys = self.key.shape[-2]
        if self.options.get("is_causal"):
            keys = min(keys, last)
        if mask is None or mask.device.type != "cpu" or mask.shape[-1] != self.key.shape[-2]:
            return keys  # off the CPU the host does not wait for a mask
        shown = mask if mask.dtype == torch.bool else mask > _HIDDEN
        if not bool(shown.any(-1).all()):  # a row that sees nothing looks at everything alike
            return keys
        columns = shown.flatten(0, -2).any(0).nonzero()
        return min(keys, int(columns[-1]) + 1)


def scores_of(query: Tensor, key: Tensor, mask: Tensor | None, options: Options, first: int = 0) -> Tensor:
    """The scores before the softmax, as scaled dot-product attention has them; `first` is the number of the first query."""
    if options.get("enable_gqa"):
        key = key.repeat_interleave(query.shape[-3] // key.shape[-3], dim=-3)
    scale: float = options.get("scale") or query.shape[-1] ** -0.5
    scores = torch.matmul(query * scale, key.transpose(-1, -2))
    if options.get("is_causal"):
        hidden = torch.ones(query.shape[-2], key.shape[-2], dtype=torch.bool, device=query.device).triu(first + 1)
        scores = scores.masked_fill(hidden, float("-inf"))
    if mask is not None:
        scores = scores.masked_fill(~mask, float("-inf")) if mask.dtype == torch.bool else scores + mask
    return scores


#: Attention weights as they were seen: whole, or as what they are made of.
AttentionWeights = Tensor | FusedWeights


@dataclass(frozen=True)
class TopEdges:
    """The strongest edges of one attention, and what all of its edges come to."""

    values: Tensor  # row edge
    places: Tensor  # row edge: (head, query, key) as one number
    shape: tuple[int, int, int]  # heads, queries, keys
    total: Tensor  # row: the sum of all edges
    absolute: Tensor  # row: the sum of their absolute values

    def row(self, row: int) -> TopEdges:
        """Those of one row alone."""
        mine = slice(row, row + 1)
        return TopEdges(self.values[mine], self.places[mine], self.shape, self.total[mine], self.absolute[mine])


def with_heads(x: Tensor, rows: int) -> Tensor | None:
    """Row, head, query, width; None where an attention has its heads elsewhere."""
    if x.ndim == 4 and x.shape[0] == rows:
        return x
    if x.ndim == 3 and x.shape[0] % rows == 0:
        return x.reshape(rows, -1, *x.shape[1:])
    return None


def all_edges(
    weights: AttentionWeights, values: Tensor, gradient: Tensor, rows: int
) -> tuple[Tensor, Tensor] | tuple[None, None]:
    """Row, head, query, key, and their sums by row and head; None where weights and values do not fit each other."""
    found: Tensor | None = None
    total: Tensor | None = None
    queries, keys = gradient.shape[-2], values.shape[-2]
    for first, block in _blocks(weights, values, gradient, rows):
        if found is None:
            kind = torch.float64 if block.dtype == torch.float64 else torch.float32
            shape = (rows, block.shape[1], queries, keys)
            found = torch.zeros(shape, dtype=kind, device=block.device)
        found[:, :, first : first + block.shape[2], : block.shape[3]] = block
        given = block.sum((-1, -2))  # while the block is in the cache
        total = given if total is None else total + given
    return (None, None) if found is None or total is None else (found, total.cpu().double())


def strongest_edges(
    weights: AttentionWeights, values: Tensor, gradient: Tensor, rows: int, count: int
) -> TopEdges | None:
    """The strongest `count` edges of each row; no more than a block of all of them is ever there."""
    best = places = None
    total = absolute = torch.zeros(rows, dtype=torch.float64)
    wide = torch.float64 if gradient.device.type == "cpu" else gradient.dtype  # no float64 on another device
    queries, keys, shape = gradient.shape[-2], values.shape[-2], (0, 0, 0)
    for first, block in _blocks(weights, values, gradient, rows):
        _, heads, some, seen = block.shape
        shape = (heads, queries, keys)
        flat = block.flatten(1)
        total = total + flat.sum(1, dtype=wide).cpu().double()
        absolute = absolute + flat.abs().sum(1, dtype=wide).cpu().double()
        index = flat.abs().topk(min(count, flat.shape[1]), 1).indices
        head, query, key = index // (some * seen), first + index // seen % some, index % seen
        found, where = flat.gather(1, index), (head * queries + query) * keys + key
        if best is not None and places is not None:
            found, where = torch.cat([best, found], 1), torch.cat([places, where], 1)
            kept = found.abs().topk(min(count, found.shape[1]), 1).indices
            found, where = found.gather(1, kept), where.gather(1, kept)
        best, places = found, where
    if best is None or places is None:
        return None
    return TopEdges(best.cpu().double(), places.cpu(), shape, total, absolute)


def _blocks(weights: AttentionWeights, values: Tensor, gradient: Tensor, rows: int) -> Iterator[tuple[int, Tensor]]:
    """The first query of a few, and their edges (row, head, query, key; later keys that none of them sees are left out)."""
    if isinstance(weights, FusedWeights) and weights.options.get("enable_gqa"):
        values = values.repeat_interleave(weights.query.shape[-3] // values.shape[-3], dim=-3)
    queries, keys = gradient.shape[-2], values.shape[-2]
    size = _CACHED if gradient.device.type == "cpu" else _HELD
    step = max(1, size // max(1, gradient[..., 0, 0].numel() * keys))
    for first in range(0, queries, step):
        last = min(queries, first + step)
        alpha = weights[..., first:last, :] if isinstance(weights, Tensor) else weights.rows(first, last)
        given = torch.matmul(gradient[..., first:last, :], values[..., : alpha.shape[-1], :].transpose(-1, -2))
        found = with_heads(given.mul_(alpha), rows) if given.shape == alpha.shape else None
        if found is None:
            return
        yield first, found
