"""`normlens reproduce`: a paper's experiment on any model, published numbers beside measured ones."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
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
    from rich.table import Table as Grid

    from normlens.corpus.run import Progress as Step
    from normlens.experiments import Experiment
    from normlens.experiments.outcome import Number, Outcome, Table

#: Tables with more numbers than this are in the report, not on the terminal.
_MOST_CELLS = 40


AFTER_INTERRUPTION = "what is finished is kept, and the same command goes on from there"


@dataclass(frozen=True)
class Encoders:
    """Studies of one model"""

    data: options.DataOption = None
    frequency: Annotated[
        Path | None, typer.Option(help="A `rank count token_id` file; without it, ranks are counted from the data.")
    ] = None
    definition: Annotated[Definition, typer.Option(help="Where the paper's words and the authors' code disagree.")] = (
        "code"
    )
    max_length: Annotated[
        int | None, typer.Option(min=1, help="Tokens per sequence at most, 128 by default (2024: 64).")
    ] = None
    pairs: options.PairsOption = True
    seed: options.SeedOption = 0
    batch_size: options.BatchSizeOption = 8
    workers: Annotated[int | None, typer.Option(min=1, help="Processes; without it, this one.")] = None
    fresh: options.FreshOption = False

    def run(self, chosen: Experiment, model: str | None, folder: Path, limit: int | None) -> Outcome:
        """Run the passes of an experiment over a corpus."""
        from normlens.experiments import encoder_study

        with pass_bars() as move:
            study = encoder_study.EncoderStudy(
                open_lens(model),
                folder,
                tuple(self.data or ()),
                self.frequency,
                self.definition,
                limit or encoder_study.LIMIT,
                self.max_length or encoder_study.LENGTH,
                self.pairs,
                seed=self.seed,
                batch_size=self.batch_size,
                workers=self.workers,
                fresh=self.fresh,
                progress=move,
            )
            outcome: Outcome = chosen.load().run(study)
            return outcome

    def run_layers(self, chosen: Experiment, model: str | None, limit: int | None) -> Outcome:
        """Run the experiment that goes layer by layer."""
        from normlens.experiments.kobayashi2024 import LENGTH, LIMIT, LayerStudy, estimate

        lens, most, longest = open_lens(model), limit or LIMIT, self.max_length or LENGTH
        note(estimate(most, longest, lens.anatomy.kinds[0]))
        with progress_bar("sequences") as progress:
            study = LayerStudy(lens, tuple(self.data or ()), most, longest, progress)
            outcome: Outcome = chosen.load().run(study)
            return outcome


@dataclass(frozen=True)
class Translation:
    """The study of translation"""

    source: Annotated[Path | None, typer.Option(help="Source sentences, a line each.")] = None
    target: Annotated[Path | None, typer.Option(help="Target sentences.")] = None
    gold: Annotated[Path | None, typer.Option(help="Gold alignments.")] = None
    gold_one_based: Annotated[bool, typer.Option("--gold-one-based", help="Gold links count words from 1.")] = False
    gold_swap: Annotated[bool, typer.Option("--gold-swap", help="Gold links are written target-source.")] = False
    other: Annotated[list[str] | None, typer.Option(help="Another aligner's output, NAME=FILE, 0-based (repeat).")] = (
        None
    )
    other_swapped: Annotated[
        list[str] | None, typer.Option(help="The same for an output that is written target-source (repeat).")
    ] = None
    gradient: Annotated[list[str] | None, typer.Option(help="A gradient baseline, li or ding (repeat).")] = None
    gradient_samples: Annotated[int, typer.Option(min=1, help="Noisy samples per gradient; above 1, SmoothGrad.")] = 1
    gradient_pairs: Annotated[
        int | None, typer.Option(min=1, help="Gradients on so many pairs only; they are slow.")
    ] = None

    def others(self) -> dict[str, tuple[Path, bool]]:
        """Return the outputs of other aligners, and whether they are written target-source."""
        found = {}
        for texts, swapped in ((self.other, False), (self.other_swapped, True)):
            for text in texts or ():
                name, path = named_value(text, "another aligner's output is given as NAME=FILE")
                found[name] = (Path(path), swapped)
        return found

    def check(self, model: str | None, limit: int | None) -> None:
        """Raise an error for what is missing, before a model is loaded."""
        from normlens.experiments.translation_study import check_files

        needed = {"model": model, "source": self.source, "target": self.target, "gold": self.gold}
        missing = ", ".join(f"--{option}" for option, value in needed.items() if value is None)
        if self.source is None or self.target is None or self.gold is None or missing:
            raise InputError(f"the translation experiment needs a model and gold alignments; give {missing}")
        check_files(self.source, self.target, self.gold, self.others(), self.gradient or (), limit)

    def run(self, chosen: Experiment, model: str | None, limit: int | None) -> Outcome:
        """Run the experiment."""
        from normlens.experiments.translation_study import TranslationStudy

        assert self.source is not None and self.target is not None and self.gold is not None, "checked before"
        with progress_bar("pairs") as progress:
            study = TranslationStudy(
                open_lens(model),
                self.source,
                self.target,
                self.gold,
                gold_one_based=self.gold_one_based,
                gold_swap=self.gold_swap,
                others=self.others(),
                gradients=tuple(self.gradient or ()),
                gradient_samples=self.gradient_samples,
                gradient_pairs=self.gradient_pairs,
                limit=limit,
                progress=progress,
            )
            outcome: Outcome = chosen.load().run(study)
            return outcome


def reproduce(
    name: Annotated[str, typer.Argument(help="kobayashi2020-bert, kobayashi2021, kobayashi2024 or kobayashi2020-nmt.")],
    encoders: Encoders,
    translation: Translation,
    model: options.ModelOption = None,
    out: Annotated[Path | None, typer.Option(help="The folder for the report; default: reproduce/NAME.")] = None,
    limit: Annotated[
        int | None,
        typer.Option(
            min=1, help="At most so many sequences, 992 by default (2024: 24); translation: pairs, all by default."
        ),
    ] = None,
    overwrite: options.OverwriteOption = False,
    as_json: options.JsonOption = False,
) -> None:
    """Run a paper's experiment and write a report: which findings hold, every table, every figure."""
    from normlens.experiments import find_experiment

    chosen = find_experiment(name)
    folder = out if out is not None else Path("reproduce") / name
    other_files = [path for path, _ in translation.others().values()]
    files = (encoders.frequency, translation.source, translation.target, translation.gold)
    read = [*(encoders.data or ()), *(path for path in files if path is not None), *other_files]
    if chosen.kind == "translation":
        translation.check(model, limit)
    else:
        from normlens.experiments.encoder_study import check_data

        check_data(read)
    with report_folder(folder, name, [*read, *model_files(model)], overwrite):
        if chosen.kind == "translation":
            outcome = translation.run(chosen, model, limit)
        elif chosen.kind == "layers":
            outcome = encoders.run_layers(chosen, model, limit)
        else:
            outcome = encoders.run(chosen, model, folder, limit)
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

    screen.print(f"{outcome.experiment}: {outcome.setting}")
    screen.print(f"{outcome.findings_line}.", style="bold")
    screen.print(f"{outcome.summary} Largest proof error: {outcome.record['max_proof_error']:.1e}.\n")
    if outcome.findings:
        colours = {"holds": "blue", "weaker": "yellow", "fails": "red", "unjudged": "dim"}
        grid = Grid("", "claim", "here", "in the paper", box=None, padding=(0, 2, 1, 0), pad_edge=False)
        for finding in outcome.findings:
            mark = Text(outcome.verdict_of(finding), colours[finding.verdict])
            grid.add_row(mark, finding.claim, finding.measured, finding.paper)
        screen.print(grid)
    for table in outcome.tables:
        if not table.folded and len(table.numbers) <= _MOST_CELLS:
            print_table(screen, table)
    if outcome.beside:
        screen.print(f"published: {'; '.join(outcome.beside)}")
    screen.print(f"wrote {report}", soft_wrap=True)


