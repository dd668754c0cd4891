"""`normlens view`: one text, or a saved run, as a page that opens offline."""

from __future__ import annotations

import re
import webbrowser
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from normlens.cli.common import GgufOption, JsonOption, ModelOption, open_lens, print_json, progress_bar
from normlens.errors import InputError

if TYPE_CHECKING:
    from normlens.analysis import Analysis

DEFAULT_FILE = Path("normlens-view.html")
_GENERATOR = '<meta name="generator" content="normlens">'


def view(
    text: Annotated[str, typer.Argument(metavar="TEXT|RUN", help="The text to analyse, or the folder of a saved run.")],
    pair: Annotated[str | None, typer.Option(help="A second segment, as in [CLS] text [SEP] pair [SEP].")] = None,
    target: Annotated[str | None, typer.Option(help="What an encoder-decoder model is made to write.")] = None,
    model: ModelOption = None,
    gguf_file: GgufOption = None,
    generate: Annotated[bool, typer.Option("--generate", help="Analyse what the model itself writes.")] = False,
    truncate: Annotated[bool, typer.Option("--truncate", help="Cut a text that is too long for the model.")] = False,
    span: Annotated[str | None, typer.Option(help="Positions to show, as START:STOP, from 0.")] = None,
    heads: Annotated[
        bool | None, typer.Option("--heads/--no-heads", help="Keep or leave out the maps per head; by size otherwise.")
    ] = None,
    out: Annotated[Path, typer.Option("--out", "-o", help="The HTML file to write.")] = DEFAULT_FILE,
    open_: Annotated[bool, typer.Option("--open", help="Open the page in the browser.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Write a page that shows what each token of TEXT, or of a saved RUN, really draws on."""
    chosen = _span(span)
    _check_file(out)
    run = Path(text)
    if _is_run(run):
        if model or pair or target or generate or gguf_file:
            raise InputError(
                f"a saved run is shown as it is: {text} is one; leave out --model, --pair, --target and --generate"
            )
        from normlens.analysis import open_analysis

        analysis = open_analysis(run)
    else:
        analysis = _analyzed(text, pair, target, model, gguf_file, generate, truncate)
    path = analysis.save_html(out, span=chosen, heads=heads)
    if as_json:
        sizes = {kind: dict(dataset.sizes) for kind, dataset in analysis.sites.items()}
        print_json({"file": str(path), "bytes": path.stat().st_size, "sites": sizes})
    else:
        Console().print(f"wrote {path} ({path.stat().st_size / 1e6:.1f} MB)", highlight=False, soft_wrap=True)
    if open_:
        webbrowser.open(path.resolve().as_uri())


def _analyzed(
    text: str,
    pair: str | None,
    target: str | None,
    model: str | None,
    gguf_file: str | None,
    generate: bool,
    truncate: bool,
) -> Analysis:
    lens = open_lens(model, gguf_file)
    with progress_bar("analysing") as progress:
        analysis: Analysis = lens.analyze(text, pair, target, generate=generate, truncate=truncate, progress=progress)
    return analysis


def _is_run(path: Path) -> bool:
    try:
        return (path / "zarr.json").exists()
    except OSError:  # a text can be longer than any path
        return False


def _span(text: str | None) -> tuple[int, int] | None:
    if text is None:
        return None
    found = re.fullmatch(r"(\d+):(\d+)", text)
    if found is None:
        raise InputError(f"a span is START:STOP with positions from 0, such as 0:512: got {text!r}")
    return int(found[1]), int(found[2])


def _check_file(path: Path) -> None:
    """Refuse, before any work is done, a place that cannot be written or a file that is no page of ours."""
    if path.is_dir() or not path.parent.is_dir():
        raise InputError(f"a page is written to a file in an existing folder: {path} is not one; check --out")
    if path.exists():
        with path.open(encoding="utf-8", errors="replace") as file:
            if _GENERATOR not in file.read(4096):
                raise InputError(f"a page must not overwrite another file: {path} is no page of normlens; choose --out")
