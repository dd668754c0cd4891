"""Progress that survives anything: one file that holds the tally and how far it reaches."""

from __future__ import annotations

import zipfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from normlens.corpus.files import pack, unpack, write_whole
from normlens.corpus.plan import Plan
from normlens.corpus.tally import Tally
from normlens.errors import InputError

NAME = "checkpoint.npz"


@dataclass(frozen=True)
class Checkpoint:
    """The tally of the first `units` units of a run; what the run is stands in its fingerprint."""

    fingerprint: str
    units: int
    seconds: float  # spent so far, over all attempts
    tally: Tally

    def save(self, folder: Path) -> None:
        """Replace the folder's checkpoint; tally and position are one file, so they cannot disagree."""
        head = {
            "fingerprint": np.frombuffer(self.fingerprint.encode(), dtype=np.uint8),
            "units": np.array(self.units),
            "seconds": np.array(self.seconds),
        }
        content = pack({**head, **{f"tally/{name}": array for name, array in self.tally.state().items()}})
        write_whole(folder / NAME, lambda stream: _write(stream, content))


def read_checkpoint(folder: Path, plan: Plan, fingerprint: str) -> Checkpoint | None:
    """The folder's checkpoint, if it has one; one of another run is an error."""
    path = folder / NAME
    if not path.exists():
        return None
    try:
        arrays = unpack(path)
    except (OSError, ValueError, KeyError, zipfile.BadZipFile) as error:
        raise InputError(
            f"the checkpoint must be readable: {path} is not ({error}); start again with --fresh"
        ) from error
    found = arrays["fingerprint"].tobytes().decode()
    if found != fingerprint:
        raise InputError(
            f"a folder holds one run: {folder} holds an unfinished one with other inputs, model or settings; choose "
            "another --out, or start again with --fresh"
        )
    tally = Tally(plan)
    tally.load({name.removeprefix("tally/"): array for name, array in arrays.items() if name.startswith("tally/")})
    return Checkpoint(found, int(arrays["units"]), float(arrays["seconds"]), tally)


def _write(stream: object, content: bytes) -> None:
    stream.write(content)  # type: ignore[attr-defined]
