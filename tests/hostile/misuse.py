"""Ways to call a command wrongly: arguments that no one should give, streams, disks and memory that are full, Ctrl-C."""

from __future__ import annotations

import importlib
import inspect
import os
import random
import re
import resource
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import get_args

from typer.models import ArgumentInfo

from normlens.cli.groups import spread

NUMBERS = ["0", "-1", "1", str(10**12), str(2**63), str(10**40), "nan", "inf", "1e999", "1.5", "x", ""]
TEXTS = [
    "", " ", ".", "-", "=", "x=", "=x", "bystander.txt", "bystander.txt/x", "/dev/null", "/dev/full", "/dev/zero",
    "/proc/nope/x", "/proc/self/x", "nosuch://place/x", "[/x]", "[bold]x[/bold]", ":cat:", "(", "a=(", "*", "%s", "{0}",
    "a\nb", "\x1b[31m", "\udcff", "x" * 300, "x" * 5000, "1:", "9:1", "1000000", "1:" + "9" * 30, "true", "None", "-1",
    "loop", "loop/x", "dangling",
]  # fmt: skip


def wrong_arguments(command: Sequence[str], inputs: Sequence[str], rng: random.Random) -> list[str]:
    """The command with one or two of its options given a value that it was not made for, or an input's name."""
    changed = list(command)
    for _ in range(rng.choice([1, 1, 2])):
        flag, kind = rng.choice(_parameters(command[0]))
        if kind == "bool":
            changed.append(flag)
            continue
        value = rng.choice(NUMBERS if kind in ("int", "float") else [*TEXTS, *inputs, *inputs])
        changed = _with(changed, flag, value) if flag else [changed[0], value, *changed[2:]]
    return changed


#: Options that name what a command writes.
OUTPUTS = ("--out", "--page", "--save-choice")


def collisions(command: Sequence[str], inputs: Sequence[str]) -> Iterator[list[str]]:
    """The command with each of its outputs at the place of an input, or of another output, and told to overwrite it."""
    known = [flag for flag, _ in _parameters(command[0])]
    outputs = [flag for flag in OUTPUTS if flag in known]
    for flag in outputs:
        others = [command[command.index(other) + 1] for other in outputs if other != flag and other in command]
        for place in (*inputs, *others):
            yield allowed(_with(command, flag, place))


def allowed(command: Sequence[str]) -> list[str]:
    """The command, told to overwrite whatever it may."""
    flags = [flag for flag, _ in _parameters(command[0])]
    return [*command, *(["--overwrite"] if "--overwrite" in flags else [])]


def _with(command: Sequence[str], flag: str, value: str) -> list[str]:
    changed = list(command)
    if flag in changed:
        changed[changed.index(flag) + 1] = value
        return changed
    return [*changed, flag, value]


def _parameters(command: str) -> list[tuple[str, str]]:
    """The options of a command (an argument has no flag), each with the kind of its values."""
    function = getattr(importlib.import_module(f"normlens.cli.commands.{command}"), command)
    found = []
    for name, parameter in inspect.signature(spread(function)).parameters.items():
        plain, about = get_args(parameter.annotation)[:2]
        kinds = [kind for kind in ("bool", "int", "float") if re.search(rf"\b{kind}\b", str(plain))]
        # Inside `Annotated`, typer takes what stands in the place of the default for the first name.
        named = [text for text in (about.default, *(about.param_decls or ())) if str(text).startswith("-")]
        option = (named or [f"--{name.replace('_', '-')}"])[0].split("/")[0]
        flag = "" if isinstance(about, ArgumentInfo) else option
        found.append((flag, (kinds or ["text"])[0]))
    return found


def _closed(number: int, name: str) -> Callable[[], None]:
    def close() -> None:
        os.close(number)
        setattr(sys, name, None)

    return close


def _full(number: int, name: str) -> Callable[[], None]:
    def fill() -> None:
        os.dup2(os.open("/dev/full", os.O_WRONLY), number)
        setattr(sys, name, os.fdopen(number, "w", closefd=False))

    return fill


def _all_closed() -> None:
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        _closed(number, name)()


#: What is wrong with the standard streams, and what makes it so in a new process.
STREAMS: dict[str, Callable[[], None]] = {
    "standard input closed": _closed(0, "stdin"),
    "standard output closed": _closed(1, "stdout"),
    "standard output full": _full(1, "stdout"),
    "standard error closed": _closed(2, "stderr"),
    "standard error full": _full(2, "stderr"),
    "all streams closed": _all_closed,
}


def _removed_folder(folder: Path) -> None:
    gone = folder / "gone"
    gone.mkdir()
    os.chdir(gone)
    gone.rmdir()


def _full_disk(folder: Path) -> None:
    """No file may grow beyond a few bytes: those of the sentence."""
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2000, resource.RLIM_INFINITY))


def _little_memory(folder: Path) -> None:
    taken = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (taken + (8 << 20), resource.RLIM_INFINITY))


def _variables(**values: str) -> Callable[[Path], None]:
    return lambda folder: os.environ.update({name: value.format(folder) for name, value in values.items()})


LITTLE_MEMORY = "there is little memory"

#: What is wrong around a command, and what makes it so in a new process whose files are in a folder.
SURROUNDINGS: dict[str, Callable[[Path], None]] = {
    "the current folder was removed": _removed_folder,
    "the disk is full": _full_disk,
    LITTLE_MEMORY: _little_memory,
    "the cache is a file": _variables(NORMLENS_CACHE="{}/bystander.txt", XDG_CACHE_HOME="{}/bystander.txt"),
    "the cache cannot be written": _variables(NORMLENS_CACHE="/proc/nope", XDG_CACHE_HOME="/proc/nope"),
    "there is no home": _variables(HOME="/nowhere", XDG_STATE_HOME="/proc/nope", TMPDIR="/nowhere"),
    "the terminal is odd": _variables(TERM="dumb", COLUMNS="-3", LINES="x", LANG="C", NO_COLOR="1"),
}


def names_of(files: Sequence[Path], folder: Path) -> list[str]:
    """Input files, and the folders that hold them, as a command in that folder would name them."""
    found = {str(path.relative_to(folder)) for path in files}
    found |= {str(parent.relative_to(folder)) for path in files for parent in path.parents if folder in parent.parents}
    return sorted(found)
