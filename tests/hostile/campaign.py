"""Run commands on damaged files and with wrong arguments, each in a process of its own, and count how they end.

A target is a folder of whole files, and a command that reads them. A case damages one file in a copy of the folder (or
calls the command wrongly, breaks its streams, interrupts it), forks this process (which has imported everything already),
runs the command there, and looks at what is left: an exit code of 0 or 2 (130 or 143 where it was told to end), one line of
error, little memory, no draft, and every file that was not the command's to write as it was before.
"""

from __future__ import annotations

import hashlib
import os
import random
import resource
import shutil
import signal
import sys
import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from .misuse import LITTLE_MEMORY, STREAMS, SURROUNDINGS, allowed, collisions, names_of, wrong_arguments
from .mutations import mutations_for

#: A command on a few lines ends in a second; a machine that is busy is given three hundred.
_LONGEST = 300
_NOWHERE = Path(os.devnull)
_MOST_MEMORY = 1 << 30  # bytes more than this process has


@dataclass(frozen=True)
class Target:
    """Whole files, and a command that reads them."""

    name: str
    make: Callable[[Path], None]  # fills a folder
    command: Callable[[Path], Sequence[str]]  # the arguments, for a copy of that folder
    damage: tuple[str, ...]  # patterns of the files to be damaged
    own: tuple[str, ...] = ()  # patterns of files that the command may change or remove
    prepare: Callable[[Path], None] | None = None  # in the child, before the command
    same: tuple[str, ...] = ()  # files that must come out as from whole files, wherever the command succeeds
    misused: bool = False  # whether its command is also called wrongly, cut off from its streams and interrupted


@dataclass(frozen=True)
class Case:
    """What is done to a copy of the whole files, and to the command that reads them."""

    where: str
    damage: tuple[Path, bytes] | None = None  # a file, and what becomes of it
    arguments: Sequence[str] | None = None  # in place of the target's
    streams: Callable[[], None] | None = None  # in the child, before the command
    surroundings: Callable[[Path], None] | None = None  # the same, for the folder of its files
    interrupt: float | None = None  # seconds after which it is told to end
    how: signal.Signals = signal.SIGINT
    keep: str = ""  # a file that must stay as it is, wherever it lies


@dataclass
class Tally:
    """What a campaign found."""

    tried: int = 0
    codes: Counter[str] = field(default_factory=Counter)
    faults: list[str] = field(default_factory=list)

    def report(self) -> str:
        kinds = Counter(fault.split(":", 1)[0] for fault in self.faults)
        counted = ", ".join(
            f"{kind} {kinds.get(kind, 0)}"
            for kind in ("tracebacks", "signals", "files lost", "wrong results", "hangs", "memory", "manners", "litter")
        )
        ends = ", ".join(f"{code}: {count}" for code, count in sorted(self.codes.items()))
        return f"{self.tried} inputs tried; {counted}; exit codes {ends}"


def quick_figures() -> None:
    """For this process and its children: figures are written, and not drawn, which is what takes time."""
    from contextlib import nullcontext

    from normlens.plots import figure

    figure._drawn = lambda drawn, kind: f"a figure as {kind}".encode()
    figure._laid_out = lambda drawn: nullcontext()


