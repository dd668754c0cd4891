"""Statistics of a corpus: each is one class, and adding one touches this file alone.

A statistic takes in sites (`update`) and whole batches (`finish`), merges with the state of another range, and gives rows
of tables. Any division of the corpus gives the same result: counts are whole numbers in fixed bins, sums are float64.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar, Generic, Protocol, Self, TypeVar

import numpy as np
import pandas as pd
from jaxtyping import Float, Int

from normlens.anatomy.kinds import KINDS
from normlens.corpus.batches import BatchValues, QuerySums, SiteValues
from normlens.corpus.bins import Bins, Distribution, Quantile
from normlens.corpus.compiled import count_histogram
from normlens.corpus.options import Plan, binning_of, has_heads, level_of
from normlens.corpus.ranks import smallest_type
from normlens.corpus.sequences import SPECIAL
from normlens.errors import InputError
from normlens.types import Json, JsonMapping

#: Unions of categories that the papers report: every token, and every token that is not special.
ALL, NORMAL = "all", "normal"
QUANTILES = (0.01, 0.05, 0.25, 0.5, 0.75, 0.95, 0.99)

_TEXT, _INDEX = "object", "Int16"
_SITE = {"site": _TEXT, "layer": _INDEX, "head": _INDEX}

#: The columns of tables that a run may have no row of; samples have a column per quantity instead.
SCHEMA: dict[str, dict[str, str]] = {
    "statistics": {
        **_SITE, "quantity": _TEXT, "category": _TEXT, "over": _TEXT, "statistic": _TEXT, "value": "float64",
        "low": "float64", "high": "float64",
    },
    "histograms": {
        **_SITE, "quantity": _TEXT, "category": _TEXT, "low": "float64", "high": "float64", "count": "int64"
    },
    "relative": {**_SITE, "quantity": _TEXT, "offset": "int32", "mean": "float64", "count": "int64"},
    "correlations": {
        **_SITE, "x": _TEXT, "y": _TEXT, "category": _TEXT, "over": _TEXT, "method": _TEXT, "value": "float64",
        "bound": "float64", "count": "int64", "flagged": "bool",
    },
}  # fmt: skip

State = Mapping[str, np.ndarray]
Tables = dict[str, list[pd.DataFrame]]


class Accumulator(Protocol):
    """One part of a statistic: `state` as arrays, and `merge` with the state of other data."""

    def state(self) -> dict[str, np.ndarray]: ...

    def merge(self, state: State) -> None: ...


A = TypeVar("A", bound=Accumulator)


class Statistic(ABC, Generic[A]):
    """A statistic of a plan: one accumulator per key, for example per kind of site and quantity."""

    registry: ClassVar[list[type[Statistic[Any]]]] = []

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        Statistic.registry.append(cls)

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.parts: dict[tuple[str, ...], A] = {}

    @abstractmethod
    def new(self, *key: str) -> A:
        """Return the empty accumulator of a key."""

    def update(self, site: SiteValues) -> None:
        """Take in one site of a batch."""

    def finish(self, batch: BatchValues) -> None:
        """Take in a batch whose sites are done."""

    @abstractmethod
    def tables(self, vocabulary: Sequence[str]) -> Tables:
        """Return rows by the name of their table; `vocabulary` are the token strings by id."""

    def part(self, *key: str) -> A:
        """Return the accumulator of a key, new where there is none."""
        if key not in self.parts:
            self.parts[key] = self.new(*key)
        return self.parts[key]

    def state(self) -> dict[str, np.ndarray]:
        """Return everything, as arrays by path."""
        state: dict[str, np.ndarray] = {}
        for key, part in self.parts.items():
            for name, array in part.state().items():
                state["/".join((*key, name))] = array
        return state

    def merge(self, state: State) -> None:
        """Take in the state of another range."""
        by_key: dict[tuple[str, ...], dict[str, np.ndarray]] = {}
        for path, array in state.items():
            *parts, name = path.split("/")
            by_key.setdefault(tuple(parts), {})[name] = array
        for key, arrays in by_key.items():
            self.part(*key).merge(arrays)


class Statistics:
    """All statistics of a plan."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self._all = {kind.__name__: kind(plan) for kind in Statistic.registry}

    def update(self, site: SiteValues) -> None:
        """Take in one site of a batch."""
        for statistic in self._all.values():
            statistic.update(site)

    def finish(self, batch: BatchValues) -> None:
        """Take in a batch whose sites are done."""
        for statistic in self._all.values():
            statistic.finish(batch)

    def state(self) -> dict[str, np.ndarray]:
        """Return everything, as arrays by path."""
        state: dict[str, np.ndarray] = {}
        for name, statistic in self._all.items():
            for path, array in statistic.state().items():
                state[f"{name}/{path}"] = array
        return state

    def merge(self, state: State) -> None:
        """Take in the state of another range."""
        for name, statistic in self._all.items():
            prefix = f"{name}/"
            own = {path.removeprefix(prefix): array for path, array in state.items() if path.startswith(prefix)}
            statistic.merge(own)

    def tables(self, vocabulary: Sequence[str]) -> dict[str, pd.DataFrame]:
        """Return every table by its name."""
        parts: Tables = {}
        for statistic in self._all.values():
            for name, frames in statistic.tables(vocabulary).items():
                parts.setdefault(name, []).extend(frames)
        return {name: _table(name, frames) for name, frames in parts.items()}


