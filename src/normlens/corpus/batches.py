"""Batches of sequences of one length, and the quantities of a site for all statistics.

Batches are made within chunks of 64 consecutive sequences, whose borders are multiples of 64 and do not depend on ranges.
So a sequence always shares its forward pass with the same neighbours, and its numbers are the same for every engine, every
range and every restart.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from jaxtyping import Bool, Float, Int, UInt8
from torch import Tensor

from normlens.corpus.bins import BinNumbers
from normlens.corpus.options import Plan, binning_of, has_heads, level_of
from normlens.corpus.sequences import TokenSequence
from normlens.inputs.encoding import pad_rows
from normlens.measures.run import SiteResult
from normlens.measures.table import MIXING

#: Sequences that are read, computed and counted together.
CHUNK_SIZE = 64

#: Products of fewer rows are rounded in their own way, and by threads.
_FEW_POSITIONS = 16


@dataclass(frozen=True)
class Side:
    """The tokens on one axis of a site, for all sequences of a batch."""

    ids: Int[np.ndarray, "batch position"]
    category: UInt8[np.ndarray, "batch position"]

    @cached_property
    def groups(self) -> CategoryGroups:
        """Positions sorted by sequence and category."""
        return CategoryGroups.of(self.category)


@dataclass(frozen=True)
class Batch:
    """Sequences of one length, without padding."""

    sequences: Sequence[TokenSequence]

    @cached_property
    def source(self) -> Side:
        """The tokens that the model reads."""
        return Side(np.stack([s.ids for s in self.sequences]), np.stack([s.category for s in self.sequences]))

    @cached_property
    def target(self) -> Side | None:
        """The decoder's input tokens of an encoder-decoder model."""
        targets = [sequence.target for sequence in self.sequences if sequence.target is not None]
        if not targets:
            return None
        return Side(np.stack([target.ids for target in targets]), np.stack([target.category for target in targets]))

    @property
    def sides(self) -> list[Side]:
        """Source and target."""
        return [self.source] if self.target is None else [self.source, self.target]

    def queries(self, kind: str) -> Side:
        """Return the tokens of the query axis of a kind of site."""
        return self.source if self.target is None or kind == "encoder" else self.target

    def keys(self, kind: str) -> Side:
        """Return the tokens of the key axis of a kind of site."""
        return self.source if kind == "cross" else self.queries(kind)

    def inputs(self, device: torch.device) -> dict[str, Tensor]:
        """Return the inputs of the model; nothing needs padding."""
        return pad_rows([sequence.inputs for sequence in self.sequences], 0, device)

    @contextmanager
    def steady_rounding(self) -> Iterator[None]:
        """Inside, few positions are rounded the same whatever number of threads the process has."""
        threads = torch.get_num_threads()
        fewest = min(side.ids.size for side in self.sides)
        if fewest < _FEW_POSITIONS:
            torch.set_num_threads(1)
        try:
            yield
        finally:
            torch.set_num_threads(threads)


def batched(sequences: Sequence[TokenSequence], size: int) -> Iterator[Batch]:
    """Yield batches of at most `size` sequences of equal length (on both sides), shortest first."""
    ordered = sorted(sequences, key=lambda sequence: sequence.lengths)  # stable: the corpus order among equals
    start = 0
    while start < len(ordered):
        stop = start
        while stop < min(start + size, len(ordered)) and ordered[stop].lengths == ordered[start].lengths:
            stop += 1
        yield Batch(ordered[start:stop])
        start = stop


def default_batch_size(on_gpu: bool) -> int:
    """Return the default batch size: few sequences on a CPU, whose cache they should fit, more on a GPU."""
    return 64 if on_gpu else 8


