"""Runs that are disturbed at some moment, and what becomes of them.

Each fault starts a corpus run over sequences of full length in a process of its own, does it some harm, then lets an
undisturbed run finish in the same folder. The tables must be those of a run that nobody disturbed.
"""

from __future__ import annotations

import ctypes
import os
import random
import resource
import signal
import sys
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import psutil
import torch
import transformers

from normlens.corpus import batches
from normlens.corpus.result import CorpusResult, open_corpus
from normlens.lens import Lens

from ..corpus.conftest import TABLES, WORDS, tiny_tokenizer

LENGTH = 128
SEQUENCES = 24
CHUNK = 4
RANKS = np.arange(20, dtype=float) % 7


def lens() -> Lens:
    """A BERT that takes sequences of full length, small enough that a run takes seconds."""
    torch.manual_seed(0)
    config = transformers.BertConfig(
        vocab_size=5 + len(WORDS), hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64,
        max_position_embeddings=LENGTH, initializer_range=0.5,
    )  # fmt: skip
    return Lens(transformers.BertModel(config).eval(), tiny_tokenizer(LENGTH), name="small")


def write_corpus(path: Path) -> Path:
    rng = np.random.default_rng(0)
    path.write_text("\n".join(" ".join(rng.choice(WORDS, size=2 * LENGTH)) for _ in range(SEQUENCES)) + "\n")
    return path


def run(model: Lens, source: Path, out: Path, **options: Any) -> CorpusResult:
    """The run that everything here is about."""
    batches.CHUNK_SIZE = CHUNK
    chosen: dict[str, Any] = {"mask": 0.12, "per_token": True, "covariates": {"rank": RANKS}, "range_seconds": 0.0}
    return model.corpus(source, out, **{**chosen, **options})


def largest_difference(one: CorpusResult, other: CorpusResult) -> float:
    """Of two runs' tables, relative (to a thousandth where numbers are smaller); infinite where counts or keys differ."""
    worst = 0.0
    pairs = [(getattr(one, name), getattr(other, name)) for name in TABLES]
    if one.manifest["per_token"]:
        pairs.append((one.tokens, other.tokens))
    for a, b in pairs:
        if list(a.columns) != list(b.columns) or len(a) != len(b):
            return float("inf")
        for name in a.columns:
            if a[name].dtype.kind != "f":
                if not a[name].equals(b[name]):
                    return float("inf")
                continue
            x, y = a[name].to_numpy(), b[name].to_numpy()
            if (np.isnan(x) != np.isnan(y)).any():
                return float("inf")
            scale = np.maximum(np.maximum(abs(x), abs(y)), 1e-3)
            worst = max(worst, float(pd.Series(abs(x - y) / scale).fillna(0.0).max()))
    return worst


# ---- processes --------------------------------------------------------------------------------------------------------


@dataclass
class Driver:
    """A run in a forked process; what it says goes to a file."""

    pid: int
    errors: Path
    code: int | None = None

    def poll(self) -> int | None:
        if self.code is None:
            found, status = os.waitpid(self.pid, os.WNOHANG)
            self.code = os.waitstatus_to_exitcode(status) if found else None
        return self.code

    def wait(self) -> int:
        while self.poll() is None:
            time.sleep(0.01)
        assert self.code is not None
        return self.code

    def kill(self) -> float:
        """Kill it without a word; returns the seconds after which the last of its processes was gone.

        With `adopt_orphans` also those that it was about to start are seen.
        """
        family = psutil.Process(self.pid).children(recursive=True)
        others = set(psutil.Process().children(recursive=True)) - {*family, psutil.Process(self.pid)}
        os.kill(self.pid, signal.SIGKILL)
        self.wait()
        start = last = time.monotonic()
        while time.monotonic() - start < 300:
            left = {*family, *psutil.Process().children(recursive=True)} - others
            if any(map(_runs, left)):
                last = time.monotonic()
            elif time.monotonic() - last > 1:
                break
            time.sleep(0.02)
        return last - start

    def workers(self) -> list[psutil.Process]:
        """Processes that count, of a pool or of Ray, also those that are only starting."""
        found = []
        for process in psutil.Process(self.pid).children(recursive=True):
            with suppress(psutil.Error):
                line = " ".join(process.cmdline())
                of_ray = line.startswith(("ray::IDLE", "ray::normlens"))
                if of_ray or ("spawn_main" in line and "resource_tracker" not in line):
                    found.append(process)
        return found


