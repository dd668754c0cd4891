"""The Ray engine: actors that hold the model, read their own part of the corpus and write their shards themselves."""

from __future__ import annotations

import os
import pickle
import warnings
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import torch
from torch import nn

from normlens.corpus.running.crews import Accounts, Event, Step, work_through
from normlens.corpus.running.engines import WORTH_STARTING, Resources
from normlens.corpus.running.ray_cluster import LocalCluster
from normlens.corpus.running.shard_worker import Assignment, Count, Done, Finish, Merge, ShardWorker, Tabulate, Task
from normlens.corpus.running.shards import Shard
from normlens.errors import InputError, NormlensError
from normlens.io.remote import RemotePath, first_line

if TYPE_CHECKING:
    from normlens.lens import Lens

_Item = TypeVar("_Item")
_Result = TypeVar("_Result")

#: What Ray's dashboard calls the stages of a run.
_STAGES = {
    Count: "normlens: count",
    Finish: "normlens: write shard",
    Merge: "normlens: merge shards",
    Tabulate: "normlens: make tables",
}
_LEAST_STORE = 1 << 28  # bytes of the object store of a cluster that is started here


class RayEngine:
    """Counts a corpus on a Ray cluster: an existing one by its address, or a new one on this machine."""

    name = "ray"

    def __init__(self, resources: Resources | None = None, address: str | None = None) -> None:
        self._resources = resources or Resources()
        self.workers = self._resources.most
        self._address = address
        self._started: Any = None  # Ray, where it was connected here
        self._cluster: LocalCluster | None = None  # one that was started here
        self.accounts = Accounts()

    def parallel(self, function: Callable[[_Item], _Result], items: Iterable[_Item], /) -> Iterator[_Result]:
        """By tasks anywhere in the cluster; they need no model."""
        waiting, given = deque(items), deque[Any]()
        if len(waiting) < WORTH_STARTING:
            yield from map(function, waiting)
            return
        ray = self._connected()
        shared = ray.put(function)
        stage = f"normlens: {getattr(function, 'func', function).__name__.strip('_').replace('_', ' ')}"
        task = ray.remote(_applied).options(num_cpus=1, name=stage, max_retries=3)
        most = 2 * max(self.workers, int(ray.cluster_resources().get("CPU", 1)))
        while waiting or given:
            while waiting and len(given) < most:
                given.append(task.remote(shared, waiting.popleft()))
            try:
                message: bytes = ray.get(given.popleft())
            except ray.exceptions.RayTaskError as error:
                raise (error.cause if isinstance(error.cause, Exception) else error) from None
            except ray.exceptions.RayError as error:
                raise NormlensError(
                    f"the cluster must survive: {stage.removeprefix('normlens: ')} was tried several times "
                    f"({type(error).__name__}); progress is kept, so run the same command again"
                ) from error
            self.accounts.bytes_to_driver += len(message)
            yield pickle.loads(message)

    def run(self, lens: Lens, assignment: Assignment, done: Iterable[Shard]) -> Iterator[Step]:
        """Have everything counted that is not done."""
        ray = self._connected(lens.model)
        self._check_room(ray)
        crew = RayCrew(ray, self._resources, lens, assignment)
        yield from work_through(crew, assignment, done, self.accounts)

    def close(self) -> None:
        """Leave the cluster; one that was started here ends."""
        if self._started is not None:
            self._started.shutdown()
            self._started = None
        if self._cluster is not None:
            self._cluster.close()
            self._cluster = None

    def _check_room(self, ray: Any) -> None:
        """The fewest workers must fit into the cluster as it is; the others wait for nodes to come."""
        found, wanted = ray.cluster_resources(), self._resources
        for name, each in (("CPU", wanted.threads or 1), ("GPU", wanted.gpus)):
            room = int(found.get(name, 0) / each) if each else wanted.fewest
            if room < wanted.fewest:
                what = "a processor" if name == "CPU" else "its share of a GPU"
                raise InputError(
                    f"every actor needs {what}: {wanted.fewest} workers with {each:g} {name} each were asked for, the "
                    f"cluster has room for {room}; use fewer --workers, or MIN:MAX to wait for nodes to come"
                )

    def _connected(self, model: nn.Module | None = None) -> Any:
        ray = _import_ray(for_itself=self._address is None)
        if ray.is_initialized():
            return ray
        options: dict[str, Any] = {"log_to_driver": False, "logging_level": "error"}
        try:
            if self._address is None:
                weights = 0 if model is None else sum(p.numel() * p.element_size() for p in model.parameters())
                room = max(2 * weights, _LEAST_STORE)
                self._cluster = LocalCluster(include_dashboard=False, object_store_memory=room, **options)
                self._cluster.connect(ray, **options)
            else:
                ray.init(address=self._address, **options)
        except Exception as error:  # Ray raises plain ones where a node of its own does not come up in time
            self.close()
            if self._address is not None and isinstance(error, (ConnectionError, ValueError)):
                raise InputError(
                    f"the address must be that of a running Ray cluster: {self._address!r} did not answer; start one "
                    "with ray start --head, or drop --address"
                ) from error
            raise NormlensError(
                f"Ray must be able to start: it did not ({first_line(error)}); is the machine busy, or short of memory? "
                "Run the same command again, or use --engine local"
            ) from error
        self._started = ray
        return ray


