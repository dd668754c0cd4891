"""`normlens corpus`: statistics of a whole corpus in one pass, on this machine or a Ray cluster."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Annotated

import typer

from normlens.cli.options import GgufOption, JsonOption, ModelOption, model_files, named_value, open_lens
from normlens.cli.terminal import console, print_json, progress_bars
from normlens.options import CorpusFormat, EngineName, OnError
from normlens.types import Json

if TYPE_CHECKING:
    from rich.console import Console

    from normlens.corpus.result import CorpusResult
    from normlens.corpus.run import Progress as Step


AFTER_INTERRUPTION = "what is finished is kept, and the same command goes on from there"


@dataclass(frozen=True)
class Reading:
    """Sources and sequences"""

    pairs: Annotated[bool, typer.Option("--pairs", help="Two consecutive paragraphs: [CLS] a [SEP] b [SEP].")] = False
    max_length: Annotated[int | None, typer.Option(help="Tokens per sequence at most; 128 by default.")] = None
    mask: Annotated[float, typer.Option(help="Share of the tokens to mask; the 2021 paper masks 0.12.")] = 0.0
    seed: Annotated[int, typer.Option(help="Decides masks and samples.")] = 0
    limit: Annotated[int | None, typer.Option(help="At most so many sequences.")] = None
    skip: Annotated[str | None, typer.Option(help="Leave out texts that match this regular expression.")] = None
    format: Annotated[CorpusFormat | None, typer.Option(help="The format, where names do not tell.")] = None
    text_column: Annotated[str | None, typer.Option(help="The column with the text; a number: no header.")] = None
    pair_column: Annotated[str | None, typer.Option(help="The column with the second text of a pair.")] = None
    tag_column: Annotated[str | None, typer.Option(help="The column with a tag per word: the categories.")] = None
    target_column: Annotated[str | None, typer.Option(help="The column with what an encoder-decoder model writes.")] = (
        None
    )
    category: Annotated[
        list[str] | None, typer.Option(help="A category NAME=REGEX in place of comma and period (repeat).")
    ] = None
    on_error: Annotated[OnError, typer.Option(help="What an unreadable record does.")] = "stop"
    largest_record: Annotated[
        int, typer.Option(min=1, help="Bytes of the longest record; a longer one is unreadable.")
    ] = 1 << 24

    def options(self) -> Json:
        """Return the arguments of `Lens.corpus`."""
        options = dict(vars(self))
        rules = dict(named_value(item, "a category is NAME=REGEX") for item in options.pop("category") or ())
        return {**options, "categories": rules or None}


@dataclass(frozen=True)
class Computing:
    """Measures and statistics"""

    frequency: Annotated[
        str | None, typer.Option(help="Correlate with frequency ranks: a `rank count token_id` file, or `corpus`.")
    ] = None
    measure: Annotated[list[str] | None, typer.Option(help="A measure (repeat); the 2020 paper's by default.")] = None
    mixing: Annotated[list[str] | None, typer.Option(help="A map for mixing ratios (repeat); all by default.")] = None
    layer: Annotated[list[int] | None, typer.Option(help="A layer, from 1 (repeat); all by default.")] = None
    sample: Annotated[int, typer.Option(help="Pairs, and tokens, in the uniform samples.")] = 20_000
    per_token: Annotated[bool, typer.Option("--per-token", help="Also write a row per token and layer.")] = False
    exact: Annotated[bool, typer.Option("--exact", help="Recompute flagged rank correlations in an exact pass.")] = (
        False
    )

    def options(self) -> Json:
        """Return the arguments of `Lens.corpus`."""
        return {
            "covariates": {} if self.frequency is None else {"frequency_rank": self.frequency},
            "measures": self.measure or None,
            "mixing": self.mixing or None,
            "layers": self.layer or None,
            "sample": self.sample,
            "per_token": self.per_token,
            "exact": self.exact,
        }


@dataclass(frozen=True)
class Running:
    """Execution"""

    engine: Annotated[
        EngineName | None, typer.Option(help="Where it runs; with several workers pool, else local, by default.")
    ] = None
    workers: Annotated[int | None, typer.Option(help="Processes (pool), or Ray tasks at a time.")] = None
    threads: Annotated[
        int | None,
        typer.Option(
            "--threads-per-worker",
            help="Threads of each worker; with ray 1 by default, else the processors are divided.",
        ),
    ] = None
    gpus: Annotated[float, typer.Option("--gpus-per-worker", help="GPUs of each Ray task; 0.5 puts two on one.")] = 0.0
    address: Annotated[str | None, typer.Option(help="The Ray cluster; without it, a new local one.")] = None
    batch_size: Annotated[
        int | None, typer.Option(help="Sequences in a forward pass; 8 on a CPU, 64 on a GPU by default.")
    ] = None
    range_seconds: Annotated[float, typer.Option(help="Work in one range, which is what a restart repeats.")] = 30.0
    fresh: Annotated[bool, typer.Option("--fresh", help="Start again, dropping the run that --out holds.")] = False
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace files in --out that are not of a run that it holds.")
    ] = False


def corpus(
    source: Annotated[
        list[str],
        typer.Argument(
            help="Text, JSON Lines, CSV, TSV, Parquet, Arrow, a dataset on disk; .gz .xz .zst; s3://…; - for stdin."
        ),
    ],
    out: Annotated[
        str,
        typer.Option(help="The folder for the results, or its address; the same command resumes what is unfinished."),
    ],
    reading: Reading,
    computing: Computing,
    running: Running,
    model: ModelOption = None,
    gguf_file: GgufOption = None,
    as_json: JsonOption = False,
) -> None:
    """Count, over a whole corpus, what its tokens really draw on."""
    from normlens.corpus.reading import check_sources, named_paths
    from normlens.corpus.result import RunFolder
    from normlens.io.remote import path_of

    options = {**reading.options(), **computing.options(), **vars(running)}
    check_sources(source)  # all this before a model is loaded
    read = [*named_paths(source), *model_files(model)]
    read += [] if computing.frequency in (None, "corpus") else [path_of(computing.frequency)]
    RunFolder(path_of(out)).check(read, overwrite=running.overwrite)
    lens = open_lens(model, gguf_file)
    with _bar() as progress:
        result = lens.corpus(source, out, progress=progress, **options)
    if as_json:
        print_json({"folder": str(result.folder), **result.manifest})
    else:
        _print(console(), result)


@contextmanager
def _bar() -> Iterator[Callable[[Step], None]]:
    with progress_bars() as move:

        def show(step: Step) -> None:
            workers = f", {step.workers} workers" if step.workers > 1 else ""
            rate = f"{step.rate:.1f} sequences/s{workers}{_left(step.seconds_left)}"
            move("corpus", step.sequences, step.total, rate)

        yield show


def _left(seconds: float | None) -> str:
    """The remaining time, in words.

    >>> _left(7384.2), _left(None)
    (', 2:03:04 left', '')
    """
    return "" if seconds is None else f", {timedelta(seconds=round(seconds))} left"


def _print(screen: Console, result: CorpusResult) -> None:
    counts: Json = result.manifest["counts"]
    screen.print(
        f"{counts['sequences']} sequences, {counts['tokens']} tokens, {counts['unreadable']} unreadable records; "
        f"worst proof error {result.max_proof_error:.1e}",
    )
    for flaw in counts["listed"][:5]:
        screen.print(f"  not used: {flaw['place']}: {flaw['reason']}", soft_wrap=True)
    _print_means(screen, result)
    _print_rhos(screen, result)
    screen.print(f"wrote {result.folder}", soft_wrap=True)


def _print_means(screen: Console, result: CorpusResult) -> None:
    from normlens.results.tables import new_table

    whole = result.statistics
    whole = whole[whole["layer"].isna() & (whole["statistic"] == "mean")]
    for site in whole["site"].unique():
        rows = whole[whole["site"] == site]
        names = [name for name in rows["category"].unique() if name != "normal"]
        table = new_table(f"{site}: mean over all layers and heads", ("quantity", *names), right=names)
        for quantity in rows["quantity"].unique():
            cells = []
            for name in names:
                found = rows[(rows["quantity"] == quantity) & (rows["category"] == name)]
                cells.append(f"{found['value'].iloc[0]:.3g}" if len(found) else "-")
            table.add_row(quantity, *cells)
        screen.print(table)


def _print_rhos(screen: Console, result: CorpusResult) -> None:
    rows = result.correlations
    rows = rows[rows["method"] == "spearman"]
    if rows.empty:
        return
    from normlens.results.tables import new_table

    columns = ("site", "quantities", "over", "category", "rho", "count")
    table = new_table("Spearman's rho (± certain bound)", columns, right=("rho", "count"))
    for row in rows.to_dict("records"):
        flag = " (flagged: --exact)" if row["flagged"] else ""
        value = f"{row['value']:+.3f} ± {row['bound']:.1g}{flag}"
        table.add_row(row["site"], f"{row['x']}, {row['y']}", row["over"], row["category"], value, f"{row['count']:,}")
    screen.print(table)
