"""Records of a corpus: plain text, JSON Lines, CSV and TSV, Parquet, datasets on disk, the pickle of Clark et al. 2019.

Every record knows its place. What cannot be read becomes an `UnusedRecord` with its place, never an exception in the
middle of a file and never silence; the caller decides whether it stops the run.
"""

from __future__ import annotations

import csv
import gzip
import hashlib
import io
import json
import lzma
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from itertools import chain
from typing import IO, Any

from normlens.corpus.reading.plain_pickle import load_plain_pickle
from normlens.errors import InputError
from normlens.io.remote import AnyPath, RemotePath, arrow, first_line

FORMATS = ("text", "jsonl", "csv", "tsv", "parquet", "dataset", "pickle")

_BY_SUFFIX = {
    ".txt": "text", ".text": "text", ".jsonl": "jsonl", ".ndjson": "jsonl", ".json": "jsonl", ".csv": "csv",
    ".tsv": "tsv", ".parquet": "parquet", ".pq": "parquet", ".pkl": "pickle", ".pickle": "pickle",
}  # fmt: skip
_COMPRESSED = (".gz", ".xz", ".zst")
_TEXT_COLUMNS = ("text", "sentence", "content")

#: Bytes. A tokenizer needs some sixty times the memory of the text that it is given.
LARGEST_RECORD = 1 << 24

#: What a damaged compressed stream raises, by library.
_STREAM_ERRORS = (EOFError, OSError, lzma.LZMAError, zlib.error)
_ROWS_AT_ONCE = 256
_BLOCK = 1 << 20  # bytes of an endless line that are in memory at once


@dataclass(frozen=True)
class Record:
    """One text of the corpus, or its words or its model tokens, with the tags of its words where there are any."""

    place: str
    text: str = ""
    pair: str | None = None
    target: str | None = None  # what an encoder-decoder model writes
    words: tuple[str, ...] | None = None
    tokens: tuple[str, ...] | None = None  # already the model's own tokens, special ones included
    tags: tuple[str, ...] | None = None


@dataclass(frozen=True)
class UnusedRecord:
    """Something that should have been a record, and why it is not used."""

    place: str
    reason: str


@dataclass(frozen=True)
class Columns:
    """Which columns of a table hold what; without `text`, the first of text, sentence, content that exists."""

    text: str | None = None
    pair: str | None = None
    tags: str | None = None
    target: str | None = None


@dataclass(frozen=True)
class Span:
    """A part of a source: lines that begin at these bytes, row groups of Parquet, rows of a dataset."""

    start: int = 0
    stop: int | None = None  # None: to the end
    first: int = 1  # the number of its first line or row in the source


WHOLE = Span()


@dataclass
class Tally:
    """What was read of a span: how many lines or rows, and for lines their bytes and digest."""

    units: int = 0
    size: int = 0
    _digest: Any = field(default_factory=hashlib.sha256)

    def line(self, raw: bytes) -> None:
        """Take in the beginning of a line; `more` takes the rest of one that is too long to be read at once."""
        self.units += 1
        self.more(raw)

    def more(self, raw: bytes) -> None:
        """Take in bytes that begin no line."""
        self.size += len(raw)
        self._digest.update(raw)

    @property
    def digest(self) -> bytes:
        """SHA-256 of the bytes."""
        return bytes(self._digest.digest())


def is_splittable(path: AnyPath, kind: str) -> bool:
    """Whether a file's lines can be read from any byte on: not in a compressed one, nor where quotes span lines."""
    return kind in ("text", "jsonl") and path.suffix not in _COMPRESSED


def format_of(path: AnyPath, given: str | None = None) -> str:
    """The format of a file or folder, by its name; `given` overrides."""
    if given is not None:
        if given not in FORMATS:
            raise InputError(f"a format must be one of {', '.join(FORMATS)}: got {given!r}")
        return given
    if path.is_dir():
        return "dataset"
    suffixes = [suffix for suffix in path.suffixes if suffix not in _COMPRESSED]
    return _BY_SUFFIX.get(suffixes[-1].lower() if suffixes else ".txt", "text")


