"""Turn work that hands its results to a callback into an iterator, one result at a time.

A forward pass pushes its sites out; a caller of `stream` pulls them. The work runs in a thread of its own that waits
after each result until the next one is asked for, so at most one result is alive besides the one being looked at.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator
from typing import TypeVar

Item = TypeVar("Item")


class _Abandoned(BaseException):
    """Raised inside the work when nobody will ask for its results any more."""


def iterate(work: Callable[[Callable[[Item], None]], None]) -> Iterator[Item]:
    """Iterate over what `work` gives to its callback."""
    results: queue.Queue[tuple[str, object]] = queue.Queue(maxsize=1)
    wanted = threading.Semaphore(0)
    abandoned = threading.Event()

    def hand_over(item: Item) -> None:
        results.put(("item", item))
        wanted.acquire()
        if abandoned.is_set():
            raise _Abandoned

    def run() -> None:
        wanted.acquire()
        try:
            if not abandoned.is_set():
                work(hand_over)
        except _Abandoned:
            return
        except BaseException as error:
            results.put(("error", error))
            return
        results.put(("end", None))

    thread = threading.Thread(target=run, name="normlens-stream", daemon=True)
    thread.start()
    try:
        while True:
            wanted.release()
            what, content = results.get()
            if what == "error":
                assert isinstance(content, BaseException)
                raise content
            if what == "end":
                return
            yield content  # type: ignore[misc]
    finally:
        abandoned.set()
        wanted.release()
        thread.join()
