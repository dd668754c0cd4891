"""Aligners beside each other on one test set: error rate, sentences per processor second, memory.

    python -m benchmarks.aligners --source test.en --target test.fr --gold alignment.talp --gold-one-based --first 300 \\
        --model opus-mt-en-fr --reverse-model opus-mt-fr-en --encoder t5-small --eflomal eflomal-align

Each tool is a process of its own, with its models loaded in it. Its seconds are those of its processor, loading included,
and its memory is the most that the process held. `--encoder` is a multilingual encoder for SimAlign's method (Jalili Sabet
et al. 2020): the states of both sentences at two thirds of its depth, cosine similarity, mutual arg-maxes of subwords
(`inter`), and those of what they leave, once more (`itermax`). `--eflomal` and `--fast-align` are commands.
`--documents 30` joins so many pairs to one, which is then beyond most models' length.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from subprocess import DEVNULL, Popen
from typing import Any

import numpy as np

from normlens.alignment.formats import read_alignments
from normlens.alignment.links import Annotation, Link, Links
from normlens.alignment.scoring import Counts
from normlens.alignment.symmetrize import symmetrize
from normlens.inputs.segmentation import Segmenter, split_words


def simalign(encoder: str, source: Path, target: Path, out: Path) -> None:
    """SimAlign's method with any encoder; writes `out.inter` and `out.itermax`."""
    import torch
    from transformers import AutoModel, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(encoder)
    model = AutoModel.from_pretrained(encoder).eval()
    body = model.get_encoder() if model.config.is_encoder_decoder else model
    segment = Segmenter(tokenizer)
    depth = round(2 / 3 * model.config.num_hidden_layers)

    def states(line: str) -> tuple[list[int], np.ndarray]:
        """Each subword's word, and the subwords' states of length 1."""
        text = segment(line)
        ids = torch.tensor([[*segment.prefix, *text.ids, *segment.suffix]])
        with torch.inference_mode():
            found = body(input_ids=ids, output_hidden_states=True).hidden_states[depth][0]
        found = found[len(segment.prefix) : len(segment.prefix) + len(text.ids)].numpy()
        owner = {place: word for word, places in enumerate(text.spans) for place in places}
        return [owner[place] for place in range(len(text.ids))], found / np.linalg.norm(found, axis=-1, keepdims=True)

    lines: dict[str, list[str]] = {"inter": [], "itermax": []}
    for one, other in zip(_lines(source), _lines(target), strict=True):
        (words, left), (others, right) = states(one), states(other)
        likeness = (left @ right.T + 1) / 2
        first = _mutual(likeness)
        again = likeness * np.where(first.any(1, keepdims=True) & first.any(0, keepdims=True), 0, 1)
        again *= np.where(first.any(1, keepdims=True) | first.any(0, keepdims=True), 0.9, 1)
        for name, cells in (("inter", first), ("itermax", first | _mutual(again))):
            links = {(words[s], others[t]) for s, t in np.argwhere(cells)}
            lines[name].append(" ".join(f"{s}-{t}" for s, t in sorted(links)))
    for name, rows in lines.items():
        out.with_suffix(f".{name}").write_text("\n".join(rows) + "\n")


def _mutual(values: np.ndarray) -> np.ndarray:
    best = np.zeros(values.shape, bool)
    best[np.arange(len(values)), values.argmax(1)] = True
    other = np.zeros(values.shape, bool)
    other[values.argmax(0), np.arange(values.shape[1])] = True
    return best & other & (values > 0)


def measured(command: Sequence[str], stdout: Path | None = None) -> tuple[float, float]:
    """Run one command: its processor seconds, and the most memory that it held, in MB."""
    with (stdout or Path(os.devnull)).open("w") as stream:
        process = Popen(list(command), stdout=stream, stderr=DEVNULL)
        _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"{command[0]} ended with {process.returncode}: {' '.join(command)}")
    return usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024


def scored(path: Path, gold: Sequence[Annotation], joined_with: Path | None = None) -> Counts:
    """The counts of a file of links; with another direction's, both are symmetrized."""
    rows: list[Links] = [line.possible for line in read_alignments(path).lines]
    if joined_with is not None:
        others = [line.possible for line in read_alignments(joined_with).lines]
        rows = [symmetrize("grow-diag-final-and", one, other) for one, other in zip(rows, others, strict=True)]
    total = Counts.of(rows[0], gold[0])
    for row, reference in zip(rows[1:], gold[1:], strict=True):
        total = total + Counts.of(row, reference)
    return total