def print_table(screen: Console, table: Table, *, transposed: bool = False) -> None:
    """Print a table, published numbers under the measured ones; one that is too wide, with one number a line.

    Args:
        screen: The terminal.
        table: The table.
        transposed: Print its columns as rows.
    """
    from rich.measure import Measurement

    grid = _grid(table, transposed)
    needed = Measurement.get(screen, screen.options.update(max_width=10_000), grid).maximum
    screen.print(grid if needed <= screen.width else _list(table))


def _grid(table: Table, transposed: bool) -> Grid:
    from rich.table import Table as Grid

    grid = Grid(title=f"{table.title} ({table.place})", title_justify="left")
    down, across = (table.columns, table.rows) if transposed else (table.rows, table.columns)
    grid.add_column("")
    for title in across.values():
        grid.add_column(title, justify="right")
    for row, title in down.items():
        cells = [_cell(table.at(column, row) if transposed else table.at(row, column)) for column in across]
        grid.add_row(title, *cells)
    return grid


def _list(table: Table) -> Grid:
    """One line per number: row, column, measured, and a column for each source of published ones."""
    from rich.table import Table as Grid

    from normlens.experiments.outcome import formatted

    grid = Grid(title=f"{table.title} ({table.place})", title_justify="left")
    for name in ("", "", "measured", *table.sources):
        grid.add_column(name, justify="right" if name else "left", overflow="fold")
    for row, title in table.rows.items():
        for column, heading in table.columns.items():
            number = table.at(row, column)
            if number is None:
                continue
            known = {one.short: formatted(one.value, one.decimals) for one in number.published}
            grid.add_row(title, heading, number.text(), *(known.get(source, "") for source in table.sources))
    return grid


def _cell(number: Number | None) -> str:
    from normlens.experiments.outcome import formatted

    if number is None:
        return ""
    return "\n".join([number.text(), *(f"{p.short} {formatted(p.value, p.decimals)}" for p in number.published)])
