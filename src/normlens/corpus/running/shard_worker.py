"""What a worker does, in whatever process: count chunks into a shard that grows, and merge shards that are done."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import pandas as pd

from normlens.corpus.counting.counter import Rows
from normlens.corpus.counting.statistics import CorpusStatistics
from normlens.corpus.counting.worker import Chunk, Worker, WorkerSettings
from normlens.corpus.reading.reader import vocabulary_of
from normlens.corpus.running.shards import Shard, ShardFolder
from normlens.corpus.running.tables import with_names
from normlens.files import whole_file

if TYPE_CHECKING:
    from normlens.lens import Lens


@dataclass(frozen=True)
class Assignment:
    """What every worker of a run is told once; it travels to other processes."""

    settings: WorkerSettings
    shards: ShardFolder
    token_rows: Path  # a folder
    save_every: float  # seconds


@dataclass(frozen=True)
class Count:
    """Count consecutive chunks into one shard."""

    chunks: tuple[Chunk, ...]

    @property
    def shard(self) -> Shard:
        """What will be done."""
        return Shard(self.chunks[0].start, self.chunks[-1].stop)


@dataclass(frozen=True)
class Merge:
    """Make one shard of neighbours."""

    shards: tuple[Shard, ...]


@dataclass(frozen=True)
class Done:
    """A task's shard is written."""

    shard: Shard
    seconds: float  # of processor time


class ShardWorker:
    """A model, and a shard that grows."""

    def __init__(self, lens: Lens, assignment: Assignment) -> None:
        self._lens, self._assignment = lens, assignment
        self._worker = Worker(lens, assignment.settings)
        self._statistics: CorpusStatistics | None = None
        self._counted: Shard | None = None  # what the statistics hold
        self._saved: Shard | None = None  # what of it is in the folder
        self._saved_at = time.monotonic()

    @cached_property
    def _vocabulary(self) -> list[str]:
        return vocabulary_of(self._lens.tokenizer)

    def do(self, task: Count | Merge, report: Callable[[int], None]) -> Done:
        """Do a task to its end; `report` hears how many sequences were counted."""
        start = time.process_time()
        if isinstance(task, Merge):
            shard = self._assignment.shards.merge(task.shards, self._assignment.settings.plan)
        else:
            for chunk in task.chunks:
                self.count(chunk)
                report(len(chunk.sequences))
            shard = self.finish()
        return Done(shard, time.process_time() - start)

    def count(self, chunk: Chunk) -> None:
        """Count a chunk into the shard at hand, or into a new one where it is no neighbour; save it when it is time."""
        if self._statistics is None or self._counted is None or self._counted.stop != chunk.start:
            if self._statistics is not None:
                self.finish()
            self._statistics, self._counted = CorpusStatistics(self._assignment.settings.plan), None
        rows = self._worker.count(self._statistics, chunk.sequences)
        if rows is not None:
            self._write_rows(chunk, rows)
        self._counted = Shard(chunk.start if self._counted is None else self._counted.start, chunk.stop)
        if time.monotonic() - self._saved_at >= self._assignment.save_every:
            self._save()

    def finish(self) -> Shard:
        """Write the shard at hand; what comes next begins a new one."""
        shard = self._save()
        self._statistics = self._counted = self._saved = None
        return shard

    def _save(self) -> Shard:
        assert self._statistics is not None and self._counted is not None, "there is something to save after a chunk"
        shards, before = self._assignment.shards, self._saved
        if before != self._counted:
            shards.write(self._counted, self._statistics)
            shards.remove([] if before is None else [before])
        self._saved, self._saved_at = self._counted, time.monotonic()
        return self._counted

    def _write_rows(self, chunk: Chunk, rows: Rows) -> None:
        frame = with_names(pd.DataFrame(rows), self._assignment.settings.plan.categories, self._vocabulary)
        write_parquet(self._assignment.token_rows / part_name(chunk.index), frame)


def part_name(chunk: int) -> str:
    """The file of a chunk's rows per token."""
    return f"part-{chunk:08d}.parquet"


def write_parquet(path: Path, table: pd.DataFrame) -> None:
    """A Parquet file that depends on its content alone."""
    with whole_file(path) as stream:
        table.to_parquet(stream, index=False, engine="pyarrow")
