"""Sums over queries, keys and categories: the small numbers that the statistics are made of."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from normlens.corpus.batches import Groups


@dataclass(frozen=True)
class Reduced:
    """A quantity per position, with what was summed away: count, sum, sum of squares and extremes over the queries."""

    count: Int[np.ndarray, " position"]  # how many values each position stands for
    total: Float[np.ndarray, "batch head position"]
    square: Float[np.ndarray, "batch head position"]
    low: Float[np.ndarray, "batch head position"]
    high: Float[np.ndarray, "batch head position"]

    @property
    def means(self) -> Float[np.ndarray, "batch head position"]:
        """The mean over the queries."""
        return np.asarray(self.total / self.count)

    def times(self, other: Reduced) -> Reduced:
        """This quantity, nowhere negative, times one with a single value per position: ‖αf‖ from alpha and ‖f‖."""
        factor = other.total
        return Reduced(self.count, self.total * factor, self.square * factor**2, self.low * factor, self.high * factor)

    def products(self, other: Reduced) -> tuple[np.ndarray, ...]:
        """Count and sums of x, y, x², y², xy per position, where `other` has one value per position."""
        y = np.broadcast_to(other.total, self.total.shape)
        count = np.broadcast_to(self.count, self.total.shape)
        return count, self.total, count * y, self.square, count * y**2, self.total * y

    @staticmethod
    def product_sums(
        x: Float[Tensor, "batch head *rest"],
        y: Float[Tensor, "batch head *rest"],
        keep: Bool[Tensor, "query key"] | None,
    ) -> tuple[np.ndarray, ...]:
        """The same sums for two quantities that both have a value per pair."""
        if x.ndim == 3:
            x, y = x.unsqueeze(2), y.unsqueeze(2)
        kept = torch.ones(x.shape[2:], dtype=torch.float64) if keep is None else keep.double()
        parts = (torch.ones_like(x), x, y, x * x, y * y, x * y)
        return tuple((part * kept).sum(2).numpy() for part in parts)

    def grouped(
        self, groups: Groups, categories: int, batch: int
    ) -> tuple[tuple[np.ndarray, ...], Float[np.ndarray, "b c h"]]:
        """Moments per (category, head), and each sequence's figure per category and head (NaN where it has none).

        A sequence's figure is the authors': for a value per pair the sum over the category's keys, averaged over the
        queries; for a value per position the mean over the category's positions.
        """
        heads = self.total.shape[1]
        total, square = groups.add(self.total), groups.add(self.square)
        low, high = groups.least(self.low), groups.most(self.high)
        counts = np.add.reduceat(np.tile(self.count, batch)[groups.order], groups.starts)
        count = np.bincount(groups.category, weights=counts, minlength=categories).astype(np.int64)
        onehot = (groups.category[:, None] == np.arange(categories)).astype(np.float64)  # group, category
        scale = np.maximum(count, 1)[:, None]
        mean = (onehot.T @ total.T) / scale
        if (self.count == 1).all():  # a value per position: centre first, since norms vary little around their mean
            centred = self.total - mean.T[:, groups.flat].reshape(heads, batch, -1).transpose(1, 0, 2)
            spread = onehot.T @ groups.add(centred**2).T
        else:
            spread = np.maximum(onehot.T @ square.T - scale * mean**2, 0.0)
        lows, highs = np.full((categories, heads), np.inf), np.full((categories, heads), -np.inf)
        np.minimum.at(lows, groups.category, low.T)
        np.maximum.at(highs, groups.category, high.T)
        per_sequence = np.full((batch, categories, heads), np.nan)
        # The number of queries, not of pairs: the figure is a share of each query's whole weight.
        divisor = np.full(len(groups.sizes), self.queries) if self.queries > 1 else groups.sizes
        per_sequence[groups.sequence, groups.category] = (total / divisor).T
        return (np.broadcast_to(count[:, None], mean.shape), mean, spread, lows, highs), per_sequence

    @property
    def queries(self) -> int:
        """How many queries a key was seen from at most."""
        return int(self.count.max())


def reduce_pairs(value: Float[Tensor, "batch head query key"], keep: Bool[Tensor, "query key"] | None) -> Reduced:
    """Sum over the queries, in float64."""
    queries, keys = value.shape[2:]
    if keep is None:
        low, high, count = value.amin(2), value.amax(2), np.full(keys, queries)
    else:
        low = value.masked_fill(~keep, torch.inf).amin(2)
        high = value.masked_fill(~keep, -torch.inf).amax(2)
        value = value.masked_fill(~keep, 0.0)
        count = keep.sum(0).numpy()
    total, square = value.sum(2, dtype=torch.float64), (value * value).sum(2, dtype=torch.float64)
    return Reduced(count, total.numpy(), square.numpy(), low.double().numpy(), high.double().numpy())


def reduce_keys(value: Float[Tensor, "batch head position"]) -> Reduced:
    """A value per position is its own sum."""
    plain = value.double().numpy()
    return Reduced(np.ones(plain.shape[-1], dtype=np.int64), plain, plain**2, plain, plain)


def over_sequences(figures: Float[np.ndarray, "batch category head"], absent_is_zero: bool) -> tuple[np.ndarray, ...]:
    """Moments over sequences, per (category, head)."""
    present = ~np.isnan(figures)
    if absent_is_zero:
        figures, present = np.nan_to_num(figures), np.ones_like(present)
    count = present.sum(axis=0)
    mean = np.where(present, figures, 0.0).sum(axis=0) / np.maximum(count, 1)
    square = (np.where(present, figures - mean, 0.0) ** 2).sum(axis=0)
    low = np.where(present, figures, np.inf).min(axis=0)
    high = np.where(present, figures, -np.inf).max(axis=0)
    return count, mean, square, low, high
