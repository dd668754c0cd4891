"""`normlens reproduce`: a paper's experiment on any model, published numbers beside measured ones."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from normlens.cli import options
from normlens.cli.options import model_files, named_value, open_lens
from normlens.cli.terminal import console, note, print_json, progress_bar, progress_bars
from normlens.errors import InputError
from normlens.io.reading import read_text
from normlens.io.writing import check_outputs, lock_folder
from normlens.options import Definition

if TYPE_CHECKING:
    from rich.console import Console

    from normlens.corpus.run import Progress as Step
    from normlens.experiments.outcome import Number, Outcome, Table

#: Tables with more numbers than this are in the report, not on the terminal.
_MOST_CELLS = 40


AFTER_INTERRUPTION = "what is finished is kept, and the same command goes on from there"


def reproduce(
    name: Annotated[str, typer.Argument(help="kobayashi2020-bert, kobayashi2021, kobayashi2024 or kobayashi2020-nmt.")],
    model: options.ModelOption = None,
    data: options.DataOption = None,
    out: Annotated[Path | None, typer.Option(help="The folder for the report; default: reproduce/NAME.")] = None,
    frequency: Annotated[
        Path | None, typer.Option(help="A `rank count token_id` file; without it, ranks are counted from the data.")
    ] = None,
    definition: Annotated[
        Definition, typer.Option(help="Where the paper's words and the authors' code disagree.")
    ] = "code",
    limit: Annotated[
        int | None,
        typer.Option(
            min=1, help="At most so many sequences, 992 by default (2024: 24); translation: pairs, all by default."
        ),
    ] = None,
    max_length: Annotated[
        int | None, typer.Option(min=1, help="Tokens per sequence at most, 128 by default (2024: 64).")
    ] = None,
    pairs: options.PairsOption = True,
    seed: options.SeedOption = 0,
    batch_size: options.BatchSizeOption = 8,
    workers: Annotated[int | None, typer.Option(min=1, help="Processes; without it, this one.")] = None,
    fresh: options.FreshOption = False,
    source: Annotated[Path | None, typer.Option(help="Translation: source sentences, a line each.")] = None,
    target: Annotated[Path | None, typer.Option(help="Translation: target sentences.")] = None,
    gold: Annotated[Path | None, typer.Option(help="Translation: gold alignments.")] = None,
    gold_one_based: Annotated[bool, typer.Option("--gold-one-based", help="Gold links count words from 1.")] = False,
    gold_swap: Annotated[bool, typer.Option("--gold-swap", help="Gold links are written target-source.")] = False,
    other: Annotated[
        list[str] | None, typer.Option(help="Translation: another aligner's output, NAME=FILE, 0-based (repeat).")
    ] = None,
    other_swapped: Annotated[
        list[str] | None, typer.Option(help="The same for an output that is written target-source (repeat).")
    ] = None,
    gradient: Annotated[
        list[str] | None, typer.Option(help="Translation: a gradient baseline, li or ding (repeat).")
    ] = None,
    gradient_samples: Annotated[int, typer.Option(min=1, help="Noisy samples per gradient; above 1, SmoothGrad.")] = 1,
    gradient_pairs: Annotated[
        int | None, typer.Option(min=1, help="Gradients on so many pairs only; they are slow.")
    ] = None,
    overwrite: options.OverwriteOption = False,
    as_json: options.JsonOption = False,
) -> None:
    """Run a paper's experiment and write a report: which findings hold, every table, every figure."""
    from normlens.experiments import find_experiment

    chosen = find_experiment(name)
    folder = out if out is not None else Path("reproduce") / name
    others = {
        name: (Path(path), swapped)
        for texts, swapped in ((other or (), False), (other_swapped or (), True))
        for name, path in (named_value(text, "another aligner's output is given as NAME=FILE") for text in texts)
    }
    given = (*(data or ()), frequency, source, target, gold, *(path for path, _ in others.values()))
    read = [path for path in given if path is not None]
    if chosen.kind == "translation":
        if model is None or source is None or target is None or gold is None:
            needed = {"model": model, "source": source, "target": target, "gold": gold}
            missing = ", ".join(f"--{option}" for option, value in needed.items() if value is None)
            raise InputError(f"the translation experiment needs a model and gold alignments: give {missing}")
        from normlens.experiments.translation_study import TranslationStudy, check_files

        check_files(source, target, gold, others, gradient or (), limit)
        with report_folder(folder, name, [*read, *model_files(model)], overwrite), progress_bar("pairs") as progress:
            pairs_study = TranslationStudy(
                open_lens(model),
                source,
                target,
                gold,
                gold_one_based=gold_one_based,
                gold_swap=gold_swap,
                others=others,
                gradients=tuple(gradient or ()),
                gradient_samples=gradient_samples,
                gradient_pairs=gradient_pairs,
                limit=limit,
                progress=progress,
            )
            outcome: Outcome = chosen.load().run(pairs_study)
            report = outcome.write(folder)
    else:
        from normlens.experiments.encoder_study import check_data

        check_data(read)
        with report_folder(folder, name, [*read, *model_files(model)], overwrite):
            if chosen.kind == "layers":
                from normlens.experiments.kobayashi2024 import LENGTH, LIMIT, LayerStudy, estimate

                lens, most, longest = open_lens(model), limit or LIMIT, max_length or LENGTH
                note(estimate(most, longest, lens.anatomy.kinds[0]))
                with progress_bar("sequences") as progress:
                    outcome = chosen.load().run(LayerStudy(lens, tuple(data or ()), most, longest, progress))
            else:
                from normlens.experiments import encoder_study

                with pass_bars() as move:
                    study = encoder_study.EncoderStudy(
                        open_lens(model),
                        folder,
                        tuple(data or ()),
                        frequency,
                        definition,
                        limit or encoder_study.LIMIT,
                        max_length or encoder_study.LENGTH,
                        pairs,
                        seed=seed,
                        batch_size=batch_size,
                        workers=workers,
                        fresh=fresh,
                        progress=move,
                    )
                    outcome = chosen.load().run(study)
            report = outcome.write(folder)
    if as_json:
        print_json(outcome.to_dict())
    else:
        _print(console(), outcome, report)