class Campaign:
    """Cases against targets, the same for the same seed."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.tally = folder, Tally()
        self._whole: dict[str, tuple[Path, Path]] = {}  # its files before and after the command
        self._seconds: dict[str, float] = {}  # that the command takes

    def attack(self, target: Target, cases: int, seed: int = 0) -> Tally:
        """Try so many cases against a target."""
        whole, victims = self._victims(target)
        for number in range(cases):
            rng = random.Random(f"{seed} {target.name} {number}")
            victim = victims[number % len(victims)]
            content = victim.read_bytes()
            mutation = rng.choice(mutations_for(victim.name, content))
            name = victim.relative_to(whole)
            where = f"{target.name} {seed}/{number}: {mutation.__name__} of {name}"
            self._case(target, Case(where, (name, mutation(content, rng))))
        return self.tally

    def misuse(self, target: Target, cases: int, seed: int = 0) -> Tally:
        """Call a target's command wrongly, in every way up to so many times, with every kind of broken streams."""
        whole, victims = self._victims(target)
        chosen = random.Random(f"{seed} chosen {target.name}")
        inputs = names_of(victims, whole)
        for number in range(cases):
            rng = random.Random(f"{seed} misused {target.name} {number}")
            arguments = wrong_arguments([str(word) for word in target.command(whole)], inputs, rng)
            shown = [word if len(word) < 40 else f"{word[:20]}…" for word in arguments]
            self._case(target, Case(f"{target.name} {seed}/{number}: called as {shown!r}", arguments=arguments))
        clashes = list(collisions([str(word) for word in target.command(whole)], inputs))
        for arguments in chosen.sample(clashes, min(cases, len(clashes))):
            self._case(target, Case(f"{target.name}: called as {arguments!r}", arguments=arguments))
        self._inputs_among_outputs(target, cases, seed)
        for name, breaks in STREAMS.items():
            self._case(target, Case(f"{target.name}: {name}", streams=breaks))
        # Where memory ends is chance, and once it ended in a wait: that is for long campaigns, not for every test run.
        around = sorted(SURROUNDINGS if cases >= 25 else set(SURROUNDINGS) - {LITTLE_MEMORY})
        for name in chosen.sample(around, min(cases, len(around))):
            self._case(target, Case(f"{target.name}: {name}", surroundings=SURROUNDINGS[name]))
        return self.tally

    def interrupt(self, target: Target, times: int, seed: int = 0) -> Tally:
        """Tell a target's command to end at random moments, by Ctrl-C and by SIGTERM in turn."""
        self._made(target)
        for number in range(times):
            rng = random.Random(f"{seed} interrupted {target.name} {number}")
            at = rng.uniform(0.02, self._seconds[target.name])
            how = (signal.SIGINT, signal.SIGTERM)[number % 2]
            where = f"{target.name} {seed}/{number}: {how.name} after {at:.2f} s"
            self._case(target, Case(where, interrupt=at, how=how))
        return self.tally

    def _inputs_among_outputs(self, target: Target, cases: int, seed: int) -> None:
        """An input lies where the command would write one of its files: it must be there afterwards as it was."""
        whole, victims = self._victims(target)
        _, right = self._made(target)
        made = sorted(set(_files(right, ("cache",))) - set(_files(whole, ())))  # in our own cache nobody keeps anything
        rng = random.Random(f"{seed} among outputs {target.name}")
        command = [str(word) for word in target.command(whole)]
        named = [victim for victim in victims if str(victim.relative_to(whole)) in command]
        places = [(path, victim) for path in made for victim in named]
        for path, victim in rng.sample(places, min(cases, len(places))):
            arguments = [path if word == str(victim.relative_to(whole)) else word for word in command]
            where = f"{target.name}: called as {arguments!r}"
            self._case(target, Case(where, (Path(path), victim.read_bytes()), allowed(arguments), keep=path))

    def _victims(self, target: Target) -> tuple[Path, list[Path]]:
        whole, _ = self._made(target)
        victims = sorted({path for pattern in target.damage for path in whole.glob(pattern) if path.is_file()})
        assert victims, f"{target.name} has no file to damage"
        return whole, victims

    def _made(self, target: Target) -> tuple[Path, Path]:
        if target.name not in self._whole:
            whole = self.folder / target.name / "whole"
            whole.mkdir(parents=True)
            status, err, _ = self._forked(target, lambda: target.make(whole))
            assert status == 0, f"{target.name} must be made: {err}"
            (whole / "bystander.txt").write_text("nothing to do with it\n")
            copy = self._copied(target, whole)
            start = time.monotonic()
            status, err, _ = self._run(target, copy, Case(target.name))
            self._seconds[target.name] = time.monotonic() - start
            assert os.waitstatus_to_exitcode(status) == 0, f"{target.name} must succeed on whole files: {err}"
            right = self.folder / target.name / "right"
            copy.rename(right)
            self._whole[target.name] = whole, right
        return self._whole[target.name]

    def _copied(self, target: Target, whole: Path) -> Path:
        copy = self.folder / target.name / "copy"
        shutil.rmtree(copy, ignore_errors=True)
        shutil.copytree(whole, copy)
        (copy / "loop").symlink_to("loop")
        (copy / "dangling").symlink_to("nowhere")
        return copy

    def _case(self, target: Target, case: Case) -> None:
        whole, right = self._whole[target.name]
        copy, where = self._copied(target, whole), case.where
        if case.damage is not None:
            (copy / case.damage[0]).parent.mkdir(parents=True, exist_ok=True)
            (copy / case.damage[0]).write_bytes(case.damage[1])
        kept = [*_files(copy, target.own), *([case.keep] if case.keep else [])]
        before = {path: _digest(copy / path) for path in kept}
        status, err, grown = self._run(target, copy, case)
        code = os.waitstatus_to_exitcode(status)
        self.tally.tried += 1
        self.tally.codes[str(code)] += 1
        heard = case.streams is None  # who closed standard error hears nothing
        sentence = (err.strip().splitlines() or [""])[-1]
        if code < 0:
            kind = "hangs" if -code == signal.SIGALRM else "signals"
            self._fault(kind, f"{where}: {signal.Signals(-code).name}")
        elif code not in (0, 2, 128 + case.how if case.interrupt is not None else 0) or "Traceback" in err:
            self._fault("tracebacks", f"{where}: exit code {code}: {err[-3000:]}")
        elif code and heard and not sentence.startswith("normlens: "):
            self._fault("manners", f"{where}: {err!r}")
        if grown > _MOST_MEMORY:
            self._fault("memory", f"{where}: {grown / 2**20:.0f} MB")
        after = {path: _digest(copy / path) for path in before if (copy / path).exists()}
        for path in before:
            if after.get(path) != before[path]:
                self._fault("files lost", f"{where}: {path}")
        for draft in copy.rglob("*.draft"):
            self._fault("litter", f"{where}: {draft.relative_to(copy)}")
        for name in target.same if code == 0 and case.arguments is None else ():
            if not _same(copy / name, right / name):
                self._fault("wrong results", f"{where}: {name} differs")

    def _fault(self, kind: str, what: str) -> None:
        self.tally.faults.append(f"{kind}: {what}")

    def _run(self, target: Target, copy: Path, case: Case) -> tuple[int, str, int]:
        return self._forked(target, lambda: _command(target, copy, case))

    def _forked(self, target: Target, work: Callable[[], int | None]) -> tuple[int, str, int]:
        """The status of a process that does some work, what it wrote to standard error, and the memory that it took.

        This process itself never runs a model: one that has used its threads cannot be forked any more.
        """
        error_file = self.folder / target.name / "stderr"
        sys.stdout.flush()
        sys.stderr.flush()
        before = _resident()
        child = os.fork()
        if child == 0:
            code = 99
            try:
                signal.signal(signal.SIGALRM, signal.SIG_DFL)
                signal.signal(
                    signal.SIGINT, signal.default_int_handler
                )  # ignored by what a shell runs in the background
                signal.alarm(_LONGEST)
                os.fsync = lambda handle: None  # nothing here outlives the machine
                with error_file.open("w") as errors, _NOWHERE.open() as nothing, _NOWHERE.open("w") as nowhere:
                    os.dup2(nothing.fileno(), 0)
                    os.dup2(nowhere.fileno(), 1)
                    os.dup2(errors.fileno(), 2)
                    sys.stdin, sys.stdout, sys.stderr = nothing, nowhere, errors
                    code = work() or 0
            except BaseException:
                with error_file.open("a") as file:
                    traceback.print_exc(file=file)
            finally:
                os._exit(code)
        _, status, usage = os.wait4(child, 0)
        return status, error_file.read_text(errors="replace"), usage.ru_maxrss * 1024 - before


