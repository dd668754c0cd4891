"""What a worker does, in whatever process: count sequences into a shard that grows, merge shards, make the tables."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pandas as pd

from normlens.corpus.counting.counter import Rows
from normlens.corpus.counting.statistics import CorpusStatistics
from normlens.corpus.counting.worker import Worker, WorkerSettings
from normlens.corpus.reading.reader import Chunk, CorpusReader
from normlens.corpus.running.prefetch import prefetched
from normlens.corpus.running.shards import Shard, ShardFolder, gaps
from normlens.corpus.running.tables import tables_of, with_names
from normlens.errors import NormlensError
from normlens.io.remote import AnyPath
from normlens.io.writing import atomic_write

if TYPE_CHECKING:
    from normlens.lens import Lens


@dataclass(frozen=True)
class Assignment:
    """What every worker of a run is told once; it travels to other processes."""

    reader: CorpusReader
    settings: WorkerSettings
    shards: ShardFolder
    out: AnyPath  # the folder for tables
    token_rows: AnyPath  # a folder
    save_every: float  # seconds
    chunk: int  # sequences that are read and counted at once


@dataclass(frozen=True)
class Count:
    """Count these sequences into the shard at hand, or into a new one where they are no neighbours of it."""

    start: int
    stop: int


@dataclass(frozen=True)
class Finish:
    """Write the shard at hand; what comes next begins a new one."""


@dataclass(frozen=True)
class Merge:
    """Make one shard of neighbours."""

    shards: tuple[Shard, ...]


@dataclass(frozen=True)
class Tabulate:
    """Write the tables of the whole corpus, which these shards hold."""

    shards: tuple[Shard, ...]


Task = Count | Finish | Merge | Tabulate


@dataclass(frozen=True)
class Totals:
    """What a manifest says of the tables."""

    sequences: int
    tokens: int
    empty: int  # records of which no token was left
    empty_places: tuple[str, ...]  # of the first ones
    proof: float
    flagged: tuple[dict[str, Any], ...]  # correlations whose bound is wide


@dataclass(frozen=True)
class Done:
    """A task is done; after `Finish` and `Merge` its shard is written, after `Tabulate` the tables."""

    shard: Shard | None
    seconds: float  # of processor time
    clock: float  # seconds that passed
    totals: Totals | None = None


class ShardWorker:
    """A model, and a shard that grows."""

    def __init__(self, lens: Lens, assignment: Assignment) -> None:
        self._assignment, self._reader = assignment, assignment.reader
        self._worker = Worker(lens, assignment.settings)
        # A second thread reads ahead only where a GPU does the work: on a CPU it would take its time from the model.
        self._ahead = 0 if self._worker.device.type == "cpu" else 2
        self._statistics: CorpusStatistics | None = None
        self._counted: Shard | None = None  # what the statistics hold
        self._saved: Shard | None = None  # what of it is in the folder
        self._superseded: list[Shard] = []  # shards in the folder that a longer one holds now
        self._saved_at = time.monotonic()
        self._chunks: Generator[Chunk, None, None] = prefetched(iter(()), 0)  # what is read
        self._at = -1  # the number of its next sequence

    def do(self, task: Task, report: Callable[[int], None]) -> Done:
        """Do a task to its end; `report` hears how many sequences were counted."""
        start, clock = time.process_time(), time.monotonic()
        self.remove_superseded()
        shard: Shard | None = None
        totals: Totals | None = None
        if isinstance(task, Merge):
            shard = self._assignment.shards.merge(task.shards, self._assignment.settings.plan)
        elif isinstance(task, Tabulate):
            totals = tabulate(self._assignment, task.shards)
        elif isinstance(task, Finish):
            shard = self.finish()
        else:
            for counted in self.count(task.start, task.stop):
                report(counted)
        return Done(shard, time.process_time() - start, time.monotonic() - clock, totals)

    def count(self, start: int, stop: int) -> Iterator[int]:
        """Count sequences; yields how many were, chunk by chunk."""
        if self._at != start:
            self._chunks.close()
            everything = self._reader.chunks(start, self._reader.survey.sequences, self._assignment.chunk)
            self._chunks, self._at = prefetched(everything, self._ahead), start
        while self._at < stop:
            chunk = next(self._chunks)
            self._at = chunk.stop
            self._count(chunk)
            yield chunk.stop - chunk.start

    def _count(self, chunk: Chunk) -> None:
        if self._statistics is None or self._counted is None or self._counted.stop != chunk.start:
            if self._statistics is not None:
                self.finish()
            self._statistics, self._counted = CorpusStatistics(self._assignment.settings.plan), None
        rows = self._worker.count(self._statistics, chunk.sequences)
        self._statistics.note_empty(len(chunk.empty), [record.place for record in chunk.empty])
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
            self._superseded += [] if before is None else [before]
        self._saved, self._saved_at = self._counted, time.monotonic()
        return self._counted

    def remove_superseded(self) -> None:
        """Remove what longer shards hold; to be called when the driver is known to live.

        A worker that is cut off from its driver works on for a while, and by then another driver, or the same one, may
        count on the shard that it found.
        """
        self._assignment.shards.remove(self._superseded)
        self._superseded.clear()

    def _write_rows(self, chunk: Chunk, rows: Rows) -> None:
        frame = with_names(pd.DataFrame(rows), self._assignment.settings.plan.categories, self._reader.vocabulary)
        write_parquet(self._assignment.token_rows / part_name(chunk.start // self._assignment.chunk), frame)


def tabulate(assignment: Assignment, shards: Sequence[Shard]) -> Totals:
    """Make the tables from the shards that hold the whole corpus, and write them."""
    if gaps(shards, assignment.reader.survey.sequences):
        raise NormlensError(
            f"all shards must be there at the end: {assignment.shards.folder} lacks some; run the command again"
        )
    statistics = assignment.shards.merged(shards, assignment.settings.plan)
    tables = tables_of(statistics, assignment.reader.vocabulary)
    for name, table in tables.items():
        write_parquet(assignment.out / f"{name}.parquet", table)
    return Totals(
        statistics.sequences,
        int(statistics.tokens.sum()),
        statistics.empty,
        tuple(statistics.empty_places),
        statistics.proof,
        flagged(tables["correlations"]),
    )


def flagged(correlations: pd.DataFrame) -> tuple[dict[str, Any], ...]:
    """Correlations whose bound is wide, as a manifest lists them."""
    rows = correlations[correlations["flagged"].astype(bool)]
    names = ["site", "x", "y", "category", "bound"]
    return tuple(dict(zip(names, row, strict=True)) for row in rows[names].itertuples(index=False, name=None))


def part_name(chunk: int) -> str:
    """The file of a chunk's rows per token."""
    return f"part-{chunk:08d}.parquet"


def write_parquet(path: AnyPath, table: pd.DataFrame) -> None:
    """A Parquet file that depends on its content alone."""
    with atomic_write(path) as stream:
        table.to_parquet(stream, index=False, engine="pyarrow")
