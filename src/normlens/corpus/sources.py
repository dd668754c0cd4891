"""Reading a corpus: plain text, JSON Lines, CSV and TSV, Parquet, datasets on disk, the pickle of Clark et al. 2019.

Every record knows its place. What cannot be read becomes a `Flaw` with its place, never an exception in mid-file and
never silence; the caller decides whether it stops the run.
"""

from __future__ import annotations

import csv
import gzip
import json
import lzma
import zlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from normlens.corpus.clark import load_plain_pickle
from normlens.errors import InputError

FORMATS = ("text", "jsonl", "csv", "tsv", "parquet", "dataset", "pickle")

_BY_SUFFIX = {
    ".txt": "text", ".text": "text", ".jsonl": "jsonl", ".ndjson": "jsonl", ".json": "jsonl", ".csv": "csv",
    ".tsv": "tsv", ".parquet": "parquet", ".pq": "parquet", ".pkl": "pickle", ".pickle": "pickle",
}  # fmt: skip
_COMPRESSED = (".gz", ".xz", ".zst")
_TEXT_COLUMNS = ("text", "sentence", "content")

#: What a damaged compressed stream raises, by library.
_STREAM_ERRORS = (EOFError, OSError, lzma.LZMAError, zlib.error)


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
class Flaw:
    """Something that should have been a record, and why it is none."""

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


def read(path: Path, columns: Columns, given: str | None = None) -> Iterator[Record | Flaw]:
    """Every record of a source, in its order."""
    if not path.exists():
        raise InputError(f"a source must exist: there is no {str(path)!r}; check the path")
    readers: dict[str, Callable[[Path, Columns], Iterator[Record | Flaw]]] = {
        "text": _text, "jsonl": _json_lines, "csv": _csv, "tsv": _tsv, "parquet": _parquet, "dataset": _dataset,
        "pickle": _pickle,
    }  # fmt: skip
    yield from readers[format_of(path, given)](path, columns)


def open_binary(path: Path) -> IO[bytes]:
    """A file's content, decompressed by its suffix."""
    match path.suffix:
        case ".gz":
            return gzip.open(path)  # type: ignore[return-value]
        case ".xz":
            return lzma.open(path)
        case ".zst":
            import pyarrow as pa

            return pa.CompressedInputStream(pa.OSFile(str(path)), "zstd")  # type: ignore[no-any-return]
    return path.open("rb")


def _lines(path: Path) -> Iterator[tuple[int, str | Flaw]]:
    """Numbered lines; a line that is not UTF-8, or a stream that breaks off, is a flaw."""
    number = 0
    try:
        with open_binary(path) as stream:
            for number, raw in enumerate(_split(stream), 1):
                try:
                    yield number, raw.decode("utf-8-sig" if number == 1 else "utf-8")
                except UnicodeDecodeError as error:
                    yield number, Flaw(f"{path}:{number}", f"not UTF-8 at byte {error.start} of the line")
    except _STREAM_ERRORS as error:
        yield number + 1, Flaw(f"{path}:{number + 1}", f"the file breaks off ({error or type(error).__name__})")


def _split(stream: IO[bytes]) -> Iterator[bytes]:
    # Not `for line in stream`: pyarrow's streams have no lines, and a block at a time is as fast for the others.
    rest = b""
    while block := stream.read(1 << 20):
        *whole, rest = (rest + block).split(b"\n")
        yield from (line.removesuffix(b"\r") for line in whole)
    if rest:
        yield rest.removesuffix(b"\r")


def _text(path: Path, columns: Columns) -> Iterator[Record | Flaw]:
    for number, line in _lines(path):
        if isinstance(line, Flaw):
            yield line
        elif line.strip():
            yield Record(f"{path}:{number}", line.strip())


def _json_lines(path: Path, columns: Columns) -> Iterator[Record | Flaw]:
    for number, line in _lines(path):
        place = f"{path}:{number}"
        if isinstance(line, Flaw):
            yield line
        elif line.strip():
            try:
                row = json.loads(line)
            except (json.JSONDecodeError, RecursionError) as error:
                yield Flaw(place, f"not JSON ({error})")
                continue
            yield _row(place, row, columns) if isinstance(row, dict) else Flaw(place, "not a JSON object")


def _csv(path: Path, columns: Columns) -> Iterator[Record | Flaw]:
    yield from _delimited(path, columns, ",")


def _tsv(path: Path, columns: Columns) -> Iterator[Record | Flaw]:
    yield from _delimited(path, columns, "\t")


