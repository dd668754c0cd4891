"""A survey of a corpus: its pieces, how many records each holds, and their checksums.

It is made before anything is counted, piece by piece, by as many processes as there are. From then on every record has
a number, and so has every sequence: whoever is asked for the sequences 5,000 to 6,000 opens the right piece and reads on
across its border, so that pairs of consecutive paragraphs are the same however the corpus was cut. Files of lines
(text, JSON Lines) are cut at any byte, Parquet between row groups, datasets between rows; a compressed file, CSV and a
pickle are one piece each, since nobody can say where a record begins in their middle.
"""

from __future__ import annotations

import bisect
import hashlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from itertools import accumulate
from typing import Any, Protocol, TypeVar

from normlens.corpus.reading.corpus import Corpus
from normlens.corpus.reading.records import (
    Record,
    Span,
    Tally,
    UnusedRecord,
    is_splittable,
    open_dataset,
    open_parquet,
    parquet_errors,
)
from normlens.errors import InputError
from normlens.io.checksums import content_digest, file_digest
from normlens.io.remote import AnyPath, RemotePath, size_of

PIECE_BYTES = 1 << 23
_PIECE_ROWS = 1 << 15  # of a dataset
_LISTED = 20  # unused records that are named; all are counted

_Item = TypeVar("_Item")
_Result = TypeVar("_Result")


class Parallel(Protocol):
    """Like `map`, by several processes: the results in the order of the items."""

    def __call__(self, function: Callable[[_Item], _Result], items: Iterable[_Item], /) -> Iterator[_Result]: ...


@dataclass(frozen=True)
class Piece:
    """A part of a source that is read by itself."""

    source: int
    span: Span


@dataclass(frozen=True)
class PieceCount:
    """What is in a piece."""

    units: int  # lines or rows
    records: int
    errors: int  # records that cannot be read
    size: int  # bytes
    digest: bytes
    by_lines: bool  # the digest is that of the lines
    cut: bool = False  # no more was read, since a limit needs no more
    tags: frozenset[str] = frozenset()


@dataclass
class ReadingLog:
    """What was not used, and where it stood."""

    errors: int = 0
    harmless: int = 0
    listed: list[dict[str, str]] = field(default_factory=list)

    @property
    def is_full(self) -> bool:
        """Whether no more can be listed."""
        return len(self.listed) >= _LISTED

    def note(self, record: UnusedRecord) -> None:
        """List an unused record, where there is room."""
        if not self.is_full:
            self.listed.append({"place": record.place, "reason": record.reason})