@contextmanager
def report_folder(folder: Path, experiment: str, inputs: Iterable[Path], overwrite: bool) -> Iterator[None]:
    """The folder of a report, for this run alone; an experiment goes on in its own one, and replaces nothing else's."""
    from normlens.experiments.outcome import FIGURES, REPORT, RESULTS, TABLES

    check_outputs(
        [folder / REPORT, folder / RESULTS],
        inputs,
        replace=overwrite or is_results(folder, experiment),
        remedy="pass --overwrite to replace it",
        folders=[folder / FIGURES, folder / TABLES],
    )
    with lock_folder(folder, "experiment"):
        yield


def is_results(folder: Path, experiment: str) -> bool:
    """Return True if a folder holds the results of this experiment."""
    from normlens.experiments.outcome import RESULTS

    try:
        found = json.loads(read_text(folder / RESULTS))
    except (OSError, ValueError, RecursionError):
        return False
    return isinstance(found, dict) and found.get("experiment") == experiment


@contextmanager
def pass_bars() -> Iterator[Callable[[str, Step], None]]:
    """One bar for each pass."""
    with progress_bars() as move:
        yield lambda name, step: move(f"{name} input", step.sequences, step.total)


def _print(screen: Console, outcome: Outcome, report: Path) -> None:
    from rich.table import Table as Grid
    from rich.text import Text

    screen.print(
        f"{outcome.experiment}: {outcome.ran_on} (worst proof error {outcome.record['max_proof_error']:.1e})",
    )
    screen.print(outcome.summary)
    screen.print(f"\n{outcome.findings_line}", style="bold")
    for finding in outcome.findings:
        colour = {"holds": "blue", "weaker": "yellow", "fails": "red"}[finding.verdict]
        mark = Text(f"{outcome.verdict_of(finding):<17}", colour)
        grid = Grid.grid(padding=(0, 2))
        grid.add_row(mark, f"{finding.claim} {finding.measured}")
        screen.print(grid)
    for table in outcome.tables:
        if not table.folded and len(table.numbers) <= _MOST_CELLS:
            print_table(screen, table)
    if outcome.beside:
        screen.print(f"published: {'; '.join(outcome.beside)}")
    screen.print(f"wrote {report}", soft_wrap=True)


def print_table(screen: Console, table: Table, *, transposed: bool = False) -> None:
    """A table on the terminal, published numbers under the measured ones; `transposed` puts its rows across."""
    from rich.table import Table as Grid

    grid = Grid(title=f"{table.title} ({table.place})", title_justify="left")
    down, across = (table.columns, table.rows) if transposed else (table.rows, table.columns)
    grid.add_column("")
    for title in across.values():
        grid.add_column(title, justify="right")
    for row, title in down.items():
        cells = [_cell(table.at(column, row) if transposed else table.at(row, column)) for column in across]
        grid.add_row(title, *cells)
    screen.print(grid)


def _cell(number: Number | None) -> str:
    from normlens.experiments.outcome import formatted

    if number is None:
        return ""
    return "\n".join([number.text(), *(f"{p.short} {formatted(p.value, p.decimals)}" for p in number.published)])
