"""`normlens faithful`: methods by protocols on a model and data, with intervals, a verdict and a report."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from normlens.cli.commands.reproduce import is_results
from normlens.cli.options import JsonOption, ModelChoice, OverwriteOption
from normlens.cli.terminal import console, print_json, progress_bars, show
from normlens.errors import InputError
from normlens.io.writing import check_outputs, is_there, lock_folder
from normlens.options import Removal

if TYPE_CHECKING:
    from normlens.faithfulness.samples import Sample
    from normlens.faithfulness.studies import Study
    from normlens.lens import Lens


#: Characters of the first and last column of the table, and of every other one.
_METHOD_WIDTH, _COLUMN_WIDTH = 40, 17
AFTER_INTERRUPTION = "what is finished is kept, and the same command goes on from there"


@dataclass(frozen=True)
class Items:
    """Items"""

    evidence: Annotated[
        list[Path] | None,
        typer.Option(help="A table of prefixes, right and wrong next words, and what decides (repeat)."),
    ] = None
    texts: Annotated[
        list[Path] | None, typer.Option(help="A text per line; what follows a tab is left out (repeat).")
    ] = None
    images: Annotated[list[Path] | None, typer.Option("--image", help="A picture, for models that see (repeat).")] = (
        None
    )
    limit: Annotated[int, typer.Option(min=1, help="Items of each file, of those that can be asked.")] = 40
    skip: Annotated[int, typer.Option(min=0, help="Leave out so many first: another part of the same file.")] = 0
    longest: Annotated[int, typer.Option(min=3, help="Texts with more tokens are refused, and counted.")] = 64
    seed: Annotated[int, typer.Option(min=0, help="Shuffles the rows of each file.")] = 0

    @property
    def files(self) -> list[Path]:
        """All files that are read."""
        return [*(self.evidence or ()), *(self.texts or ())]

    def check(self) -> None:
        """Raise an error for files that cannot be used, before a model is loaded."""
        if sum(map(bool, (self.evidence, self.texts, self.images))) != 1:
            raise InputError("give one of --evidence, --texts and --image")
        _check_files(self.files, evidence=bool(self.evidence))

    def read(self, lens: Lens) -> list[Sample]:
        """Read every file for a model."""
        from normlens.faithfulness.samples import read_evidence, read_texts

        chosen: Any = {"limit": self.limit, "skip": self.skip, "seed": self.seed}
        if self.evidence:
            return [read_evidence(lens, path, **chosen) for path in self.files]
        return [read_texts(lens, path, longest=self.longest, **chosen) for path in self.files]


def faithful(
    items: Items,
    chosen: ModelChoice,
    method: Annotated[
        list[str] | None, typer.Option(help="A method of `normlens methods` (repeat); default: all of them.")
    ] = None,
    protocol: Annotated[
        list[str] | None,
        typer.Option(
            help="evidence, deletion, agreement or sanity (repeat); default: agreement, and evidence or deletion."
        ),
    ] = None,
    removal: Annotated[
        Removal | None, typer.Option(help="How tokens are removed; default: mask where there is one.")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="The folder for the report; default: faithful.")] = None,
    overwrite: OverwriteOption = False,
    as_json: JsonOption = False,
) -> None:
    """Test which explanation agrees with what the model does, and write a report with a verdict."""
    folder = Path("faithful") if out is None else out
    if items.images:
        items.check()
        _judge_images(items.images, chosen, method, out, overwrite, as_json)
        return
    _check_names(method, protocol)
    items.check()
    from normlens.faithfulness.report import write_report
    from normlens.faithfulness.studies import study

    with _folder(folder, [*items.files, *chosen.files()], overwrite):
        lens = chosen.open()
        samples = items.read(lens)
        with progress_bars() as move:
            found = study(
                lens,
                samples,
                methods=method or None,
                protocols=protocol or None,
                how=removal,
                folder=folder,
                progress=lambda label, done, total: move(label, done, total),
            )
        report = write_report(found, folder)
    if as_json:
        print_json(found.to_dict())
    else:
        _print(found, report)


def _judge_images(
    images: list[Path], chosen: ModelChoice, methods: list[str] | None, out: Path | None, overwrite: bool, as_json: bool
) -> None:
    """Deletion and insertion of patches, as a table and a CSV file."""
    from normlens.faithfulness.images import image_study
    from normlens.io.writing import write_table
    from normlens.results.tables import add_row, new_table

    file = (Path("faithful") if out is None else out) / "images.csv"
    check_outputs([file], [*images, *chosen.files()], replace=overwrite, remedy="pass --overwrite to replace it")
    with progress_bars() as move:
        study = image_study(chosen.open(), images, methods, progress=lambda done, total: move("images", done, total))
    rows = study.table()
    file.parent.mkdir(parents=True, exist_ok=True)
    write_table(file, rows)
    if as_json:
        print_json({"record": study.record, "rows": rows.to_dict("records"), "files": [str(file)]})
        return
    table = new_table(
        "Patches removed (deletion) and shown (insertion), larger is better",
        ("method", "deletion", "insertion"),
        right=("deletion", "insertion"),
    )
    for row in rows.itertuples():
        deletion = f"{row.deletion:.3f} ({row.deletion_low:.2f} to {row.deletion_high:.2f})"
        insertion = f"{row.insertion:.3f} ({row.insertion_low:.2f} to {row.insertion_high:.2f})"
        add_row(table, str(row.method), deletion, insertion)
    console().print(table)
    show(f"wrote {file}")


@contextmanager
def _folder(folder: Path, inputs: list[Path], overwrite: bool) -> Iterator[None]:
    """The folder of a study, for this run alone; a study goes on in its own one, and replaces nothing else's."""
    from normlens.faithfulness.report import FILES
    from normlens.faithfulness.studies import SCORES

    check_outputs(
        [folder / name for name in FILES],
        inputs,
        replace=overwrite or is_results(folder, "faithful"),
        remedy="pass --overwrite to replace it",
    )
    check_outputs([], inputs, replace=True, remedy="", folders=[folder / SCORES])  # kept from before: that is its use
    with lock_folder(folder, "study"):
        yield


