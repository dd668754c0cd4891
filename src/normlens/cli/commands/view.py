"""`normlens view`: one text, or a saved analysis or explanation, as a page that opens offline."""

from __future__ import annotations

import re
import webbrowser
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from normlens.cli.commands.analyze import RESULT
from normlens.cli.options import Input, JsonOption, ModelChoice, OverwriteOption
from normlens.cli.terminal import print_json, progress_bar, show
from normlens.errors import InputError
from normlens.io.writing import check_outputs, is_there

if TYPE_CHECKING:
    from normlens.results.analysis import Analysis
    from normlens.results.explanation import Explanation

DEFAULT_FILE = Path("normlens-view.html")


@dataclass(frozen=True)
class Shown:
    """Display"""

    span: Annotated[str | None, typer.Option(help="Positions to show, as START:STOP, from 0.")] = None
    heads: Annotated[
        bool | None, typer.Option("--heads/--no-heads", help="Keep or leave out the maps per head; by size otherwise.")
    ] = None


def view(
    text: Annotated[
        str,
        typer.Argument(
            metavar="TEXT|RUN", help="The text to analyse, or the folder of a saved run: an analysis or an explanation."
        ),
    ],
    given: Input,
    chosen: ModelChoice,
    shown: Shown,
    out: Annotated[Path, typer.Option("--out", "-o", help="The HTML file to write.")] = DEFAULT_FILE,
    overwrite: OverwriteOption = False,
    open_: Annotated[bool, typer.Option("--open", help="Open the page in the browser.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Write a page that shows what each token of TEXT, or of a saved RUN, really draws on."""
    positions = _span(shown.span)
    run = _run_at(Path(text))
    is_run = is_there(run / "zarr.json")
    _check_file(out, [run] if is_run else chosen.files(), overwrite)
    if is_run:
        if given != Input() or chosen != ModelChoice():
            raise InputError(f"{text} is a saved run; leave out --model, --pair, --target and --generate")
        result = _opened(run)
    else:
        _check_text(text)
        lens = chosen.open()
        with progress_bar("analysing") as progress:
            result = lens.analyze(text, **vars(given), progress=progress)
    path = _saved(result, out, positions, shown.heads)
    if as_json:
        print_json({"file": str(path), "bytes": path.stat().st_size, "sites": _sizes(result)})
    else:
        show(f"wrote {path} ({path.stat().st_size / 1e6:.1f} MB)")
    if open_:
        webbrowser.open(path.resolve().as_uri())


def _run_at(path: Path) -> Path:
    """The run in a folder that `analyze --out` wrote; any other path as it is."""
    inside = path / RESULT
    return inside if is_there(inside / "zarr.json") else path


def _opened(run: Path) -> Analysis | Explanation:
    from normlens.results.explanation import is_explanation, open_explanation
    from normlens.results.storage import open_analysis

    return open_explanation(run) if is_explanation(run) else open_analysis(run)


def _saved(result: Analysis | Explanation, out: Path, span: tuple[int, int] | None, heads: bool | None) -> Path:
    from normlens.results.explanation import Explanation

    if not isinstance(result, Explanation):
        return result.save_html(out, span=span, heads=heads)
    if span is not None or heads is not None:
        raise InputError("--span and --heads choose among maps: an explanation has none and is shown whole; drop them")
    return result.save_html(out)


def _sizes(result: Analysis | Explanation) -> dict[str, dict[str, int]]:
    """The length of each axis of each site."""
    found: dict[str, dict[str, int]] = {}
    for kind, arrays in result.sites.items():
        axes = found.setdefault(kind, {})
        for array in arrays.values():
            axes |= {str(axis): size for axis, size in array.sizes.items()}
    return found


def _check_text(text: str) -> None:
    """A text may be anything, but one that looks like a folder is a run that is not there."""
    if re.fullmatch(r"\S+\.zarr/?|(~|\.{0,2})/\S+", text):
        raise InputError(f"{text} looks like the folder of a run, and there is none; check the path")


def _span(text: str | None) -> tuple[int, int] | None:
    if text is None:
        return None
    found = re.fullmatch(r"(\d+):(\d+)", text)
    if found is None:
        raise InputError(f"a span must be START:STOP with positions from 0, such as 0:512, got {text!r}")
    return int(found[1]), int(found[2])


def _check_file(path: Path, inputs: list[Path], overwrite: bool) -> None:
    """Refuse, before any work is done, a place that cannot be written or that holds something else."""
    if not (is_there(path.parent) and path.parent.is_dir()) or (is_there(path) and path.is_dir()):
        raise InputError(f"{path} is not a file in an existing folder; check --out")
    ours = path == DEFAULT_FILE and _is_page(path)
    check_outputs([path], inputs, replace=overwrite or ours, remedy="pass --overwrite to replace it")


def _is_page(path: Path) -> bool:
    """A page that an earlier call without --out left here is nobody's loss."""
    from normlens.viewer.page import GENERATOR

    try:
        with path.open(encoding="utf-8", errors="replace") as file:
            return GENERATOR in file.read(4096)
    except OSError:
        return False
