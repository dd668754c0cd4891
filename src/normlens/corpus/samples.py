"""Uniform samples of pairs and tokens, and a row per token.

Every candidate of a sample has a priority, uniform in [0, 1), that is a function of the seed and of the candidate alone; the
sample is the candidates with the lowest priorities. So it depends neither on the order of the data nor on its division.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd
from jaxtyping import Float, Int

from normlens.anatomy.kinds import KINDS
from normlens.corpus.batches import BatchValues, Side, SiteValues, TokenAxis
from normlens.corpus.options import Plan
from normlens.corpus.statistics import State, Statistic, Tables

#: Columns of equal length, one row per token or pair.
Rows = dict[str, np.ndarray]

_KEYS = ("sequence", "kind", "layer", "head", "query", "key", "position", "token_id", "category")


class UniformSample:
    """The `size` rows of lowest priority, as columns of numbers."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.threshold = 1.0  # a candidate at or above this can no longer enter
        self._parts: list[Rows] = []
        self._waiting = 0

    def update(self, columns: Mapping[str, np.ndarray]) -> None:
        """Offer rows; `columns["priority"]` decides."""
        keep = columns["priority"] < self.threshold
        if not keep.any():
            return
        self._parts.append({name: column[keep] for name, column in columns.items()})
        self._waiting += int(keep.sum())
        if self._waiting > self.size:
            self._compact()

    def state(self) -> Rows:
        """Return the sample's columns in order of priority; an empty sample has none."""
        self._compact()
        return dict(self._parts[0]) if self._parts else {}

    def merge(self, state: State) -> None:
        """Offer the sample of another range."""
        if state:
            self.update(state)

    def _compact(self) -> None:
        if not self._parts:
            return
        columns = {name: np.concatenate([part[name] for part in self._parts]) for name in self._parts[0]}
        # Equal priorities come from equal sequences and so from equal rows: their order does not show.
        order = np.argsort(columns["priority"], kind="stable")[: self.size]
        self._parts = [{name: column[order] for name, column in columns.items()}]
        self._waiting = 0
        if len(order) == self.size:
            self.threshold = float(np.nextafter(self._parts[0]["priority"][-1], 2.0))


class PairSample(Statistic[UniformSample]):
    """A uniform sample of (query, key, head, layer) pairs."""

    def new(self, *key: str) -> UniformSample:
        """Return an empty sample."""
        return UniformSample(self.plan.sample)

    def update(self, site: SiteValues) -> None:
        """Offer the pairs of a site."""
        shape = None
        for name in self.plan.measures:
            if shape is None and name in site.values and site.values[name].ndim == 4:
                shape = site.values[name].shape[1:]  # head, query, key
        if shape is None:
            return
        sample, purpose = self.part("pairs"), f"pairs {site.kind} {site.layer}"
        for row, sequence in enumerate(site.batch.sequences):
            rng = sequence.random(self.plan.seed, purpose)
            priority, member = lowest_priorities(rng, int(np.prod(shape)), sample.threshold, self.plan.sample)
            head, query, key = np.unravel_index(member, shape)
            columns = {"priority": priority, **self._columns(site, row, head, query, key)}
            inside = np.ones(len(key), dtype=bool) if site.keep is None else query >= key
            sample.update({name: column[inside] for name, column in columns.items()})

    def tables(self, vocabulary: Sequence[str]) -> Tables:
        """Return the table `pair_sample`."""
        return {"pair_sample": [_named(self.part("pairs").state(), self.plan, vocabulary)]}

    def _columns(self, site: SiteValues, row: int, head: np.ndarray, query: np.ndarray, key: np.ndarray) -> Rows:
        columns: Rows = {
            "kind": np.full(len(head), KINDS.index(site.kind), dtype=np.int8),
            "layer": np.full(len(head), site.layer, dtype=np.int16),
            "head": (head + 1).astype(np.int16),
            "query": query.astype(np.int32),
            "key": key.astype(np.int32),
            "token_id": site.keys.ids[row, key],
            "category": site.keys.category[row, key],
        }
        for name in self.plan.measures:
            if name not in site.values:
                continue
            value = site.values[name][row]
            at_head = head if value.shape[0] > 1 else np.zeros_like(head)
            columns[name] = value[at_head, query, key] if value.ndim == 3 else value[at_head, key]
        if "af_norm" in self.plan.measures and "af_norm" not in columns:
            columns["af_norm"] = np.abs(columns["alpha"]) * columns["f_norm"]
        return columns


class TokenSample(Statistic[UniformSample]):
    """A uniform sample of tokens, each quantity averaged over layers and heads."""

    def new(self, *key: str) -> UniformSample:
        """Return an empty sample."""
        return UniformSample(self.plan.sample)

    def finish(self, batch: BatchValues) -> None:
        """Offer the tokens of a batch."""
        for axis in batch.axes():
            _, length = axis.side.ids.shape
            purpose = f"tokens {axis.purpose}"
            priorities = [s.random(self.plan.seed, purpose).random(length) for s in batch.batch.sequences]
            columns = {
                "priority": np.stack(priorities),
                "kind": np.array(KINDS.index(axis.kind), dtype=np.int8),
                "position": np.arange(length, dtype=np.int32),
                **_token_columns(self.plan, axis.side, axis.means()),
            }
            self.part("tokens").update(_flat(columns, axis.side.ids.shape))

    def tables(self, vocabulary: Sequence[str]) -> Tables:
        """Return the table `token_sample`."""
        return {"token_sample": [_named(self.part("tokens").state(), self.plan, vocabulary)]}


