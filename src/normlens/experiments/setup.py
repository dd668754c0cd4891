"""What an experiment runs on: model, sequences, frequency ranks; and its passes over the corpus."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from importlib.resources import files
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
from jaxtyping import Float

from normlens.corpus.api import corpus_statistics
from normlens.corpus.categories import Categories
from normlens.corpus.frequency import count_ranks, read_ranks
from normlens.corpus.result import CorpusResult
from normlens.corpus.run import Corpus, Log, Progress
from normlens.corpus.sequences import Recipe
from normlens.corpus.sources import format_of
from normlens.errors import InputError
from normlens.lens import Lens

#: Where the paper's words and the authors' code disagree.
Definition = Literal["paper", "code"]

#: The papers' corpus has 992 sequences of at most 128 tokens.
LIMIT, LENGTH = 992, 128

#: Headings between equals signs, as in WikiText, are no paragraphs.
HEADINGS = r"^\s*=.*=\s*$"

#: The share of tokens that the 2021 paper masks.
MASKED = 0.12

#: The covariates by definition.
RANK: dict[Definition, str] = {"code": "rank_code", "paper": "rank_paper"}

SAMPLE = 30_000  # pairs, and tokens, that scatter plots draw


def sample_corpus() -> Path:
    """The corpus that comes with normlens: 150 pairs of encyclopedic paragraphs, written for this purpose."""
    return Path(str(files("normlens.experiments") / "data" / "sample.txt"))


@dataclass(frozen=True)
class Setup:
    """One model and one corpus, with everything that decides the numbers."""

    lens: Lens
    out: Path
    data: tuple[Path, ...] = ()  # empty: the sample corpus
    frequency: Path | None = None  # None: counted from the corpus
    definition: Definition = "code"
    limit: int | None = LIMIT
    max_length: int = LENGTH
    pairs: bool = True
    skip: str | None = HEADINGS
    seed: int = 0
    batch_size: int = 8
    workers: int | None = None
    fresh: bool = False
    progress: Callable[[str, Progress], None] | None = field(default=None, compare=False)

    def __post_init__(self) -> None:
        if self.definition not in get_args(Definition):
            raise InputError(f"the definition must be paper or code: got {self.definition!r}")
        if self.lens.anatomy.kinds != ("encoder",):
            raise InputError(
                "both papers study encoders, whose tokens attend to both sides: this model has "
                f"{' and '.join(self.lens.anatomy.kinds)} attention; use `normlens corpus` for its statistics"
            )
        if self.lens.tokenizer is None:
            raise InputError("an experiment reads text: this model has no tokenizer; give a folder that holds one")
        for path in self.sources:
            if not path.exists():
                raise InputError(f"the data must be files that exist: {path} does not; check the path")

    @property
    def sources(self) -> tuple[Path, ...]:
        """The files that are read."""
        return self.data or (sample_corpus(),)

    @property
    def data_name(self) -> str:
        """The corpus in words."""
        if not self.data:
            return "sample corpus of normlens"
        return ", ".join("/".join(path.resolve().parts[-2:]) for path in self.data)

    @property
    def from_pickle(self) -> bool:
        """Whether the data are in the format of Clark et al. 2019, tokenized already."""
        return all(format_of(path) == "pickle" for path in self.sources)

    @cached_property
    def _corpus(self) -> Corpus:
        recipe = Recipe(pairs=self.pairs, max_length=self.max_length, seed=self.seed)
        return Corpus(self.sources, recipe, skip=self.skip, limit=self.limit)

    @cached_property
    def ranks(self) -> dict[Definition, Float[np.ndarray, " vocabulary"]]:
        """Frequency rank of each token id by both definitions; NaN where a definition leaves a token out."""
        tokenizer = self.lens.tokenizer
        if self.frequency is not None:
            plain = read_ranks(self.frequency, len(tokenizer))
        else:
            categories = Categories.of(tokenizer)
            plain = count_ranks(self._corpus.items(tokenizer, categories, Log()), len(tokenizer))
        return {"code": plain, "paper": paper_ranks(plain, tokenizer)}

    @property
    def ranks_from(self) -> str:
        """Where the ranks come from, in words."""
        return "counts in this corpus" if self.frequency is None else f"the rank file {self.frequency.name}"

    def run(
        self, name: str, *, measures: Sequence[str], mixing: Sequence[str] | None, mask: float, ranked: bool
    ) -> CorpusResult:
        """One pass over the corpus, kept in `passes/<name>`: the same pass is not run twice."""
        report = self.progress
        return corpus_statistics(
            self.lens,
            self.sources,
            self.out / "passes" / name,
            pairs=self.pairs,
            max_length=self.max_length,
            mask=mask,
            seed=self.seed,
            limit=self.limit,
            skip=self.skip,
            covariates={RANK[d]: values for d, values in self.ranks.items()} if ranked else {},
            measures=measures,
            mixing=mixing,
            histograms=(),
            relative=(),
            sample=SAMPLE,
            batch_size=self.batch_size,
            workers=self.workers,
            fresh=self.fresh,
            progress=None if report is None else lambda step: report(name, step),
        )

    def record(self, passes: Sequence[CorpusResult]) -> dict[str, Any]:
        """The settings and what the passes met, for the report."""
        counts = passes[0].manifest["counts"]
        return {
            "model": dict(passes[0].manifest["model"]),
            "data": self.data_name,
            "inputs": passes[0].manifest["inputs"],
            "sequences": counts["sequences"],
            "tokens": counts["tokens"],
            "max_length": self.max_length,
            "paragraph_pairs": self.pairs and not self.from_pickle,
            "seed": self.seed,
            "definition": self.definition,
            "frequency_ranks": self.ranks_from,
            "worst_proof": max(done.worst_proof for done in passes),
            "versions": passes[0].manifest["versions"],
        }


def paper_ranks(plain: Float[np.ndarray, " vocabulary"], tokenizer: Any) -> Float[np.ndarray, " vocabulary"]:
    """Ranks as the 2020 paper words them (Section 4.3).

    Special tokens and single characters are left out, except that comma, period, [SEP] and [CLS] stand in front as the
    four most frequent; the others follow in their order.
    """
    tokens = tokenizer.convert_ids_to_tokens(range(len(plain)))
    special = {token_id for token_id in tokenizer.all_special_ids if token_id != tokenizer.unk_token_id}
    first = [tokenizer.convert_tokens_to_ids(token) for token in (",", ".")]
    first = [token_id for token_id in (*first, tokenizer.sep_token_id, tokenizer.cls_token_id) if token_id is not None]
    kept = np.array([len(str(token)) > 1 and token_id not in special for token_id, token in enumerate(tokens)])
    kept[first] = False
    ranks = np.full(len(plain), np.nan)
    ranks[first] = np.arange(1, len(first) + 1)
    # Equal ranks stay equal: all tokens that a rank file does not list share its last rank + 1.
    distinct, place = np.unique(plain[kept], return_inverse=True)
    sizes = np.bincount(place, minlength=len(distinct))
    ranks[kept] = (len(first) + 1 + np.cumsum(sizes) - sizes)[place]
    return ranks
