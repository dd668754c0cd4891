"""A corpus as plain data, and the reader that turns it into sequences for one model."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
from jaxtyping import Float

from normlens.corpus.reading.records import LARGEST_RECORD, Columns, Record, UnusedRecord, format_of, read
from normlens.corpus.reading.sequences import SequenceBuilder, TokenSequence
from normlens.corpus.reading.token_attributes import Categories, CategoryRule, count_ranks, read_ranks
from normlens.errors import InputError

#: Sequences are cut at this many tokens, as in the papers, unless another length is asked for or the model takes less.
PAPER_LENGTH = 128

#: Ask for this in place of a file to rank tokens by their count in the corpus itself.
COUNTED = "corpus"

#: A number per token id: an array over the vocabulary (NaN: leave the token out), a file of ranks, or `COUNTED`.
Covariate = npt.ArrayLike | Path

OnError = Literal["stop", "skip"]

_LISTED = 20  # unused records named in the manifest; all are counted


@dataclass(frozen=True)
class Corpus:
    """What is read, and how it becomes sequences."""

    sources: tuple[Path, ...]
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
            if not source.exists():
                raise InputError(f"a source must exist: there is no {str(source)!r}; check the path")
        if self.on_error not in ("stop", "skip"):
            raise InputError(f"on_error must be stop or skip: got {self.on_error!r}")
        if self.limit is not None and self.limit < 1:
            raise InputError(f"a limit must be at least 1: got {self.limit}")
        if self.largest_record < 1:
            raise InputError(f"the largest record must have at least one byte: got {self.largest_record}")
        try:
            re.compile(self.skip or "")
        except re.error as error:
            raise InputError(
                f"skip must be a regular expression: {self.skip!r} is not ({error}); escape special characters"
            ) from error

    def records(self, source: Path) -> Iterator[Record | UnusedRecord]:
        """The records of one source that are part of the corpus."""
        skip = re.compile(self.skip) if self.skip else None
        for record in read(source, self.columns, self.format, self.largest_record):
            if skip is None or isinstance(record, UnusedRecord) or not skip.search(record.text):
                yield record

    def estimate(self) -> int:
        """About how many sequences there are, for a progress bar: records are counted, not tokenized."""
        count = 0
        for source in self.sources:
            each = 2 if self.pairs and format_of(source, self.format) != "pickle" else 1  # records per sequence
            left = None if self.limit is None else (self.limit - count) * each
            count += sum(1 for _ in islice(self._texts(source), left)) // each
            if count == self.limit:
                break
        return count

    def _texts(self, source: Path) -> Iterator[Record]:
        return (record for record in self.records(source) if isinstance(record, Record))

    def tags(self) -> list[str]:
        """Every tag, sorted: categories must be known before the first is counted."""
        found: set[str] = set()
        for source in self.sources:
            for record in self.records(source):
                if isinstance(record, Record):
                    found.update(record.tags or ())
        if not found:
            raise InputError(f"the tag column must hold tags: {self.columns.tags!r} holds none; name another column")
        return sorted(found)


@dataclass
class ReadingLog:
    """What was not used, and where it stood."""

    errors: int = 0
    harmless: int = 0
    listed: list[dict[str, str]] = field(default_factory=list)

    def add(self, record: UnusedRecord) -> None:
        """Count an unused record; the first ones are listed."""
        self.errors += not record.harmless
        self.harmless += record.harmless
        if len(self.listed) < _LISTED:
            self.listed.append({"place": record.place, "reason": record.reason})


class CorpusReader:
    """A corpus and a tokenizer: the sequences, their categories and the numbers that belong to token ids."""

    def __init__(self, corpus: Corpus, tokenizer: Any, longest: int | None = None) -> None:
        """`longest` is how many tokens the model takes."""
        if tokenizer is None:
            raise InputError("a corpus needs a tokenizer: this lens has none; pass Lens(model, tokenizer)")
        self.corpus, self.tokenizer = corpus, tokenizer
        self.max_length = _length(corpus.max_length, longest)
        tags = corpus.tags() if corpus.columns.tags is not None else None
        self.categories = Categories.of(tokenizer, corpus.categories, tags)
        self._builder = SequenceBuilder(
            tokenizer, self.categories, corpus.pairs, self.max_length, corpus.mask, corpus.seed
        )

    @cached_property
    def vocabulary(self) -> list[str]:
        """Token strings by id."""
        return vocabulary_of(self.tokenizer)

    def sequences(self, log: ReadingLog | None = None) -> Iterator[TokenSequence]:
        """The corpus' sequences; unused records go to the log, and stop the run unless they may be skipped."""
        corpus, count = self.corpus, 0
        for source in corpus.sources:
            for made in self._builder.build(corpus.records(source), first=count):
                if isinstance(made, UnusedRecord):
                    if log is not None:
                        log.add(made)
                    if corpus.on_error == "stop" and not made.harmless:
                        raise InputError(
                            f"every record must be readable: {made.place}: {made.reason}; correct it, or count and "
                            "skip such records with --on-error skip"
                        )
                    continue
                count += 1
                yield made
                if count == corpus.limit:
                    return

    def covariates(self, given: Mapping[str, Covariate]) -> dict[str, Float[np.ndarray, " vocabulary"]]:
        """The number of each token id, by name of the covariate."""
        return {name: self._covariate(name, value) for name, value in given.items()}

    def _covariate(self, name: str, value: Covariate) -> Float[np.ndarray, " vocabulary"]:
        size = len(self.tokenizer)
        if isinstance(value, str) and value == COUNTED:
            return count_ranks((sequence.ids for sequence in self.sequences()), size)
        if isinstance(value, str | Path):
            return read_ranks(value, size)
        array = np.asarray(value, dtype=np.float64)
        if array.shape != (size,):
            raise InputError(
                f"a covariate has one number per token id: {name} has shape {array.shape}, the vocabulary {size}"
            )
        return array


def _length(wanted: int | None, longest: int | None) -> int:
    if wanted is None:
        return PAPER_LENGTH if longest is None else min(PAPER_LENGTH, longest)
    if longest is not None and wanted > longest:
        raise InputError(
            f"max_length must not exceed what the model takes: {wanted} is more than {longest}; ask for less"
        )
    return wanted


def vocabulary_of(tokenizer: Any) -> list[str]:
    """Token strings by id."""
    return [str(token) for token in tokenizer.convert_ids_to_tokens(range(len(tokenizer)))]
