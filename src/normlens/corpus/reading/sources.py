"""Where a corpus comes from: files, folders and addresses as they are; pipes as a copy that can be read twice."""

from __future__ import annotations

import hashlib
import os
import re
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from normlens.errors import InputError
from normlens.files.remote import AnyPath, RemotePath, path_of
from normlens.files.writing import move_file, whole_file

STANDARD_INPUT = "-"
_COPY = re.compile(r"source-[0-9a-f]{16}(\.\w+)*")


#: One source or several.
Source = str | AnyPath | Sequence[str | AnyPath]


def named_paths(source: Source) -> list[AnyPath]:
    """The files and folders that a source names, without standard input."""
    names = [source] if isinstance(source, str | AnyPath) else list(source)
    return [path_of(name) for name in names if str(name) != STANDARD_INPUT]


def check_sources(source: Source, folder: AnyPath) -> None:
    """Refuse, before any work is done, what cannot be read: a closed standard input, a file that is not there."""
    names = [source] if isinstance(source, str | AnyPath) else list(source)
    if STANDARD_INPUT in map(str, names):
        _ = sys.stdin.buffer  # where it is closed, this says so
        _local(folder, "standard input")
    for path in named_paths(names):
        if not isinstance(path, RemotePath) and not os.path.lexists(path):  # it never raises
            raise InputError(f"a source must exist: there is no {str(path)!r}; check the path")


@contextmanager
def readable_sources(source: Source, folder: AnyPath) -> Iterator[tuple[AnyPath, ...]]:
    """The sources as files that can be read again and again; copies of streams lie in `folder` while the block runs.

    A copy has the digest of its content in its name, so that the same text is the same source when a run is resumed.
    A folder of an object store stands for all files below it.
    """
    check_sources(source, folder)
    names = [source] if isinstance(source, str | AnyPath) else list(source)
    copies: list[Path] = []
    try:
        paths = list[AnyPath]()
        for name in names:
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
    folder = _local(folder, name)
    digest, draft = hashlib.sha256(), folder / "source-0000000000000000.txt"
    with whole_file(draft) as target:
        while block := _read(stream, name):
            digest.update(block)
            target.write(block)
    path = folder / f"source-{digest.hexdigest()[:16]}.txt"
    move_file(draft, path)
    return path


def _local(folder: AnyPath, name: str) -> Path:
    """The folder in which a pipe can be kept; a remote one is refused."""
    if isinstance(folder, RemotePath):
        raise InputError(
            f"a pipe is kept in the output folder while it is counted, which must be on this machine: {name} came with "
            "a remote --out; save it to a file first"
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