def _table(name: str, frames: Sequence[pd.DataFrame]) -> pd.DataFrame:
    schema = SCHEMA.get(name, {})
    frames = [frame for frame in frames if len(frame)] or [pd.DataFrame(columns=list(schema))]
    return pd.concat(frames, ignore_index=True).astype(schema)


def category_unions(names: Sequence[str]) -> dict[str, list[int]]:
    """Return each category, and the unions, as lists of category codes."""
    unions = {name: [code] for code, name in enumerate(names)}
    unions[NORMAL] = [code for code, name in enumerate(names) if name not in SPECIAL]
    unions[ALL] = list(range(len(names)))
    return unions


def by_kind(parts: Mapping[tuple[str, ...], A]) -> Iterator[tuple[tuple[str, ...], A]]:
    """Yield accumulators whose keys begin with the kind of site, in the order of the kinds, then by name."""
    for key in sorted(parts, key=lambda key: (KINDS.index(key[0]), key)):
        yield key, parts[key]


def site_rows(
    plan: Plan, kind: str, quantity: str, cells: tuple[np.ndarray, np.ndarray], columns: JsonMapping
) -> pd.DataFrame:
    """Return rows of a table for a kind of site.

    Args:
        plan: The plan, which names the layers.
        kind: The kind of site.
        quantity: The quantity.
        cells: The index of the layer and of the head of each row.
        columns: Further columns.
    """
    layer, head = cells
    heads = head + 1 if has_heads(quantity) else [None] * len(head)
    rows: Json = {
        "site": kind,
        "layer": pd.array(np.array(plan.layers_of(kind))[layer], dtype="Int16"),
        "head": pd.array(heads, dtype="Int16"),
        "quantity": quantity,
    }
    return pd.DataFrame({**rows, **columns})


class Cells(ABC):
    """Arrays with one entry per cell; cells are independent of each other."""

    FIELDS: ClassVar[tuple[str, ...]]
    count: Int[np.ndarray, "*shape"]

    @abstractmethod
    def __init__(self, shape: tuple[int, ...]) -> None: ...

    @abstractmethod
    def add(self, state: State, at: Any = ...) -> None:
        """Take in other data, given as `FIELDS`, in the cells `at`; a count of 0 changes nothing."""

    def state(self) -> dict[str, np.ndarray]:
        """Return everything, as arrays."""
        return {name: getattr(self, name) for name in self.FIELDS}

    def merge(self, state: State) -> None:
        """Take in the state of another range."""
        if state["count"].shape != self.count.shape:
            raise InputError(f"cells have the shape {self.count.shape}, got {state['count'].shape}")
        self.add(state)

    def as_table(self) -> Self:
        """Return a single cell as a table of one layer and one head."""
        table = type(self)((1, 1))
        table.add({name: getattr(self, name).reshape(1, 1) for name in self.FIELDS})
        return table

    def pooled(self, axis: int, rows: Sequence[int] | None = None) -> Self:
        """Return the cells along an axis as one, or those of some rows."""
        moved = {name: np.moveaxis(getattr(self, name), axis, 0) for name in self.FIELDS}
        pooled = type(self)(moved["count"].shape[1:])
        for row in range(len(moved["count"])) if rows is None else rows:
            pooled.add({name: array[row] for name, array in moved.items()})
        return pooled