class _Tabs(csv.excel_tab):
    """TSV has no quoting: a quotation mark in a sentence is a quotation mark."""

    quoting = csv.QUOTE_NONE


def _delimited(path: Path, columns: Columns, delimiter: str) -> Iterator[Record | Flaw]:
    """Rows of a table; columns given as numbers (from 0) mean that there is no header."""
    flaws: list[Flaw] = []

    def clean() -> Iterator[str]:
        for _, line in _lines(path):
            if isinstance(line, Flaw):
                flaws.append(line)
            else:
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
            yield Flaw(f"{path}:{reader.line_num}", f"not a table row ({error})")
            continue
        yield from flaws
        flaws.clear()
        if not cells:
            continue
        if header is None:
            header = [str(number) for number in range(len(cells))] if numbered else cells
            if not numbered:
                _text_column(dict.fromkeys(header), columns, str(path))
                continue
        place = f"{path}:{reader.line_num}"
        if len(cells) != len(header):
            yield Flaw(place, f"{len(cells)} columns where the table has {len(header)}")
            continue
        yield _row(place, dict(zip(header, cells, strict=True)), columns)
    yield from flaws


def _parquet(path: Path, columns: Columns) -> Iterator[Record | Flaw]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        table = pq.ParquetFile(path)
    except (pa.ArrowException, OSError) as error:
        yield Flaw(str(path), f"not a Parquet file ({str(error).splitlines()[0]})")
        return
    text = _text_column(dict.fromkeys(table.schema_arrow.names), columns, str(path))
    wanted = [name for name in (text, columns.pair, columns.tags) if name is not None]
    number = 0
    try:
        for batch in table.iter_batches(batch_size=1024, columns=wanted):
            for row in batch.to_pylist():
                number += 1
                yield _row(f"{path}:{number}", row, columns)
    except (pa.ArrowException, OSError) as error:
        yield Flaw(f"{path}:{number + 1}", f"the file breaks off ({str(error).splitlines()[0]})")


def _dataset(path: Path, columns: Columns) -> Iterator[Record | Flaw]:
    try:
        import datasets
    except ImportError as error:
        raise InputError(
            f"a folder is read as a Hugging Face dataset, which needs the datasets library ({path}): "
            "pip install 'normlens[corpus]'"
        ) from error
    try:
        loaded = datasets.load_from_disk(str(path))
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InputError(f"a folder must be a dataset saved with save_to_disk: {str(path)!r} is none") from error
    splits = loaded.items() if isinstance(loaded, datasets.DatasetDict) else [("", loaded)]
    for split, rows in splits:
        for number, row in enumerate(rows, 1):
            yield _row(f"{path}{'/' + split if split else ''}:{number}", row, columns)


def _pickle(path: Path, columns: Columns) -> Iterator[Record | Flaw]:
    with open_binary(path) as stream:
        rows = load_plain_pickle(stream, str(path))
    if not isinstance(rows, list):
        raise InputError(f"the pickle must hold a list of dictionaries with tokens: {path} holds {type(rows).__name__}")
    for number, row in enumerate(rows, 1):
        tokens = row.get("tokens") if isinstance(row, dict) else None
        if tokens is not None and _is_strings(tokens):
            yield Record(f"{path}:{number}", tokens=tuple(map(str, tokens)))
        else:
            yield Flaw(f"{path}:{number}", "not a dictionary with a list of tokens")


def _row(place: str, row: dict[str, Any], columns: Columns) -> Record | Flaw:
    text = row.get(_text_column(row, columns, place))
    pair = row.get(columns.pair) if columns.pair is not None else None
    tags = row.get(columns.tags) if columns.tags is not None else None
    if isinstance(tags, str):
        tags = tags.split()
    if columns.tags is not None:
        words = text.split() if isinstance(text, str) else text
        if not _is_strings(words) or not _is_strings(tags) or len(words or ()) != len(tags or ()):
            return Flaw(place, "tags need one word each: the words and the tags differ in number or are no strings")
        return Record(place, words=tuple(words or ()), tags=tuple(tags or ()))
    if text is not None and _is_strings(text):
        return Record(place, words=tuple(text))
    if not isinstance(text, str) or not text.strip():
        return Flaw(place, f"the text is {'empty' if isinstance(text, str) else 'no string'}")
    if columns.pair is not None and (not isinstance(pair, str) or not pair.strip()):
        return Flaw(place, "the second text is missing")
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
