"""From sources to an indexed table of records.

Every source is read once, record by record, into an Arrow file in the output folder. From then on a record has a number,
and any range of records can be read by any process. Unreadable records become an `UnusedRecord` with file and number,
never an exception in the middle of a file and never silence.
"""

from __future__ import annotations

import csv
import gzip
import hashlib
import io
import json
import lzma
import os
import sys
import zlib
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import IO, Any, Protocol, TypeAlias, runtime_checkable

from normlens.corpus.options import Reading
from normlens.errors import InputError
from normlens.io.remote import AnyPath, arrow, first_line, is_remote, path_of
from normlens.io.writing import atomic_write, move_file
from normlens.types import Json, JsonMapping

STANDARD_INPUT = "-"
HUB = "hub:"
RECORDS_PER_BATCH = 64  # of the Arrow file: record n stands in batch n // 64
_LISTED = 20  # unused records that are named; all are counted
_BLOCK = 1 << 20

_BY_SUFFIX = {
    ".txt": "text", ".text": "text", ".jsonl": "jsonl", ".ndjson": "jsonl", ".json": "jsonl", ".csv": "csv",
    ".tsv": "tsv", ".parquet": "parquet", ".pq": "parquet", ".arrow": "arrow", ".feather": "arrow",
}  # fmt: skip
_COMPRESSED = (".gz", ".xz", ".zst")
#: A column with lists of the model's own tokens, special ones included, which are taken as they are.
MODEL_TOKENS = "model_tokens"
_TEXT_COLUMNS = ("text", "sentence", "content", MODEL_TOKENS)

#: What a damaged compressed stream raises, by library.
_STREAM_ERRORS = (EOFError, OSError, lzma.LZMAError, zlib.error)


@dataclass(frozen=True)
class Record:
    """One text of the corpus, or its words with their tags."""

    place: str
    text: str = ""
    pair: str | None = None
    target: str | None = None  # the output of an encoder-decoder model
    words: tuple[str, ...] | None = None
    tags: tuple[str, ...] | None = None
    tokens: tuple[str, ...] | None = None  # tokens of the model, special ones included


@dataclass(frozen=True)
class UnusedRecord:
    """A record that cannot be used, and the reason."""

    place: str
    reason: str


@runtime_checkable
class Rows(Protocol):
    """A `Dataset` or `IterableDataset` of the datasets library, known by its attributes so that nothing is imported."""

    @property
    def column_names(self) -> Any: ...
    @property
    def features(self) -> Any: ...
    def __iter__(self) -> Iterator[Any]: ...


#: One source or several: paths, addresses, `hub:NAME`, `-` for standard input, datasets in memory or streamed.
Source: TypeAlias = "str | AnyPath | Rows | Sequence[str | AnyPath | Rows]"


# ---- sources -----------------------------------------------------------------------------------------------------------


def sources_of(source: Source) -> list[str | AnyPath | Rows]:
    """Return the sources one by one; anything that is none is an error."""
    if isinstance(source, Mapping):
        names = ", ".join(map(str, source))[:120]
        raise InputError(f"a corpus is one split of a dataset, got all of them ({names}); pass dataset['train']")
    if isinstance(source, str | os.PathLike | Rows) or hasattr(source, "fs"):
        return [source]  # type: ignore[list-item]
    if not isinstance(source, Sequence):
        raise InputError(
            "a corpus is read from paths, addresses or datasets with named columns, or a list of them, got "
            f"{type(source).__name__}"
        )
    if not source:
        raise InputError("a corpus needs at least one source; name a file")
    return list(chain.from_iterable(map(sources_of, source)))


def named_paths(source: Source) -> list[AnyPath]:
    """Return the files and folders of a source; standard input, the hub and datasets have none."""
    paths: list[AnyPath] = []
    for one in sources_of(source):
        if isinstance(one, Rows) or str(one) == STANDARD_INPUT or str(one).startswith(HUB):
            continue
        paths.append(path_of(one))
    return paths


def check_sources(source: Source) -> None:
    """Raise an error, before any work is done, for a closed standard input or a file that does not exist."""
    if any(str(one) == STANDARD_INPUT for one in sources_of(source) if not isinstance(one, Rows)):
        _ = sys.stdin.buffer
    for path in named_paths(source):
        if not is_remote(path) and not os.path.lexists(str(path)):
            raise InputError(f"there is no {str(path)!r}; check the path")


