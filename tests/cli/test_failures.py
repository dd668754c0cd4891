"""Where failures end: one sentence, an exit code, and nobody's terminal or file the worse for it."""

from __future__ import annotations

import errno
import importlib
import io
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from normlens.cli import failures
from normlens.cli.failures import exit_code
from normlens.cli.terminal import console, print_json, progress_bars, show, visible
from normlens.errors import ModelError

SOURCE = Path(__file__).parent.parent.parent / "src"
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(SOURCE), "PYTHONUNBUFFERED": ""}  # buffered, as users have it
COMMAND = [sys.executable, "-m", "normlens.cli.main"]


def ended(run: Callable[[], Any], capsys: pytest.CaptureFixture[str]) -> tuple[int, str]:
    code = exit_code(run, lambda: "run it again")
    err = capsys.readouterr().err
    assert "Traceback" not in err
    return code, err


def raising(error: BaseException) -> Callable[[], None]:
    def run() -> None:
        raise error

    return run


@pytest.fixture
def aer(tmp_path: Path) -> list[str]:
    """A whole command that needs no model."""
    (tmp_path / "gold").write_text("0-0 1-1\n")
    (tmp_path / "links").write_text("0-0\n")
    return ["aer", str(tmp_path / "links"), "--gold", str(tmp_path / "gold")]


def shell(line: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """A line for bash in which `"$@"` is the command."""
    full = ["bash", "-c", line, "bash", *COMMAND, *arguments]
    return subprocess.run(full, env=ENVIRONMENT, capture_output=True, text=True, timeout=120)


# ---- errors ----------------------------------------------------------------------------------------------------------


def test_an_error_of_ours_is_one_line_whatever_it_holds(capsys: pytest.CaptureFixture[str]) -> None:
    code, err = ended(raising(ModelError("no model:\n  \x1b[31m[/x] [bold]\u202e")), capsys)
    assert code == 2 and err == "normlens: no model: \\x1b[31m[/x] [bold]\\u202e\n"


def test_an_unforeseen_error_leaves_a_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(failures, "_state_folder", lambda: tmp_path / "state" / "normlens")
    code, err = ended(lambda: {}["nothing"], capsys)
    assert code == 70 and len(err.splitlines()) == 1 and "KeyError: 'nothing'" in err
    log = Path(re.search(r"log file (\S+\.log)", err)[1])
    assert log.parent == tmp_path / "state" / "normlens"
    assert "Traceback" in log.read_text() and "test_failures.py" in log.read_text() and "torch" in log.read_text()


def test_a_log_that_cannot_be_written_where_it_belongs_goes_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setattr(failures, "_state_folder", lambda: tmp_path / "file" / "normlens")
    monkeypatch.setattr(failures.tempfile, "gettempdir", lambda: str(tmp_path))
    code, err = ended(raising(RuntimeError("odd")), capsys)
    assert code == 70 and str(tmp_path) in err and len(list(tmp_path.glob("normlens-*.log"))) == 1
    monkeypatch.setattr(failures.tempfile, "gettempdir", lambda: str(tmp_path / "file"))
    code = exit_code(raising(RuntimeError("odd")), str)
    err = capsys.readouterr().err  # nowhere to write: then at least here
    assert code == 70 and "Traceback" in err and err.splitlines()[-1].startswith("normlens: an error that should not")


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        OSError(errno.ENOMEM, "Cannot allocate memory"),
        RuntimeError("[enforce fail at alloc_cpu.cpp:121] err == 0. DefaultCPUAllocator: can't allocate memory"),
        RuntimeError("can't start new thread"),
        RuntimeError("could not create a primitive"),
    ],
)
def test_a_want_of_memory_is_a_sentence(error: Exception, capsys: pytest.CaptureFixture[str]) -> None:
    code, err = ended(raising(error), capsys)
    assert code == 2 and err.startswith("normlens: there must be room in memory for this") and err.count("\n") == 1
    wrapped = ValueError("a library's own")
    wrapped.__cause__ = error
    assert ended(raising(wrapped), capsys)[0] == 2


def test_a_folder_that_was_removed(tmp_path: Path, aer: list[str]) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    done = shell(f'cd {gone} && rmdir {gone} && "$@"', *aer)
    assert done.returncode == 2 and "a command runs in a folder that exists" in done.stderr


