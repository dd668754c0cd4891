"""Files and folders that are there whole or not at all: the only home of how normlens writes.

Nothing heavy is imported here, so that commands that run no model can write too.
"""

from __future__ import annotations

import io
import json
import os
import re
import secrets
import shutil
import tempfile
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from normlens.errors import InputError
from normlens.io.remote import AnyPath, first_line, path_of

if TYPE_CHECKING:
    import pandas as pd


def is_there(path: Path) -> bool:
    """Return True if there is a file or a folder; where a name is too long for one, `Path.exists` raises."""
    try:
        return path.exists()
    except OSError:
        return False


def real(path: Path) -> Path:
    """The path without links; where links lead in a circle, `Path.resolve` raises."""
    return Path(os.path.realpath(path))


def refuse_existing(path: Path, remedy: str) -> None:
    """An output that exists is never replaced without being asked for; `remedy` says how to ask."""
    if os.path.lexists(path):
        raise InputError(f"{path} exists; choose another path, or {remedy}")


def refuse_input(output: Path, inputs: Iterable[Path]) -> None:
    """An output must not be one of the files that are read, by whatever name, nor a file of a folder that is read."""
    if not os.path.lexists(output):
        return
    for read in inputs:
        if not os.path.lexists(read):
            continue
        same = output.exists() and read.exists() and output.samefile(read)
        if same or (read.is_dir() and real(output).is_relative_to(real(read))):
            raise InputError(f"{output} is an input of this run; choose another path for the output")


def check_outputs(
    files: Iterable[Path], inputs: Iterable[Path], *, replace: bool, remedy: str, folders: Iterable[Path] = ()
) -> None:
    """Refuse, before any work is done, outputs that cannot be written or that would cost somebody a file.

    No output is an input, or another output. Unless `replace` holds, none exists; `remedy` says how to ask for that.
    Of `folders` the content is written or replaced, so that they hold no input either.
    """
    files, folders, inputs = list(files), list(folders), list(inputs)
    taken: dict[Path, Path] = {}
    for output in (*files, *folders):
        check_place(output)
        refuse_input(output, inputs)
        if not replace:
            refuse_existing(output, remedy)
        if is_there(output) and output.is_dir() != (output in folders):
            is_one, wanted = ("a file", "a folder") if output in folders else ("a folder", "a file")
            raise InputError(f"{output} is {is_one}, not {wanted}; choose another path")
        if taken.setdefault(real(output), output) is not output:
            raise InputError(f"{output} is given for two different outputs; choose another path")
    for folder in folders:
        for read in inputs:
            if folder.is_dir() and os.path.lexists(read) and real(read).is_relative_to(real(folder)):
                raise InputError(
                    f"{read} is an input of this run and lies in {folder}, which is written; choose another path"
                )


def check_place(output: Path) -> None:
    """Refuse a name that is too long, or lies below a file or a folder that takes none; nothing is made."""
    try:
        with suppress(FileNotFoundError):
            output.stat()
        folder = next(parent for parent in output.absolute().parents if os.path.lexists(parent))
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise InputError(f"{output} cannot be written ({error.strerror}); choose another path") from error


@contextmanager
def locked(folder: AnyPath, what: str) -> Iterator[None]:
    """Nobody else works in the folder, or at the file, while the block runs; a process that dies lets go of it."""
    if not isinstance(folder, Path):  # object stores have no locks that end with their owner
        yield
        return
    try:
        import fcntl
    except ImportError:  # Windows: two runs at once are not noticed there
        yield
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise InputError(
                f"{folder} is locked by another normlens process ({what}); wait for it, or choose another --out"
            ) from error
        except OSError:  # a file system without locks
            pass
        yield
    finally:
        os.close(handle)


@contextmanager
def lock_file(path: Path, what: str) -> Iterator[None]:
    """A file, made empty where it is not there yet, that nobody else works at while the block runs."""
    with _writable(path):
        path.touch()
    with locked(path, what):
        yield


