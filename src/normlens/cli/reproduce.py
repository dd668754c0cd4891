"""`normlens reproduce`: a paper's experiment on any model, published numbers beside measured ones."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table as Grid

from normlens.cli.common import JsonOption, ModelOption, open_lens, print_json, progress_bar, writable_folder
from normlens.errors import InputError

if TYPE_CHECKING:
    from normlens.corpus.run import Progress as Step
    from normlens.experiments.outcome import Number, Outcome, Table
    from normlens.experiments.registry import Experiment

#: Tables with more numbers than this are in the report, not on the terminal.
_MOST_CELLS = 40


def reproduce(
    name: Annotated[str, typer.Argument(help="kobayashi2020-bert, kobayashi2021 or kobayashi2020-nmt.")],
    model: ModelOption = None,
    data: Annotated[
        list[Path] | None,
        typer.Option(
            help="Text with a paragraph per line, or unlabeled_attn.pkl (repeat); default: the sample corpus."
        ),
    ] = None,
    out: Annotated[Path | None, typer.Option(help="The folder for the report; default: reproduce/NAME.")] = None,
    frequency: Annotated[
        Path | None, typer.Option(help="A `rank count token_id` file; without it, ranks are counted from the data.")
    ] = None,
    definition: Annotated[
        str, typer.Option(help="Where the paper's words and the authors' code disagree: paper or code.")
    ] = "code",
    limit: Annotated[
        int | None, typer.Option(help="At most so many sequences, 992 by default; translation: pairs, all by default.")
    ] = None,
    max_length: Annotated[int, typer.Option(help="Tokens per sequence at most.")] = 128,
    pairs: Annotated[bool, typer.Option("--pairs/--single", help="Paragraph pairs, as in the papers.")] = True,
    seed: Annotated[int, typer.Option(help="Decides masks and samples.")] = 0,
    batch_size: Annotated[int, typer.Option(help="Sequences per forward pass; never changes the numbers.")] = 8,
    workers: Annotated[int | None, typer.Option(help="Processes; without it, this one.")] = None,
    fresh: Annotated[bool, typer.Option("--fresh", help="Run the passes again, whatever --out holds.")] = False,
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
    gradient_samples: Annotated[int, typer.Option(help="Noisy samples per gradient; above 1, SmoothGrad.")] = 1,
    gradient_pairs: Annotated[int | None, typer.Option(help="Gradients on so many pairs only; they are slow.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Run a paper's experiment and write a report: which findings hold, every table, every figure."""
    from normlens.experiments.registry import experiment

    chosen = experiment(name)
    folder = writable_folder(out if out is not None else Path("reproduce") / name)
    if chosen.kind == "translation":
        files = {"model": model, "source": source, "target": target, "gold": gold}
        rows = {
            "others": _others(other or [], swapped=False) | _others(other_swapped or [], swapped=True),
            "gradients": tuple(gradient or ()),
            "gradient_samples": gradient_samples,
            "gradient_pairs": gradient_pairs,
            "limit": limit,
        }
        _translation(chosen, files, folder, {"gold_one_based": gold_one_based, "gold_swap": gold_swap, **rows}, as_json)
        return
    from normlens.experiments.setup import Setup

    with pass_bars() as show:
        setup = Setup(
            open_lens(model),
            folder,
            tuple(data or ()),
            frequency,
            definition,  # type: ignore[arg-type]
            992 if limit is None else limit,
            max_length,
            pairs,
            seed=seed,
            batch_size=batch_size,
            workers=workers,
            fresh=fresh,
            progress=show,
        )
        outcome: Outcome = chosen.load().run(setup)
    report = outcome.write(folder)
    if as_json:
        print_json(outcome.to_dict())
    else:
        _print(Console(), outcome, report)


def _others(given: list[str], *, swapped: bool) -> dict[str, tuple[Path, bool]]:
    """Rows for other aligners: name to file and orientation."""
    found = {}
    for text in given:
        name, sign, path = text.partition("=")
        if not (name and sign and path):
            raise InputError(f"another aligner's output is given as NAME=FILE: got {text!r}")
        found[name] = Path(path), swapped
    return found


def _translation(
    chosen: Experiment, files: dict[str, Any], folder: Path, options: dict[str, Any], as_json: bool
) -> None:
    missing = [f"--{name}" for name, value in files.items() if value is None]
    if missing:
        raise InputError(f"the translation experiment needs a model and gold alignments: give {', '.join(missing)}")
    lens = open_lens(files.pop("model"))
    with progress_bar("pairs") as progress:
        report = chosen.load().run(model=lens, **files, **options, figures=folder, progress=progress)
    if as_json:
        print_json(report.to_dict())
    else:
        print(report.text())
        print(f"wrote {folder}")


@contextmanager
def pass_bars() -> Iterator[Callable[[str, Step], None]]:
    """One bar per pass, on a terminal."""
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, disable=not console.is_terminal, transient=True) as bar:
        tasks: dict[str, Any] = {}

        def show(name: str, step: Step) -> None:
            if name not in tasks:
                tasks[name] = bar.add_task(f"{name} input", total=step.total)
            bar.update(tasks[name], completed=step.sequences, total=step.total)

        yield show


def _print(console: Console, outcome: Outcome, report: Path) -> None:
    from normlens.experiments.outcome import holding

    record = outcome.record
    console.print(
        f"[bold]{outcome.experiment}[/bold]: {outcome.model} on {record['data']}, {record['sequences']} sequences, "
        f"{record['tokens']} tokens; worst proof error {record['worst_proof']:.1e}",
        highlight=False,
    )
    console.print(outcome.summary, highlight=False, markup=False)
    console.print(f"\n[bold]{holding(outcome.findings)}[/bold]", highlight=False)
    for finding in outcome.findings:
        mark = "[blue]holds        [/blue]" if finding.holds else "[yellow]does not hold[/yellow]"
        grid = Grid.grid(padding=(0, 2))
        grid.add_row(mark, _plain(f"{finding.claim} {finding.measured}"))
        console.print(grid, highlight=False)
    for table in outcome.tables:
        if not table.folded and len(table.numbers) <= _MOST_CELLS:
            print_table(console, table)
    if outcome.beside:
        console.print(_plain(f"published: {'; '.join(outcome.beside)}"), highlight=False)
    console.print(f"wrote {report}", highlight=False, soft_wrap=True, markup=False)


def print_table(console: Console, table: Table, *, turned: bool = False) -> None:
    """A table on the terminal, published numbers under the measured ones; `turned` puts its rows across."""
    grid = Grid(title=_plain(f"{table.title} ({table.place})"), title_justify="left")
    down, across = (table.columns, table.rows) if turned else (table.rows, table.columns)
    grid.add_column("")
    for title in across.values():
        grid.add_column(_plain(title), justify="right")
    for row, title in down.items():
        cells = [_cell(table.at(column, row) if turned else table.at(row, column)) for column in across]
        grid.add_row(_plain(title), *cells)
    console.print(grid, highlight=False)


def _cell(number: Number | None) -> str:
    from normlens.experiments.outcome import formatted

    if number is None:
        return ""
    return "\n".join([number.text(), *(f"{p.short} {formatted(p.value, p.decimals)}" for p in number.published)])


def _plain(text: str) -> str:
    # rich would read [SEP] as markup.
    return text.replace("[", r"\[")
