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

from normlens.corpus.api import corpus_statistics
from normlens.corpus.result import open_corpus

from .conftest import paragraphs
from .test_run import RANKS, same

ROOT = Path(__file__).parents[2]

#: A run in a process of its own, slow enough to be killed in the middle.
_SCRIPT = """
import sys, time
from pathlib import Path
import numpy as np
import torch
torch.set_num_threads(1)
from normlens.corpus import run as running
from normlens.corpus.api import corpus_statistics
from normlens.lens import Lens
from tests.corpus.conftest import tiny_bert, tiny_tokenizer
running.UNIT = 4

def slow(step):
    Path(sys.argv[2] + ".progress").write_text(str(step.sequences))
    time.sleep(float(sys.argv[3]))

lens = Lens(tiny_bert(), tiny_tokenizer(), name="tiny")
corpus_statistics(
    lens, sys.argv[1], sys.argv[2], mask=0.12, per_token=True, save_every=0.0, progress=slow,
    covariates={"rank": np.arange(20, dtype=float) % 7},
)
"""


def _start(source: Path, out: Path, pause: float) -> subprocess.Popen[bytes]:
    environment = {**os.environ, "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}"}
    return subprocess.Popen(
        [sys.executable, "-c", _SCRIPT, str(source), str(out), str(pause)], env=environment, cwd=ROOT
    )


def test_a_killed_run_gives_the_undisturbed_answer(lens, tmp_path: Path, monkeypatch) -> None:
    from normlens.corpus import run as running

    source = tmp_path / "corpus.txt"
    source.write_text("\n".join(paragraphs(40, seed=6)))
    progress = tmp_path / "out.progress"
    process = _start(source, tmp_path / "out", 0.3)
    deadline = time.monotonic() + 120
    while not progress.exists() or int(progress.read_text() or 0) < 12:
        assert process.poll() is None and time.monotonic() < deadline, "the run ended before it could be killed"
        time.sleep(0.02)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert not (tmp_path / "out" / "manifest.json").exists()
    assert _start(source, tmp_path / "out", 0.0).wait(timeout=120) == 0
    resumed = open_corpus(tmp_path / "out")
    monkeypatch.setattr(running, "UNIT", 4)
    whole = corpus_statistics(lens, source, tmp_path / "whole", mask=0.12, per_token=True, covariates={"rank": RANKS})
    same(resumed, whole)
    pd.testing.assert_frame_equal(resumed.tokens, whole.tokens, rtol=1e-9)
    assert resumed.manifest["counts"] == whole.manifest["counts"]


@pytest.mark.real  # starting Ray and its actors takes more than a minute on a busy machine
def test_ray_gives_the_local_answer_though_a_worker_is_killed(lens, tmp_path: Path, monkeypatch) -> None:
    ray = pytest.importorskip("ray")
    from normlens.corpus import run as running

    monkeypatch.setattr(running, "UNIT", 4)
    monkeypatch.setenv("PYTHONPATH", f"{ROOT / 'src'}:{ROOT}")
    source = tmp_path / "corpus.txt"
    source.write_text("\n".join(paragraphs(60, seed=7)))
    options = {"mask": 0.12, "per_token": True, "covariates": {"rank": RANKS}}
    local = corpus_statistics(lens, source, tmp_path / "local", **options)
    killed: list[int] = []

    def kill_one(step) -> None:
        workers = [pid for pid in _ray_workers() if pid not in killed]
        if not killed and workers:
            killed.append(workers[0])
            os.kill(workers[0], signal.SIGKILL)

    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="error")
    try:
        distributed = corpus_statistics(
            lens, source, tmp_path / "ray", engine="ray", workers=2, progress=kill_one, **options
        )
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
            if "MapWorker" in " ".join(process.cmdline()):
                found.append(process.pid)
    return found
