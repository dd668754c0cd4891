"""The options of a corpus run: what is read, what is computed, how it is run.

`CorpusOptions` are the keyword arguments of `Lens.corpus` and the options of `normlens corpus`. `Reading`, `Plan` and
`Running` are the same as checked values.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Literal, TypedDict

import numpy as np
import numpy.typing as npt
from jaxtyping import Float

from normlens.corpus.bins import CONTRIBUTION_BINS, NORM_BINS, WEIGHT_BINS, Binning
from normlens.errors import InputError, unexpected_keyword
from normlens.measures.table import BLOCK_MAPS, MEASURES, MIXING, chosen_maps, chosen_measures
from normlens.options import CorpusFormat, EngineName, OnError, Precision
from normlens.types import Json

#: The quantities of the 2020 paper; the five mixing ratios are those of the 2021 paper.
PAPER_MEASURES = ("alpha", "f_norm", "af_norm", "x_norm")

#: A regular expression that the whole token must match, without its word-boundary mark, or a function of that string.
CategoryRule = str | re.Pattern[str] | Callable[[str], bool]

#: A number per token id: an array over the vocabulary (NaN leaves a token out), a file of ranks, or `COUNTED`.
Covariate = npt.ArrayLike | Path

#: The covariate that ranks tokens by their count in the corpus itself.
COUNTED = "corpus"

#: Bytes. A tokenizer needs some sixty times the memory of the text that it is given.
LARGEST_RECORD = 1 << 24


class ReadingOptions(TypedDict, total=False):
    """What is read, and how it becomes sequences; see `Reading`."""

    pairs: bool
    max_length: int | None
    mask: float
    seed: int
    limit: int | None
    skip: str | None
    format: CorpusFormat | None
    text_column: str | None
    pair_column: str | None
    tag_column: str | None
    target_column: str | None
    on_error: OnError
    largest_record: int
    categories: Mapping[str, CategoryRule] | None


class ComputingOptions(TypedDict, total=False):
    """What is computed; see `Plan.of`."""

    covariates: Mapping[str, Covariate] | None
    measures: Sequence[str] | None
    mixing: Sequence[str] | None
    layers: Sequence[int] | None
    correlate: Sequence[tuple[str, str]] | None
    histograms: Sequence[str] | None
    relative: Sequence[str] | None
    sample: int
    per_token: bool
    exact: bool
    precision: Precision


class RunningOptions(TypedDict, total=False):
    """How it is run; see `Running`."""

    engine: EngineName | None
    workers: int | None
    threads: int | None
    gpus: float
    address: str | None
    batch_size: int | None
    fresh: bool
    overwrite: bool
    range_seconds: float


class CorpusOptions(ReadingOptions, ComputingOptions, RunningOptions, total=False):
    """Every option of a corpus run."""


@dataclass(frozen=True)
class Reading:
    """What is read, and how it becomes sequences."""

    pairs: bool = False  # two consecutive paragraphs: [CLS] a [SEP] b [SEP]
    max_length: int | None = None  # tokens; None: 128 as in the papers, or the model's limit where that is less
    mask: float = 0.0  # share of the tokens, other than special ones, that become [MASK]
    seed: int = 0  # of masks and samples
    limit: int | None = None  # at most so many sequences
    skip: str | None = None  # texts that match this regular expression are not part of the corpus
    format: CorpusFormat | None = None  # where the name of a source does not tell
    text_column: str | None = None  # None: the first of text, sentence, content
    pair_column: str | None = None
    tag_column: str | None = None  # a tag per word: the categories
    target_column: str | None = None  # the output of an encoder-decoder model
    on_error: OnError = "stop"
    largest_record: int = LARGEST_RECORD  # bytes; a longer record is unreadable
    categories: Mapping[str, CategoryRule] | None = field(default=None, compare=False)  # None: comma and period

    def __post_init__(self) -> None:
        if self.on_error not in ("stop", "skip"):
            raise InputError(f"on_error must be stop or skip, got {self.on_error!r}")
        if self.limit is not None and self.limit < 1:
            raise InputError(f"limit must be at least 1, got {self.limit}")
        if self.largest_record < 1:
            raise InputError(f"largest_record must be at least 1 byte, got {self.largest_record}")
        if self.target_column is not None and (self.pairs or self.mask or self.pair_column or self.tag_column):
            raise InputError(
                "--target-column is for encoder-decoder models, which read one text and mask none; drop --pairs, "
                "--mask, --pair-column and --tag-column, or --target-column"
            )
        _ = self.skip_pattern

    @property
    def skip_pattern(self) -> re.Pattern[str] | None:
        """The regular expression of texts to leave out."""
        if self.skip is None:
            return None
        try:
            return re.compile(self.skip)
        except re.error as error:
            raise InputError(
                f"skip must be a regular expression, got {self.skip!r} ({error}); escape special characters"
            ) from error


@dataclass(frozen=True)
class Plan:
    """Everything that decides which numbers a run keeps."""

    categories: tuple[str, ...]
    sites: tuple[tuple[str, int, int], ...] = ()  # kind, layer and number of heads of every site
    measures: tuple[str, ...] = PAPER_MEASURES
    mixing: tuple[str, ...] = BLOCK_MAPS
    histograms: tuple[str, ...] = ()  # quantities with a histogram
    correlate: tuple[tuple[str, str], ...] = ()  # pairs of quantities, over all (query, key) pairs
    relative: tuple[str, ...] = ()  # maps with means by relative position
    reach: int = 64  # the largest relative position with a mean of its own
    sample: int = 20_000  # pairs, and tokens, in the uniform samples
    seed: int = 0
    layers: tuple[int, ...] | None = None
    covariates: dict[str, Float[np.ndarray, " vocabulary"]] = field(default_factory=dict, compare=False)
    precision: Precision = "float32"
    per_token: bool = False  # also a row per token and layer
    exact: bool = False  # compute flagged rank correlations again, exactly, in a second pass

    @classmethod
    def of(
        cls,
        categories: tuple[str, ...],
        options: ComputingOptions | None = None,
        *,
        covariates: Mapping[str, Float[np.ndarray, " vocabulary"]] | None = None,
        seed: int = 0,
    ) -> Plan:
        """Return a checked plan; by default everything that the two papers report.

        Args:
            categories: Names of the categories of tokens.
            options: What the caller asked for.
            covariates: The covariates as arrays over the vocabulary.
            seed: The seed of the samples.
        """
        chosen: ComputingOptions = options or {}
        measures = chosen_measures(_names(chosen.get("measures"), PAPER_MEASURES))
        mixing = chosen_maps(_names(chosen.get("mixing"), BLOCK_MAPS))
        quantities = (*measures, *(MIXING + name for name in mixing))
        by_pair = tuple(name for name in measures if level_of(name) == "pair")
        # No statistics of ‖αf‖ by default: a histogram would cost as much as all the rest, and no paper shows one.
        histograms, relative = _without_af(quantities), _without_af(by_pair)
        correlate: tuple[tuple[str, str], ...] = ()
        if {"alpha", "f_norm"} <= set(measures):
            correlate = (("alpha", "f_norm"),)
        layers, asked = chosen.get("layers"), chosen.get("correlate")
        plan = cls(
            categories=categories,
            measures=measures,
            mixing=mixing,
            histograms=_names(chosen.get("histograms"), histograms),
            correlate=correlate if asked is None else tuple(asked),
            relative=_names(chosen.get("relative"), relative),
            sample=chosen.get("sample", cls.sample),
            seed=seed,
            layers=None if layers is None else tuple(layers),
            covariates=dict(covariates or {}),
            precision=chosen.get("precision", cls.precision),
            per_token=chosen.get("per_token", cls.per_token),
            exact=chosen.get("exact", cls.exact),
        )
        plan._check()
        return plan

    def layers_of(self, kind: str) -> list[int]:
        """Return the layers of a kind of site, in order."""
        return sorted({layer for site, layer, _ in self.sites if site == kind})

    def cells(self, kind: str, quantity: str) -> tuple[int, int, int]:
        """Return the numbers of layers, categories and heads of a quantity."""
        heads = 1
        if has_heads(quantity):
            heads = max(count for site, _, count in self.sites if site == kind)
        return len(self.layers_of(kind)), len(self.categories), heads

    @property
    def quantities(self) -> tuple[str, ...]:
        """Measures, then mixing ratios."""
        return (*self.measures, *(MIXING + name for name in self.mixing))

    @property
    def requested(self) -> tuple[str, ...]:
        """The measures to compute: sums and extremes of ‖αf‖ follow from those of alpha and ‖f‖."""
        if {"alpha", "f_norm"} <= set(self.measures) and "af_norm" not in self._needed_by_pair:
            return tuple(name for name in self.measures if name != "af_norm")
        return self.measures

    @property
    def _needed_by_pair(self) -> set[str]:
        """The quantities of which more is kept than sums and extremes."""
        names = {*self.histograms, *self.relative}
        for pair in self.correlate:
            names.update(pair)
        return names

    def _check(self) -> None:
        unknown = sorted(self._needed_by_pair - set(self.quantities))
        if unknown:
            raise InputError(
                f"a statistic needs a quantity that is measured, {unknown[0]!r} is not; add it to measures or mixing "
                f"({', '.join(self.quantities)})"
            )
        for name in self.relative:
            if level_of(name) != "pair":
                raise InputError(f"means by relative position need a value per (query, key), {name} has none")
        for x, y in self.correlate:
            if x == y or (level_of(x) == "query") != (level_of(y) == "query"):
                raise InputError(f"{x} and {y} cannot be correlated: they have no positions in common")
        if self.sample < 1 or self.reach < 1:
            raise InputError(f"sample and reach must be at least 1, got {self.sample} and {self.reach}")


@dataclass(frozen=True)
class Running:
    """How a run is made; none of it changes a number, except `batch_size` in the last digits."""

    engine: EngineName | None = None  # None: local, or pool where there are several workers
    workers: int | None = None  # processes (pool) or tasks at a time (ray)
    threads: int | None = None  # per worker
    gpus: float = 0.0  # per worker (ray); a fraction is shared
    address: str | None = None  # of a Ray cluster; None: a new local one
    batch_size: int | None = None  # None: 8 on a CPU, 64 elsewhere
    fresh: bool = False  # start again, dropping the run that the folder holds
    overwrite: bool = False  # replace files in the folder that are not of a run
    range_seconds: float = 30.0  # of work in one range

    def __post_init__(self) -> None:
        if self.engine not in (None, "local", "pool", "ray"):
            raise InputError(f"engine must be local, pool or ray, got {self.engine!r}")
        if self.batch_size is not None and self.batch_size < 1:
            raise InputError(f"batch_size must be at least 1, got {self.batch_size}")
        if self.workers is not None and not 1 <= self.workers <= 10_000:
            raise InputError(f"workers must be from 1 to 10000, got {self.workers}")
        if self.threads is not None and self.threads < 1:
            raise InputError(f"threads must be at least 1, got {self.threads}")
        if self.gpus < 0 or (self.gpus > 1 and self.gpus != int(self.gpus)):
            raise InputError(f"gpus must be a share of one GPU, or whole ones, got {self.gpus}")
        if self.engine != "ray" and (self.address is not None or self.gpus):
            raise InputError("address and gpus belong to a Ray cluster; add --engine ray")
        if self.engine == "local" and self.workers not in (None, 1):
            raise InputError(f"the local engine has one worker, got {self.workers}; use --engine pool or ray")

    @property
    def engine_name(self) -> EngineName:
        """The engine, by default one that fits the number of workers."""
        if self.engine is not None:
            return self.engine
        return "local" if self.workers in (None, 1) else "pool"


def split_options(options: CorpusOptions) -> tuple[Reading, ComputingOptions, Running]:
    """Sort the options of a run; an unknown name is an error."""
    left: Json = dict(options)
    reading = {item.name: left.pop(item.name) for item in fields(Reading) if item.name in left}
    running = {item.name: left.pop(item.name) for item in fields(Running) if item.name in left}
    unknown = sorted(set(left) - set(ComputingOptions.__annotations__))
    if unknown:
        raise unexpected_keyword("corpus", unknown[0], CorpusOptions.__optional_keys__)
    computing: ComputingOptions = left  # type: ignore[assignment]
    return Reading(**reading), computing, Running(**running)


def _names(names: Sequence[str] | None, default: tuple[str, ...]) -> tuple[str, ...]:
    if names is None:
        return default
    return (names,) if isinstance(names, str) else tuple(names)


def _without_af(names: Sequence[str]) -> tuple[str, ...]:
    return tuple(name for name in names if name != "af_norm")


def level_of(quantity: str) -> Literal["pair", "key", "query"]:
    """Return the positions that a quantity has a value for: each `pair` of query and key, each `key`, each `query`."""
    if quantity.startswith(MIXING):
        return "query"
    return "pair" if "query" in MEASURES[quantity].axes else "key"


def has_heads(quantity: str) -> bool:
    """Return True if a quantity has one value per head."""
    return not quantity.startswith(MIXING) and "head" in MEASURES[quantity].axes


def binning_of(quantity: str) -> Binning:
    """Return the bins in which a quantity is counted."""
    if quantity.startswith(MIXING) or MEASURES[quantity].is_share:
        return WEIGHT_BINS
    return NORM_BINS if level_of(quantity) == "key" else CONTRIBUTION_BINS
