"""The tally of a corpus: every statistic of a plan, updated site by site, mergeable."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from normlens.corpus import kernels
from normlens.corpus.batches import Batch, generator
from normlens.corpus.grid import Bins
from normlens.corpus.histogram import Histogram
from normlens.corpus.moments import Moments
from normlens.corpus.pairs import PairCounts
from normlens.corpus.pearson import Pearson
from normlens.corpus.plan import MIXING, Plan, has_heads, level_of, scale_of
from normlens.corpus.ranks import CrossedCounts
from normlens.corpus.reduce import Reduced, over_sequences, reduce_keys, reduce_pairs
from normlens.corpus.relative import RelativeMeans
from normlens.corpus.sample import Sample, lowest
from normlens.errors import InputError
from normlens.observe import SiteResult

KINDS = ("encoder", "decoder", "cross")


class Accumulator(Protocol):
    """What every statistic offers: its state as arrays, and taking in the state of another part of the data."""

    def state(self) -> dict[str, np.ndarray]: ...

    def load(self, state: dict[str, np.ndarray]) -> None: ...


@dataclass
class SiteTally:
    """The statistics of one site."""

    tokens: dict[str, Moments] = field(default_factory=dict)  # over all values: (category, head)
    sequences: dict[str, Moments] = field(default_factory=dict)  # over sequences: (category, head)
    histograms: dict[str, Histogram] = field(default_factory=dict)  # rows: category x head
    relative: dict[str, RelativeMeans] = field(default_factory=dict)  # rows: head
    pearson: dict[str, Pearson] = field(default_factory=dict)  # (category, head)

    def parts(self) -> dict[str, dict[str, Any]]:
        """The statistics by what they are."""
        return {
            "tokens": self.tokens, "sequences": self.sequences, "histograms": self.histograms,
            "relative": self.relative, "pearson": self.pearson,
        }  # fmt: skip


class Tally:
    """Every statistic of a plan over the sequences seen so far."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.sites: dict[tuple[str, int], SiteTally] = {}
        self.ranks: dict[tuple[str, str, str], CrossedCounts] = {}  # kind, x, y
        self.covariates: dict[tuple[str, str, str], PairCounts] = {}  # kind, quantity, covariate
        self.pairs = Sample(plan.sample)
        self.points = Sample(plan.sample)
        self.sequences = 0
        self.with_category = np.zeros(len(plan.categories), dtype=np.int64)
        self.positions = np.zeros(len(plan.categories), dtype=np.int64)
        self.proof = 0.0

    # ---- taking in ----------------------------------------------------------------------------------------------

    def open(self, batch: Batch) -> BatchTally:
        """Begin a batch: give each site to `BatchTally.site`, then call `close`."""
        return BatchTally(self, batch)

    def merge(self, other: Tally) -> None:
        """Take in the tally of another part of the corpus."""
        if self.plan != other.plan:
            raise InputError("tallies merge only when both count the same things")
        self.load(other.state())

    # ---- as arrays ----------------------------------------------------------------------------------------------

    def state(self) -> dict[str, np.ndarray]:
        """Everything, as arrays by path."""
        out: dict[str, np.ndarray] = {
            "sequences": np.array(self.sequences),
            "with_category": self.with_category,
            "positions": self.positions,
            "proof": np.array(self.proof),
        }
        for path, accumulator in self._accumulators():
            out.update({f"{path}/{name}": array for name, array in accumulator.state().items()})
        return out

    def load(self, state: Mapping[str, np.ndarray]) -> None:
        """Take in a saved state, on top of what is there."""
        self.sequences += int(state["sequences"])
        self.with_category += state["with_category"]
        self.positions += state["positions"]
        self.proof = max(self.proof, float(state["proof"]))
        groups: dict[str, dict[str, np.ndarray]] = {}
        for path, array in state.items():
            owner, _, name = path.rpartition("/")
            if owner:
                groups.setdefault(owner, {})[name] = array
        for path, arrays in groups.items():
            self._at(path, arrays).load(arrays)

    def _accumulators(self) -> list[tuple[str, Accumulator]]:
        found: list[tuple[str, Accumulator]] = [("pairs", self.pairs), ("points", self.points)]
        for (kind, layer), site in self.sites.items():
            for part, by_name in site.parts().items():
                found += [(f"site/{kind}/{layer}/{part}/{name}", item) for name, item in by_name.items()]
        found += [("ranks/" + "/".join(key), ranks) for key, ranks in self.ranks.items()]
        found += [("covariates/" + "/".join(key), pairs) for key, pairs in self.covariates.items()]
        return found

    def _at(self, path: str, arrays: dict[str, np.ndarray]) -> Accumulator:
        match path.split("/"):
            case ["pairs"]:
                return self.pairs
            case ["points"]:
                return self.points
            case ["ranks", kind, x, y]:
                return self.rank_counts(kind, x, y)
            case ["covariates", kind, quantity, covariate]:
                return self.pair_counts(kind, quantity, covariate)
            case ["site", kind, layer, part, name]:
                return self._site_accumulator(kind, int(layer), part, name, arrays)
        raise InputError(f"a saved tally holds statistics of this version: {path!r} is none of them")

    def _site_accumulator(
        self, kind: str, layer: int, part: str, name: str, arrays: dict[str, np.ndarray]
    ) -> Accumulator:
        by_name = self.site(kind, layer).parts()[part]
        if name not in by_name:
            if part in ("tokens", "sequences"):
                by_name[name] = Moments(arrays["count"].shape)
            elif part == "pearson":
                by_name[name] = Pearson(arrays["count"].shape)
            elif part == "relative":
                by_name[name] = RelativeMeans(len(arrays["total"]), self.plan.reach)
            else:
                by_name[name] = Histogram(scale_of(name).coarse, int(arrays["rows"]))
        found: Accumulator = by_name[name]
        return found

    def site(self, kind: str, layer: int) -> SiteTally:
        """The statistics of a site, new where it was not met before."""
        return self.sites.setdefault((kind, layer), SiteTally())

    def rank_counts(self, kind: str, x: str, y: str) -> CrossedCounts:
        """The rank tables of two quantities, over all layers and heads of a kind of site."""
        if (kind, x, y) not in self.ranks:
            self.ranks[kind, x, y] = CrossedCounts(scale_of(x), scale_of(y), len(self.plan.categories))
        return self.ranks[kind, x, y]

    def pair_counts(self, kind: str, quantity: str, covariate: str) -> PairCounts:
        """Pairs of a token's quantity, averaged over layers and heads, and its covariate."""
        return self.covariates.setdefault((kind, quantity, covariate), PairCounts())