def read(
    path: AnyPath,
    columns: Columns,
    given: str | None = None,
    largest: int = LARGEST_RECORD,
    span: Span = WHOLE,
    tally: Tally | None = None,
) -> Iterator[Record | UnusedRecord]:
    """Every record of a source, or of a span of it, in order; one of more than `largest` bytes is not used."""
    if not path.exists():
        raise InputError(f"a source must exist: there is no {str(path)!r}; check the path")
    readers: dict[str, Callable[[_Part, Columns], Iterator[Record | UnusedRecord]]] = {
        "text": _text, "jsonl": _json_lines, "csv": partial(_delimited, dialect=csv.excel),
        "tsv": partial(_delimited, dialect=_Tabs), "parquet": _parquet, "dataset": _dataset, "pickle": _pickle,
    }  # fmt: skip
    for record in readers[format_of(path, given)](_Part(path, largest, span, tally or Tally()), columns):
        yield _checked(record, largest) if isinstance(record, Record) else record


def _checked(record: Record, largest: int) -> Record | UnusedRecord:
    """The record, if it is text that a tokenizer can be given."""
    size = 0
    lists = (record.words or ()), (record.tokens or ()), (record.tags or ())
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


def open_binary(path: AnyPath) -> io.BufferedIOBase:
    """A file's content, decompressed by its suffix; what cannot be opened raises an `OSError`."""
    match path.suffix:
        case ".gz":
            return gzip.open(_source(path))
        case ".xz":
            return lzma.open(_source(path))
        case ".zst":
            pa = arrow("a file compressed by zstd")
            raw = path.open() if isinstance(path, RemotePath) else pa.OSFile(str(path))
            return io.BufferedReader(pa.CompressedInputStream(raw, "zstd"))
    if isinstance(path, RemotePath):
        return io.BufferedReader(path.open(), _BLOCK)  # type: ignore[type-var]
    return path.open("rb")


def _source(path: AnyPath) -> Any:
    return path.open() if isinstance(path, RemotePath) else path


@dataclass(frozen=True)
class _Part:
    """What a reader is given: a span of a source, the largest record, and where to note what was read."""

    path: AnyPath
    largest: int
    span: Span
    tally: Tally

    def place(self, number: int) -> str:
        return f"{self.path}:{number}"

    def lines(self) -> Iterator[tuple[int, str | UnusedRecord]]:
        """Numbered lines; one that is too long or not UTF-8, or a stream that breaks off, is not used."""
        number, largest, stop = self.span.first - 1, self.largest, self.span.stop
        try:
            with open_binary(self.path) as stream:
                at = self._first_line(stream)
                # Two bytes more than the largest record: the line's end does not count.
                while (stop is None or at < stop) and (raw := stream.readline(largest + 2)):
                    number, at, begins = number + 1, at + len(raw), at == 0
                    self.tally.line(raw)
                    line = raw.removesuffix(b"\n").removesuffix(b"\r")
                    if len(line) > largest:
                        while raw and not raw.endswith(b"\n"):  # what follows is left out piece by piece
                            raw = stream.readline(_BLOCK)
                            self.tally.more(raw)
                            at += len(raw)
                        yield number, _too_long(self.place(number), largest)
                        continue
                    try:
                        yield number, line.decode("utf-8-sig" if begins else "utf-8")
                    except UnicodeDecodeError as error:
                        yield number, UnusedRecord(self.place(number), f"not UTF-8 at byte {error.start} of the line")
        except _STREAM_ERRORS as error:
            if (
                isinstance(self.path, RemotePath)
                and isinstance(error, OSError)
                and not isinstance(error, gzip.BadGzipFile)
            ):
                # What the network lost is not what the file lacks: it must not pass for a bad record.
                raise InputError(
                    f"a remote source must be readable to its end: {self.path} is not ({error}); run the command again"
                ) from error
            reason = f"the file breaks off ({error or type(error).__name__})"
            yield number + 1, UnusedRecord(self.place(number + 1), reason)

    def _first_line(self, stream: IO[bytes] | io.BufferedIOBase) -> int:
        """Where the first line begins that belongs to the span: it may begin in the middle of one of the span before."""
        at = self.span.start
        if at == 0:
            return at
        at = stream.seek(at - 1)
        while self.span.stop is None or at < self.span.stop:
            raw = stream.readline(_BLOCK)
            at += len(raw)
            if not raw or raw.endswith(b"\n"):
                break
        return at