class Moments(Cells):
    """Count, mean, variance and extremes, combined by the update of Chan et al. 1979.

    >>> moments = Moments((1,))
    >>> moments.add(Moments.of_values(np.array([[1.0, 2.0, 3.0]])))
    >>> float(moments.mean[0]), float(moments.high[0])
    (2.0, 3.0)
    """

    FIELDS: ClassVar[tuple[str, ...]] = ("count", "mean", "square", "low", "high")

    def __init__(self, shape: tuple[int, ...]) -> None:
        self.count = np.zeros(shape, dtype=np.int64)
        self.mean = np.zeros(shape)
        self.square = np.zeros(shape)  # sum of squared deviations from the mean
        self.low = np.full(shape, np.inf)
        self.high = np.full(shape, -np.inf)

    @staticmethod
    def of_values(values: Float[np.ndarray, "*shape value"]) -> dict[str, np.ndarray]:
        """Return the fields for values along the last axis."""
        values = values.astype(np.float64)
        mean = values.mean(axis=-1)
        return {
            "count": np.full(mean.shape, values.shape[-1]),
            "mean": mean,
            "square": ((values - mean[..., None]) ** 2).sum(axis=-1),
            "low": values.min(axis=-1),
            "high": values.max(axis=-1),
        }

    def add(self, state: State, at: Any = ...) -> None:
        """Take in other data in the cells `at`."""
        count, new = state["count"], state["count"] > 0
        total = self.count[at] + count
        share = np.divide(count, total, out=np.zeros(total.shape), where=total > 0)
        delta = np.where(new, state["mean"] - self.mean[at], 0.0)
        self.square[at] += np.where(new, state["square"] + delta**2 * self.count[at] * share, 0.0)
        self.mean[at] += delta * share
        self.count[at] = total
        self.low[at] = np.where(new, np.minimum(self.low[at], state["low"]), self.low[at])
        self.high[at] = np.where(new, np.maximum(self.high[at], state["high"]), self.high[at])

    def summary(self) -> dict[str, np.ndarray]:
        """Return every statistic; `sd` divides by the count, as the papers' dispersion tables do."""
        variance = self.square / np.maximum(self.count, 1)
        sd = np.sqrt(variance)
        cv = np.divide(sd, self.mean, out=np.full(sd.shape, np.nan), where=self.mean != 0)
        return {
            "count": self.count.astype(np.float64), "mean": self.mean, "variance": variance, "sd": sd, "cv": cv,
            "min": self.low, "max": self.high,
        }  # fmt: skip


