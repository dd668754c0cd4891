"""`make bench`: measure, print one table, write docs/performance.md and its picture."""

from __future__ import annotations

import argparse
import platform
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from matplotlib.figure import Figure
from rich.console import Console
from rich.table import Table

from benchmarks import corpus, engines, explain, images, speed
from normlens.plots import save_figure
from normlens.plots.series import Curve, Curves, plot_series
from normlens.plots.style import numbered_style
from normlens.provenance import versions

DOCS = Path(__file__).parent.parent / "docs"
#: What short texts may cost: see `speed.short_texts`.
SHORT = (2.0, 1.5, 1.4)


@dataclass(frozen=True)
class Row:
    """One line of the table."""

    case: str
    quantity: str
    measured: float
    target: float | None = None
    more_is_better: bool = False
    spread: speed.Spread | None = None  # of the rounds, where there are rounds: then the median was measured

    @classmethod
    def of(cls, case: str, quantity: str, spread: speed.Spread, target: float | None = None, more: bool = False) -> Row:
        """The median of some rounds."""
        return cls(case, quantity, spread.median, target, more, spread)

    @property
    def verdict(self) -> str:
        if self.target is None:
            return ""
        met = self.measured >= self.target if self.more_is_better else self.measured <= self.target
        return "met" if met else "not met"

    def cells(self) -> tuple[str, ...]:
        goal = "" if self.target is None else f"{'at least' if self.more_is_better else 'at most'} {self.target:g}"
        rounds = "" if self.spread is None else f"{self.spread.low:.2f} to {self.spread.high:.2f}"
        best = "" if self.spread is None else f"{self.spread.best:.2f}"
        return self.case, self.quantity, f"{self.measured:.2f}", rounds, best, goal, self.verdict


