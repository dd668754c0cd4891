"""`normlens analyze`: one text, its contribution maps and mixing ratios, as tables and pictures."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from normlens.cli.options import Input, JsonOption, MediaInput, ModelChoice, OverwriteOption, check_saved
from normlens.cli.terminal import console, note, print_json, progress_bar, show
from normlens.errors import InputError
from normlens.io.writing import atomic_files, check_outputs, refuse_input, write_table
from normlens.options import WordMode
from normlens.types import Json

if TYPE_CHECKING:
    from normlens.lens import Lens
    from normlens.results.analysis import Analysis

#: What `--out` holds beside the pictures: the tidy table, and the result for `normlens.open` and `normlens view`.
_TABLE, RESULT = "analysis.csv", "analysis.zarr"
_REMEDY = "pass --overwrite to replace it"


@dataclass(frozen=True)
class Measures:
    """Measures and statistics"""

    measures: Annotated[
        list[str] | None,
        typer.Option("--measure", help="A measure to compute (repeat); the nine standard ones by default."),
    ] = None
    layers: Annotated[list[int] | None, typer.Option("--layer", help="A layer, from 1 (repeat); all by default.")] = (
        None
    )
    words: Annotated[WordMode | None, typer.Option(help="Merge subwords to words.")] = None

    def options(self) -> Json:
        """Return the arguments of `Lens.analyze`."""
        return {"measures": self.measures or None, "layers": self.layers or None, "words": self.words}


def analyze(
    given: Input,
    media: MediaInput,
    chosen: ModelChoice,
    computed: Measures,
    out: Annotated[Path | None, typer.Option(help="A folder for the pictures, the table and the result.")] = None,
    overwrite: OverwriteOption = False,
    as_json: JsonOption = False,
    text: Annotated[str | None, typer.Argument(help="The text to analyse; not needed with --image or --audio.")] = None,
) -> None:
    """Show what each token of TEXT (or patch of an image) really draws on."""
    if text is None and not media:
        raise InputError("give a text, --image or --audio")
    if out is not None:
        _check_folder(out, chosen.model, overwrite)
    lens = chosen.open()
    if text is not None:
        _announce(lens, computed.measures or [], text, given.pair)
    with progress_bar("analysing") as progress:
        analysis = lens.analyze(text, **vars(given), **computed.options(), **media.options(text), progress=progress)
    files = [] if out is None else write_files(analysis, out, overwrite=overwrite, images=media.images or ())
    if as_json:
        print_json(_document(analysis, files))
        return
    console().print(analysis)
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


def write_files(
    analysis: Analysis, folder: Path, *, overwrite: bool = False, images: Sequence[Path] = ()
) -> list[Path]:
    """Pictures (PNG and SVG), a tidy table (CSV) and the result itself (Zarr), all of them or none."""
    from normlens.plots.analysis import save_all, save_on_image

    with atomic_files(folder, overwrite=overwrite, remedy=_REMEDY) as draft:
        drawn = save_on_image(analysis, images[0], draft) if images else save_all(analysis, draft)
        written = [*drawn, write_table(draft / _TABLE, analysis.to_frame()), analysis.save(draft / RESULT)]
        names = [path.relative_to(draft) for path in written]
    return [folder / name for name in names]


def _document(analysis: Analysis, files: list[Path]) -> Json:
    from normlens.results.tables import mixing_by_layer

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
