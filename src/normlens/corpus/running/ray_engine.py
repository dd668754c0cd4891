"""The Ray engine: a crew of actors that hold the model and write their shards to the output folder themselves."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

import torch

from normlens.corpus.counting.worker import Chunk
from normlens.corpus.running.crews import Accounts, Event, work_through
from normlens.corpus.running.shard_worker import Assignment, Count, Done, Merge, ShardWorker
from normlens.corpus.running.shards import Shard
from normlens.errors import InputError

if TYPE_CHECKING:
    from normlens.lens import Lens


class RayEngine:
    """Counts chunks on a Ray cluster: an existing one by its address, or a new one on this machine."""

    name = "ray"

    def __init__(self, workers: int | None = None, address: str | None = None) -> None:
        self.workers = workers or 1
        self.address = address
        self.accounts = Accounts()

    def run(self, lens: Lens, assignment: Assignment, chunks: Iterable[Chunk], done: Iterable[Shard]) -> Iterator[int]:
        """Have every chunk counted; yields how many sequences were."""
        ray = _import_ray()
        started = not ray.is_initialized()
        if started:
            self._connect(ray)
        try:
            room = int(ray.cluster_resources().get("CPU", 0))
            if self.workers > room:
                raise InputError(
                    f"every actor needs a processor: {self.workers} workers were asked for, the cluster has {room}; "
                    "use fewer --workers"
                )
            crew = RayCrew(ray, self.workers, lens, assignment)
            yield from work_through(crew, chunks, assignment.shards, done, self.accounts)
        finally:
            if started:
                ray.shutdown()

    def _connect(self, ray: Any) -> None:
        try:
            ray.init(address=self.address, log_to_driver=False, include_dashboard=False, logging_level="error")
        except ValueError:  # an existing cluster does not take the options of a new one
            ray.init(address=self.address, log_to_driver=False, logging_level="error")
        except ConnectionError as error:
            raise InputError(
                f"the address must be that of a running Ray cluster: {self.address!r} did not answer; start one with "
                "ray start --head, or drop --address"
            ) from error


class RayCrew:
    """Actors of a cluster; one that is lost is replaced by a new one, wherever there is room."""

    def __init__(self, ray: Any, size: int, lens: Lens, assignment: Assignment) -> None:
        self.size, self._ray = size, ray
        self._shared = ray.put((lens.model, lens.tokenizer, assignment))  # one copy of the weights per machine
        self._actors: dict[int, Any] = {}
        self._waiting: dict[Any, int] = {}  # a result to come, and whose

    def start(self, worker: int) -> None:
        """Start an actor; it is idle when it says `ready`."""
        actor = self._ray.remote(RayWorker).options(num_cpus=1).remote(self._shared)
        self._actors[worker] = actor
        self._waiting[actor.ready.remote()] = worker

    def submit(self, worker: int, task: Count | Merge) -> None:
        """Give an idle actor something to do."""
        self._waiting[self._actors[worker].do.remote(task)] = worker

    def wait(self) -> list[Event]:
        """What happened, as soon as anything has."""
        (result, *_), _ = self._ray.wait(list(self._waiting), num_returns=1)
        return self._events(self._waiting.pop(result), result)

    def stop(self) -> None:
        """End all actors."""
        for actor in self._actors.values():
            self._ray.kill(actor)
        self._actors.clear()

    def _events(self, worker: int, result: Any) -> list[Event]:
        try:
            done: tuple[Done, int] | None = self._ray.get(result)
        except self._ray.exceptions.RayTaskError as error:  # what the actor raised
            return [Event(worker, "failed", error.cause if isinstance(error.cause, Exception) else error)]
        except (self._ray.exceptions.RayError, OSError) as error:  # the actor, its node or its memory is gone
            return [Event(worker, "lost", type(error).__name__)]
        if done is None:
            return [Event(worker, "ready")]
        return [Event(worker, "counted", done[1]), Event(worker, "done", done[0])]


class RayWorker:
    """An actor: a model, and a task at a time."""

    def __init__(self, shared: Any) -> None:
        self._shared = shared

    def ready(self) -> None:
        """Load the model; what goes wrong here reaches the driver as it is."""
        from normlens.lens import Lens

        model, tokenizer, assignment = self._shared
        if not assignment.shards.folder.is_dir():
            raise InputError(
                f"every node must see the output folder: {assignment.shards.folder} is not there on one of them; put "
                "--out on a shared file system"
            )
        torch.set_num_threads(1)
        self._worker = ShardWorker(Lens(model, tokenizer), assignment)

    def do(self, task: Count | Merge) -> tuple[Done, int]:
        """A task to its end: what is done, and how many sequences were counted for it."""
        counted: list[int] = []
        return self._worker.do(task, counted.append), sum(counted)


def _import_ray() -> Any:
    try:
        import ray
    except ImportError as error:
        raise InputError("the ray engine needs Ray: pip install 'normlens[ray]'") from error
    return ray
