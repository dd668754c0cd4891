"""Where a corpus comes from: files, folders and addresses as they are; pipes and datasets in memory, or streamed, as a
copy that can be read twice and cut into pieces.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import IO, Any, Protocol, runtime_checkable

from normlens.corpus.reading.corpus import skip_rule
from normlens.corpus.reading.records import Columns, Record, is_strings, record_of, text_column_of
from normlens.errors import InputError
from normlens.io.remote import AnyPath, RemotePath, path_of
from normlens.io.writing import atomic_write, move_file

STANDARD_INPUT = "-"
_COPY = re.compile(r"source-[0-9a-f]{16}(\.\w+)*")


@runtime_checkable
class Rows(Protocol):
    """What gives rows by the names of their columns: a `Dataset` or `IterableDataset` of the datasets library.

    It is known by what it has, so that nothing is imported for it.
    """

    @property
    def column_names(self) -> Any: ...
    @property
    def features(self) -> Any: ...
    def __iter__(self) -> Iterator[Any]: ...


#: One source or several.
Source = str | AnyPath | Rows | Sequence[str | AnyPath | Rows]


@dataclass(frozen=True)
class WantedRows:
    """What a corpus reads of a dataset's rows: these columns, of no more rows than its limit needs."""

    columns: Columns = field(default_factory=Columns)
    limit: int | None = None  # sequences
    pairs: bool = False
    skip: str | None = None
    format: str | None = None

    @property
    def records(self) -> int | None:
        """How many records the limit needs, if there is one."""
        each = 2 if self.pairs and self.columns.pair is None else 1
        return None if self.limit is None else each * self.limit


def _each(source: Source) -> list[str | AnyPath | Rows]:
    """The sources one by one; what is none is refused in a sentence."""
    if isinstance(source, Mapping):
        raise InputError(
            f"a corpus is read from one split of a dataset: this has {', '.join(map(str, source))[:120] or 'none'}; "
            "give one of them, as dataset['train']"
        )
    each = [source] if isinstance(source, str | AnyPath | Rows) else source
    if not isinstance(each, Sequence):
        raise InputError(
            "a corpus is read from paths, addresses or datasets with named columns, or a list of them: got "
            f"{type(source).__name__}"
        )
    for one in each:
        if not isinstance(one, str | AnyPath | Rows):
            _each(one)  # which says what it is
            raise InputError(f"a source is a path, an address or a dataset: got {type(one).__name__}")
    return list(each)


def named_paths(source: Source) -> list[AnyPath]:
    """The files and folders that a source names, without standard input and datasets."""
    named = [one for one in _each(source) if not isinstance(one, Rows)]
    return [path_of(name) for name in named if str(name) != STANDARD_INPUT]


def check_sources(source: Source, folder: AnyPath) -> None:
    """Refuse, before any work is done, what cannot be read: a closed standard input, a file that is not there."""
    each = _each(source)
    if any(isinstance(one, Rows) for one in each):
        _local(folder, "a dataset")
    if any(str(one) == STANDARD_INPUT for one in each if not isinstance(one, Rows)):
        _ = sys.stdin.buffer  # where it is closed, this says so
        _local(folder, "standard input")
    for path in named_paths(each):
        if not isinstance(path, RemotePath) and not os.path.lexists(path):  # it never raises
            raise InputError(f"a source must exist: there is no {str(path)!r}; check the path")


