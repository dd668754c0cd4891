"""A study: methods by protocols on one model and its data; one table, with intervals and a signature of all settings."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from normlens.errors import AnatomyError, InputError
from normlens.faithfulness.bootstrap import LEVEL, RESAMPLES, Estimate, difference, estimate
from normlens.faithfulness.erasure import check_way, default_way
from normlens.faithfulness.items import values
from normlens.faithfulness.methods import METHODS, Method, find_methods
from normlens.faithfulness.protocols import (
    DECOMPX_SHARES,
    ERASER_BINS,
    SANITY_ITEMS,
    Column,
    Protocol,
    ProtocolInput,
    find_protocols,
)
from normlens.faithfulness.ranking import TIES
from normlens.faithfulness.samples import Sample
from normlens.io.writing import write_bytes
from normlens.options import Removal
from normlens.provenance import config_digest, versions
from normlens.types import Json, JsonMapping

if TYPE_CHECKING:
    from normlens.lens import Lens

#: Where a study keeps the numbers of its methods, in its folder.
SCORES = "scores"

#: Hears what is being done, how much of it is done, and how much there is.
Progress = Callable[[str, int, int], None]


@dataclass(frozen=True)
class Study:
    """Measured numbers: `numbers[column][method]` has an array for each sample, with one number per item."""

    record: JsonMapping
    methods: tuple[Method, ...]
    protocols: tuple[Protocol, ...]
    samples: tuple[Sample, ...]
    numbers: Mapping[str, Mapping[str, tuple[np.ndarray, ...]]]
    costs: Mapping[str, float] = field(default_factory=dict)  # by method: time over that of one plain forward pass
    errors: Mapping[str, np.ndarray] = field(
        default_factory=dict
    )  # by method: remaining completeness error of each item
    undecided: Mapping[str, int] = field(default_factory=dict)  # by method: items in which all terms are 0
    left_out: Mapping[str, str] = field(
        default_factory=dict
    )  # methods that this model does not support, with the reason

    @property
    def columns(self) -> list[Column]:
        """The columns of the table, in order."""
        return [column for protocol in self.protocols for column in protocol.columns]

    def at(self, method: str, column: str) -> Estimate:
        """One cell: the mean over items, averaged over samples, with its interval."""
        return estimate(self.numbers[column][method])

    def cell(self, method: str, column: str) -> Estimate | None:
        """As `at`, where there is a number."""
        groups = self.numbers[column].get(method, ())
        return self.at(method, column) if any(np.isfinite(group).any() for group in groups) else None

    def against(self, method: str, other: str, column: str) -> Estimate:
        """The difference of two methods on the same items."""
        return difference(self.numbers[column][method], self.numbers[column][other])

    def to_frame(self) -> pd.DataFrame:
        """A tidy table: a row for each method, column and sample, and for the average over samples."""
        rows = []
        for column in self.columns:
            for method, groups in self.numbers[column.name].items():
                cells = [("all", groups), *((s.name, (g,)) for s, g in zip(self.samples, groups, strict=True))]
                for name, group in cells[: 1 if len(groups) == 1 else None]:
                    if not any(np.isfinite(g).any() for g in group):
                        continue
                    found = estimate(group)
                    rows.append((method, column.name, name, found.mean, found.low, found.high, found.count))
        return pd.DataFrame(rows, columns=["method", "column", "sample", "mean", "low", "high", "items"])

    @property
    def notes(self) -> list[str]:
        """Sentences on methods whose terms do not add up, or are rounding error."""
        items = sum(len(sample.items) for sample in self.samples)
        notes = []
        for name, errors in self.errors.items():
            notes.append(
                f"{name}: the terms miss the difference from the baseline by {np.median(errors):.1%} (median), "
                f"{np.quantile(errors, 0.9):.1%} (90th percentile) of it."
            )
        for name, reason in self.left_out.items():
            notes.append(f"{name} was left out: {reason}.")
        for name, count in self.undecided.items():
            notes.append(f"{name}: all terms are 0, or rounding error, in {count} of {items} items.")
        return notes

    @property
    def signature(self) -> str:
        """All settings in one line, as a score should have them."""
        return "|".join(f"{name}:{value}" for name, value in self.record["settings"].items())

    def to_dict(self) -> Json:
        """Everything as plain JSON values."""
        from normlens.faithfulness.verdicts import verdict

        return {
            "experiment": "faithful",
            **dict(self.record),
            "signature": self.signature,
            "verdict": verdict(self),
            "notes": self.notes,
            "methods": [method.to_dict() | {"measured_cost": self.costs.get(method.name)} for method in self.methods],
            "samples": [
                {"name": s.name, "items": len(s.items), "refused": dict(s.refused), "model_prefers_right": s.prefers}
                for s in self.samples
            ],
            "table": self.to_frame().to_dict("records"),
        }


def study(
    lens: Lens,
    samples: Sequence[Sample],
    *,
    methods: Sequence[str | Method] | None = None,
    protocols: Sequence[str] | None = None,
    how: Removal | None = None,
    folder: Path | None = None,
    progress: Progress | None = None,
) -> Study:
    """Run methods and protocols on samples.

    Args:
        lens: The model.
        samples: Items of files (see `read_evidence`, `read_texts`).
        methods: Names of methods, or methods; by default all.
        protocols: Names of protocols; by default agreement, with evidence or deletion.
        how: How tokens are removed; by default masked where the model has a mask.
        folder: Where the numbers of each method are kept, so that an interrupted study goes on from them.
        progress: Called with a label, the number done and the number of all.
    """
    if not samples:
        raise InputError("no file of evidence or of texts was given")
    chosen = [m if isinstance(m, Method) else find_methods([m])[0] for m in (METHODS if methods is None else methods)]
    if len({method.name for method in chosen}) < len(chosen):
        raise InputError("a method is named twice")
    known = all(sample.evidence is not None for sample in samples)
    if protocols is None:
        protocols = ("evidence", "agreement") if known else ("deletion", "agreement")
    asked = find_protocols(protocols)
    way = default_way(lens) if how is None else check_way(lens, how)
    tell = progress or (lambda label, done, total: None)
    numbers: dict[str, dict[str, list[np.ndarray]]] = {c.name: {} for p in asked for c in p.columns}
    costs = dict.fromkeys((method.name for method in chosen), 0.0)
    plain = 0.0
    errors: dict[str, list[np.ndarray]] = {}
    undecided: dict[str, int] = {}
    left_out: dict[str, str] = {}
    for sample in samples:
        plain += _seconds(lambda sample=sample: values(lens, sample.items))  # type: ignore[misc]
        scores: dict[str, list[np.ndarray]] = {}
        for done, method in enumerate(list(chosen)):
            tell(f"{sample.name}: methods", done, len(chosen))
            try:
                scores[method.name], seconds = _scores(lens, sample, method, folder)
            except (AnatomyError, InputError) as error:
                if methods is not None:
                    raise
                left_out[method.name] = str(error)  # none was named: those that the model has are compared
                chosen.remove(method)
                continue
            costs[method.name] += seconds
            if method.error is not None:
                remaining = method.error(lens, sample.items, scores[method.name], **method.settings)
                errors.setdefault(method.name, []).append(np.asarray(remaining))
            zeros = sum(not terms.any() for terms in scores[method.name])
            if zeros:
                undecided[method.name] = undecided.get(method.name, 0) + zeros
        tell(f"{sample.name}: methods", len(chosen), len(chosen))
        for done, protocol in enumerate(asked):
            tell(f"{sample.name}: protocols", done, len(asked))
            found = protocol.function(ProtocolInput(lens, sample, way), scores, {m.name: m for m in chosen})
            for name, columns in found.items():
                for column, given in columns.items():
                    numbers[column].setdefault(name, []).append(given)
        tell(f"{sample.name}: protocols", len(asked), len(asked))
    return Study(
        _record(lens, samples, chosen, asked, way),
        tuple(chosen),
        tuple(asked),
        tuple(samples),
        {c: {m: tuple(groups) for m, groups in found.items()} for c, found in numbers.items()},
        {name: seconds / plain for name, seconds in costs.items() if seconds},
        {name: np.concatenate(found) for name, found in errors.items()},
        undecided,
        left_out,
    )


def _scores(lens: Lens, sample: Sample, method: Method, folder: Path | None) -> tuple[list[np.ndarray], float]:
    """A method's numbers, from the folder where an earlier run left them, and the seconds that they took (0: from there)."""
    place = None
    if folder is not None and METHODS.get(method.name) is method:
        what = repr((lens.identity["content"], config_digest(lens.model), versions(), method.to_dict(), sample.items))
        place = folder / SCORES / f"{method.name}-{hashlib.blake2b(what.encode(), digest_size=12).hexdigest()}.bin"
        if place.exists():
            kept = _kept(place, sample)
            if kept is not None:
                return kept, 0.0
    start = time.perf_counter()
    found = method.scores(lens, sample.items)
    seconds = time.perf_counter() - start
    if place is not None:
        content = np.concatenate(found).astype("<f8").tobytes()
        write_bytes(place, _seal(content) + content)
    return found, seconds


