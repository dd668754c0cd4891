"""Projection of marked phrases against a key made by hand: a hundred sentences of the Hansards, one phrase each.

    python -m benchmarks.projection --model opus-mt-en-fr --reverse-model opus-mt-fr-en --source test.en --target test.fr

`projection_key.txt` names a line, the words of an English phrase and the words of its French counterpart, by numbers
alone: the sentences are not ours. The phrases were chosen before anything was projected; where an article or a partitive
may belong to the phrase or not, the key has both. Printed are the phrases that come out exactly, the F1 of their words
(the better one where there are two), how many came out in more than one piece or not at all, and what the scores say:
the share of exact ones among the surest and the least sure half.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import NamedTuple

from normlens.alignment.aligner import Aligner, spaced
from normlens.alignment.marked_text import Mark, MarkedText, ProjectedText
from normlens.alignment.parallel_files import read_parallel
from normlens.inputs.words import Span, spaced_spans
from normlens.lens import load

KEY = Path(__file__).with_name("projection_key.txt")


class Phrase(NamedTuple):
    """One line of the key: words from first to last, both included."""

    line: int
    source: Span
    targets: tuple[Span, ...]


class Result(NamedTuple):
    """What became of one phrase."""

    phrase: Phrase
    found: tuple[Span, ...]
    score: float

    @property
    def exact(self) -> bool:
        """Whether it came out in one piece, exactly."""
        return len(self.found) == 1 and self.found[0] in self.phrase.targets

    @property
    def f1(self) -> float:
        """F1 of its words, against the better of the key's answers."""
        mine = {word for first, last in self.found for word in range(first, last + 1)}
        best = 0.0
        for first, last in self.phrase.targets:
            right = set(range(first, last + 1))
            best = max(best, 2 * len(mine & right) / (len(mine) + len(right)))
        return best


def read_key(path: Path = KEY) -> list[Phrase]:
    """The phrases of the key."""
    found = []
    for line in path.read_text(encoding="utf-8").splitlines():
        if not line.startswith("#"):
            number, source, targets = line.split()
            found.append(Phrase(int(number), _span(source), tuple(map(_span, targets.split("/")))))
    return found


def _span(text: str) -> Span:
    first, last = map(int, text.split("-"))
    return first, last


def marked(sentence: str, phrase: Phrase) -> MarkedText:
    """The sentence with its phrase as an element."""
    words = spaced_spans(sentence)
    first, last = phrase.source
    return MarkedText(sentence, (Mark(words[first][0], words[last][1], "b", "<b>", "</b>"),))


def words_of(projected: ProjectedText) -> tuple[Span, ...]:
    """The pieces as words, first and last."""
    words = spaced_spans(projected.text)
    found = []
    for piece in projected.walk():
        inside = [i for i, (start, end) in enumerate(words) if start < piece.end and end > piece.start]
        if inside:
            found.append((inside[0], inside[-1]))
    return tuple(found)


def measure(aligner: Aligner, pairs: list[tuple[str, str]], pieces: str = "one") -> list[Result]:
    """Project every phrase of the key; the layers are chosen on these sentences."""
    phrases = read_key()
    chosen = [pairs[phrase.line - 1] for phrase in phrases]
    aligner.choose_layers([tuple(spaced(text, spaced_spans(text)) for text in pair) for pair in chosen])  # type: ignore[misc]
    texts = [(marked(source, phrase), target) for phrase, (source, target) in zip(phrases, chosen, strict=True)]
    projected = aligner.project(texts, words="spaces", pieces=pieces)  # type: ignore[arg-type]
    return [
        Result(phrase, words_of(found), max((piece.score for piece in found.walk()), default=0.0))
        for phrase, found in zip(phrases, projected, strict=True)
    ]


def summary(results: list[Result]) -> dict[str, float]:
    """The figures of the docstring."""
    count = len(results)
    order = sorted(results, key=lambda result: -result.score)
    sure, unsure = order[: count // 2], order[count // 2 :]
    return {
        "phrases": count,
        "exact": sum(result.exact for result in results) / count,
        "f1": sum(result.f1 for result in results) / count,
        "in_pieces": sum(len(result.found) > 1 for result in results),
        "lost": sum(not result.found for result in results),
        "exact_of_surest_half": sum(result.exact for result in sure) / len(sure),
        "exact_of_least_sure_half": sum(result.exact for result in unsure) / len(unsure),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True)
    parser.add_argument("--reverse-model")
    parser.add_argument("--source", type=Path, required=True)
    parser.add_argument("--target", type=Path, required=True)
    parser.add_argument("--pieces", default="one")
    parser.add_argument("--wrong", action="store_true", help="list the phrases that did not come out exactly")
    options = parser.parse_args()
    pairs = list(read_parallel(options.source, options.target))
    aligner = Aligner(load(options.model), load(options.reverse_model) if options.reverse_model else None)
    started = time.process_time()
    results = measure(aligner, pairs, options.pieces)
    figures = summary(results) | {"processor_seconds": round(time.process_time() - started, 1)}
    print(json.dumps({name: round(value, 3) for name, value in figures.items()}))
    if options.wrong:
        for result in results:
            if not result.exact:
                print(
                    f"line {result.phrase.line}: {result.found}, key {result.phrase.targets}, score {result.score:.2f}"
                )


if __name__ == "__main__":
    main()
