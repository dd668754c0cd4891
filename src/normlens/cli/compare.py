"""`normlens compare`: several models side by side."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from normlens.cli.common import JsonOption, open_lens, print_json, writable_folder
from normlens.cli.reproduce import pass_bars, print_table
from normlens.errors import InputError

if TYPE_CHECKING:
    from normlens.experiments.setup import Setup


def compare(
    models: Annotated[
        list[str], typer.Argument(help="Hub names or folders, at least two; `default`: the embedded one.")
    ],
    data: Annotated[
        list[Path] | None,
        typer.Option(
            help="Text with a paragraph per line, or unlabeled_attn.pkl (repeat); default: the sample corpus."
        ),
    ] = None,
    out: Annotated[Path, typer.Option(help="The folder for the report.")] = Path("compare"),
    definition: Annotated[str, typer.Option(help="Expansion rates by the paper or by the authors' code.")] = "code",
    limit: Annotated[int, typer.Option(help="At most so many sequences.")] = 992,
    max_length: Annotated[int, typer.Option(help="Tokens per sequence at most.")] = 128,
    pairs: Annotated[bool, typer.Option("--pairs/--single", help="Paragraph pairs, as in the papers.")] = True,
    seed: Annotated[int, typer.Option(help="Decides masks and samples.")] = 0,
    batch_size: Annotated[int, typer.Option(help="Sequences per forward pass; never changes the numbers.")] = 8,
    fresh: Annotated[bool, typer.Option("--fresh", help="Run the passes again, whatever --out holds.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Set mixing ratios, expansion rates and category shares of several encoders side by side."""
    from normlens.experiments import comparison
    from normlens.experiments.setup import Setup

    if len(models) < 2:
        raise InputError(f"a comparison needs at least two models: got {len(models)}; `reproduce` reports on one")
    folder = writable_folder(out)
    with pass_bars() as show:

        def setup_of(model: str) -> Setup:
            place = models.index(model) + 1
            return Setup(
                open_lens(None if model == "default" else model),
                folder / "models" / f"{place:02}-{Path(model).name}",
                tuple(data or ()),
                definition=definition,  # type: ignore[arg-type]
                limit=limit,
                max_length=max_length,
                pairs=pairs,
                seed=seed,
                batch_size=batch_size,
                fresh=fresh,
                progress=lambda name, step: show(f"{Path(model).name}, {name}", step),
            )

        outcome = comparison.compare(models, setup_of)
    report = outcome.write(folder)
    if as_json:
        print_json(outcome.to_dict())
        return
    console = Console()
    console.print(outcome.summary, highlight=False, markup=False)
    print_table(console, outcome.tables[0], turned=True)
    console.print(f"wrote {report}", highlight=False, soft_wrap=True, markup=False)