class OverValues(Statistic[Moments]):
    """Moments over all values, per layer, category and head."""

    over = "values"

    def new(self, *key: str) -> Moments:
        """Return empty moments for a kind of site and a quantity."""
        return Moments(self.plan.cells(*key))

    def update(self, site: SiteValues) -> None:
        """Take in every quantity of a site."""
        row = self.plan.layers_of(site.kind).index(site.layer)
        for name in site.quantities:
            fields = self._fields(site, name, site.sums(name))
            heads = fields["mean"].shape[1]
            self.part(site.kind, name).add(fields, (row, slice(None), slice(heads)))

    def _fields(self, site: SiteValues, name: str, sums: QuerySums) -> dict[str, np.ndarray]:
        groups, categories = site.side(name).groups, site.categories
        batch, heads = sums.total.shape[:2]
        counts = np.add.reduceat(np.tile(sums.count, batch)[groups.order], groups.starts)
        count = np.bincount(groups.category, weights=counts, minlength=categories).astype(np.int64)
        scale = np.maximum(count, 1)[:, None]
        mean = groups.by_category(sums.total, categories) / scale
        if (sums.count == 1).all():  # a value per position: centre first, since norms vary little around their mean
            centred = sums.total - mean.T[:, groups.flat].reshape(heads, batch, -1).transpose(1, 0, 2)
            square = groups.by_category(centred**2, categories)
        else:
            square = np.maximum(groups.by_category(sums.square, categories) - scale * mean**2, 0.0)
        low, high = np.full((categories, heads), np.inf), np.full((categories, heads), -np.inf)
        np.minimum.at(low, groups.category, groups.reduce(np.minimum, sums.low).T)
        np.maximum.at(high, groups.category, groups.reduce(np.maximum, sums.high).T)
        count = np.broadcast_to(count[:, None], mean.shape)
        return {"count": count, "mean": mean, "square": square, "low": low, "high": high}

    def tables(self, vocabulary: Sequence[str]) -> Tables:
        """Return rows of `statistics`: by layer and head, and over all of them."""
        frames = []
        for (kind, quantity), moments in by_kind(self.parts):
            for category, codes in category_unions(self.plan.categories).items():
                union = moments.pooled(1, codes)
                frames.append(self._rows(kind, quantity, category, union))
                whole = self._rows(kind, quantity, category, union.pooled(1).pooled(0).as_table())
                whole[["layer", "head"]] = pd.NA
                frames.append(whole)
        return {"statistics": frames}

    def _rows(self, kind: str, quantity: str, category: str, moments: Moments) -> pd.DataFrame:
        summary = moments.summary()
        layer, head = np.nonzero(moments.count > 0)
        values = np.stack([column[layer, head] for column in summary.values()], axis=1).reshape(-1)
        cells = (np.repeat(layer, len(summary)), np.repeat(head, len(summary)))
        columns = {
            "category": category, "over": self.over, "statistic": np.tile(list(summary), len(layer)).astype(object),
            "value": values, "low": values, "high": values,
        }  # fmt: skip
        return site_rows(self.plan, kind, quantity, cells, columns)


class SequenceMoments(Moments):
    """Moments of figures per sequence, with the number of sequences that have the category."""

    FIELDS = (*Moments.FIELDS, "present")

    def __init__(self, shape: tuple[int, ...]) -> None:
        super().__init__(shape)
        self.present = np.zeros(shape, dtype=np.int64)

    def add(self, state: State, at: Any = ...) -> None:
        """Take in other data in the cells `at`."""
        super().add(state, at)
        self.present[at] += state["present"]


class OverSequences(OverValues):
    """Moments of each sequence's figure, per layer, category and head.

    A sequence's figure is the authors': for a value per pair the sum over the category's keys, averaged over the queries;
    for a value per position the mean over the category's positions. A sequence without the category has none, or, for a
    value per pair, 0: the category takes none of its weight.
    """

    over = "sequences"

    def new(self, *key: str) -> SequenceMoments:
        """Return empty moments for a kind of site and a quantity."""
        return SequenceMoments(self.plan.cells(*key))

    def _fields(self, site: SiteValues, name: str, sums: QuerySums) -> dict[str, np.ndarray]:
        groups = site.side(name).groups
        batch, heads = sums.total.shape[:2]
        by_pair = level_of(name) == "pair"
        figures = np.full((batch, site.categories, heads), np.nan)
        # For pairs the number of queries, not of pairs: the figure is a share of each query's whole weight.
        divisor = np.full(len(groups.sizes), sums.queries) if by_pair else groups.sizes
        figures[groups.sequence, groups.category] = (groups.reduce(np.add, sums.total) / divisor).T
        present = has_category = ~np.isnan(figures)
        if by_pair:
            figures, present = np.nan_to_num(figures), np.ones_like(present)
        count = present.sum(axis=0)
        mean = np.where(present, figures, 0.0).sum(axis=0) / np.maximum(count, 1)
        return {
            "count": count,
            "mean": mean,
            "square": (np.where(present, figures - mean, 0.0) ** 2).sum(axis=0),
            "low": np.where(present, figures, np.inf).min(axis=0),
            "high": np.where(present, figures, -np.inf).max(axis=0),
            "present": has_category.sum(axis=0),
        }

    def tables(self, vocabulary: Sequence[str]) -> Tables:
        """Return rows of `statistics`, for the categories that occur."""
        frames = []
        for (kind, quantity), moments in by_kind(self.parts):
            for code, category in enumerate(self.plan.categories):
                if moments.state()["present"][:, code].any():
                    frames.append(self._rows(kind, quantity, category, moments.pooled(1, [code])))
        return {"statistics": frames}


