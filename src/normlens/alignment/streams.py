"""Parallel text in and alignments out, line by line, so that a run can stop anywhere and go on."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import islice, zip_longest
from pathlib import Path
from typing import Any

from normlens.alignment.words import read_lines
from normlens.errors import InputError


def read_parallel(source: Path, target: Path, *, skip: int = 0) -> Iterator[tuple[str, str]]:
    """Pairs of lines; files of unequal length are an error, before anything is written where both can be counted."""
    counts = [sum(1 for _ in read_lines(path)) if path.is_file() else None for path in (source, target)]
    if None not in counts and counts[0] != counts[1]:
        raise _unequal(source, target, f"{counts[0]} and {counts[1]} lines")
    pairs = zip_longest(read_lines(source), read_lines(target))
    for number, (one, other) in enumerate(islice(pairs, skip, None), start=skip + 1):
        if one is None or other is None:
            ended = source if one is None else target
            raise _unequal(source, target, f"{ended} ends before line {number}")
        yield one, other


def _unequal(source: Path, target: Path, found: str) -> InputError:
    return InputError(
        f"Source and target must have as many lines, one sentence pair each: {source} and {target} have {found}."
        if "lines" in found
        else f"Source and target must have as many lines, one sentence pair each: {found}."
    )


def finished_lines(out: Path) -> int:
    """How many whole lines an interrupted run has written; a line without its end is cut off and done again."""
    if not out.exists():
        return 0
    with out.open("rb+") as file:
        count = kept = 0
        for line in file:
            if not line.endswith(b"\n"):
                break
            count += 1
            kept += len(line)
        file.truncate(kept)
    return count


def record_path(out: Path) -> Path:
    """Where the choices behind an output file are written."""
    return out.with_name(out.name + ".run.json")


def check_same_run(out: Path, record: dict[str, Any]) -> dict[str, tuple[int, ...]]:
    """A resumed run must be the run that was interrupted: same models, same choices; returns the layers it had."""
    path = record_path(out)
    try:
        before = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        raise InputError(
            f"Only a run that left its record can be resumed: {path} cannot be read. Start again without --resume."
        ) from None
    for key in ("choices", "models", "format"):
        now = json.loads(json.dumps(record.get(key)))
        if before.get(key) != now:
            raise InputError(
                f"A run is resumed with the settings it began with: {key} was {before.get(key)}, now it is {now}."
            )
    return {name: tuple(layers) for name, layers in before["layers"].items()}
