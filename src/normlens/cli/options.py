"""Options that several commands share, and what they stand for."""

from __future__ import annotations

import gc
import os
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from normlens.errors import InputError
from normlens.io.remote import first_line
from normlens.io.writing import check_outputs, is_there
from normlens.types import Json

if TYPE_CHECKING:
    from normlens.lens import Lens

ModelOption = Annotated[
    str | None, typer.Option("--model", "-m", help="Hub name or folder of a model; without it, the embedded one.")
]
GgufOption = Annotated[
    str | None, typer.Option("--gguf-file", help="A GGUF file in the model's folder, made full precision at load.")
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON document instead of tables.")]
OverwriteOption = Annotated[bool, typer.Option("--overwrite", help="Replace what is already at the output's place.")]


@dataclass(frozen=True)
class ModelChoice:
    """Model"""

    model: ModelOption = None
    gguf_file: GgufOption = None

    def open(self) -> Lens:
        """Load the model."""
        return open_lens(self.model, self.gguf_file)

    def files(self) -> list[Path]:
        """Return the files of a model that is a folder here."""
        return model_files(self.model)


@dataclass(frozen=True)
class Input:
    """Further input"""

    pair: Annotated[str | None, typer.Option(help="A second segment, as in [CLS] text [SEP] pair [SEP].")] = None
    target: Annotated[str | None, typer.Option(help="What an encoder-decoder model is made to write.")] = None
    generate: Annotated[bool, typer.Option("--generate", help="Take what the model itself writes.")] = False
    truncate: Annotated[bool, typer.Option("--truncate", help="Cut a text that is too long for the model.")] = False


@dataclass(frozen=True)
class MediaInput:
    """Images and sound"""

    images: Annotated[list[Path] | None, typer.Option("--image", help="An image (repeat).")] = None
    audio: Annotated[Path | None, typer.Option(help="A recording: a WAV file.")] = None

    def __bool__(self) -> bool:
        return bool(self.images) or self.audio is not None

    def options(self, text: str | None) -> Json:
        """Return the arguments of `Lens.analyze` and `Lens.explain`; one image without a text is one input."""
        options: Json = {}
        if self.images:
            several = len(self.images) > 1
            if several and text is None:
                raise InputError("several images need a text that they belong to; give one image, or a text")
            options["images"] = list(self.images) if several else self.images[0]
        if self.audio is not None:
            options["audio"] = self.audio
        return options


# An experiment's passes over a corpus.
DataOption = Annotated[
    list[Path] | None,
    typer.Option(help="Text with a paragraph per line, or clark2019.jsonl (repeat); default: the sample corpus."),
]
PairsOption = Annotated[bool, typer.Option("--pairs/--single", help="Paragraph pairs, as in the papers.")]
SeedOption = Annotated[int, typer.Option(min=0, help="Decides masks and samples.")]
BatchSizeOption = Annotated[int, typer.Option(min=1, help="Sequences per forward pass; never changes the numbers.")]
FreshOption = Annotated[bool, typer.Option("--fresh", help="Run the passes again, whatever --out holds.")]


def named_value(text: str, rule: str) -> tuple[str, str]:
    """Both sides of NAME=VALUE; `rule` says what they are."""
    name, sign, value = text.partition("=")
    if not (name and sign and value):
        raise InputError(f"{rule}, got {text!r}")
    return name, value


def check_saved(folder: Path, inputs: list[Path], what: str, overwrite: bool) -> None:
    """Refuse, before any work is done, a folder that holds something else than a saved result that may be replaced."""
    replace = overwrite and is_there(folder / "zarr.json")
    check_outputs([], inputs, replace=replace, remedy=f"pass --overwrite to replace {what}", folders=[folder])


def model_files(*models: str | None) -> list[Path]:
    """The files of those models that are folders here: inputs like any other."""
    found: list[Path] = []
    for model in models:
        with suppress(OSError):  # the name of a model elsewhere
            found += [path for path in Path(model).iterdir() if path.is_file()] if model else []
    return found


def open_lens(model: str | None, gguf_file: str | None = None, device: str | None = None) -> Lens:
    """Load a model without the loading bars of other libraries, unless somebody is watching."""
    watched = sys.stderr.isatty()
    if not watched:
        os.environ.setdefault("TQDM_DISABLE", "1")  # read once, when tqdm is imported
    with _no_garbage_collection(), warnings.catch_warnings():
        from transformers.utils import logging

        from normlens.lens import load

        logging.set_verbosity_error()
        if not watched:
            logging.disable_progress_bar()
        warnings.simplefilter("ignore", UserWarning)  # advice about optional tokenizer packages
        lens = load(model, gguf_file=gguf_file) if gguf_file else load(model)
    if device is not None:
        try:
            lens.model.to(device)
        except (RuntimeError, AssertionError, NotImplementedError) as error:  # no such device, or no room on it
            raise InputError(f"device {device!r} cannot be used ({first_line(error)})") from error
    return lens


@contextmanager
def _no_garbage_collection() -> Iterator[None]:
    """Importing torch makes a million objects that stay; to search them for garbage is a tenth of the wait."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