class BatchTally:
    """One batch on its way into a tally: what is averaged over layers waits here until the batch ends."""

    def __init__(self, tally: Tally, batch: Batch) -> None:
        self.tally, self.plan, self.batch = tally, tally.plan, batch
        self.category = torch.from_numpy(batch.category.astype(np.int64))
        self.per_token: dict[tuple[str, str], list[Float[np.ndarray, "batch position"]]] = {}
        self.layers: dict[str, list[int]] = {}

    def site(self, result: SiteResult) -> None:
        """Take in one site of the batch."""
        if result.kind == "cross":
            raise InputError("corpus statistics read one sequence at a time: cross-attention has two")
        self.tally.proof = max(self.tally.proof, float(result.proof.max()))
        self.layers.setdefault(result.kind, []).append(result.layer)
        SiteUpdate(self, result, self.tally.site(result.kind, result.layer)).run()

    def close(self) -> None:
        """End the batch: count its sequences, and take in what is averaged over layers."""
        tally, batch, groups = self.tally, self.batch, self.batch.groups
        tally.sequences += len(batch.items)
        np.add.at(tally.with_category, groups.category, 1)
        np.add.at(tally.positions, groups.category, groups.sizes)
        for kind in self.layers:
            means = {name: np.mean(layers, axis=0) for (owner, name), layers in self.per_token.items() if owner == kind}
            self._covariates(kind, means)
            self._points(kind, means)

    def _covariates(self, kind: str, means: dict[str, Float[np.ndarray, "batch position"]]) -> None:
        for covariate, values in self.plan.covariates.items():
            of_token = values[self.batch.ids]
            known = np.isfinite(of_token)
            for quantity, mean in means.items():
                counts = self.tally.pair_counts(kind, quantity, covariate)
                counts.update(mean[known], of_token[known], self.batch.category[known])

    def _points(self, kind: str, means: dict[str, Float[np.ndarray, "batch position"]]) -> None:
        seed = self.plan.seed
        length = self.batch.ids.shape[1]
        priority = np.stack(
            [generator(seed, f"tokens {kind}", item.digest).random(length) for item in self.batch.items]
        )
        columns = {
            "priority": priority,
            "kind": np.full(priority.shape, KINDS.index(kind), dtype=np.int8),
            "position": np.broadcast_to(np.arange(length, dtype=np.int32), priority.shape),
            "token_id": self.batch.ids,
            "category": self.batch.category,
            **{name: values[self.batch.ids] for name, values in self.plan.covariates.items()},
            **means,
        }
        self.tally.points.add({name: column.reshape(-1) for name, column in columns.items()})


