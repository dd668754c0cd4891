"""Sequences of one length as a batch, and sums over its queries and categories, which statistics are made of."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from jaxtyping import Bool, Float, Int, UInt8
from torch import Tensor

from normlens.corpus.accumulators.moments import Moments
from normlens.corpus.reading.sequences import TokenSequence
from normlens.inputs.encoding import pad_rows


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
    """Sequences of one length: nothing is padded, so a sequence's numbers do not depend on its neighbours."""

    sequences: Sequence[TokenSequence]

    @cached_property
    def source(self) -> Side:
        """What the model reads."""
        return Side(np.stack([s.ids for s in self.sequences]), np.stack([s.category for s in self.sequences]))

    @cached_property
    def target(self) -> Side | None:
        """What an encoder-decoder model writes."""
        written = [sequence.target for sequence in self.sequences if sequence.target is not None]
        if not written:
            return None
        return Side(np.stack([target.ids for target in written]), np.stack([target.category for target in written]))

    @property
    def sides(self) -> list[Side]:
        """All tokens."""
        return [self.source] if self.target is None else [self.source, self.target]

    def queries(self, kind: str) -> Side:
        """The tokens that stand at the query axis of a kind of site."""
        return self.source if self.target is None or kind == "encoder" else self.target

    def keys(self, kind: str) -> Side:
        """The tokens that stand at the key axis of a kind of site."""
        return self.source if kind == "cross" else self.queries(kind)

    def inputs(self, pad: int, device: torch.device) -> dict[str, Tensor]:
        """What the model is called with."""
        return pad_rows([sequence.inputs for sequence in self.sequences], pad, device)