def _text(part: _Part, columns: Columns) -> Iterator[Record | UnusedRecord]:
    for number, line in part.lines():
        if isinstance(line, UnusedRecord):
            yield line
        elif line.strip():
            yield Record(part.place(number), line.strip())


def _json_lines(part: _Part, columns: Columns) -> Iterator[Record | UnusedRecord]:
    for number, line in part.lines():
        place = part.place(number)
        if isinstance(line, UnusedRecord):
            yield line
        elif line.strip():
            try:
                row = json.loads(line)
            except (ValueError, RecursionError) as error:  # ValueError: also a number of thousands of digits
                yield UnusedRecord(place, f"not JSON ({error})")
                continue
            yield record_of(place, row, columns) if isinstance(row, dict) else UnusedRecord(place, "not a JSON object")


class _Tabs(csv.excel_tab):
    """TSV has no quoting: a quotation mark in a sentence is a quotation mark."""

    quoting = csv.QUOTE_NONE


def _delimited(part: _Part, columns: Columns, *, dialect: type[csv.Dialect]) -> Iterator[Record | UnusedRecord]:
    """Rows of a table; columns given as numbers (from 0) mean that there is no header."""
    unused: list[UnusedRecord] = []
    in_row = 0  # characters since the last row ended: a quotation mark may open a row that never does

    def clean() -> Iterator[str]:
        nonlocal in_row
        for number, line in part.lines():
            if isinstance(line, UnusedRecord):
                unused.append(line)
                continue
            in_row += len(line)
            if in_row > part.largest:
                unused.append(_too_long(part.place(number), part.largest))
                return  # nobody can say where the next row begins
            yield line + "\n"

    reader = csv.reader(clean(), dialect)
    header: list[str] | None = None
    numbered = (columns.text or "").isdigit()
    while True:
        try:
            cells = next(reader)
        except StopIteration:
            break
        except csv.Error as error:
            yield UnusedRecord(part.place(reader.line_num), f"not a table row ({error})")
            in_row = 0
            continue
        in_row = 0
        yield from unused
        unused.clear()
        if not cells:
            continue
        if header is None:
            header = [str(number) for number in range(len(cells))] if numbered else cells
            if not numbered:
                text_column_of(dict.fromkeys(header), columns, str(part.path))
                continue
        place = part.place(reader.line_num)
        if len(cells) != len(header):
            yield UnusedRecord(place, f"{len(cells)} columns where the table has {len(header)}")
            continue
        yield record_of(place, dict(zip(header, cells, strict=True)), columns)
    yield from unused


def _parquet(part: _Part, columns: Columns) -> Iterator[Record | UnusedRecord]:
    damage, path, span = parquet_errors(), part.path, part.span
    try:
        table = open_parquet(path)
        names = table.schema_arrow.names
        groups = list(range(span.start, table.num_row_groups if span.stop is None else span.stop))
    except damage as error:
        yield UnusedRecord(str(path), f"not a Parquet file ({first_line(error)})")
        return
    text = text_column_of(dict.fromkeys(names), columns, str(path))
    asked = (text, columns.pair, columns.tags, columns.target)
    wanted = list(dict.fromkeys(name for name in asked if name is not None))
    number = span.first - 1
    try:
        for batch in table.iter_batches(batch_size=_ROWS_AT_ONCE, row_groups=groups, columns=wanted):
            for row in batch.to_pylist():
                number += 1
                part.tally.line(b"")
                yield record_of(part.place(number), row, columns)
    except damage as error:
        yield UnusedRecord(part.place(number + 1), f"the file breaks off ({first_line(error)})")


def open_parquet(path: AnyPath) -> Any:
    """A Parquet file; one that is damaged raises one of `parquet_errors`."""
    arrow("a Parquet file")
    import pyarrow.parquet as pq

    return pq.ParquetFile(_source(path))


def parquet_errors() -> tuple[type[Exception], ...]:
    """What reading a damaged Parquet file raises."""
    return arrow("a Parquet file").ArrowException, OSError, ValueError, TypeError, MemoryError


