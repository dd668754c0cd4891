"""`normlens analyze`: one text, its contribution maps and mixing ratios, as tables and pictures."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from normlens.cli.common import (
    GgufOption,
    JsonOption,
    ModelOption,
    open_lens,
    print_json,
    progress_bar,
    writable_folder,
)
from normlens.errors import InputError
from normlens.summary import draws_on, mixing_by_layer

if TYPE_CHECKING:
    from normlens.analysis import Analysis, SiteAnalysis

#: Queries shown in the table of contributors; the files hold all of them.
_ROWS = 60


def analyze(
    text: Annotated[str, typer.Argument(help="The text to analyse.")],
    pair: Annotated[str | None, typer.Option(help="A second segment, as in [CLS] text [SEP] pair [SEP].")] = None,
    target: Annotated[str | None, typer.Option(help="What an encoder-decoder model is made to write.")] = None,
    model: ModelOption = None,
    gguf_file: GgufOption = None,
    measure: Annotated[
        list[str] | None, typer.Option("--measure", help="A measure to compute (repeat); all of them by default.")
    ] = None,
    layer: Annotated[
        list[int] | None, typer.Option("--layer", help="A layer, from 1 (repeat); all by default.")
    ] = None,
    words: Annotated[str | None, typer.Option(help="Merge subwords to words: `norms` or `vectors`.")] = None,
    generate: Annotated[bool, typer.Option("--generate", help="Analyse what the model itself writes.")] = False,
    truncate: Annotated[bool, typer.Option("--truncate", help="Cut a text that is too long for the model.")] = False,
    out: Annotated[Path | None, typer.Option(help="A folder for the pictures, the table and the result.")] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace a result that is already in --out.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Show what each token of TEXT really draws on."""
    if out is not None:
        writable_folder(out)
        if (out / "analysis.zarr").exists() and not overwrite:
            raise InputError(f"a result must not overwrite another: {out} holds one; pass --overwrite to replace it")
    lens = open_lens(model, gguf_file)
    with progress_bar("analysing") as progress:
        analysis = lens.analyze(
            text,
            pair,
            target,
            measures=measure or None,
            layers=layer or None,
            words=words,  # type: ignore[arg-type]
            generate=generate,
            truncate=truncate,
            progress=progress,
        )
    files = [] if out is None else write_files(analysis, out)
    if as_json:
        print_json(_document(analysis, files))
        return
    print_tables(analysis)
    for file in files:
        Console().print(f"wrote {file}", highlight=False, soft_wrap=True)


def print_tables(analysis: Analysis) -> None:
    """Mixing ratios by layer, what each token draws on, and where the numbers come from."""
    console = Console()
    for kind in analysis.sites:
        _print_site(console, analysis.site(kind), several=len(analysis.sites) > 1)
    console.print(f"[dim]{analysis.provenance_line()}[/dim]", highlight=False)


def write_files(analysis: Analysis, folder: Path) -> list[Path]:
    """Pictures (PNG and SVG), a tidy table (CSV) and the result itself (Zarr)."""
    from normlens.plots.figures import save_all

    files = save_all(analysis, folder)
    table = folder / "analysis.csv"
    partial = table.with_suffix(".csv.partial")
    analysis.to_frame().to_csv(partial, index=False)
    partial.replace(table)
    return [*files, table, analysis.save(folder / "analysis.zarr", overwrite=True)]


def _print_site(console: Console, site: SiteAnalysis, several: bool) -> None:
    if several:
        console.rule(f"{site.kind} sites")
    ratios = mixing_by_layer(site)
    if ratios:
        table = Table(
            title="Mixing ratio by layer: share of the output that comes from other positions", title_justify="left"
        )
        table.add_column("layer", justify="right")
        for name in ratios:
            table.add_column(name, justify="right")
        for i, layer in enumerate(site.dataset["layer"].values):
            table.add_row(str(layer), *(f"{100 * values[i]:.1f} %" for values in ratios.values()))
        console.print(table)
    rows = draws_on(site)
    if rows:
        table = Table(
            title=f"What each token draws on most, mean over layers ({rows[0].measure}, share of its row)",
            title_justify="left",
        )
        table.add_column("token", overflow="fold")
        if site.kind != "cross":
            table.add_column("itself", justify="right")
        table.add_column("others")
        for row in rows[:_ROWS]:
            others = ", ".join(f"{token} {100 * share:.1f} %" for token, share in row.others)
            own = () if site.kind == "cross" else (f"{100 * row.itself:.1f} %",)
            table.add_row(_plain(row.token), *own, _plain(others))
        console.print(table)
        if len(rows) > _ROWS:
            console.print(f"… and {len(rows) - _ROWS} more tokens; --out writes all of them")


def _plain(text: str) -> Any:
    """Token text is data: square brackets in it are no markup."""
    from rich.text import Text

    return Text(text)


def _document(analysis: Analysis, files: list[Path]) -> dict[str, Any]:
    sites = {}
    for kind in analysis.sites:
        site = analysis.site(kind)
        sites[kind] = {
            "layers": site.dataset["layer"].values.tolist(),
            "query_tokens": site.query_tokens,
            "key_tokens": site.key_tokens,
            "proof": site.proof.values.tolist(),
            "mixing_ratio_by_layer": mixing_by_layer(site),
            "values": {name: site[name].values.tolist() for name in analysis.measures if name in site.dataset},
        }
    return {"provenance": dict(analysis.provenance), "sites": sites, "files": [str(file) for file in files]}
