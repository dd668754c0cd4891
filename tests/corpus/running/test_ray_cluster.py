"""A Ray cluster that was started here ends with its driver, however that ends; one that somebody else started does not."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from normlens.corpus.running import ray_cluster
from normlens.corpus.running.ray_cluster import LocalCluster

ROOT = Path(__file__).parents[3]

#: A driver that starts a cluster, or joins the one whose address is given, has an actor at work there, and waits.
_DRIVER = """
import sys, time
from normlens.corpus.running.ray_engine import RayEngine

engine = RayEngine(address=sys.argv[1] if len(sys.argv) > 1 else None)
ray = engine._connected()
print(engine._cluster.folder if engine._cluster else "", flush=True)

@ray.remote
class Actor:
    def ready(self):
        return True

actor = Actor.remote()
print(ray.get(actor.ready.remote()), flush=True)
time.sleep(600)
"""


@pytest.fixture
def environment(monkeypatch) -> Iterator[None]:
    monkeypatch.setenv("PYTHONPATH", f"{ROOT / 'src'}:{ROOT}")
    monkeypatch.setenv("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")
    monkeypatch.setenv("RAY_worker_niceness", "0")
    yield


def _driver(cluster: LocalCluster | None) -> tuple[subprocess.Popen[str], str]:
    """A driver, and the folder of the cluster that it has started."""
    # Who is given the address of somebody else's cluster must know by himself how to be let in.
    known = {} if cluster is None else {"RAY_AUTH_MODE": cluster._authentication or "disabled"}
    command = [sys.executable, "-c", _DRIVER, *([] if cluster is None else [cluster.address])]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env={**os.environ, **known})
    assert process.stdout is not None
    return process, process.stdout.readline().strip()


def _running(processes: list[psutil.Process]) -> list[str]:
    found = []
    for process in processes:
        try:
            if process.status() != psutil.STATUS_ZOMBIE:
                found.append(process.name())
        except psutil.NoSuchProcess:
            pass
    return found


def _gone(processes: list[psutil.Process]) -> bool:
    """Five seconds; on a busy machine, half of what Ray's own agents take to give up."""
    start = time.monotonic()
    while _running(processes) and time.monotonic() - start < 30:
        time.sleep(0.05)
    return not _running(processes)


@pytest.mark.real  # starting Ray three times takes more than a minute on a busy machine
def test_a_killed_driver_takes_its_own_cluster_along_and_no_other(environment) -> None:
    pytest.importorskip("ray")
    somebodys = LocalCluster(include_dashboard=False, num_cpus=1, object_store_memory=80 << 20)
    try:
        theirs = psutil.Process(somebodys._guardian.pid).children(recursive=True)
        for joined in (None, somebodys):
            driver, folder = _driver(joined)
            assert driver.stdout is not None and driver.stdout.readline().strip() == "True"
            family = psutil.Process(driver.pid).children(recursive=True)
            assert bool(family) == bool(folder) == (joined is None), "a driver with an address starts nothing"
            driver.kill()
            driver.wait()
            assert _gone(family), f"these outlived their driver: {_running(family)}"
            assert not folder or not Path(folder).exists()
        assert _running(theirs) and {"raylet", "gcs_server"} <= set(_running(theirs))
    finally:
        somebodys.close()
    assert _gone(theirs) and not Path(somebodys.folder).exists()


@pytest.mark.real
@pytest.mark.parametrize("seconds", [0.0, 1.0, 3.0])
def test_a_driver_that_is_killed_while_its_cluster_starts(seconds: float, environment) -> None:
    pytest.importorskip("ray")
    process = subprocess.Popen([sys.executable, "-c", _DRIVER], stdout=subprocess.PIPE)
    driver = psutil.Process(process.pid)
    _until(lambda: driver.children())
    time.sleep(seconds)
    family = driver.children(recursive=True)
    process.kill()
    process.wait()
    assert _gone(family), f"these outlived their driver: {_running(family)}"


def _until(holds: Callable[[], object]) -> None:
    start = time.monotonic()
    while not holds():
        assert time.monotonic() - start < 300, "it never came to that"
        time.sleep(0.01)


def test_a_cluster_that_cannot_start_says_why(monkeypatch, tmp_path: Path) -> None:
    (tmp_path / "ray.py").write_text("def init(**options):\n    raise RuntimeError('no room\\nfor a node')\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    before = set(psutil.Process().children(recursive=True))
    with pytest.raises(ChildProcessError, match=r"^no room$"):
        LocalCluster()
    assert _gone([*set(psutil.Process().children(recursive=True)) - before])


def test_a_guardian_ends_what_descends_from_it_and_its_folder(monkeypatch, tmp_path: Path) -> None:
    """Without Ray: a process, a process of that process, and one whose parent is gone."""
    (tmp_path / "ray.py").write_text(_PRETENDED)
    monkeypatch.syspath_prepend(str(tmp_path))
    cluster = LocalCluster(sleep="600")
    assert cluster.address == "nowhere:1" and Path(cluster.folder).is_dir()
    guardian = psutil.Process(cluster._guardian.pid)
    _until(lambda: len(guardian.children(recursive=True)) == (4 if sys.platform == "linux" else 2))
    family = guardian.children(recursive=True)
    cluster.close()
    assert not _running(family) and not Path(cluster.folder).exists()
    assert cluster._guardian.returncode == 0, "it ended by itself"


#: Starts a shell that waits for its child, and one whose child outlives it.
_PRETENDED = """
import subprocess, types

def init(address, _temp_dir, sleep):
    subprocess.Popen(["sh", "-c", f"sleep {sleep}; true"])
    subprocess.run(["sh", "-c", f"sh -c 'sleep {sleep}; true' &"])
    return types.SimpleNamespace(address_info={"address": "nowhere:1"})
"""


def test_a_guardian_whose_driver_said_nothing_starts_nothing() -> None:
    done = subprocess.run([sys.executable, "-P", ray_cluster.__file__], input=b"", capture_output=True, timeout=300)
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")