@contextmanager
def lock_folder(folder: AnyPath, what: str) -> Iterator[None]:
    """A folder that takes files, for this run alone; what was made of it here, and holds nothing in the end, goes again."""
    above = [folder, *folder.parents] if isinstance(folder, Path) else []
    made = [path for path in above if not path.exists()]
    writable_folder(folder)
    try:
        with locked(folder, what):
            yield
    finally:
        with suppress(OSError):  # it holds something
            for path in made:
                path.rmdir()


def writable_folder(path: AnyPath) -> AnyPath:
    """A folder that exists and takes files; an error before any work is done where it does not."""
    try:
        if not isinstance(path, Path):
            probe = path / f"probe-{secrets.token_hex(4)}"
            probe.write_bytes(b"")
            probe.unlink()
            return path
        path.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=path):
            return path
    except Exception as error:  # every object store raises its own errors
        if isinstance(path, Path) and not isinstance(error, OSError):
            raise
        reason = getattr(error, "strerror", None) or first_line(error)
        raise InputError(f"the output folder {path} cannot be written ({reason}); choose another") from error


@contextmanager
def atomic_write(path: str | AnyPath) -> Iterator[IO[bytes]]:
    """A stream to a draft beside `path`, which takes its place when the block ends well and disappears when not.

    The draft is flushed to the disk first, so that a crash leaves the old file or the new one. A remote file is written
    when the block ends: it appears when its upload is complete.
    """
    target = path_of(path)
    if not isinstance(target, Path):
        with tempfile.NamedTemporaryFile() as copy:
            yield copy
            copy.flush()
            with _writable(target):
                target.fs.put_file(copy.name, target.path)
        return
    draft = _draft_of(target)
    with _writable(target):
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            with draft.open("xb") as stream:
                yield stream
                stream.flush()
                os.fsync(stream.fileno())
            draft.replace(target)
            _sync(target.parent)
        finally:
            _remove(draft)


class DurableAppender:
    """A file that grows line by line over hours: what was made durable stays, whatever happens next."""

    def __init__(self, path: Path, stream: IO[bytes]) -> None:
        self._path, self._stream = path, stream

    def write(self, content: bytes) -> None:
        """Add to the end."""
        with _writable(self._path):
            self._stream.write(content)

    def make_durable(self) -> None:
        """Everything so far is on the disk when this returns."""
        with _writable(self._path):
            self._stream.flush()
            if self._path.is_file():
                os.fsync(self._stream.fileno())


@contextmanager
def durable_appender(path: Path, keep: int) -> Iterator[DurableAppender]:
    """A file to add to, after its first `keep` bytes; whatever stands after them is cut off."""
    with _writable(path):
        stream = path.open("r+b" if keep else "wb")
    try:
        with _writable(path):
            if keep:
                stream.truncate(keep)
                stream.seek(keep)
        file = DurableAppender(path, stream)
        yield file
        file.make_durable()
    finally:
        with suppress(OSError):  # what a full disk did not take was reported when it was written
            stream.close()


def move_file(path: AnyPath, target: AnyPath) -> None:
    """Give a finished file its name; whatever had that name is replaced."""
    with _writable(target):
        if isinstance(path, Path) and isinstance(target, Path):
            path.replace(target)
            _sync(target.parent)
        else:
            path.rename(str(target))


def write_bytes(path: str | AnyPath, content: bytes) -> None:
    """Write a file whole."""
    with atomic_write(path) as stream:
        stream.write(content)


def write_text(path: str | Path, content: str) -> Path:
    """Write a text whole, as UTF-8; a lone surrogate, which has no such form, becomes a question mark."""
    write_bytes(path, content.encode("utf-8", errors="replace"))
    return Path(path)


def write_json(path: str | AnyPath, content: Any) -> None:
    """Write JSON that people can read too."""
    text = json.dumps(content, indent=2, ensure_ascii=False) + "\n"
    write_bytes(path, text.encode("utf-8", errors="replace"))


