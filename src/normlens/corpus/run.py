"""One corpus run: list the ranges, have those without a shard counted by an engine, merge all shards, write the tables."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np
import pandas as pd
from jaxtyping import Float

from normlens.anatomy.examine import is_encoder_decoder
from normlens.anatomy.inputs import longest_input
from normlens.corpus import batches
from normlens.corpus.batches import Batch, BatchValues, SiteValues, batched, default_batch_size
from normlens.corpus.correlations import PairFiles, plan_for_flagged, replace_flagged
from normlens.corpus.engines import Engine, start_engine
from normlens.corpus.options import COUNTED, CorpusOptions, Covariate, Plan, Reading, Running, split_options
from normlens.corpus.reading import RecordTable, Source, named_paths, unreadable, write_records
from normlens.corpus.result import FORMAT, TOKEN_ROWS, CorpusResult, RunFolder, open_corpus, write_parquet
from normlens.corpus.samples import TokenRows
from normlens.corpus.sequences import (
    Categories,
    SequenceBuilder,
    TokenSequence,
    cut_length,
    ranks_by_count,
    read_ranks,
    token_counts,
)
from normlens.corpus.statistics import Statistics
from normlens.errors import InputError
from normlens.io.checksums import file_digest
from normlens.io.remote import AnyPath, arrow, is_remote, path_of
from normlens.io.writing import atomic_write, lock_folder
from normlens.measures.request import Request
from normlens.measures.run import SiteResult
from normlens.provenance import config_digest, tokenizer_digest, versions
from normlens.types import Json

if TYPE_CHECKING:
    from normlens.lens import Lens

_LISTED = 20  # records that were not used, by place
_MERGED_BY_DRIVER = 8  # more shards than this are first merged in groups, by workers
_NOT_COUNTED = ("precision", "per_token", "exact", "sites")  # fields of a plan that the manifest has elsewhere


class Range(NamedTuple):
    """Consecutive sequences of the corpus; borders are multiples of `CHUNK_SIZE`."""

    start: int
    stop: int


@dataclass(frozen=True)
class Progress:
    """The state of a run."""

    sequences: int  # counted so far
    seconds: float  # of this attempt
    fresh: int  # sequences of this attempt
    total: int
    workers: int = 1

    @property
    def rate(self) -> float:
        """Sequences per second."""
        return self.fresh / self.seconds if self.seconds else 0.0

    @property
    def seconds_left(self) -> float | None:
        """The remaining time at this rate."""
        return (self.total - self.sequences) / self.rate if self.rate > 0 else None


# ---- what a worker does ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Job:
    """Everything that a worker needs besides the model; it travels to other processes."""

    fingerprint: str
    plan: Plan
    table: RecordTable
    builder: SequenceBuilder
    vocabulary: list[str]
    folder: AnyPath  # of shards
    token_rows: AnyPath  # a folder
    on_error: str
    batch_size: int
    chunk_size: int

    def shard(self, part: Range) -> AnyPath:
        """Return the path of the shard of a range."""
        return self.folder / f"{self.fingerprint[:16]}-{part.start:012d}-{part.stop:012d}.shard"


@dataclass
class Summary:
    """Counts of a range that stand in the manifest."""

    sequences: int = 0
    tokens: int = 0
    empty: int = 0  # records of which no token was left
    empty_places: list[str] = field(default_factory=list)
    proof: float = 0.0  # the largest error
    seconds: float = 0.0  # of processor time

    def merge(self, other: Summary) -> None:
        """Add the counts of another range."""
        self.sequences += other.sequences
        self.tokens += other.tokens
        self.empty += other.empty
        self.empty_places = [*self.empty_places, *other.empty_places][:_LISTED]
        self.proof = max(self.proof, other.proof)
        self.seconds += other.seconds


class Worker:
    """A model and a job."""

    def __init__(self, lens: Lens, job: Job) -> None:
        if not is_remote(job.folder) and not job.folder.is_dir():
            raise InputError(f"{job.folder} is not on this node; put --out on a shared file system or an object store")
        self.lens, self.job = lens, job

    def count(self, part: Range, plan: Plan, collectors: Sequence[Collector]) -> Summary:
        """Run the sequences of a range and hand every site, and every batch, to the collectors."""
        request = request_for(self.lens, plan)
        summary, start = Summary(), time.process_time()
        for at in range(part.start, part.stop, self.job.chunk_size):
            stop = min(at + self.job.chunk_size, part.stop)
            for batch in batched(self._sequences(Range(at, stop), summary), self.job.batch_size):
                summary.proof = max(summary.proof, count_batch(self.lens, batch, plan, request, collectors))
        summary.seconds = time.process_time() - start
        return summary

    def _sequences(self, part: Range, summary: Summary) -> list[TokenSequence]:
        sequences = []
        for made in self.job.builder.build(self.job.table.records(*part), part.start):
            if isinstance(made, TokenSequence):
                sequences.append(made)
                summary.tokens += sum(made.lengths)
                continue
            if self.job.on_error == "stop":
                raise unreadable(made)
            summary.empty += 1
            summary.empty_places = [*summary.empty_places, made.place][:_LISTED]
        summary.sequences += len(sequences)
        return sequences


class Collector(Protocol):
    """Takes in what a forward pass computed: all statistics, rows per token, or files with every pair."""

    def update(self, site: SiteValues) -> None: ...

    def finish(self, batch: BatchValues) -> None: ...


def count_batch(lens: Lens, batch: Batch, plan: Plan, request: Request, collectors: Sequence[Collector]) -> float:
    """Run a batch, hand every site and then the batch to the collectors, and return the largest proof error."""
    values, errors = BatchValues(batch), [0.0]

    def deliver(result: SiteResult, block: object) -> None:
        errors.append(float(result.proof.max()))
        site = SiteValues(plan, batch, result)
        values.add(site)
        for collector in collectors:
            collector.update(site)

    with batch.steady_rounding():
        lens.run(batch.inputs(next(lens.model.parameters()).device), request, deliver)
    for collector in collectors:
        collector.finish(values)
    return max(errors)


def request_for(lens: Lens, plan: Plan) -> Request:
    """Return the measures that a plan asks of the model."""
    return Request.of(
        lens.anatomy, measures=plan.requested, mixing=plan.mixing, layers=plan.layers, precision=plan.precision
    )


def count_range(worker: Worker, part: Range) -> Summary:
    """Count a range into its shard: a pure function of model, corpus, plan and range."""
    job = worker.job
    statistics = Statistics(job.plan)
    rows = TokenRows(job.plan)
    summary = worker.count(part, job.plan, [statistics, rows] if job.plan.per_token else [statistics])
    if rows:
        write_parquet(job.token_rows / f"part-{part.start:012d}-{part.stop:012d}.parquet", rows.frame(job.vocabulary))
    write_shard(job.shard(part), statistics, summary)
    return summary


def merge_ranges(worker: Worker, parts: tuple[Range, ...]) -> Range:
    """Make one shard of neighbouring ones."""
    job, whole = worker.job, Range(parts[0].start, parts[-1].stop)
    statistics, summary = merged(job, parts)
    write_shard(job.shard(whole), statistics, summary)
    return whole


def write_pairs(worker: Worker, item: tuple[Plan, Path, Range]) -> None:
    """Write every pair of a range, for an exact ranking."""
    plan, folder, part = item
    with closing(PairFiles(plan, folder, f"{part.start:012d}")) as files:
        worker.count(part, plan, [files])


# ---- shards ------------------------------------------------------------------------------------------------------------


def write_shard(path: AnyPath, statistics: Statistics, summary: Summary) -> None:
    """Write the statistics of a range, compressed and with a checksum."""
    from safetensors.numpy import save

    arrays = {name: np.ascontiguousarray(array) for name, array in statistics.state().items()}
    about = {"summary": json.dumps(dataclasses.asdict(summary)), "sha256": _checksum(arrays)}
    with atomic_write(path) as stream:
        stream.write(arrow("a shard").Codec("zstd", 1).compress(save(arrays, about), asbytes=True))


def read_shard(path: AnyPath) -> tuple[dict[str, np.ndarray], Summary]:
    """Read a shard; one that is damaged is an error."""
    from safetensors import SafetensorError
    from safetensors.numpy import load

    pa = arrow("a shard")
    try:
        content = pa.CompressedInputStream(pa.BufferReader(path.read_bytes()), "zstd").read()
        arrays = load(content)
        size = int.from_bytes(content[:8], "little")
        about = json.loads(content[8 : 8 + size])["__metadata__"]
        if about["sha256"] != _checksum(arrays):
            raise ValueError("its checksum is wrong")
        return arrays, Summary(**json.loads(about["summary"]))
    except (OSError, ValueError, KeyError, TypeError, SafetensorError, pa.ArrowException) as error:
        raise InputError(f"the shard {path} is damaged ({error or type(error).__name__})") from error


def _checksum(arrays: Mapping[str, np.ndarray]) -> str:
    digest = hashlib.sha256()
    for name in sorted(arrays):
        digest.update(f"{name} {arrays[name].dtype} {arrays[name].shape}\n".encode())
        digest.update(arrays[name].tobytes())
    return digest.hexdigest()


def merged(job: Job, parts: Sequence[Range]) -> tuple[Statistics, Summary]:
    """Merge the shards of some ranges, in order."""
    statistics, summary = Statistics(job.plan), Summary()
    for part in parts:
        state, own = read_shard(job.shard(part))
        statistics.merge(state)
        summary.merge(own)
    return statistics, summary


def has_shard(job: Job, part: Range) -> bool:
    """Return True if the shard of a range exists and is whole; a damaged one is removed."""
    path = job.shard(part)
    if not path.exists():
        return False
    try:
        read_shard(path)
    except InputError:
        path.unlink()
        return False
    return True


# ---- the run -----------------------------------------------------------------------------------------------------------


def count_corpus(
    lens: Lens, source: Source, out: str | AnyPath, options: CorpusOptions, progress: Callable[[Progress], None] | None
) -> CorpusResult:
    """Run a corpus to its end, from where an earlier attempt stopped.

    Args:
        lens: The model.
        source: The sources of the corpus.
        out: The output folder, or its address.
        options: What to read, what to compute, how to run.
        progress: Called as sequences are counted.

    Returns:
        The results, read back from the folder.
    """
    arrow("a corpus, whose tables are Parquet files,")
    reading, computing, running = split_options(options)
    covariates = computing.get("covariates") or {}
    files = [Path(value) for value in covariates.values() if isinstance(value, str | Path) and value != COUNTED]
    folder = RunFolder(path_of(out))
    folder.check([*named_paths(source), *files], overwrite=running.overwrite)
    with lock_folder(folder.out, "run"):
        try:
            table = write_records(source, reading, folder.make_unfinished())
            return _Run(lens, table, reading, options, folder, running, progress).result()
        finally:
            folder.remove_if_empty()


class _Run:
    """One run, step by step."""

    def __init__(
        self,
        lens: Lens,
        table: RecordTable,
        reading: Reading,
        options: CorpusOptions,
        folder: RunFolder,
        running: Running,
        progress: Callable[[Progress], None] | None,
    ) -> None:
        self.lens, self.table, self.folder, self.running, self.progress = lens, table, folder, running, progress
        self.started, self.driver_started = time.monotonic(), time.process_time()
        self._done = self._fresh = 0  # sequences
        builder = open_builder(lens, table, reading)
        vocabulary = [str(token) for token in lens.tokenizer.convert_ids_to_tokens(range(len(lens.tokenizer)))]
        plan = plan_of(lens, table, builder, options)
        on_gpu = running.gpus > 0 or next(lens.model.parameters()).device.type != "cpu"
        batch_size = running.batch_size or default_batch_size(on_gpu)
        self.identity = _identity(lens, table, reading, builder, plan, batch_size, vocabulary)
        # A source is its records, wherever its file lies.
        counted = {**self.identity, "inputs": [source.records_sha256 for source in table.log.sources]}
        fingerprint = hashlib.sha256(json.dumps(counted, sort_keys=True, default=str).encode()).hexdigest()
        portable = dataclasses.replace(builder, categories=builder.categories.portable(vocabulary))
        self.job = Job(
            fingerprint, plan, table, portable, vocabulary, _absolute(folder.unfinished), _absolute(folder.token_rows),
            reading.on_error, batch_size, batches.CHUNK_SIZE,
        )  # fmt: skip

    def result(self) -> CorpusResult:
        """Do what is left of the run."""
        folder, fingerprint = self.folder, self.job.fingerprint
        if self.running.fresh:
            folder.clear(keep=self.table.path, overwrite=self.running.overwrite)
        if not folder.is_finished(fingerprint, self.table.path):
            if not self.table.size:
                folder.drop(self.table.path)
                raise InputError("the corpus has no sequence that can be read; check the source")
            record = folder.begin(fingerprint, self.identity, self.table.path)
            with closing(start_engine(self.lens, self.job, self.running)) as engine:
                self._count(engine, record)
        folder.end()
        return open_corpus(folder.out)

    def _count(self, engine: Engine, record: Json) -> None:
        ranges = self._ranges(engine, record)
        missing = [part for part in ranges if not has_shard(self.job, part)]
        self._done = self.table.size - sum(part.stop - part.start for part in missing)
        for part, _ in engine.map(count_range, missing):
            self._report(engine, part)
        seconds = record["seconds"] + time.monotonic() - self.started
        self.folder.note(record | {"seconds": seconds})
        statistics, summary, size = self._merged(engine, ranges)
        tables = statistics.tables(self.job.vocabulary)
        if self.job.plan.exact:
            tables["correlations"] = self._exact(engine, ranges, tables["correlations"])
        self._write(engine, ranges, tables, summary, {"seconds": seconds, "bytes_to_driver": size})

    def _ranges(self, engine: Engine, record: Json) -> list[Range]:
        """The ranges of the run: one chunk to measure its time, then as much as fills `range_seconds`."""
        chunk, total = self.job.chunk_size, self.table.size
        first = Range(0, min(chunk, total))
        if "range_size" not in record:
            started = time.monotonic()
            for part, _ in engine.map(count_range, [first]):
                chunks = self.running.range_seconds / max(time.monotonic() - started, 1e-3)
                record["range_size"] = chunk * min(max(1, round(chunks)), 1 << 16)
                self.folder.note(record)
                self._report(engine, part)
        size = record["range_size"]
        starts = range(first.stop, total, size)
        return [first, *(Range(start, min(start + size, total)) for start in starts)]

    def _report(self, engine: Engine, part: Range) -> None:
        self._fresh += part.stop - part.start
        self._done += part.stop - part.start
        if self.progress is not None:
            seconds = time.monotonic() - self.started
            self.progress(Progress(self._done, seconds, self._fresh, self.table.size, engine.workers))

    def _merged(self, engine: Engine, ranges: list[Range]) -> tuple[Statistics, Summary, int]:
        """All shards as one, and the bytes that this process has read for it."""
        parts = ranges
        while len(parts) > _MERGED_BY_DRIVER:
            groups = [tuple(parts[at : at + _MERGED_BY_DRIVER]) for at in range(0, len(parts), _MERGED_BY_DRIVER)]
            parts = sorted(whole for _, whole in engine.map(merge_ranges, groups))
        size = sum(self.job.shard(part).stat().st_size for part in parts)
        return *merged(self.job, parts), size

    def _exact(self, engine: Engine, ranges: list[Range], correlations: pd.DataFrame) -> pd.DataFrame:
        flagged = correlations[correlations["flagged"].astype(bool)]
        if flagged.empty:
            return correlations
        if is_remote(self.folder.out) and engine.name != "local":
            raise InputError("an exact pass needs an output folder on a shared file system; choose another --out")
        plan, place = plan_for_flagged(flagged, self.job.plan), self.job.folder
        with tempfile.TemporaryDirectory(dir=None if is_remote(place) else str(place), prefix="exact-") as folder:
            items = [(plan, Path(folder), part) for part in ranges]
            for _ in engine.map(write_pairs, items):
                pass
            return replace_flagged(correlations, plan, Path(folder))

    def _write(
        self,
        engine: Engine,
        ranges: list[Range],
        tables: dict[str, pd.DataFrame],
        summary: Summary,
        costs: dict[str, float],
    ) -> None:
        files: dict[str, AnyPath] = {}
        for name, table in tables.items():
            files[f"{name}.parquet"] = self.folder.out / f"{name}.parquet"
            write_parquet(files[f"{name}.parquet"], table)
        for part in ranges if self.job.plan.per_token else ():
            name = f"part-{part.start:012d}-{part.stop:012d}.parquet"
            if (self.folder.token_rows / name).exists():  # a range without a token has none
                files[f"{TOKEN_ROWS}/{name}"] = self.folder.token_rows / name
        log = self.table.log
        empty = [{"place": place, "reason": "no tokens are left of it"} for place in summary.empty_places]
        flagged = tables["correlations"][tables["correlations"]["flagged"].astype(bool)]
        manifest = {
            "format": FORMAT,
            "fingerprint": self.job.fingerprint,
            **self.identity,
            "counts": {
                "sequences": summary.sequences, "tokens": summary.tokens,
                "unreadable": log.unreadable + summary.empty, "unpaired": log.unpaired,
                "listed": [*log.listed, *empty][:_LISTED],
            },
            "max_proof_error": summary.proof,
            "flagged": flagged[["site", "x", "y", "category", "bound"]].to_dict("records"),
            "engine": {
                "name": engine.name, "workers": engine.workers, "ranges": len(ranges), "retries": engine.retries,
                "driver_seconds": time.process_time() - self.driver_started, "worker_seconds": summary.seconds,
                "bytes_to_driver": costs["bytes_to_driver"],
            },
            "versions": versions(),
            "finished": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            "seconds": costs["seconds"],
            "sequences_per_second": self._fresh / max(time.monotonic() - self.started, 1e-9),
            "files": {name: file_digest(path) for name, path in files.items()},
        }  # fmt: skip
        self.folder.finish(manifest)


def _absolute(path: AnyPath) -> AnyPath:
    return path.resolve() if isinstance(path, Path) else path


def open_builder(lens: Lens, table: RecordTable, reading: Reading) -> SequenceBuilder:
    """Return what makes sequences of records for a model: its tokenizer, its longest input, the categories."""
    if lens.tokenizer is None:
        raise InputError("a corpus needs a tokenizer; pass Lens(model, tokenizer)")
    if is_encoder_decoder(lens.model) != (reading.target_column is not None):
        if reading.target_column is None:
            raise InputError("an encoder-decoder model needs a target; name its column with --target-column")
        raise InputError("only an encoder-decoder model has a target; drop --target-column")
    tags = None
    if reading.tag_column is not None:
        tags = sorted(table.log.tags)
        if not tags and table.size:
            raise InputError(f"the column {reading.tag_column!r} holds no tags; name another --tag-column")
    return SequenceBuilder(
        lens.tokenizer,
        Categories.of(lens.tokenizer, reading.categories, tags),
        cut_length(reading.max_length, longest_input(lens.model, lens.tokenizer)),
        reading.mask,
        reading.seed,
        getattr(getattr(lens.model, "config", None), "decoder_start_token_id", None),
    )


def all_sequences(lens: Lens, source: Source, **options: Any) -> Iterator[TokenSequence]:
    """Yield the sequences of a corpus as a run would count them; `options` are those of `Reading`."""
    reading = Reading(**options)
    with tempfile.TemporaryDirectory() as folder:
        table = write_records(source, reading, Path(folder))
        for made in open_builder(lens, table, reading).build(table.records(0, table.size)):
            if isinstance(made, TokenSequence):
                yield made
            elif reading.on_error == "stop":
                raise unreadable(made)


def plan_of(lens: Lens, table: RecordTable, builder: SequenceBuilder, options: CorpusOptions) -> Plan:
    """Return the checked plan of a run, with its covariates as arrays and the sites of the model."""
    reading, computing, _ = split_options(options)
    arrays = {}
    for name, value in (computing.get("covariates") or {}).items():
        arrays[name] = _covariate(name, value, table, builder)
    return with_sites(Plan.of(builder.categories.names, computing, covariates=arrays, seed=reading.seed), lens)


def with_sites(plan: Plan, lens: Lens) -> Plan:
    """Return the plan for a model, whose sites decide the shapes of tables."""
    sites = request_for(lens, plan).sites
    return dataclasses.replace(plan, sites=tuple((site.kind, site.layer, site.heads) for site in sites))


def _covariate(
    name: str, value: Covariate, table: RecordTable, builder: SequenceBuilder
) -> Float[np.ndarray, " vocabulary"]:
    size = len(builder.tokenizer)
    if isinstance(value, str) and value == COUNTED:
        return ranks_by_count(token_counts(builder.build(table.records(0, table.size)), size))
    if isinstance(value, str | Path):
        return read_ranks(value, size)
    array = np.asarray(value, dtype=np.float64)
    if array.shape != (size,):
        raise InputError(f"the covariate {name} has the shape {array.shape}, the vocabulary has {size} tokens")
    return array


def _identity(
    lens: Lens,
    table: RecordTable,
    reading: Reading,
    builder: SequenceBuilder,
    plan: Plan,
    batch_size: int,
    vocabulary: Sequence[str],
) -> Json:
    """What decides the numbers, and nothing that does not; rules by what they do, since a function has no content."""
    codes = builder.categories.codes(range(len(vocabulary)), vocabulary)
    counted = {name: value for name, value in dataclasses.asdict(plan).items() if name not in _NOT_COUNTED}
    counted["covariates"] = {
        name: hashlib.sha256(values.tobytes()).hexdigest() for name, values in plan.covariates.items()
    }
    corpus = {name: value for name, value in dataclasses.asdict(reading).items() if name != "categories"}
    return {
        "inputs": [dataclasses.asdict(source) for source in table.log.sources],
        "model": lens.identity,
        "corpus": {**corpus, "max_length": builder.max_length},
        "config": config_digest(lens.model),
        "tokenizer": [tokenizer_digest(lens.tokenizer), lens.tokenizer("")["input_ids"]],  # and what it adds
        "rules": {name: getattr(rule, "pattern", "a function") for name, rule in builder.categories.rules},
        "categories": hashlib.sha256(codes.tobytes()).hexdigest(),
        "plan": counted,
        "per_token": plan.per_token,
        "precision": plan.precision,
        "exact": plan.exact,
        "batch_size": batch_size,
        "chunk": batches.CHUNK_SIZE,
    }
