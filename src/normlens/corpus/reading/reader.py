"""The reader that turns a corpus into sequences for one model: all of them, or any part, in any process."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from jaxtyping import Float, Int

from normlens.corpus.reading.corpus import Corpus
from normlens.corpus.reading.records import UnusedRecord
from normlens.corpus.reading.sequences import EMPTY, SequenceBuilder, TokenSequence
from normlens.corpus.reading.survey import Parallel, Survey, survey_of, unreadable
from normlens.corpus.reading.token_attributes import Categories, ranks_by_count, read_ranks
from normlens.errors import InputError

#: Sequences are cut at this many tokens, as in the papers, unless another length is asked for or the model takes less.
PAPER_LENGTH = 128

#: Ask for this in place of a file to rank tokens by their count in the corpus itself.
COUNTED = "corpus"

#: A number per token id: an array over the vocabulary (NaN: leave the token out), a file of ranks, or `COUNTED`.
Covariate = npt.ArrayLike | Path

_COUNTED_AT_ONCE = 1 << 14  # sequences


@dataclass(frozen=True)
class ModelSide:
    """What reading must know of the model."""

    longest: int | None = None  # how many tokens it takes
    two_sided: bool = False  # an encoder-decoder model reads one text and writes another
    decoder_start: int | None = None  # the token that it starts to write with


@dataclass(frozen=True)
class Chunk:
    """Consecutive sequences of the corpus, `start` to `stop`: what is counted as a whole."""

    start: int
    stop: int
    sequences: tuple[TokenSequence, ...]
    empty: tuple[UnusedRecord, ...] = ()  # records of which no token is left: they have numbers too


class CorpusReader:
    """A corpus and a tokenizer: the sequences, their categories and the numbers that belong to token ids."""

    def __init__(
        self,
        corpus: Corpus,
        tokenizer: Any,
        model: ModelSide | None = None,
        parallel: Parallel = map,
    ) -> None:
        """`parallel` is how the corpus is surveyed, and its tokens counted, by several processes."""
        if tokenizer is None:
            raise InputError("a corpus needs a tokenizer: this lens has none; pass Lens(model, tokenizer)")
        model = model or ModelSide()
        if model.two_sided != (corpus.columns.target is not None):
            raise InputError(
                "an encoder-decoder model reads a source and writes a target: name the column that holds it with "
                "--target-column"
                if model.two_sided
                else "a target belongs to an encoder-decoder model: this one has one side; drop --target-column"
            )
        self.corpus, self.tokenizer, self._parallel = corpus, tokenizer, parallel
        self.max_length = _length(corpus.max_length, model.longest)
        tags = self.survey.tags if corpus.columns.tags is not None else None
        self.categories = Categories.of(tokenizer, corpus.categories, tags)
        self._builder = SequenceBuilder(
            tokenizer, self.categories, corpus.pairs, self.max_length, corpus.mask, corpus.seed, model.decoder_start
        )

    @cached_property
    def survey(self) -> Survey:
        """The corpus in pieces of known content."""
        return survey_of(self.corpus, self._parallel)

    @cached_property
    def vocabulary(self) -> list[str]:
        """Token strings by id."""
        return [str(token) for token in self.tokenizer.convert_ids_to_tokens(range(len(self.tokenizer)))]

    def portable(self) -> CorpusReader:
        """The same reader for another process: surveyed, and without anything that cannot travel."""
        other: CorpusReader = object.__new__(CorpusReader)
        categories = self.categories.portable(self.vocabulary)
        other.__dict__.update(self.__dict__, _parallel=map, categories=categories)
        other.corpus = replace(self.corpus, categories=None)
        other.survey = replace(self.survey, corpus=other.corpus)
        other._builder = replace(self._builder, categories=categories)
        return other

    def sequences(self) -> Iterator[TokenSequence]:
        """All sequences of the corpus."""
        for chunk in self.chunks(0, self.survey.sequences, _COUNTED_AT_ONCE):
            yield from chunk.sequences

    def chunks(self, start: int, stop: int, size: int) -> Iterator[Chunk]:
        """The sequences `start` to `stop` in chunks of `size`, wherever they stand."""
        stream = self._numbered(start)
        while start < stop:
            part = list(islice(stream, min(size, stop - start)))
            if not part:
                raise InputError(f"a corpus must not change while it is counted: sequence {start} is gone; use --fresh")
            made = tuple(item for item in part if isinstance(item, TokenSequence))
            yield Chunk(start, start + len(part), made, tuple(item for item in part if isinstance(item, UnusedRecord)))
            start += len(part)

    def _numbered(self, start: int) -> Iterator[TokenSequence | UnusedRecord]:
        """From a number on, what has one: sequences, and records of which nothing was left."""
        for first, records in self.survey.records_from(start):
            for made in self._builder.build(records, first):
                if isinstance(made, TokenSequence):
                    yield made
                elif made.reason == EMPTY:
                    if self.corpus.on_error == "stop":
                        raise unreadable(made)
                    yield made

    def covariates(self, given: Mapping[str, Covariate]) -> dict[str, Float[np.ndarray, " vocabulary"]]:
        """The number of each token id, by name of the covariate."""
        return {name: self._covariate(name, value) for name, value in given.items()}

    def _covariate(self, name: str, value: Covariate) -> Float[np.ndarray, " vocabulary"]:
        size = len(self.tokenizer)
        if isinstance(value, str) and value == COUNTED:
            return ranks_by_count(self._token_counts())
        if isinstance(value, str | Path):
            return read_ranks(value, size)
        array = np.asarray(value, dtype=np.float64)
        if array.shape != (size,):
            raise InputError(
                f"a covariate has one number per token id: {name} has shape {array.shape}, the vocabulary {size}"
            )
        return array

    def _token_counts(self) -> Int[np.ndarray, " vocabulary"]:
        """How often each token occurs, on both sides."""
        total = self.survey.sequences
        parts = [(start, min(start + _COUNTED_AT_ONCE, total)) for start in range(0, total, _COUNTED_AT_ONCE)]
        counts = np.zeros(len(self.tokenizer), dtype=np.int64)
        for part in self._parallel(partial(_count_tokens, self.portable()), parts):
            counts += part
        return counts


def _count_tokens(reader: CorpusReader, part: tuple[int, int]) -> Int[np.ndarray, " vocabulary"]:
    counts = np.zeros(len(reader.tokenizer), dtype=np.int64)
    for chunk in reader.chunks(*part, 64):
        for sequence in chunk.sequences:
            counts += np.bincount(sequence.ids, minlength=len(counts))
            if sequence.target is not None:
                counts += np.bincount(sequence.target.ids, minlength=len(counts))
    return counts


def _length(wanted: int | None, longest: int | None) -> int:
    if wanted is None:
        return PAPER_LENGTH if longest is None else min(PAPER_LENGTH, longest)
    if longest is not None and wanted > longest:
        raise InputError(
            f"max_length must not exceed what the model takes: {wanted} is more than {longest}; ask for less"
        )
    return wanted
