"""A crew: several workers that may each die at any moment, and the one sequence in which a driver works with them."""

from __future__ import annotations

import collections
import multiprocessing.connection
import os
import pickle
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, Protocol

import torch.multiprocessing

from normlens.corpus.running.shard_worker import Assignment, Count, Done, Finish, Merge, Tabulate, Task, Totals
from normlens.corpus.running.shards import FAN_IN, Shard, ShardFolder, gaps, merge_round
from normlens.corpus.running.territories import Territories
from normlens.corpus.running.worker_process import serve
from normlens.errors import NormlensError

if TYPE_CHECKING:
    from normlens.lens import Lens

_DEATHS = 4  # of one worker, or over one part of the corpus, without any work done in between: then it is no accident


@dataclass(frozen=True)
class Event:
    """Something that a worker did, or that befell it."""

    worker: int
    kind: Literal["ready", "counted", "done", "failed", "lost"]
    value: Any = None  # counted: sequences; done: `Done`; failed: an exception; lost: how it ended


class Crew(Protocol):
    """Workers by number. A worker that is lost stays lost until `start` puts a new one in its place."""

    size: int
    received: int  # bytes that came from workers

    def start(self, worker: int) -> None:
        """Start a worker; it is idle when it says `ready`, which may be when there is room for it."""

    def submit(self, worker: int, task: Task) -> None:
        """Give an idle worker something to do; if it is dead, the next `wait` says so."""

    def wait(self) -> list[Event]:
        """What happened, as soon as anything has."""

    def stop(self) -> None:
        """End all workers."""


@dataclass
class Accounts:
    """What a run cost, and what it left."""

    worker_seconds: float = 0.0  # of processor time, in tasks that were done
    retries: int = 0  # tasks that were given out again
    bytes_to_driver: int = 0
    shards_written: int = 0  # by workers that came to the end of what they had to count
    totals: Totals | None = None  # when the tables are written


@dataclass(frozen=True)
class Step:
    """What changed: sequences counted (fewer than none where a worker died before it saved them), and who is at work."""

    counted: int
    workers: int
    shards: int


def work_through(crew: Crew, assignment: Assignment, done: Iterable[Shard], accounts: Accounts) -> Iterator[Step]:
    """Have all that is not done counted, the shards merged to a few, and the tables made, whoever dies on the way."""
    job = _Job(crew, assignment, done, accounts)
    try:
        for worker in range(crew.size):
            crew.start(worker)
        while True:
            job.give_out()
            if job.is_over:
                return
            for event in crew.wait():
                moved = job.hear(event)
                if moved or event.kind in ("ready", "lost"):
                    yield job.step(moved)
    finally:
        crew.stop()
        accounts.bytes_to_driver += crew.received


class _Job:
    """What a driver knows of a run: who does what, what is left, what is done."""

    def __init__(self, crew: Crew, assignment: Assignment, done: Iterable[Shard], accounts: Accounts) -> None:
        self._crew, self._accounts = crew, accounts
        self._shards: ShardFolder = assignment.shards
        self._done = set(done)
        left = gaps(self._done, assignment.reader.survey.sequences)
        self._territories = Territories(left, assignment.chunk)
        self._idle = list[int]()
        self._doing = dict[int, Task]()
        self._merges: list[list[Shard]] | None = None  # to be given out; None: counting is not over
        self._counted = collections.Counter[int]()  # by worker, in its territory
        self._deaths = collections.Counter[str]()  # of a worker, or over a place of the corpus

    @property
    def is_over(self) -> bool:
        """Whether the tables are written."""
        return self._accounts.totals is not None

    def step(self, counted: int) -> Step:
        """What is shown of it."""
        return Step(counted, len(self._idle) + len(self._doing), len(self._done))

    def give_out(self) -> None:
        """Give every idle worker something to do, as long as there is anything."""
        for worker in list(self._idle):
            if (task := self._next_task(worker)) is None:
                continue
            self._idle.remove(worker)
            self._doing[worker] = task
            self._crew.submit(worker, task)

    def _next_task(self, worker: int) -> Task | None:
        if self._merges is None:
            step = self._territories.next_step(worker)
            if step is not None:
                return Count(*step)
            if self._territories.of(worker) is not None:
                return Finish()
            if self._doing or self._territories.is_left:
                return None
            self._merges = []
        if not self._merges and not self._doing and len(self._done) > FAN_IN:
            self._merges = merge_round(self._done)  # one level of the tree
        if self._merges:
            return Merge(tuple(self._merges.pop()))
        return None if self._doing or self.is_over else Tabulate(tuple(sorted(self._done)))

    def hear(self, event: Event) -> int:
        """Take note of what happened; returns how many sequences it added."""
        worker = event.worker
        match event.kind:
            case "ready":
                self._idle.append(worker)
            case "counted":
                self._counted[worker] += event.value
                return int(event.value)
            case "done":
                self._note_done(worker, self._doing.pop(worker), event.value)
            case "failed":
                raise event.value
            case "lost":
                return self._note_lost(worker, event.value)
        return 0

    def _note_done(self, worker: int, task: Task, done: Done) -> None:
        if isinstance(task, Count):
            self._territories.note(worker, task.stop - task.start, done.clock)
            self._deaths.pop(f"at {task.start}", None)
        elif isinstance(task, Finish):
            self._territories.leave(worker)
            self._counted[worker] = 0
            self._accounts.shards_written += 1
        elif isinstance(task, Merge):
            self._done.difference_update(task.shards)
            self._shards.remove(task.shards)
        else:
            self._accounts.totals = done.totals
        if done.shard is not None:
            self._done.add(done.shard)
        self._accounts.worker_seconds += done.seconds
        self._deaths.pop(f"worker {worker}", None)
        self._idle.append(worker)

    def _note_lost(self, worker: int, how: str) -> int:
        task = self._doing.pop(worker, None)
        self._idle = [other for other in self._idle if other != worker]
        territory, saved = self._territories.of(worker), None
        places = [f"worker {worker}"]
        if territory is not None:
            saved = self._shards.longest(Shard(territory.start, territory.at))
            places.append(f"at {territory.start if saved is None else saved.stop}")
            self._territories.lose(worker, saved)
        if saved is not None:
            self._done.add(saved)
        if isinstance(task, Merge):
            self._merges = [*(self._merges or []), list(task.shards)]
        self._accounts.retries += task is not None
        self._deaths.update(places)
        if max(self._deaths[place] for place in places) >= _DEATHS:
            raise NormlensError(
                f"workers must survive: {_DEATHS} died one after the other ({how}; out of memory?); progress is kept, so "
                "run the same command again with fewer --workers or a smaller --batch-size"
            )
        taken_back = (0 if saved is None else saved.size) - self._counted.pop(worker, 0)
        self._crew.start(worker)
        return taken_back


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
    threads: int | None = None  # per worker; None: the processors are divided
    received: int = 0
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

    def submit(self, worker: int, task: Task) -> None:
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
                message = one.connection.recv_bytes()
                self.received += len(message)
                kind, value = pickle.loads(message)
                if kind == "hello":
                    threads = self.threads or max(1, (os.cpu_count() or 1) // self.size)
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
