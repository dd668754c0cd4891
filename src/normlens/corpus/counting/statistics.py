"""Every statistic of a plan over the sequences seen so far."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from normlens.corpus.accumulators.histogram import Histogram
from normlens.corpus.accumulators.moments import Moments, Pearson, RelativePositionMeans
from normlens.corpus.accumulators.sample import UniformSample
from normlens.corpus.accumulators.spearman_binned import BinnedSpearman
from normlens.corpus.accumulators.spearman_pairs import DiskSpearman, DistinctPairSpearman
from normlens.corpus.counting.plan import Plan, binning_of
from normlens.errors import InputError

_NAMED = 20  # records that are named; all are counted


class Accumulator(Protocol):
    """What every statistic offers here: its state as arrays, and taking in the state of another part of the data."""

    def state(self) -> dict[str, np.ndarray]: ...

    def load(self, state: Mapping[str, np.ndarray]) -> None: ...


@dataclass
class SiteStatistics:
    """The statistics of one site, by quantity."""

    values: dict[str, Moments] = field(default_factory=dict)  # over all values: (category, head)
    sequences: dict[str, Moments] = field(default_factory=dict)  # over sequences: (category, head)
    histograms: dict[str, Histogram] = field(default_factory=dict)  # rows: category x head
    relative: dict[str, RelativePositionMeans] = field(default_factory=dict)  # rows: head
    pearson: dict[str, Pearson] = field(default_factory=dict)  # "x,y": (category, head)

    def accumulators(self) -> Iterator[tuple[str, Accumulator]]:
        """Every accumulator with its path in a saved state."""
        parts: dict[str, Mapping[str, Accumulator]] = {
            "tokens": self.values, "sequences": self.sequences, "histograms": self.histograms,
            "relative": self.relative, "pearson": self.pearson,
        }  # fmt: skip
        for part, by_name in parts.items():
            for name, accumulator in by_name.items():
                yield f"{part}/{name}", accumulator

    def at(self, part: str, name: str, state: Mapping[str, np.ndarray], reach: int) -> Accumulator:
        """The accumulator of a path, made to fit a saved state where there is none yet."""
        match part:
            case "tokens":
                return self.values.setdefault(name, Moments(state["count"].shape))
            case "sequences":
                return self.sequences.setdefault(name, Moments(state["count"].shape))
            case "pearson":
                return self.pearson.setdefault(name, Pearson(state["count"].shape))
            case "relative":
                return self.relative.setdefault(name, RelativePositionMeans(len(state["total"]), reach))
            case "histograms":
                return self.histograms.setdefault(name, Histogram(binning_of(name).coarse, int(state["rows"])))
        raise _unknown(f"{part}/{name}")


class CorpusStatistics:
    """The statistics of a plan; `BatchCounter` updates them, `tables_of` turns them into results."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.sites: dict[tuple[str, int], SiteStatistics] = {}  # kind, layer
        self.ranks: dict[tuple[str, str, str], BinnedSpearman] = {}  # kind, x, y
        self.covariate_ranks: dict[tuple[str, str, str], DistinctPairSpearman] = {}  # kind, quantity, covariate
        self.pair_sample = UniformSample(plan.sample)
        self.token_sample = UniformSample(plan.sample)
        self.sequences = 0
        self.sequences_with = np.zeros(len(plan.categories), dtype=np.int64)  # a token of each category
        self.tokens = np.zeros(len(plan.categories), dtype=np.int64)
        self.proof = 0.0  # the largest error so far
        self.empty = 0  # records of which no token was left
        self.empty_places: list[str] = []  # of the first ones

    @property
    def size(self) -> int:
        """How many numbers of the corpus are in here: its sequences, and the records of which nothing was left."""
        return self.sequences + self.empty

    def site(self, kind: str, layer: int) -> SiteStatistics:
        """The statistics of a site, new where it was not met before."""
        return self.sites.setdefault((kind, layer), SiteStatistics())

    def rank_correlation(self, kind: str, x: str, y: str) -> BinnedSpearman | DiskSpearman:
        """Two quantities over all pairs, layers and heads of a kind of site."""
        if (kind, x, y) not in self.ranks:
            self.ranks[kind, x, y] = BinnedSpearman(binning_of(x), binning_of(y), len(self.plan.categories))
        return self.ranks[kind, x, y]

    def covariate_correlation(self, kind: str, quantity: str, covariate: str) -> DistinctPairSpearman | DiskSpearman:
        """A token's quantity, averaged over layers and heads, and its covariate."""
        return self.covariate_ranks.setdefault((kind, quantity, covariate), DistinctPairSpearman())

    def note_empty(self, count: int, places: Sequence[str]) -> None:
        """Count records of which no token was left; the first ones are named."""
        self.empty += count
        self.empty_places = [*self.empty_places, *places][:_NAMED]

    def merge(self, other: CorpusStatistics) -> None:
        """Take in the statistics of another part of the corpus."""
        if self.plan != other.plan:
            raise InputError("corpus statistics merge only when both count the same things")
        self.load(other.state())

    def state(self) -> dict[str, np.ndarray]:
        """Everything, as arrays by path."""
        out: dict[str, np.ndarray] = {
            "sequences": np.array(self.sequences),
            "with_category": self.sequences_with,
            "positions": self.tokens,
            "proof": np.array(self.proof),
            "empty": np.array(self.empty),
            "empty_places": np.array(self.empty_places, dtype=np.str_),
        }
        for path, accumulator in self._accumulators():
            out.update({f"{path}/{name}": array for name, array in accumulator.state().items()})
        return out

    def load(self, state: Mapping[str, np.ndarray]) -> None:
        """Take in a saved state, on top of what is there."""
        self.sequences += int(state["sequences"])
        self.sequences_with += state["with_category"]
        self.tokens += state["positions"]
        self.proof = max(self.proof, float(state["proof"]))
        self.note_empty(int(state["empty"]), [str(place) for place in state["empty_places"]])
        groups: dict[str, dict[str, np.ndarray]] = {}
        for path, array in state.items():
            owner, _, name = path.rpartition("/")
            if owner:
                groups.setdefault(owner, {})[name] = array
        for path, arrays in groups.items():
            self._at(path, arrays).load(arrays)

    def _accumulators(self) -> Iterator[tuple[str, Accumulator]]:
        yield "pairs", self.pair_sample
        yield "points", self.token_sample
        for (kind, layer), site in self.sites.items():
            yield from ((f"site/{kind}/{layer}/{path}", accumulator) for path, accumulator in site.accumulators())
        for key, ranks in self.ranks.items():
            yield "ranks/" + "/".join(key), ranks
        for key, pairs in self.covariate_ranks.items():
            yield "covariates/" + "/".join(key), pairs

    def _at(self, path: str, state: Mapping[str, np.ndarray]) -> Accumulator:
        match path.split("/"):
            case ["pairs"]:
                return self.pair_sample
            case ["points"]:
                return self.token_sample
            case ["ranks", kind, x, y]:
                self.rank_correlation(kind, x, y)
                return self.ranks[kind, x, y]
            case ["covariates", kind, quantity, covariate]:
                self.covariate_correlation(kind, quantity, covariate)
                return self.covariate_ranks[kind, quantity, covariate]
            case ["site", kind, layer, part, name]:
                return self.site(kind, int(layer)).at(part, name, state, self.plan.reach)
        raise _unknown(path)


def _unknown(path: str) -> InputError:
    return InputError(f"a saved state holds statistics of this version: {path!r} is none of them; start with --fresh")