@contextmanager
def readable_sources(
    source: Source, folder: AnyPath, wanted: WantedRows | None = None
) -> Iterator[tuple[AnyPath, ...]]:
    """The sources as files that can be read again and again; copies of streams lie in `folder` while the block runs.

    A copy has the digest of its content in its name, so that the same text is the same source when a run is resumed.
    A folder of an object store stands for all files below it.
    """
    check_sources(source, folder)
    copies: list[Path] = []
    try:
        paths = list[AnyPath]()
        for name in _each(source):
            if isinstance(name, Rows):
                copies.append(keep_rows(name, folder, wanted or WantedRows()))
                paths.append(copies[-1])
                continue
            path = path_of(name)
            if isinstance(path, RemotePath):
                paths += _remote_files(path)
                continue
            if str(name) == STANDARD_INPUT:
                copies.append(keep_stream(sys.stdin.buffer, folder, "standard input"))
                path = copies[-1]
            elif path.is_fifo():
                with path.open("rb") as stream:
                    copies.append(keep_stream(stream, folder, str(path)))
                path = copies[-1]
            elif path.exists() and not (path.is_file() or path.is_dir()):
                raise InputError(
                    f"a source is a file, a folder or a pipe: {str(path)!r} is none of them; check the path"
                )
            paths.append(path)
        yield tuple(paths)
    finally:
        for copy in copies:
            copy.unlink(missing_ok=True)


def _remote_files(path: RemotePath) -> list[RemotePath]:
    try:
        return path.files_below() if path.is_dir() else [path]
    except OSError as error:
        raise InputError(f"a source must be readable: {path} is not ({error}); check the address") from error


def keep_stream(stream: IO[bytes], folder: AnyPath, name: str) -> Path:
    """A stream as a file, so that it can be hashed and read again."""
    return _keep(iter(partial(_read, stream, name), b""), _local(folder, name), ".txt")


def keep_rows(rows: Rows, folder: AnyPath, wanted: WantedRows) -> Path:
    """The rows of a dataset as lines of JSON: the columns that are read, and no more rows than the limit needs."""
    if wanted.format is not None:
        raise InputError(f"a dataset has its own format: leave out format={wanted.format!r}")
    return _keep(_lines(rows, wanted), _local(folder, "a dataset"), ".jsonl")


def _keep(blocks: Iterable[bytes], folder: Path, suffix: str) -> Path:
    digest, draft = hashlib.sha256(), folder / f"source-0000000000000000{suffix}"
    with atomic_write(draft) as target:
        for block in blocks:
            digest.update(block)
            target.write(block)
    path = folder / f"source-{digest.hexdigest()[:16]}{suffix}"
    move_file(draft, path)
    return path


def _lines(rows: Rows, wanted: WantedRows) -> Iterator[bytes]:
    skip, columns, records = skip_rule(wanted.skip), wanted.columns, 0
    stream, number = iter(rows), 0
    while wanted.records is None or records < wanted.records:
        number += 1
        place = f"row {number} of the dataset"
        try:
            row = next(stream)
        except StopIteration:
            return
        except Exception as error:  # a stream may raise whatever its network and its files do
            raise InputError(f"a source must be readable: {place} is not ({error})") from error
        if not isinstance(row, Mapping):
            raise InputError(
                f"a dataset gives rows by the names of columns: {place} is a {type(row).__name__}; "
                "drop its format with dataset.with_format(None)"
            )
        asked = (text_column_of(row, columns, place), columns.pair, columns.tags, columns.target)
        # What is no text (an image, a number) is nothing in the copy, and is met there as a text that is missing.
        kept = {
            name: value if isinstance(value := row[name], str) or is_strings(value) else None
            for name in asked
            if name is not None and name in row
        }
        record = record_of(place, kept, columns)
        records += isinstance(record, Record) and not (skip is not None and skip.search(record.text))
        yield (json.dumps(kept, ensure_ascii=False) + "\n").encode("utf-8", "surrogatepass")


def _local(folder: AnyPath, name: str) -> Path:
    """The folder in which a pipe can be kept; a remote one is refused."""
    if isinstance(folder, RemotePath):
        raise InputError(
            f"a pipe or a dataset is kept in the output folder while it is counted, which must be on this machine: {name} "
            "came with a remote --out; save it to a file first"
        )
    return folder


def is_kept_source(path: AnyPath) -> bool:
    """Whether a file is a copy that a killed run left."""
    return _COPY.fullmatch(path.name) is not None


def _read(stream: IO[bytes], name: str) -> bytes:
    try:
        return stream.read(1 << 20)
    except OSError as error:
        raise InputError(f"a source must be readable: {name} is not ({error.strerror or error})") from error
