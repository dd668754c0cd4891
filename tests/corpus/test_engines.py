"""Engines under fire: a killed run, a killed worker, a real Ray."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pandas as pd
import pytest

from normlens.corpus import batches
from normlens.corpus.result import open_corpus

from .conftest import RANKS, paragraphs, same

ROOT = Path(__file__).parents[2]

#: A run in a process of its own, slow enough to be killed in the middle.
_SCRIPT = """
import sys, time
from pathlib import Path
import numpy as np
import torch
torch.set_num_threads(1)
from normlens.corpus import batches
from normlens.lens import Lens
from tests.corpus.conftest import tiny_bert, tiny_tokenizer
batches.CHUNK_SIZE = 4

def slow(step):
    Path(sys.argv[2] + ".progress").write_text(str(step.sequences))
    time.sleep(float(sys.argv[3]))

lens = Lens(tiny_bert(), tiny_tokenizer(), name="tiny")
lens.corpus(
    sys.argv[1], sys.argv[2], mask=0.12, per_token=True, range_seconds=0.0, progress=slow,
    covariates={"rank": np.arange(20, dtype=float) % 7},
)
"""


def _start(source: Path, out: Path, pause: float) -> subprocess.Popen[bytes]:
    environment = {**os.environ, "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}"}
    return subprocess.Popen(
        [sys.executable, "-c", _SCRIPT, str(source), str(out), str(pause)], env=environment, cwd=ROOT
    )


def test_a_killed_run_gives_the_undisturbed_answer(lens, tmp_path: Path, monkeypatch) -> None:
    source = tmp_path / "corpus.txt"
    source.write_text("\n".join(paragraphs(40, seed=6)))
    progress = tmp_path / "out.progress"
    process = _start(source, tmp_path / "out", 0.3)
    while not progress.exists() or int(progress.read_text() or 0) < 12:  # however busy the machine is
        assert process.poll() is None, "the run ended before it could be killed"
        time.sleep(0.02)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert not (tmp_path / "out" / "manifest.json").exists()
    assert _start(source, tmp_path / "out", 0.0).wait() == 0
    resumed = open_corpus(tmp_path / "out")
    monkeypatch.setattr(batches, "CHUNK_SIZE", 4)
    whole = lens.corpus(source, tmp_path / "whole", mask=0.12, per_token=True, covariates={"rank": RANKS})
    same(resumed, whole)
    pd.testing.assert_frame_equal(resumed.tokens, whole.tokens, rtol=1e-9)
    assert resumed.manifest["counts"] == whole.manifest["counts"]


#: A pool in a process of its own; each of its workers leaves its number in a folder as soon as it runs.
_POOL = """
import os, sys
from pathlib import Path
import torch
torch.set_num_threads(1)

def main():
    from normlens.corpus import batches
    from normlens.lens import Lens
    from tests.corpus.conftest import tiny_bert, tiny_tokenizer
    batches.CHUNK_SIZE = 4
    lens = Lens(tiny_bert(), tiny_tokenizer(), name="tiny")
    lens.corpus(sys.argv[1], sys.argv[2], workers=2, range_seconds=0.0)

if __name__ == "__main__":
    main()
elif os.environ.get("NOTE_WORKERS"):
    Path(os.environ["NOTE_WORKERS"], str(os.getpid())).touch()
"""


@pytest.fixture
def pool(tmp_path: Path):
    """Start a pool's driver; returns it and the folder in which its workers note themselves."""
    (tmp_path / "pool.py").write_text(_POOL)
    (tmp_path / "workers").mkdir()
    started: list[subprocess.Popen[str]] = []

    def start(source: Path, out: Path) -> tuple[subprocess.Popen[str], Path]:
        paths = f"{ROOT / 'src'}:{ROOT}"
        environment = {**os.environ, "PYTHONPATH": paths, "NOTE_WORKERS": str(tmp_path / "workers")}
        command = [sys.executable, str(tmp_path / "pool.py"), str(source), str(out)]
        process = subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True)
        started.append(process)
        return process, tmp_path / "workers"

    yield start
    for process in started:
        process.kill()
        process.wait()


