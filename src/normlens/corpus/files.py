"""Files that are either there whole or not at all."""

from __future__ import annotations

import hashlib
import io
import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import IO, Any

import numpy as np

from normlens.errors import InputError


def write_whole(path: Path, write: Callable[[IO[bytes]], None]) -> None:
    """Write a file under another name, flush it to the disk, then rename: a crash leaves the old file or the new."""
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(path.name + ".draft")
    try:
        with draft.open("wb") as stream:
            write(stream)
            stream.flush()
            os.fsync(stream.fileno())
        draft.replace(path)
    except OSError as error:
        draft.unlink(missing_ok=True)
        raise InputError(
            f"the output must be writable: {path} was not ({error.strerror or error}); what was saved before is "
            "untouched; make room, then run the same command again"
        ) from error
    _sync_folder(path.parent)


def write_json(path: Path, content: Any) -> None:
    """Write JSON that people can read too."""
    text = json.dumps(content, indent=2, ensure_ascii=False, sort_keys=False) + "\n"
    write_whole(path, lambda stream: _ignore(stream.write(text.encode())))


def pack(arrays: Mapping[str, np.ndarray]) -> bytes:
    """Arrays as one block of bytes, without pickle."""
    buffer = io.BytesIO()
    np.savez(buffer, allow_pickle=False, **{name.replace("/", "|"): array for name, array in arrays.items()})
    return buffer.getvalue()


def unpack(content: bytes | Path) -> dict[str, np.ndarray]:
    """What `pack` made."""
    source = io.BytesIO(content) if isinstance(content, bytes) else content
    with np.load(source, allow_pickle=False) as arrays:
        return {name.replace("|", "/"): arrays[name] for name in arrays.files}


def file_hash(path: Path) -> str:
    """SHA-256 of a file, or of all files below a folder with their names."""
    digest = hashlib.sha256()
    files = sorted(p for p in path.rglob("*") if p.is_file()) if path.is_dir() else [path]
    for file in files:
        if path.is_dir():
            digest.update(str(file.relative_to(path)).encode())
        with file.open("rb") as stream:
            while block := stream.read(1 << 22):
                digest.update(block)
    return digest.hexdigest()


def _sync_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _ignore(_: object) -> None:
    return None
