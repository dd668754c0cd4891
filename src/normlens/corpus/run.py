"""One corpus run: read, make units, run them on an engine, keep progress, write the results."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import re
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import pandas as pd

from normlens.corpus import checkpoint
from normlens.corpus.batches import Item
from normlens.corpus.categories import Categories
from normlens.corpus.checkpoint import Checkpoint, read_checkpoint
from normlens.corpus.engines import Engine, InProcess, Task
from normlens.corpus.exact import SpillTally
from normlens.corpus.files import file_hash, write_json, write_whole
from normlens.corpus.plan import MIXING, Plan
from normlens.corpus.result import MANIFEST, CorpusResult, open_corpus
from normlens.corpus.sequences import Recipe, build
from normlens.corpus.sources import Columns, Flaw, Record, format_of, read
from normlens.corpus.tables import named, tables_of, unions
from normlens.corpus.tally import Tally
from normlens.corpus.worker import Done, Unit
from normlens.errors import InputError
from normlens.provenance import versions
from normlens.settings import Precision

if TYPE_CHECKING:
    from normlens.lens import Lens

UNIT = 64  # sequences that are computed, retried and counted as a whole
_FORMAT = 1
_LISTED = 20  # flaws named in the manifest; all are counted

OnError = Literal["stop", "skip"]


@dataclass(frozen=True)
class Corpus:
    """What is read, and how it becomes sequences."""

    sources: tuple[Path, ...]
    recipe: Recipe = field(default_factory=Recipe)
    columns: Columns = field(default_factory=Columns)
    format: str | None = None
    skip: str | None = None  # texts that match this regular expression are not part of the corpus
    limit: int | None = None  # at most so many sequences
    on_error: OnError = "stop"

    def __post_init__(self) -> None:
        if not self.sources:
            raise InputError("a corpus needs at least one source: none was given")
        for source in self.sources:
            if not source.exists():
                raise InputError(f"a source must exist: there is no {str(source)!r}; check the path")
        if self.on_error not in ("stop", "skip"):
            raise InputError(f"on_error must be stop or skip: got {self.on_error!r}")
        if self.limit is not None and self.limit < 1:
            raise InputError(f"a limit must be at least 1: got {self.limit}")

    def records(self, source: Path) -> Iterator[Record | Flaw]:
        """The records of one source that are part of the corpus."""
        try:
            skip = re.compile(self.skip) if self.skip else None
        except re.error as error:
            raise InputError(f"skip must be a regular expression: {self.skip!r} is none ({error})") from error
        for record in read(source, self.columns, self.format):
            if skip is None or isinstance(record, Flaw) or not skip.search(record.text):
                yield record

    def estimate(self) -> int:
        """About how many sequences there are, for a progress bar: records are counted, not tokenized."""
        count = 0
        for source in self.sources:
            texts = sum(isinstance(record, Record) for record in self.records(source))
            count += texts // 2 if self.recipe.pairs and format_of(source, self.format) != "pickle" else texts
            if self.limit is not None and count >= self.limit:
                return self.limit
        return count

    def items(self, tokenizer: Any, categories: Categories, log: Log) -> Iterator[Item]:
        """The corpus' sequences; flaws go to the log, and stop the run unless they may be skipped."""
        count = 0
        for source in self.sources:
            for made in build(self.records(source), tokenizer, categories, self.recipe, first=count):
                if isinstance(made, Flaw):
                    log.add(made)
                    if self.on_error == "stop" and not made.harmless:
                        raise InputError(
                            f"every record must be readable: {made.place}: {made.reason}; mend it, or count and skip "
                            "such records with --on-error skip"
                        )
                    continue
                count += 1
                yield made
                if count == self.limit:
                    return


@dataclass
class Log:
    """What was not used, and where it stood."""

    flaws: int = 0
    harmless: int = 0
    listed: list[dict[str, str]] = field(default_factory=list)

    def add(self, flaw: Flaw) -> None:
        """Count a flaw; the first ones are listed."""
        self.flaws += not flaw.harmless
        self.harmless += flaw.harmless
        if len(self.listed) < _LISTED:
            self.listed.append({"place": flaw.place, "reason": flaw.reason})


@dataclass(frozen=True)
class Progress:
    """How far a run is."""

    sequences: int
    seconds: float  # of this attempt
    fresh: int  # sequences of this attempt
    total: int | None


