"""Records of a corpus: plain text, JSON Lines, CSV and TSV, Parquet, datasets on disk, the pickle of Clark et al. 2019.

Every record knows its place. What cannot be read becomes an `UnusedRecord` with its place, never an exception in the
middle of a file and never silence; the caller decides whether it stops the run.
"""

from __future__ import annotations

import csv
import gzip
import io
import json
import lzma
import zlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from normlens.corpus.reading.plain_pickle import load_plain_pickle
from normlens.errors import InputError

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
    words: tuple[str, ...] | None = None
    tokens: tuple[str, ...] | None = None  # already the model's own tokens, special ones included
    tags: tuple[str, ...] | None = None


@dataclass(frozen=True)
class UnusedRecord:
    """Something that should have been a record, and why it is not used."""

    place: str
    reason: str
    harmless: bool = False  # worth a count, not an error


@dataclass(frozen=True)
class Columns:
    """Which columns of a table hold what; without `text`, the first of text, sentence, content that exists."""

    text: str | None = None
    pair: str | None = None
    tags: str | None = None


def format_of(path: Path, given: str | None = None) -> str:
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
    path: Path, columns: Columns, given: str | None = None, largest: int = LARGEST_RECORD
) -> Iterator[Record | UnusedRecord]:
    """Every record of a source, in its order; one of more than `largest` bytes is not used."""
    if not path.exists():
        raise InputError(f"a source must exist: there is no {str(path)!r}; check the path")
    readers: dict[str, Callable[[Path, Columns, int], Iterator[Record | UnusedRecord]]] = {
        "text": _text, "jsonl": _json_lines, "csv": _csv, "tsv": _tsv, "parquet": _parquet, "dataset": _dataset,
        "pickle": _pickle,
    }  # fmt: skip
    for record in readers[format_of(path, given)](path, columns, largest):
        yield _checked(record, largest) if isinstance(record, Record) else record


def _checked(record: Record, largest: int) -> Record | UnusedRecord:
    """The record, if it is text that a tokenizer can be given."""
    size = 0
    for text in (record.text, record.pair or "", *(record.words or ()), *(record.tokens or ()), *(record.tags or ())):
        if len(text) > largest:
            return _too_long(record.place, largest)
        try:
            size += len(text.encode())
        except UnicodeEncodeError:
            return UnusedRecord(record.place, "half of a surrogate pair, which is no text")
    return record if size <= largest else _too_long(record.place, largest)


def _too_long(place: str, largest: int) -> UnusedRecord:
    return UnusedRecord(place, f"longer than {largest} bytes; the largest record is set by --largest-record")


def open_binary(path: Path) -> io.BufferedIOBase:
    """A file's content, decompressed by its suffix; what cannot be opened raises an `OSError`."""
    match path.suffix:
        case ".gz":
            return gzip.open(path)
        case ".xz":
            return lzma.open(path)
        case ".zst":
            import pyarrow as pa

            return io.BufferedReader(pa.CompressedInputStream(pa.OSFile(str(path)), "zstd"))
    return path.open("rb")


def _lines(path: Path, largest: int) -> Iterator[tuple[int, str | UnusedRecord]]:
    """Numbered lines; one that is too long or not UTF-8, or a stream that breaks off, is not used."""
    number = 0
    try:
        with open_binary(path) as stream:
            while raw := stream.readline(largest + 2):  # two more: the line's end does not count
                number += 1
                line = raw.removesuffix(b"\n").removesuffix(b"\r")
                if len(line) > largest:
                    while raw and not raw.endswith(b"\n"):  # what follows is left out piece by piece
                        raw = stream.readline(_BLOCK)
                    yield number, _too_long(f"{path}:{number}", largest)
                    continue
                try:
                    yield number, line.decode("utf-8-sig" if number == 1 else "utf-8")
                except UnicodeDecodeError as error:
                    yield number, UnusedRecord(f"{path}:{number}", f"not UTF-8 at byte {error.start} of the line")
    except _STREAM_ERRORS as error:
        yield number + 1, UnusedRecord(f"{path}:{number + 1}", f"the file breaks off ({error or type(error).__name__})")


def _text(path: Path, columns: Columns, largest: int) -> Iterator[Record | UnusedRecord]:
    for number, line in _lines(path, largest):
        if isinstance(line, UnusedRecord):
            yield line
        elif line.strip():
            yield Record(f"{path}:{number}", line.strip())


def _json_lines(path: Path, columns: Columns, largest: int) -> Iterator[Record | UnusedRecord]:
    for number, line in _lines(path, largest):
        place = f"{path}:{number}"
        if isinstance(line, UnusedRecord):
            yield line
        elif line.strip():
            try:
                row = json.loads(line)
            except (ValueError, RecursionError) as error:  # ValueError: also a number of thousands of digits
                yield UnusedRecord(place, f"not JSON ({error})")
                continue
            yield _row(place, row, columns) if isinstance(row, dict) else UnusedRecord(place, "not a JSON object")


def _csv(path: Path, columns: Columns, largest: int) -> Iterator[Record | UnusedRecord]:
    yield from _delimited(path, columns, ",", largest)


def _tsv(path: Path, columns: Columns, largest: int) -> Iterator[Record | UnusedRecord]:
    yield from _delimited(path, columns, "\t", largest)


class _Tabs(csv.excel_tab):
    """TSV has no quoting: a quotation mark in a sentence is a quotation mark."""

    quoting = csv.QUOTE_NONE