@pytest.mark.parametrize("line", ['"$@" 2>/dev/full', '"$@" 2>&-'])
def test_notes_that_nobody_can_hear_cost_nothing(line: str, aer: list[str]) -> None:
    heard, unheard = shell('"$@"', *aer, "--one-based"), shell(line, *aer, "--one-based")
    assert heard.returncode == unheard.returncode == 2 and unheard.stderr == ""
    heard, unheard = shell('"$@"', *aer, "--gold-swap"), shell(line, *aer, "--gold-swap")
    assert heard.returncode == unheard.returncode == 0 and heard.stdout == unheard.stdout != ""


def test_an_interruption_says_how_to_go_on(capsys: pytest.CaptureFixture[str]) -> None:
    assert ended(raising(KeyboardInterrupt()), capsys) == (130, "normlens: interrupted; run it again\n")


@pytest.mark.parametrize(("name", "advice"), [("aer", "start over"), ("corpus", "goes on"), ("align", "--resume")])
def test_every_command_has_its_own_advice(name: str, advice: str) -> None:
    from normlens.cli.main import _after_interruption

    importlib.import_module(f"normlens.cli.commands.{name}")
    assert advice in _after_interruption(name)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_running_command_that_is_told_to_end(number: int, code: int, tmp_path: Path, aer: list[str]) -> None:
    os.mkfifo(tmp_path / "never")  # whoever reads it waits
    process = subprocess.Popen(
        [*COMMAND, "aer", str(tmp_path / "never"), *aer[2:]],
        env=ENVIRONMENT,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(
            signal.SIGINT, signal.SIG_DFL
        ),  # shells let what runs in the background ignore it
    )
    writer = os.open(tmp_path / "never", os.O_WRONLY)  # returns when the command has opened it
    time.sleep(0.1)
    process.send_signal(number)
    _, err = process.communicate(timeout=120)
    os.close(writer)
    assert process.returncode == code
    assert err == "normlens: interrupted; run the same command again to start over\n"


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_an_interruption_that_became_another_error(
    number: int, code: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As matplotlib's C code makes a ValueError of it."""

    def run() -> None:
        try:
            os.kill(os.getpid(), number)
            time.sleep(60)
        except KeyboardInterrupt:
            raise ValueError("invalid affine transformation matrix") from None

    signal.signal(signal.SIGINT, signal.default_int_handler)
    handlers = [signal.getsignal(known) for known in (signal.SIGINT, signal.SIGTERM)]
    assert ended(run, capsys) == (code, "normlens: interrupted; run it again\n")
    assert [signal.getsignal(known) for known in (signal.SIGINT, signal.SIGTERM)] == handlers


# ---- standard streams ------------------------------------------------------------------------------------------------


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
@pytest.mark.parametrize("what", ["aer", "--help", "--version", "--json"])
def test_a_full_disk_behind_standard_output(what: str, aer: list[str]) -> None:
    arguments = {"aer": aer, "--json": [*aer, "--json"]}.get(what, [what])
    done = shell('"$@" > /dev/full', *arguments)
    assert done.returncode == 2
    assert done.stderr.startswith("normlens: standard output cannot be written (No space left on device)")
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize("what", ["aer", "--help"])
def test_a_reader_that_stops_reading(what: str, aer: list[str]) -> None:
    done = shell('set -o pipefail; "$@" | true', *(aer if what == "aer" else [what]))
    assert done.returncode in (0, 2) and len(done.stderr.splitlines()) == (1 if done.returncode else 0)
    code = (
        "import sys, time; from normlens.cli.failures import exit_code as e; from normlens.cli.terminal import show\n"
    )
    code += "sys.exit(e(lambda: [show('x' * 1000) for _ in range(1000)], str))"
    line = 'set -o pipefail; "$0" -c "$CODE" | head -c 10'
    cut = subprocess.run(
        ["bash", "-c", line, sys.executable], env={**ENVIRONMENT, "CODE": code}, capture_output=True, text=True
    )
    assert cut.returncode == 2 and cut.stdout == "x" * 10
    assert cut.stderr == ("normlens: standard output was closed by its reader before all was written\n")


def test_closed_streams(aer: list[str]) -> None:
    closed = shell('"$@" >&-', *aer)
    assert closed.returncode == 2 and "standard output is closed" in closed.stderr
    assert len(closed.stderr.splitlines()) == 1
    silent = shell('"$@" 2>&-', "aer", "nothing", "--gold", "nowhere")
    assert silent.returncode == 2 and silent.stdout == ""
    everything = shell('"$@" <&- >&- 2>&-', *aer)
    assert everything.returncode == 2
    code = "import sys; from normlens.cli.failures import exit_code as e; sys.exit(e(lambda: sys.stdin.buffer.read(), str))"
    read = subprocess.run(
        ["bash", "-c", '"$0" -c "$CODE" <&-', sys.executable],
        env={**ENVIRONMENT, "CODE": code},
        capture_output=True,
        text=True,
    )
    assert read.returncode == 2 and read.stderr.startswith("normlens: standard input is closed")


def test_a_closed_stream_is_not_taken_by_the_next_file(tmp_path: Path) -> None:
    code = (
        "import sys, os; from normlens.cli.failures import exit_code\n"
        "from normlens.io.writing import write_text\n"
        f"def run():\n    write_text({str(tmp_path / 'file')!r}, 'mine'); os.write(1, b'stray')\n"
        "sys.exit(exit_code(run, str))"
    )
    subprocess.run(["bash", "-c", '"$0" -c "$CODE" >&-', sys.executable], env={**ENVIRONMENT, "CODE": code}, check=True)
    assert (tmp_path / "file").read_text() == "mine"


def test_a_terminal_that_knows_few_characters(tmp_path: Path, aer: list[str]) -> None:
    links = tmp_path / "größe €.txt"
    links.write_text("0-0\n")
    ascii_only = {**ENVIRONMENT, "PYTHONIOENCODING": "ascii"}
    done = subprocess.run([*COMMAND, "aer", str(links), *aer[2:]], env=ascii_only, capture_output=True, text=True)
    assert done.returncode == 0 and "gr\\xf6\\xdfe \\u20ac.txt: AER" in done.stdout


# ---- data are text ---------------------------------------------------------------------------------------------------

HOSTILE = (
    "[/x]",
    "[bold]",
    "[red]a[/red]",
    ":cat:",
    "\\[x]",
    "[link=file:///etc/passwd]p[/link]",
    "a\x1b[2Jb",
    "\u202e",
)


@pytest.mark.parametrize("text", HOSTILE)
def test_no_text_is_markup(text: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    from rich.table import Table

    monkeypatch.setenv("COLUMNS", "200")
    screen = console()
    screen.print(text)
    screen.print(text, style="dim", soft_wrap=True)
    screen.rule(text)
    table = Table(title=text)
    table.add_column(text)
    table.add_row(text)
    screen.print(table)
    show(text)
    out = capsys.readouterr().out
    assert out.count(visible(text)) == 7 and "\x1b" not in out and "\u202e" not in out


def test_labels_of_bars_are_text(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = io.StringIO()
    monkeypatch.setattr(sys, "stderr", stream)
    monkeypatch.setenv("TTY_COMPATIBLE", "1")
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "120")
    with progress_bars() as move:
        for text in HOSTILE:
            move(f"{text} pass", 1, 2, text)
    assert "[/x] pass" in stream.getvalue() and "[bold]" in stream.getvalue()


def test_only_the_terminal_module_writes_to_standard_error() -> None:
    for path in (SOURCE / "normlens" / "cli").glob("*.py"):
        if path.name != "terminal.py":
            assert not re.search(r"file=sys\.stderr|sys\.stderr\.write", path.read_text()), path.name


def test_only_the_terminal_module_makes_consoles() -> None:
    for path in (SOURCE / "normlens").rglob("*.py"):
        if path.name != "terminal.py":
            assert not re.search(r"\bConsole\(", path.read_text()), f"{path} must take its console from cli.terminal"


def test_json_has_no_nan(capsys: pytest.CaptureFixture[str]) -> None:
    import json

    import numpy as np

    def refused(name: str) -> None:
        raise AssertionError(f"{name} is no JSON")

    print_json({"a": float("nan"), "b": [1.5, float("-inf"), np.float32("nan")], "c": np.int64(3), "d": None, "e": "ü"})
    found = json.loads(capsys.readouterr().out, parse_constant=refused)
    assert found == {"a": None, "b": [1.5, None, None], "c": 3, "d": None, "e": "ü"}
