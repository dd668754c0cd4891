"""One batch on its way into the statistics: each site is counted as the model leaves it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from jaxtyping import Bool, Float, Int
from torch import Tensor

from normlens.anatomy.description import KINDS
from normlens.capture import SiteResult
from normlens.corpus.accumulators.histogram import BinNumbers, Histogram
from normlens.corpus.accumulators.moments import Moments, Pearson, RelativePositionMeans
from normlens.corpus.accumulators.sample import lowest_priorities
from normlens.corpus.accumulators.spearman_binned import BinnedSpearman
from normlens.corpus.counting import compiled
from normlens.corpus.counting.batches import Batch, QuerySums, product_sums
from normlens.corpus.counting.plan import binning_of, has_heads, level_of
from normlens.corpus.counting.statistics import CorpusStatistics, SiteStatistics
from normlens.errors import InputError
from normlens.measures import MIXING

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
        """Take in one site of the batch."""
        if result.kind == "cross":
            raise InputError(
                "corpus statistics need attention within one sequence: this model has cross-attention, which has two; "
                "use an encoder or a decoder-only model"
            )
        self._statistics.proof = max(self._statistics.proof, float(result.proof.max()))
        self._layers.setdefault(result.kind, []).append(result.layer)
        for name, sums in _SiteCounter(self._statistics, self._batch, result).count().items():
            self._by_layer.setdefault((result.kind, name), []).append(sums.means.mean(axis=1))

    def finish(self) -> None:
        """End the batch: count its sequences, and take in what is averaged over layers."""
        statistics, groups = self._statistics, self._batch.groups
        statistics.sequences += len(self._batch.sequences)
        np.add.at(statistics.sequences_with, groups.category, 1)
        np.add.at(statistics.tokens, groups.category, groups.sizes)
        for kind in self._layers:
            means = {name: np.mean(layers, axis=0) for (of, name), layers in self._by_layer.items() if of == kind}
            self._count_covariates(kind, means)
            self._sample_tokens(kind, means)

    def token_rows(self) -> list[Rows]:
        """One row per token and layer: each quantity averaged over heads (and queries)."""
        batch, parts = self._batch, []
        for kind, layers in self._layers.items():
            for step, layer in enumerate(layers):
                columns = {
                    "sequence": np.array([[sequence.index] for sequence in batch.sequences], dtype=np.int64),
                    "position": np.arange(batch.ids.shape[1], dtype=np.int32)[None],
                    "kind": np.array([[KINDS.index(kind)]], dtype=np.int8),
                    "layer": np.array([[layer]], dtype=np.int16),
                    "token_id": batch.ids,
                    "category": batch.category,
                    **{name: values[batch.ids] for name, values in self._plan.covariates.items()},
                    **{name: by_layer[step] for (of, name), by_layer in self._by_layer.items() if of == kind},
                }
                parts.append(_flat(columns, batch.ids.shape))
        return parts

    def _count_covariates(self, kind: str, means: dict[str, Float[np.ndarray, "batch position"]]) -> None:
        for covariate, values in self._plan.covariates.items():
            of_token = values[self._batch.ids]
            known = np.isfinite(of_token)
            for quantity, mean in means.items():
                correlation = self._statistics.covariate_correlation(kind, quantity, covariate)
                correlation.update(mean[known], of_token[known], self._batch.category[known])

    def _sample_tokens(self, kind: str, means: dict[str, Float[np.ndarray, "batch position"]]) -> None:
        batch, seed = self._batch, self._plan.seed
        length = batch.ids.shape[1]
        columns = {
            "priority": np.stack([s.random(seed, f"tokens {kind}").random(length) for s in batch.sequences]),
            "kind": np.array(KINDS.index(kind), dtype=np.int8),
            "position": np.arange(length, dtype=np.int32),
            "token_id": batch.ids,
            "category": batch.category,
            **{name: values[batch.ids] for name, values in self._plan.covariates.items()},
            **means,
        }
        self._statistics.token_sample.update(_flat(columns, batch.ids.shape))


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
        self.category = batch.category.astype(np.int64)
        length = batch.ids.shape[1]
        # In a decoder a key after its query is no pair at all, rather than a pair of weight 0.
        self.keep: Bool[np.ndarray, "query key"] | None = (
            np.tri(length, dtype=bool) if result.kind == "decoder" else None
        )
        self.values = {name: _array(value, has_heads(name)) for name, value in result.values.items()}
        self.values |= {MIXING + name: _array(ratio, False) for name, ratio in result.mixing.items()}
        self.sums = {name: self._summed(name, value) for name, value in self.values.items()}
        if "af_norm" in self.plan.measures and "af_norm" not in self.values:
            self.sums["af_norm"] = self._product()
        self._bins: dict[str, BinNumbers] = {}

    def count(self) -> dict[str, QuerySums]:
        """Update every statistic of the plan; returns the sums of each quantity."""
        for name, sums in self.sums.items():
            self._moments(name, sums)
        done = self._compiled_loop()
        for name in self.plan.histograms:
            if done is None or name != done[0]:
                self._histogram(name)
        for name in self.plan.relative:
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
        categories, groups = len(self.plan.categories), self.batch.groups
        # A category that a sequence lacks takes none of its weight, but has no norm.
        absent_is_zero = level_of(name) == "pair"
        shape = (categories, sums.total.shape[1])
        self.site.values.setdefault(name, Moments(shape)).merge(sums.moments(groups, categories))
        self.site.sequences.setdefault(name, Moments(shape)).merge(
            sums.moments_over_sequences(groups, categories, absent_is_zero=absent_is_zero)
        )

    def _compiled_loop(self) -> tuple[str, str] | None:
        """The weights and norms whose ranks a compiled loop counted, with the weights' histogram; None where it may not."""
        for x, y in self.plan.correlate:
            if x in self.plan.histograms and level_of(x) == "pair" and level_of(y) == "key" and self.keep is None:
                weights, norms = self.values[x], self.values[y]
                ranks = self.statistics.rank_correlation(self.kind, x, y)
                same_heads = norms.shape[1] == weights.shape[1]
                if isinstance(ranks, BinnedSpearman) and same_heads and compiled.usable(weights):
                    group = np.broadcast_to(self.category[:, None], norms.shape)
                    rows = self._histogram_rows(norms.shape[1])
                    compiled.count_weights(ranks, self._histogram_of(x, norms.shape[1]), weights, norms, group, rows)
                    return x, y
        return None

    def _histogram_of(self, name: str, heads: int) -> Histogram:
        rows = len(self.plan.categories) * heads
        return self.site.histograms.setdefault(name, Histogram(binning_of(name).coarse, rows))

    def _histogram_rows(self, heads: int) -> Int[np.ndarray, "batch head position"]:
        return self.category[:, None] * heads + np.arange(heads)[:, None]

    def _histogram(self, name: str) -> None:
        bins = self._binned(name).coarse
        heads = bins.shape[1]
        rows = self._histogram_rows(heads)
        if bins.ndim == 4:
            rows = rows[:, :, None]
            if self.keep is not None:
                rows, bins = (np.broadcast_to(array, bins.shape)[..., self.keep] for array in (rows, bins))
        self._histogram_of(name, heads).update(rows, bins)

    def _correlation(self, x: str, y: str, *, ranks_done: bool) -> None:
        if self.values[x].ndim < self.values[y].ndim:
            x, y = y, x
        x_value, y_value = self.values[x], self.values[y]
        paired = x_value.ndim == 4
        keep = self.keep if paired else None
        y_wide = y_value[:, :, None] if paired and y_value.ndim == 3 else y_value
        x_wide = np.broadcast_to(x_value, np.broadcast_shapes(x_value.shape, y_wide.shape))
        if not ranks_done:
            group = self.category[:, None, None] if paired else self.category[:, None]
            ranks = self.statistics.rank_correlation(self.kind, x, y)
            bins = self._binned(x) if x_wide.shape == x_value.shape else None
            ranks.update(x_wide, y_wide, np.broadcast_to(group, y_wide.shape), keep, bins)
        if paired and y_wide.shape[2] == 1:  # one y per key: sums over the queries are known already
            sums = self.sums[x].product_sums(self.sums[y])
        else:
            sums = product_sums(x_wide, np.broadcast_to(y_wide, x_wide.shape), keep)
        categories, groups = len(self.plan.categories), self.batch.groups
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
            "token_id": self.batch.ids[row, key],
            "category": self.batch.category[row, key],
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