def _delimited(path: Path, columns: Columns, delimiter: str, largest: int) -> Iterator[Record | UnusedRecord]:
    """Rows of a table; columns given as numbers (from 0) mean that there is no header."""
    unused: list[UnusedRecord] = []
    in_row = 0  # characters since the last row ended: a quotation mark may open a row that never does

    def clean() -> Iterator[str]:
        nonlocal in_row
        for number, line in _lines(path, largest):
            if isinstance(line, UnusedRecord):
                unused.append(line)
                continue
            in_row += len(line)
            if in_row > largest:
                unused.append(_too_long(f"{path}:{number}", largest))
                return  # nobody can say where the next row begins
            yield line + "\n"

    reader = csv.reader(clean(), _Tabs if delimiter == "\t" else csv.excel)
    header: list[str] | None = None
    numbered = (columns.text or "").isdigit()
    while True:
        try:
            cells = next(reader)
        except StopIteration:
            break
        except csv.Error as error:
            yield UnusedRecord(f"{path}:{reader.line_num}", f"not a table row ({error})")
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
                _text_column(dict.fromkeys(header), columns, str(path))
                continue
        place = f"{path}:{reader.line_num}"
        if len(cells) != len(header):
            yield UnusedRecord(place, f"{len(cells)} columns where the table has {len(header)}")
            continue
        yield _row(place, dict(zip(header, cells, strict=True)), columns)
    yield from unused


def _parquet(path: Path, columns: Columns, largest: int) -> Iterator[Record | UnusedRecord]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    damage = (pa.ArrowException, OSError, ValueError, TypeError, MemoryError)
    try:
        table = pq.ParquetFile(path)
        names = table.schema_arrow.names
    except damage as error:
        yield UnusedRecord(str(path), f"not a Parquet file ({_first_line(error)})")
        return
    text = _text_column(dict.fromkeys(names), columns, str(path))
    wanted = list(dict.fromkeys(name for name in (text, columns.pair, columns.tags) if name is not None))
    number = 0
    try:
        for batch in table.iter_batches(batch_size=_ROWS_AT_ONCE, columns=wanted):
            for row in batch.to_pylist():
                number += 1
                yield _row(f"{path}:{number}", row, columns)
    except damage as error:
        yield UnusedRecord(f"{path}:{number + 1}", f"the file breaks off ({_first_line(error)})")


def _dataset(path: Path, columns: Columns, largest: int) -> Iterator[Record | UnusedRecord]:
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
            f"a folder must be a dataset saved with save_to_disk: {str(path)!r} is none ({_first_line(error)})"
        ) from error
    splits = loaded.items() if isinstance(loaded, datasets.DatasetDict) else [("", loaded)]
    for split, rows in splits:
        place = f"{path}{'/' + split if split else ''}"
        number = 0
        stream = iter(rows)
        while True:
            number += 1
            try:
                row = next(stream)
            except StopIteration:
                break
            except Exception as error:  # a damaged file is met where it is damaged
                yield UnusedRecord(f"{place}:{number}", f"the dataset breaks off ({_first_line(error)})")
                break
            yield _row(f"{place}:{number}", row, columns)


def _pickle(path: Path, columns: Columns, largest: int) -> Iterator[Record | UnusedRecord]:
    rows = load_plain_pickle(lambda: open_binary(path), str(path))
    if not isinstance(rows, list):
        raise InputError(f"a pickle must hold a list of dictionaries with tokens: {path} holds {type(rows).__name__}")
    for number, row in enumerate(rows, 1):
        tokens = row.get("tokens") if isinstance(row, dict) else None
        if tokens is not None and _is_strings(tokens):
            yield Record(f"{path}:{number}", tokens=tuple(map(str, tokens)))
        else:
            yield UnusedRecord(f"{path}:{number}", "not a dictionary with a list of tokens")


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0][:200]


def _row(place: str, row: dict[str, Any], columns: Columns) -> Record | UnusedRecord:
    text = row.get(_text_column(row, columns, place))
    pair = row.get(columns.pair) if columns.pair is not None else None
    tags = row.get(columns.tags) if columns.tags is not None else None
    if isinstance(tags, str):
        tags = tags.split()
    if columns.tags is not None:
        words = text.split() if isinstance(text, str) else text
        if not _is_strings(words) or not _is_strings(tags) or len(words or ()) != len(tags or ()):
            return UnusedRecord(
                place, "tags need one word each: the words and the tags differ in number, or are not strings"
            )
        return Record(place, words=tuple(words or ()), tags=tuple(tags or ()))
    if text is not None and _is_strings(text):
        return Record(place, words=tuple(text))
    if not isinstance(text, str) or not text.strip():
        return UnusedRecord(place, f"the text is {'empty' if isinstance(text, str) else 'not a string'}")
    if columns.pair is not None and (not isinstance(pair, str) or not pair.strip()):
        return UnusedRecord(place, "the second text is missing")
    return Record(place, text.strip(), pair.strip() if isinstance(pair, str) else None)


def _is_strings(value: Any) -> bool:
    return isinstance(value, list | tuple) and bool(value) and all(isinstance(item, str) for item in value)


def _text_column(row: Iterable[str], columns: Columns, place: str) -> str:
    names = list(row)
    if columns.text is not None:
        if columns.text not in names:
            raise InputError(f"the text column must exist: {place} has {', '.join(names)}, not {columns.text!r}")
        return columns.text
    for name in _TEXT_COLUMNS:
        if name in names:
            return name
    raise InputError(f"a table needs a text column: {place} has {', '.join(names)}; name it with --text-column")