def run_corpus(
    lens: Lens,
    corpus: Corpus,
    categories: Categories,
    plan: Plan,
    out: Path,
    *,
    engine: Engine | None = None,
    batch_size: int = 8,
    per_token: bool = False,
    precision: Precision = "float32",
    together: bool = False,
    fresh: bool = False,
    save_every: float = 30.0,
    exact: bool = False,
    progress: Callable[[Progress], None] | None = None,
) -> CorpusResult:
    """Run a corpus to its end, from where an earlier attempt stopped, and write the results to `out`."""
    engine = engine or InProcess()
    if batch_size < 1:
        raise InputError(f"a batch holds at least one sequence: batch_size is {batch_size}")
    if lens.tokenizer is None:
        raise InputError("a corpus needs a tokenizer: this lens has none; pass Lens(model, tokenizer)")
    inputs = [{"path": str(source), "sha256": file_hash(source)} for source in corpus.sources]
    identity = _identity(lens, corpus, categories, plan, inputs, per_token, precision, together)
    fingerprint = hashlib.sha256(json.dumps(identity, sort_keys=True, default=str).encode()).hexdigest()
    if fresh:
        _clear(out)
    if (out / MANIFEST).exists():
        return _finished(out, fingerprint)
    saved = read_checkpoint(out, plan, fingerprint) or Checkpoint(fingerprint, 0, 0.0, Tally(plan))
    total = corpus.estimate() if progress is not None else None
    tally, log, start, at = saved.tally, Log(), time.monotonic(), time.monotonic()
    before = tally.sequences
    units = _units(corpus.items(lens.tokenizer, categories, log))
    vocabulary = _vocabulary(lens.tokenizer)
    task = Task(lens, plan, batch_size, per_token, precision, together)
    done_units = saved.units

    def save() -> None:
        Checkpoint(fingerprint, done_units, saved.seconds + time.monotonic() - start, tally).save(out)

    for done in engine.run(task, islice(units, saved.units, None)):
        if done.tokens is not None:
            _write_tokens(out, done, plan, vocabulary)
        tally.load(done.state)
        done_units = done.index + 1
        if time.monotonic() - at >= save_every:
            save()
            at = time.monotonic()
        if progress is not None:
            progress(Progress(tally.sequences, time.monotonic() - start, tally.sequences - before, total))
    for _ in units:  # what resuming skipped must have been read, so that its flaws are in the log
        pass
    seconds = time.monotonic() - start
    tables = tables_of(tally, vocabulary)
    save()
    if exact:
        items = corpus.items(lens.tokenizer, categories, Log())
        tables["correlations"] = settle(tables["correlations"], task, items, out)
    for name, table in tables.items():
        write_table(out / f"{name}.parquet", table)
    rate = (tally.sequences - before) / seconds
    write_json(out / MANIFEST, {
        "format": _FORMAT,
        "fingerprint": fingerprint,
        **identity,
        "counts": {
            "sequences": tally.sequences, "tokens": int(tally.positions.sum()), "unreadable": log.flaws,
            "unpaired": log.harmless, "listed": log.listed,
        },
        "worst_proof": tally.proof,
        "flagged": _flagged(tables["correlations"]),
        "engine": {"name": engine.name, "workers": engine.workers, "batch_size": batch_size},
        "versions": versions(),
        "finished": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "seconds": saved.seconds + seconds,
        "sequences_per_second": rate,
    })  # fmt: skip
    (out / checkpoint.NAME).unlink(missing_ok=True)
    return open_corpus(out)


def settle(correlations: pd.DataFrame, task: Task, items: Iterable[Item], out: Path) -> pd.DataFrame:
    """The correlations with every flagged rho replaced by the exact one, from a second pass over the corpus."""
    wide = correlations[correlations["flagged"].astype(bool)]
    if wide.empty:
        return correlations
    pairs = tuple({(row["x"], row["y"]): None for row in wide[wide["over"] == "pairs"].to_dict("records")})
    names = {name for row in wide.to_dict("records") for name in (row["x"], row["y"])}
    plan = dataclasses.replace(
        task.plan,
        measures=tuple(name for name in task.plan.measures if name in names | {"alpha", "f_norm"}),
        mixing=tuple(name for name in task.plan.mixing if MIXING + name in names),
        histograms=(),
        relative=(),
        correlate=pairs,
        sample=1,
        covariates={name: values for name, values in task.plan.covariates.items() if name in names},
    )
    with tempfile.TemporaryDirectory(dir=out, prefix="exact-") as folder:
        spilled = SpillTally(plan, Path(folder))
        worker = dataclasses.replace(task, plan=plan, per_token=False).worker()
        for unit in _units(items):
            worker.count(spilled, unit.items)
        settled = correlations.copy()
        codes = unions(plan.categories)
        for index, row in wide.iterrows():
            try:
                rho = spilled.spills[row["site"], row["x"], row["y"]].result(codes[row["category"]])
            except InputError:  # seen exactly, one side is constant: there is no correlation to report
                settled = settled.drop(index=index)
                continue
            settled.loc[index, ["value", "bound", "flagged"]] = [rho.rho, rho.bound, False]
    return settled.reset_index(drop=True)