class TokenRows:
    """One row per token and layer of a range: each quantity averaged over heads (and queries)."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self._parts: list[Rows] = []

    def update(self, site: SiteValues) -> None:
        """Do nothing: the batch has it all."""

    def finish(self, batch: BatchValues) -> None:
        """Take in the tokens of a batch."""
        for axis in batch.axes():
            for step, layer in enumerate(axis.layers):
                self._parts.append(self._rows(batch, axis, step, layer))

    def frame(self, vocabulary: Sequence[str]) -> pd.DataFrame:
        """Return the rows in the order of the corpus: sequence, layer, position."""
        columns = {name: np.concatenate([part[name] for part in self._parts]) for name in self._parts[0]}
        order = np.lexsort((columns["position"], columns["layer"], columns["kind"], columns["sequence"]))
        return _named({name: column[order] for name, column in columns.items()}, self.plan, vocabulary)

    def __len__(self) -> int:
        return len(self._parts)

    def _rows(self, batch: BatchValues, axis: TokenAxis, step: int, layer: int) -> Rows:
        values = {name: arrays[step] for name, arrays in axis.values.items()}
        columns: Rows = {
            "sequence": np.array([[sequence.index] for sequence in batch.batch.sequences], dtype=np.int64),
            "position": np.arange(axis.side.ids.shape[1], dtype=np.int32)[None],
            "kind": np.array([[KINDS.index(axis.kind)]], dtype=np.int8),
            "layer": np.array([[layer]], dtype=np.int16),
            **_token_columns(self.plan, axis.side, values),
        }
        return _flat(columns, axis.side.ids.shape)


def _token_columns(plan: Plan, side: Side, values: Mapping[str, np.ndarray]) -> Rows:
    """Token, category, covariates, and a column for each quantity of the plan: NaN where tokens do not have it."""
    columns: Rows = {"token_id": side.ids, "category": side.category}
    for name, covariate in plan.covariates.items():
        columns[name] = covariate[side.ids]
    for name in plan.quantities:
        columns[name] = values.get(name, np.array(np.nan))
    return columns


def _flat(columns: Rows, shape: tuple[int, ...]) -> Rows:
    return {name: np.broadcast_to(column, shape).reshape(-1) for name, column in columns.items()}


def _named(columns: Rows, plan: Plan, vocabulary: Sequence[str]) -> pd.DataFrame:
    """The rows with names in place of codes."""
    if not columns:
        return pd.DataFrame()
    order = (*_KEYS, *plan.covariates, *plan.quantities)
    frame = pd.DataFrame({name: columns[name] for name in order if name in columns})
    frame = frame.rename(columns={"kind": "site"})
    frame["site"] = np.array(KINDS, dtype=object)[frame["site"].to_numpy()]
    frame["category"] = np.array(plan.categories, dtype=object)[frame["category"].to_numpy()]
    tokens = [vocabulary[token_id] for token_id in frame["token_id"]]
    frame.insert(list(frame.columns).index("token_id"), "token", np.array(tokens, dtype=object))
    return frame


def lowest_priorities(
    rng: np.random.Generator, population: int, threshold: float, limit: int
) -> tuple[Float[np.ndarray, " draw"], Int[np.ndarray, " draw"]]:
    """Return the members of a population with priorities below the threshold, lowest first, at most `limit`.

    Only what may matter is drawn: the gap from the `k`-th to the next of `n` uniform priorities is exponential with
    rate `n - k` on the scale `-log(1 - u)`. A lower threshold gives a prefix of what a higher one gives.
    """
    limit = min(limit, population)
    gaps, members = (np.random.Generator(np.random.Philox(key=rng.integers(2**63, size=2))) for _ in range(2))
    ceiling = -np.log1p(-threshold) if threshold < 1.0 else np.inf
    levels = np.zeros(0)
    while len(levels) < limit and (not len(levels) or levels[-1] < ceiling):
        start = len(levels)
        step = min(max(64, start), limit - start)
        drawn = gaps.standard_exponential(step) / (population - np.arange(start, start + step))
        levels = np.append(levels, (levels[-1] if start else 0.0) + np.cumsum(drawn))
    count = int(np.searchsorted(levels, ceiling))
    return -np.expm1(-levels[:count]), _distinct(members, population, limit, count)


def _distinct(rng: np.random.Generator, population: int, limit: int, count: int) -> Int[np.ndarray, " draw"]:
    """The first `count` different numbers of an endless uniform stream."""
    if population <= 2 * limit:  # decided by the request, not by what this call happens to need
        return rng.permutation(population)[:count]
    stream = np.zeros(0, dtype=np.int64)
    first = stream
    while len(first) < count:
        stream = np.append(stream, (rng.random(count + 64) * population).astype(np.int64))
        first = np.sort(np.unique(stream, return_index=True)[1])
    return stream[first[:count]]
