"""`normlens analyze`: one text, its contribution maps and mixing ratios, as tables and pictures."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from normlens.cli import options
from normlens.cli.options import check_saved, open_lens
from normlens.cli.terminal import console, note, print_json, progress_bar, show
from normlens.io.writing import check_outputs, refuse_input, whole_files, write_table

if TYPE_CHECKING:
    from rich.console import Console

    from normlens.lens import Lens
    from normlens.results.analysis import Analysis, SiteAnalysis

#: What `--out` holds beside the pictures: the tidy table, and the result for `normlens.open` and `normlens view`.
_TABLE, RESULT = "analysis.csv", "analysis.zarr"
_REMEDY = "pass --overwrite to replace it"

#: Queries shown in the table of contributors; the files hold all of them.
_ROWS = 60


def analyze(
    text: Annotated[str, typer.Argument(help="The text to analyse.")],
    pair: options.PairOption = None,
    target: options.TargetOption = None,
    model: options.ModelOption = None,
    gguf_file: options.GgufOption = None,
    measure: Annotated[
        list[str] | None,
        typer.Option("--measure", help="A measure to compute (repeat); the nine standard ones by default."),
    ] = None,
    layer: Annotated[
        list[int] | None, typer.Option("--layer", help="A layer, from 1 (repeat); all by default.")
    ] = None,
    words: Annotated[str | None, typer.Option(help="Merge subwords to words: `norms` or `vectors`.")] = None,
    generate: options.GenerateOption = False,
    truncate: options.TruncateOption = False,
    out: Annotated[Path | None, typer.Option(help="A folder for the pictures, the table and the result.")] = None,
    overwrite: options.OverwriteOption = False,
    as_json: options.JsonOption = False,
) -> None:
    """Show what each token of TEXT really draws on."""
    if out is not None:
        _check_folder(out, model, overwrite)
    lens = open_lens(model, gguf_file)
    _announce(lens, measure or [], text, pair)
    with progress_bar("analysing") as progress:
        analysis = lens.analyze(
            text,
            pair,
            target,
            measures=measure or None,
            layers=layer or None,
            words=cast(Any, words),
            generate=generate,
            truncate=truncate,
            progress=progress,
        )
    files = [] if out is None else write_files(analysis, out, overwrite=overwrite)
    if as_json:
        print_json(_document(analysis, files))
        return
    print_tables(analysis)
    for file in files:
        show(f"wrote {file}")


def _announce(lens: Lens, measures: list[str], text: str, pair: str | None) -> None:
    """Say what maps through the feed-forward block cost, before they start."""
    from normlens.measures.request import feed_forward_passes
    from normlens.measures.table import MEASURES

    costly = [name for name in measures if name in MEASURES and MEASURES[name].reach == "feed_forward"]
    if costly and lens.tokenizer is not None:
        tokens = len(lens.tokenizer(text, pair)["input_ids"])
        passes = feed_forward_passes(costly, tokens)
        note(
            f"{', '.join(costly)}: {tokens} x {tokens} pairs go through the feed-forward block of each layer, about "
            f"{passes:.0f} times its cost in the plain pass (half of that in a decoder)"
        )


def _check_folder(folder: Path, model: str | None, overwrite: bool) -> None:
    """Refuse, before any work is done, a place where the results must not go."""
    inputs = [Path(model)] if model else []
    refuse_input(folder, inputs)
    check_saved(folder / RESULT, inputs, "a saved analysis", overwrite)
    check_outputs([folder / _TABLE], inputs, replace=overwrite, remedy=_REMEDY)


def print_tables(analysis: Analysis) -> None:
    """Mixing ratios by layer, what each token draws on, and where the numbers come from."""
    screen = console()
    for kind in analysis.sites:
        _print_site(screen, analysis.site(kind), several=len(analysis.sites) > 1)
    screen.print(analysis.provenance_line(), style="dim")


def write_files(analysis: Analysis, folder: Path, *, overwrite: bool = False) -> list[Path]:
    """Pictures (PNG and SVG), a tidy table (CSV) and the result itself (Zarr), all of them or none."""
    from normlens.plots.analysis import save_all

    with whole_files(folder, overwrite=overwrite, remedy=_REMEDY) as draft:
        drawn = save_all(analysis, draft)
        written = [*drawn, write_table(draft / _TABLE, analysis.to_frame()), analysis.save(draft / RESULT)]
        names = [path.relative_to(draft) for path in written]
    return [folder / name for name in names]


def _print_site(screen: Console, site: SiteAnalysis, several: bool) -> None:
    from rich.table import Table

    if several:
        screen.rule(f"{site.kind} sites")
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
        screen.print(table)
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
            table.add_row(row.token, *own, others)
        screen.print(table)
        if len(rows) > _ROWS:
            screen.print(f"… and {len(rows) - _ROWS} more tokens; --out writes all of them")


@dataclass(frozen=True)
class DrawsOn:
    """The sources of one token: its own share, and the tokens with the largest shares beside it."""

    token: str
    measure: str
    itself: float
    others: tuple[tuple[str, float], ...]


def mixing_by_layer(site: SiteAnalysis) -> dict[str, list[float]]:
    """The mean mixing ratio of each layer, for every map that has one."""
    from normlens.measures.table import MAPS, MIXING

    return {
        name: site.dataset[MIXING + name].mean("query").values.tolist()
        for name in MAPS
        if MIXING + name in site.dataset
    }


def draws_on(site: SiteAnalysis, most: int = 3) -> list[DrawsOn]:
    """For each token the shares of its row, averaged over layers; the deepest map that was kept is used."""
    import numpy as np

    from normlens.inputs.tokens import readable
    from normlens.measures.table import MAPS

    kept = [name for name in reversed(MAPS) if name in site.dataset]
    if not kept:
        return []
    name = "attnresln_n" if "attnresln_n" in kept else kept[0]
    maps = site.dataset[name].transpose("layer", "query", "key").values.astype(float)
    totals = maps.sum(-1, keepdims=True)
    shares = np.divide(maps, totals, out=np.zeros_like(maps), where=totals > 0).mean(0)
    keys = [readable(token) for token in site.key_tokens]
    rows = []
    for i, token in enumerate(site.query_tokens):
        order = [j for j in np.argsort(-shares[i]).tolist() if site.kind == "cross" or j != i]
        others = tuple((keys[j], float(shares[i, j])) for j in order[:most] if shares[i, j] > 0)
        itself = 0.0 if site.kind == "cross" else float(shares[i, i])
        rows.append(DrawsOn(readable(token), name, itself, others))
    return rows


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
