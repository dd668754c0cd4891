"""Where a corpus comes from: files and folders as they are; pipes and standard input as a copy that can be read twice."""

from __future__ import annotations

import hashlib
import re
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from normlens.errors import InputError
from normlens.files import move_file, whole_file

STANDARD_INPUT = "-"
_COPY = re.compile(r"source-[0-9a-f]{16}(\.\w+)*")


def named_paths(source: str | Path | Sequence[str | Path]) -> list[Path]:
    """The files and folders that a source names, without standard input."""
    names = [source] if isinstance(source, str | Path) else list(source)
    return [Path(name) for name in names if str(name) != STANDARD_INPUT]


@contextmanager
def readable_sources(source: str | Path | Sequence[str | Path], folder: Path) -> Iterator[tuple[Path, ...]]:
    """The sources as files that can be read again and again; copies of streams lie in `folder` while the block runs.

    A copy has the digest of its content in its name, so that the same text is the same source when a run is resumed.
    """
    names = [source] if isinstance(source, str | Path) else list(source)
    copies: list[Path] = []
    try:
        paths = []
        for name in names:
            path = Path(name)
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


def keep_stream(stream: IO[bytes], folder: Path, name: str) -> Path:
    """A stream as a file, so that it can be hashed and read again."""
    digest, draft = hashlib.sha256(), folder / "source-0000000000000000.txt"
    with whole_file(draft) as target:
        while block := _read(stream, name):
            digest.update(block)
            target.write(block)
    path = folder / f"source-{digest.hexdigest()[:16]}.txt"
    move_file(draft, path)
    return path


def is_kept_source(path: Path) -> bool:
    """Whether a file is a copy that a killed run left."""
    return _COPY.fullmatch(path.name) is not None


def _read(stream: IO[bytes], name: str) -> bytes:
    try:
        return stream.read(1 << 20)
    except OSError as error:
        raise InputError(f"a source must be readable: {name} is not ({error.strerror or error})") from error
