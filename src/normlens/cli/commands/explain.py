"""`normlens explain`: one number of the output, and the contribution of each token, head and bias."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from normlens.cli.options import Input, JsonOption, MediaInput, ModelChoice, OverwriteOption, check_saved
from normlens.cli.terminal import console, print_json, progress_bar, show
from normlens.errors import InputError
from normlens.io.writing import check_outputs
from normlens.options import AttentionRule, Baseline, Tower
from normlens.types import Json

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
    through: Annotated[
        Tower | None, typer.Option(help="Carry the terms of images or sound in a language model on to their tower.")
    ] = None
    baseline: Annotated[Baseline, typer.Option(help="What a term is measured from: the mean embedding, or zero.")] = (
        "mean"
    )
    parts: Annotated[
        list[str] | None, typer.Option("--part", help="Terms to keep (repeat); all but edges by default.")
    ] = None

    def options(self) -> Json:
        """Return the arguments of `Lens.explain`."""
        return {**vars(self), "parts": self.parts or None}


@dataclass(frozen=True)
class Documents:
    """Chats and documents"""

    chat: Annotated[
        Path | None, typer.Option(help="A JSON file with the messages of a chat, in place of the text.")
    ] = None
    sources: Annotated[
        Path | None, typer.Option(help="A folder of .txt files, which the text places as {name}; by default before it.")
    ] = None
    max_new_tokens: Annotated[
        int | None, typer.Option(min=1, help="Tokens that the model writes at most, with --generate.")
    ] = None
    seed: Annotated[int | None, typer.Option(help="Draw what the model writes; by default its likeliest tokens.")] = (
        None
    )

    def question(self, text: str | None) -> tuple[str | None, Json]:
        """Return the text with the places of its sources, and the arguments of `Lens.explain`."""
        options: Json = {"max_new_tokens": self.max_new_tokens, "seed": self.seed}
        sources = {} if self.sources is None else _read_sources(self.sources)
        if sources:
            options["sources"] = sources
        if self.chat is not None:
            options["messages"] = _read_chat(self.chat)
        elif text is not None and sources and not any(f"{{{name}}}" in text for name in sources):
            places = "\n\n".join(f"{{{name}}}" for name in sources)
            text = f"{places}\n\n{text}"
        return text, options


@dataclass(frozen=True)
class Result:
    """Result"""

    words: Annotated[bool, typer.Option("--words", help="Show words instead of tokens: exact sums.")] = False
    picture: Annotated[
        Path | None, typer.Option(help="A figure (.png, .svg, .pdf); of an image or a recording, over it.")
    ] = None
    out: Annotated[Path | None, typer.Option(help="A Zarr folder for the result, which `normlens.open` reads.")] = None
    overwrite: OverwriteOption = False
    as_json: JsonOption = False


def _read_sources(folder: Path) -> dict[str, str]:
    from normlens.io.reading import read_text

    if not folder.is_dir():
        raise InputError(f"{folder} is not a folder; check --sources")
    try:
        sources = {path.stem: read_text(path).strip() for path in sorted(folder.glob("*.txt"))}
    except (OSError, ValueError) as error:
        raise InputError(f"the sources in {folder} cannot be read ({error})") from error
    if not sources:
        raise InputError(f"{folder} has no .txt file; check --sources")
    return sources


def _read_chat(path: Path) -> Any:
    from normlens.io.reading import read_text

    try:
        content = json.loads(read_text(path))
    except (OSError, ValueError, RecursionError) as error:
        raise InputError(f"{path} is no JSON file ({error}); check --chat") from error
    messages = content.get("messages") if isinstance(content, dict) else content
    if not isinstance(messages, list) or not messages or not isinstance(messages[0], dict):
        raise InputError(f'{path} must be a list of messages, or an object with "messages"; check --chat')
    return messages


def explain(
    question: Question,
    given: Input,
    documents: Documents,
    media: MediaInput,
    chosen: ModelChoice,
    result: Result,
    text: Annotated[
        str | None, typer.Argument(help="The text whose output is explained; not needed with --chat or --image.")
    ] = None,
) -> None:
    """Show what made one number of the model's output: every token, head and bias, adding up to it."""
    words, out, overwrite = result.words, result.out, result.overwrite
    if out is not None:
        check_saved(out, [Path(chosen.model)] if chosen.model else [], "a saved explanation", overwrite)
    if (text is None) == (documents.chat is None) and not media:
        raise InputError("give either a text, --chat, --image or --audio")
    if result.picture is not None:
        check_outputs([result.picture], [], replace=overwrite, remedy="pass --overwrite to replace it")
    asked, options = documents.question(text)
    lens = chosen.open()
    with progress_bar("explaining") as progress:
        options |= media.options(asked)
        explanation = lens.explain(asked, **vars(given), **question.options(), **options, progress=progress)
    if out is not None:
        explanation.save(out, overwrite=overwrite)
    if result.picture is not None:
        _draw(explanation, media, result.picture)
    from normlens.results.tables import ExplanationTables

    if result.as_json:
        print_json(_document(explanation, words, out))
        return
    console().print(ExplanationTables(explanation, words))
    for file in (out, result.picture):
        if file is not None:
            show(f"wrote {file}")


def _draw(explanation: Explanation, media: MediaInput, path: Path) -> None:
    from normlens.plots.figure import save_figure

    image = media.images[0] if media.images else None
    save_figure(explanation.plot(image=image, audio=None if image is not None else media.audio), path)


# ---- for programs ----------------------------------------------------------------------------------------------------


def _document(explanation: Explanation, words: bool, out: Path | None) -> Json:
    sites = {}
    for kind, arrays in explanation.sites.items():
        mine: Json = {
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
