"""`normlens explain`: one number that the model puts out, and how much each token, head and bias gave to it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from normlens.cli.options import Input, JsonOption, ModelChoice, OverwriteOption, check_saved
from normlens.cli.terminal import console, print_json, progress_bar, show
from normlens.options import AttentionRule, Baseline

if TYPE_CHECKING:
    from normlens.results.explanation import Explanation


@dataclass(frozen=True)
class Question:
    """The question"""

    output: Annotated[
        str | None,
        typer.Option(
            help="A token (mind its space: ' Paris'), a label or its number; the model's own choice without it."
        ),
    ] = None
    against: Annotated[str | None, typer.Option(help="Explain the difference to this output.")] = None
    position: Annotated[int | None, typer.Option(help="Where the output stands, from 0, or negative from the end.")] = (
        None
    )
    attention: Annotated[
        AttentionRule, typer.Option(help="Hold attention weights fixed, or integrate scores and values.")
    ] = "fixed"
    baseline: Annotated[Baseline, typer.Option(help="What a term is measured from: the mean embedding, or zero.")] = (
        "mean"
    )
    parts: Annotated[
        list[str] | None, typer.Option("--part", help="Terms to keep (repeat); all but edges by default.")
    ] = None

    def options(self) -> dict[str, Any]:
        """Return the arguments of `Lens.explain`."""
        return {**vars(self), "parts": self.parts or None}


def explain(
    text: Annotated[str, typer.Argument(help="The text whose output is explained.")],
    question: Question,
    given: Input,
    chosen: ModelChoice,
    words: Annotated[bool, typer.Option("--words", help="Show words instead of tokens: exact sums.")] = False,
    out: Annotated[Path | None, typer.Option(help="A Zarr folder for the result, which `normlens.open` reads.")] = None,
    overwrite: OverwriteOption = False,
    as_json: JsonOption = False,
) -> None:
    """Show what made one number of the model's output: every token, head and bias, adding up to it."""
    if out is not None:
        check_saved(out, [Path(chosen.model)] if chosen.model else [], "a saved explanation", overwrite)
    lens = chosen.open()
    with progress_bar("explaining") as progress:
        explanation = lens.explain(text, **vars(given), **question.options(), progress=progress)
    if out is not None:
        explanation.save(out, overwrite=overwrite)
    from normlens.results.tables import ExplanationTables

    if as_json:
        print_json(_document(explanation, words, out))
        return
    console().print(ExplanationTables(explanation, words))
    if out is not None:
        show(f"wrote {out}")


# ---- for programs ----------------------------------------------------------------------------------------------------


def _document(explanation: Explanation, words: bool, out: Path | None) -> dict[str, Any]:
    sites = {}
    for kind, arrays in explanation.sites.items():
        mine: dict[str, Any] = {
            "values": {
                name: {"axes": list(map(str, array.dims)), "values": array.values.tolist()}
                for name, array in arrays.items()
            }
        }
        if "tokens" in arrays:
            mine["tokens"] = [str(token) for token in arrays["tokens"]["key_token"].values]
            if words:
                added = explanation.site(kind).by_word()
                mine["words"] = [str(word) for word in added["word_text"].values]
                mine["values"]["words"] = {"axes": list(map(str, added.dims)), "values": added.values.tolist()}
        for axis in ("layer", "head", "block"):
            for name, array in arrays.items():
                if axis in array.dims:
                    mine["values"][name][axis] = array[axis].values.tolist()
        sites[kind] = mine
    steps = getattr(explanation.value, "values", None)
    return {
        "provenance": dict(explanation.provenance),
        "value": float(explanation.value) if steps is None else steps.tolist(),
        "probability": explanation.probability,
        "proof": vars(explanation.proof),
        "says": explanation.warning,
        "sites": sites,
        "files": [] if out is None else [str(out)],
    }
