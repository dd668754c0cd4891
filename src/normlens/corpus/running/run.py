"""One corpus run: survey it, have it counted into shards by an engine, merge the shards, write the results."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from normlens.anatomy.examine import is_encoder_decoder
from normlens.anatomy.inputs import longest_input
from normlens.corpus.counting.plan import Plan
from normlens.corpus.counting.worker import WorkerSettings, batch_size_for
from normlens.corpus.reading.corpus import Corpus
from normlens.corpus.reading.reader import COUNTED, CorpusReader, Covariate, ModelSide
from normlens.corpus.reading.sequences import EMPTY
from normlens.corpus.reading.sources import Source, WantedRows, named_paths, readable_sources
from normlens.corpus.reading.survey import Parallel
from normlens.corpus.running.engines import Engine, Resources, engine_of
from normlens.corpus.running.exact_pass import recompute_flagged
from normlens.corpus.running.result import FORMAT, MANIFEST, TABLES, TOKEN_ROWS, CorpusResult, open_corpus, read_table
from normlens.corpus.running.run_folder import RunFolder
from normlens.corpus.running.shard_worker import Assignment, flagged, part_name, tabulate, write_parquet
from normlens.corpus.running.shards import FAN_IN, ShardFolder, gaps
from normlens.corpus.running.tables import refuse_nothing
from normlens.errors import InputError
from normlens.io.checksums import file_digest, write_checked_json
from normlens.io.remote import AnyPath, arrow, size_of
from normlens.io.writing import lock_folder
from normlens.provenance import versions

if TYPE_CHECKING:
    from normlens.lens import Lens

CHUNK_SIZE = 64  # sequences that are read, computed and counted as a whole
_IN_PLAN_ONLY = ("precision", "per_token", "exact")  # fields of the plan that the manifest has elsewhere
_LISTED = 20  # records that were not used, by place


@dataclass(frozen=True)
class Progress:
    """How far a run is."""

    sequences: int
    seconds: float  # of this attempt
    fresh: int  # sequences of this attempt
    total: int | None
    workers: int = 1  # at work
    shards: int = 0  # done

    @property
    def rate(self) -> float:
        """Sequences per second."""
        return self.fresh / self.seconds if self.seconds else 0.0

    @property
    def seconds_left(self) -> float | None:
        """At this rate."""
        return (self.total - self.sequences) / self.rate if self.total is not None and self.rate > 0 else None


@dataclass(frozen=True)
class RunOptions:
    """How a run is made; none of it changes the numbers, except `batched` in their last digits."""

    engine: str = "local"
    workers: int | str | None = None  # processes (local) or actors (ray); MIN:MAX where the cluster may grow
    threads: int | None = None  # per worker
    gpus: float = 0.0  # per worker
    address: str | None = None  # of a Ray cluster
    batch_size: int | None = None  # None: what suits the device
    batched: bool = False  # a batch goes through the model at once, for a GPU
    fresh: bool = False  # start again, dropping the run that the folder holds
    overwrite: bool = False  # with `fresh`: also where it cannot be told which files are that run's
    save_every: float = 30.0  # seconds after which a shard is written, however much it holds
    progress: Callable[[Progress], None] | None = None

    def __post_init__(self) -> None:
        if self.batch_size is not None and self.batch_size < 1:
            raise InputError(f"a batch holds at least one sequence: batch_size is {self.batch_size}")


@contextmanager
def started_engine(options: RunOptions) -> Iterator[Engine]:
    """The engine that the options name, for as long as the block runs."""
    resources = Resources.of(options.workers, options.threads, options.gpus)
    engine = engine_of(options.engine, resources, options.address)
    try:
        yield engine
    finally:
        engine.close()


def open_reader(lens: Lens, corpus: Corpus, parallel: Parallel = map) -> CorpusReader:
    """A corpus as this model reads it: with its tokenizer, and cut at what it takes."""
    start = getattr(getattr(lens.model, "config", None), "decoder_start_token_id", None)
    model = ModelSide(longest_input(lens.model, lens.tokenizer), is_encoder_decoder(lens.model), start)
    return CorpusReader(corpus, lens.tokenizer, model, parallel)


@contextmanager
def claimed_folder(out: AnyPath, inputs: Iterable[AnyPath], *, overwrite: bool) -> Iterator[RunFolder]:
    """An output folder for one run alone, refused before anything is written where that would cost somebody a file."""
    arrow("a corpus, whose tables are Parquet files,")
    folder = RunFolder(out)
    folder.check(inputs, overwrite=overwrite)
    with lock_folder(out, "run"):
        try:
            yield folder
        finally:
            folder.remove_if_empty()


def count_corpus(
    lens: Lens,
    source: Source,
    out: AnyPath,
    wanted: WantedRows,
    reading: Callable[[tuple[AnyPath, ...]], Corpus],
    planning: Callable[..., Plan],
    covariates: Mapping[str, Covariate],
    options: RunOptions,
) -> CorpusResult:
    """Claim the output folder, open the sources, start the engine, and run: what `Lens.corpus` does, in that order.

    Of a source that is copied, only what is `wanted`. `reading` makes the corpus of its opened sources, `planning` the plan
    of the names of categories and the covariates.
    """
    files = [Path(value) for value in covariates.values() if isinstance(value, str | Path) and value != COUNTED]
    with (
        claimed_folder(out, [*named_paths(source), *files], overwrite=options.overwrite) as folder,
        readable_sources(source, folder.unfinished, wanted) as sources,
        started_engine(options) as engine,
    ):
        reader = open_reader(lens, reading(sources), engine.parallel)
        plan = planning(reader.categories.names, covariates=reader.covariates(covariates))
        return run_corpus(lens, reader, plan, folder, options, engine)


def run_corpus(
    lens: Lens,
    reader: CorpusReader,
    plan: Plan,
    folder: RunFolder,
    options: RunOptions | None = None,
    engine: Engine | None = None,
) -> CorpusResult:
    """Run a corpus to its end, from where an earlier attempt stopped, and write the results to the folder."""
    options = options or RunOptions()
    if engine is None:
        with started_engine(options) as started:
            return run_corpus(lens, reader, plan, folder, options, started)
    start, driver_start = time.monotonic(), time.process_time()
    settings = WorkerSettings(plan, options.batch_size, options.batched)
    identity = _identity(lens, reader, settings)
    fingerprint = hashlib.sha256(json.dumps(identity, sort_keys=True, default=str).encode()).hexdigest()
    if options.fresh:
        folder.clear(overwrite=options.overwrite)
    if folder.is_finished(fingerprint):
        folder.end()
        return open_corpus(folder.out)
    refuse_nothing(reader.survey.sequences)  # before the folder is taken up: the next corpus is another one
    seconds_before = folder.begin(fingerprint, identity)
    shards = ShardFolder(_absolute(folder.unfinished), fingerprint)
    assignment = Assignment(
        reader.portable(), settings, shards, _absolute(folder.out), _absolute(folder.token_rows), options.save_every,
        CHUNK_SIZE,
    )  # fmt: skip

    total = reader.survey.sequences
    done = shards.found(engine.parallel)
    before = sequences = sum(shard.size for shard in done)
    if gaps(done, total) or len(done) > FAN_IN:
        for step in engine.run(lens, assignment, done):
            sequences += step.counted
            if options.progress is not None and step.counted:
                seconds = time.monotonic() - start
                fresh = sequences - before
                options.progress(Progress(sequences, seconds, fresh, total, step.workers, step.shards))
    seconds = time.monotonic() - start
    folder.note_time(fingerprint, identity, seconds_before + seconds)

    totals = engine.accounts.totals or tabulate(
        assignment, done
    )  # the latter where only the tables were left to be made
    tables = {name: folder.out / f"{name}.parquet" for name in TABLES}
    if plan.exact:
        again, rough = reader.chunks(0, total, CHUNK_SIZE), read_table(tables["correlations"])
        exact = recompute_flagged(rough, lens, settings, again, folder.unfinished)
        write_parquet(tables["correlations"], exact)
        totals = dataclasses.replace(totals, flagged=flagged(exact))
    read_by_driver = sum(map(size_of, tables.values())) if engine.workers > 1 or engine.name == "ray" else 0
    files = {path.name: path for path in tables.values()}
    for part in map(part_name, range(-(-total // CHUNK_SIZE) if plan.per_token else 0)):
        if (folder.token_rows / part).exists():  # where a chunk has no token, there is none
            files[f"{TOKEN_ROWS}/{part}"] = folder.token_rows / part
    log = reader.survey.log()
    empty = [{"place": place, "reason": EMPTY} for place in totals.empty_places]
    device = next(lens.model.parameters()).device if not options.gpus else None
    write_checked_json(folder.out / MANIFEST, {
        "format": FORMAT,
        "fingerprint": fingerprint,
        **identity,
        "counts": {
            "sequences": totals.sequences, "tokens": totals.tokens,
            "unreadable": log.errors + totals.empty, "unpaired": log.harmless,
            "listed": [*log.listed, *empty][:_LISTED],
        },
        "max_proof_error": totals.proof,
        "flagged": list(totals.flagged),
        "promise": _promise(options, "cuda" if device is None else device.type),
        "engine": {
            "name": engine.name, "workers": engine.workers,
            "batch_size": options.batch_size or (None if device is None else batch_size_for(device)),
            "driver_seconds": time.process_time() - driver_start, "worker_seconds": engine.accounts.worker_seconds,
            "bytes_to_driver": engine.accounts.bytes_to_driver + read_by_driver,
            "shards": engine.accounts.shards_written, "retries": engine.accounts.retries,
        },
        "versions": versions(),
        "finished": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "seconds": seconds_before + seconds,
        "sequences_per_second": (total - before) / seconds,
        "files": dict(zip(files, engine.parallel(file_digest, files.values()), strict=True)),
    })  # fmt: skip
    folder.end()
    return open_corpus(folder.out)


def _absolute(path: AnyPath) -> AnyPath:
    return path.resolve() if isinstance(path, Path) else path


def _promise(options: RunOptions, device: str) -> str:
    """What may change when the same corpus is counted again in another way."""
    if device == "cpu" and not options.batched:
        return "counts are equal and sums agree to 1e-9 for any engine, workers, pieces, restarts and batch size"
    return (
        "every sequence is counted once, for any engine, workers, pieces and restarts; with whole batches, or on a GPU, a "
        "number may differ in its last digits by device and batch, and so change the bin that it is counted in"
    )


def _identity(lens: Lens, reader: CorpusReader, settings: WorkerSettings) -> dict[str, Any]:
    """What decides the numbers, and nothing that does not."""
    corpus, plan = reader.corpus, settings.plan
    counted = {name: value for name, value in dataclasses.asdict(plan).items() if name not in _IN_PLAN_ONLY}
    counted["covariates"] = {
        name: hashlib.sha256(values.tobytes()).hexdigest() for name, values in plan.covariates.items()
    }
    return {
        "inputs": reader.survey.identity(),
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
        "together": settings.batched,
        "unit": CHUNK_SIZE,
    }
