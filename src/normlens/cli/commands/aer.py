"""`normlens aer`: score alignments against gold."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from normlens.cli.terminal import note, print_json, show
from normlens.errors import InputError

if TYPE_CHECKING:
    from normlens.alignment.scoring import Score


@dataclass(frozen=True)
class Written:
    """Format of links"""

    gold_one_based: Annotated[bool, typer.Option("--gold-one-based", help="The gold counts words from 1.")] = False
    gold_swap: Annotated[bool, typer.Option("--gold-swap", help="The gold is written target-source.")] = False
    one_based: Annotated[bool, typer.Option("--one-based", help="The hypotheses count words from 1.")] = False
    swap: Annotated[bool, typer.Option("--swap", help="The hypotheses are written target-source.")] = False


@dataclass(frozen=True)
class Scoring:
    """Scores"""

    worst: Annotated[int, typer.Option(min=0, help="How many of the worst sentence pairs to list.")] = 0
    samples: Annotated[
        int, typer.Option(min=0, max=100_000, help="Bootstrap samples for the 95 % intervals; 0 for none.")
    ] = 1000
    seed: Annotated[int, typer.Option(min=0, help="Seed of the bootstrap.")] = 1


def aer(
    hypotheses: Annotated[list[Path], typer.Argument(metavar="HYP...", help="Alignments, one line per sentence pair.")],
    gold: Annotated[Path, typer.Option(help="Gold alignments: Pharaoh, .talp or NAACL.")],
    written: Written,
    scoring: Scoring,
    source: Annotated[Path | None, typer.Option(help="Source sentences: every link is checked against them.")] = None,
    target: Annotated[Path | None, typer.Option(help="Target sentences: every link is checked against them.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Write one JSON object per hypothesis.")] = False,
) -> None:
    """Score word alignments: AER, precision, recall, link counts, confidence intervals.

    The orientation and the first index are never guessed: say `--swap`, `--one-based`, `--gold-one-based` where they
    hold, and give `--source` and `--target` to have every link checked against its sentences.
    """
    from normlens.alignment.formats import AlignmentFile, check_indices, read_alignments
    from normlens.alignment.scoring import corpus_counts, score

    if (source is None) != (target is None):
        raise InputError("--source and --target belong together; give both, or neither")
    sizes = None
    if source is not None and target is not None:
        from normlens.alignment.parallel_files import read_sentences

        sizes = list(zip(*([len(words) for words in read_sentences(path)] for path in (source, target)), strict=False))
    expected = len(sizes) if sizes else None
    truth = read_alignments(gold, one_based=written.gold_one_based, swap=written.gold_swap, sentences=expected)
    if sizes is not None:
        check_indices(truth, sizes, "--gold-")
    read: list[AlignmentFile] = []
    for path in hypotheses:
        lines = len(truth.lines)
        read.append(read_alignments(path, one_based=written.one_based, swap=written.swap, sentences=lines))
        if sizes is not None:
            check_indices(read[-1], sizes, "--")
    scores: list[Score] = []
    for file in read:
        scores.append(score(file, truth, **vars(scoring)))
        other_way = corpus_counts([line.swapped().possible for line in file.lines], truth.lines).aer
        if other_way < scores[-1].counts.aer - 0.2:
            note(f"{file.name} would have AER {100 * other_way:.1f} read the other way round; is --swap right?")
        if file.never_zero and not file.one_based:
            note(f"{file.name} never touches word 0; does it count from 1 (--one-based)?")
    if truth.never_zero and not truth.one_based:
        note(f"{truth.name} never touches word 0; does it count from 1 (--gold-one-based)?")
    for result in scores:
        if as_json:
            print_json(result.to_dict(), indent=None)
        else:
            show(_text(result))


def _text(result: Score) -> str:
    counts = result.counts

    def figure(name: str) -> str:
        text = f"{100 * getattr(counts, name):.2f}"
        if name in result.intervals:
            low, high = result.intervals[name]
            text += f" [{100 * low:.2f}, {100 * high:.2f}]"
        return text

    lines = [
        f"{result.name}: AER {figure('aer')}  precision {figure('precision')}  recall {figure('recall')}",
        f"  {counts.links} links, {counts.links_in_possible} possible, {counts.links_in_sure} of {counts.sure} sure",
    ]
    for sentence in result.worst:
        wrong = " ".join(f"{s}-{t}" for s, t in sorted(sentence.wrong)) or "none"
        missed = " ".join(f"{s}-{t}" for s, t in sorted(sentence.missed)) or "none"
        lines.append(f"  line {sentence.line}: AER {100 * sentence.counts.aer:.1f}, wrong {wrong}; missed {missed}")
    return "\n".join([*lines, f"  {result.signature}"])
