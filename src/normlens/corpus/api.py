"""The one call behind `lens.corpus` and `normlens corpus`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from normlens.corpus.categories import Categories, Rule
from normlens.corpus.engines import engine_of
from normlens.corpus.frequency import count_ranks, read_ranks
from normlens.corpus.plan import Plan
from normlens.corpus.result import CorpusResult
from normlens.corpus.run import Corpus, Log, OnError, Progress, run_corpus, spool, tags_of
from normlens.corpus.sequences import Recipe
from normlens.corpus.sources import Columns
from normlens.errors import InputError
from normlens.settings import Precision

if TYPE_CHECKING:
    from normlens.lens import Lens

#: Ask for this in place of a file to rank tokens by their count in the corpus itself.
COUNTED = "corpus"


def corpus_statistics(
    lens: Lens,
    source: str | Path | Sequence[str | Path],
    out: str | Path,
    *,
    pairs: bool = False,
    max_length: int | None = None,
    mask: float = 0.0,
    seed: int = 0,
    limit: int | None = None,
    skip: str | None = None,
    format: str | None = None,
    text_column: str | None = None,
    pair_column: str | None = None,
    tag_column: str | None = None,
    on_error: OnError = "stop",
    categories: Mapping[str, Rule] | None = None,
    covariates: Mapping[str, Any] | None = None,
    measures: Sequence[str] | None = None,
    mixing: Sequence[str] | None = None,
    layers: Sequence[int] | None = None,
    correlate: Sequence[tuple[str, str]] | None = None,
    histograms: Sequence[str] | None = None,
    relative: Sequence[str] | None = None,
    sample: int = 20_000,
    per_token: bool = False,
    exact: bool = False,
    engine: str = "local",
    workers: int | None = None,
    address: str | None = None,
    batch_size: int = 8,
    precision: Precision = "float32",
    together: bool = False,
    fresh: bool = False,
    save_every: float = 30.0,
    progress: Callable[[Progress], None] | None = None,
) -> CorpusResult:
    """Statistics of a whole corpus in one pass, written to the folder `out` and read back.

    The same call resumes what an earlier one left unfinished. `covariates` gives each token id a number: an array over
    the vocabulary (NaN: leave the token out), a file of frequency ranks, or "corpus" to rank by the corpus' own counts.
    The numbers depend neither on the engine nor on `workers`, `batch_size` or the order of the corpus; `together=True`
    sends a batch through the model at once, for a GPU, and gives that up in the last digits of float32.
    Sequences are cut at `max_length` tokens: 128 as in the papers, or the model's limit where that is less.
    """
    if lens.tokenizer is None:
        raise InputError("a corpus needs a tokenizer: this lens has none; pass Lens(model, tokenizer)")
    folder = Path(out)
    sources = [source] if isinstance(source, str | Path) else list(source)
    paths = tuple(_spooled(folder, fresh) if str(name) == "-" else Path(name) for name in sources)
    corpus = Corpus(
        sources=paths,
        recipe=Recipe(pairs, _length(lens, max_length), mask, seed),
        columns=Columns(text_column, pair_column, tag_column),
        format=format,
        skip=skip,
        limit=limit,
        on_error=on_error,
    )
    kinds = Categories.of(lens.tokenizer, categories, tags_of(corpus) if tag_column is not None else None)
    plan = Plan.of(
        kinds.names,
        measures=_tuple(measures),
        mixing=_tuple(mixing),
        correlate=_tuple(correlate),
        histograms=_tuple(histograms),
        relative=_tuple(relative),
        covariates=_covariates(lens, corpus, kinds, covariates or {}),
        layers=_tuple(layers),
        sample=sample,
        seed=seed,
    )
    return run_corpus(
        lens,
        corpus,
        kinds,
        plan,
        folder,
        engine=engine_of(engine, workers, address),
        batch_size=batch_size,
        per_token=per_token,
        precision=precision,
        together=together,
        fresh=fresh,
        save_every=save_every,
        exact=exact,
        progress=progress,
    )


def _spooled(folder: Path, fresh: bool) -> Path:
    # The first attempt keeps what it was given; later attempts read that, so nothing need be piped in again.
    path = folder / "stdin.txt"
    return spool(path) if fresh or not path.exists() else path


def _covariates(lens: Lens, corpus: Corpus, categories: Categories, given: Mapping[str, Any]) -> dict[str, np.ndarray]:
    size = len(lens.tokenizer)
    found = {}
    for name, value in given.items():
        if isinstance(value, str) and value == COUNTED:
            found[name] = count_ranks(corpus.items(lens.tokenizer, categories, Log()), size)
        elif isinstance(value, str | Path):
            found[name] = read_ranks(value, size)
        else:
            array = np.asarray(value, dtype=np.float64)
            if array.shape != (size,):
                raise InputError(
                    f"a covariate has one number per token id: {name} has shape {array.shape}, the vocabulary {size}"
                )
            found[name] = array
    return found


def _length(lens: Lens, wanted: int | None) -> int:
    """The longest sequence: 128 tokens as in the papers where nothing else is asked for, less where the model ends."""
    limits = [
        getattr(getattr(lens.model, "config", None), "max_position_embeddings", None),
        getattr(lens.tokenizer, "model_max_length", None),
    ]
    limit = min((int(number) for number in limits if isinstance(number, int) and number > 0), default=wanted or 128)
    if wanted is not None and wanted > limit:
        raise InputError(f"max_length must not exceed what the model takes: {wanted} is more than {limit}")
    return min(128, limit) if wanted is None else wanted


def _tuple(values: Sequence[Any] | None) -> tuple[Any, ...] | None:
    if isinstance(values, str):
        return (values,)
    return None if values is None else tuple(values)