def write_table(path: Path, table: pd.DataFrame) -> None:
    """A Parquet file that depends on its content alone."""
    write_whole(path, lambda stream: table.to_parquet(stream, index=False, engine="pyarrow"))


def spool(path: Path, stream: Any = None) -> Path:
    """Standard input as a file, so that it can be hashed and read again when a run resumes."""
    source = stream if stream is not None else sys.stdin.buffer
    write_whole(path, lambda target: shutil.copyfileobj(source, target))
    return path


def tags_of(corpus: Corpus) -> list[str]:
    """Every tag of a corpus, sorted: categories must be known before the first is counted."""
    found: set[str] = set()
    for source in corpus.sources:
        for record in corpus.records(source):
            if isinstance(record, Record):
                found.update(record.tags or ())
    if not found:
        raise InputError(f"the tag column must hold tags: {corpus.columns.tags!r} holds none")
    return sorted(found)


def _units(items: Iterable[Item]) -> Iterator[Unit]:
    stream, number = iter(items), 0
    while chunk := tuple(islice(stream, UNIT)):
        yield Unit(number, chunk)
        number += 1


def _identity(
    lens: Lens,
    corpus: Corpus,
    categories: Categories,
    plan: Plan,
    inputs: Sequence[dict[str, str]],
    per_token: bool,
    precision: Precision,
    together: bool,
) -> dict[str, Any]:
    """What decides the numbers, and nothing that does not."""
    counted = dataclasses.asdict(plan)
    counted["covariates"] = {
        name: hashlib.sha256(values.tobytes()).hexdigest() for name, values in plan.covariates.items()
    }
    return {
        "inputs": list(inputs),
        "model": lens._identity,
        "corpus": {
            **dataclasses.asdict(corpus.recipe),
            "columns": dataclasses.asdict(corpus.columns),
            "format": corpus.format,
            "skip": corpus.skip,
            "limit": corpus.limit,
            "on_error": corpus.on_error,
        },
        "rules": {name: getattr(rule, "pattern", f"function {rule!r}") for name, rule in categories.rules},
        "plan": counted,
        "per_token": per_token,
        "precision": precision,
        "together": together,
        "unit": UNIT,
    }


def _finished(out: Path, fingerprint: str) -> CorpusResult:
    found = open_corpus(out)
    if found.manifest["fingerprint"] != fingerprint:
        raise InputError(
            f"a folder holds one run: {out} holds a finished one with other inputs, model or settings; choose another "
            "--out, or start again with --fresh"
        )
    return found


def _clear(out: Path) -> None:
    for path in (out / MANIFEST, out / checkpoint.NAME, *out.glob("*.parquet")):
        path.unlink(missing_ok=True)
    shutil.rmtree(out / "tokens", ignore_errors=True)


def _write_tokens(out: Path, done: Done, plan: Plan, vocabulary: Sequence[str]) -> None:
    assert done.tokens is not None, "only called for units with rows per token"
    frame = named(pd.DataFrame(done.tokens), plan.categories, vocabulary)
    write_table(out / "tokens" / f"part-{done.index:08d}.parquet", frame)


def _vocabulary(tokenizer: Any) -> list[str]:
    return [str(token) for token in tokenizer.convert_ids_to_tokens(range(len(tokenizer)))]


def _flagged(correlations: pd.DataFrame) -> list[dict[str, Any]]:
    wide = correlations[correlations["flagged"].astype(bool)]
    names = ["site", "x", "y", "category", "bound"]
    return [dict(zip(names, row, strict=True)) for row in wide[names].itertuples(index=False, name=None)]
