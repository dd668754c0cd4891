"""Engines: who counts the chunks. The numbers do not depend on it: all of them fill the same folder with shards."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Protocol

from normlens.corpus.counting.worker import Chunk
from normlens.corpus.running.crews import Accounts, ProcessCrew, work_through
from normlens.corpus.running.shard_worker import Assignment, ShardWorker
from normlens.corpus.running.shards import Shard
from normlens.errors import InputError

if TYPE_CHECKING:
    from normlens.lens import Lens


class Engine(Protocol):
    """Has chunks counted into shards."""

    name: str
    workers: int
    accounts: Accounts

    def run(self, lens: Lens, assignment: Assignment, chunks: Iterable[Chunk], done: Iterable[Shard]) -> Iterator[int]:
        """Have every chunk counted; yields how many sequences were. `done` are the shards that are there already."""


class InProcess:
    """This process does the work; its one shard grows."""

    name, workers = "local", 1

    def __init__(self) -> None:
        self.accounts = Accounts()

    def run(self, lens: Lens, assignment: Assignment, chunks: Iterable[Chunk], done: Iterable[Shard]) -> Iterator[int]:
        """Count every chunk; yields how many sequences were."""
        worker, counted, start = ShardWorker(lens, assignment), False, time.process_time()
        for chunk in chunks:
            worker.count(chunk)
            counted = True
            yield len(chunk.sequences)
        if counted:
            worker.finish()
        self.accounts.worker_seconds = time.process_time() - start


class ProcessPool:
    """A pool of processes on this machine; the weights are shared between them, not copied."""

    name = "local"

    def __init__(self, workers: int) -> None:
        self.workers = workers
        self.accounts = Accounts()

    def run(self, lens: Lens, assignment: Assignment, chunks: Iterable[Chunk], done: Iterable[Shard]) -> Iterator[int]:
        """Have every chunk counted; yields how many sequences were."""
        crew = ProcessCrew(self.workers, lens, assignment)
        yield from work_through(crew, chunks, assignment.shards, done, self.accounts)


def engine_of(name: str, workers: int | None, address: str | None = None) -> Engine:
    """The engine by its name: `local` (this process, or a pool of several) or `ray`."""
    if workers is not None and workers < 1:
        raise InputError(f"there must be at least one worker: got {workers}")
    if name == "local":
        if address is not None:
            raise InputError("an address belongs to a Ray cluster: add --engine ray, or drop --address")
        return InProcess() if workers in (None, 1) else ProcessPool(workers or 1)
    if name == "ray":
        from normlens.corpus.running.ray_engine import RayEngine

        return RayEngine(workers, address)
    raise InputError(f"an engine must be local or ray: got {name!r}")
