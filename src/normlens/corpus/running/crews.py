"""A crew: several workers that may each die at any moment, and the one sequence in which a driver works with them."""

from __future__ import annotations

import collections
import multiprocessing.connection
import os
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, Protocol

import torch.multiprocessing

from normlens.corpus.counting.worker import Chunk
from normlens.corpus.running.shard_worker import Assignment, Count, Merge
from normlens.corpus.running.shards import Shard, ShardFolder, to_merge
from normlens.corpus.running.worker_process import serve
from normlens.errors import NormlensError

if TYPE_CHECKING:
    from normlens.lens import Lens

_DEATHS = 4  # without any work done in between: then it is no accident
_LONGEST_SPAN = 16  # chunks that a worker is given at once, in a long run


@dataclass(frozen=True)
class Event:
    """Something that a worker did, or that befell it."""

    worker: int
    kind: Literal["ready", "counted", "done", "failed", "lost"]
    value: Any = None  # counted: sequences; done: `Done`; failed: an exception; lost: how it ended


class Crew(Protocol):
    """Workers by number. A worker that is lost stays lost until `start` puts a new one in its place."""

    size: int

    def start(self, worker: int) -> None:
        """Start a worker; it is idle when it says `ready`."""

    def submit(self, worker: int, task: Count | Merge) -> None:
        """Give an idle worker something to do; if it is dead, the next `wait` says so."""

    def wait(self) -> list[Event]:
        """What happened, as soon as anything has."""

    def stop(self) -> None:
        """End all workers."""


@dataclass
class Accounts:
    """What a run cost."""

    worker_seconds: float = 0.0  # of processor time, in tasks that were done
    retries: int = 0  # tasks that were given out again


def work_through(
    crew: Crew, chunks: Iterable[Chunk], shards: ShardFolder, done: Iterable[Shard], accounts: Accounts
) -> Iterator[int]:
    """Have all chunks counted and shards merged, whoever dies on the way; yields how many sequences were counted.

    A negative number takes back what a worker had counted and not saved when it died.
    """
    spans, again = _spans(chunks, crew.size), collections.deque[Count]()
    mergeable, doing, counted = set(done), dict[int, Count | Merge](), collections.Counter[int]()
    idle, deaths = list[int](), 0

    def next_task() -> Count | Merge | None:
        if again:
            return again.popleft()
        if together := to_merge(mergeable):
            mergeable.difference_update(together)
            return Merge(tuple(together))
        return next(spans, None)

    try:
        for worker in range(crew.size):
            crew.start(worker)
        while True:
            while idle and (task := next_task()) is not None:
                doing[idle[-1]] = task
                crew.submit(idle.pop(), task)
            if idle and not doing:
                return
            for event in crew.wait():
                worker = event.worker
                if event.kind == "ready":
                    idle.append(worker)
                elif event.kind == "counted":
                    counted[worker] += event.value
                    yield event.value
                elif event.kind == "done":
                    task, finished = doing.pop(worker), event.value
                    if isinstance(task, Merge):
                        shards.remove(task.shards)
                    mergeable.add(finished.shard)
                    accounts.worker_seconds += finished.seconds
                    deaths, counted[worker] = 0, 0
                    idle.append(worker)
                elif event.kind == "failed":
                    raise event.value
                else:
                    deaths += 1
                    if deaths >= _DEATHS:
                        raise NormlensError(
                            f"workers must survive: {deaths} died one after the other ({event.value}; out of memory?); "
                            "progress is kept, so run the same command again with fewer --workers or a smaller --batch-size"
                        )
                    idle = [other for other in idle if other != worker]
                    lost = doing.pop(worker, None)
                    if isinstance(lost, Merge):
                        mergeable.update(lost.shards)
                    elif lost is not None:
                        saved = shards.longest(lost.shard)
                        if saved is not None:
                            mergeable.add(saved)
                        left = tuple(chunk for chunk in lost.chunks if saved is None or chunk.start >= saved.stop)
                        yield (0 if saved is None else saved.size) - counted[worker]
                        again.extend([Count(left)] if left else [])
                    accounts.retries += lost is not None
                    counted[worker] = 0
                    crew.start(worker)
    finally:
        crew.stop()


def _spans(chunks: Iterable[Chunk], workers: int) -> Iterator[Count]:
    """Neighbouring chunks to be counted together: few at first, more in a long run, so that nobody waits at the end."""
    span, handed_out = list[Chunk](), 0
    for chunk in chunks:
        longest = min(max(1, handed_out // (4 * workers)), _LONGEST_SPAN)
        if span and (len(span) >= longest or span[-1].stop != chunk.start):
            handed_out += len(span)
            yield Count(tuple(span))
            span = []
        span.append(chunk)
    if span:
        yield Count(tuple(span))


@dataclass
class _Process:
    process: Any
    connection: Any


@dataclass
class ProcessCrew:
    """Processes of this machine; the weights are shared between them, not copied."""

    size: int
    lens: Lens
    assignment: Assignment
    _processes: dict[int, _Process] = field(default_factory=dict)
    _dead: list[int] = field(default_factory=list)

    def start(self, worker: int) -> None:
        """Start a worker; it is idle when it says `ready`."""
        context = torch.multiprocessing.get_context("spawn")
        ours, theirs = context.Pipe()
        process = context.Process(target=serve, args=(theirs,), daemon=True, name=f"normlens-worker-{worker}")
        process.start()
        theirs.close()
        self._processes[worker] = _Process(process, ours)

    def submit(self, worker: int, task: Count | Merge) -> None:
        """Give an idle worker something to do; if it is dead, the next `wait` says so."""
        self._send(worker, task)

    def wait(self) -> list[Event]:
        """What happened, as soon as anything has."""
        events: list[Event] = []
        while not events:
            by_handle = {one.connection: worker for worker, one in self._processes.items()}
            by_handle.update({one.process.sentinel: worker for worker, one in self._processes.items()})
            ready = [] if self._dead else multiprocessing.connection.wait(list(by_handle))
            for worker in sorted({by_handle[handle] for handle in ready} | set(self._dead)):
                events += self._heard(worker)
        return events

    def stop(self) -> None:
        """End all workers."""
        for one in self._processes.values():
            one.process.kill()
        for one in self._processes.values():
            one.process.join()
            one.connection.close()
        self._processes.clear()

    def _heard(self, worker: int) -> list[Event]:
        """What a worker has said by now; where that was its last word, also that it is lost."""
        one, events = self._processes[worker], list[Event]()
        alive = one.process.is_alive() and worker not in self._dead  # asked first: what it said before it died counts
        try:
            while one.connection.poll():
                kind, value = one.connection.recv()
                if kind == "hello":
                    threads = max(1, (os.cpu_count() or 1) // self.size)
                    self._send(worker, (self.lens.model, self.lens.tokenizer, self.assignment, threads))
                else:
                    events.append(Event(worker, kind, value))
        except (EOFError, OSError):
            alive = False
        if not alive or worker in self._dead:
            self._dead = [other for other in self._dead if other != worker]
            one.process.kill()
            one.process.join()
            one.connection.close()
            del self._processes[worker]
            events.append(Event(worker, "lost", f"exit code {one.process.exitcode}"))
        return events

    def _send(self, worker: int, message: Any) -> None:
        with suppress(OSError):
            self._processes[worker].connection.send(message)
            return
        self._dead.append(worker)
