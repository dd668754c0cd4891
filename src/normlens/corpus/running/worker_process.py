"""A worker process from its first moment to its last. Nothing heavy is imported before it watches for its driver's death."""

from __future__ import annotations

import multiprocessing
import multiprocessing.connection
import os
import signal
import threading
import traceback
from typing import Any


def serve(connection: Any) -> None:
    """Ask for a model, then do tasks until there are no more; the driver's death ends the process at once."""
    watch_driver()
    try:
        connection.send(("hello", None))
        model, tokenizer, assignment, threads = connection.recv()
        try:
            worker = _worker(model, tokenizer, assignment, threads)
        except Exception as error:
            connection.send(("failed", _portable(error)))
            return
        connection.send(("ready", None))
        while (task := connection.recv()) is not None:
            try:
                connection.send(("done", worker.do(task, lambda count: connection.send(("counted", count)))))
            except Exception as error:
                connection.send(("failed", _portable(error)))
    except (EOFError, OSError):  # the driver has hung up
        return


def watch_driver() -> None:
    """From now on this process ends when its driver does, and leaves interruptions to it."""
    threading.Thread(target=_die_with_the_driver, daemon=True).start()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the driver decides what an interruption means


def _worker(model: Any, tokenizer: Any, assignment: Any, threads: int) -> Any:
    import torch

    from normlens.corpus.running.shard_worker import ShardWorker
    from normlens.lens import Lens

    torch.set_num_threads(threads)
    return ShardWorker(Lens(model, tokenizer), assignment)


def _die_with_the_driver() -> None:
    driver = multiprocessing.parent_process()
    assert driver is not None, "a worker process is started by a driver"
    multiprocessing.connection.wait([driver.sentinel])
    os._exit(1)


def _portable(error: Exception) -> Exception:
    """The error as it can be sent, with its traceback as a note."""
    import pickle

    try:
        pickle.loads(pickle.dumps(error))
        sent = error
    except Exception:  # an exception of somebody else's library may hold anything
        sent = RuntimeError(f"{type(error).__name__}: {error}")
    sent.add_note("in a worker process:\n" + "".join(traceback.format_exception(error)))
    return sent