class RayCrew:
    """Actors of a cluster; one that is lost is replaced by a new one, wherever and whenever there is room."""

    def __init__(self, ray: Any, resources: Resources, lens: Lens, assignment: Assignment) -> None:
        self.size, self.received, self._ray, self._resources = resources.most, 0, ray, resources
        with _weights_as_arrays(ray):
            # In the object store of every node that has an actor there is one copy, which its actors read where it lies.
            self._shared = ray.put((lens.model, lens.tokenizer, assignment))
        self._actors: dict[int, Any] = {}
        self._waiting: dict[Any, int] = {}  # a result to come, and whose

    def start(self, worker: int) -> None:
        """Start an actor; it is idle when it says `ready`, which may be when a node comes that has room for it."""
        if (old := self._actors.pop(worker, None)) is not None:
            self._ray.kill(old)  # if it cannot be reached it may still be at work
        wanted = self._resources
        actor = self._ray.remote(RayWorker).options(num_cpus=wanted.threads or 1, num_gpus=wanted.gpus)
        self._actors[worker] = actor.remote(self._shared, worker, wanted.threads or 1, wanted.gpus)
        ready = self._actors[worker].ready.options(name="normlens: load model")
        self._waiting[ready.remote()] = worker

    def submit(self, worker: int, task: Task) -> None:
        """Give an idle actor something to do."""
        named = self._actors[worker].do.options(name=_STAGES[type(task)])
        self._waiting[named.remote(task)] = worker

    def wait(self) -> list[Event]:
        """What happened, as soon as anything has."""
        done, _ = self._ray.wait(list(self._waiting), num_returns=1)
        return [event for result in done for event in self._events(self._waiting.pop(result), result)]

    def stop(self) -> None:
        """End all actors."""
        for actor in self._actors.values():
            self._ray.kill(actor)
        self._actors.clear()
        self._waiting.clear()

    def _events(self, worker: int, result: Any) -> list[Event]:
        try:
            message: bytes = self._ray.get(result)
        except self._ray.exceptions.RayTaskError as error:  # what the actor raised
            return [Event(worker, "failed", error.cause if isinstance(error.cause, Exception) else error)]
        except (self._ray.exceptions.RayError, OSError) as error:  # the actor, its node or its memory is gone
            return [Event(worker, "lost", type(error).__name__)]
        self.received += len(message)
        answer: tuple[Done, int] | None = pickle.loads(message)
        if answer is None:
            return [Event(worker, "ready")]
        done, counted = answer
        return [*([Event(worker, "counted", counted)] if counted else []), Event(worker, "done", done)]


class RayWorker:
    """An actor: a model, and a task at a time. Its answers are bytes, so that the driver knows what it received."""

    def __init__(self, shared: Any, number: int, threads: int, gpus: float) -> None:
        self._shared, self._number, self._threads, self._gpus = shared, number, threads, gpus

    def __repr__(self) -> str:
        return f"normlens worker {self._number}"

    def ready(self) -> bytes:
        """Load the model; what goes wrong here reaches the driver as it is."""
        from normlens.lens import Lens

        model, tokenizer, assignment = self._shared
        folder = assignment.shards.folder
        if not isinstance(folder, RemotePath) and not folder.is_dir():
            raise InputError(
                f"every node must see the output folder: {folder} is not there on one of them; put --out on a shared file "
                "system or an object store"
            )
        if self._gpus:
            if not torch.cuda.is_available():
                raise InputError("a GPU was asked for: this node has none that PyTorch can use; drop --gpus-per-worker")
            model = model.to("cuda")  # Ray shows each actor its own GPUs only
        torch.set_num_threads(self._threads)
        self._worker = ShardWorker(Lens(model, tokenizer), assignment)
        return pickle.dumps(None)

    def do(self, task: Task) -> bytes:
        """A task to its end: what is done, and how many sequences were counted for it."""
        counted: list[int] = []
        done = self._worker.do(task, counted.append)
        return pickle.dumps((done, sum(counted)))


def _applied(function: Callable[[Any], Any], item: Any) -> bytes:
    return pickle.dumps(function(item))


@contextmanager
def _weights_as_arrays(ray: Any) -> Iterator[None]:
    """Inside, parameters are stored as arrays, which every process of a node reads without a copy of its own."""
    ray.util.register_serializer(nn.Parameter, serializer=_array_of, deserializer=_parameter_of)
    try:
        yield
    finally:
        ray.util.deregister_serializer(nn.Parameter)


def _array_of(parameter: nn.Parameter) -> tuple[np.ndarray, torch.dtype, tuple[int, ...]]:
    """The numbers as bytes, since numpy does not know all of PyTorch's types."""
    plain = parameter.detach().cpu().contiguous()
    return plain.reshape(-1).view(torch.uint8).numpy(), plain.dtype, tuple(plain.shape)


def _parameter_of(stored: tuple[np.ndarray, torch.dtype, tuple[int, ...]]) -> nn.Parameter:
    content, dtype, shape = stored
    if not content.size:
        return nn.Parameter(torch.empty(shape, dtype=dtype), requires_grad=False)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # nobody writes to a model's weights here
        return nn.Parameter(torch.from_numpy(content).view(dtype).reshape(shape), requires_grad=False)


def _import_ray(*, for_itself: bool) -> Any:
    if for_itself:
        # By this name Ray calls its choice of the loopback interface: nobody else should reach a cluster of one machine.
        os.environ.setdefault("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")
        os.environ.setdefault("RAY_raylet_start_wait_time_s", "300")  # 30 are too few on a busy machine
    try:
        import ray
    except ImportError as error:
        raise InputError("the ray engine needs Ray: pip install 'normlens[ray]'") from error
    return ray
