"""Checksums: JSON records that carry their own digest, and folders that list their files'.

A digest is a guard against damage, against a run that mixes two inputs, and against a file that somebody changed by hand;
it is no signature. So a record whose digest is right is still read as data of a stranger.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Iterator
from pathlib import Path

from normlens.errors import InputError
from normlens.io.reading import read_text
from normlens.io.remote import AnyPath
from normlens.io.writing import write_json
from normlens.types import Json, JsonMapping

SEAL = "normlens-seal.json"  # lists the files of a folder
_DIGEST = "digest"
_LARGEST_RECORD = 1 << 28  # bytes


def read_json(path: AnyPath, what: str) -> Json:
    """A JSON object from a file; `what` names it in the error: `a manifest`."""
    try:
        content = json.loads(read_text(path, _LARGEST_RECORD))
    except (OSError, ValueError, RecursionError, MemoryError) as error:
        reason = getattr(error, "strerror", None) or error or type(error).__name__
        raise InputError(f"{path} ({what}) is not a readable JSON file ({reason})") from error
    if not isinstance(content, dict):
        raise InputError(f"{path} must hold a JSON object ({what}), got {type(content).__name__}")
    return content


def write_checked_json(path: AnyPath, content: JsonMapping) -> None:
    """Write a JSON object together with its digest."""
    text = json.dumps(content, ensure_ascii=False, default=str).encode("utf-8", errors="replace")
    plain = json.loads(text)  # what a reader will see: without tuples, and without half surrogate pairs of file names
    write_json(path, {**plain, _DIGEST: _digest(plain)})


def read_checked_json(path: AnyPath, what: str) -> Json:
    """Read a record with a checksum; a record that was changed is an error."""
    content = read_json(path, what)
    found = content.pop(_DIGEST, None)
    try:
        right = found == _digest(content)
    except (ValueError, RecursionError):  # a number or a depth that Python reads and does not write
        right = False
    if not right:
        raise InputError(f"{path} ({what}) was changed or damaged")
    return content


def _digest(content: JsonMapping) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def file_digest(path: AnyPath) -> str:
    """SHA-256 of a file's content."""
    try:
        with path.open("rb") as stream:
            return hashlib.file_digest(stream, "sha256").hexdigest()  # type: ignore[arg-type]
    except OSError as error:
        raise InputError(f"{path} cannot be read ({error.strerror or error})") from error


def content_digest(path: Path) -> str:
    """SHA-256 of a file, or of all files below a folder with their names."""
    if not path.is_dir():
        return file_digest(path)
    digest = hashlib.sha256()
    for name, file in _files(path):
        digest.update(f"{name}\0{file_digest(file)}\n".encode(errors="surrogateescape"))
    return digest.hexdigest()


def write_checksums(folder: Path) -> None:
    """List the digests of all files of a folder in a file of it."""
    files = {name: file_digest(file) for name, file in _files(folder, skip=(SEAL,))}
    write_checked_json(folder / SEAL, {"files": files})


def verify_checksums(folder: Path, what: str) -> None:
    """Every file that was sealed must be there, unchanged, and no other; `what` names the folder in the error."""
    if not (folder / SEAL).is_file():
        raise InputError(f"{folder} has no {SEAL}, the list of the files of {what}, so that it cannot be checked")
    listed = read_checked_json(folder / SEAL, f"the list of files of {what}").get("files")
    if not isinstance(listed, dict):
        raise InputError(f"{what} lists its files in {SEAL}: the one in {folder} lists none")
    found = dict(_files(folder, skip=(SEAL,)))
    for name in sorted({*listed, *found}):
        if name not in found:
            raise InputError(f"{what} is incomplete: {folder / name} is missing; make it again, or bring the file back")
        if name not in listed:
            raise InputError(f"{folder / name} does not belong to {what}; remove that file")
        if file_digest(found[name]) != listed[name]:
            raise InputError(f"{folder / name} ({what}) was changed or damaged; make it again")


def _files(folder: Path, skip: Collection[str] = ()) -> Iterator[tuple[str, Path]]:
    """Regular files below a folder, by their path in it."""
    try:
        found = sorted(folder.rglob("*"))
    except OSError as error:
        raise InputError(f"{folder} cannot be read ({error.strerror or error})") from error
    for path in found:
        name = path.relative_to(folder).as_posix()
        if path.is_file() and name not in skip:
            yield name, path
