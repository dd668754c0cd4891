"""`normlens compare`: several models side by side."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from normlens.cli import options
from normlens.cli.commands.reproduce import pass_bars, print_table, report_folder
from normlens.cli.options import model_files, open_lens
from normlens.cli.terminal import console, print_json
from normlens.errors import InputError
from normlens.options import Definition

if TYPE_CHECKING:
    from normlens.experiments.encoder_study import EncoderStudy


AFTER_INTERRUPTION = "what is finished is kept, and the same command goes on from there"


@dataclass(frozen=True)
class Passes:
    """Passes over the corpus"""

    definition: Annotated[Definition, typer.Option(help="Expansion rates by the paper or the code.")] = "code"
    limit: Annotated[int, typer.Option(min=1, help="At most so many sequences.")] = 992
    max_length: Annotated[int, typer.Option(min=1, help="Tokens per sequence at most.")] = 128
    pairs: options.PairsOption = True
    seed: options.SeedOption = 0
    batch_size: options.BatchSizeOption = 8
    fresh: options.FreshOption = False


def compare(
    models: Annotated[
        list[str], typer.Argument(help="Hub names or folders, at least two; `default`: the embedded one.")
    ],
    passes: Passes,
    data: options.DataOption = None,
    out: Annotated[Path, typer.Option(help="The folder for the report.")] = Path("compare"),
    overwrite: options.OverwriteOption = False,
    as_json: options.JsonOption = False,
) -> None:
    """Set mixing ratios, expansion rates and category shares of several encoders side by side."""
    if len(models) < 2:
        raise InputError(f"compare needs at least two models, got {len(models)}; `normlens reproduce` reports on one")
    from normlens.experiments import comparison
    from normlens.experiments.encoder_study import EncoderStudy, check_data

    check_data(data or ())
    with report_folder(out, "compare", [*(data or ()), *model_files(*models)], overwrite), pass_bars() as move:

        def study_of(model: str) -> EncoderStudy:
            place = models.index(model) + 1
            return EncoderStudy(
                open_lens(None if model == "default" else model),
                out / "models" / f"{place:02}-{Path(model).name}",
                tuple(data or ()),
                **vars(passes),
                progress=lambda name, step: move(f"{Path(model).name}, {name}", step),
            )

        outcome = comparison.compare(models, study_of)
        report = outcome.write(out)
    if as_json:
        print_json(outcome.to_dict())
        return
    screen = console()
    screen.print(outcome.summary)
    print_table(screen, outcome.tables[0], transposed=True)
    screen.print(f"wrote {report}", soft_wrap=True)