def _check_files(paths: list[Path], *, evidence: bool) -> None:
    """Report problems of a file before a model is loaded."""
    from normlens.faithfulness.samples import read_lines, read_rows

    for path in paths:
        if not is_there(path) or path.is_file():  # a pipe is read once
            _ = read_rows(path) if evidence else read_lines(path)


def _check_names(methods: list[str] | None, protocols: list[str] | None) -> None:
    """A wrong name is said before a model is loaded."""
    from normlens.faithfulness.methods import find_methods

    find_methods(methods or ())
    known = ("evidence", "deletion", "agreement", "sanity")
    unknown = [name for name in protocols or () if name not in known]
    if unknown:
        raise InputError(f"protocol must be one of {', '.join(known)}, got {', '.join(map(repr, unknown))}")


def _print(study: Study, report: Path) -> None:
    from normlens.faithfulness.published_scores import beside
    from normlens.faithfulness.verdicts import verdict
    from normlens.results.tables import add_row, new_table

    screen = console()
    differences = []
    per_table = max(1, (screen.width - _METHOD_WIDTH) // _COLUMN_WIDTH)
    for start in range(0, len(study.columns), per_table):
        columns = study.columns[start : start + per_table]
        titles = [column.title for column in columns]
        table = new_table(
            f"Faithfulness: {study.record['model']['name']}", ("method", *titles, "cost"), right=(*titles, "cost")
        )
        for row in study.methods:
            cells = []
            for column in columns:
                found = study.cell(row.name, column.name)
                lines = [] if found is None else [f"{found.mean:.3f}", f"{found.low:.2f} to {found.high:.2f}"]
                for known in beside(study, row.name, column.name):
                    lines.append(f"published {known}")
                    if known.differs is not None:
                        differences.append(f"* {row.name}, {column.title}: {known.differs}.")
                cells.append("\n".join(lines))
            cost = study.costs.get(row.name)
            add_row(table, row.name, *cells, "" if cost is None else f"{cost:.1f}")
        screen.print(table)
    for sample in study.samples:
        refused = "".join(f"; {count} refused: {why}" for why, count in sample.refused.items())
        screen.print(f"{sample.name}: {len(sample.items)} items{refused}", style="dim")
    for sentence in (*differences, *study.notes, *verdict(study)):
        screen.print(sentence)
    screen.print(study.signature, style="dim", soft_wrap=True)
    show(f"wrote {report}")
