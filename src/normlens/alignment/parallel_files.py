"""Files with a sentence, a pair or a line of links per line: read side by side, and written so that a run can go on."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import islice, zip_longest
from pathlib import Path
from typing import Any

from normlens.errors import InputError
from normlens.inputs.segmentation import split_words
from normlens.io import reading
from normlens.io.checksums import read_checked_json, write_checked_json
from normlens.io.writing import durable_appender, lock_file, move_file
from normlens.types import Json, JsonMapping


def read_lines(path: Path | str) -> Iterator[str]:
    """Lines of a UTF-8 file, ended by a line feed alone: other line-like characters may stand inside a sentence."""
    try:
        for line in reading.read_lines(Path(path)):
            yield line.rstrip("\r\n")
    except (OSError, ValueError) as error:
        raise InputError(f"{path} is not a UTF-8 text file ({error})") from None


def read_sentences(path: Path | str) -> list[list[str]]:
    """The words of each line of a tokenized file."""
    return [split_words(line) for line in read_lines(path)]


def read_parallel(source: Path, target: Path, *, skip: int = 0) -> Iterator[tuple[str, str]]:
    """Pairs of lines; files of unequal length are an error, before anything is written where both can be counted."""
    counts = [sum(1 for _ in read_lines(path)) if path.is_file() else None for path in (source, target)]
    if None not in counts and counts[0] != counts[1]:
        raise _unequal(f"{source} and {target} have {counts[0]} and {counts[1]} lines")
    pairs = zip_longest(read_lines(source), read_lines(target))
    for number, (one, other) in enumerate(islice(pairs, skip, None), start=skip + 1):
        if one is None or other is None:
            raise _unequal(f"{source if one is None else target} ends before line {number}")
        yield one, other


def _unequal(found: str) -> InputError:
    return InputError(f"source and target must have the same number of lines: {found}")


# ---- a run that may be interrupted ----------------------------------------------------------------------------------


@dataclass
class UnfinishedRun:
    """An output that grows until it is whole: `OUT.unfinished`, with a record beside it of what it is and how far it is.

    The record, `OUT.run.json`, holds the choices that made the output, the digests of all that is read, and the length
    and digest of what is durable. `OUT` itself is there whole or not at all.
    """

    out: Path
    record: JsonMapping
    lines: int = 0
    _bytes: int = 0
    _hash: Any = field(default_factory=hashlib.sha256)

    @property
    def part(self) -> Path:
        """The output as long as it is not whole."""
        return self.out.with_name(self.out.name + ".unfinished")

    @classmethod
    def resumed(cls, out: Path, record: JsonMapping) -> UnfinishedRun:
        """The run that was interrupted, which must be this one: same models, choices and sentences.

        Its record's `layers` are those that it chose.
        """
        found = _read_record(out)
        for key in ("choices", "models", "format", "inputs"):
            now = json.loads(json.dumps(record.get(key)))
            if found.get(key) != now:
                raise InputError(
                    f"the run cannot be resumed: {key} was {_short(found.get(key))}, now it is {_short(now)}; "
                    "start again with --overwrite, or write to another file"
                )
        try:
            layers = {name: tuple(int(n) for n in numbers) for name, numbers in found["layers"].items()}
            durable = found["durable"]
            run = cls(out, {**found, "layers": layers}, int(durable["lines"]), int(durable["bytes"]))
            run._check(str(durable["sha256"]))
        except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
            raise InputError(
                f"{_record_path(out)} does not say how far the run is; start again with --overwrite"
            ) from error
        return run

    def is_whole(self) -> bool:
        """Return True if nothing is left to do."""
        return bool(self.record.get("finished"))

    @contextmanager
    def growing(self) -> Iterator[UnfinishedRun]:
        """Lines may be added while the block runs; when it ends well, the output is whole."""
        with lock_file(self.part, "run"):
            with durable_appender(self.part, self._bytes) as self._file:
                try:
                    self.save()
                except BaseException:
                    if not _record_path(self.out).exists():  # without a record nobody could go on with it
                        self.part.unlink(missing_ok=True)
                    raise
                yield self
                self.save()
            move_file(self.part, self.out)
            self._write_record(finished=True)

    def add(self, line: str) -> None:
        """Add one line."""
        content = (line + "\n").encode("utf-8", errors="replace")
        self._file.write(content)
        self._hash.update(content)
        self._bytes += len(content)
        self.lines += 1

    def save(self) -> None:
        """Make durable what there is."""
        self._file.make_durable()
        self._write_record(finished=False)

    def _write_record(self, *, finished: bool) -> None:
        durable = {"lines": self.lines, "bytes": self._bytes, "sha256": self._hash.hexdigest()}
        write_checked_json(_record_path(self.out), {**self.record, "durable": durable, "finished": finished})

    def _check(self, digest: str) -> None:
        """Check that durable lines are as they were written."""
        path = self.out if self.is_whole() else self.part
        try:
            with path.open("rb") as file:
                left = self._bytes
                while left and (block := file.read(min(left, 1 << 20))):
                    self._hash.update(block)
                    left -= len(block)
        except OSError as error:
            raise InputError(
                f"{path} cannot be read ({error.strerror}), so the run cannot be resumed; start again with --overwrite"
            ) from error
        if left or self._hash.hexdigest() != digest:
            raise InputError(f"{path} was changed or damaged since the run wrote it; start again with --overwrite")


def files_of_run(out: Path) -> list[Path]:
    """Every file that a run with this output may write."""
    return [out, UnfinishedRun(out, {}).part, _record_path(out)]


def _read_record(out: Path) -> Json:
    try:
        return read_checked_json(_record_path(out), "the record of a run")
    except InputError as error:
        raise InputError(f"the run cannot be resumed: {error}; start again with --overwrite") from error


def _short(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 300 else text[:300] + "…"


def _record_path(out: Path) -> Path:
    return out.with_name(out.name + ".run.json")
