"""Files on other machines: paths of every file system that pyarrow (`s3://`, `gs://`, `hdfs://`) or fsspec (`hf://`) knows.

A `RemotePath` has the few methods of `pathlib.Path` that normlens uses, so that a corpus may be read from an object store
and a run written to one. Nothing heavy is imported before a remote path is really used. Addresses of servers and
credentials come from where these libraries look for them (`AWS_ENDPOINT_URL`, `AWS_ACCESS_KEY_ID`, …), never from a path.
"""

from __future__ import annotations

import fnmatch
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path, PurePosixPath
from typing import IO, Any

from normlens.errors import InputError

_URL = re.compile(r"[a-z][a-z0-9+.-]+://[^/].*", re.IGNORECASE)


def path_of(address: str | Path | RemotePath) -> AnyPath:
    """The path of an address: `bucket://` addresses are remote, everything else is a path of this machine.

    >>> path_of("s3://bucket/a/corpus.txt").name, path_of("corpus.txt")
    ('corpus.txt', PosixPath('corpus.txt'))
    """
    if isinstance(address, RemotePath):
        return address
    if isinstance(address, str) and _URL.fullmatch(address):
        scheme, _, rest = address.partition("://")
        return Path(rest) if scheme.lower() == "file" else RemotePath(address.rstrip("/"))
    return Path(address)


@dataclass(frozen=True, order=True)
class RemotePath:
    """A file or folder by its URL."""

    url: str

    def __str__(self) -> str:
        return self.url

    def __fspath__(self) -> str:
        raise InputError(f"this needs a file of this machine: {self.url} is a remote one; copy it here first")

    def __truediv__(self, name: str) -> RemotePath:
        return RemotePath(f"{self.url}/{name}")

    @property
    def _plain(self) -> PurePosixPath:
        return PurePosixPath(self.url.partition("://")[2])

    @property
    def name(self) -> str:
        """The last part of the address."""
        return self._plain.name

    @property
    def suffix(self) -> str:
        """The last ending of the name, with its dot."""
        return self._plain.suffix

    @property
    def suffixes(self) -> list[str]:
        """All endings of the name."""
        return self._plain.suffixes

    def is_below(self, other: RemotePath) -> bool:
        """Return True if this is the other path or something in it."""
        return self.url == other.url or self.url.startswith(other.url + "/")

    # ---- looking -------------------------------------------------------------------------------------------------

    def exists(self) -> bool:
        """Return True if there is anything of this name."""
        return self._kind() != "NotFound"

    def is_file(self) -> bool:
        """Return True if this is a file."""
        return self._kind() == "File"

    def is_dir(self) -> bool:
        """Return True if this is a folder; in an object store, whether anything has a name that begins with it."""
        return self._kind() == "Directory"

    def size(self) -> int:
        """Bytes of the file; 0 where there is none."""
        return int(self._info().size or 0)

    def iterdir(self) -> Iterator[RemotePath]:
        """The files of the folder, by name."""
        return (self / name for name in sorted(self._names(recursive=False)))

    def glob(self, pattern: str) -> Iterator[RemotePath]:
        """The files of the folder whose names match."""
        return (path for path in self.iterdir() if fnmatch.fnmatchcase(path.name, pattern))

    def files_below(self) -> list[RemotePath]:
        """Every file below the folder, by its path."""
        return [self / name for name in sorted(self._names(recursive=True))]

    def _names(self, *, recursive: bool) -> list[str]:
        arrow("an address")
        from pyarrow.fs import FileSelector, FileType

        system, path = self._there()
        with _reachable(self):
            found = system.get_file_info(FileSelector(path, recursive=recursive, allow_not_found=True))
        return [entry.path[len(path) :].lstrip("/") for entry in found if entry.type == FileType.File]

    # ---- reading and writing -------------------------------------------------------------------------------------

    def open(self, mode: str = "rb") -> IO[bytes]:
        """The file's content, read from anywhere; what cannot be opened raises an `OSError`."""
        if mode != "rb":
            raise ValueError(f"a remote file is opened for reading, or written whole: mode is {mode!r}")
        system, path = self._there()
        with _reachable(self):
            stream: IO[bytes] = system.open_input_file(path)
        return stream

    def read_bytes(self) -> bytes:
        """All of the file."""
        with self.open() as stream:
            return stream.read()

    def write_bytes(self, content: bytes) -> None:
        """Write the file whole: an object appears when its upload is complete, and replaces one of its name."""
        system, path = self._there()
        with system.open_output_stream(path) as stream:
            stream.write(content)

    def unlink(self, *, missing_ok: bool = False) -> None:
        """Remove the file."""
        system, path = self._there()
        try:
            system.delete_file(path)
        except FileNotFoundError:
            if not missing_ok:
                raise

    def _kind(self) -> str:
        return str(self._info().type.name)

    def _info(self) -> Any:
        system, path = self._there()
        with _reachable(self):
            return system.get_file_info(path)

    def _there(self) -> tuple[Any, str]:
        scheme, _, rest = self.url.partition("://")
        return _file_system(scheme.lower(), rest.partition("/")[0]), rest


AnyPath = Path | RemotePath


def size_of(path: AnyPath) -> int:
    """Bytes of a file."""
    return path.size() if isinstance(path, RemotePath) else path.stat().st_size


@contextmanager
def _reachable(path: RemotePath) -> Iterator[None]:
    """Turn any failure to reach a file system into an `OSError`."""
    try:
        yield
    except (OSError, InputError):
        raise
    except Exception as error:  # every library has its own: botocore, huggingface_hub, …
        raise OSError(f"{path.url} cannot be reached: {first_line(error)}") from error


def first_line(error: BaseException) -> str:
    """The message of another library's error, short enough for a sentence; its name where it says nothing."""
    return next((line for line in str(error).splitlines() if line.strip()), type(error).__name__)[:200]


def arrow(what: str) -> Any:
    """pyarrow, which is 170 MB and needed for corpora alone."""
    try:
        import pyarrow
    except ImportError as error:
        raise InputError(f"{what} needs pyarrow, which is not installed: pip install 'normlens[corpus]'") from error
    return pyarrow


@cache
def _file_system(scheme: str, authority: str) -> Any:
    """The file system of a kind of address, one per process."""
    pa = arrow("an address")
    from pyarrow import fs

    try:
        if scheme == "s3":
            return fs.S3FileSystem(**_s3_server())
        return fs.FileSystem.from_uri(f"{scheme}://{authority}/x")[0]
    except (pa.ArrowException, NotImplementedError, ValueError, OSError):
        return fs.PyFileSystem(fs.FSSpecHandler(_by_fsspec(scheme)))


def _s3_server() -> dict[str, str]:
    """The server in place of Amazon's, where the usual variable names one (MinIO, Ceph, a test)."""
    named = os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL")
    if not named:
        return {}
    scheme, sign, host = named.rstrip("/").rpartition("://")
    return {"endpoint_override": host, "scheme": scheme if sign else "https"}


def _by_fsspec(scheme: str) -> Any:
    try:
        import fsspec

        return fsspec.filesystem(scheme)
    except (ImportError, ValueError) as error:
        raise InputError(
            f"an address must be of a file system that pyarrow or fsspec knows: {scheme}:// is not ({error}); install "
            "the package that brings it, or copy the files here"
        ) from error
