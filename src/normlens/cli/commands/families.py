"""`normlens families`: which model families are analysed exactly, checked on this machine."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from normlens.cli.options import JsonOption
from normlens.cli.terminal import console, print_json, progress_bar
from normlens.errors import InputError

if TYPE_CHECKING:
    from normlens.families.checks import FamilyReport


#: In a narrower window nine columns are too thin to read.
WIDE = 120


def families(
    names: Annotated[list[str] | None, typer.Argument(help="Model types to check; without any, all of them.")] = None,
    as_json: JsonOption = False,
    media: Annotated[bool, typer.Option("--media", help="Types for images, sound, and both with text.")] = False,
    markdown: Annotated[bool, typer.Option("--markdown", help="Print the page of the documentation.")] = False,
    workers: Annotated[
        int | None, typer.Option("--workers", min=1, help="Processes; as many as cores by default.")
    ] = None,
) -> None:
    """Check every model family of the installed transformers on a tiny random-weight model: of texts, or with --media."""
    from normlens.families.media import media_families
    from normlens.families.table import as_markdown, check_families, counts, media_markdown, sites_text
    from normlens.families.tiny import families as of_text

    known = media_families() if media else of_text()
    unknown = [name for name in names or () if name not in known]
    if unknown:
        kind = "image, sound and multimodal" if media else "text"
        raise InputError(
            f"{', '.join(unknown)} is no model type of transformers' {kind} mappings; run `normlens families` "
            "without names to see them all"
        )
    with progress_bar("families") as progress:
        reports = check_families(names, media=media, workers=workers, progress=progress)
    if as_json:
        print_json([report.to_dict() for report in reports])
        return
    if markdown:
        sys.stdout.write(media_markdown(reports) if media else as_markdown(reports))
        return
    from normlens.results.tables import new_table

    screen = console()
    wide = screen.width >= WIDE
    details = ("sites", "norm", "heads", "kv heads", "worst proof error") if wide else ()
    table = new_table("Model families", ("family", "status", *details, "explained", "notes or reason"))
    for report in reports:
        error = "" if report.proof is None else f"{report.proof:.1e}"
        found = (sites_text(report), report.norm, report.heads, report.kv_heads, error) if wide else ()
        explained = "refused" if report.explained_gap is None else f"complete, {report.explained_gap:.0e}"
        table.add_row(report.family, report.status, *found, explained, _remarks(report))
    screen.print(table)
    if not wide:
        screen.print("Sites, norm, heads and the proof's error stand in a wider window, in --json and in --markdown.")
    number = counts(reports)
    complete = sum(report.explained == "complete" for report in reports)
    screen.print(
        f"{number['exact']} exact, {number['refused']} refused, {complete} explained, of {len(reports)} families"
    )


def _remarks(report: FamilyReport) -> str:
    """Notes or reasons; one reason for both is said once."""
    found = [report.reason or report.notes]
    if report.explained_reason and report.explained_reason != report.reason:
        found.append(f"not explained: {report.explained_reason}")
    return "; ".join(filter(None, found))