def _resident() -> int:
    """The memory that this process holds now: a fork begins with it, and not with the most that was ever held."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def _command(target: Target, copy: Path, case: Case) -> int:
    os.chdir(copy)
    os.environ["XDG_STATE_HOME"] = str(copy.parent / "state")
    if target.prepare is not None:
        target.prepare(copy)
    from normlens.cli import main

    sys.argv = ["normlens", *map(str, case.arguments or target.command(copy))]
    if case.surroundings is not None:
        case.surroundings(copy)
    if case.streams is not None:
        case.streams()
    key = threading.Timer(case.interrupt or 0.0, lambda: os.kill(os.getpid(), case.how))
    if case.interrupt is not None:
        signal.signal(signal.SIGTERM, lambda *_: None)  # before the command begins and after it has ended
        key.start()
    try:
        main.main()
    except SystemExit as stop:
        key.cancel()
        code = int(stop.code or 0)
    if code == 70:  # the traceback is in the log
        for log in sorted((copy.parent / "state").rglob("*.log"), key=lambda path: path.stat().st_mtime)[-1:]:
            (copy.parent / "stderr").write_text(log.read_text())
    if sys.stderr is not None:
        sys.stderr.flush()
    return code


def _files(folder: Path, own: Sequence[str]) -> list[str]:
    mine = {path for pattern in own for path in folder.glob(pattern)}
    return [
        str(path.relative_to(folder))
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path not in mine and not any(parent in mine for parent in path.parents)
    ]


def _same(one: Path, other: Path) -> bool:
    """Tables are equal to nine digits, other files to the last byte."""
    if one.suffix != ".parquet":
        return _digest(one) == _digest(other)
    import pandas as pd

    try:
        pd.testing.assert_frame_equal(pd.read_parquet(one), pd.read_parquet(other), rtol=1e-9, atol=1e-12)
    except AssertionError:
        return False
    return True


def _digest(path: Path) -> str:
    with suppress(OSError):
        return hashlib.sha256(path.read_bytes()).hexdigest()
    return "missing"


def main(targets: Sequence[Target], folder: Path, cases: int, interruptions: int, seed: int) -> int:
    """Attack every target, print what was found, and return an exit code."""
    quick_figures()
    campaign, start = Campaign(folder), time.monotonic()
    for target in targets:
        known = len(campaign.tally.faults)
        campaign.attack(target, cases, seed)
        if target.misused:
            campaign.misuse(target, cases, seed)
            campaign.interrupt(target, interruptions, seed)
        print(
            f"{target.name}: {campaign.tally.tried} cases so far, {len(campaign.tally.faults) - known} faults",
            flush=True,
        )
    for fault in campaign.tally.faults:
        print(fault)
    print(f"{campaign.tally.report()}; {time.monotonic() - start:.0f} s")
    return 1 if campaign.tally.faults else 0
