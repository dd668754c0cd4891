"""Engines: who runs the units. The numbers do not depend on it, since a unit's tally depends on the unit alone."""

from __future__ import annotations

import collections
import os
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import torch
import torch.multiprocessing

from normlens.corpus.plan import Plan
from normlens.corpus.worker import Done, Unit, Worker
from normlens.errors import InputError, NormlensError
from normlens.settings import Precision

if TYPE_CHECKING:
    from normlens.lens import Lens

_RESTARTS = 3


@dataclass(frozen=True)
class Task:
    """What a worker needs besides units."""

    lens: Lens
    plan: Plan
    batch_size: int
    per_token: bool
    precision: Precision = "float32"
    together: bool = False

    @property
    def settings(self) -> tuple[Any, ...]:
        """Everything but the model, in the order of the fields."""
        return self.plan, self.batch_size, self.per_token, self.precision, self.together

    def worker(self) -> Worker:
        """A worker in this process."""
        return Worker(
            self.lens,
            self.plan,
            batch_size=self.batch_size,
            per_token=self.per_token,
            precision=self.precision,
            together=self.together,
        )


class Engine(Protocol):
    """Runs units; results come in the order of the units."""

    name: str
    workers: int

    def run(self, task: Task, units: Iterable[Unit]) -> Iterator[Done]:
        """Every unit's result, in order, each exactly once."""


class InProcess:
    """This process does the work."""

    name, workers = "local", 1

    def run(self, task: Task, units: Iterable[Unit]) -> Iterator[Done]:
        """Every unit's result, in order."""
        worker = task.worker()
        for unit in units:
            yield worker.work(unit)


class Pool:
    """A pool of processes on this machine; the weights are shared between them, not copied."""

    name = "local"

    def __init__(self, workers: int) -> None:
        self.workers = workers

    def run(self, task: Task, units: Iterable[Unit]) -> Iterator[Done]:
        """Every unit's result, in order; units of a process that dies are run again."""
        source = iter(units)
        waiting: collections.deque[tuple[Unit, Future[Done]]] = collections.deque()
        failures = 0
        pool = self._start(task)
        try:
            while True:
                # Two units per worker are in flight: enough to keep all busy, and memory does not grow.
                while len(waiting) < 2 * self.workers and (unit := next(source, None)) is not None:
                    waiting.append((unit, pool.submit(_work, unit)))
                if not waiting:
                    return
                try:
                    done = waiting[0][1].result()
                except BrokenProcessPool as error:
                    failures += 1
                    if failures > _RESTARTS:
                        raise NormlensError(
                            f"worker processes must survive: they died {failures} times (out of memory?); progress is "
                            "kept, so run the same command again with fewer --workers or a smaller --batch-size"
                        ) from error
                    pool.shutdown(wait=False, cancel_futures=True)
                    pool = self._start(task)
                    waiting = collections.deque((unit, pool.submit(_work, unit)) for unit, _ in waiting)
                    continue
                waiting.popleft()
                yield done
        finally:
            pool.shutdown(wait=True, cancel_futures=True)

    def _start(self, task: Task) -> ProcessPoolExecutor:
        threads = max(1, (os.cpu_count() or 1) // self.workers)
        context = torch.multiprocessing.get_context("spawn")
        lens = task.lens
        model = (lens.model, lens.tokenizer)
        return ProcessPoolExecutor(
            self.workers, mp_context=context, initializer=_start_worker, initargs=(model, task.settings, threads)
        )


_WORKER: Worker | None = None


def _start_worker(model: tuple[Any, Any], settings: tuple[Any, ...], threads: int) -> None:
    from normlens.lens import Lens

    global _WORKER
    torch.set_num_threads(threads)
    _WORKER = Task(Lens(*model), *settings).worker()


def _work(unit: Unit) -> Done:
    assert _WORKER is not None, "a pool's process starts with _start_worker"
    return _WORKER.work(unit)


def engine_of(name: str, workers: int | None, address: str | None = None) -> Engine:
    """The engine by its name: `local` (this process, or a pool of several) or `ray`."""
    if workers is not None and workers < 1:
        raise InputError(f"there must be at least one worker: got {workers}")
    if name == "local":
        if address is not None:
            raise InputError("an address belongs to a Ray cluster: add --engine ray, or drop --address")
        return InProcess() if workers in (None, 1) else Pool(workers or 1)
    if name == "ray":
        from normlens.corpus.ray_engine import RayEngine

        return RayEngine(workers, address)
    raise InputError(f"an engine must be local or ray: got {name!r}")