def batched(sequences: Sequence[TokenSequence], size: int) -> Iterator[Batch]:
    """Batches of at most `size` sequences of equal length (on both sides), shortest first."""
    ordered = sorted(sequences, key=lambda sequence: sequence.lengths)  # stable: the corpus order among equals
    start = 0
    while start < len(ordered):
        stop = start
        while stop < min(start + size, len(ordered)) and ordered[stop].lengths == ordered[start].lengths:
            stop += 1
        yield Batch(ordered[start:stop])
        start = stop


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
        """The groups of a batch from its category codes."""
        batch, length = category.shape
        code = (np.arange(batch)[:, None] * 256 + category).reshape(-1)
        order = np.argsort(code, kind="stable")
        starts = np.flatnonzero(np.diff(code[order], prepend=-1))
        sizes = np.diff(np.append(starts, batch * length))
        return cls(order, starts, code[order][starts] // 256, code[order][starts] % 256, sizes, category.reshape(-1))

    def reduce(
        self, operation: np.ufunc, values: Float[np.ndarray, "batch head position"]
    ) -> Float[np.ndarray, "head group"]:
        """Sum, minimum or maximum of each group."""
        flat = values.transpose(1, 0, 2).reshape(values.shape[1], -1)[:, self.order]
        return np.asarray(operation.reduceat(flat, self.starts, axis=1))

    def by_category(
        self, values: Float[np.ndarray, "batch head position"], categories: int
    ) -> Float[np.ndarray, "category head"]:
        """Sum over each category of the batch."""
        onehot = (self.category[:, None] == np.arange(categories)).astype(values.dtype)
        return np.asarray(onehot.T @ self.reduce(np.add, values).T)


@dataclass(frozen=True)
class QuerySums:
    """A quantity per position, summed over the queries: count, sum, sum of squares and extremes, in float64."""

    count: Int[np.ndarray, " position"]  # how many values each position stands for
    total: Float[np.ndarray, "batch head position"]
    square: Float[np.ndarray, "batch head position"]
    low: Float[np.ndarray, "batch head position"]
    high: Float[np.ndarray, "batch head position"]

    @classmethod
    def of_pairs(
        cls, value: Float[np.ndarray, "batch head query key"], keep: Bool[np.ndarray, "query key"] | None
    ) -> QuerySums:
        """A value per (query, key) pair, summed over the queries; `keep` selects the pairs that count."""
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
        """A value per position is its own sum."""
        plain = value.astype(np.float64)
        return cls(np.ones(plain.shape[-1], dtype=np.int64), plain, plain**2, plain, plain)

    @property
    def means(self) -> Float[np.ndarray, "batch head position"]:
        """The mean over the queries."""
        return np.asarray(self.total / self.count)

    @property
    def queries(self) -> int:
        """How many queries a key was seen from at most."""
        return int(self.count.max())

    def times(self, other: QuerySums) -> QuerySums:
        """This quantity, nowhere negative, times one with a single value per position: ‖αf‖ from alpha and ‖f‖."""
        factor = other.total
        return QuerySums(
            self.count, self.total * factor, self.square * factor**2, self.low * factor, self.high * factor
        )

    def product_sums(self, other: QuerySums) -> tuple[np.ndarray, ...]:
        """Count and sums of x, y, x², y², xy per position, where `other` has one value per position."""
        x, xx, y, count = np.broadcast_arrays(self.total, self.square, other.total, self.count)
        return count, x, count * y, xx, count * y**2, x * y

    def moments(self, groups: CategoryGroups, categories: int) -> Moments:
        """Moments over all values, per category and head."""
        batch, heads = self.total.shape[:2]
        total, square = groups.reduce(np.add, self.total), groups.reduce(np.add, self.square)
        counts = np.add.reduceat(np.tile(self.count, batch)[groups.order], groups.starts)
        count = np.bincount(groups.category, weights=counts, minlength=categories).astype(np.int64)
        onehot = (groups.category[:, None] == np.arange(categories)).astype(np.float64)  # group, category
        scale = np.maximum(count, 1)[:, None]
        mean = (onehot.T @ total.T) / scale
        if (self.count == 1).all():  # a value per position: centre first, since norms vary little around their mean
            centred = self.total - mean.T[:, groups.flat].reshape(heads, batch, -1).transpose(1, 0, 2)
            spread = onehot.T @ groups.reduce(np.add, centred**2).T
        else:
            spread = np.maximum(onehot.T @ square.T - scale * mean**2, 0.0)
        low, high = np.full((categories, heads), np.inf), np.full((categories, heads), -np.inf)
        np.minimum.at(low, groups.category, groups.reduce(np.minimum, self.low).T)
        np.maximum.at(high, groups.category, groups.reduce(np.maximum, self.high).T)
        return Moments.of(np.broadcast_to(count[:, None], mean.shape), mean, spread, low, high)

    def moments_over_sequences(self, groups: CategoryGroups, categories: int, *, by_pair: bool) -> Moments:
        """Moments of each sequence's figure, per category and head.

        A sequence's figure is the authors': for a value per pair the sum over the category's keys, averaged over the
        queries; for a value per position the mean over the category's positions. A sequence without the category has
        none, or, for a value per pair, 0: the category takes none of its weight.
        """
        batch, heads = self.total.shape[:2]
        figures = np.full((batch, categories, heads), np.nan)
        # For pairs the number of queries, not of pairs: the figure is a share of each query's whole weight.
        divisor = np.full(len(groups.sizes), self.queries) if by_pair else groups.sizes
        figures[groups.sequence, groups.category] = (groups.reduce(np.add, self.total) / divisor).T
        present = ~np.isnan(figures)
        if by_pair:
            figures, present = np.nan_to_num(figures), np.ones_like(present)
        count = present.sum(axis=0)
        mean = np.where(present, figures, 0.0).sum(axis=0) / np.maximum(count, 1)
        square = (np.where(present, figures - mean, 0.0) ** 2).sum(axis=0)
        low = np.where(present, figures, np.inf).min(axis=0)
        high = np.where(present, figures, -np.inf).max(axis=0)
        return Moments.of(count, mean, square, low, high)


def product_sums(
    x: Float[np.ndarray, "batch head *rest"],
    y: Float[np.ndarray, "batch head *rest"],
    keep: Bool[np.ndarray, "query key"] | None,
) -> tuple[np.ndarray, ...]:
    """`QuerySums.product_sums` for two quantities that both have a value per pair."""
    if x.ndim == 3:
        x, y = x[:, :, None], y[:, :, None]
    x, y = x.astype(np.float64), y.astype(np.float64)
    kept = np.ones(x.shape[2:]) if keep is None else keep.astype(np.float64)
    return tuple((part * kept).sum(2) for part in (np.ones_like(x), x, y, x * x, y * y, x * y))
