"""Paths of this machine and addresses of object stores (`s3://`, `gs://`, `hf://`), both with the methods of `pathlib`.

Addresses are opened by fsspec through `universal_pathlib`; credentials and servers come from where these libraries look
for them (`AWS_ACCESS_KEY_ID`, `AWS_ENDPOINT_URL`, …), never from an address. Nothing is imported before it is needed.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from normlens.errors import InputError

if TYPE_CHECKING:
    from upath import UPath

AnyPath: TypeAlias = "Path | UPath"

_URL = re.compile(r"[a-z][a-z0-9+.-]+://[^/].*", re.IGNORECASE)


def path_of(address: str | AnyPath) -> AnyPath:
    """Return the path of an address: `scheme://` addresses are remote, everything else is a path of this machine.

    >>> path_of("corpus.txt")
    PosixPath('corpus.txt')
    """
    if not isinstance(address, str):
        return address
    if not _URL.fullmatch(address):
        return Path(address)
    scheme, _, rest = address.partition("://")
    if scheme.lower() == "file":
        return Path(rest)
    try:
        from upath import UPath

        remote = UPath(address.rstrip("/"))
        _ = remote.fs  # imports the package that serves this scheme
    except (ImportError, ValueError) as error:
        raise InputError(
            f"{scheme}:// addresses need fsspec and a package that serves them ({first_line(error)}); "
            "pip install 'normlens[corpus]' and, for s3://, s3fs"
        ) from error
    return remote


def is_remote(path: AnyPath) -> bool:
    """Return True if the path is an address of another machine."""
    return not isinstance(path, Path)


def local_path(path: AnyPath) -> Path:
    """Return the path, which must be one of this machine."""
    if not isinstance(path, Path):
        raise InputError(f"this needs a file of this machine, got {path}; copy it here first")
    return path


def first_line(error: BaseException) -> str:
    """The message of another library's error, short enough for a sentence; its type where it has none."""
    for line in str(error).splitlines():
        if line.strip():
            return line[:200]
    return type(error).__name__


def arrow(what: str) -> Any:
    """Import pyarrow, which is 170 MB and needed for corpora alone."""
    try:
        import pyarrow
    except ImportError as error:
        raise InputError(f"{what} needs pyarrow, which is not installed; pip install 'normlens[corpus]'") from error
    return pyarrow
