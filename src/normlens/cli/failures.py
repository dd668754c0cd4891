"""Exit codes and messages for every failure of the command: one sentence on standard error, and an exit code.

| what happened | exit code |
|---|---|
| a mistake of the user's, or a model, file or machine that does not serve: `NormlensError`, wrong usage | 2 |
| an error that nobody foresaw; its traceback goes into a log file that the sentence names | 70 |
| Ctrl-C; the sentence says how to go on | 130 |
| the same, asked for by `kill`, `timeout` or a scheduler (SIGTERM) | 143 |
"""

from __future__ import annotations

import errno
import io
import os
import platform
import re
import signal
import sys
import tempfile
import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import datetime
from pathlib import Path
from typing import Any, TextIO, cast

import typer

from normlens.cli.terminal import let_go, say
from normlens.errors import InputError, NormlensError
from normlens.io.escapes import visible
from normlens.io.writing import write_text

WRONG, UNFORESEEN, INTERRUPTED, TERMINATED = 2, 70, 130, 143

#: PyTorch, oneDNN and threads have words for a want of memory, and no type.
_NO_ROOM = "allocate memory|out of memory|can't start new thread|could not create a primitive$"

_NO_MEMORY = (
    "there must be room in memory for this: there was not enough; use a smaller model, a shorter text, fewer measures or "
    "smaller batches, or end other programs"
)

#: The base of what typer raises where a command line is wrong; it has no public name.
_UsageError: type[Exception] = typer.BadParameter.__mro__[1]


def exit_code(run: Callable[[], None], after_interruption: Callable[[], str]) -> int:
    """Run a command to its end, whatever the end is, and return the exit code."""
    told: list[int] = []  # signals to end
    try:
        with _guarded_streams(), _orderly_end(told):
            code = 0
            try:
                run()
            except typer.Exit as stop:
                code = stop.exit_code
            sys.stdout.flush()
        return code
    except (KeyboardInterrupt, typer.Abort):
        return _end(TERMINATED if signal.SIGTERM in told else INTERRUPTED, f"interrupted; {after_interruption()}")
    except Exception as error:
        if told:  # C code may make another error of an interruption
            return _end(TERMINATED if signal.SIGTERM in told else INTERRUPTED, f"interrupted; {after_interruption()}")
        if isinstance(error, NormlensError):
            return _end(WRONG, str(error))
        if isinstance(error, _UsageError):
            return _end(WRONG, _usage(error))
        if _lacks_memory(error):
            return _end(WRONG, _NO_MEMORY)
        return _end(UNFORESEEN, _unforeseen(error))


def _lacks_memory(error: BaseException | None) -> bool:
    """Return True if an error, or one that it comes from, is a want of memory."""
    while error is not None:
        if isinstance(error, MemoryError) or (isinstance(error, OSError) and error.errno == errno.ENOMEM):
            return True
        if isinstance(error, RuntimeError) and re.search(_NO_ROOM, str(error)):
            return True
        error = error.__cause__ or error.__context__
    return False


def _end(code: int, sentence: str) -> int:
    say(f"normlens: {' '.join(visible(sentence).split())}")
    return code


def _usage(error: Any) -> str:
    """Typer's message about a wrong command line as one sentence."""
    message = error.format_message().rstrip(". ")
    path = error.ctx.command_path if error.ctx is not None else "normlens"
    joint = " See" if message.endswith("?") else "; see"
    return f"{message[:1].lower()}{message[1:]}{joint} `{path} --help`"


def _unforeseen(error: Exception) -> str:
    what = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    report = _report(error)
    for folder in (_state_folder(), Path(tempfile.gettempdir())):
        try:
            log = write_text(folder / f"normlens-{datetime.now():%Y%m%d-%H%M%S}-{os.getpid()}.log", report)
        except NormlensError:
            continue
        return f"an error that should not happen ({what[:300]}); please report it with the log file {log}"
    say(report)  # nowhere to write: better on the screen than lost
    return f"an error that should not happen ({what[:300]}); please report it with the lines above"


def _report(error: Exception) -> str:
    from normlens.provenance import versions

    lines = [
        f"time: {datetime.now().astimezone().isoformat(timespec='seconds')}",
        f"command: {sys.argv!r}",
        f"versions: {versions()}",
        f"platform: {platform.platform()}",
        "",
        "".join(traceback.format_exception(error)),
    ]
    return "\n".join(lines)


def _state_folder() -> Path:
    """The folder for logs on this system."""
    if sys.platform == "darwin":
        return Path("~/Library/Logs/normlens").expanduser()
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA") or "~/AppData/Local").expanduser() / "normlens" / "logs"
    return Path(os.environ.get("XDG_STATE_HOME") or "~/.local/state").expanduser() / "normlens"


@contextmanager
def _orderly_end(told: list[int]) -> Iterator[None]:
    """While the block runs, SIGTERM is an interruption like Ctrl-C, and both are noted in `told`.

    SIGTERM otherwise ends a process where it stands, with its drafts left behind.
    """

    def end(number: int, _: Any) -> None:
        told.append(number)
        raise KeyboardInterrupt

    if threading.current_thread() is not threading.main_thread():  # signals are somebody else's
        yield
        return
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    for number, handler in before.items():
        if handler is not signal.SIG_IGN:
            signal.signal(number, end)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler or signal.SIG_DFL)


@contextmanager
def _guarded_streams() -> Iterator[None]:
    """Standard streams that are closed, full or broken give sentences while the block runs."""
    _occupy_standard_descriptors()
    before = sys.stdin, sys.stdout, sys.stderr
    for stream in before[1:]:
        if isinstance(stream, io.TextIOWrapper):  # a terminal that knows few characters is no reason to stop
            stream.reconfigure(errors="backslashreplace")
    sys.stdin = before[0] if before[0] is not None else cast(TextIO, _ClosedInput())
    sys.stdout = cast(TextIO, _GuardedOutput(before[1]))
    sys.stderr = before[2] if before[2] is not None else io.StringIO()
    try:
        yield
    finally:
        sys.stdin, sys.stdout, sys.stderr = before


def _occupy_standard_descriptors() -> None:
    """A closed descriptor 0, 1 or 2 would be given to the next file that is opened, and prints would go into it."""
    for number in (0, 1, 2):
        try:
            os.fstat(number)
        except OSError:
            with suppress(OSError):
                os.open(os.devnull, os.O_RDWR)  # takes the lowest number that is free: this one


class _ClosedInput:
    """Standard input that was closed before the command began."""

    closed = True

    def isatty(self) -> bool:
        return False

    @property
    def buffer(self) -> Any:
        raise InputError("standard input is closed; pipe a text into the command")

    def read(self, *_: Any) -> str:
        return cast(str, self.buffer)

    readline = readlines = __iter__ = read


class _GuardedOutput:
    """Standard output that says in a sentence why it could not be written."""

    def __init__(self, stream: TextIO | None) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        if self._stream is None:
            raise InputError("standard output is closed; send it to a file or /dev/null")
        with self._sentences():
            return self._stream.write(text)

    def flush(self) -> None:
        if self._stream is not None:
            with self._sentences():
                self._stream.flush()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    @contextmanager
    def _sentences(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            let_go(self._stream)
            if error.errno == errno.EPIPE:
                raise InputError("standard output was closed by its reader before all was written") from error
            raise InputError(
                f"standard output cannot be written ({error.strerror or error}); make room, or send it elsewhere"
            ) from error