def format_of(path: AnyPath, given: str | None = None) -> str:
    """Return the format of a file or folder by its name; `given` overrides."""
    if given is not None:
        return given
    if path.is_dir():
        return "dataset"
    if path.suffix in (".pkl", ".pickle"):
        raise InputError(
            f"{path} is a pickle, which could execute code; convert that of Clark et al. 2019 with "
            "examples/convert_clark2019.py"
        )
    suffixes = [suffix for suffix in path.suffixes if suffix not in _COMPRESSED]
    return _BY_SUFFIX.get(suffixes[-1].lower() if suffixes else ".txt", "text")


# ---- the table of records ----------------------------------------------------------------------------------------------


@dataclass
class SourceSummary:
    """One source as it was read: its path, the digest of its records, and its unusable records."""

    path: str
    records: int = 0
    records_sha256: str = ""  # of the records that were read, with a limit up to it; not of the file


@dataclass
class ReadingLog:
    """Counts of what was read and what was not used."""

    sources: list[SourceSummary] = field(default_factory=list)
    unreadable: int = 0
    unpaired: int = 0
    listed: list[dict[str, str]] = field(default_factory=list)
    tags: set[str] = field(default_factory=set)

    def note(self, record: UnusedRecord) -> None:
        """List an unused record, where there is room."""
        if len(self.listed) < _LISTED:
            self.listed.append(asdict(record))


