"""The Ray engine: Ray Data hands units to actors that hold the model; a unit that is lost is run again.

What an actor returns is a unit's whole tally, so nothing is counted twice: a unit whose actor died returned nothing.
"""

from __future__ import annotations

import logging
import pickle
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any

import numpy as np
import torch

from normlens.corpus.engines import Task
from normlens.corpus.files import pack, unpack
from normlens.corpus.worker import Done, Unit, Worker
from normlens.errors import InputError

#: Units handed to Ray at a time. Actors load the model once per window, and a window's units wait in Ray's store.
WINDOW = 2048


class RayEngine:
    """Runs units on a Ray cluster: an existing one by its address, or a new one on this machine."""

    name = "ray"

    def __init__(self, workers: int | None = None, address: str | None = None) -> None:
        self.workers = workers or 1
        self.address = address

    def run(self, task: Task, units: Iterable[Unit]) -> Iterator[Done]:
        """Every unit's result, in order."""
        ray = _import_ray()
        started = not ray.is_initialized()
        if started:
            self._connect(ray)
        try:
            shared = ray.put(_portable(task))
            source = iter(units)
            while window := list(islice(source, WINDOW)):
                yield from _in_order(self._results(ray, shared, window), window[0].index)
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

    def _results(self, ray: Any, shared: Any, window: list[Unit]) -> Iterator[Done]:
        context = ray.data.DataContext.get_current()
        context.enable_progress_bars = False
        logging.getLogger("ray.data").setLevel(logging.ERROR)  # the run has a progress bar of its own
        rows = [{"unit": pickle.dumps(unit)} for unit in window]
        data = ray.data.from_items(rows, override_num_blocks=len(rows)).map_batches(
            RayWorker,
            fn_constructor_args=(shared,),
            batch_size=1,
            compute=ray.data.ActorPoolStrategy(size=self.workers),
        )
        for row in data.iter_rows():
            yield _unpacked(row)


class RayWorker:
    """An actor's work: a model, and a unit at a time."""

    def __init__(self, shared: Any) -> None:
        import ray

        task: dict[str, Any] = ray.get(shared) if isinstance(shared, ray.ObjectRef) else shared
        torch.set_num_threads(1)
        self._worker = _rebuilt(task)

    def __call__(self, batch: dict[str, np.ndarray]) -> dict[str, list[Any]]:
        """A unit in, its tally out."""
        done = [self._worker.work(pickle.loads(unit)) for unit in batch["unit"]]
        return {
            "index": [item.index for item in done],
            "sequences": [item.sequences for item in done],
            "state": [pack(item.state) for item in done],
            "tokens": [b"" if item.tokens is None else pack(item.tokens) for item in done],
        }


def _portable(task: Task) -> dict[str, Any]:
    """A task as plain values; Ray keeps one copy of the weights per machine."""
    return {
        "model": task.lens.model,
        "tokenizer": task.lens.tokenizer,
        "settings": task.settings,
    }


def _rebuilt(portable: dict[str, Any]) -> Worker:
    from normlens.lens import Lens

    return Task(Lens(portable["model"], portable["tokenizer"]), *portable["settings"]).worker()


def _unpacked(row: dict[str, Any]) -> Done:
    tokens = bytes(row["tokens"])
    return Done(
        int(row["index"]), int(row["sequences"]), unpack(bytes(row["state"])), unpack(tokens) if tokens else None
    )


def _in_order(results: Iterator[Done], first: int) -> Iterator[Done]:
    waiting: dict[int, Done] = {}
    expected = first
    for done in results:
        waiting[done.index] = done
        while expected in waiting:
            yield waiting.pop(expected)
            expected += 1


def _import_ray() -> Any:
    try:
        import ray
        import ray.data
    except ImportError as error:
        raise InputError("the ray engine needs Ray: pip install 'normlens[ray]'") from error
    return ray
