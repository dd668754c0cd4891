"""Engines: in this process, a pool of processes, or Ray tasks. The numbers do not depend on the engine.

An engine applies a task, a plain function of a worker and an item, to many items and yields results as they are done. A
worker is a model with the job at hand; every process makes one, once.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import suppress
from typing import TYPE_CHECKING, Any, TypeVar

import torch

from normlens.corpus.options import Running
from normlens.errors import InputError, NormlensError
from normlens.io.remote import first_line
from normlens.types import Json

if TYPE_CHECKING:
    from normlens.corpus.run import Job, Worker
    from normlens.lens import Lens

Item = TypeVar("Item")
Result = TypeVar("Result")
Task = Callable[["Worker", Item], Result]

_ATTEMPTS = 3  # at an item whose worker died
_LEAST_STORE = 1 << 28  # bytes of the object store of a Ray cluster that is started here
_MOST_PENDING = 1000  # Ray tasks without a limit of workers: enough for an autoscaler to see the demand


class Engine(ABC):
    """Applies tasks to items."""

    name: str
    workers: int
    retries = 0

    def __init__(self, lens: Lens, job: Job, running: Running) -> None:
        self.lens, self.job, self.running = lens, job, running
        self.workers = running.workers or 1

    @abstractmethod
    def map(self, task: Task[Item, Result], items: Sequence[Item]) -> Iterator[tuple[Item, Result]]:
        """Yield each item with its result, in the order in which they are done."""

    def close(self) -> None:  # noqa: B027  # most engines have nothing to end
        """End the workers."""


def start_engine(lens: Lens, job: Job, running: Running) -> Engine:
    """Return the engine that the options name."""
    engines: dict[str, type[Engine]] = {"local": LocalEngine, "pool": PoolEngine, "ray": RayEngine}
    return engines[running.engine_name](lens, job, running)


class LocalEngine(Engine):
    """One item after the other, in this process."""

    name = "local"

    def map(self, task: Task[Item, Result], items: Sequence[Item]) -> Iterator[tuple[Item, Result]]:
        """Yield each item with its result."""
        from normlens.corpus.run import Worker

        worker, threads = Worker(self.lens, self.job), torch.get_num_threads()
        torch.set_num_threads(self.running.threads or threads)
        try:
            for item in items:
                yield item, task(worker, item)
        finally:
            torch.set_num_threads(threads)


# ---- a pool of processes -----------------------------------------------------------------------------------------------

_worker: Worker | None = None  # of this process


class PoolEngine(Engine):
    """Processes of this machine; one that dies costs the item that it was at."""

    name = "pool"

    def __init__(self, lens: Lens, job: Job, running: Running) -> None:
        super().__init__(lens, job, running)
        self._pool: ProcessPoolExecutor | None = None
        self._alive: Any = None  # a pipe: workers end when its other end is closed, also by the death of this process

    def map(self, task: Task[Item, Result], items: Sequence[Item]) -> Iterator[tuple[Item, Result]]:
        """Yield each item with its result, in the order in which they are done."""
        left, failures = dict(enumerate(items)), 0
        while left:
            try:
                for number, result in self._attempt(task, left):
                    failures = 0
                    yield left.pop(number), result
            except BrokenProcessPool as error:
                self.close()
                self.retries += 1
                failures += 1
                if failures == _ATTEMPTS:
                    raise NormlensError(
                        f"worker processes died {failures} times in a row (is memory short?); progress is kept, run the "
                        "same command again with fewer --workers"
                    ) from error

    def _attempt(self, task: Task[Item, Result], items: Mapping[int, Item]) -> Iterator[tuple[int, Result]]:
        if self._pool is None:
            self._pool = self._started()
        futures: dict[Future[Result], int] = {}
        for number, item in items.items():
            futures[self._pool.submit(_apply, task, item)] = number
        for future in as_completed(futures):
            yield futures[future], future.result()

    def _started(self) -> ProcessPoolExecutor:
        context = multiprocessing.get_context("spawn")
        watched, self._alive = context.Pipe(duplex=False)
        threads = self.running.threads or max(1, (os.cpu_count() or 1) // self.workers)
        arguments = (watched, self.lens.model, self.lens.tokenizer, self.job, threads)
        return ProcessPoolExecutor(self.workers, context, _start_worker, arguments)

    def close(self) -> None:
        """End the processes, at once if they are at work."""
        if self._pool is not None:
            self._alive.close()
            self._pool.shutdown(wait=True, cancel_futures=True)
            self._pool = None


def _start_worker(driver: Any, model: Any, tokenizer: Any, job: Job, threads: int) -> None:
    """Make the worker of a new process, which ends with its driver and leaves interruptions to it."""
    from normlens.corpus.run import Worker
    from normlens.lens import Lens

    global _worker
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with, args=(driver,), daemon=True).start()
    torch.set_num_threads(threads)
    _worker = Worker(Lens(model, tokenizer), job)


def _end_with(driver: Any) -> None:
    with suppress(EOFError, OSError):
        driver.recv()
    os._exit(1)


def _apply(task: Task[Item, Result], item: Item) -> Result:
    assert _worker is not None, "the pool has started this process"
    return task(_worker, item)


# ---- Ray ---------------------------------------------------------------------------------------------------------------

_ray_workers: dict[str, Worker] = {}  # of this process, by job


class RayEngine(Engine):
    """Tasks on a Ray cluster: an existing one by its address, or a new one on this machine.

    Retries, placement, GPUs and autoscaling are Ray's.
    """

    name = "ray"

    def __init__(self, lens: Lens, job: Job, running: Running) -> None:
        super().__init__(lens, job, running)
        self._ray, self._connected_here = self._connect()
        self._shared = self._ray.put((lens.model, lens.tokenizer, job))
        if running.workers is None:
            self.workers = int(self._ray.cluster_resources().get("CPU", 1))

    def map(self, task: Task[Item, Result], items: Sequence[Item]) -> Iterator[tuple[Item, Result]]:
        """Yield each item with its result, in the order in which they are done."""
        ray, running = self._ray, self.running
        threads = running.threads or 1
        function = ray.remote(_ray_task).options(
            num_cpus=threads, num_gpus=running.gpus, max_retries=_ATTEMPTS, name=f"normlens {task.__name__}"
        )
        waiting, pending = list(reversed(items)), dict[Any, Item]()
        while waiting or pending:
            while waiting and len(pending) < (running.workers or _MOST_PENDING):
                item = waiting.pop()
                pending[function.remote([self._shared], self.job.fingerprint, threads, task, item)] = item
            done, _ = ray.wait(list(pending), num_returns=1)
            yield pending.pop(done[0]), self._result(done[0])

    def close(self) -> None:
        """Leave the cluster; one that was started here ends."""
        if self._connected_here:
            self._ray.shutdown()

    def _result(self, reference: Any) -> Any:
        errors = self._ray.exceptions
        try:
            return self._ray.get(reference)
        except errors.RayTaskError as error:
            raise (error.cause if isinstance(error.cause, Exception) else error) from None
        except errors.RayError as error:
            raise NormlensError(
                f"the Ray cluster gave up a task after {_ATTEMPTS} attempts ({type(error).__name__}); progress is kept, "
                "run the same command again"
            ) from error

    def _connect(self) -> tuple[Any, bool]:
        """Ray, and whether this engine has connected to it."""
        os.environ.setdefault("RAY_raylet_start_wait_time_s", "300")  # 30 are too few on a busy machine
        # Ray answers a driver when its first workers have started; if one of them dies before, it never does.
        os.environ.setdefault("RAY_prestart_worker_first_driver", "0")
        try:
            import ray
        except ImportError as error:
            raise InputError("the ray engine needs Ray; pip install 'normlens[ray]'") from error
        if ray.is_initialized():
            return ray, False
        address = self.running.address
        options: Json = {"log_to_driver": False, "logging_level": "error", "address": address or "local"}
        if address is None:
            weights = sum(p.numel() * p.element_size() for p in self.lens.model.parameters())
            options["object_store_memory"] = max(2 * weights, _LEAST_STORE)
            options |= {"include_dashboard": False, "_node_ip_address": "127.0.0.1"}
        try:
            ray.init(**options)
        except Exception as error:  # Ray raises plain ones where a node of its own does not come up in time
            reason = first_line(error)
            if address is not None and isinstance(error, ConnectionError | ValueError):
                raise InputError(
                    f"no Ray cluster answers at {address!r} ({reason}); start one with ray start --head, or drop --address"
                ) from error
            raise NormlensError(
                f"Ray did not start ({reason}); run the same command again, or use --engine pool"
            ) from error
        if address is None and self.running.gpus > ray.cluster_resources().get("GPU", 0):
            ray.shutdown()
            raise InputError("this machine has no such GPU for a Ray worker; drop --gpus-per-worker")
        return ray, True


def _ray_task(shared: list[Any], key: str, threads: int, task: Task[Item, Result], item: Item) -> Result:
    """Apply a task in a process of the cluster, which keeps its worker for later tasks."""
    if key not in _ray_workers:
        import ray

        from normlens.corpus.run import Worker
        from normlens.lens import Lens

        model, tokenizer, job = ray.get(shared[0])
        if ray.get_gpu_ids():
            if not torch.cuda.is_available():
                raise InputError("a Ray node has no GPU that PyTorch can use; drop --gpus-per-worker")
            model = model.to("cuda")  # Ray shows each task its own GPUs only
        torch.set_num_threads(threads)
        _ray_workers.clear()
        _ray_workers[key] = Worker(Lens(model, tokenizer), job)
    return task(_ray_workers[key], item)
