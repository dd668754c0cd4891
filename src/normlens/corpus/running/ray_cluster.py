"""A Ray cluster of this machine that cannot outlive its driver.

Where the driver starts Ray itself, the kernel ends what the driver started when the driver is killed, but not what *that*
has started: Ray's agents then try for a minute to reach a server that is gone. So a process of its own, the guardian, starts
the cluster. All of the cluster, and nothing else, descends from it; when the driver hangs up or is gone, the guardian kills
its descendants, removes the cluster's folder, and ends.

This file is also the guardian's script, which imports Ray and nothing of ours.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from contextlib import suppress
from typing import Any

_SECONDS_TO_END = 30  # after these a guardian that was told to end is killed; its children then go as Ray's do
_LOOK_EVERY = 0.2  # seconds; a forked child of the driver may hold the line open
_AUTHENTICATION = "RAY_AUTH_MODE"
_ADOPT_ORPHANS = 36  # PR_SET_CHILD_SUBREAPER in Linux


class LocalCluster:
    """A new Ray cluster on this machine, with `options` of `ray.init`; it ends when this process does, or before.

    Raises `ChildProcessError` with what Ray said where it did not start.
    """

    def __init__(self, **options: Any) -> None:
        self._guardian = subprocess.Popen(
            [sys.executable, "-P", __file__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,  # Ctrl-C is for the driver
        )
        assert self._guardian.stdin is not None and self._guardian.stdout is not None, "both are pipes"
        order = {"driver": os.getpid(), "path": [str(folder) for folder in sys.path], "options": options}
        try:
            with suppress(BrokenPipeError):  # it has ended already: the answer is empty
                self._guardian.stdin.write(json.dumps(order).encode() + b"\n")
                self._guardian.stdin.flush()
            answer = json.loads(self._guardian.stdout.readline() or b"{}")
            if "address" not in answer:
                raise ChildProcessError(answer.get("error", "the process that starts Ray has ended"))
        except BaseException:
            self.close()
            raise
        self.address: str = answer["address"]
        self.folder: str = answer["folder"]
        self._authentication: str | None = answer["authentication"]

    def connect(self, ray: Any, **options: Any) -> None:
        """Make this process a driver of the cluster."""
        if self._authentication != os.environ.get(_AUTHENTICATION):
            # Ray asks for a token where it starts a cluster; where it has to show one, it must be told.
            os.environ[_AUTHENTICATION] = self._authentication or "disabled"
            ray._raylet.Config.initialize("")
        ray.init(address=self.address, **options)

    def close(self) -> None:
        """End all of the cluster's processes, and wait until they are gone."""
        assert self._guardian.stdin is not None and self._guardian.stdout is not None, "both are pipes"
        with suppress(BrokenPipeError):
            self._guardian.stdin.close()
        try:
            self._guardian.wait(_SECONDS_TO_END)
        except subprocess.TimeoutExpired:
            self._guardian.kill()
            self._guardian.wait()
        self._guardian.stdout.close()


# ---- the guardian -----------------------------------------------------------------------------------------------------


def _guard() -> None:
    """Start a cluster, say where it is, and wait for the driver's end."""
    import tempfile
    import threading

    line = sys.stdin.buffer.readline()
    if not line.endswith(b"\n"):
        return  # the driver was gone before it had said anything
    order = json.loads(line)
    sys.path[:] = order["path"]
    if sys.platform == "linux":
        import ctypes

        ctypes.CDLL(None).prctl(_ADOPT_ORPHANS, 1, 0, 0, 0)  # so that all that Ray starts stays below this process
    # The sockets in it must have short names, which macOS's own folder for temporary files does not allow.
    place = os.environ.get("RAY_TMPDIR", "/tmp" if sys.platform == "darwin" else None)
    folder = tempfile.mkdtemp(prefix="ray-", dir=place)
    watch = threading.Thread(target=_end_with, args=(order["driver"], folder))
    watch.start()
    answer: dict[str, Any] = {"folder": folder}
    try:
        import ray

        # In the main thread: the kernel ends what a thread has started when that thread ends.
        context = ray.init(address="local", _temp_dir=folder, **order["options"])
        answer |= {"address": context.address_info["address"], "authentication": os.environ.get(_AUTHENTICATION)}
    except Exception as error:
        answer["error"] = (str(error).splitlines() or [type(error).__name__])[0]
    print(json.dumps(answer), flush=True)
    watch.join()


def _end_with(driver: int, folder: str) -> None:
    """Wait until the driver hangs up or is gone, then end everything."""
    import select
    import shutil

    if sys.platform == "win32":
        os.read(0, 1)  # `select` takes no pipes there, and nothing is forked
    else:
        while os.getppid() == driver and not select.select([0], [], [], _LOOK_EVERY)[0]:
            pass
    with suppress(ImportError):  # Ray, which brings it, is not imported yet: there is nothing to end
        _kill_descendants()
    shutil.rmtree(folder, ignore_errors=True)
    os._exit(0)


def _kill_descendants() -> None:
    """Parents before their children, and again until nobody is left: what is being started is seen the next time."""
    import psutil

    while family := [process for process in psutil.Process().children(recursive=True) if _runs(process)]:
        for process in family:
            with suppress(psutil.Error):
                process.kill()
        psutil.wait_procs(family, timeout=0.5)


def _runs(process: Any) -> bool:
    import psutil

    try:
        return bool(process.status() != psutil.STATUS_ZOMBIE)
    except psutil.Error:
        return False


if __name__ == "__main__":
    _guard()