class SiteUpdate:
    """One site of one batch on its way into its statistics."""

    def __init__(self, owner: BatchTally, result: SiteResult, site: SiteTally) -> None:
        self.owner, self.plan, self.tally = owner, owner.plan, owner.tally
        self.batch, self.category = owner.batch, owner.category
        self.result, self.statistics = result, site
        length = self.batch.ids.shape[1]
        # In a decoder a key after its query is no pair at all, rather than a pair of weight 0.
        self.keep = torch.ones(length, length, dtype=torch.bool).tril() if result.kind == "decoder" else None
        self.values = {name: self._with_heads(name, value.cpu().float()) for name, value in result.values.items()}
        self.values |= {MIXING + name: ratio.cpu().float().unsqueeze(1) for name, ratio in result.mixing.items()}
        self.bins: dict[str, Bins] = {}
        self.reduced: dict[str, Reduced] = {}

    def run(self) -> None:
        """Update every statistic of the plan."""
        for name, value in self.values.items():
            self.reduced[name] = reduce_pairs(value, self.keep) if level_of(name) == "pair" else reduce_keys(value)
        if "af_norm" in self.plan.measures and "af_norm" not in self.values:
            self.reduced["af_norm"] = self._product()
        for name, reduced in self.reduced.items():
            self._moments(name, reduced)
            self.owner.per_token.setdefault((self.result.kind, name), []).append(reduced.means.mean(axis=1))
        counted = self._counted_together()
        for name in self.plan.histograms:
            if name != counted:
                self._histogram(name)
        for name in self.plan.relative:
            self._relative(name)
        for x, y in self.plan.correlate:
            self._correlation(x, y, ranked=x == counted)
        self._sample()

    def _counted_together(self) -> str | None:
        """The weights that a compiled loop counted, ranks and histogram in one pass; None where it could not."""
        for x, y in self.plan.correlate:
            if x in self.plan.histograms and level_of(x) == "pair" and level_of(y) == "key" and self.keep is None:
                weights, norms = self.values[x], self.values[y]
                counts = self.tally.rank_counts(self.result.kind, x, y)
                if isinstance(counts, CrossedCounts) and norms.shape[1] == weights.shape[1] and kernels.usable(weights):
                    heads = weights.shape[1]
                    group = self.category.unsqueeze(1).expand(norms.shape)
                    rows = group * heads + torch.arange(heads).unsqueeze(1)
                    kernels.count_weights(counts, self._histogram_of(x, heads), weights, norms, group, rows)
                    return x
        return None

    def _histogram_of(self, name: str, heads: int) -> Histogram:
        rows = len(self.plan.categories) * heads
        return self.statistics.histograms.setdefault(name, Histogram(scale_of(name).coarse, rows))

    def _product(self) -> Reduced:
        alpha, f_norm = self.reduced["alpha"], self.reduced["f_norm"]
        if (alpha.low >= 0).all():
            return alpha.times(f_norm)
        # Signed weights (differential attention): the magnitudes must be taken before they are summed.
        return reduce_pairs(self.values["alpha"].abs() * self.values["f_norm"].unsqueeze(2), self.keep)

    def _with_heads(self, name: str, value: Tensor) -> Tensor:
        return value if has_heads(name) else value.unsqueeze(1)

    def _moments(self, name: str, reduced: Reduced) -> None:
        shape = (len(self.plan.categories), reduced.total.shape[1])
        by_category, by_sequence = reduced.grouped(self.batch.groups, shape[0], len(self.batch.items))
        tokens, sequences = self.statistics.tokens, self.statistics.sequences
        tokens.setdefault(name, Moments(shape)).add(*by_category)
        # A category that a sequence lacks takes none of its weight, but has no norm.
        absent_is_zero = level_of(name) == "pair"
        sequences.setdefault(name, Moments(shape)).add(*over_sequences(by_sequence, absent_is_zero))

    def _histogram(self, name: str) -> None:
        bins = self._bins(name)
        heads = bins.coarse.shape[1]
        rows = self.category.unsqueeze(1) * heads + torch.arange(heads).unsqueeze(1)  # batch, head, position
        coarse = bins.coarse
        if coarse.ndim == 4:
            rows = rows.unsqueeze(2)
            if self.keep is not None:
                rows, coarse = (tensor.expand(bins.coarse.shape)[..., self.keep] for tensor in (rows, coarse))
        self._histogram_of(name, heads).add(rows, coarse)

    def _relative(self, name: str) -> None:
        maps = self.values[name]
        relative = self.statistics.relative
        relative.setdefault(name, RelativeMeans(maps.shape[1], self.plan.reach)).add(maps, self.keep)

    def _correlation(self, x: str, y: str, ranked: bool) -> None:
        x_value, y_value = self.values[x], self.values[y]
        if x_value.ndim < y_value.ndim:
            x, y, x_value, y_value = y, x, y_value, x_value
        paired = x_value.ndim == 4
        y_wide = y_value.unsqueeze(2) if paired and y_value.ndim == 3 else y_value
        x_wide = x_value.expand(torch.broadcast_shapes(x_value.shape, y_wide.shape))
        group = self.category[:, None, None, :] if paired else self.category[:, None, :]
        group = group.expand(y_wide.shape)
        keep = self.keep if paired else None
        if not ranked:
            counts = self.tally.rank_counts(self.result.kind, x, y)
            counts.update(x_wide, y_wide, group, keep, self._bins(x) if x_wide.shape == x_value.shape else None)
        self._pearson(x, y, x_wide, y_wide, keep)

    def _pearson(
        self, x: str, y: str, x_value: Tensor, y_value: Tensor, keep: Bool[Tensor, "query key"] | None
    ) -> None:
        key_level = y_value.ndim == 3 or y_value.shape[2] == 1
        if x in self.reduced and key_level and x_value.ndim == 4:
            sums = self.reduced[x].products(self.reduced[y])
        else:
            full = x_value.double(), y_value.expand(x_value.shape).double()
            sums = Reduced.product_sums(*full, keep)
        shape = (len(self.plan.categories), sums[0].shape[1])
        pearson = self.statistics.pearson.setdefault(f"{x},{y}", Pearson(shape))
        pearson.add_sums(*(self.batch.groups.by_category(part, shape[0]) for part in sums))

    def _bins(self, name: str) -> Bins:
        if name not in self.bins:
            self.bins[name] = scale_of(name).bins(self.values[name])
        return self.bins[name]

    def _sample(self) -> None:
        paired = [name for name in self.plan.measures if level_of(name) != "query"]
        first = next((self.values[n] for n in paired if n in self.values and self.values[n].ndim == 4), None)
        if first is None:
            return
        _, heads, queries, keys = first.shape
        purpose = f"pairs {self.result.kind} {self.result.layer}"
        for row, item in enumerate(self.batch.items):
            rng = generator(self.plan.seed, purpose, item.digest)
            population = heads * queries * keys
            priority, member = lowest(rng, population, self.tally.pairs.threshold, self.plan.sample)
            head, query, key = np.unravel_index(member, (heads, queries, keys))
            columns = {"priority": priority, **self._picked(row, head, query, key)}
            inside = slice(None) if self.keep is None else query >= key
            self.tally.pairs.add({name: column[inside] for name, column in columns.items()})

    def _picked(self, row: int, head: np.ndarray, query: np.ndarray, key: np.ndarray) -> dict[str, np.ndarray]:
        columns: dict[str, np.ndarray] = {
            "kind": np.full(len(head), KINDS.index(self.result.kind), dtype=np.int8),
            "layer": np.full(len(head), self.result.layer, dtype=np.int16),
            "head": (head + 1).astype(np.int16),
            "query": query.astype(np.int32),
            "key": key.astype(np.int32),
            "token_id": self.batch.ids[row, key],
            "category": self.batch.category[row, key],
        }
        for name in self.plan.measures:
            if name not in self.values:
                continue
            value = self.values[name][row].numpy()
            at_head = head if value.shape[0] > 1 else np.zeros_like(head)
            columns[name] = value[at_head, query, key] if value.ndim == 3 else value[at_head, key]
        if "af_norm" in self.plan.measures and "af_norm" not in columns:
            columns["af_norm"] = np.abs(columns["alpha"]) * columns["f_norm"]
        return columns
