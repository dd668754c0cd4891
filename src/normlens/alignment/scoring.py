"""Alignment error rate with its confidence interval, its worst sentences and the signature of its settings.

With sure links S, possible links P ⊇ S and hypothesis A (Och and Ney 2003):

    precision = |A ∩ P| / |A|    recall = |A ∩ S| / |S|    AER = 1 - (|A ∩ S| + |A ∩ P|) / (|A| + |S|)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Int

from normlens.alignment.formats import AlignmentFile
from normlens.alignment.links import Annotation, Links
from normlens.errors import InputError
from normlens.provenance import version_of
from normlens.types import Json

_DRAWN_AT_ONCE = 1 << 24  # numbers


@dataclass(frozen=True)
class Counts:
    """The counts behind AER; counts of any split of a corpus add up to the counts of the whole.

    >>> Counts.of(frozenset({(0, 0), (1, 0)}), Annotation.of([(0, 0)])).aer
    0.33333333333333337
    """

    links: int = 0
    sure: int = 0
    links_in_sure: int = 0
    links_in_possible: int = 0

    @classmethod
    def of(cls, hypothesis: Links, gold: Annotation) -> Counts:
        """Count one sentence pair."""
        return cls(len(hypothesis), len(gold.sure), len(hypothesis & gold.sure), len(hypothesis & gold.possible))

    def __add__(self, other: Counts) -> Counts:
        return Counts(
            self.links + other.links,
            self.sure + other.sure,
            self.links_in_sure + other.links_in_sure,
            self.links_in_possible + other.links_in_possible,
        )

    @property
    def precision(self) -> float:
        """Share of the links that are possible; not a number where there is no link."""
        return self.links_in_possible / self.links if self.links else float("nan")

    @property
    def recall(self) -> float:
        """Share of the sure links that were found; not a number where there is none."""
        return self.links_in_sure / self.sure if self.sure else float("nan")

    @property
    def aer(self) -> float:
        """Alignment error rate; not a number where neither side has a link."""
        if not self.links + self.sure:
            return float("nan")
        return 1 - (self.links_in_sure + self.links_in_possible) / (self.links + self.sure)

    @property
    def errors(self) -> int:
        """Links that are not even possible, and sure links that are missing."""
        return self.links - self.links_in_possible + self.sure - self.links_in_sure


@dataclass(frozen=True)
class SentenceScore:
    """One sentence pair's part in the score; `line` counts from 1, as editors do."""

    line: int
    counts: Counts
    wrong: Links
    missed: Links


@dataclass(frozen=True)
class Score:
    """The score of one hypothesis file, in shares (not per cent), with what it rests on."""

    name: str
    counts: Counts
    intervals: dict[str, tuple[float, float]]
    worst: tuple[SentenceScore, ...]
    signature: str

    def to_dict(self) -> Json:
        """Everything as plain JSON values."""
        return {
            "name": self.name,
            "aer": self.counts.aer,
            "precision": self.counts.precision if self.counts.links else None,
            "recall": self.counts.recall,
            "links": self.counts.links,
            "sure": self.counts.sure,
            "links_in_sure": self.counts.links_in_sure,
            "links_in_possible": self.counts.links_in_possible,
            "intervals": {name: list(interval) for name, interval in self.intervals.items()},
            "worst": [
                {
                    "line": sentence.line,
                    "aer": sentence.counts.aer,
                    "wrong": sorted(map(list, sentence.wrong)),
                    "missed": sorted(map(list, sentence.missed)),
                }
                for sentence in self.worst
            ],
            "signature": self.signature,
        }


def corpus_counts(hypotheses: Sequence[Links], gold: Sequence[Annotation]) -> Counts:
    """Counts of a whole corpus; its `aer` is that of the corpus, not the mean over sentences."""
    _check_lengths(hypotheses, gold, "the hypothesis")
    total = sum((Counts.of(h, g) for h, g in zip(hypotheses, gold, strict=True)), Counts())
    if not total.sure:
        raise InputError(f"the {len(gold)} gold lines have no sure link, which AER needs")
    return total


def score(
    hypothesis: AlignmentFile, gold: AlignmentFile, *, samples: int = 1000, seed: int = 1, worst: int = 5
) -> Score:
    """Score a hypothesis; its possible links count as links, since an aligner that writes one means it.

    Args:
        hypothesis: The links to score.
        gold: The reference.
        samples: Bootstrap samples for the 95 % intervals; 0: none.
        seed: The seed of the bootstrap.
        worst: The number of worst pairs to list.
    """
    links = [line.possible for line in hypothesis.lines]
    _check_lengths(links, gold.lines, hypothesis.name)
    total = corpus_counts(links, gold.lines)
    sentences = [Counts.of(h, g) for h, g in zip(links, gold.lines, strict=True)]
    intervals = bootstrap(sentences, samples=samples, seed=seed) if samples else {}
    order = sorted(range(len(links)), key=lambda i: (-sentences[i].errors, -np.nan_to_num(sentences[i].aer), i))
    return Score(
        hypothesis.name,
        total,
        intervals,
        tuple(
            SentenceScore(i + 1, sentences[i], links[i] - gold.lines[i].possible, gold.lines[i].sure - links[i])
            for i in order[:worst]
            if sentences[i].errors
        ),
        signature(hypothesis, gold, samples, seed),
    )


def bootstrap(sentences: Sequence[Counts], *, samples: int, seed: int) -> dict[str, tuple[float, float]]:
    """95 % percentile intervals from sentences drawn with replacement; the same seed draws the same sentences."""
    table: Int[np.ndarray, "sentence count"] = np.array(
        [(c.links, c.sure, c.links_in_sure, c.links_in_possible) for c in sentences]
    )
    generator = np.random.default_rng(seed)
    share = np.full(len(table), 1 / len(table))
    at_once = max(1, _DRAWN_AT_ONCE // len(table))
    scores: list[Counts] = []
    while len(scores) < samples:  # piece by piece: all draws of a large corpus would not fit into memory
        drawn = generator.multinomial(len(table), share, size=min(at_once, samples - len(scores))) @ table
        scores += [Counts(*map(int, row)) for row in drawn]
    intervals = {}
    for name in ("aer", "precision", "recall"):
        low, high = np.nanpercentile([getattr(one, name) for one in scores], [2.5, 97.5])
        intervals[name] = float(low), float(high)
    return intervals


def signature(hypothesis: AlignmentFile, gold: AlignmentFile, samples: int, seed: int) -> str:
    """One line that says how a score was made, so that two scores can be compared (after sacreBLEU)."""

    def file(which: AlignmentFile) -> str:
        return f"{which.name},{which.format},base:{int(which.one_based)}" + (",swapped" if which.swapped else "")

    sure = sum(len(line.sure) for line in gold.lines)
    possible = sum(len(line.possible - line.sure) for line in gold.lines)
    return (
        f"aer|gold:{file(gold)}|hyp:{file(hypothesis)}|lines:{len(gold.lines)}|sure:{sure}|possible-only:{possible}"
        f"|bootstrap:{samples},seed:{seed},sentences,percentile|normlens:{version_of('normlens')}"
    )


def _check_lengths(hypotheses: Sequence[Links], gold: Sequence[Annotation], name: str) -> None:
    if len(hypotheses) != len(gold):
        raise InputError(
            f"{name} has {len(hypotheses)} lines, the gold has {len(gold)}; write an empty line for a sentence "
            "pair without links"
        )