@dataclass(frozen=True)
class RecordTable:
    """The records of a corpus in an Arrow file: record `n` is sequence `n`."""

    path: AnyPath
    size: int
    log: ReadingLog

    def records(self, start: int, stop: int) -> Iterator[Record]:
        """Read the records from `start` to `stop`."""
        for batch in range(start // RECORDS_PER_BATCH, -(-stop // RECORDS_PER_BATCH)):
            for offset, row in enumerate(self._reader.get_batch(batch).to_pylist()):
                if start <= batch * RECORDS_PER_BATCH + offset < stop:
                    lists = {name: None if row[name] is None else tuple(row[name]) for name in _LISTS}
                    yield Record(**{**row, **lists})

    def __getstate__(self) -> Json:
        return {"path": self.path, "size": self.size, "log": self.log}

    @cached_property
    def _reader(self) -> Any:
        pa = arrow("a corpus")
        if is_remote(self.path):
            return pa.ipc.open_file(self.path.open("rb"))  # reads the batches that are asked for
        return pa.ipc.open_file(pa.memory_map(str(self.path)))


_LISTS = ("words", "tags", "tokens")
_STRINGS = ("place", "text", "pair", "target")


def write_records(source: Source, reading: Reading, folder: AnyPath) -> RecordTable:
    """Read the sources into an Arrow file of `folder`, whose name holds the digest of its records.

    Args:
        source: The sources.
        reading: The columns, the limit, the texts to skip and what an unreadable record does.
        folder: Where the file is written.

    Returns:
        The table. The same records give the same file, so that a resumed run finds it again.
    """
    pa = arrow("a corpus")
    types = {name: pa.string() for name in _STRINGS} | {name: pa.list_(pa.string()) for name in _LISTS}
    schema = pa.schema(types)
    log, size, digest = ReadingLog(), 0, hashlib.sha256()
    draft = folder / "records.arrow.tmp"
    with atomic_write(draft) as stream, pa.ipc.new_file(stream, schema) as file:
        waiting: list[Json] = []
        for record in _numbered(source, reading, log):
            waiting.append(vars(record))
            size += 1
            if len(waiting) == RECORDS_PER_BATCH:
                file.write_batch(pa.RecordBatch.from_pylist(waiting, schema=schema))
                waiting = []
        if waiting:
            file.write_batch(pa.RecordBatch.from_pylist(waiting, schema=schema))
    for summary in log.sources:
        digest.update(summary.records_sha256.encode())
    path = folder / f"records-{digest.hexdigest()[:16]}.arrow"
    move_file(draft, path)
    return RecordTable(path, size, log)


def _numbered(source: Source, reading: Reading, log: ReadingLog) -> Iterator[Record]:
    """The records that become sequences, in order: paired, without skipped texts, up to the limit."""
    left = reading.limit
    for one in sources_of(source):
        if left == 0:
            return
        name = "a dataset" if isinstance(one, Rows) else str(one)
        for path in _files_of(one):
            summary = SourceSummary(name if path is None else str(path))
            log.sources.append(summary)
            digest = hashlib.sha256()
            records = _used(_records_of(one, path, reading), reading, log)
            with closing(_paired(records, log) if _joins_neighbours(reading) else records) as stream:
                for record in stream:
                    digest.update(_content(record))
                    summary.records += 1
                    log.tags.update(record.tags or ())
                    yield record
                    if left is not None:
                        left -= 1
                        if left == 0:
                            break
            summary.records_sha256 = digest.hexdigest()


def _content(record: Record) -> bytes:
    """What decides the numbers of a record: everything but its place."""
    content = (record.text, record.pair, record.target, record.words, record.tags, record.tokens)
    return json.dumps(content).encode()


def _joins_neighbours(reading: Reading) -> bool:
    return reading.pairs and reading.pair_column is None


def _paired(records: Iterator[Record], log: ReadingLog) -> Generator[Record]:
    """Join neighbours two by two; a last paragraph without a partner is left out and counted."""
    waiting: Record | None = None
    for record in records:
        if record.words is not None:
            raise InputError("pairs are made of texts, got lists of words; drop --pairs")
        if record.tokens is not None:
            yield record
        elif waiting is None:
            waiting = record
        else:
            yield replace(waiting, pair=record.text)
            waiting = None
    if waiting is not None:
        log.unpaired += 1
        log.note(UnusedRecord(waiting.place, "the last paragraph of its source has no partner"))


def _used(records: Iterable[Record | UnusedRecord], reading: Reading, log: ReadingLog) -> Generator[Record]:
    skip = reading.skip_pattern
    for record in records:
        checked = _checked(record, reading.largest_record) if isinstance(record, Record) else record
        if isinstance(checked, Record):
            if skip is None or not skip.search(checked.text):
                yield checked
            continue
        if reading.on_error == "stop":
            raise unreadable(checked)
        log.unreadable += 1
        log.note(checked)


def unreadable(record: UnusedRecord) -> InputError:
    """Return the error for a record that stops the run."""
    return InputError(
        f"{record.place} is unreadable: {record.reason}; correct it, or count and skip such records with "
        "--on-error skip"
    )


def _checked(record: Record, largest: int) -> Record | UnusedRecord:
    """The record, if a tokenizer can take it."""
    size = 0
    lists = (record.words or ()), (record.tags or ()), (record.tokens or ())
    for text in chain((record.text, record.pair or "", record.target or ""), *lists):
        if len(text) > largest:
            return _too_long(record.place, largest)
        try:
            size += len(text.encode())
        except UnicodeEncodeError:
            return UnusedRecord(record.place, "half of a surrogate pair, which is no text")
    return record if size <= largest else _too_long(record.place, largest)


def _too_long(place: str, largest: int) -> UnusedRecord:
    return UnusedRecord(place, f"longer than {largest} bytes; the largest record is set by --largest-record")


# ---- readers -----------------------------------------------------------------------------------------------------------


def _files_of(source: str | AnyPath | Rows) -> list[AnyPath | None]:
    """The files of a source; a remote folder stands for all files below it. None: the source has no path."""
    if isinstance(source, Rows) or str(source) == STANDARD_INPUT or str(source).startswith(HUB):
        return [None]
    path = path_of(source)
    try:
        if is_remote(path) and path.is_dir():
            return sorted((file for file in path.rglob("*") if file.is_file()), key=str)
        if path.is_dir() or path.is_file() or (isinstance(path, Path) and path.is_fifo()):
            return [path]
        there = path.exists()
    except Exception as error:  # every file system raises its own errors
        raise InputError(f"{path} cannot be read ({first_line(error)}); check the address") from error
    if there:
        raise InputError(f"{str(path)!r} is no file, folder or pipe; check the path")
    raise InputError(f"there is no {str(path)!r}; check the path")


def _records_of(
    source: str | AnyPath | Rows, path: AnyPath | None, reading: Reading
) -> Iterable[Record | UnusedRecord]:
    if isinstance(source, Rows):
        if reading.format is not None:
            raise InputError(f"a dataset has its own format, got format={reading.format!r}; leave it out")
        return _dataset_rows(source, "the dataset", reading)
    if path is None and str(source).startswith(HUB):
        return _hub(str(source), reading)
    kind = reading.format or "text" if path is None else format_of(path, reading.format)
    if kind == "parquet":
        return _parquet(_required(path, kind), reading)
    if kind == "arrow":
        return _arrow(_required(path, kind), reading)
    if kind == "dataset":
        return _dataset_folder(_required(path, kind), reading)
    lines = _Lines(path, reading.largest_record)
    readers: dict[str, Callable[[_Lines, Reading], Iterator[Record | UnusedRecord]]] = {
        "text": _text, "jsonl": _json_lines, "csv": _csv, "tsv": _csv,
    }  # fmt: skip
    if kind not in readers:
        raise InputError(
            f"format must be one of {', '.join(dict.fromkeys(_BY_SUFFIX.values()))}, dataset, got {kind!r}"
        )
    return readers[kind](replace(lines, tabs=kind == "tsv"), reading)


def _required(path: AnyPath | None, kind: str) -> AnyPath:
    if path is None:
        raise InputError(f"standard input cannot be read as {kind}; save it to a file first")
    return path


def open_binary(path: AnyPath) -> IO[bytes]:
    """Open a file, decompressed by its suffix."""
    stream: IO[bytes] = path.open("rb")
    if is_remote(path):
        stream = io.BufferedReader(stream)  # type: ignore[type-var]  # theirs have no readline with a limit
    match path.suffix:
        case ".gz":
            return io.BufferedReader(gzip.GzipFile(fileobj=stream))
        case ".xz":
            return lzma.open(stream)
        case ".zst":
            return io.BufferedReader(arrow("a file compressed by zstd").CompressedInputStream(stream, "zstd"))
    return stream


@dataclass(frozen=True)
class _Lines:
    """The numbered lines of a file or of standard input."""

    path: AnyPath | None
    largest: int
    tabs: bool = False

    def place(self, number: int) -> str:
        return f"{self.path or 'standard input'}:{number}"

    def __iter__(self) -> Iterator[tuple[int, str | UnusedRecord]]:
        number = 0
        try:
            stream = sys.stdin.buffer if self.path is None else open_binary(self.path)
            with stream if self.path is not None else closing(io.BytesIO()):
                while raw := stream.readline(self.largest + 2):
                    number += 1
                    yield number, self._decoded(raw, number, stream)
        except _STREAM_ERRORS as error:
            damaged = not isinstance(error, OSError) or isinstance(error, gzip.BadGzipFile)
            if self.path is None or (is_remote(self.path) and not damaged):
                name = self.path or "standard input"  # what the network lost must not pass for a bad record
                raise InputError(f"{name} cannot be read to its end ({first_line(error)}); try again") from error
            reason = f"the file breaks off ({first_line(error)})"
            yield number + 1, UnusedRecord(self.place(number + 1), reason)

    def _decoded(self, raw: bytes, number: int, stream: IO[bytes]) -> str | UnusedRecord:
        line = raw.removesuffix(b"\n").removesuffix(b"\r")
        if len(line) > self.largest:
            while raw and not raw.endswith(b"\n"):  # the rest of the line
                raw = stream.readline(_BLOCK)
            return _too_long(self.place(number), self.largest)
        try:
            return line.decode("utf-8-sig" if number == 1 else "utf-8")
        except UnicodeDecodeError as error:
            return UnusedRecord(self.place(number), f"not UTF-8 at byte {error.start} of the line")


def _text(lines: _Lines, reading: Reading) -> Iterator[Record | UnusedRecord]:
    for number, line in lines:
        if isinstance(line, UnusedRecord):
            yield line
        elif line.strip():
            yield Record(lines.place(number), line.strip())


def _json_lines(lines: _Lines, reading: Reading) -> Iterator[Record | UnusedRecord]:
    for number, line in lines:
        place = lines.place(number)
        if isinstance(line, UnusedRecord):
            yield line
            continue
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except (ValueError, RecursionError) as error:  # ValueError: also a number of thousands of digits
            yield UnusedRecord(place, f"not JSON ({error})")
            continue
        yield record_of(place, row, reading) if isinstance(row, dict) else UnusedRecord(place, "not a JSON object")


class _Tabs(csv.excel_tab):
    """TSV without quoting: a quotation mark in a sentence is a quotation mark."""

    quoting = csv.QUOTE_NONE


class _RowText:
    """Lines for `csv.reader`; remembers lines that cannot be used, and stops in a row that never ends."""

    def __init__(self, lines: _Lines) -> None:
        self.lines = lines
        self.unused: list[UnusedRecord] = []
        self.characters = 0  # since the last row ended

    def __iter__(self) -> Iterator[str]:
        for number, line in self.lines:
            if isinstance(line, UnusedRecord):
                self.unused.append(line)
                continue
            self.characters += len(line)
            if self.characters > self.lines.largest:  # an open quotation mark: the next row cannot be found
                self.unused.append(_too_long(self.lines.place(number), self.lines.largest))
                return
            yield line + "\n"


def _csv(lines: _Lines, reading: Reading) -> Iterator[Record | UnusedRecord]:
    """Rows of a table; a column given as a number (from 0) means that there is no header."""
    text = _RowText(lines)
    rows = csv.reader(iter(text), _Tabs if lines.tabs else csv.excel)
    header: list[str] | None = None
    numbered = (reading.text_column or "").isdigit()
    while True:
        try:
            cells = next(rows)
        except StopIteration:
            break
        except csv.Error as error:
            yield UnusedRecord(lines.place(rows.line_num), f"not a table row ({error})")
            text.characters = 0
            continue
        text.characters = 0
        yield from text.unused
        text.unused.clear()
        if not cells:
            continue
        if header is None:
            header = [str(number) for number in range(len(cells))] if numbered else cells
            if not numbered:
                text_column_of(header, reading, str(lines.path or "standard input"))
                continue
        place = lines.place(rows.line_num)
        if len(cells) != len(header):
            yield UnusedRecord(place, f"{len(cells)} columns where the table has {len(header)}")
            continue
        yield record_of(place, dict(zip(header, cells, strict=True)), reading)
    yield from text.unused


def _parquet(path: AnyPath, reading: Reading) -> Iterator[Record | UnusedRecord]:
    arrow("a Parquet file")
    import pyarrow.parquet as pq

    def batches(stream: IO[bytes]) -> Iterator[Any]:
        table = pq.ParquetFile(stream)
        columns = _columns(table.schema_arrow.names, reading, str(path))
        return table.iter_batches(batch_size=RECORDS_PER_BATCH, columns=columns)  # type: ignore[no-any-return]

    return _batches(path, batches, "Parquet", reading)


def _arrow(path: AnyPath, reading: Reading) -> Iterator[Record | UnusedRecord]:
    pa = arrow("an Arrow file")

    def batches(stream: IO[bytes]) -> Iterator[Any]:
        try:
            file = pa.ipc.open_file(stream)
            found = (file.get_batch(number) for number in range(file.num_record_batches))
        except pa.ArrowInvalid:  # the stream format, which `datasets` writes
            stream.seek(0)
            file = found = pa.ipc.open_stream(stream)
        columns = _columns(file.schema.names, reading, str(path))
        return (batch.select(columns) for batch in found)

    return _batches(path, batches, "Arrow", reading)


def _batches(
    path: AnyPath, batches: Callable[[IO[bytes]], Iterator[Any]], kind: str, reading: Reading
) -> Iterator[Record | UnusedRecord]:
    """Rows of Arrow batches; a damaged file is reported where it breaks off."""
    damage = (arrow(f"a {kind} file").ArrowException, OSError, ValueError, TypeError, MemoryError)
    number = 0
    try:
        with path.open("rb") as stream:
            for batch in batches(stream):
                for row in batch.to_pylist():
                    number += 1
                    yield record_of(f"{path}:{number}", row, reading)
    except damage as error:
        if isinstance(error, InputError):
            raise
        reason = f"the file breaks off ({first_line(error)})" if number else f"no {kind} file ({first_line(error)})"
        yield UnusedRecord(f"{path}:{number + 1}", reason)


def _columns(names: Sequence[str], reading: Reading, place: str) -> list[str]:
    """The columns of a table that are read."""
    asked = (text_column_of(names, reading, place), reading.pair_column, reading.tag_column, reading.target_column)
    return [name for name in dict.fromkeys(asked) if name is not None and name in names]


def _dataset_folder(path: AnyPath, reading: Reading) -> Iterator[Record | UnusedRecord]:
    datasets = _datasets()
    try:
        loaded = datasets.load_from_disk(str(path))
    except Exception as error:  # a damaged folder may raise anything in there
        raise InputError(f"{str(path)!r} is no dataset saved with save_to_disk ({first_line(error)})") from error
    splits = loaded.items() if isinstance(loaded, datasets.DatasetDict) else [("", loaded)]
    for name, rows in splits:
        yield from _dataset_rows(rows, f"{path}/{name}".rstrip("/"), reading)


def _hub(source: str, reading: Reading) -> Iterator[Record | UnusedRecord]:
    """A dataset of the hub, streamed: `hub:NAME[:CONFIGURATION][@SPLIT]`, by default the split `train`."""
    address, _, split = source.removeprefix(HUB).partition("@")
    name, _, configuration = address.partition(":")
    datasets = _datasets()
    try:
        rows = datasets.load_dataset(name, configuration or None, split=split or "train", streaming=True)
    except Exception as error:  # network, hub and builders each raise their own
        raise InputError(
            f"{source} cannot be read ({first_line(error)}); check name, configuration and split"
        ) from error
    return _dataset_rows(rows, source, reading)


def _datasets() -> Any:
    try:
        import datasets
    except ImportError as error:
        raise InputError("the datasets library is not installed; pip install 'normlens[corpus]'") from error
    return datasets


def _dataset_rows(rows: Iterable[Any], name: str, reading: Reading) -> Iterator[Record | UnusedRecord]:
    stream, number = iter(rows), 0
    while True:
        number += 1
        place = f"{name}:{number}"
        try:
            row = next(stream)
        except StopIteration:
            return
        except Exception as error:  # what a network lost must not pass for a bad record
            raise InputError(f"{place} cannot be read ({first_line(error)}); try again") from error
        if not isinstance(row, Mapping):
            raise InputError(
                f"{place} must be a row by column names, got {type(row).__name__}; use dataset.with_format(None)"
            )
        yield record_of(place, row, reading)


def record_of(place: str, row: JsonMapping, reading: Reading) -> Record | UnusedRecord:
    """Return the record that a row of a table holds."""
    column = text_column_of(row, reading, place)
    text: Any = row.get(column)
    if reading.tag_column is not None:
        return _tagged(place, text, row.get(reading.tag_column))
    if is_strings(text):
        return Record(place, tokens=tuple(text)) if column == MODEL_TOKENS else Record(place, words=tuple(text))
    if not isinstance(text, str):
        return UnusedRecord(place, "the text is not a string")
    if not text.strip():
        return UnusedRecord(place, "the text is empty")
    others: dict[str, str | None] = {"pair": None, "target": None}
    for name, other, what in (
        ("pair", reading.pair_column, "second text"),
        ("target", reading.target_column, "target"),
    ):
        if other is None:
            continue
        value = row.get(other)
        if not isinstance(value, str) or not value.strip():
            return UnusedRecord(place, f"the {what} is missing")
        others[name] = value.strip()
    return Record(place, text.strip(), others["pair"], others["target"])


def _tagged(place: str, text: Any, tags: Any) -> Record | UnusedRecord:
    words = text.split() if isinstance(text, str) else text
    tags = tags.split() if isinstance(tags, str) else tags
    if not is_strings(words) or not is_strings(tags) or len(words) != len(tags):
        return UnusedRecord(
            place, "tags need one word each: the words and the tags differ in number, or are not strings"
        )
    return Record(place, words=tuple(words), tags=tuple(tags))


def is_strings(value: Any) -> bool:
    """Return True for a list of strings that is not empty."""
    return isinstance(value, list | tuple) and bool(value) and all(isinstance(item, str) for item in value)


def text_column_of(row: Iterable[str], reading: Reading, place: str) -> str:
    """Return the column that holds the text: the one that was named, or the first of the usual names."""
    names = list(row)
    if reading.text_column is not None:
        if reading.text_column not in names:
            raise InputError(f"{place} has the columns {', '.join(names)}, not {reading.text_column!r}")
        return reading.text_column
    for name in _TEXT_COLUMNS:
        if name in names:
            return name
    raise InputError(f"{place} has no text column, but {', '.join(names)}; name it with --text-column")
