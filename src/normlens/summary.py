"""A few numbers that say in words what an analysis shows."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from normlens.analysis import MIXING, SiteAnalysis
from normlens.encoding import readable
from normlens.measures import MAPS


@dataclass(frozen=True)
class DrawsOn:
    """What one token draws on: its own share, and the tokens with the largest shares beside it."""

    token: str
    measure: str
    itself: float
    others: tuple[tuple[str, float], ...]


def mixing_by_layer(site: SiteAnalysis) -> dict[str, list[float]]:
    """The mean mixing ratio of each layer, for every map that has one."""
    return {
        name: site.dataset[MIXING + name].mean("query").values.tolist()
        for name in MAPS
        if MIXING + name in site.dataset
    }


def draws_on(site: SiteAnalysis, most: int = 3) -> list[DrawsOn]:
    """For each token the shares of its row, averaged over layers; the deepest map that was kept is used."""
    kept = [name for name in reversed(MAPS) if name in site.dataset]
    if not kept:
        return []
    name = "attnresln_n" if "attnresln_n" in kept else kept[0]
    maps = site.dataset[name].transpose("layer", "query", "key").values.astype(float)
    totals = maps.sum(-1, keepdims=True)
    shares = np.divide(maps, totals, out=np.zeros_like(maps), where=totals > 0).mean(0)
    keys = [readable(token) for token in site.key_tokens]
    rows = []
    for i, token in enumerate(site.query_tokens):
        order = [j for j in np.argsort(-shares[i]).tolist() if site.kind == "cross" or j != i]
        others = tuple((keys[j], float(shares[i, j])) for j in order[:most] if shares[i, j] > 0)
        itself = 0.0 if site.kind == "cross" else float(shares[i, i])
        rows.append(DrawsOn(readable(token), name, itself, others))
    return rows