def rows(rounds: int, long: bool) -> list[Row]:
    """Everything but growth with length and heads."""
    found: list[Row] = []
    bert, llama = speed.bert(), speed.llama()
    for name, lens, shape, targets in (
        ("BERT-base 8 x 128", bert, (8, 128), (1.20, 1.18)),
        ("BERT-base 1 x 512", bert, (1, 512), (1.30, 1.25)),
        ("Llama-shaped 1 x 1024", llama, (1, 1024), (1.35, 1.25)),
    ):
        ratio = speed.ratios(lens, *shape, rounds)
        for key, quantity, target in (
            ("all", "five maps, five mixing ratios, f_norm", targets[0]),
            ("last", "attnresln_n and its mixing ratio", targets[1]),
            ("mixing", "mixing ratio alone", None),
        ):
            found.append(Row.of(name, quantity, ratio[key], target))
        at_1024 = ratio["mixing"].median
    case = "BERT-base 1 x 128, 4 layers"
    further = speed.through_feed_forward(speed.bert(4), 128, rounds)
    quantity = "mixing ratio through the feed-forward block"
    found.append(Row.of(case, quantity, further["ratio"], speed.RATIO_THROUGH_FEED_FORWARD))
    found.append(Row.of(case, "ffresln_n, the map", further["map"]))
    found.append(Row("BERT-base 1 x 512", "bare output_attentions=True", speed.attentions(bert, 1, 512, rounds)))
    del bert, llama
    maps, terms = images.ratios(rounds)
    found.append(Row.of("ViT-base 8 x 197", "five maps, five mixing ratios, f_norm", maps, images.MAPS))
    found.append(Row.of("ViT-base 8 x 197", "explain, tokens, over gradient x input", terms, images.TERMS))
    faster = speed.against_materializing(rounds)
    found.append(Row("BERT-base 1 x 128, per layer", "times faster than materializing", faster, 40.0, True))
    extra = speed.peaks("bert-all") - speed.peaks("bert-plain")
    found.append(Row("BERT-base 1 x 512, streamed", "peak extra memory, MB", extra, 250.0))
    for (case, spread), target in zip(speed.short_texts(rounds).items(), SHORT, strict=True):
        found.append(Row.of(case, "analyze, five maps, processor time", spread, target))
    for case, name in speed.FIRST.items():
        found.append(Row.of(name, "first analysis, processor time", speed.first_call(case), 4.0))
    if long:
        child = speed.in_process("llama-8192")
        found.append(Row("Llama-shaped 1 x 8192", "mixing ratio alone, peak GB", child["peak"] / 1024, 12.0))
        found.append(Row("Llama-shaped 1 x 8192", "mixing ratio alone", child["ratio"]))
        found.append(Row("Llama-shaped 8192 over 1024", "growth of that ratio", child["ratio"] / at_1024, 1.2))
    found += explained_rows(max(3, rounds // 5), long)
    clock = corpus.throughput(rounds)["clock"]
    found.append(Row("corpus, BERT-base 8 x 128", "throughput over the plain forward pass", clock, corpus.TARGET, True))
    found += engine_rows()
    flat = corpus.peak(2000) / corpus.peak(100)
    found.append(Row("corpus, 2,000 over 100 sequences", "growth of peak memory", flat, 1.05))
    return found


def engine_rows() -> list[Row]:
    """What a driver has to do while others count."""
    found: list[Row] = []
    for engine in ("pool", "ray"):
        cost, case = engines.costs(engine), f"corpus, {engine} of 2, 600 and 1,200 sequences"
        most = 1000 * engines.RANGE_SECONDS / engines.WORKERS  # what 500 workers leave the driver for a range
        found.append(Row(case, "processor time of the driver per range, ms", 1000 * cost.per_range, most))
    return found


def explained_rows(rounds: int, long: bool) -> list[Row]:
    """What an explanation costs, over gradient x input."""
    found: list[Row] = []
    for name, build, shape in explain.SHAPES:
        for work, spread in explain.ratios(build(12), explain.batch(*shape), rounds).items():
            quantity = f"{explain.WHAT[work]}, over gradient x input"
            found.append(Row.of(name, quantity, spread, explain.PROMISED[work]))
    faster = explain.against_materialized(rounds)
    quantity = "explain, times faster than materializing"
    found.append(Row.of("BERT-base 1 x 128", quantity, faster, explain.FASTER, True))
    if long:
        peak = explain.peak(explain.LONG)
        found.append(Row(f"Llama-shaped 1 x {explain.LONG}", "explain, tokens, peak GB", peak, explain.PROMISED_PEAK))
    return found


def growth(rounds: int) -> tuple[dict[int, dict[str, speed.Spread]], dict[int, dict[str, speed.Spread]]]:
    """Ratios by length (4 layers) and by number of heads (at 256 tokens)."""
    lens = speed.bert(4)
    lengths = (64, 128, 256, 512, 1024, 2048, 4096)
    # A short pass is over before a disturbance is: it takes more rounds to see it once without one.
    by_length = {length: speed.ratios(lens, 1, length, rounds * max(1, 4096 // length)) for length in lengths}
    by_heads = {heads: speed.ratios(speed.bert(4, heads), 1, 256, 10 * rounds) for heads in (4, 8, 12, 24, 48)}
    return by_length, by_heads


def draw(by_length: dict[int, dict[str, speed.Spread]], by_heads: dict[int, dict[str, speed.Spread]]) -> Figure:
    """Cost against length and against heads."""
    kinds = {"all": "five maps", "last": "attnresln_n", "mixing": "mixing ratio alone"}
    panels = [
        Curves(
            title,
            "cost / plain forward pass",
            tuple(
                Curve(numbered_style(label, number), np.array([ratio[name].best for ratio in data.values()]))
                for number, (name, label) in enumerate(kinds.items())
            ),
            level=1.0,
            places=tuple(str(key) for key in data),
            x=axis,
        )
        for title, data, axis in (("by length", by_length, "tokens"), ("by heads", by_heads, "heads (256 tokens)"))
    ]
    line = (
        f"BERT-base width, 4 layers, {speed.THREADS} threads · normlens {versions()['normlens']}, "
        f"torch {versions()['torch']}"
    )
    return plot_series(panels, (), "", shared=True, size=(3.3, 2.2), provenance=line)


def main() -> None:
    """Measure and report."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--no-long", action="store_true", help="leave out the 8,192-token case")
    parser.add_argument("--no-growth", action="store_true", help="leave out growth with length and heads")
    arguments = parser.parse_args()
    torch.set_num_threads(speed.THREADS)
    found = rows(arguments.rounds, not arguments.no_long)
    head = ("case", "quantity", "measured", "middle half", "best", "target", "")
    table = Table(*head)
    lines = [f"| {' | '.join(head)} |", "|" + "---|" * len(head)]
    for row in found:
        table.add_row(*row.cells())
        lines.append(f"| {' | '.join(row.cells())} |")
    Console().print(table)
    text = [
        "# What an analysis costs",
        "",
        "Written by `make bench`. Ratios to the model's own plain forward pass (SDPA, no extra outputs; explain: to plain",
        "gradient x input), measured in turns",
        f"in one run: the median of {arguments.rounds} rounds' own ratios, between which values the middle half of them "
        "lies, and the best time over the best. Two threads (processor time: one), random weights, the proof included. "
        f"Machine: {platform.machine()}, torch {versions()['torch']}, transformers {versions()['transformers']}.",
        "",
        *lines,
        "",
    ]
    if not arguments.no_growth:
        save_figure(draw(*growth(max(2, arguments.rounds // 15))), DOCS / "images" / "performance")
        text += ["![cost by length and heads](images/performance.png)", ""]
    notes = DOCS / "performance_notes.md"
    if notes.exists():
        text += [notes.read_text().strip(), ""]
    (DOCS / "performance.md").write_text("\n".join(text))


if __name__ == "__main__":
    main()
