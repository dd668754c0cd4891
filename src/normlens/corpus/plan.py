"""What to count: the quantities, categories and samples of one corpus run, as plain data."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from jaxtyping import Float

from normlens.corpus.grid import CONTRIBUTIONS, NORMS, WEIGHTS, Scale
from normlens.errors import InputError
from normlens.measures import MAPS, MEASURES, chosen_maps, chosen_measures

#: The prefix that marks a map's mixing ratio among the quantities.
MIXING = "mixing_"

#: The quantities of the 2020 paper; the five mixing ratios are those of the 2021 paper.
PAPER_MEASURES = ("alpha", "f_norm", "af_norm", "x_norm")

_SHARES = ("alpha", "attn_w", "attnres_w")


@dataclass(frozen=True)
class Plan:
    """Everything that decides which numbers a run keeps; two tallies merge when their plans are equal."""

    categories: tuple[str, ...]
    measures: tuple[str, ...] = PAPER_MEASURES
    mixing: tuple[str, ...] = MAPS
    histograms: tuple[str, ...] = ()  # quantities with a histogram
    correlate: tuple[tuple[str, str], ...] = ()  # pairs of quantities, over all (query, key) pairs
    relative: tuple[str, ...] = ()  # maps with means by relative position
    reach: int = 64
    sample: int = 20_000
    seed: int = 0
    layers: tuple[int, ...] | None = None
    covariates: dict[str, Float[np.ndarray, " vocabulary"]] = field(default_factory=dict, compare=False)

    @classmethod
    def of(
        cls,
        categories: tuple[str, ...],
        *,
        measures: tuple[str, ...] | None = None,
        mixing: tuple[str, ...] | None = None,
        histograms: tuple[str, ...] | None = None,
        correlate: tuple[tuple[str, str], ...] | None = None,
        relative: tuple[str, ...] | None = None,
        covariates: dict[str, Float[np.ndarray, " vocabulary"]] | None = None,
        **options: object,
    ) -> Plan:
        """A checked plan; by default everything that the two papers report."""
        chosen = chosen_measures(PAPER_MEASURES if measures is None else measures)
        maps = chosen_maps(mixing)
        quantities = (*chosen, *(MIXING + name for name in maps))
        if histograms is None:  # ‖αf‖ is left out: its histogram costs as much as all the rest, and no paper shows one
            histograms = tuple(name for name in quantities if name != "af_norm")
        if correlate is None:
            correlate = (("alpha", "f_norm"),) if {"alpha", "f_norm"} <= set(chosen) else ()
        if relative is None:
            relative = tuple(name for name in chosen if level_of(name) == "pair" and name != "af_norm")
        plan = cls(
            categories, chosen, maps, histograms, correlate, relative, covariates=covariates or {}, **options  # type: ignore[arg-type]
        )  # fmt: skip
        plan._check()
        return plan

    @property
    def quantities(self) -> tuple[str, ...]:
        """Measures, then mixing ratios."""
        return (*self.measures, *(MIXING + name for name in self.mixing))

    @property
    def requested(self) -> tuple[str, ...]:
        """The measures to ask of the model: ‖αf‖ follows from `alpha` and ‖f‖, so it is not computed twice."""
        if {"alpha", "f_norm"} <= set(self.measures) and not self.needs_product:
            return tuple(name for name in self.measures if name != "af_norm")
        return self.measures

    @property
    def needs_product(self) -> bool:
        """Whether ‖αf‖ is needed pair by pair, not only in sums and extremes."""
        named = {*self.histograms, *self.relative, *(name for pair in self.correlate for name in pair)}
        return "af_norm" in named

    def _check(self) -> None:
        for name in (*self.histograms, *self.relative, *(name for pair in self.correlate for name in pair)):
            if name not in self.quantities:
                raise InputError(
                    f"a statistic needs a quantity that is measured: {name!r} is none of {', '.join(self.quantities)}; "
                    "add it to measures or mixing"
                )
        for name in self.relative:
            if level_of(name) != "pair":
                raise InputError(f"means by relative position need a quantity per (query, key): {name} has none")
        for x, y in self.correlate:
            if x == y or (level_of(x) == "query") != (level_of(y) == "query"):
                raise InputError(f"two quantities correlate over pairs that both have: {x} and {y} share none")
        if self.sample < 1 or self.reach < 1:
            raise InputError(f"sample and reach must be at least 1, got {self.sample} and {self.reach}")


def level_of(quantity: str) -> str:
    """Where a quantity lives: `pair` (query and key), `key`, or `query`."""
    if quantity.startswith(MIXING):
        return "query"
    axes = MEASURES[quantity].axes
    return "pair" if "query" in axes else "key"


def has_heads(quantity: str) -> bool:
    """Whether a quantity has one value per head."""
    return not quantity.startswith(MIXING) and "head" in MEASURES[quantity].axes


def scale_of(quantity: str) -> Scale:
    """The grids on which a quantity is counted."""
    if quantity.startswith(MIXING) or quantity in _SHARES:
        return WEIGHTS
    return NORMS if level_of(quantity) == "key" else CONTRIBUTIONS
