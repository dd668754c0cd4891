"""Output of commands that write a line per sentence pair: the output, its record, and how it becomes durable."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from normlens.cli.options import OverwriteOption, model_files, open_lens
from normlens.errors import InputError
from normlens.io.writing import check_outputs, durable_appender, is_there, real
from normlens.types import Json, JsonMapping

if TYPE_CHECKING:
    from normlens.alignment.aligner import Aligner, LayerChoice
    from normlens.alignment.parallel_files import UnfinishedRun
    from normlens.lens import Lens


@dataclass(frozen=True)
class Models:
    """Models"""

    model: Annotated[str, typer.Option(help="Model that translates source to target: a folder or a hub name.")]
    reverse_model: Annotated[str | None, typer.Option(help="Model that translates target to source.")] = None
    batch_tokens: Annotated[int, typer.Option(min=1, help="Padded tokens per batch.")] = 4096
    device: Annotated[str | None, typer.Option(help="cpu, cuda, ...")] = None

    def files(self) -> list[Path]:
        """Return the files of models that are folders here."""
        return model_files(self.model, self.reverse_model)

    def load(self) -> tuple[Lens, Lens | None]:
        """Load both models."""
        reverse = None
        lens = open_lens(self.model, device=self.device)
        if self.reverse_model is not None:
            reverse = open_lens(self.reverse_model, device=self.device)
        return lens, reverse


@dataclass(frozen=True)
class Languages:
    """Languages and prompts"""

    source_prefix: Annotated[str, typer.Option(help="Text before every source sentence (>>fr<<).")] = ""
    reverse_source_prefix: Annotated[str, typer.Option(help="The same for the reverse model.")] = ""
    source_language: Annotated[str | None, typer.Option(help="Language code, where the tokenizer has them.")] = None
    target_language: Annotated[str | None, typer.Option(help="Language code, where the tokenizer has them.")] = None


@dataclass(frozen=True)
class Output:
    """Output"""

    out: Annotated[Path | None, typer.Option(help="Output file; the choices are recorded beside it.")] = None
    resume: Annotated[bool, typer.Option("--resume", help="Go on where an interrupted run stopped.")] = False
    overwrite: OverwriteOption = False
    page: Annotated[Path | None, typer.Option(help="Write the viewer's page of one pair here, too.")] = None
    page_line: Annotated[int, typer.Option(min=1, help="The first pair that the page shows, from 1.")] = 1

    def __post_init__(self) -> None:
        if self.resume and self.out is None:
            raise InputError("--resume needs the file to go on with; give --out")

    def check(self, inputs: list[Path], beside: Sequence[Path] = ()) -> None:
        """Refuse, before anything is opened for writing, outputs that are inputs or that nobody said to replace.

        Args:
            inputs: Files that are read.
            beside: Files that are written whole, beside the lines and the page.
        """
        from normlens.alignment.parallel_files import files_of_run

        lines = [] if self.out is None or is_stream(self.out) else files_of_run(self.out)
        asked = "pass --resume to go on with it, or --overwrite to replace it"
        check_outputs(lines, inputs, replace=self.resume or self.overwrite, remedy=asked)
        if lines and not lines[0].parent.is_dir():
            raise InputError(f"{self.out} is not a file in an existing folder; check --out")
        whole = [*beside, *([] if self.page is None else [self.page])]
        check_outputs(whole, inputs, replace=self.overwrite, remedy="pass --overwrite to replace it")
        for path in whole:
            if real(path) in map(real, lines):
                raise InputError(f"{path} is given for two different outputs; choose another path")


LayerOption = Annotated[str, typer.Option(help="auto, best, or layers from 1 (2 or 1,2,3).")]

#: Pairs that are aligned together, and seconds after which finished ones are made durable. Windows begin at the same
#: lines whether a run was interrupted or not, so that the answer is the same.
WINDOW = 64
SAVE_EVERY = 5.0


def check_sentences(*paths: Path) -> None:
    """Refuse sentences that are not there."""
    for path in paths:
        if not is_there(path):
            raise InputError(f"{path} does not exist; check the path")


def is_stream(path: Path) -> bool:
    """A pipe or a device, such as /dev/stdout: nothing is lost by writing to it."""
    return is_there(path) and not path.is_file() and not path.is_dir()


def about_run(form: JsonMapping, inputs: Mapping[str, Path]) -> Json:
    """The identity of a run, beside the aligner's own record: the form of its lines, and what it reads."""
    read = {name: _input_record(path) for name, path in inputs.items()}
    return {"format": dict(form), "inputs": read, "window": WINDOW}


def resumed_run(aligner: Aligner, out: Path | None, about: JsonMapping) -> UnfinishedRun | None:
    """The run that was interrupted, with the layers that it chose; None where there is none."""
    from normlens.alignment.parallel_files import UnfinishedRun, files_of_run

    if out is None or not any(path.exists() for path in files_of_run(out)):
        return None
    run = UnfinishedRun.resumed(out, {**aligner.record(), **about})
    aligner.layers = dict(run.record["layers"])
    return run


def new_run(aligner: Aligner, out: Path | None, about: JsonMapping) -> UnfinishedRun | None:
    """A run that can be resumed; None where the lines go to standard output or a stream."""
    from normlens.alignment.parallel_files import UnfinishedRun

    return None if out is None or is_stream(out) else UnfinishedRun(out, {**aligner.record(), **about})


def _input_record(path: Path) -> dict[str, str | None]:
    """The identity of an input: its content, where it can be read twice."""
    from normlens.io.checksums import file_digest

    return {"name": path.name, "sha256": file_digest(path) if path.is_file() else None}


def layers_option(text: str) -> LayerChoice:
    """auto, best, or numbers from 1."""
    if text == "auto":
        return "auto"
    if text == "best":
        return "best"
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise InputError(f"layer must be auto, best, or numbers from 1 separated by commas, got {text!r}") from None


def count_lines(source: Path) -> int | None:
    """The lines of a file, to show progress; None for a pipe."""
    from normlens.alignment.parallel_files import read_lines

    return sum(1 for _ in read_lines(source)) if source.is_file() else None


@contextmanager
def opened(run: UnfinishedRun | None, out: Path | None) -> Iterator[Callable[[str], None]]:
    """The destination of the lines: standard output, a stream, or a file that becomes durable as time goes by."""
    if run is not None:
        with run.growing():
            yield _timed(run)
    elif out is not None:
        with durable_appender(out, 0) as file:
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
