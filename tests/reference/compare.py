"""An analysis against the slow reference: where the two disagree, in words."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from tests.reference import measures as slow
from tests.reference.blocks import Array, Attention


def disagreements(
    analyses: Sequence[object],
    blocks: Iterable[Attention],
    real: dict[str, Array] | None = None,
    tolerance: float = 1e-4,
) -> list[str]:
    """Every measure and mixing ratio that is off by more than `tolerance` of its largest entry.

    `real` says by side (`source`, `target`, `looked at` by cross-attention) which positions count, as (batch, position);
    all do where it says nothing.
    """
    found = []
    for block in blocks:
        for row, analysis in enumerate(analyses):
            queries, keys = (_positions(block, axis, row, real or {}) for axis in ("query", "key"))
            parts = slow.parts_of(block, row, queries, keys)
            site = analysis.site(block.kind)  # type: ignore[attr-defined]
            expected = slow.measures(parts)
            arrays = {name: site[name] for name in expected if name in analysis.sites[block.kind]}  # type: ignore[attr-defined]
            wanted = {f"mixing ratio of {name}": values for name, values in slow.mixing_ratios(parts).items()}
            arrays |= {name: site.mixing_ratio(name.rpartition(" ")[2]) for name in wanted}
            for name, values in (expected | wanted).items():
                if name not in arrays:
                    continue
                share = 1.0 if name in wanted else None
                error = off_by(arrays[name].sel(layer=block.layer).values, values, share)
                if not error <= tolerance:
                    found.append(f"{block.kind} layer {block.layer} row {row}: {name} is off by {error:.2g}")
    return found


def off_by(found: Array, expected: Array, whole: float | None = None) -> float:
    """The largest difference, as a share of the largest entry (or of `whole`); infinite where the shapes differ."""
    if found.shape != expected.shape:
        return float("inf")
    return float(np.abs(found - expected).max() / (whole or max(float(np.abs(expected).max()), 1e-30)))


def _positions(block: Attention, axis: str, row: int, real: dict[str, Array]) -> Array:
    length = block.alpha.shape[2 if axis == "query" else 3]
    side = "target" if block.kind == "decoder" or (block.kind == "cross" and axis == "query") else "source"
    side = "looked at" if block.kind == "cross" and axis == "key" else side
    mask = real.get(side)
    return np.arange(length) if mask is None else np.flatnonzero(mask[row])
