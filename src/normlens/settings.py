"""What a caller asked for, checked once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

import torch

from normlens.anatomy.description import Anatomy, Site
from normlens.decompose.pairs import Needs
from normlens.decompose.words import WordMode
from normlens.errors import InputError
from normlens.measures import MAPS, chosen_maps, chosen_measures, needed

Precision = Literal["float32", "float64"]


@dataclass(frozen=True)
class Settings:
    """Which measures of which sites, and how they are computed."""

    measures: tuple[str, ...]
    mixing: tuple[str, ...]
    sites: tuple[Site, ...]
    words: WordMode | None
    dtype: torch.dtype
    requested: dict[str, Any]

    @property
    def needs(self) -> Needs:
        """What these measures need of each site's pairs."""
        return needed(self.measures, self.mixing, by_word=self.words is not None)

    @classmethod
    def of(
        cls,
        anatomy: Anatomy,
        *,
        measures: Sequence[str] | None = None,
        mixing: Sequence[str] | None = None,
        layers: Sequence[int] | None = None,
        sites: Sequence[str] | None = None,
        words: WordMode | None = None,
        precision: Precision = "float32",
    ) -> Settings:
        """Check a request against a model's anatomy; `mixing` adds to the ratios of the maps asked for."""
        names = chosen_measures(measures)
        gated = next((site for site in anatomy.sites if site.gated), None)
        if gated is not None and measures is not None and "f_norm" in names:
            raise InputError(
                f"f_norm needs an f that does not depend on the query: in {anatomy.family!r} a gate stands between "
                f"attention and the output projection ({gated.path}); ask for af_norm instead"
            )
        if gated is not None:
            names = tuple(name for name in names if name != "f_norm")
        ratios = {name for name in names if name in MAPS} | set(chosen_maps(mixing) if mixing is not None else ())
        if words is not None and words not in get_args(WordMode):
            raise InputError(f"words must be one of {', '.join(get_args(WordMode))}, or None: got {words!r}")
        if precision not in get_args(Precision):
            raise InputError(f"precision must be one of {', '.join(get_args(Precision))}: got {precision!r}")
        return cls(
            measures=names,
            mixing=tuple(name for name in MAPS if name in ratios),
            sites=_chosen_sites(anatomy, layers, sites),
            words=words,
            dtype=torch.float64 if precision == "float64" else torch.float32,
            requested={
                "measures": list(names),
                "mixing": [name for name in MAPS if name in ratios],
                "layers": None if layers is None else sorted({int(layer) for layer in layers}),
                "words": words,
                "precision": precision,
            },
        )


def _chosen_sites(anatomy: Anatomy, layers: Sequence[int] | None, kinds: Sequence[str] | None) -> tuple[Site, ...]:
    if kinds is not None:
        for kind in kinds:
            if kind not in anatomy.kinds:
                raise InputError(f"a site must be one of {', '.join(anatomy.kinds)} for this model: got {kind!r}")
    chosen = [site for site in anatomy.sites if kinds is None or site.kind in kinds]
    if layers is None:
        return tuple(chosen)
    valid = sorted({site.layer for site in chosen})
    for layer in layers:
        if layer not in valid:
            raise InputError(f"a layer must be one of {_ranges(valid)}: got {layer!r} (layers count from 1)")
    return tuple(site for site in chosen if site.layer in set(layers))


def _ranges(numbers: Sequence[int]) -> str:
    if list(numbers) == list(range(numbers[0], numbers[-1] + 1)):
        return f"{numbers[0]} to {numbers[-1]}"
    return ", ".join(map(str, numbers))