def _until(happened, process: subprocess.Popen[str]) -> None:
    """Wait for something, however busy the machine is; a driver that ended will not do it any more."""
    while not happened():
        assert process.poll() is None, process.stderr.read()
        time.sleep(0.01)


def _alive(pid: int) -> bool:
    import psutil

    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def test_a_worker_killed_while_it_starts_is_replaced(lens, tmp_path: Path, pool, monkeypatch) -> None:
    source = tmp_path / "corpus.txt"
    source.write_text("\n".join(paragraphs(24, seed=8)))
    process, notes = pool(source, tmp_path / "out")
    _until(lambda: list(notes.iterdir()), process)
    for note in list(notes.iterdir()):
        with suppress(ProcessLookupError):
            os.kill(int(note.name), signal.SIGKILL)
    assert process.wait() == 0, process.stderr.read()
    monkeypatch.setattr(batches, "CHUNK_SIZE", 4)
    found = open_corpus(tmp_path / "out")
    same(found, lens.corpus(source, tmp_path / "whole"))
    assert len(list(notes.iterdir())) > 2, "a new worker took the place of the dead one"


def test_workers_that_keep_dying_end_in_a_sentence(tmp_path: Path, pool) -> None:
    source = tmp_path / "corpus.txt"
    source.write_text("\n".join(paragraphs(24, seed=8)))
    process, notes = pool(source, tmp_path / "out")
    killed: set[str] = set()
    while process.poll() is None:
        for note in [path for path in notes.iterdir() if path.name not in killed]:
            killed.add(note.name)
            with suppress(ProcessLookupError):
                os.kill(int(note.name), signal.SIGKILL)
        time.sleep(0.005)
    assert process.returncode != 0 and "worker processes died 3 times in a row" in process.stderr.read()


def test_no_worker_survives_its_driver(tmp_path: Path, pool) -> None:
    source = tmp_path / "corpus.txt"
    source.write_text("\n".join(paragraphs(4000, seed=8)))
    process, notes = pool(source, tmp_path / "out")
    _until(lambda: len(list(notes.iterdir())) == 2, process)
    workers = [int(note.name) for note in notes.iterdir()]
    process.kill()
    process.wait()
    start = time.process_time(), time.monotonic()
    # Five seconds; on a busy machine, as long as it takes a process that is woken up to be given a turn.
    while any(map(_alive, workers)) and time.monotonic() - start[1] < 120:
        time.sleep(0.05)
    assert not any(map(_alive, workers))


@pytest.mark.real  # starting Ray and its actors takes a while on a busy machine
def test_ray_gives_the_local_answer_though_a_worker_is_killed(lens, tmp_path: Path, monkeypatch) -> None:
    ray = pytest.importorskip("ray")
    monkeypatch.setattr(batches, "CHUNK_SIZE", 4)
    monkeypatch.setenv("PYTHONPATH", f"{ROOT / 'src'}:{ROOT}")
    source = tmp_path / "corpus.txt"
    source.write_text("\n".join(paragraphs(60, seed=7)))
    options = {"mask": 0.12, "per_token": True, "covariates": {"rank": RANKS}}
    local = lens.corpus(source, tmp_path / "local", **options)
    killed: list[int] = []

    def kill_one(step) -> None:
        workers = [pid for pid in _ray_workers() if pid not in killed]
        if not killed and workers:
            killed.append(workers[0])
            os.kill(workers[0], signal.SIGKILL)

    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="error")
    try:
        distributed = lens.corpus(source, tmp_path / "ray", engine="ray", workers=2, progress=kill_one, **options)
    finally:
        ray.shutdown()
    assert killed, "no worker was found to be killed"
    same(local, distributed)
    pd.testing.assert_frame_equal(local.tokens, distributed.tokens, rtol=1e-9)
    assert distributed.manifest["engine"]["name"] == "ray"


def _ray_workers() -> list[int]:
    """Processes of this test's Ray that hold the model."""
    import psutil

    found = []
    for process in psutil.Process().children(recursive=True):
        with suppress(psutil.Error):  # Ray's other processes come and go: this one may be gone, or about to be
            if " ".join(process.cmdline()).startswith(("ray::IDLE", "ray::normlens")):
                found.append(process.pid)
    return found