class Counts:
    """Counts of values on fixed bins, with their exact extremes, for each layer, category and head."""

    def __init__(self, cells: tuple[int, ...], bins: Bins) -> None:
        self.bins = bins
        self.counts = np.zeros((*cells, bins.size), dtype=np.int64)  # pages that are never counted into take no memory
        self.low, self.high = np.full(cells, np.inf), np.full(cells, -np.inf)

    def update(self, site: SiteValues, name: str, row: int) -> None:
        """Count a quantity of a site, whose layer has this row."""
        groups, sums = site.side(name).groups, site.sums(name)
        heads = slice(sums.total.shape[1])
        np.minimum.at(self.low[row, :, heads], groups.category, groups.reduce(np.minimum, sums.low).T)
        np.maximum.at(self.high[row, :, heads], groups.category, groups.reduce(np.maximum, sums.high).T)
        count_histogram(self.counts[row], site.values[name], site.side(name).category, site.keep, self.bins)

    def state(self) -> dict[str, np.ndarray]:
        """Return the occupied cells and their counts, and the extremes."""
        cells = np.flatnonzero(self.counts)
        counts = smallest_type(self.counts.reshape(-1)[cells])
        return {"gap": smallest_type(np.diff(cells, prepend=0)), "count": counts, "low": self.low, "high": self.high}

    def merge(self, state: State) -> None:
        """Add the counts of another range."""
        self.counts.reshape(-1)[np.cumsum(state["gap"], dtype=np.int64)] += state["count"]
        self.low = np.minimum(self.low, state["low"])
        self.high = np.maximum(self.high, state["high"])

    def distributions(self, codes: Sequence[int]) -> Iterator[tuple[tuple[int, int], Distribution, float, float]]:
        """Yield layer and head, the distribution over some categories, and its extremes, where there are any values."""
        counts = self.counts[:, codes].sum(axis=1)
        low, high = self.low[:, codes].min(axis=1), self.high[:, codes].max(axis=1)
        for layer, head in np.argwhere(low <= high):
            distribution = Distribution(counts[layer, head], self.bins.edges)
            yield (layer, head), distribution, float(low[layer, head]), float(high[layer, head])


class Histograms(Statistic[Counts]):
    """Histograms per layer, category and head, and the quantiles that follow from them."""

    def new(self, *key: str) -> Counts:
        """Return empty counts for a kind of site and a quantity."""
        return Counts(self.plan.cells(*key), binning_of(key[1]).coarse)

    def update(self, site: SiteValues) -> None:
        """Count every quantity that has a histogram."""
        row = self.plan.layers_of(site.kind).index(site.layer)
        for name in self.plan.histograms:
            if name in site.values:
                self.part(site.kind, name).update(site, name, row)

    def tables(self, vocabulary: Sequence[str]) -> Tables:
        """Return rows of `histograms` per occupied bin, and quantiles as rows of `statistics`."""
        histograms: list[pd.DataFrame] = []
        quantiles: list[pd.DataFrame] = []
        for (kind, quantity), part in by_kind(self.parts):
            layer, category, head, number = np.nonzero(part.counts)
            columns = {
                "category": np.array(self.plan.categories, dtype=object)[category],
                "low": part.bins.edges[number],
                "high": part.bins.edges[number + 1],
                "count": part.counts[layer, category, head, number],
            }
            histograms.append(site_rows(self.plan, kind, quantity, (layer, head), columns))
            quantiles += self._quantiles(kind, quantity, part)
        return {"histograms": histograms, "statistics": quantiles}

    def _quantiles(self, kind: str, quantity: str, part: Counts) -> Iterator[pd.DataFrame]:
        for category, codes in category_unions(self.plan.categories).items():
            rows = BoundedRows(category)
            for cell, distribution, low, high in part.distributions(codes):
                for q in QUANTILES:
                    rows.add(cell, f"q{100 * q:02.0f}", distribution.quantile(q, low=low, high=high))
            yield rows.frame(self.plan, kind, quantity)