@dataclass(frozen=True)
class CategoryGroups:
    """Positions of a batch, sorted by sequence and category, so that sums over a group are sums over a slice."""

    order: Int[np.ndarray, " position"]  # of the flattened (batch, position)
    starts: Int[np.ndarray, " group"]
    sequence: Int[np.ndarray, " group"]
    category: Int[np.ndarray, " group"]
    sizes: Int[np.ndarray, " group"]
    flat: UInt8[np.ndarray, " position"]  # the category of each position of the flattened batch

    @classmethod
    def of(cls, category: UInt8[np.ndarray, "batch position"]) -> CategoryGroups:
        """Return the groups of a batch from its category codes."""
        batch, length = category.shape
        code = (np.arange(batch)[:, None] * 256 + category).reshape(-1)
        order = np.argsort(code, kind="stable")
        starts = np.flatnonzero(np.diff(code[order], prepend=-1))
        sizes = np.diff(np.append(starts, batch * length))
        return cls(order, starts, code[order][starts] // 256, code[order][starts] % 256, sizes, category.reshape(-1))

    def reduce(
        self, operation: np.ufunc, values: Float[np.ndarray, "batch head position"]
    ) -> Float[np.ndarray, "head group"]:
        """Return the sum, minimum or maximum of each group."""
        flat = values.transpose(1, 0, 2).reshape(values.shape[1], -1)[:, self.order]
        return np.asarray(operation.reduceat(flat, self.starts, axis=1))

    def by_category(
        self, values: Float[np.ndarray, "batch head position"], categories: int
    ) -> Float[np.ndarray, "category head"]:
        """Return the sum over each category of the batch."""
        onehot = (self.category[:, None] == np.arange(categories)).astype(np.float64)
        return np.asarray(onehot.T @ self.reduce(np.add, values).T)


@dataclass(frozen=True)
class QuerySums:
    """A quantity per position, summed over the queries: count, sum, sum of squares and extremes, in float64."""

    count: Int[np.ndarray, " position"]  # the number of values of each position
    total: Float[np.ndarray, "batch head position"]
    square: Float[np.ndarray, "batch head position"]
    low: Float[np.ndarray, "batch head position"]
    high: Float[np.ndarray, "batch head position"]

    @classmethod
    def of_pairs(
        cls, value: Float[np.ndarray, "batch head query key"], keep: Bool[np.ndarray, "query key"] | None
    ) -> QuerySums:
        """Sum a value per (query, key) pair over the queries; `keep` selects the pairs that count."""
        queries, keys = value.shape[2:]
        if keep is None:
            low, high, count = value.min(2), value.max(2), np.full(keys, queries)
        else:
            low, high = np.where(keep, value, np.inf).min(2), np.where(keep, value, -np.inf).max(2)
            value, count = np.where(keep, value, 0.0), keep.sum(0)
        total, square = value.sum(2, dtype=np.float64), (value * value).sum(2, dtype=np.float64)
        return cls(count, total, square, low.astype(np.float64), high.astype(np.float64))

    @classmethod
    def of_positions(cls, value: Float[np.ndarray, "batch head position"]) -> QuerySums:
        """Take a value per position as its own sum."""
        plain = value.astype(np.float64)
        return cls(np.ones(plain.shape[-1], dtype=np.int64), plain, plain**2, plain, plain)

    @property
    def means(self) -> Float[np.ndarray, "batch head position"]:
        """The mean over the queries."""
        return np.asarray(self.total / self.count)

    @property
    def queries(self) -> int:
        """The largest number of queries of a key."""
        return int(self.count.max())

    def times(self, other: QuerySums) -> QuerySums:
        """Return this quantity, nowhere negative, times one with a single value per position: ‖αf‖ from alpha and ‖f‖."""
        factor = other.total
        return QuerySums(
            self.count, self.total * factor, self.square * factor**2, self.low * factor, self.high * factor
        )


class SiteValues:
    """The quantities of one site for one batch, and what several statistics derive from them."""

    def __init__(self, plan: Plan, batch: Batch, result: SiteResult) -> None:
        self.plan, self.batch, self.kind, self.layer = plan, batch, result.kind, result.layer
        self.keys, self.queries = batch.keys(result.kind), batch.queries(result.kind)
        # In a decoder a key after its query is no pair at all, rather than a pair of weight 0.
        self.keep: Bool[np.ndarray, "query key"] | None = None
        if result.kind == "decoder":
            self.keep = np.tri(self.keys.ids.shape[1], dtype=bool)
        self.values: dict[str, Float[np.ndarray, "batch head *rest"]] = {}
        for name, value in result.values.items():
            self.values[name] = _array(value, has_heads(name))
        for name, ratio in result.mixing.items():
            self.values[MIXING + name] = _array(ratio, False)
        self._sums: dict[str, QuerySums] = {}
        self._bins: dict[str, BinNumbers] = {}

    @property
    def categories(self) -> int:
        """The number of categories."""
        return len(self.plan.categories)

    @property
    def quantities(self) -> list[str]:
        """The quantities that this site has, ‖αf‖ also where it is derived."""
        names = list(self.values)
        if "af_norm" in self.plan.measures and "af_norm" not in names and "alpha" in names:
            names.append("af_norm")
        return names

    def side(self, name: str) -> Side:
        """Return the tokens that a quantity belongs to; a pair belongs to its key."""
        return self.queries if level_of(name) == "query" else self.keys

    def sums(self, name: str) -> QuerySums:
        """Return a quantity summed over the queries."""
        if name not in self._sums:
            self._sums[name] = self._summed(name)
        return self._sums[name]

    def bins(self, name: str) -> BinNumbers:
        """Return the bins of a quantity."""
        if name not in self._bins:
            self._bins[name] = binning_of(name).find(self.values[name])
        return self._bins[name]

    def _summed(self, name: str) -> QuerySums:
        if name in self.values:
            value = self.values[name]
            return QuerySums.of_pairs(value, self.keep) if value.ndim == 4 else QuerySums.of_positions(value)
        alpha = self.sums("alpha")  # ‖αf‖, which was not computed by itself
        if (alpha.low >= 0).all():
            return alpha.times(self.sums("f_norm"))
        # Signed weights (differential attention): the magnitudes must be taken before they are summed.
        return QuerySums.of_pairs(np.abs(self.values["alpha"]) * self.values["f_norm"][:, :, None], self.keep)


def _array(value: Tensor, by_head: bool) -> Float[np.ndarray, "batch head *rest"]:
    array: np.ndarray = value.cpu().float().numpy()
    return array if by_head else array[:, None]


@dataclass(frozen=True)
class TokenAxis:
    """Tokens of a batch, and the quantities of a kind of site that they have, averaged over heads (and queries)."""

    kind: str
    side: Side
    layers: Sequence[int]
    values: dict[str, list[Float[np.ndarray, "batch position"]]]  # quantity -> one array per layer
    purpose: str  # names the random numbers that are drawn for them

    def means(self) -> dict[str, Float[np.ndarray, "batch position"]]:
        """Return each quantity averaged over the layers."""
        return {name: np.mean(arrays, axis=0) for name, arrays in self.values.items()}


class BatchValues:
    """The quantities of all sites of a batch, averaged over heads (and queries)."""

    def __init__(self, batch: Batch) -> None:
        self.batch = batch
        self._layers: dict[str, list[int]] = {}
        self._values: dict[str, dict[str, list[Float[np.ndarray, "batch position"]]]] = {}

    def add(self, site: SiteValues) -> None:
        """Take in one site."""
        self._layers.setdefault(site.kind, []).append(site.layer)
        values = self._values.setdefault(site.kind, {})
        for name in site.quantities:
            values.setdefault(name, []).append(site.sums(name).means.mean(axis=1))

    def axes(self) -> Iterator[TokenAxis]:
        """Yield the tokens with their quantities; in cross-attention keys and queries are different tokens."""
        for kind, layers in self._layers.items():
            by_key: dict[str, list[np.ndarray]] = {}
            by_query: dict[str, list[np.ndarray]] = {}
            for name, arrays in self._values[kind].items():
                apart = kind == "cross" and level_of(name) == "query"
                (by_query if apart else by_key)[name] = arrays
            yield TokenAxis(kind, self.batch.keys(kind), layers, by_key, kind)
            if by_query:
                yield TokenAxis(kind, self.batch.queries(kind), layers, by_query, f"{kind} queries")
