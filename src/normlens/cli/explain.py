"""`normlens explain`: one number that the model puts out, and how much each token, head and bias gave to it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from normlens.cli import options
from normlens.cli.options import check_saved, open_lens
from normlens.cli.terminal import console, print_json, progress_bar, show, visible
from normlens.errors import InputError

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

    from normlens.results.explanation import Explanation, SiteExplanation

#: Lines of a table; what is left out is added up in its last line.
_ROWS = 12
#: Where there are no colours, a term above this share of the largest one stands beside its token.
_NOTABLE = 0.1


def explain(
    text: Annotated[str, typer.Argument(help="The text whose output is explained.")],
    output: Annotated[
        str | None,
        typer.Option(
            help="A token (mind its space: ' Paris'), a label or its number; the model's own choice without it."
        ),
    ] = None,
    against: Annotated[str | None, typer.Option(help="Explain the difference to this output.")] = None,
    position: Annotated[
        int | None, typer.Option(help="Where the output stands, from 0, or negative from the end.")
    ] = None,
    pair: options.PairOption = None,
    target: options.TargetOption = None,
    model: options.ModelOption = None,
    gguf_file: options.GgufOption = None,
    attention: Annotated[
        str, typer.Option(help="`fixed`: attention weights held fixed; `integrated`: also why they are what they are.")
    ] = "fixed",
    baseline: Annotated[
        str, typer.Option(help="What a word is measured from: `mean`, an average word in its place, or `zero`.")
    ] = "mean",
    part: Annotated[
        list[str] | None, typer.Option("--part", help="Terms to keep (repeat); all but edges by default.")
    ] = None,
    words: Annotated[bool, typer.Option("--words", help="Show words instead of tokens: exact sums.")] = False,
    generate: Annotated[bool, typer.Option("--generate", help="Explain each token that the model writes.")] = False,
    truncate: options.TruncateOption = False,
    out: Annotated[Path | None, typer.Option(help="A Zarr folder for the result, which `normlens.open` reads.")] = None,
    overwrite: options.OverwriteOption = False,
    as_json: options.JsonOption = False,
) -> None:
    """Show what made one number of the model's output: every token, head and bias, adding up to it."""
    if attention not in ("fixed", "integrated"):
        raise InputError(f"attention must be one of fixed, integrated: got {attention!r}")
    if baseline not in ("mean", "zero"):
        raise InputError(f"baseline must be one of mean, zero: got {baseline!r}")
    if out is not None:
        check_saved(out, [Path(model)] if model else [], "a saved explanation", overwrite)
    lens = open_lens(model, gguf_file)
    with progress_bar("explaining") as progress:
        explanation = lens.explain(
            text,
            pair,
            target,
            output=output,
            against=against,
            position=position,
            attention=cast(Any, attention),
            baseline=cast(Any, baseline),
            parts=part or None,
            generate=generate,
            truncate=truncate,
            progress=progress,
        )
    if out is not None:
        explanation.save(out, overwrite=overwrite)
    if as_json:
        print_json(_document(explanation, words, out))
        return
    print_explanation(explanation, words)
    if out is not None:
        show(f"wrote {out}")


# ---- on the terminal -------------------------------------------------------------------------------------------------


def print_explanation(explanation: Explanation, words: bool = False) -> None:
    """The number, the text coloured by what each part of it gave, tables of the strongest terms, and the proof."""
    screen = console()
    whole = explanation.sum_of_steps()
    sides = {kind: gifts(whole.site(kind), words) for kind in whole.sites if kind != "cross"}
    screen.print(_headline(whole), style="bold")
    if whole is not explanation:
        _print_steps(screen, explanation, words)
    largest = max((abs(gift.value) for side in sides.values() for gift in side), default=0.0)
    for kind, side in sides.items():
        screen.print()
        screen.print(_coloured(screen, f"{kind}: " if len(sides) > 1 else "", side, largest))
    screen.print()
    _print_gifts(screen, sides, words)
    _print_heads(screen, whole)
    screen.print(_sum_line(whole, sides))
    if whole.warning:
        screen.print(f"Mind: {whole.warning}.")
    screen.print(explanation.provenance_line(), style="dim")