#: How a cell begins that a spreadsheet takes for a formula; the quote that disarms it may itself be quoted.
_FORMULA = re.compile("^'*[=+\\-@\t\r\n]")


def write_table(path: str | Path, frame: pd.DataFrame) -> Path:
    """Write a table as CSV; a text that a spreadsheet would run as a formula gets a quote in front, names included.

    Only text is changed, so that `=2+3` becomes `'=2+3` and the number -2.5 stays what it is.
    """
    safe = frame.rename(columns=escape_formula)
    for place, kind in enumerate(safe.dtypes):
        if kind.kind not in "biufc":
            safe.isetitem(place, safe.iloc[:, place].map(escape_formula).to_numpy())
    with atomic_write(path) as stream:
        text = io.TextIOWrapper(stream, encoding="utf-8", errors="replace", newline="")
        safe.to_csv(text, index=False, lineterminator="\n")
        text.detach()
    return Path(path)


def escape_formula(cell: Any) -> Any:
    """The cell as no spreadsheet will run it.

    >>> escape_formula("=1+1"), escape_formula("the"), escape_formula("'=1+1"), escape_formula(-1)
    ("'=1+1", 'the', "''=1+1", -1)
    """
    return f"'{cell}" if isinstance(cell, str) and _FORMULA.match(cell) else cell


@contextmanager
def atomic_folder(path: str | Path) -> Iterator[Path]:
    """A draft folder beside `path`, which takes its place (and that of an older one) when the block ends well."""
    target = Path(path)
    draft = _draft_of(target)
    with _writable(target):
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            draft.mkdir()
            yield draft
            _take_place(draft, target)
            _sync(target.parent)
        finally:
            _remove(draft)


@contextmanager
def atomic_files(folder: str | Path, *, overwrite: bool, remedy: str) -> Iterator[Path]:
    """A draft folder inside `folder`; its files and folders move up when the block ends well.

    Unless `overwrite` holds, none of them moves where one of its name exists already.
    """
    target = Path(folder)
    draft = target / _draft_of(target).name
    with _writable(target):
        try:
            draft.mkdir(parents=True)
            yield draft
            made = sorted(draft.iterdir())
            for path in made if not overwrite else ():
                refuse_existing(target / path.name, remedy)
            for path in made:
                _take_place(path, target / path.name)
            _sync(target)
        finally:
            _remove(draft)


def _take_place(new: Path, target: Path) -> None:
    """Rename, and remove a folder that stands there only after it was renamed out of the way."""
    old = _draft_of(target)
    try:
        if target.is_dir() and not target.is_symlink():
            target.rename(old)
        new.replace(target)
    except BaseException:
        if os.path.lexists(old) and not os.path.lexists(target):
            old.rename(target)
        raise
    finally:
        _remove(old)


def remove_drafts(folder: AnyPath) -> None:
    """Remove the drafts that a killed process left in a folder; a remote one has none."""
    if not isinstance(folder, Path):
        return
    for path in folder.glob(".*.draft"):
        if is_draft(path):
            _remove(path)


def is_draft(path: AnyPath) -> bool:
    """Return True if a file or folder has the name of a draft."""
    return re.fullmatch(r"\..+\.[0-9a-f]{8}\.draft", path.name) is not None


def _draft_of(target: Path) -> Path:
    return target.with_name(f".{target.name[:80]}.{secrets.token_hex(4)}.draft")


@contextmanager
def _writable(target: AnyPath) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise InputError(
            f"{target} cannot be written ({error.strerror or error}); what was there before is untouched; make "
            "room or choose another path, then run the same command again"
        ) from error


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        for _ in range(20):  # where a write fails, others of Zarr's threads may still be at theirs
            shutil.rmtree(path, ignore_errors=True)
            if not path.exists():
                return
            time.sleep(0.05)
    elif path.parent.is_dir():
        path.unlink(missing_ok=True)


def _sync(folder: Path) -> None:
    """Make the renaming itself durable, where the system can open a folder."""
    with suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
