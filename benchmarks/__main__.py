"""`make bench`: measure, print one table, write docs/performance.md and its picture."""

from __future__ import annotations

import argparse
import platform
from pathlib import Path

import torch
from matplotlib.figure import Figure
from rich.console import Console
from rich.table import Table

from benchmarks import corpus, speed
from normlens.plots import save_figure
from normlens.provenance import versions

DOCS = Path(__file__).parent.parent / "docs"


def rows(rounds: int, long: bool) -> list[tuple[str, str, float, float | None, bool]]:
    """(case, quantity, measured, target, whether more is better)."""
    found: list[tuple[str, str, float, float | None, bool]] = []
    bert, llama = speed.bert(), speed.llama()
    for name, lens, shape, targets in (
        ("BERT-base 8 x 128", bert, (8, 128), (1.25, 1.18)),
        ("BERT-base 1 x 512", bert, (1, 512), (1.35, 1.25)),
        ("Llama-shaped 1 x 1024", llama, (1, 1024), (1.35, 1.25)),
    ):
        ratio = speed.ratios(lens, *shape, rounds)
        found.append((name, "five maps, five mixing ratios, f_norm", ratio["all"], targets[0], False))
        found.append((name, "attnresln_n and its mixing ratio", ratio["last"], targets[1], False))
        found.append((name, "mixing ratio alone", ratio["mixing"], None, False))
        at_1024 = ratio["mixing"]
    found.append(
        ("BERT-base 1 x 512", "bare output_attentions=True", speed.attentions(bert, 1, 512, rounds), None, False)
    )
    del bert, llama
    faster = speed.against_materializing(rounds)
    found.append(("BERT-base 1 x 128, per layer", "times faster than materializing", faster, 40.0, True))
    extra = speed.peaks("bert-all") - speed.peaks("bert-plain")
    found.append(("BERT-base 1 x 512, streamed", "peak extra memory, MB", extra, 250.0, False))
    first = speed.first_call()
    found.append(
        ("BERT-shaped 4 layers, 1 x 24", "first analysis over first forward pass", first["ratio"], None, False)
    )
    if long:
        child = speed.in_process("llama-8192")
        found.append(("Llama-shaped 1 x 8192", "mixing ratio alone, peak GB", child["peak"] / 1024, 12.0, False))
        share = child["ratio"] / at_1024
        found.append(("Llama-shaped 1 x 8192", "mixing ratio alone", child["ratio"], None, False))
        found.append(("Llama-shaped 8192 over 1024", "growth of that ratio", share, 1.2, False))
    throughput = corpus.throughput(rounds)
    found.append(
        (
            "corpus, BERT-base 8 x 128",
            "throughput over the plain forward pass",
            throughput["clock"],
            corpus.TARGET,
            True,
        )
    )
    flat = corpus.peak(2000) / corpus.peak(100)
    found.append(("corpus, 2,000 over 100 sequences", "growth of peak memory", flat, 1.05, False))
    return found


def growth(rounds: int) -> tuple[dict[int, dict[str, float]], dict[int, dict[str, float]]]:
    """Ratios by length (4 layers) and by number of heads (at 256 tokens)."""
    lens = speed.bert(4)
    lengths = (64, 128, 256, 512, 1024, 2048, 4096)
    # A short pass is over before a disturbance is: it takes more rounds to see it once without one.
    by_length = {length: speed.ratios(lens, 1, length, rounds * max(1, 4096 // length)) for length in lengths}
    by_heads = {heads: speed.ratios(speed.bert(4, heads), 1, 256, 10 * rounds) for heads in (4, 8, 12, 24, 48)}
    return by_length, by_heads


def draw(by_length: dict[int, dict[str, float]], by_heads: dict[int, dict[str, float]]) -> Figure:
    """Cost against length and against heads."""
    figure = Figure(figsize=(9, 3.6), layout="constrained")
    left, right = figure.subplots(1, 2, sharey=True)
    styles = (("all", "five maps", "o"), ("last", "attnresln_n", "s"), ("mixing", "mixing ratio alone", "^"))
    for ax, data, label in ((left, by_length, "tokens"), (right, by_heads, "heads (256 tokens)")):
        for name, title, marker in styles:
            ax.plot(list(data), [ratio[name] for ratio in data.values()], marker=marker, label=title)
        ax.axhline(1, color="0.6", linewidth=0.8)
        ax.set_xscale("log", base=2)
        ax.set_xticks(list(data), [str(key) for key in data])
        ax.set_xlabel(label)
        ax.spines[["top", "right"]].set_visible(False)
    left.set_ylabel("cost / plain forward pass")
    left.legend(frameon=False)
    figure.suptitle("What an analysis costs (BERT-base width, 4 layers, 2 threads)", fontsize=11)
    return figure


def main() -> None:
    """Measure and report."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--no-long", action="store_true", help="leave out the 8,192-token case")
    parser.add_argument("--no-growth", action="store_true", help="leave out growth with length and heads")
    arguments = parser.parse_args()
    torch.set_num_threads(speed.THREADS)
    found = rows(arguments.rounds, not arguments.no_long)
    table = Table("case", "quantity", "measured", "target", "")
    lines = ["| case | quantity | measured | target | |", "|---|---|---|---|---|"]
    for case, quantity, value, target, more in found:
        met = "" if target is None else "met" if (value >= target if more else value <= target) else "not met"
        goal = "" if target is None else f"{'at least' if more else 'at most'} {target:g}"
        table.add_row(case, quantity, f"{value:.2f}", goal, met)
        lines.append(f"| {case} | {quantity} | {value:.2f} | {goal} | {met} |")
    Console().print(table)
    text = [
        "# What an analysis costs",
        "",
        "Written by `make bench`. Ratios to the model's own plain forward pass (SDPA, no extra outputs), measured in turns",
        f"in one run, best of {arguments.rounds}, two threads, random weights, the proof included. "
        f"Machine: {platform.machine()}, torch {versions()['torch']}, transformers {versions()['transformers']}.",
        "",
        *lines,
        "",
    ]
    if not arguments.no_growth:
        save_figure(draw(*growth(max(2, arguments.rounds // 6))), DOCS / "images" / "performance")
        text += ["![cost by length and heads](images/performance.png)", ""]
    notes = DOCS / "performance_notes.md"
    if notes.exists():
        text += [notes.read_text().strip(), ""]
    (DOCS / "performance.md").write_text("\n".join(text))


if __name__ == "__main__":
    main()