class BoundedRows:
    """Rows of the table `statistics` that have bounds, for one category."""

    def __init__(self, category: str) -> None:
        self.category = category
        self._cells: list[tuple[int, int]] = []
        self._names: list[str] = []
        self._values: list[tuple[float, float, float]] = []

    def add(self, cell: tuple[int, int], statistic: str, value: Quantile) -> None:
        """Add the statistic of a layer and head."""
        self._cells.append(cell)
        self._names.append(statistic)
        self._values.append((value.value, value.low, value.high))

    def frame(self, plan: Plan, kind: str, quantity: str) -> pd.DataFrame:
        """Return the rows."""
        layer, head = np.array(self._cells, dtype=np.int64).reshape(-1, 2).T
        value, low, high = np.array(self._values, dtype=np.float64).reshape(-1, 3).T
        names = np.array(self._names, dtype=object)
        columns = {
            "category": self.category, "over": "values", "statistic": names, "value": value, "low": low, "high": high
        }  # fmt: skip
        return site_rows(plan, kind, quantity, (layer, head), columns)


class MedianAndMad(Statistic[Counts]):
    """Median and median absolute deviation of ‖f(x)‖, from counts in bins of a 512th of an octave."""

    BINS = Bins(((-16, -4, 6), (-4, 7, 9), (7, 16, 6)))

    def new(self, *key: str) -> Counts:
        """Return empty counts for a kind of site."""
        return Counts(self.plan.cells(key[0], "f_norm"), self.BINS)

    def update(self, site: SiteValues) -> None:
        """Count the norms of a site."""
        if "f_norm" in site.values:
            self.part(site.kind).update(site, "f_norm", self.plan.layers_of(site.kind).index(site.layer))

    def tables(self, vocabulary: Sequence[str]) -> Tables:
        """Return rows `median` and `mad` of the table `statistics`."""
        frames = []
        for (kind,), part in by_kind(self.parts):
            for category, codes in category_unions(self.plan.categories).items():
                rows = BoundedRows(category)
                for cell, distribution, low, high in part.distributions(codes):
                    median = distribution.quantile(0.5, low=low, high=high)
                    rows.add(cell, "median", median)
                    rows.add(cell, "mad", _deviation(distribution, median, low, high))
                frames.append(rows.frame(self.plan, kind, "f_norm"))
        return {"statistics": frames}


def _deviation(distribution: Distribution, median: Quantile, low: float, high: float) -> Quantile:
    """The median absolute deviation and its bounds.

    A median grows with each of its numbers. So the median of the smallest distances that bins allow is a lower bound, and
    that of the largest an upper bound.
    """
    held = np.flatnonzero(distribution.counts)
    counts = distribution.counts[held]
    left = np.maximum(distribution.edges[held], low)
    right = np.minimum(distribution.edges[held + 1], high)
    nearest = np.maximum(np.maximum(left - median.high, median.low - right), 0.0)
    farthest = np.maximum(median.high - left, right - median.low)
    value = _weighted_median(np.abs((left + right) / 2 - median.value), counts)
    return Quantile(value, _weighted_median(nearest, counts), _weighted_median(farthest, counts))


def _weighted_median(values: Float[np.ndarray, " bin"], counts: Int[np.ndarray, " bin"]) -> float:
    order = np.argsort(values)
    cumulative = np.cumsum(counts[order])
    middle = (cumulative[-1] - 1) / 2
    ranks = [int(np.floor(middle)), int(np.ceil(middle))]
    return float(values[order][np.searchsorted(cumulative, ranks, side="right")].mean())