def _dataset(part: _Part, columns: Columns) -> Iterator[Record | UnusedRecord]:
    number = 0
    for place, rows in open_dataset(part.path):
        start = max(part.span.start - number, 0)
        stop = len(rows) if part.span.stop is None else min(max(part.span.stop - number, 0), len(rows))
        number += len(rows)
        if start >= stop:
            continue
        row_number, stream = start, iter(rows.select(range(start, stop)))
        while True:
            row_number += 1
            try:
                row = next(stream)
            except StopIteration:
                break
            except Exception as error:  # a damaged file is met where it is damaged
                yield UnusedRecord(f"{place}:{row_number}", f"the dataset breaks off ({first_line(error)})")
                break
            part.tally.line(b"")
            yield record_of(f"{place}:{row_number}", row, columns)


def open_dataset(path: AnyPath) -> list[tuple[str, Any]]:
    """The splits of a dataset on disk, each with its place."""
    try:
        import datasets
    except ImportError as error:
        raise InputError(
            f"a folder is read as a Hugging Face dataset, which needs the datasets library ({path}): "
            "pip install 'normlens[corpus]'"
        ) from error
    try:
        loaded = datasets.load_from_disk(str(path))
    except Exception as error:  # a damaged folder may raise anything in there
        raise InputError(
            f"a folder must be a dataset saved with save_to_disk: {str(path)!r} is none ({first_line(error)})"
        ) from error
    if not isinstance(loaded, datasets.DatasetDict):
        return [(str(path), loaded)]
    return [(f"{path}/{split}", rows) for split, rows in loaded.items()]


def _pickle(part: _Part, columns: Columns) -> Iterator[Record | UnusedRecord]:
    path = part.path
    rows = load_plain_pickle(lambda: open_binary(path), str(path))
    if not isinstance(rows, list):
        raise InputError(f"a pickle must hold a list of dictionaries with tokens: {path} holds {type(rows).__name__}")
    for number, row in enumerate(rows, 1):
        tokens = row.get("tokens") if isinstance(row, dict) else None
        part.tally.line(b"")
        if tokens is not None and is_strings(tokens):
            yield Record(part.place(number), tokens=tuple(map(str, tokens)))
        else:
            yield UnusedRecord(part.place(number), "not a dictionary with a list of tokens")


def record_of(place: str, row: Mapping[str, Any], columns: Columns) -> Record | UnusedRecord:
    """The record that a row of a table holds."""
    text = row.get(text_column_of(row, columns, place))
    pair = row.get(columns.pair) if columns.pair is not None else None
    target = row.get(columns.target) if columns.target is not None else None
    tags = row.get(columns.tags) if columns.tags is not None else None
    if isinstance(tags, str):
        tags = tags.split()
    if columns.tags is not None:
        words = text.split() if isinstance(text, str) else text
        if not is_strings(words) or not is_strings(tags) or len(words or ()) != len(tags or ()):
            return UnusedRecord(
                place, "tags need one word each: the words and the tags differ in number, or are not strings"
            )
        return Record(place, words=tuple(words or ()), tags=tuple(tags or ()))
    if text is not None and is_strings(text):
        return Record(place, words=tuple(text))
    if not isinstance(text, str) or not text.strip():
        return UnusedRecord(place, f"the text is {'empty' if isinstance(text, str) else 'not a string'}")
    if columns.pair is not None and (not isinstance(pair, str) or not pair.strip()):
        return UnusedRecord(place, "the second text is missing")
    if columns.target is not None and (not isinstance(target, str) or not target.strip()):
        return UnusedRecord(place, "the target is missing")
    return Record(
        place,
        text.strip(),
        pair.strip() if isinstance(pair, str) else None,
        target.strip() if isinstance(target, str) else None,
    )


def is_strings(value: Any) -> bool:
    """Whether something is a list of strings, and not empty."""
    return isinstance(value, list | tuple) and bool(value) and all(isinstance(item, str) for item in value)


def text_column_of(row: Iterable[str], columns: Columns, place: str) -> str:
    """The column that holds the text: the one that was named, or the first of the usual names."""
    names = list(row)
    if columns.text is not None:
        if columns.text not in names:
            raise InputError(f"the text column must exist: {place} has {', '.join(names)}, not {columns.text!r}")
        return columns.text
    for name in _TEXT_COLUMNS:
        if name in names:
            return name
    raise InputError(f"a table needs a text column: {place} has {', '.join(names)}; name it with --text-column")