def _kept(place: Path, sample: Sample) -> list[np.ndarray] | None:
    """The result of an earlier run, if it is whole."""
    lengths = [len(item.ids) for item in sample.items]
    try:
        content = place.read_bytes()
    except OSError:  # what is there is not ours to read
        return None
    seal, numbers = content[:16], content[16:]
    if len(numbers) != 8 * sum(lengths) or seal != _seal(numbers):
        return None
    return np.split(np.frombuffer(numbers, dtype="<f8"), np.cumsum(lengths)[:-1])


def _seal(content: bytes) -> bytes:
    return hashlib.blake2b(content, digest_size=16).digest()


def _seconds(run: Callable[[], Any]) -> float:
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


def _record(
    lens: Lens, samples: Sequence[Sample], methods: Sequence[Method], protocols: Sequence[Protocol], way: Removal
) -> Json:
    names = [protocol.name for protocol in protocols]
    items = hashlib.blake2b(repr([sample.items for sample in samples]).encode(), digest_size=6).hexdigest()
    settings = {
        "model": f"{lens.identity['name']}@{lens.identity['content'][-12:]}",
        "data": "+".join(f"{sample.name}({len(sample.items)})" for sample in samples) + f"@{items}",
        "methods": "+".join(method.name for method in methods),
        "protocols": "+".join(names),
        **({"removal": way} if {"deletion", "agreement"} & set(names) else {}),
        **({"bins": "+".join(f"{b:g}" for b in ERASER_BINS)} if "deletion" in names else {}),
        **({"K": f"0-{DECOMPX_SHARES[-1]:g}"} if "deletion" in names else {}),
        **({"sanity": f"{SANITY_ITEMS} items"} if "sanity" in names else {}),
        "ties": TIES.replace(": ", "=").replace("; ", ","),
        "interval": f"{LEVEL:.0%} of {RESAMPLES}",
        "version": versions()["normlens"],
    }
    return {"model": lens.identity, "versions": versions(), "settings": settings}
