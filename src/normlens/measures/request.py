"""The request of a run, checked once, and the check that its result fits into memory."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import torch

from normlens.anatomy.description import Anatomy, FeedForward, Gate, LayerEnd, Site, TensorRef
from normlens.decompose.devices import free_bytes, has_float64
from normlens.decompose.stages import PairRequest
from normlens.decompose.steps import Normalization
from normlens.errors import InputError
from normlens.inputs.media import MediaOptions
from normlens.measures.table import MAPS, MEASURES, chosen_maps, chosen_measures, needed
from normlens.measures.words import WORD_MODES
from normlens.options import Precision, WordMode
from normlens.provenance import versions
from normlens.types import Json

_DTYPES: dict[Precision, torch.dtype] = {"float32": torch.float32, "float64": torch.float64}
#: Bytes below which the memory check is skipped.
_ALWAYS_THERE = 1 << 26


class AnalyzeOptions(MediaOptions, total=False):
    """Keyword options of `Lens.analyze`."""

    measures: Sequence[str] | None
    mixing: Sequence[str] | None
    layers: Sequence[int] | None
    words: WordMode | None
    precision: Precision
    generate: bool
    truncate: bool
    batch_size: int
    progress: Callable[[int, int], None] | None


@dataclass(frozen=True)
class SitePlan:
    """The part of a request that one site can fulfil, and the tensors that it takes."""

    measures: tuple[str, ...]
    mixing: tuple[str, ...]
    pairs: PairRequest  # what these need of the site's pairs
    end: LayerEnd | None  # the end of the layer, where a measure looks past the attention block
    feed_forward: FeedForward | None  # where a measure looks into it
    places: frozenset[TensorRef]  # the tensors that a pass must capture

    @classmethod
    def of(cls, site: Site, measures: Sequence[str], mixing: Sequence[str], by_word: bool) -> SitePlan:
        """Select the measures and ratios that the site has.

        A layer that goes on with another attention has nothing past its block.
        """
        end = site.end if isinstance(site.end, LayerEnd) else None
        names = tuple(name for name in measures if end is not None or MEASURES[name].reach == "block")
        ratios = tuple(name for name in mixing if end is not None or MEASURES[name].reach == "block")
        pairs = needed(names, ratios, by_word)
        if site.is_cross:  # there no key is the query's own
            pairs = replace(pairs, own=False)
        places = [*site.places, *(step.place for step in site.inner if isinstance(step, Gate))]
        if site.stream_weights is not None:
            places.append(site.stream_weights)
        reach = {MEASURES[name].reach for name in (*names, *ratios)}
        feed_forward = None
        if end is not None and reach != {"block"}:
            places.append(end.total)
            if end.normalized is not None:
                places.append(end.normalized)
            if "feed_forward" in reach and isinstance(end.feed_forward, FeedForward):
                feed_forward = end.feed_forward
                places += [*feed_forward.places, feed_forward.output]
        else:
            end = None
        return cls(names, ratios, pairs, end, feed_forward, frozenset(places))


@dataclass(frozen=True)
class Request:
    """Measures, sites and settings of a run."""

    measures: tuple[str, ...]
    mixing: tuple[str, ...]
    sites: tuple[Site, ...]
    words: WordMode | None
    dtype: torch.dtype
    plans: Mapping[int, SitePlan]  # by the identity of the site
    record: Json  # the request and the versions, for the provenance

    @cached_property
    def always_fits(self) -> int:
        """Total positions below which the memory check is skipped."""
        positions = 1
        while positions < 1 << 20 and kept_bytes(self, [(positions, positions)]) < _ALWAYS_THERE:
            positions *= 2
        return positions // 2

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
    ) -> Request:
        """Check a request against a model's anatomy.

        Args:
            anatomy: The sites of the model.
            measures: Names of measures; None: the standard ones.
            mixing: Maps whose mixing ratios are computed, beside those of the maps among `measures`.
            layers: Numbers of layers; None: all.
            sites: Kinds of site; None: all.
            words: Whether subwords are merged to words, and how.
            precision: The dtype of the computation.
        """
        names = _measures_of(anatomy, measures)
        ratios = {name for name in names if name in MAPS}
        if mixing is not None:
            ratios.update(chosen_maps(mixing))
        mixed = tuple(name for name in MAPS if name in ratios)
        _check_words(words, mixed)
        _check_precision(anatomy, precision)
        chosen = _chosen_sites(anatomy, layers, sites)
        _check_reach(anatomy, chosen, (*names, *mixed))
        return cls(
            measures=names,
            mixing=mixed,
            sites=chosen,
            words=words,
            dtype=_DTYPES[precision],
            plans={id(site): SitePlan.of(site, names, mixed, words is not None) for site in chosen},
            record={
                "versions": versions(),
                "measures": list(names),
                "mixing": list(mixed),
                "layers": None if layers is None else sorted({int(layer) for layer in layers}),
                "words": words,
                "precision": precision,
            },
        )


def _measures_of(anatomy: Anatomy, measures: Sequence[str] | None) -> tuple[str, ...]:
    """The requested measures; `f_norm` does not exist where a gate makes `f` depend on the query."""
    names = chosen_measures(measures)
    gated = next((site for site in anatomy.sites if site.gated), None)
    if gated is None:
        return names
    if measures is not None and "f_norm" in names:
        raise InputError(
            f"f_norm does not exist for {anatomy.family!r}: a gate between attention and the output projection "
            f"({gated.path}) makes f depend on the query; ask for af_norm instead"
        )
    return tuple(name for name in names if name != "f_norm")


def _check_words(words: WordMode | None, mixed: Sequence[str]) -> None:
    if words is not None and words not in WORD_MODES:
        raise InputError(f"words must be one of {', '.join(WORD_MODES)}, or None, got {words!r}")
    if words != "vectors":
        return
    for name in mixed:
        if not MEASURES[name].adds_vectors:
            raise InputError(f"{name} does not add over vectors; pass words='norms', or leave {name} out")


def _check_precision(anatomy: Anatomy, precision: Precision) -> None:
    if precision not in _DTYPES:
        raise InputError(f"precision must be one of {', '.join(_DTYPES)}, got {precision!r}")
    if precision == "float32":
        return
    for device in {next(site.attention.parameters()).device for site in anatomy.sites}:
        if not has_float64(device):
            raise InputError(
                f"precision='float64' is not available on {device}; pass float32, or move the model to the CPU "
                "(model.to('cpu'))"
            )


def _check_reach(anatomy: Anatomy, sites: Sequence[Site], names: Sequence[str]) -> None:
    """Refuse a measure that looks past the attention block where what follows could not be read.

    In a decoder with cross-attention the layer goes on from the `cross` site: its own attention has no such measure.
    """
    further = [name for name in names if MEASURES[name].reach != "block"]
    if not further:
        return
    crossed = {site.layer for site in anatomy.of("cross")}
    inside = next((name for name in further if MEASURES[name].reach == "feed_forward"), None)
    reruns = next((name for name in further if MEASURES[name].reruns_layer), None)
    for site in sites:
        if isinstance(site.end, str) and not (site.kind == "decoder" and site.layer in crossed):
            raise InputError(f"{further[0]} looks past the attention block: {site.end}; ask for other measures")
        fed = site.end.feed_forward if isinstance(site.end, LayerEnd) else None
        if inside is not None and isinstance(fed, str):
            raise InputError(f"{inside} looks into the feed-forward block: {fed}; ask for other measures")
        if reruns is not None and isinstance(fed, FeedForward) and fed.routed:
            raise InputError(
                f"{reruns} computes the layer again for each pair: in {site} a router would choose anew; ask for "
                "ffresln_n, which holds its choice"
            )
        if reruns is not None and any(isinstance(step, Normalization) for step in site.inner):
            raise InputError(
                f"{reruns} computes the layer again for each pair: in {site} a normalization before the output "
                "projection would divide by another number; ask for ffresln_n, which holds it fixed"
            )
    if all(isinstance(site.end, str) for site in sites):
        raise InputError(
            f"{further[0]} belongs to the last attention of a layer: in {anatomy.family!r} that is cross-attention; "
            "ask for the cross sites"
        )


def _chosen_sites(anatomy: Anatomy, layers: Sequence[int] | None, kinds: Sequence[str] | None) -> tuple[Site, ...]:
    if kinds is not None:
        for kind in kinds:
            if kind not in anatomy.kinds:
                raise InputError(f"sites must be among {', '.join(anatomy.kinds)} for this model, got {kind!r}")
    chosen = [site for site in anatomy.sites if kinds is None or site.kind in kinds]
    if layers is None:
        return tuple(chosen)
    valid = sorted({site.layer for site in chosen})
    for layer in layers:
        if layer not in valid:
            raise InputError(f"layers must be among {_ranges(valid)}, got {layer!r} (layers count from 1)")
    return tuple(site for site in chosen if site.layer in set(layers))


def _ranges(numbers: Sequence[int]) -> str:
    if list(numbers) == list(range(numbers[0], numbers[-1] + 1)):
        return f"{numbers[0]} to {numbers[-1]}"
    return ", ".join(map(str, numbers))


def feed_forward_passes(names: Sequence[str], tokens: int) -> float:
    """Estimate the passes through the feed-forward block that the named maps cost in each layer of an encoder.

    By heads, the first half is cheap and the second is a product for each pair. Half of that in a decoder, which looks at
    one side.
    """
    by_stage = max((MEASURES[name].feed_forward_passes for name in names if not MEASURES[name].reruns_layer), default=0)
    reruns = max((MEASURES[name].feed_forward_passes for name in names if MEASURES[name].reruns_layer), default=0)
    return tokens * (by_stage + reruns)


def available_bytes() -> int | None:
    """The memory that is still free, where the system says so."""
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:")), None)


def kept_bytes(request: Request, lengths: Sequence[tuple[int, int]]) -> int:
    """The bytes of the arrays of these sequences; `lengths` are their source and target positions."""
    size = request.dtype.itemsize
    return sum(size * _numbers(site, request, *length) for length in lengths for site in request.sites)


def _numbers(site: Site, request: Request, source: int, target: int) -> int:
    queries = source if site.kind == "encoder" or not target else target
    axes = {"head": site.heads, "query": queries, "key": source if site.is_cross else queries}
    total = queries * len(request.mixing)
    for name in request.measures:
        count = 1
        for axis in MEASURES[name].axes[1:]:
            count *= axes[axis]
        total += count
    return total


def check_fits(request: Request, lengths: Sequence[tuple[int, int]], batch_size: int = 1) -> None:
    """An error that says how much is needed and what makes it fit, where the result or one batch would not.

    Results are kept by the host. A device holds what belongs to one site of a batch (and to the one before it, which is on
    its way to the host); everything else there is cut into blocks by what is free.
    """
    needed = kept_bytes(request, lengths)
    free = None if needed < _ALWAYS_THERE else available_bytes()
    if free is not None and needed > free:
        raise InputError(
            f"the result takes {needed / 2**30:.1f} GiB and {free / 2**30:.1f} GiB are free; "
            f"{_fewer(request)}, ask for ratios alone (measures=[], mixing=[…]), or take one site at a time with "
            "stream()"
        )
    together = sorted(lengths, key=max)[-batch_size:]
    padded = max(source for source, _ in together), max(target for _, target in together)
    for device, needed in _held_by_devices(request, len(together), padded).items():
        free = free_bytes(device)
        if free is not None and needed > free:
            raise InputError(
                f"{len(together)} sequences of {max(padded)} positions take {needed / 2**20:.1f} MiB and "
                f"{free / 2**20:.1f} MiB are free on {device}; lower batch_size, or {_fewer(request)}"
            )


def _held_by_devices(request: Request, rows: int, length: tuple[int, int]) -> dict[torch.device, int]:
    """The most that one site of a batch takes on each device: its measures twice, norms in the making, Gram matrices."""
    found: dict[torch.device, int] = {}
    for site in request.sites:
        device = next(site.attention.parameters()).device
        if device.type != "cpu":
            pairs = request.plans[id(site)].pairs
            grams = max(length) * site.heads**2 * len(pairs.stages)
            numbers = 2 * _numbers(site, request, *length) + max(length) ** 2 * len(pairs.stages) + grams
            found[device] = max(found.get(device, 0), rows * numbers * request.dtype.itemsize)
    return found


def _fewer(request: Request) -> str:
    by_head = [name for name in request.measures if "head" in MEASURES[name].axes and "query" in MEASURES[name].axes]
    return f"leave out {' and '.join(by_head)} (measures=[…])" if by_head else "name fewer measures or layers"
