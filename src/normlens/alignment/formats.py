"""Reading and writing alignments: Pharaoh, `.talp` and NAACL/WPT, with an error instead of a guess.

| format | one line | first word is |
|---|---|---|
| Pharaoh | `0-0 1-2`: all links of a pair | 0, or 1 where the caller says so |
| talp | `1-1 2p3`: the same, `p` (or `?`) marks a possible link | 0, or 1 where the caller says so |
| NAACL | `12 4 5 S 0.9`: sentence, link; kind and confidence may be left out | 1 by definition; 0 is NULL |

talp holds Pharaoh, so only NAACL has to be told apart, and no line can be read as both.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from normlens.alignment.links import Annotation, Link, Links
from normlens.alignment.parallel_files import read_lines
from normlens.errors import InputError

# Numbers of at most nine digits: no sentence has a word 10^9. A score may follow, as `--scores` writes it.
_LINK = re.compile(r"([0-9]{1,9})([-p?])([0-9]{1,9})(?::[-+.0-9eE]+)?")
_NAACL = re.compile(r"\s*([0-9]{1,9})\s+([0-9]{1,9})\s+([0-9]{1,9})(?:\s+([SP]))?(?:\s+[-+.0-9eE]+)?\s*")
_MOST_SENTENCES = 1_000_000  # in a NAACL file, where one line can number a sentence far beyond all others


@dataclass(frozen=True)
class AlignmentFile:
    """The contents of a file of alignments, one `Annotation` per sentence pair, and how it was read."""

    name: str
    format: str
    one_based: bool
    swapped: bool
    lines: tuple[Annotation, ...]

    @property
    def never_zero(self) -> bool:
        """Return True if no link touches word 0 on either side, which suggests a file that counts from 1."""
        links = [link for line in self.lines for link in line.possible]
        return len(links) > 0 and all(source > 0 and target > 0 for source, target in links)


def parse_line(text: str, *, one_based: bool = False, where: str = "this line") -> Annotation:
    """Read one line of Pharaoh or talp links.

    >>> sorted(parse_line("1-1 2p1", one_based=True).possible)
    [(0, 0), (1, 0)]
    """
    sure: list[Link] = []
    possible: list[Link] = []
    for token in text.split():
        match = _LINK.fullmatch(token)
        if match is None:
            raise InputError(
                f"{where} has {token[:80]!r}, which is no link (source-target, or sourceptarget for a possible "
                "one); is this a file of alignments?"
            )
        link = int(match[1]) - one_based, int(match[3]) - one_based
        if min(link) < 0:
            raise InputError(
                f"{where} has {token!r}, but words count from 1 there; leave out the one-based flag if the file "
                "counts from 0"
            )
        (sure if match[2] == "-" else possible).append(link)
    return Annotation.of(sure, possible)


def read_alignments(
    path: Path | str, *, one_based: bool = False, swap: bool = False, sentences: int | None = None
) -> AlignmentFile:
    """Read a file of alignments: Pharaoh, TALP or NAACL.

    Args:
        path: The file.
        one_based: Words are counted from 1; NAACL files always are.
        swap: Links are written target-source.
        sentences: The number of pairs, for NAACL files that end in pairs without links.
    """
    path = Path(path)
    texts = list(read_lines(path))
    filled = [text for text in texts if text.strip()]
    if filled and _NAACL.fullmatch(filled[0]):
        kind, one_based, lines = "naacl", True, _parse_naacl(texts, path, sentences)
    else:
        kind = "talp" if any("p" in text or "?" in text for text in filled) else "pharaoh"
        lines = [
            parse_line(text, one_based=one_based, where=f"{path}, line {number}")
            for number, text in enumerate(texts, start=1)
        ]
    return AlignmentFile(
        path.name, kind, one_based, swap, tuple(line.swapped() for line in lines) if swap else tuple(lines)
    )


def _parse_naacl(texts: Sequence[str], path: Path, sentences: int | None) -> list[Annotation]:
    rows: list[tuple[int, Link, str]] = []
    for number, text in enumerate(texts, start=1):
        if not text.strip():
            continue
        match = _NAACL.fullmatch(text)
        if match is None or int(match[1]) == 0:
            raise InputError(
                f"{path}, line {number} must be 'sentence source target [S|P] [confidence]' with sentences from "
                f"1, got {text.strip()[:80]!r}"
            )
        rows.append((int(match[1]), (int(match[2]) - 1, int(match[3]) - 1), match[4] or "S"))
    count = max((row[0] for row in rows), default=0)
    if sentences is not None and count > sentences:
        raise InputError(f"{path} numbers {count} sentences, there are {sentences}")
    if count > _MOST_SENTENCES:
        raise InputError(f"{path} numbers {count} sentences; a NAACL file may have {_MOST_SENTENCES} at most")
    sure: defaultdict[int, list[Link]] = defaultdict(list)
    possible: defaultdict[int, list[Link]] = defaultdict(list)
    for sentence, link, kind in rows:
        if min(link) >= 0:  # 0 is the NULL word there: such a line says that a word has no link
            (sure if kind == "S" else possible)[sentence].append(link)
    lines = [Annotation.of([])] * (sentences or count)  # most may have no links, and then share one object
    for sentence in {*sure, *possible}:
        lines[sentence - 1] = Annotation.of(sure[sentence], possible[sentence])
    return lines


def check_indices(alignments: AlignmentFile, sizes: Iterable[tuple[int, int]], flag: str) -> None:
    """Refuse a link outside its sentence pair; `sizes` are the numbers of source and target words of each line."""
    wanted = list(sizes)
    if len(wanted) != len(alignments.lines):
        raise InputError(f"{alignments.name} has {len(alignments.lines)} lines, the sentences have {len(wanted)}")
    for number, (line, (sources, targets)) in enumerate(zip(alignments.lines, wanted, strict=True), start=1):
        for source, target in sorted(line.possible):
            if source >= sources or target >= targets:
                fits_swapped = all(t < sources and s < targets for s, t in line.possible)
                fits_lower = all(s <= sources and t <= targets for s, t in line.possible)
                advice = " or ".join(
                    name
                    for name, fits in (
                        (f"{flag}one-based", fits_lower and not alignments.one_based),
                        (f"{flag}swap", fits_swapped),
                    )
                    if fits
                )
                raise InputError(
                    f"A link must stay inside its sentences: {alignments.name}, line {number} links source word "
                    f"{source} and target word {target} (from 0), the sentences have {sources} and {targets} words. "
                    + (f"Is {advice} missing?" if advice else "Does the file belong to these sentences?")
                )


def format_line(
    links: Links | Annotation,
    *,
    one_based: bool = False,
    talp: bool = False,
    scores: dict[Link, float] | None = None,
) -> str:
    """Write one line: links in order of source and target; possible ones are marked only in talp.

    >>> format_line(frozenset({(1, 2), (0, 0)}), one_based=True)
    '1-1 2-3'
    """
    annotation = links if isinstance(links, Annotation) else Annotation(links, links)
    written = []
    for link in sorted(annotation.possible):
        mark = "-" if link in annotation.sure or not talp else "p"
        score = f":{scores[link]:.4f}" if scores is not None else ""
        written.append(f"{link[0] + one_based}{mark}{link[1] + one_based}{score}")
    return " ".join(written)