@dataclass(frozen=True)
class Gift:
    """The term of one token or word."""

    text: str
    spaced: bool  # whether a space stands before it in the text
    position: int
    value: float


def gifts(site: SiteExplanation, words: bool) -> list[Gift]:
    """The terms of the tokens, or words, of one side, in the order of the text."""
    from normlens.inputs.tokens import readable_tokens

    terms = site["tokens"]
    values, own = terms.values.tolist(), terms["key_word"].values.tolist()
    texts = readable_tokens([str(token) for token in terms["key_token"].values])
    found = [Gift(t, i > 0 and own[i] != own[i - 1], i, v) for i, (t, v) in enumerate(zip(texts, values, strict=True))]
    if not words:
        return found
    merged: list[Gift] = []
    for gift in found:
        if merged and own[gift.position] == own[gift.position - 1]:
            last = merged.pop()
            gift = Gift(last.text + gift.text, last.spaced, last.position, last.value + gift.value)
        merged.append(gift)
    return merged


def _headline(explanation: Explanation) -> str:
    record = explanation.provenance
    steps = record.get("steps")
    if record.get("direction"):
        what = "The last state along the direction"
    elif steps:
        what = f"The logits of {' '.join(repr(_written(step)) for step in steps)}, added"
    else:
        what = f"The logit of {_written(record.get('output'))!r}"
        if record.get("against") is not None:
            what += f" less that of {_written(record['against'])!r}"
    at = record.get("token_at_position")
    where = "" if at is None or steps else f" at {_written(at)!r} (position {record.get('position')})"
    chance = "" if explanation.probability is None else f"; probability {100 * explanation.probability:.3g} %"
    other = record.get("probability_against")
    chance += "" if other is None else f" against {100 * other:.3g} %"
    return f"{what}{where}: {explanation.value:+.3f}{chance}"


def _written(token: Any) -> str:
    """A token as it stands in a text, its space included."""
    from normlens.inputs.tokens import readable_tokens

    raw = str(token)
    text = readable_tokens([raw])[0]
    return f" {text}" if raw[:1] in ("Ġ", "▁") and len(raw) > 1 else text


def _coloured(screen: Console, label: str, side: Sequence[Gift], largest: float) -> Text:
    """The text by signed contribution: blue gave, orange took, no colour is nothing; with signs where there is no colour."""
    from rich.text import Text

    found = Text(label)
    ramp = _ramp() if screen.color_system else None
    for gift in side:
        found.append(" " if gift.spaced else "")
        share = gift.value / largest if largest else 0.0
        if ramp is not None:
            found.append(visible(gift.text), style=ramp(share))
        else:
            number = f"({gift.value:+.2f})" if abs(share) >= _NOTABLE else ""
            found.append(visible(gift.text) + number)
    return found


def _ramp() -> Any:
    """A style for a share between -1 and 1."""
    from normlens.plots.style import diverging

    colours = diverging()

    def style(share: float) -> str:
        red, green, blue = (round(255 * c) for c in colours(0.5 + 0.35 * share)[:3])  # its ends are nearly black
        ink = "black" if 0.3 * red + 0.59 * green + 0.11 * blue > 140 else "white"
        return f"{ink} on #{red:02x}{green:02x}{blue:02x}"

    return style


