"""An output folder: what in it belongs to a run of ours, and may be replaced or removed, and what is somebody else's.

    OUT/statistics.parquet …      the tables of a finished run
    OUT/tokens/part-*.parquet     its rows per token, where they were asked for
    OUT/manifest.json             what made them, and the digest of each; written last, so a run that has one is finished
    OUT/unfinished/run.json       what an unfinished run is
    OUT/unfinished/*.shard        how far it has come

Only files that a manifest or a `run.json` of ours speaks for are ever removed.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from normlens.corpus.reading.sources import is_kept_source
from normlens.corpus.running.result import FORMAT, MANIFEST, TABLES, TOKEN_ROWS, open_corpus
from normlens.corpus.running.shards import Shard
from normlens.errors import InputError
from normlens.io.checksums import read_checked_json, read_json, write_checked_json
from normlens.io.remote import AnyPath, RemotePath
from normlens.io.writing import check_place, is_draft, is_there, real, remove_drafts, writable_folder

_RECORD = "run.json"
_PART = re.compile(r"part-\d{8}\.parquet")
_START_AGAIN = "choose another --out, or start again with --fresh"


@dataclass(frozen=True)
class RunFolder:
    """One output folder."""

    out: AnyPath

    @property
    def unfinished(self) -> AnyPath:
        """Where a run works until it ends."""
        return self.out / "unfinished"

    @property
    def token_rows(self) -> AnyPath:
        """Where rows per token go."""
        return self.out / TOKEN_ROWS

    @property
    def _outputs(self) -> list[AnyPath]:
        return [
            *(self.out / f"{name}.parquet" for name in TABLES),
            self.out / MANIFEST,
            self.token_rows,
            self.unfinished,
        ]

    # ---- before anything is written ------------------------------------------------------------------------------

    def check(self, inputs: Iterable[AnyPath], *, overwrite: bool) -> None:
        """Refuse a folder that cannot be written, or where writing would cost somebody a file."""
        try:
            self._refuse_inputs(inputs)
            if not overwrite:
                self._refuse_strangers()
        except OSError as error:
            reason = error.strerror or error
            raise InputError(
                f"the output folder must be within reach: {self.out} is not ({reason}); check it"
            ) from error
        if isinstance(self.out, RemotePath) or is_there(self.out):
            writable_folder(self.out)
        else:
            check_place(self.out)  # it is made when the run begins

    def _refuse_inputs(self, inputs: Iterable[AnyPath]) -> None:
        """No output may be a file that is read, nor lie in a folder that is read."""
        for read in inputs:
            if _lies_in(self.out, read) and read.is_dir():
                raise InputError(
                    f"the output folder must not lie in an input: {self.out} is in {read}; choose another --out"
                )
            if any(_lies_in(read, output) for output in self._outputs):
                raise InputError(f"an output must not be an input: {read} would be overwritten; choose another --out")

    def _refuse_strangers(self) -> None:
        """What has the name of an output and is not of a run of ours stays as it is."""
        if self._has_manifest or self._has_record:
            return
        for output in self._outputs:
            if (output.exists() or _is_link(output)) and not _is_leftover(output):
                raise InputError(
                    f"an output must not overwrite what exists: {output} does, and is not of a run that this folder "
                    "holds; choose another --out, or pass --overwrite to replace it"
                )

    @property
    def _has_record(self) -> bool:
        return (self.unfinished / _RECORD).is_file()

    @property
    def _has_manifest(self) -> bool:
        """Whether a manifest of ours is there, damaged or not."""
        try:
            return "fingerprint" in read_json(self.out / MANIFEST, "a manifest")
        except InputError:
            return False

    # ---- what is there -------------------------------------------------------------------------------------------

    def is_finished(self, fingerprint: str) -> bool:
        """Whether the folder holds this run, finished; another finished run is an error."""
        if not self._has_manifest:
            return False
        if open_corpus(self.out).manifest["fingerprint"] != fingerprint:
            raise InputError(
                f"a folder holds one run: {self.out} holds a finished one with other inputs, model or settings; "
                + _START_AGAIN
            )
        return True

    def begin(self, fingerprint: str, identity: Mapping[str, Any]) -> float:
        """Take up this run, new or unfinished; returns the seconds spent on it so far. Another one is an error."""
        record = self.unfinished / _RECORD
        if record.exists():
            try:
                found = read_checked_json(record, "the record of an unfinished run")
            except InputError as error:
                raise InputError(f"{error}; {_START_AGAIN}") from error
            if found.get("format") != FORMAT or found.get("fingerprint") != fingerprint:
                raise InputError(
                    f"a folder holds one run: {self.out} holds an unfinished one with other inputs, model or settings; "
                    + _START_AGAIN
                )
            for folder in (self.out, self.unfinished, self.token_rows):
                remove_drafts(folder)
            return float(found.get("seconds") or 0.0)
        writable_folder(self.unfinished)
        remove_drafts(self.unfinished)
        self.note_time(fingerprint, identity, 0.0)
        return 0.0

    def note_time(self, fingerprint: str, identity: Mapping[str, Any], seconds: float) -> None:
        """Write the record of an unfinished run."""
        content = {"format": FORMAT, "fingerprint": fingerprint, "seconds": seconds, **identity}
        write_checked_json(self.unfinished / _RECORD, content)

    # ---- what is removed -----------------------------------------------------------------------------------------

    def clear(self, *, overwrite: bool) -> None:
        """Remove the run that the folder holds, and nothing else."""
        if self._has_manifest:
            self._clear_finished(overwrite)
        if self._has_record:
            # An unfinished run began where nothing had these names, so whatever has them now is its own.
            for name in TABLES:
                (self.out / f"{name}.parquet").unlink(missing_ok=True)
            self._remove_parts(path.name for path in self.token_rows.glob("*.parquet"))
        self.end(keep_sources=True)

    def _clear_finished(self, overwrite: bool) -> None:
        try:
            listed = open_corpus(self.out).manifest["files"]
        except InputError as error:
            if not overwrite:
                raise InputError(
                    f"only files that a manifest lists are removed: {error}; remove the old results yourself, choose "
                    "another --out, or pass --overwrite as well"
                ) from error
            listed = {}
        for name in TABLES:
            if f"{name}.parquet" in listed:
                (self.out / f"{name}.parquet").unlink(missing_ok=True)
        self._remove_parts(name.removeprefix(f"{TOKEN_ROWS}/") for name in listed)
        (self.out / MANIFEST).unlink(missing_ok=True)

    def end(self, *, keep_sources: bool = False) -> None:
        """Remove what an unfinished run needed; its record goes last, so that what is left stays ours to the end."""
        if not self.unfinished.is_dir() or _is_link(self.unfinished):
            return
        remove_drafts(self.unfinished)
        for path in self.unfinished.iterdir():
            if Shard.of(path.name) is not None or (is_kept_source(path) and not keep_sources):
                path.unlink(missing_ok=True)
            elif isinstance(path, Path) and re.fullmatch(r"exact-\w+", path.name) and path.is_dir():
                shutil.rmtree(path, ignore_errors=True)
        (self.unfinished / _RECORD).unlink(missing_ok=True)
        _remove_if_empty(self.unfinished)

    def remove_if_empty(self) -> None:
        """Where a run came to nothing, so does its folder of unfinished work."""
        _remove_if_empty(self.unfinished)

    def _remove_parts(self, names: Iterable[str]) -> None:
        if _is_link(self.token_rows):
            return
        for name in names:
            if _PART.fullmatch(name):
                (self.token_rows / name).unlink(missing_ok=True)
        _remove_if_empty(self.token_rows)


def _lies_in(path: AnyPath, folder: AnyPath) -> bool:
    """Whether a path is another one, or something in it."""
    if isinstance(path, RemotePath) or isinstance(folder, RemotePath):
        return isinstance(path, RemotePath) and isinstance(folder, RemotePath) and path.is_below(folder)
    return real(path).is_relative_to(real(folder))


def _is_link(path: AnyPath) -> bool:
    return isinstance(path, Path) and path.is_symlink()


def _is_leftover(folder: AnyPath) -> bool:
    """Whether a folder holds nothing but what a run leaves that was killed before it had written its record."""
    if not folder.is_dir() or _is_link(folder):
        return False
    return all(is_draft(path) or is_kept_source(path) for path in folder.iterdir())


def _remove_if_empty(folder: AnyPath) -> None:
    if isinstance(folder, Path) and folder.is_dir() and not any(folder.iterdir()):  # an object store has no empty ones
        folder.rmdir()