def joined_links(gold: Sequence[Annotation], texts: Sequence[Sequence[str]], size: int) -> list[Annotation]:
    """The links of lines that are joined, so many to one."""
    found = []
    for some in _groups(list(zip(gold, *texts, strict=True)), size):
        sure: set[Link] = set()
        possible: set[Link] = set()
        first = other = 0
        for links, source, target in some:
            sure |= {(s + first, t + other) for s, t in links.sure}
            possible |= {(s + first, t + other) for s, t in links.possible}
            first, other = first + len(split_words(source)), other + len(split_words(target))
        found.append(Annotation.of(sure, possible))
    return found


def _groups(items: Sequence[Any], size: int) -> list[Sequence[Any]]:
    return [items[start : start + size] for start in range(0, len(items), size)]


def _lines(path: Path) -> list[str]:
    return path.read_text(encoding="utf-8").split("\n")[:-1]


def main() -> None:
    """Run all tools that are given, one after the other, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("source", "target", "gold"):
        parser.add_argument(f"--{name}", type=Path, required=True)
    parser.add_argument("--gold-one-based", action="store_true")
    parser.add_argument("--first", type=int, help="only so many pairs, from the beginning")
    for name in ("model", "reverse-model", "encoder", "eflomal", "fast-align"):
        parser.add_argument(f"--{name}")
    parser.add_argument("--skip", type=int, default=0, help="without so many pairs at the beginning of those")
    parser.add_argument("--documents", type=int, default=1, help="pairs to be joined to one line")
    parser.add_argument("--simalign-only", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.simalign_only:
        simalign(given.encoder, given.source, given.target, given.simalign_only)
        return
    folder = Path(tempfile.mkdtemp())
    chosen = slice(given.skip, given.first)
    gold = read_alignments(given.gold, one_based=given.gold_one_based).lines[chosen]
    texts = [_lines(path)[chosen] for path in (given.source, given.target)]
    sentences = len(gold)
    gold = joined_links(gold, texts, given.documents)
    source, target, both = folder / "source", folder / "target", folder / "both"
    for path, lines in zip((source, target), texts, strict=True):
        path.write_text("".join(f"{' '.join(some)}\n" for some in _groups(lines, given.documents)), encoding="utf-8")
    both.write_text("".join(f"{one} ||| {other}\n" for one, other in zip(_lines(source), _lines(target), strict=True)))

    def row(name: str, counts: Counts, cost: tuple[float, float]) -> None:
        print(
            f"| {name} | {100 * counts.precision:.1f} | {100 * counts.recall:.1f} | {100 * counts.aer:.2f} | "
            f"{sentences / cost[0]:.1f} | {cost[1]:.0f} |",
            flush=True,
        )

    print(f"{sentences} pairs on {len(gold)} lines\n")
    print("| tool | precision | recall | AER | sentences per processor second | MB |\n|---|---|---|---|---|---|")
    if given.eflomal:
        forward, reverse = folder / "forward", folder / "reverse"
        cost = measured([given.eflomal, "-s", str(source), "-t", str(target), "-f", str(forward), "-r", str(reverse)])
        row("eflomal, forward", scored(forward, gold), cost)
        row("eflomal, symmetrized", scored(forward, gold, reverse), cost)
    if given.fast_align:
        forward, reverse = folder / "fast", folder / "fast_reverse"
        options = [given.fast_align, "-i", str(both), "-d", "-o", "-v"]
        one, other = measured(options, forward), measured([*options, "-r"], reverse)
        row("fast_align, symmetrized", scored(forward, gold, reverse), (one[0] + other[0], max(one[1], other[1])))
    if given.encoder:
        again = ["--source", str(source), "--target", str(target), "--gold", str(given.gold)]
        own = [sys.executable, "-m", "benchmarks.aligners", *again, "--encoder", given.encoder]
        cost = measured([*own, "--simalign-only", str(folder / "similar")])
        for name in ("inter", "itermax"):
            row(f"SimAlign's {name}, {Path(given.encoder).name}", scored(folder / f"similar.{name}", gold), cost)
    if given.model:
        os.environ["NORMLENS_CACHE"] = str(folder)  # layers are chosen anew, as on a first run
        command = [sys.executable, "-c", "from normlens.cli.main import main; main()", "align", "--source", str(source)]
        command += ["--target", str(target), "--model", given.model, "--out"]
        cost = measured([*command, str(folder / "one")])
        row(f"normlens, {Path(given.model).name}", scored(folder / "one", gold), cost)
        if given.reverse_model:
            cost = measured([*command, str(folder / "two"), "--reverse-model", given.reverse_model])
            row("normlens, both directions", scored(folder / "two", gold), cost)


if __name__ == "__main__":
    main()
