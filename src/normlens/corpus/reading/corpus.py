"""A corpus as plain data: what is read, and how it becomes sequences."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from normlens.corpus.reading.records import (
    LARGEST_RECORD,
    WHOLE,
    Columns,
    Record,
    Span,
    Tally,
    UnusedRecord,
    format_of,
    read,
)
from normlens.corpus.reading.token_attributes import CategoryRule
from normlens.errors import InputError
from normlens.io.remote import AnyPath
from normlens.options import OnError


def skip_rule(skip: str | None) -> re.Pattern[str] | None:
    """The regular expression by which texts are passed over, if there is one."""
    try:
        return re.compile(skip) if skip else None
    except re.error as error:
        raise InputError(
            f"skip must be a regular expression: {skip!r} is not ({error}); escape special characters"
        ) from error


@dataclass(frozen=True)
class Corpus:
    """What is read, and how it becomes sequences."""

    sources: tuple[AnyPath, ...]
    pairs: bool = False  # two consecutive paragraphs: [CLS] a [SEP] b [SEP]
    max_length: int | None = None  # tokens; None: `PAPER_LENGTH`, or the model's limit where that is less
    mask: float = 0.0  # share of the tokens, other than special ones, that become [MASK]
    seed: int = 0
    limit: int | None = None  # at most so many sequences
    skip: str | None = None  # texts that match this regular expression are not part of the corpus
    format: str | None = None  # where the names of the sources do not tell
    columns: Columns = field(default_factory=Columns)
    on_error: OnError = "stop"
    largest_record: int = LARGEST_RECORD  # bytes; a longer one counts as unreadable
    categories: Mapping[str, CategoryRule] | None = None  # None: comma and period, as in the papers

    def __post_init__(self) -> None:
        if not self.sources:
            raise InputError("a corpus needs at least one source: none was given; name a file")
        for source in self.sources:
            try:
                there = source.exists()
            except OSError as error:
                raise InputError(f"a source must be readable: {source} is not ({error}); check the address") from error
            if not there:
                raise InputError(f"a source must exist: there is no {str(source)!r}; check the path")
        if self.on_error not in ("stop", "skip"):
            raise InputError(f"on_error must be stop or skip: got {self.on_error!r}")
        if self.limit is not None and self.limit < 1:
            raise InputError(f"a limit must be at least 1: got {self.limit}")
        if self.largest_record < 1:
            raise InputError(f"the largest record must have at least one byte: got {self.largest_record}")
        if self.columns.target is not None and (self.pairs or self.mask or self.columns.pair or self.columns.tags):
            raise InputError(
                "a target belongs to an encoder-decoder model, which reads one text and masks none: drop --pairs, --mask, "
                "--pair-column and --tag-column, or --target-column"
            )
        skip_rule(self.skip)

    def records(self, source: int, span: Span = WHOLE, tally: Tally | None = None) -> Iterator[Record | UnusedRecord]:
        """The records of a source, or of a span of it, that are part of the corpus."""
        skip = skip_rule(self.skip)
        for record in read(self.sources[source], self.columns, self.format, self.largest_record, span, tally):
            if skip is None or isinstance(record, UnusedRecord) or not skip.search(record.text):
                yield record

    def kind(self, source: int) -> str:
        """The format of a source."""
        return format_of(self.sources[source], self.format)

    def records_per_sequence(self, source: int) -> int:
        """Two where neighbours are joined; texts with a partner of their own and ready tokens stay as they are."""
        return 2 if self.pairs and self.columns.pair is None and self.kind(source) != "pickle" else 1
