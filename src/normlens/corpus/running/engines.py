"""Engines: who counts the corpus. The numbers do not depend on it: all of them fill the same folder with shards."""

from __future__ import annotations

import multiprocessing
import os
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, TypeVar

from normlens.corpus.running.crews import Accounts, ProcessCrew, Step, work_through
from normlens.corpus.running.shard_worker import Assignment, ShardWorker, tabulate
from normlens.corpus.running.shards import Shard, gaps
from normlens.corpus.running.worker_process import watch_driver
from normlens.errors import InputError

if TYPE_CHECKING:
    from normlens.lens import Lens

#: Fewer pieces than this are looked at sooner than other processes have started.
WORTH_STARTING = 8

#: More workers than this are a slip of the keyboard: each of them would be started.
MOST_WORKERS = 10_000
_MOST_PROCESSES = 1024  # of one machine

_Item = TypeVar("_Item")
_Result = TypeVar("_Result")


@dataclass(frozen=True)
class Resources:
    """How many workers there may be, and what each of them gets."""

    fewest: int = 1
    most: int = 1
    threads: int | None = None  # per worker
    gpus: float = 0.0  # per worker; a fraction is shared

    @classmethod
    def of(cls, workers: int | str | None, threads: int | None = None, gpus: float = 0.0) -> Resources:
        """Checked; `workers` is a number, or `MIN:MAX`.

        >>> Resources.of("2:8").most, Resources.of(3).fewest
        (8, 3)
        """
        low, sign, high = str(1 if workers is None else workers).partition(":")
        try:
            fewest = int(low)
            most = int(high) if sign else fewest
        except ValueError:
            raise InputError(f"workers are a number, or the fewest and the most as MIN:MAX: got {workers!r}") from None
        if most < 1 or fewest < 0 or most < fewest:
            raise InputError(f"there must be at least one worker, and no more at least than at most: got {workers}")
        if most > MOST_WORKERS:
            raise InputError(f"a run has at most {MOST_WORKERS} workers: got {workers}; use fewer --workers")
        if threads is not None and threads < 1:
            raise InputError(f"a worker needs at least one thread: got {threads}")
        if gpus < 0 or (gpus > 1 and gpus != int(gpus)):
            raise InputError(f"a worker has a share of one GPU, or whole ones: got {gpus}")
        return cls(fewest, most, threads, gpus)


class Engine(Protocol):
    """Has a corpus counted into shards."""

    name: str
    workers: int
    accounts: Accounts

    def parallel(self, function: Callable[[_Item], _Result], items: Iterable[_Item], /) -> Iterator[_Result]:
        """Like `map`, by whoever there is; no model is needed for it."""

    def run(self, lens: Lens, assignment: Assignment, done: Iterable[Shard]) -> Iterator[Step]:
        """Have everything counted that is not in the shards `done`, and the tables written; says what changed."""

    def close(self) -> None:
        """Let go of what was started."""


class InProcess:
    """This process does the work; its one shard grows."""

    name, workers = "local", 1

    def __init__(self) -> None:
        self.accounts = Accounts()

    def parallel(self, function: Callable[[_Item], _Result], items: Iterable[_Item], /) -> Iterator[_Result]:
        """`map`."""
        return map(function, items)

    def run(self, lens: Lens, assignment: Assignment, done: Iterable[Shard]) -> Iterator[Step]:
        """Count everything that is not done."""
        worker, start, shards = ShardWorker(lens, assignment), time.process_time(), list(done)
        for gap in gaps(shards, assignment.reader.survey.sequences):
            for counted in worker.count(gap.start, gap.stop):
                worker.remove_superseded()
                yield Step(counted, 1, len(shards))
            shards.append(worker.finish())
            worker.remove_superseded()
            self.accounts.shards_written += 1
        self.accounts.totals = tabulate(assignment, sorted(shards))
        self.accounts.worker_seconds = time.process_time() - start

    def close(self) -> None:
        """Nothing was started."""


class ProcessPool:
    """A pool of processes on this machine; the weights are shared between them, not copied."""

    name = "local"

    def __init__(self, workers: int, threads: int | None = None) -> None:
        self.workers, self._threads = workers, threads
        self.accounts = Accounts()

    def parallel(self, function: Callable[[_Item], _Result], items: Iterable[_Item], /) -> Iterator[_Result]:
        """By processes that need no model; what a dead one leaves is done here."""
        waiting = deque(items)
        if len(waiting) < WORTH_STARTING:
            yield from map(function, waiting)
            return
        given = deque[tuple[_Item, Future[_Result]]]()
        context = multiprocessing.get_context("spawn")
        executor = ProcessPoolExecutor(self.workers, mp_context=context, initializer=watch_driver)
        try:
            while waiting or given:
                while waiting and len(given) < 2 * self.workers:
                    item = waiting.popleft()
                    given.append((item, executor.submit(function, item)))
                item, future = given.popleft()
                yield future.result()
        except BrokenProcessPool:
            yield from map(function, [item, *(item for item, _ in given), *waiting])
        finally:
            executor.shutdown(cancel_futures=True)

    def run(self, lens: Lens, assignment: Assignment, done: Iterable[Shard]) -> Iterator[Step]:
        """Have everything counted that is not done."""
        crew = ProcessCrew(self.workers, lens, assignment, self._threads)
        yield from work_through(crew, assignment, done, self.accounts)

    def close(self) -> None:
        """Nothing outlives a call."""


def engine_of(name: str, resources: Resources, address: str | None = None) -> Engine:
    """The engine by its name: `local` (this process, or a pool of several) or `ray`."""
    if name == "local":
        if address is not None:
            raise InputError("an address belongs to a Ray cluster: add --engine ray, or drop --address")
        if resources.gpus:
            raise InputError(
                "GPUs are shared out by Ray: add --engine ray, or load the model on the GPU and use one worker"
            )
        workers = max(resources.fewest, min(resources.most, os.cpu_count() or 1), 1)
        workers = resources.most if resources.fewest == resources.most else workers
        if workers > _MOST_PROCESSES:
            raise InputError(
                f"one machine has at most {_MOST_PROCESSES} workers: got {workers}; use fewer --workers, or --engine ray"
            )
        return InProcess() if workers == 1 else ProcessPool(workers, resources.threads)
    if name == "ray":
        from normlens.corpus.running.ray_engine import RayEngine

        return RayEngine(resources, address)
    raise InputError(f"an engine must be local or ray: got {name!r}")