class Offsets:
    """Sums of maps by relative position `key - query`, from `-reach` to `reach`; the two ends hold all that is beyond."""

    def __init__(self, layers: int, heads: int, reach: int) -> None:
        self.total = np.zeros((layers, heads, 2 * reach + 1))
        self.count = np.zeros((layers, 2 * reach + 1), dtype=np.int64)

    def state(self) -> dict[str, np.ndarray]:
        """Return everything, as arrays."""
        return {"total": self.total, "count": self.count}

    def merge(self, state: State) -> None:
        """Add the sums of another range."""
        self.total += state["total"]
        self.count += state["count"]


class MeansByOffset(Statistic[Offsets]):
    """Mean of each map by relative position, per layer and head."""

    def new(self, *key: str) -> Offsets:
        """Return empty sums for a kind of site and a quantity."""
        layers, _, heads = self.plan.cells(*key)
        return Offsets(layers, heads, self.plan.reach)

    def update(self, site: SiteValues) -> None:
        """Take in the maps of a site whose queries and keys are the same tokens."""
        if site.kind == "cross":
            return
        row, reach = self.plan.layers_of(site.kind).index(site.layer), self.plan.reach
        for name in self.plan.relative:
            part, maps = self.part(site.kind, name), site.values[name]
            batch, _, queries, keys = maps.shape
            kept = np.ones((queries, keys), dtype=bool) if site.keep is None else site.keep
            offset = np.clip(np.arange(keys) - np.arange(queries)[:, None], -reach, reach) + reach
            chosen, size = offset[kept], 2 * reach + 1
            part.count[row] += batch * np.bincount(chosen, minlength=size)
            for head, summed in enumerate(maps.sum(axis=0, dtype=np.float64)):
                part.total[row, head] += np.bincount(chosen, weights=summed[kept], minlength=size)

    def tables(self, vocabulary: Sequence[str]) -> Tables:
        """Return rows of `relative`."""
        frames = []
        for (kind, quantity), part in by_kind(self.parts):
            count = np.broadcast_to(part.count[:, None], part.total.shape)
            layer, head, index = np.nonzero(count)
            columns = {
                "offset": (index - self.plan.reach).astype(np.int32),
                "mean": (part.total / np.maximum(count, 1))[layer, head, index],
                "count": count[layer, head, index],
            }
            frames.append(site_rows(self.plan, kind, quantity, (layer, head), columns))
        return {"relative": frames}


class CategoryCounts:
    """Tokens and sequences per category."""

    def __init__(self, categories: int) -> None:
        self.tokens = np.zeros(categories, dtype=np.int64)
        self.sequences = np.zeros(categories, dtype=np.int64)

    def state(self) -> dict[str, np.ndarray]:
        """Return everything, as arrays."""
        return {"tokens": self.tokens, "sequences": self.sequences}

    def merge(self, state: State) -> None:
        """Add the counts of another range."""
        self.tokens += state["tokens"]
        self.sequences += state["sequences"]


class TokensByCategory(Statistic[CategoryCounts]):
    """Numbers of tokens, and of sequences with a token, of each category."""

    def new(self, *key: str) -> CategoryCounts:
        """Return empty counts."""
        return CategoryCounts(len(self.plan.categories))

    def finish(self, batch: BatchValues) -> None:
        """Count the tokens of a batch; a category on both sides of a sequence is one category of it."""
        part = self.part("tokens")
        present = np.zeros((len(batch.batch.sequences), len(self.plan.categories)), dtype=bool)
        for side in batch.batch.sides:
            np.add.at(part.tokens, side.groups.category, side.groups.sizes)
            present[side.groups.sequence, side.groups.category] = True
        part.sequences += present.sum(axis=0)

    def tables(self, vocabulary: Sequence[str]) -> Tables:
        """Return the table `categories`."""
        part = self.part("tokens")
        columns = {"category": list(self.plan.categories), "tokens": part.tokens, "sequences": part.sequences}
        return {"categories": [pd.DataFrame(columns)]}
