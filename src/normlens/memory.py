"""Will the result fit? Asked before the run, not after an hour of it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from normlens.anatomy.description import Site
from normlens.errors import InputError
from normlens.measures import MEASURES
from normlens.settings import Settings


def available_bytes() -> int | None:
    """The memory that can still be had, where the system says so."""
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:")), None)


def kept_bytes(settings: Settings, lengths: Sequence[tuple[int, int]]) -> int:
    """What the arrays of these sequences will take; `lengths` are their source and target positions."""
    size = settings.dtype.itemsize
    return sum(size * _numbers(site, settings, *length) for length in lengths for site in settings.sites)


def _numbers(site: Site, settings: Settings, source: int, target: int) -> int:
    queries = source if site.kind == "encoder" or not target else target
    axes = {"head": site.heads, "query": queries, "key": source if site.kind == "cross" else queries}
    total = queries * len(settings.mixing)
    for name in settings.measures:
        count = 1
        for axis in MEASURES[name].axes[1:]:
            count *= axes[axis]
        total += count
    return total


def check_fits(settings: Settings, lengths: Sequence[tuple[int, int]]) -> None:
    """An error that says how much is needed and what makes it fit, where the result would not."""
    needed, free = kept_bytes(settings, lengths), available_bytes()
    if free is None or needed <= free:
        return
    by_head = [name for name in settings.measures if "head" in MEASURES[name].axes and "query" in MEASURES[name].axes]
    first = f"leave out {' and '.join(by_head)} (measures=[…])" if by_head else "name fewer measures or layers"
    raise InputError(
        f"the result must fit in memory: it takes {needed / 2**30:.1f} GiB and {free / 2**30:.1f} GiB are free; {first}, "
        "ask for ratios alone (measures=[], mixing=[…]), or take one site at a time with stream()"
    )
