"""What the commands share: loading a model quietly, a progress bar on a terminal, folders that can be written."""

from __future__ import annotations

import json
import os
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from normlens.errors import InputError

if TYPE_CHECKING:
    from normlens.lens import Lens

ModelOption = Annotated[
    str | None, typer.Option("--model", "-m", help="Hub name or folder of a model; without it, the embedded one.")
]
GgufOption = Annotated[
    str | None, typer.Option("--gguf-file", help="A GGUF file in the model's folder, made full precision at load.")
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON document instead of tables.")]


def open_lens(model: str | None, gguf_file: str | None = None) -> Lens:
    """Load a model without the loading bars of other libraries, unless somebody is watching."""
    from transformers.utils import logging

    from normlens.lens import load

    logging.set_verbosity_error()
    if not sys.stderr.isatty():
        logging.disable_progress_bar()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # advice about optional tokenizer packages
        return load(model, **({"gguf_file": gguf_file} if gguf_file else {}))


@contextmanager
def progress_bar(label: str) -> Iterator[Callable[[int, int], None]]:
    """A callback `(done, total)` that draws a bar on a terminal and nothing in a pipe."""
    console = Console(stderr=True)
    columns = (TextColumn(label), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, disable=not console.is_terminal, transient=True) as progress:
        task = progress.add_task(label, total=None)
        yield lambda done, total: progress.update(task, completed=done, total=total)


def writable_folder(path: Path) -> Path:
    """A folder that exists and takes files; an error before any work is done where it does not."""
    try:
        path.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=path):
            return path
    except OSError as error:
        reason = os.strerror(error.errno) if error.errno else str(error)
        raise InputError(f"the output folder must be writable: {path} is not ({reason}); choose another") from error


def print_json(document: Any) -> None:
    """One JSON document on standard output."""
    sys.stdout.write(json.dumps(document, ensure_ascii=False, indent=1, default=float) + "\n")