@dataclass(frozen=True)
class Survey:
    """A corpus in pieces of known content."""

    corpus: Corpus
    pieces: tuple[Piece, ...]  # in the order of the corpus, their first lines or rows numbered
    counts: tuple[PieceCount, ...]

    # ---- numbers -------------------------------------------------------------------------------------------------

    @cached_property
    def _records_before(self) -> list[int]:
        """How many records of its own source stand before each piece."""
        before, seen = list[int](), dict[int, int]()
        for piece, count in zip(self.pieces, self.counts, strict=True):
            before.append(seen.get(piece.source, 0))
            seen[piece.source] = before[-1] + count.records
        return before

    @cached_property
    def _records(self) -> list[int]:
        """How many records each source has."""
        found = [0] * len(self.corpus.sources)
        for piece, count in zip(self.pieces, self.counts, strict=True):
            found[piece.source] += count.records
        return found

    @cached_property
    def _sequences_before(self) -> list[int]:
        """How many sequences stand before each source, and after the last."""
        each = (n // self.corpus.records_per_sequence(source) for source, n in enumerate(self._records))
        return list(accumulate(each, initial=0))

    @property
    def sequences(self) -> int:
        """How many sequences the corpus has, with those of which no token will be left."""
        found, limit = self._sequences_before[-1], self.corpus.limit
        return found if limit is None else min(found, limit)

    @property
    def tags(self) -> list[str]:
        """Every tag of a word, sorted."""
        found = sorted(set().union(*(count.tags for count in self.counts)))
        if not found:
            column = self.corpus.columns.tags
            raise InputError(f"the tag column must hold tags: {column!r} holds none; name another column")
        return found

    # ---- reading -------------------------------------------------------------------------------------------------

    def records_from(self, sequence: int) -> Iterator[tuple[int, Iterator[Record | UnusedRecord]]]:
        """From a sequence on, by source: the number of the first sequence, and the records from there to its end."""
        source = bisect.bisect_right(self._sequences_before, sequence, hi=len(self.corpus.sources)) - 1
        for number in range(max(source, 0), len(self.corpus.sources)):
            first = max(sequence, self._sequences_before[number])
            passed = (first - self._sequences_before[number]) * self.corpus.records_per_sequence(number)
            yield first, self._from_record(number, passed)

    def _from_record(self, source: int, passed: int) -> Iterator[Record | UnusedRecord]:
        """The records of a source without the first `passed`."""
        for index, piece in enumerate(self.pieces):
            left = passed - self._records_before[index]
            if piece.source != source or left >= self.counts[index].records > 0:
                continue
            for record in self._checked(index):
                if isinstance(record, Record) and left > 0:
                    left -= 1
                    continue
                yield record

    def _checked(self, index: int) -> Iterator[Record | UnusedRecord]:
        """The records of a piece, which must be those that were surveyed."""
        piece, count, tally = self.pieces[index], self.counts[index], Tally()
        yield from self.corpus.records(piece.source, piece.span, tally)
        changed = tally.units != count.units or (count.by_lines and tally.digest != count.digest)
        if changed and not count.cut:
            raise InputError(
                f"a corpus must not change while it is counted: {self.corpus.sources[piece.source]} did; run the same "
                "command with --fresh"
            )

    # ---- what is written about it --------------------------------------------------------------------------------

    def log(self) -> ReadingLog:
        """What is not used; for the places of the first ones their pieces are read again."""
        log = ReadingLog(errors=sum(count.errors for count in self.counts))
        for piece, count in zip(self.pieces, self.counts, strict=True):
            if count.errors and not log.is_full:
                for record in self.corpus.records(piece.source, piece.span):
                    if isinstance(record, UnusedRecord):
                        log.note(record)
        reached = self.corpus.limit is not None and self._sequences_before[-1] >= self.corpus.limit
        for source, records in enumerate(self._records):
            if records % self.corpus.records_per_sequence(source) and not (
                reached and source == self.pieces[-1].source
            ):
                log.harmless += 1
                if not log.is_full:
                    log.note(self._unpaired(source))
        return log

    def _unpaired(self, source: int) -> UnusedRecord:
        last = max(i for i, piece in enumerate(self.pieces) if piece.source == source and self.counts[i].records)
        records = self.corpus.records(source, self.pieces[last].span)
        place = [record.place for record in records if isinstance(record, Record)][-1]
        return UnusedRecord(place, "the last paragraph of its source has no partner")

    def identity(self) -> list[dict[str, Any]]:
        """The files with sizes and checksums; of a file in several pieces, the checksum of their checksums.

        With a limit, no more is read and covered than the limit needs.
        """
        found = []
        for source, path in enumerate(self.corpus.sources):
            own = [count for piece, count in zip(self.pieces, self.counts, strict=True) if piece.source == source]
            if not own:  # after a limit
                continue
            whole = hashlib.sha256(b"".join(count.digest for count in own)).hexdigest()
            entry: dict[str, Any] = {"path": str(path), "bytes": sum(count.size for count in own)}
            if len(own) == 1:
                entry["sha256"] = own[0].digest.hex()
            else:
                entry |= {"pieces": len(own), "sha256_of_pieces": whole}
            found.append(entry)
        return found


def survey_of(corpus: Corpus, parallel: Parallel = map) -> Survey:
    """Survey a corpus; `parallel` has the pieces counted. A record that stops the run is an error here already."""
    pieces, counts, found = list[Piece](), list[PieceCount](), dict[int, int]()
    travelling = replace(corpus, categories=None)  # which may hold functions, and are not asked here
    cut = [Piece(source, span) for source in range(len(corpus.sources)) for span in _spans(corpus, source)]
    first = dict.fromkeys(range(len(corpus.sources)), 1)
    for piece, count in zip(cut, parallel(partial(count_piece, travelling), cut), strict=False):
        numbered = replace(piece, span=replace(piece.span, first=first[piece.source]))
        first[piece.source] += count.units
        if count.errors and corpus.on_error == "stop":
            _stop(corpus, numbered)
        pieces.append(numbered)
        counts.append(count)
        found[piece.source] = found.get(piece.source, 0) + count.records
        if corpus.limit is not None:
            each = (records // corpus.records_per_sequence(source) for source, records in found.items())
            if sum(each) >= corpus.limit:
                break
    return Survey(corpus, tuple(pieces), tuple(counts))


def count_piece(corpus: Corpus, piece: Piece) -> PieceCount:
    """Read a piece: what is in it?"""
    path, kind, tally = corpus.sources[piece.source], corpus.kind(piece.source), Tally()
    per_sequence = corpus.records_per_sequence(piece.source)
    most = None if corpus.limit is None else corpus.limit * per_sequence
    records = errors = 0
    tags: set[str] = set()
    cut = False
    for record in corpus.records(piece.source, piece.span, tally):
        if isinstance(record, UnusedRecord):
            errors += 1
            continue
        if per_sequence == 2 and record.words is not None:
            raise InputError("paragraph pairs are made of texts, not of lists of words: drop --pairs")
        tags.update(record.tags or ())
        records += 1
        if records == most:
            cut = True
            break
    by_lines = kind not in ("parquet", "dataset", "pickle")
    size, digest = (tally.size, tally.digest) if by_lines else _bytes_of(path, kind, piece.span)
    return PieceCount(tally.units, records, errors, size, digest, by_lines, cut, frozenset(tags))


def _stop(corpus: Corpus, piece: Piece) -> None:
    for record in corpus.records(piece.source, piece.span):
        if isinstance(record, UnusedRecord):
            raise unreadable(record)


def unreadable(record: UnusedRecord) -> InputError:
    """The error for a record that may not be passed over."""
    return InputError(
        f"every record must be readable: {record.place}: {record.reason}; correct it, or count and skip such records "
        "with --on-error skip"
    )


def _spans(corpus: Corpus, source: int) -> list[Span]:
    """Where a source is cut."""
    path, kind = corpus.sources[source], corpus.kind(source)
    if is_splittable(path, kind) and path.is_file():
        cuts = range(0, max(size_of(path), 1), PIECE_BYTES)
        # To the end, not to the size that it has now: a file that grew meanwhile must be noticed.
        return [Span(at, at + PIECE_BYTES if at + PIECE_BYTES < cuts.stop else None) for at in cuts]
    if kind == "parquet":
        return [Span(group, group + 1) for group in range(len(_row_groups(path)))] or [Span()]
    if kind == "dataset":
        rows = sum(len(split) for _, split in open_dataset(path))
        return [Span(at, min(at + _PIECE_ROWS, rows)) for at in range(0, rows, _PIECE_ROWS)] or [Span()]
    return [Span()]


def _row_groups(path: AnyPath) -> list[tuple[int, int]]:
    """Where the row groups of a Parquet file lie in it; nothing of a damaged one, which is met again when it is read."""
    try:
        metadata = open_parquet(path).metadata
        starts = []
        for group in range(metadata.num_row_groups):
            columns = [metadata.row_group(group).column(n) for n in range(metadata.num_columns)]
            starts.append(min(column.dictionary_page_offset or column.data_page_offset for column in columns))
    except parquet_errors():
        return []
    starts[:1] = [0] if starts else []
    return list(zip(starts, [*starts[1:], size_of(path)], strict=True))


def _bytes_of(path: AnyPath, kind: str, span: Span) -> tuple[int, bytes]:
    """Size and SHA-256 of the bytes that a span has of a file, whatever they mean; a folder goes with its first span."""
    if kind == "parquet" and span.stop is not None and (groups := _row_groups(path)):
        start, stop = groups[span.start]
        with path.open("rb") as stream:
            stream.seek(start)
            content = stream.read(stop - start)
        return len(content), hashlib.sha256(content).digest()
    if span.start:
        return 0, hashlib.sha256(b"").digest()
    if isinstance(path, RemotePath) or not path.is_dir():
        return size_of(path), bytes.fromhex(file_digest(path))
    return sum(file.stat().st_size for file in path.rglob("*") if file.is_file()), bytes.fromhex(content_digest(path))
