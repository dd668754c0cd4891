"""What the commands that write a line per sentence pair share: the output, its record, and how it becomes durable."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from normlens.errors import InputError
from normlens.files.writing import growing_file, refuse_existing, refuse_input

if TYPE_CHECKING:
    from normlens.alignment.parallel_files import UnfinishedRun

#: Pairs that are aligned together, and seconds after which finished ones are made durable. Windows begin at the same
#: lines whether a run was interrupted or not, so that the answer is the same.
WINDOW = 64
SAVE_EVERY = 5.0


def check_output(out: Path | None, inputs: list[Path], resume: bool, overwrite: bool) -> None:
    """Refuse, before anything is opened for writing, an output that is an input or that nobody said to replace."""
    from normlens.alignment.parallel_files import files_of_run

    if out is None or is_stream(out):
        return
    for path in files_of_run(out):
        refuse_input(path, inputs)
        if not resume and not overwrite:
            refuse_existing(path, "pass --resume to go on with it, or --overwrite to replace it")


def is_stream(path: Path) -> bool:
    """A pipe or a device, such as /dev/stdout: nothing is lost by writing to it."""
    return path.exists() and not path.is_file() and not path.is_dir()


def input_record(path: Path) -> dict[str, str | None]:
    """What tells one input from another: its content, where it can be read twice."""
    from normlens.files.seals import file_digest

    return {"name": path.name, "sha256": file_digest(path) if path.is_file() else None}


def layers_option(text: str) -> str | list[int]:
    """auto, best, or numbers from 1."""
    if text in ("auto", "best"):
        return text
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise InputError(f"a layer is auto, best, or numbers from 1 separated by commas: got {text!r}") from None


def count_lines(source: Path) -> int | None:
    """The lines of a file, to show progress; None for a pipe."""
    from normlens.alignment.parallel_files import read_lines

    return sum(1 for _ in read_lines(source)) if source.is_file() else None


@contextmanager
def opened(run: UnfinishedRun | None, out: Path | None) -> Iterator[Callable[[str], None]]:
    """What takes the lines: standard output, a stream, or a file that becomes durable as time goes by."""
    if run is not None:
        with run.growing():
            yield _timed(run)
    elif out is not None:
        with growing_file(out, 0) as file:
            yield lambda line: file.write((line + "\n").encode("utf-8", errors="replace"))
    else:
        yield print
        sys.stdout.flush()


def _timed(run: UnfinishedRun) -> Callable[[str], None]:
    saved = time.monotonic()

    def write(line: str) -> None:
        nonlocal saved
        run.add(line)
        if run.lines % WINDOW == 0 and time.monotonic() - saved >= SAVE_EVERY:
            run.save()
            saved = time.monotonic()

    return write
