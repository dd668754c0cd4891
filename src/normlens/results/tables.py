"""Results on a terminal: what `rich` prints for an analysis or an explanation.

Tokens are data: they are shown as they are, never read as markup, and control characters are escaped.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from normlens.anatomy.kinds import is_cross
from normlens.inputs.tokens import readable, readable_tokens
from normlens.io.escapes import visible
from normlens.measures.table import MAPS, MIXING

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.table import Table
    from rich.text import Text

    from normlens.results.analysis import Analysis, SiteAnalysis
    from normlens.results.explanation import Explanation, SiteExplanation

#: Queries shown in the table of an analysis, and lines of a table of terms; the rest is counted or added up.
_QUERIES = 60
_TERMS = 12
#: Without colours, a term above this share of the largest one stands beside its token.
_NOTABLE = 0.1


def text(string: str, style: str = "") -> Text:
    """Data as text."""
    from rich.text import Text

    return Text(visible(string), style=style)


def new_table(title: str, columns: Sequence[str], right: Sequence[str] = ()) -> Table:
    """A table with these columns; those in `right` are aligned to the right."""
    from rich.table import Table

    table = Table(title=text(title) if title else None, title_justify="left")
    for name in columns:
        table.add_column(text(name), justify="right" if name in right else "left", overflow="fold")
    return table


def add_row(table: Table, *cells: str) -> None:
    """Add a row of data."""
    table.add_row(*(text(cell) for cell in cells))


# ---- an analysis ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Sources:
    """The sources of one token: its own share, and the tokens with the largest shares beside it."""

    token: str
    measure: str
    itself: float
    others: tuple[tuple[str, float], ...]


def mixing_by_layer(site: SiteAnalysis) -> dict[str, list[float]]:
    """The mean mixing ratio of each layer, for every map that has one."""
    ratios = {}
    for name in MAPS:
        if MIXING + name in site.dataset:
            ratios[name] = site.dataset[MIXING + name].mean("query").values.tolist()
    return ratios


def sources_of_tokens(site: SiteAnalysis, most: int = 3) -> list[Sources]:
    """For each token the largest shares of its row, averaged over layers, in the deepest map that was kept."""
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
        order = [j for j in np.argsort(-shares[i]).tolist() if is_cross(site.kind) or j != i]
        others = tuple((keys[j], float(shares[i, j])) for j in order[:most] if shares[i, j] > 0)
        itself = 0.0 if is_cross(site.kind) else float(shares[i, i])
        rows.append(Sources(readable(token), name, itself, others))
    return rows


def analysis_tables(analysis: Analysis) -> Iterator[RenderableType]:
    """Mixing ratios by layer, the sources of each token, and the provenance."""
    from rich.rule import Rule

    for kind in analysis.sites:
        if len(analysis.sites) > 1:
            yield Rule(f"{kind} sites")
        yield from _site_tables(analysis.site(kind))
    yield text(analysis.provenance_line(), "dim")


def _site_tables(site: SiteAnalysis) -> Iterator[RenderableType]:
    ratios = mixing_by_layer(site)
    if ratios:
        title = "Mixing ratio by layer: share of the output that comes from other positions"
        table = new_table(title, ["layer", *ratios], right=["layer", *ratios])
        for i, layer in enumerate(site.dataset["layer"].values):
            add_row(table, str(layer), *(f"{100 * values[i]:.1f} %" for values in ratios.values()))
        yield table
    rows = sources_of_tokens(site)
    if not rows:
        return
    own = [] if is_cross(site.kind) else ["itself"]
    title = f"What each token draws on most, mean over layers ({rows[0].measure}, share of its row)"
    table = new_table(title, ["token", *own, "others"], right=own)
    for row in rows[:_QUERIES]:
        others = ", ".join(f"{token} {100 * share:.1f} %" for token, share in row.others)
        itself = [f"{100 * row.itself:.1f} %"] if own else []
        add_row(table, row.token, *itself, others)
    yield table
    if len(rows) > _QUERIES:
        yield text(f"… and {len(rows) - _QUERIES} more tokens; --out writes all of them")


# ---- an explanation ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Term:
    """The term of one token or word."""

    text: str
    spaced: bool  # whether a space stands before it in the text
    position: int
    value: float


def terms_of(site: SiteExplanation, words: bool) -> list[Term]:
    """The terms of the tokens, or words, of one side, in the order of the text."""
    array = site["tokens"]
    own = array["key_word"].values.tolist()
    texts = readable_tokens([str(token) for token in array["key_token"].values])
    terms: list[Term] = []
    for i, (string, value) in enumerate(zip(texts, array.values.tolist(), strict=True)):
        begins = i == 0 or own[i] != own[i - 1]
        if words and not begins:
            last = terms.pop()
            terms.append(Term(last.text + string, last.spaced, last.position, last.value + value))
        else:
            terms.append(Term(string, i > 0 and begins, i, value))
    return terms


def biases_by_block(explanation: Explanation) -> dict[str, float]:
    """The biases, added over the layers."""
    biases: dict[str, float] = {}
    for arrays in explanation.sites.values():
        if "biases" in arrays:
            total = arrays["biases"].sum("layer")
            for block, value in zip(total["block"].values, total.values, strict=True):
                biases[str(block)] = biases.get(str(block), 0.0) + float(value)
    return biases


@dataclass(frozen=True)
class ExplanationTables:
    """An explanation as `rich` prints it: tokens or words."""

    explanation: Explanation
    words: bool = False

    def __rich_console__(self, console: Console, options: object) -> Iterator[RenderableType]:
        whole = self.explanation.sum_of_steps()
        sides = {kind: terms_of(whole.site(kind), self.words) for kind in whole.sites if kind != "cross"}
        yield text(_headline(whole), "bold")
        if whole is not self.explanation:
            yield _steps_table(self.explanation, self.words)
        largest = max((abs(term.value) for side in sides.values() for term in side), default=0.0)
        for kind, side in sides.items():
            label = f"{kind}: " if len(sides) > 1 else ""
            yield ""
            yield _coloured(console, label, side, largest)
        yield ""
        yield from _terms_table(sides, self.words)
        yield from _parts_tables(whole)
        yield from _heads_table(whole)
        yield text(_sum_line(whole, sides))
        if whole.warning:
            yield text(f"Note: {whole.warning}")
        yield text(self.explanation.provenance_line(), "dim")


def _parts_tables(explanation: Explanation) -> Iterator[RenderableType]:
    """Contributions of named sources and of messages, strongest first."""
    for axis, record, added in (
        ("source", "sources", explanation.by_source),
        ("message", "messages", explanation.by_message),
    ):
        if record not in explanation.provenance:
            continue
        terms = added().to_series().sort_values(key=abs, ascending=False)
        total = float(terms.abs().sum()) or 1.0
        yield text(f"Contribution of each {axis}, strongest first; share of the absolute sum", "italic")
        table = new_table("", [axis, "contribution", "share"], right=["contribution", "share"])
        for name, value in terms.items():
            add_row(table, str(name), f"{value:+.3f}", f"{100 * value / total:+.1f} %")
        yield table


def _headline(explanation: Explanation) -> str:
    record = explanation.provenance
    steps = record.get("steps")
    if record.get("direction"):
        what = "The last state along the direction"
    elif steps:
        what = f"The logits of {' '.join(repr(_as_written(step)) for step in steps)}, added"
    else:
        what = f"The logit of {_as_written(record.get('output'))!r}"
        if record.get("against") is not None:
            what += f" less that of {_as_written(record['against'])!r}"
    token = record.get("token_at_position")
    if token is not None and not steps:
        what += f" at {_as_written(token)!r} (position {record.get('position')})"
    line = f"{what}: {explanation.value:+.3f}"
    if explanation.probability is not None:
        line += f"; probability {100 * explanation.probability:.3g} %"
    if record.get("probability_against") is not None:
        line += f" against {100 * record['probability_against']:.3g} %"
    return line


def _as_written(token: Any) -> str:
    """A token as it stands in a text, its space included."""
    raw = str(token)
    string = readable_tokens([raw])[0]
    return f" {string}" if raw[:1] in ("Ġ", "▁") and len(raw) > 1 else string


def _coloured(console: Console, label: str, side: Sequence[Term], largest: float) -> Text:
    """The text coloured by signed terms, blue above zero, orange below; with numbers where there are no colours."""
    line = text(label)
    for term in side:
        if term.spaced:
            line.append(" ")
        share = term.value / largest if largest else 0.0
        if console.color_system:
            line.append(visible(term.text), style=_style_of_share(share))
        else:
            number = f"({term.value:+.2f})" if abs(share) >= _NOTABLE else ""
            line.append(visible(term.text) + number)
    return line


def _style_of_share(share: float) -> str:
    """The colours of a share between -1 and 1."""
    from normlens.plots.style import diverging

    red, green, blue = (round(255 * c) for c in diverging()(0.5 + 0.35 * share)[:3])  # its ends are nearly black
    ink = "black" if 0.3 * red + 0.59 * green + 0.11 * blue > 140 else "white"
    return f"{ink} on #{red:02x}{green:02x}{blue:02x}"


def _steps_table(explanation: Explanation, words: bool) -> Table:
    columns = ["step", "token", "logit", "probability", "largest contributions"]
    table = new_table("", columns, right=["step", "logit", "probability"])
    sides = [kind for kind in explanation.sites if kind != "cross"]
    chances = explanation.probability or [None] * explanation.value.size
    for i, value in enumerate(explanation.value.values.tolist()):
        terms = []
        for kind in sides:
            terms += terms_of(explanation.site(kind).at_step(i), words)
        strongest = sorted(terms, key=lambda term: -abs(term.value))[:3]
        token = repr(_as_written(explanation.value["output_token"].values[i]))
        chance = "" if chances[i] is None else f"{100 * chances[i]:.3g} %"
        most = ", ".join(f"{term.text} {term.value:+.2f}" for term in strongest)
        add_row(table, str(i + 1), token, f"{value:+.3f}", chance, most)
    return table


def _terms_table(sides: dict[str, list[Term]], words: bool) -> Iterator[RenderableType]:
    unit = "word" if words else "token"
    side_column = ["side"] if len(sides) > 1 else []
    yield text(f"Contribution of each {unit}, strongest first", "italic")
    table = new_table("", [*side_column, "position", unit, "contribution"], right=["position", "contribution"])
    ranked = [(kind, term) for kind, side in sides.items() for term in side]
    ranked.sort(key=lambda row: -abs(row[1].value))
    for kind, term in ranked[:_TERMS]:
        add_row(table, *([kind] if side_column else []), str(term.position), term.text, f"{term.value:+.3f}")
    rest = ranked[_TERMS:]
    if rest:
        total = sum(term.value for _, term in rest)
        add_row(table, *([""] if side_column else []), "", f"{len(rest)} others", f"{total:+.3f}")
    yield table


def _heads_table(explanation: Explanation) -> Iterator[RenderableType]:
    heads: list[tuple[float, str, int, int]] = []
    for kind, arrays in explanation.sites.items():
        if "heads" in arrays:
            array = arrays["heads"].transpose("layer", "head")
            for (i, j), value in np.ndenumerate(array.values):
                heads.append((float(value), kind, int(array["layer"][i]), int(array["head"][j])))
    if not heads:
        return
    site_column = ["site"] if len({kind for _, kind, _, _ in heads}) > 1 else []
    yield text("Contribution through each head, strongest first (heads overlap and do not add up)", "italic")
    table = new_table("", [*site_column, "layer", "head", "contribution"], right=["layer", "head", "contribution"])
    for value, kind, layer, head in sorted(heads, key=lambda row: -abs(row[0]))[: _TERMS // 2]:
        add_row(table, *([kind] if site_column else []), str(layer), str(head), f"{value:+.3f}")
    yield table


def _sum_line(explanation: Explanation, sides: dict[str, list[Term]]) -> str:
    """`tokens + biases = value`, where the biases come from, and the proof."""
    tokens = sum(term.value for side in sides.values() for term in side)
    biases = biases_by_block(explanation)
    named = "biases (not kept)"
    if biases:
        blocks = ", ".join(f"{block} {value:+.3f}" for block, value in biases.items())
        named = f"biases {sum(biases.values()):+.3f} ({blocks})"
    return (
        f"tokens {tokens:+.3f}, {named}: together {explanation.value:+.3f}; proof: at the entrance of every layer the sum "
        f"misses the number by at most {explanation.proof.gap:.0e} of the absolute terms"
    )
