"""A study of one encoder on one corpus: its settings, its passes over the text, and the numbers that come out."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from importlib.resources import files
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pandas as pd
from jaxtyping import Float

from normlens.corpus.reading import MODEL_TOKENS, format_of, open_binary
from normlens.corpus.result import CorpusResult
from normlens.corpus.run import Progress, all_sequences
from normlens.corpus.sequences import ranks_by_count, read_ranks, token_counts
from normlens.errors import InputError
from normlens.experiments.outcome import facts_of
from normlens.io.writing import is_there
from normlens.lens import Lens
from normlens.options import Definition
from normlens.types import Json, JsonMapping

#: Where the paper's words and the authors' code disagree.

#: The papers' corpus has 992 sequences of at most 128 tokens.
LIMIT, LENGTH = 992, 128

#: Headings between equals signs, as in WikiText, are no paragraphs.
HEADINGS = r"^\s*=.*=\s*$"

#: The papers' categories that both report, in their order.
PAIR_CATEGORIES = ("cls", "sep", "comma_period", "other")

#: The share of tokens that the 2021 paper masks.
MASKED = 0.12

#: The covariates by definition.
RANK: dict[Definition, str] = {"code": "rank_code", "paper": "rank_paper"}

SAMPLE = 30_000  # pairs, and tokens, that scatter plots draw


def sample_corpus() -> Path:
    """The corpus that comes with normlens: 150 pairs of encyclopedic paragraphs, written for this purpose."""
    return Path(str(files("normlens.experiments") / "data" / "sample.txt"))


def check_definition(name: str) -> None:
    """Refuse a definition that nobody knows."""
    if name not in get_args(Definition):
        raise InputError(f"definition must be paper or code, got {name!r}")


def check_data(paths: Iterable[Path]) -> None:
    """Refuse data that are not there."""
    for path in paths:
        if not is_there(path):
            raise InputError(f"{path} does not exist; check the path")
        if not (path.is_file() or path.is_dir()):
            raise InputError(f"{path} is a pipe or a device, and is read several times; save it as a file first")


def _is_tokenized(path: Path) -> bool:
    if format_of(path) != "jsonl":
        return False
    with open_binary(path) as stream:
        return f'"{MODEL_TOKENS}"'.encode() in stream.readline(1 << 20)


@dataclass(frozen=True)
class EncoderStudy:
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
        check_definition(self.definition)
        check_data(self.sources)
        if self.lens.anatomy.kinds != ("encoder",):
            raise InputError(
                "both papers study encoders, whose tokens attend to both sides: this model has "
                f"{' and '.join(self.lens.anatomy.kinds)} attention; use `normlens corpus` for its statistics"
            )
        if self.lens.tokenizer is None:
            raise InputError("this model has no tokenizer, which the experiment needs; give a folder that holds one")

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
    def is_tokenized(self) -> bool:
        """Return True if the data are lists of tokens, as those of Clark et al. 2019 are."""
        return all(map(_is_tokenized, self.sources))

    @cached_property
    def ranks(self) -> dict[Definition, Float[np.ndarray, " vocabulary"]]:
        """Frequency rank of each token id by both definitions; NaN where a definition leaves a token out."""
        size = len(self.lens.tokenizer)
        if self.frequency is not None:
            plain = read_ranks(self.frequency, size)
        else:
            sequences = all_sequences(
                self.lens,
                self.sources,
                pairs=self.pairs,
                max_length=self.max_length,
                seed=self.seed,
                skip=self.skip,
                limit=self.limit,
            )
            plain = ranks_by_count(token_counts(sequences, size))
        return {"code": plain, "paper": paper_ranks(plain, self.lens.tokenizer)}

    @property
    def ranks_from(self) -> str:
        """The source of the ranks, in words."""
        return "counts in this corpus" if self.frequency is None else f"the rank file {self.frequency.name}"

    def run(
        self, name: str, *, measures: Sequence[str], mixing: Sequence[str] | None, mask: float, ranked: bool
    ) -> CorpusResult:
        """One pass over the corpus, kept in `passes/<name>`: the same pass is not run twice."""
        progress = self.progress
        return self.lens.corpus(
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
            progress=None if progress is None else lambda step: progress(name, step),
        )

    def record(self, passes: Sequence[CorpusResult]) -> Json:
        """The settings and what the passes met, for the report."""
        counts = passes[0].manifest["counts"]
        return {
            "model": dict(passes[0].manifest["model"]),
            "data": self.data_name,
            "inputs": passes[0].manifest["inputs"],
            "sequences": counts["sequences"],
            "tokens": counts["tokens"],
            "max_length": self.max_length,
            "paragraph_pairs": self.pairs and not self.is_tokenized,
            "seed": self.seed,
            "definition": self.definition,
            "frequency_ranks": self.ranks_from,
            "max_proof_error": max(done.max_proof_error for done in passes),
            "versions": passes[0].manifest["versions"],
        }

    @property
    def shape(self) -> tuple[int, int, int]:
        """Layers, heads and width of the model."""
        sites = self.lens.anatomy.sites
        return len(sites), sites[0].heads, int(sites[0].projection.matrix().shape[1])


def ran_on(record: JsonMapping) -> str:
    """The model and the text, in a sentence for people."""
    masked = f", {record['masked_share']:.0%} masked for the ratios" if "masked_share" in record else ""
    return (
        f"Model {record['model']['name']} on {record['data']}: {record['sequences']:,} sequences, "
        f"{record['tokens']:,} tokens{masked}."
    )


def source_line(record: JsonMapping) -> str:
    """The line under a figure: model, data and version."""
    data = f"{record['data']}, {record['sequences']} sequences"
    return f"{record['model']['name']} · {data} · normlens {record['versions']['normlens']}"


def facts(record: JsonMapping) -> dict[str, str]:
    """The settings of the measurement, for the end of a report."""
    length = f"{record['sequences']:,}, at most {record['max_length']} tokens"
    pairs = ", pairs of consecutive paragraphs" if record["paragraph_pairs"] else ""
    named = {"definition": "definition", "frequency ranks": "frequency_ranks", "seed": "seed"}
    return facts_of(record, {"sequences": length + pairs, **{name: str(record[key]) for name, key in named.items()}})


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


# ---- numbers out of a pass, in the shapes that the papers report ---------------------------------------------------


def present(done: CorpusResult, wanted: tuple[str, ...]) -> tuple[str, ...]:
    """Those of the categories that the corpus has tokens of."""
    table = done.categories.set_index("category")["tokens"]
    return tuple(name for name in wanted if table.get(name, 0) > 0)


def layers_of(done: CorpusResult) -> list[int]:
    """The layers that were measured."""
    return sorted(int(layer) for layer in done.statistics["layer"].dropna().unique())


def by_head(
    done: CorpusResult, quantity: str, category: str, statistic: str = "mean", over: str = "values"
) -> Float[np.ndarray, "layer head"]:
    """A statistic for each layer and head (one column for a quantity without heads)."""
    return done.grid(quantity, category, statistic, over).to_numpy(dtype=np.float64)


def whole(done: CorpusResult, quantity: str, category: str, statistic: str) -> float:
    """A statistic over all values of all layers."""
    rows = done.statistics
    found = rows[
        rows["layer"].isna()
        & (rows["quantity"] == quantity)
        & (rows["category"] == category)
        & (rows["statistic"] == statistic)
    ]
    return float(found["value"].iloc[0])


def rho_of(done: CorpusResult, x: str, y: str, category: str) -> tuple[float, float, int]:
    """Spearman's rho, a certain bound on its error, and how many pairs or tokens it is over."""
    row: pd.Series = done.rho(x, y, category)
    return float(row["value"]), float(row["bound"]), int(row["count"])


def shares(done: CorpusResult, quantity: str, categories: tuple[str, ...]) -> Float[np.ndarray, "category layer"]:
    """The share of each category in what a layer's queries receive, heads averaged as the authors do.

    For `alpha` the categories add up to 1 by themselves; norms are divided by their sum.
    """
    means = np.stack([by_head(done, quantity, name, over="sequences").mean(axis=1) for name in categories])
    received: Float[np.ndarray, "category layer"] = means / means.sum(axis=0)
    return received