def adopt_orphans() -> None:
    """From now on, on Linux, a descendant whose parent dies becomes a child of this process, so that it can be seen."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)  # PR_SET_CHILD_SUBREAPER


def _runs(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False


def start(work: Callable[[], object], errors: Path) -> Driver:
    """Do something in a forked process; a normlens error ends it with code 2, as the shell does."""
    pid = os.fork()
    if pid:
        return Driver(pid, errors)
    code = 1
    try:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)  # a file that grows too large is an error, not a signal
        with errors.open("w") as file:
            os.dup2(file.fileno(), 2)
            from normlens.errors import NormlensError

            try:
                work()
                code = 0
            except NormlensError as error:
                file.write(f"{error}\n")
                code = 2
            except BaseException:
                traceback.print_exc(file=file)
    finally:
        os._exit(code)


# ---- faults -----------------------------------------------------------------------------------------------------------


@dataclass
class Outcome:
    """What one moment showed."""

    fault: str
    at: str
    shards: int  # when the harm was done
    difference: float
    orphans: float = 0.0  # seconds that a process survived its driver
    note: str = ""


@dataclass
class Bench:
    """A model, a corpus, the right answer, and how long it takes."""

    folder: Path
    model: Lens = field(default_factory=lens)
    seed: int = 0

    def __post_init__(self) -> None:
        self.rng = random.Random(self.seed)
        self.source = write_corpus(self.folder / "corpus.txt")
        self.right = self._undisturbed(self.folder / "right")
        self._number = 0
        self._seconds: dict[str, float] = {}

    def seconds(self, engine: str, /, **options: Any) -> float:
        """How long an undisturbed run takes, its process included."""
        if engine not in self._seconds:
            begin = time.monotonic()
            out = self._fresh()
            driver = self._start(out, **options)
            assert driver.wait() == 0, driver.errors.read_text()
            self._seconds[engine] = time.monotonic() - begin
        return self._seconds[engine]

    def _undisturbed(self, out: Path) -> CorpusResult:
        """A run to its end, in a process of its own too: one that has used its threads cannot be forked any more."""
        driver = self._start(out)
        assert driver.wait() == 0, driver.errors.read_text()
        return open_corpus(out)

    def _fresh(self) -> Path:
        self._number += 1
        return self.folder / f"out-{self._number:03d}"

    def _start(self, out: Path, before: Callable[[], None] | None = None, **options: Any) -> Driver:
        def work() -> None:
            if before is not None:
                before()
            run(self.model, self.source, out, **options)

        return start(work, out.with_suffix(".err"))

    def _finish(self, fault: str, at: str, out: Path, shards: int, orphans: float = 0.0, note: str = "") -> Outcome:
        again = self._undisturbed(out)
        return Outcome(fault, at, shards, largest_difference(again, self.right), orphans, note)

    def driver_killed(self, engine: str, /, **options: Any) -> Outcome:
        """`kill -9` of the driver at any moment, also before the first shard and after the last."""
        at = self.rng.uniform(0.0, self.seconds(engine, **options))
        out = self._fresh()
        driver = self._start(out, **options)
        time.sleep(at)
        ended = driver.poll() is not None
        orphans = 0.0 if ended else driver.kill()
        shards = len(list(out.glob("unfinished/*.shard")))
        return self._finish(
            f"{engine}: driver killed", f"{at:.1f} s", out, shards, orphans, "had ended" if ended else ""
        )

    def worker_killed(self, engine: str, /, **options: Any) -> Outcome:
        """`kill -9` of a worker at any moment, also while it starts; the driver must finish by itself."""
        at = self.rng.uniform(0.0, 0.9 * self.seconds(engine, **options))
        out = self._fresh()
        driver = self._start(out, **options)
        time.sleep(at)
        while driver.poll() is None and not (workers := driver.workers()):
            time.sleep(0.01)
        note = "had ended"
        if driver.poll() is None:
            victim = self.rng.choice(workers)
            with suppress(psutil.Error):
                victim.kill()
                note = ""
        shards = len(list(out.glob("unfinished/*.shard")))
        code = driver.wait()
        if code:
            note = f"the driver ended with {code}: {driver.errors.read_text()[-300:]}"
        return self._finish(f"{engine}: worker killed", f"{at:.1f} s", out, shards, 0.0, note)

    def killed_while_writing(self, number: int, **options: Any) -> Outcome:
        """The process dies in the middle of its `number`-th file: the content is there, and not yet flushed."""
        out = self._fresh()

        def before() -> None:
            flush, count = os.fsync, [0]

            def deadly(handle: int) -> None:
                count[0] += 1
                if count[0] == number:
                    os.kill(os.getpid(), signal.SIGKILL)
                flush(handle)

            os.fsync = deadly

        driver = self._start(out, before, **options)
        code = driver.wait()
        shards = len(list(out.glob("unfinished/*.shard")))
        note = "" if code == -signal.SIGKILL else f"ended with {code}"
        return self._finish("local: killed while writing", f"file {number}", out, shards, 0.0, note)

    def disk_full(self, after: int) -> Outcome:
        """After so many chunks no file may grow beyond a few bytes, as on a disk that is full."""
        out = self._fresh()

        def fill(step: Any) -> None:
            if step.sequences >= after * CHUNK:
                resource.setrlimit(resource.RLIMIT_FSIZE, (4096, resource.RLIM_INFINITY))

        driver = self._start(out, progress=fill)
        code, said = driver.wait(), driver.errors.read_text()
        note = "" if code == 2 and "must be writable" in said else f"ended with {code}: {said[-300:]}"
        return self._finish(
            "local: disk full", f"chunk {after}", out, len(list(out.glob("unfinished/*.shard"))), 0.0, note
        )

    def two_at_once(self) -> Outcome:
        """Two runs on one folder: one finishes, the other is refused or finds it finished."""
        out = self._fresh()
        both = [self._start(out), start(lambda: run(self.model, self.source, out), out.with_suffix(".err2"))]
        codes = sorted(driver.wait() for driver in both)
        said = "".join(driver.errors.read_text() for driver in both)
        fine = codes == [0, 0] or (codes == [0, 2] and "is locked by another normlens process" in said)
        return self._finish("local: two at once", "", out, 0, 0.0, "" if fine else f"ended with {codes}: {said[-300:]}")
