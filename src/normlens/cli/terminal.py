"""Terminal output of the commands: the only place that writes to a terminal, where data are always text.

Rich reads `[bold]` and `[/x]` as markup, `:cat:` as a picture, and lets control characters through to the terminal. File
names, categories and tokens may hold all of these, so the console made here reads none of them.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, Protocol, TextIO, cast

from normlens.io.escapes import visible
from normlens.types import Json

if TYPE_CHECKING:
    from rich.console import Console


def show(line: str) -> None:
    """One line, or several, on standard output, never wrapped."""
    print(visible(line))


def say(line: str) -> None:
    """One line, or several, on standard error: what a command tells beside its output.

    Where standard error is closed, full or broken, nobody hears it: the exit code alone has to speak.
    """
    if sys.stderr is None:
        return
    try:
        print(visible(line), file=sys.stderr, flush=True)
    except (OSError, ValueError):
        let_go(sys.stderr)


def let_go(stream: TextIO | None) -> None:
    """Point a broken stream to nowhere, so that the interpreter does not fail on what is left in it when it ends."""
    with suppress(OSError, ValueError, AttributeError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, cast(TextIO, stream).fileno())
        os.close(nowhere)


def note(text: str) -> None:
    """Something that the user should know and need not act on, on standard error."""
    say(f"normlens: note: {text}")


def print_json(document: Any, *, indent: int | None = 1) -> None:
    """One JSON document on standard output; what is not a number is `null`, since JSON has no NaN."""
    ascii_only = (getattr(sys.stdout, "encoding", None) or "utf-8").lower().replace("-", "") != "utf8"

    def dumped(plain: Any) -> str:
        return json.dumps(plain, ensure_ascii=ascii_only, indent=indent, default=float, allow_nan=False)

    try:
        text = dumped(document)
    except ValueError:
        text = dumped(_without_nan(document))
    print(text)


def _without_nan(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_nan(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_without_nan(item) for item in value]
    if isinstance(value, str | int | None):
        return value
    number = float(value)
    return number if abs(number) < float("inf") else None


#: Columns where the output is no terminal.
_PIPE_WIDTH = 160


def console(*, stderr: bool = False) -> Console:
    """A console on which every string is shown as it is; styles are given beside the text, never inside it."""
    from rich.console import Console
    from rich.text import Text

    class PlainConsole(Console):
        def render_str(self, text: str, **options: Any) -> Text:
            return super().render_str(visible(text), **{**options, "markup": False, "emoji": False})

    screen = PlainConsole(stderr=stderr, markup=False, emoji=False, highlight=False)
    if not screen.is_terminal and "COLUMNS" not in os.environ:
        screen.width = _PIPE_WIDTH  # whoever reads a pipe wants whole names and numbers
    return screen


class Bars(Protocol):
    """Moves the bar with this label, and draws it where it is new."""

    def __call__(self, label: str, done: int, total: int | None, beside: str = "") -> None: ...


@contextmanager
def progress_bars() -> Iterator[Bars]:
    """Bars on a terminal, one for each label; nothing in a pipe."""
    screen = console(stderr=True)
    if not screen.is_terminal:
        yield lambda label, done, total, beside="": None
        return
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    name = TextColumn("{task.description}", markup=False)
    beside_column = TextColumn("{task.fields[beside]}", markup=False)
    columns = (name, BarColumn(), MofNCompleteColumn(), beside_column, TimeRemainingColumn())
    with Progress(*columns, console=screen, transient=True) as bar:
        tasks: Json = {}

        def move(label: str, done: int, total: int | None, beside: str = "") -> None:
            if label not in tasks:
                tasks[label] = bar.add_task(visible(label), total=total, beside=beside)
            bar.update(tasks[label], completed=done, total=total, beside=beside)

        yield move


@contextmanager
def progress_bar(label: str) -> Iterator[Callable[[int, int], None]]:
    """A callback `(done, total)` that moves one bar."""
    with progress_bars() as move:
        yield lambda done, total: move(label, done, total)
