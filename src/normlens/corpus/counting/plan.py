"""What to compute: the quantities, categories, correlations and samples of one corpus run, as plain data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
from jaxtyping import Float

from normlens.corpus.accumulators.histogram import CONTRIBUTION_BINS, NORM_BINS, WEIGHT_BINS, Binning
from normlens.errors import InputError
from normlens.measures.table import BLOCK_MAPS, MEASURES, MIXING, chosen_maps, chosen_measures
from normlens.options import Precision

#: The quantities of the 2020 paper; the five mixing ratios are those of the 2021 paper.
PAPER_MEASURES = ("alpha", "f_norm", "af_norm", "x_norm")


@dataclass(frozen=True)
class Plan:
    """Everything that decides which numbers a run keeps; statistics merge when their plans are equal."""

    categories: tuple[str, ...]
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
    exact: bool = False  # flagged rank correlations are computed again, exactly, in a second pass

    @classmethod
    def of(
        cls,
        categories: tuple[str, ...],
        *,
        measures: Sequence[str] | None = None,
        mixing: Sequence[str] | None = None,
        histograms: Sequence[str] | None = None,
        correlate: Sequence[tuple[str, str]] | None = None,
        relative: Sequence[str] | None = None,
        sample: int = 20_000,
        seed: int = 0,
        layers: Sequence[int] | None = None,
        covariates: Mapping[str, Float[np.ndarray, " vocabulary"]] | None = None,
        precision: Precision = "float32",
        per_token: bool = False,
        exact: bool = False,
    ) -> Plan:
        """A checked plan; by default everything that the two papers report."""
        chosen = chosen_measures(PAPER_MEASURES if measures is None else _names(measures))
        maps = chosen_maps(None if mixing is None else _names(mixing))
        quantities = (*chosen, *(MIXING + name for name in maps))
        if histograms is None:  # ‖αf‖ is left out: its histogram costs as much as all the rest, and no paper shows one
            histograms = tuple(name for name in quantities if name != "af_norm")
        if correlate is None:
            correlate = (("alpha", "f_norm"),) if {"alpha", "f_norm"} <= set(chosen) else ()
        if relative is None:
            relative = tuple(name for name in chosen if level_of(name) == "pair" and name != "af_norm")
        plan = cls(
            categories=categories,
            measures=chosen,
            mixing=maps,
            histograms=_names(histograms),
            correlate=tuple(correlate),
            relative=_names(relative),
            sample=sample,
            seed=seed,
            layers=None if layers is None else tuple(layers),
            covariates=dict(covariates or {}),
            precision=precision,
            per_token=per_token,
            exact=exact,
        )
        plan._check()
        return plan

    @property
    def quantities(self) -> tuple[str, ...]:
        """Measures, then mixing ratios."""
        return (*self.measures, *(MIXING + name for name in self.mixing))

    @property
    def requested(self) -> tuple[str, ...]:
        """The measures to ask of the model: ‖αf‖ follows from `alpha` and ‖f‖, so it is not computed twice.

        Unless it is needed pair by pair, not only in sums and extremes.
        """
        if {"alpha", "f_norm"} <= set(self.measures) and "af_norm" not in self._counted:
            return tuple(name for name in self.measures if name != "af_norm")
        return self.measures

    @property
    def _counted(self) -> tuple[str, ...]:
        """The quantities of which more is kept than sums and extremes."""
        return (*self.histograms, *self.relative, *(name for pair in self.correlate for name in pair))

    def _check(self) -> None:
        for name in self._counted:
            if name not in self.quantities:
                raise InputError(
                    f"a statistic needs a quantity that is measured: {name!r} is none of {', '.join(self.quantities)}; "
                    "add it to measures or mixing"
                )
        for name in self.relative:
            if level_of(name) != "pair":
                raise InputError(
                    f"means by relative position need a value per (query, key): {name} has none; leave it out"
                )
        for x, y in self.correlate:
            if x == y or (level_of(x) == "query") != (level_of(y) == "query"):
                raise InputError(
                    f"two quantities correlate over the pairs that both have: {x} and {y} share none; name others"
                )
        if self.sample < 1 or self.reach < 1:
            raise InputError(f"sample and reach must be at least 1, got {self.sample} and {self.reach}")


def _names(given: Sequence[str]) -> tuple[str, ...]:
    return (given,) if isinstance(given, str) else tuple(given)


def level_of(quantity: str) -> Literal["pair", "key", "query"]:
    """What a quantity has a value for: each `pair` of query and key, each `key`, or each `query`."""
    if quantity.startswith(MIXING):
        return "query"
    return "pair" if "query" in MEASURES[quantity].axes else "key"


def has_heads(quantity: str) -> bool:
    """Whether a quantity has one value per head."""
    return not quantity.startswith(MIXING) and "head" in MEASURES[quantity].axes


def binning_of(quantity: str) -> Binning:
    """The bins in which a quantity is counted."""
    if quantity.startswith(MIXING) or (quantity in MEASURES and MEASURES[quantity].is_share):
        return WEIGHT_BINS
    return NORM_BINS if level_of(quantity) == "key" else CONTRIBUTION_BINS
