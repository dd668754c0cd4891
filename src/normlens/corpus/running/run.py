"""One corpus run: read, cut into chunks, have them counted into shards by an engine, merge the shards, write the results."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd

from normlens.corpus.counting.plan import Plan
from normlens.corpus.counting.worker import Chunk, WorkerSettings, chunks_of
from normlens.corpus.reading.reader import Corpus, CorpusReader, ReadingLog
from normlens.corpus.running.engines import engine_of
from normlens.corpus.running.exact_pass import recompute_flagged
from normlens.corpus.running.result import FORMAT, MANIFEST, CorpusResult, open_corpus
from normlens.corpus.running.run_folder import RunFolder
from normlens.corpus.running.shard_worker import Assignment, part_name, write_parquet
from normlens.corpus.running.shards import Shard, ShardFolder, neighbours, to_merge
from normlens.corpus.running.tables import tables_of
from normlens.errors import InputError, NormlensError
from normlens.files import only_user
from normlens.provenance import versions
from normlens.seals import content_digest, file_digest, write_sealed_json
from normlens.text.encoding import longest_input

if TYPE_CHECKING:
    from normlens.lens import Lens

_HASHED_WHOLE = 1 << 26  # bytes of a file that is hashed whole, though a limit may need less of it
CHUNK_SIZE = 64  # sequences that are computed, retried and counted as a whole
_IN_PLAN_ONLY = ("precision", "per_token", "exact")  # fields of the plan that the manifest has elsewhere


@dataclass(frozen=True)
class Progress:
    """How far a run is."""

    sequences: int
    seconds: float  # of this attempt
    fresh: int  # sequences of this attempt
    total: int | None


@dataclass(frozen=True)
class RunOptions:
    """How a run is made; none of it changes the numbers, except `whole_batches` in their last digits."""

    engine: str = "local"
    workers: int | None = None  # processes (local) or actors (ray)
    address: str | None = None  # of a Ray cluster
    batch_size: int = 8
    whole_batches: bool = False  # a batch goes through the model at once, for a GPU
    fresh: bool = False  # start again, dropping the run that the folder holds
    overwrite: bool = False  # with `fresh`: also where it cannot be told which files are that run's
    save_every: float = 30.0  # seconds after which a shard is written, however much it holds
    progress: Callable[[Progress], None] | None = None

    def __post_init__(self) -> None:
        if self.batch_size < 1:
            raise InputError(f"a batch holds at least one sequence: batch_size is {self.batch_size}")


def open_reader(lens: Lens, corpus: Corpus) -> CorpusReader:
    """A corpus as this model reads it: with its tokenizer, and cut at what it takes."""
    return CorpusReader(corpus, lens.tokenizer, longest_input(lens.model, lens.tokenizer))


@contextmanager
def claimed_folder(out: Path, inputs: Iterable[Path], *, overwrite: bool) -> Iterator[RunFolder]:
    """An output folder for one run alone, refused before anything is written where that would cost somebody a file."""
    folder = RunFolder(out)
    folder.check(inputs, overwrite=overwrite)
    with only_user(out, "run"):
        yield folder


def run_corpus(
    lens: Lens, reader: CorpusReader, plan: Plan, folder: RunFolder, options: RunOptions | None = None
) -> CorpusResult:
    """Run a corpus to its end, from where an earlier attempt stopped, and write the results to the folder."""
    options = options or RunOptions()
    engine = engine_of(options.engine, options.workers, options.address)
    settings = WorkerSettings(plan, options.batch_size, options.whole_batches)
    identity = _identity(lens, reader, settings)
    fingerprint = hashlib.sha256(json.dumps(identity, sort_keys=True, default=str).encode()).hexdigest()
    if options.fresh:
        folder.clear(overwrite=options.overwrite)
    if folder.is_finished(fingerprint):
        folder.end()
        return open_corpus(folder.out)
    seconds_before = folder.begin(fingerprint, identity)
    shards = ShardFolder(folder.unfinished.resolve(), fingerprint)
    assignment = Assignment(settings, shards, folder.token_rows.resolve(), options.save_every)
    start, driver_start, log = time.monotonic(), time.process_time(), ReadingLog()

    done = _few(shards, plan)
    before = sequences = sum(shard.size for shard in done)
    chunks = chunks_of(reader.sequences(log), CHUNK_SIZE)
    left = _not_done(chunks, done)
    first = next(left, None)
    if first is not None:
        total = reader.corpus.estimate() if options.progress is not None else None
        for counted in engine.run(lens, assignment, chain([first], left), done):
            sequences += counted
            if options.progress is not None and counted:
                seconds = time.monotonic() - start
                options.progress(Progress(sequences, seconds, sequences - before, total))
    for _ in chunks:  # what resuming skipped must have been read, so that what it did not use is in the log
        pass
    seconds = time.monotonic() - start
    folder.note_time(fingerprint, identity, seconds_before + seconds)

    done = shards.found()
    if len(list(neighbours(done))) > 1:
        raise NormlensError(
            f"all shards must be there at the end: {folder.unfinished} lacks some; run the command again"
        )
    statistics = shards.merged(done, plan)
    tables = tables_of(statistics, reader.vocabulary)
    if plan.exact:
        again = chunks_of(reader.sequences(), CHUNK_SIZE)
        tables["correlations"] = recompute_flagged(tables["correlations"], lens, settings, again, folder.unfinished)
    for name, table in tables.items():
        write_parquet(folder.out / f"{name}.parquet", table)
    parts = [folder.token_rows / part_name(number) for number in range(_parts(sequences, plan))]
    files = [*(folder.out / f"{name}.parquet" for name in tables), *parts]
    write_sealed_json(folder.out / MANIFEST, {
        "format": FORMAT,
        "fingerprint": fingerprint,
        **identity,
        "counts": {
            "sequences": statistics.sequences, "tokens": int(statistics.tokens.sum()), "unreadable": log.errors,
            "unpaired": log.harmless, "listed": log.listed,
        },
        "worst_proof": statistics.proof,
        "flagged": _flagged(tables["correlations"]),
        "engine": {
            "name": engine.name, "workers": engine.workers, "batch_size": options.batch_size,
            "driver_seconds": time.process_time() - driver_start, "worker_seconds": engine.accounts.worker_seconds,
            "shards": len(done), "retries": engine.accounts.retries,
        },
        "versions": versions(),
        "finished": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "seconds": seconds_before + seconds,
        "sequences_per_second": (statistics.sequences - before) / seconds,
        "files": {path.relative_to(folder.out).as_posix(): file_digest(path) for path in files},
    })  # fmt: skip
    folder.end()
    return open_corpus(folder.out)


def _few(shards: ShardFolder, plan: Plan) -> list[Shard]:
    """What earlier attempts have done, in a handful of shards."""
    done = shards.found()
    while together := to_merge(done):
        merged = shards.merge(together, plan)
        shards.remove(together)
        done = sorted({*done, merged} - set(together))
    return done


def _not_done(chunks: Iterable[Chunk], done: Iterable[Shard]) -> Iterator[Chunk]:
    held = sorted(done)
    for chunk in chunks:
        while held and held[0].stop <= chunk.start:
            held.pop(0)
        if not held or chunk.start < held[0].start:
            yield chunk


def _parts(sequences: int, plan: Plan) -> int:
    """How many files of rows per token there are."""
    return -(-sequences // CHUNK_SIZE) if plan.per_token else 0


def _identity(lens: Lens, reader: CorpusReader, settings: WorkerSettings) -> dict[str, Any]:
    """What decides the numbers, and nothing that does not."""
    corpus, plan = reader.corpus, settings.plan
    counted = {name: value for name, value in dataclasses.asdict(plan).items() if name not in _IN_PLAN_ONLY}
    counted["covariates"] = {
        name: hashlib.sha256(values.tobytes()).hexdigest() for name, values in plan.covariates.items()
    }
    return {
        "inputs": _inputs(reader),
        "model": lens.identity,
        "corpus": {
            "pairs": corpus.pairs,
            "max_length": reader.max_length,
            "mask": corpus.mask,
            "seed": corpus.seed,
            "columns": dataclasses.asdict(corpus.columns),
            "format": corpus.format,
            "skip": corpus.skip,
            "limit": corpus.limit,
            "on_error": corpus.on_error,
            "largest_record": corpus.largest_record,
        },
        "rules": {name: getattr(rule, "pattern", f"function {rule!r}") for name, rule in reader.categories.rules},
        "plan": counted,
        "per_token": plan.per_token,
        "precision": plan.precision,
        "exact": plan.exact,
        "together": settings.whole_batches,
        "unit": CHUNK_SIZE,
    }


def _inputs(reader: CorpusReader) -> list[dict[str, str]]:
    """The content of all that is read: whole files, or of large ones with a limit no more than the sequences up to it."""
    corpus = reader.corpus
    if corpus.limit is None or all(_is_small(source) for source in corpus.sources):
        return [{"path": str(source), "sha256": content_digest(source)} for source in corpus.sources]
    digest, log = hashlib.sha256(), ReadingLog()
    for sequence in reader.sequences(log):
        digest.update(f"{sequence.place}\0{sequence.length}\0".encode(errors="surrogateescape"))
        for array in (sequence.ids, sequence.segments, sequence.category):
            digest.update(b"" if array is None else array.tobytes())
    digest.update(f"{log}".encode(errors="surrogateescape"))
    return [{"path": str(source), "sequences_sha256": digest.hexdigest()} for source in corpus.sources]


def _is_small(source: Path) -> bool:
    return source.is_file() and source.stat().st_size <= _HASHED_WHOLE


def _flagged(correlations: pd.DataFrame) -> list[dict[str, Any]]:
    flagged = correlations[correlations["flagged"].astype(bool)]
    names = ["site", "x", "y", "category", "bound"]
    return [dict(zip(names, row, strict=True)) for row in flagged[names].itertuples(index=False, name=None)]
