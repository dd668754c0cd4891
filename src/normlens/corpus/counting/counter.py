"""One batch on its way into the statistics: each site is counted as the model leaves it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float, Int
from torch import Tensor

from normlens.anatomy.kinds import KINDS
from normlens.corpus.accumulators.histogram import BinNumbers, Histogram
from normlens.corpus.accumulators.moments import Moments, Pearson, RelativePositionMeans
from normlens.corpus.accumulators.sample import lowest_priorities
from normlens.corpus.accumulators.spearman_binned import BinnedSpearman
from normlens.corpus.counting import compiled
from normlens.corpus.counting.batches import Batch, QuerySums, Side, product_sums
from normlens.corpus.counting.plan import binning_of, has_heads, level_of
from normlens.corpus.counting.statistics import CorpusStatistics, SiteStatistics
from normlens.measures.run import SiteResult
from normlens.measures.table import MIXING

#: Columns of equal length, one row per token or pair.
Rows = dict[str, np.ndarray]


class BatchCounter:
    """Counts a batch: `update` takes in one site, `finish` what is averaged over layers."""

    def __init__(self, statistics: CorpusStatistics, batch: Batch) -> None:
        self._statistics, self._plan, self._batch = statistics, statistics.plan, batch
        self._layers: dict[str, list[int]] = {}  # by kind of site
        #: kind and quantity -> one array per layer, averaged over heads (and queries)
        self._by_layer: dict[tuple[str, str], list[Float[np.ndarray, "batch position"]]] = {}

    def update(self, result: SiteResult) -> None:
        """OnSite in one site of the batch."""
        self._statistics.proof = max(self._statistics.proof, float(result.proof.max()))
        self._layers.setdefault(result.kind, []).append(result.layer)
        for name, sums in _SiteCounter(self._statistics, self._batch, result).count().items():
            self._by_layer.setdefault((result.kind, name), []).append(sums.means.mean(axis=1))

    def finish(self) -> None:
        """End the batch: count its sequences, and take in what is averaged over layers."""
        statistics, groups = self._statistics, [side.groups for side in self._batch.sides]
        statistics.sequences += len(self._batch.sequences)
        # A category that stands on both sides of a sequence is one category of it.
        present = {pair for side in groups for pair in zip(side.sequence.tolist(), side.category.tolist(), strict=True)}
        np.add.at(statistics.sequences_with, [category for _, category in present], 1)
        for side in groups:
            np.add.at(statistics.tokens, side.category, side.sizes)
        for axis in self._axes():
            means = {name: np.mean(self._by_layer[axis.kind, name], axis=0) for name in axis.quantities}
            self._count_covariates(axis, means)
            self._sample_tokens(axis, means)

    def _axes(self) -> Iterator[_Axis]:
        """Tokens with the quantities that they have: in cross-attention keys and queries are different ones."""
        for kind in self._layers:
            names = [name for of, name in self._by_layer if of == kind]
            if kind != "cross":
                yield _Axis(kind, self._batch.keys(kind), names, kind)
                continue
            by_query = [name for name in names if level_of(name) == "query"]
            yield _Axis(kind, self._batch.keys(kind), [name for name in names if name not in by_query], kind)
            if by_query:
                yield _Axis(kind, self._batch.queries(kind), by_query, f"{kind} queries")

    def token_rows(self) -> list[Rows]:
        """One row per token and layer: each quantity averaged over heads (and queries)."""
        batch, parts = self._batch, []
        for axis in self._axes():
            for step, layer in enumerate(self._layers[axis.kind]):
                values = {name: self._by_layer[axis.kind, name][step] for name in axis.quantities}
                columns: Rows = {
                    "sequence": np.array([[sequence.index] for sequence in batch.sequences], dtype=np.int64),
                    "position": np.arange(axis.side.ids.shape[1], dtype=np.int32)[None],
                    "kind": np.array([[KINDS.index(axis.kind)]], dtype=np.int8),
                    "layer": np.array([[layer]], dtype=np.int16),
                    **self._tokens_of(axis.side),
                    **self._all_quantities(values),
                }
                parts.append(_flat(columns, axis.side.ids.shape))
        return parts

    def _tokens_of(self, side: Side) -> Rows:
        covariates = {name: values[side.ids] for name, values in self._plan.covariates.items()}
        return {"token_id": side.ids, "category": side.category, **covariates}

    def _all_quantities(self, known: Rows) -> Rows:
        """A column for each quantity of the plan, in its order: NaN where tokens do not have it."""
        return {name: known.get(name, np.array(np.nan)) for name in self._plan.quantities}

    def _count_covariates(self, axis: _Axis, means: dict[str, Float[np.ndarray, "batch position"]]) -> None:
        for covariate, values in self._plan.covariates.items():
            of_token = values[axis.side.ids]
            known = np.isfinite(of_token)
            for quantity, mean in means.items():
                correlation = self._statistics.covariate_correlation(axis.kind, quantity, covariate)
                correlation.update(mean[known], of_token[known], axis.side.category[known])

    def _sample_tokens(self, axis: _Axis, means: dict[str, Float[np.ndarray, "batch position"]]) -> None:
        seed, (_, length) = self._plan.seed, axis.side.ids.shape
        drawn = [s.random(seed, f"tokens {axis.purpose}").random(length) for s in self._batch.sequences]
        columns = {
            "priority": np.stack(drawn),
            "kind": np.array(KINDS.index(axis.kind), dtype=np.int8),
            "position": np.arange(length, dtype=np.int32),
            **self._tokens_of(axis.side),
            **self._all_quantities(means),
        }
        self._statistics.token_sample.update(_flat(columns, axis.side.ids.shape))


@dataclass(frozen=True)
class _Axis:
    """Tokens of a batch, and the quantities of a kind of site that they have."""

    kind: str
    side: Side
    quantities: Sequence[str]
    purpose: str  # of what is drawn for them


def _flat(columns: Rows, shape: tuple[int, ...]) -> Rows:
    return {name: np.broadcast_to(column, shape).reshape(-1) for name, column in columns.items()}


def sorted_rows(parts: Sequence[Rows]) -> Rows:
    """Rows per token in the order of the corpus: sequence, layer, position."""
    joined = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
    order = np.lexsort((joined["position"], joined["layer"], joined["kind"], joined["sequence"]))
    return {name: column[order] for name, column in joined.items()}


class _SiteCounter:
    """One site of one batch on its way into the statistics."""

    def __init__(self, statistics: CorpusStatistics, batch: Batch, result: SiteResult) -> None:
        self.statistics, self.plan, self.batch = statistics, statistics.plan, batch
        self.kind, self.layer = result.kind, result.layer
        self.site: SiteStatistics = statistics.site(result.kind, result.layer)
        self.keys, self.queries = batch.keys(result.kind), batch.queries(result.kind)
        self.category = self.keys.category.astype(np.int64)  # a pair belongs to the category of its key
        # In a decoder a key after its query is no pair at all, rather than a pair of weight 0.
        self.keep: Bool[np.ndarray, "query key"] | None = (
            np.tri(self.keys.ids.shape[1], dtype=bool) if result.kind == "decoder" else None
        )
        self.values = {name: _array(value, has_heads(name)) for name, value in result.values.items()}
        self.values |= {MIXING + name: _array(ratio, False) for name, ratio in result.mixing.items()}
        self.sums: dict[str, QuerySums] = {}
        self._bins: dict[str, BinNumbers] = {}

    def count(self) -> dict[str, QuerySums]:
        """Update every statistic of the plan; returns the sums of each quantity."""
        done = self._compiled_loop()
        self.sums = {name: self.sums.get(name) or self._summed(name, value) for name, value in self.values.items()}
        if "af_norm" in self.plan.measures and "af_norm" not in self.values:
            self.sums["af_norm"] = self._product()
        for name, sums in self.sums.items():
            self._moments(name, sums)
        for name in self.plan.histograms:
            # In cross-attention a map without the residual has no mixing ratio.
            if name in self.values and (done is None or name != done[0]):
                self._histogram(name)
        for name in self.plan.relative if self.kind != "cross" else ():  # offsets mean something within one text
            maps = self.values[name]
            means = self.site.relative.setdefault(name, RelativePositionMeans(maps.shape[1], self.plan.reach))
            means.update(maps, self.keep)
        for x, y in self.plan.correlate:
            self._correlation(x, y, ranks_done=(x, y) == done)
        self._sample_pairs()
        return self.sums

    def _summed(self, name: str, value: Float[np.ndarray, "batch head *rest"]) -> QuerySums:
        return QuerySums.of_pairs(value, self.keep) if level_of(name) == "pair" else QuerySums.of_positions(value)

    def _product(self) -> QuerySums:
        alpha, f_norm = self.sums["alpha"], self.sums["f_norm"]
        if (alpha.low >= 0).all():
            return alpha.times(f_norm)
        # Signed weights (differential attention): the magnitudes must be taken before they are summed.
        return QuerySums.of_pairs(np.abs(self.values["alpha"]) * self.values["f_norm"][:, :, None], self.keep)

    def _moments(self, name: str, sums: QuerySums) -> None:
        categories, groups = len(self.plan.categories), self._side(name).groups
        shape = (categories, sums.total.shape[1])
        self.site.values.setdefault(name, Moments(shape)).merge(sums.moments(groups, categories))
        self.site.sequences.setdefault(name, Moments(shape)).merge(
            sums.moments_over_sequences(groups, categories, by_pair=level_of(name) == "pair")
        )

    def _compiled_loop(self) -> tuple[str, str] | None:
        """The weights and norms whose ranks a compiled loop counted, with the weights' histogram and sums; None: none."""
        for x, y in self.plan.correlate:
            if x in self.plan.histograms and level_of(x) == "pair" and level_of(y) == "key" and self.keep is None:
                weights, norms = self.values[x], self.values[y]
                ranks = self.statistics.rank_correlation(self.kind, x, y)
                same_heads = norms.shape[1] == weights.shape[1]
                if isinstance(ranks, BinnedSpearman) and same_heads and compiled.usable(weights):
                    group = np.broadcast_to(self.category[:, None], norms.shape)
                    rows = self._histogram_rows(x, norms.shape[1])
                    histogram = self._histogram_of(x, norms.shape[1])
                    self.sums[x] = compiled.count_weights(ranks, histogram, weights, norms, group, rows)
                    return x, y
        return None

    def _histogram_of(self, name: str, heads: int) -> Histogram:
        rows = len(self.plan.categories) * heads
        return self.site.histograms.setdefault(name, Histogram(binning_of(name).coarse, rows))

    def _side(self, name: str) -> Side:
        """The tokens that a quantity belongs to."""
        return self.queries if level_of(name) == "query" else self.keys

    def _histogram_rows(self, name: str, heads: int) -> Int[np.ndarray, "batch head position"]:
        return self._side(name).category.astype(np.int64)[:, None] * heads + np.arange(heads)[:, None]

    def _histogram(self, name: str) -> None:
        bins = self._binned(name).coarse
        heads = bins.shape[1]
        rows = self._histogram_rows(name, heads)
        if bins.ndim == 4:
            rows = rows[:, :, None]
            if self.keep is not None:
                rows, bins = (np.broadcast_to(array, bins.shape)[..., self.keep] for array in (rows, bins))
        self._histogram_of(name, heads).update(rows, bins)

    def _correlation(self, x: str, y: str, *, ranks_done: bool) -> None:
        if x not in self.values or y not in self.values:
            return
        if self.values[x].ndim < self.values[y].ndim:
            x, y = y, x
        x_value, y_value = self.values[x], self.values[y]
        paired = x_value.ndim == 4
        keep = self.keep if paired else None
        y_wide = y_value[:, :, None] if paired and y_value.ndim == 3 else y_value
        x_wide = np.broadcast_to(x_value, np.broadcast_shapes(x_value.shape, y_wide.shape))
        if not ranks_done:
            category = self._side(x).category.astype(np.int64)
            group = category[:, None, None] if paired else category[:, None]
            ranks = self.statistics.rank_correlation(self.kind, x, y)
            bins = self._binned(x) if x_wide.shape == x_value.shape else None
            ranks.update(x_wide, y_wide, np.broadcast_to(group, y_wide.shape), keep, bins)
        if paired and y_wide.shape[2] == 1:  # one y per key: sums over the queries are known already
            sums = self.sums[x].product_sums(self.sums[y])
        else:
            sums = product_sums(x_wide, np.broadcast_to(y_wide, x_wide.shape), keep)
        categories, groups = len(self.plan.categories), self._side(x).groups
        pearson = self.site.pearson.setdefault(f"{x},{y}", Pearson((categories, sums[0].shape[1])))
        pearson.merge(Pearson.of(*(groups.by_category(part, categories) for part in sums)))

    def _binned(self, name: str) -> BinNumbers:
        if name not in self._bins:
            self._bins[name] = binning_of(name).find(self.values[name])
        return self._bins[name]

    def _sample_pairs(self) -> None:
        measured = (self.values[name] for name in self.plan.measures if name in self.values)
        first = next((value for value in measured if value.ndim == 4), None)
        if first is None:
            return
        shape = first.shape[1:]  # head, query, key
        sample, purpose = self.statistics.pair_sample, f"pairs {self.kind} {self.layer}"
        for row, sequence in enumerate(self.batch.sequences):
            rng = sequence.random(self.plan.seed, purpose)
            population = int(np.prod(shape))
            priority, member = lowest_priorities(rng, population, sample.threshold, self.plan.sample)
            head, query, key = np.unravel_index(member, shape)
            columns = {"priority": priority, **self._picked(row, head, query, key)}
            inside = slice(None) if self.keep is None else query >= key
            sample.update({name: column[inside] for name, column in columns.items()})

    def _picked(
        self, row: int, head: Int[np.ndarray, " pair"], query: Int[np.ndarray, " pair"], key: Int[np.ndarray, " pair"]
    ) -> Rows:
        columns: Rows = {
            "kind": np.full(len(head), KINDS.index(self.kind), dtype=np.int8),
            "layer": np.full(len(head), self.layer, dtype=np.int16),
            "head": (head + 1).astype(np.int16),
            "query": query.astype(np.int32),
            "key": key.astype(np.int32),
            "token_id": self.keys.ids[row, key],
            "category": self.keys.category[row, key],
        }
        for name in self.plan.measures:
            if name not in self.values:
                continue
            value = self.values[name][row]
            at_head = head if value.shape[0] > 1 else np.zeros_like(head)
            columns[name] = value[at_head, query, key] if value.ndim == 3 else value[at_head, key]
        if "af_norm" in self.plan.measures and "af_norm" not in columns:
            columns["af_norm"] = np.abs(columns["alpha"]) * columns["f_norm"]
        return columns


def _array(value: Tensor, by_head: bool) -> Float[np.ndarray, "batch head *rest"]:
    array: np.ndarray = value.cpu().float().numpy()
    return array if by_head else array[:, None]