def _print_steps(screen: Console, explanation: Explanation, words: bool) -> None:
    from rich.table import Table

    table = Table()
    for name, justify in (("step", "right"), ("token", "left"), ("logit", "right"), ("probability", "right")):
        table.add_column(name, justify=cast(Any, justify), overflow="fold")
    table.add_column("what gave most", overflow="fold")
    sides = [kind for kind in explanation.sites if kind != "cross"]
    chances = explanation.probability or [None] * explanation.value.size
    for i, value in enumerate(explanation.value.values.tolist()):
        found = [gift for kind in sides for gift in gifts(_at_step(explanation.site(kind), i), words)]
        best = sorted(found, key=lambda gift: -abs(gift.value))[:3]
        chance = "" if chances[i] is None else f"{100 * chances[i]:.3g} %"
        token = repr(_written(explanation.value["output_token"].values[i]))
        table.add_row(str(i + 1), token, f"{value:+.3f}", chance, ", ".join(f"{g.text} {g.value:+.2f}" for g in best))
    screen.print(table)


def _at_step(site: SiteExplanation, step: int) -> SiteExplanation:
    from normlens.results.explanation import SiteExplanation

    return SiteExplanation(site.kind, {"tokens": site["tokens"].isel(step=step)})


def _print_gifts(screen: Console, sides: dict[str, list[Gift]], words: bool) -> None:
    from rich.table import Table

    several = len(sides) > 1
    screen.print(f"What each {'word' if words else 'token'} gave, strongest first", style="italic")
    table = Table()
    if several:
        table.add_column("side")
    table.add_column("position", justify="right")
    table.add_column("word" if words else "token", overflow="fold")
    table.add_column("gave", justify="right")
    found = sorted(((kind, gift) for kind, side in sides.items() for gift in side), key=lambda row: -abs(row[1].value))
    for kind, gift in found[:_ROWS]:
        table.add_row(*((kind,) if several else ()), str(gift.position), gift.text, f"{gift.value:+.3f}")
    rest = found[_ROWS:]
    if rest:
        label = f"{len(rest)} others"
        table.add_row(*(("",) if several else ()), "", label, f"{sum(gift.value for _, gift in rest):+.3f}")
    screen.print(table)


def _print_heads(screen: Console, explanation: Explanation) -> None:
    import numpy as np
    from rich.table import Table

    found: list[tuple[float, str, int, int]] = []
    for kind, arrays in explanation.sites.items():
        if "heads" in arrays:
            heads = arrays["heads"].transpose("layer", "head")
            for (i, j), value in np.ndenumerate(heads.values):
                found.append((float(value), kind, int(heads["layer"][i]), int(heads["head"][j])))
    if not found:
        return
    several = len({row[1] for row in found}) > 1
    screen.print("What passed through each head, strongest first (heads overlap: no sum)", style="italic")
    table = Table()
    for name in (*(("site",) if several else ()), "layer", "head", "gave"):
        table.add_column(name, justify="left" if name == "site" else "right")
    for value, kind, layer, head in sorted(found, key=lambda row: -abs(row[0]))[: _ROWS // 2]:
        table.add_row(*((kind,) if several else ()), str(layer), str(head), f"{value:+.3f}")
    screen.print(table)


def _sum_line(explanation: Explanation, sides: dict[str, list[Gift]]) -> str:
    """`tokens + biases = value`, where the biases come from, and the proof."""
    tokens = sum(gift.value for side in sides.values() for gift in side)
    by_block = biases_by_block(explanation)
    parts = ", ".join(f"{block} {value:+.3f}" for block, value in by_block.items())
    named = f"biases {sum(by_block.values()):+.3f} ({parts})" if by_block else "biases (not kept)"
    return (
        f"tokens {tokens:+.3f}, {named}: together {explanation.value:+.3f}; proof: at the entrance of every layer the sum "
        f"misses the number by at most {explanation.proof.gap:.0e} of the absolute terms"
    )


def biases_by_block(explanation: Explanation) -> dict[str, float]:
    """The biases, added over the layers."""
    found: dict[str, float] = {}
    for arrays in explanation.sites.values():
        if "biases" in arrays:
            total = arrays["biases"].sum("layer")
            for block, value in zip(total["block"].values, total.values, strict=True):
                found[str(block)] = found.get(str(block), 0.0) + float(value)
    return found


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
