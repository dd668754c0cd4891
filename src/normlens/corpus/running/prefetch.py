"""Reading ahead: the next items of an iterator are made by a second thread while the first works on the last one."""

from __future__ import annotations

import queue
import threading
from collections.abc import Generator, Iterable
from typing import TypeVar

_Item = TypeVar("_Item")


def prefetched(items: Iterable[_Item], ahead: int) -> Generator[_Item, None, None]:
    """The same items, up to `ahead` of them made beforehand; 0 makes each when it is asked for.

    An error is raised where its item would have been. Who stops early leaves no thread behind.

    >>> list(prefetched(iter("abc"), 2))
    ['a', 'b', 'c']
    """
    if not ahead:
        yield from items
        return
    made: queue.Queue[tuple[str, object]] = queue.Queue(ahead)
    stopped = threading.Event()

    def put(kind: str, value: object) -> None:
        while not stopped.is_set():
            try:
                made.put((kind, value), timeout=0.1)
                return
            except queue.Full:
                continue

    def work() -> None:
        try:
            for item in items:
                put("item", item)
                if stopped.is_set():
                    return
            put("end", None)
        except BaseException as error:
            put("error", error)

    thread = threading.Thread(target=work, name="normlens-read-ahead", daemon=True)
    thread.start()
    try:
        while (entry := made.get())[0] == "item":
            yield entry[1]  # type: ignore[misc]
        if isinstance(entry[1], BaseException):
            raise entry[1]
    finally:
        stopped.set()
        thread.join()
