"""`normlens align`: word alignments from translation models."""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TextIO

import typer

from normlens.cli.common import open_lens, progress_bar
from normlens.errors import InputError

if TYPE_CHECKING:
    from normlens.alignment.aligner import AlignedPair


def align(
    model: Annotated[str, typer.Option(help="Model that translates source to target: a folder or a hub name.")],
    source: Annotated[Path, typer.Option(help="Source sentences, one per line.")],
    target: Annotated[Path, typer.Option(help="Their translations, one per line.")],
    reverse_model: Annotated[str | None, typer.Option(help="Model that translates target to source.")] = None,
    reverse_links: Annotated[
        Path | None, typer.Option(help="Links of the other direction from elsewhere, to symmetrize with.")
    ] = None,
    reverse_links_swap: Annotated[
        bool, typer.Option("--reverse-links-swap", help="That file is written target-source.")
    ] = False,
    reverse_links_one_based: Annotated[
        bool, typer.Option("--reverse-links-one-based", help="That file counts words from 1.")
    ] = False,
    setting: Annotated[str, typer.Option(help="awi: rows by the token taken in; awo: by the token put out.")] = "awi",
    measure: Annotated[
        str, typer.Option(help="attn_n, attn_w, attnres_n, attnresln_n; with --head: af_norm, alpha.")
    ] = ("attn_n"),
    layer: Annotated[str, typer.Option(help="auto, best, or layers from 1 (2 or 1,2,3).")] = "auto",
    head: Annotated[int | None, typer.Option(help="One head, from 1, for af_norm and alpha.")] = None,
    symmetrize: Annotated[
        str | None,
        typer.Option(
            help="product (default with two models), sum, intersection, union, grow-diag, grow-diag-final, "
            "grow-diag-final-and."
        ),
    ] = None,
    extract: Annotated[
        str | None,
        typer.Option(help="argmax (default with one model), mutual (default for product and sum), share, threshold."),
    ] = None,
    threshold: Annotated[float, typer.Option(help="For share and threshold: the share a link must exceed.")] = 0.5,
    raw: Annotated[
        bool, typer.Option("--raw", help="Words are the tokenizer's, not what stands between spaces.")
    ] = False,
    source_prefix: Annotated[str, typer.Option(help="Text in front of every source sentence (>>fr<<).")] = "",
    reverse_source_prefix: Annotated[str, typer.Option(help="The same for the reverse model.")] = "",
    source_language: Annotated[str | None, typer.Option(help="Language code, where the tokenizer has them.")] = None,
    target_language: Annotated[str | None, typer.Option(help="Language code, where the tokenizer has them.")] = None,
    one_based: Annotated[bool, typer.Option("--one-based", help="Count words from 1.")] = False,
    talp: Annotated[
        bool, typer.Option("--talp", help="Mark links that only one direction has as possible (p).")
    ] = False,
    scores: Annotated[bool, typer.Option("--scores", help="Write each link's score behind it (0-0:0.9310).")] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="One JSON object per pair: words, links from 0, scores.")
    ] = False,
    out: Annotated[Path | None, typer.Option(help="Output file; the choices are recorded beside it.")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on where the output file ends.")] = False,
    batch_tokens: Annotated[int, typer.Option(min=1, help="Padded tokens per batch.")] = 4096,
    device: Annotated[str | None, typer.Option(help="cpu, cuda, ...")] = None,
) -> None:
    """Align the words of sentence pairs: one line of links per pair, `source-target`, counted from 0.

    A pair with an empty side, or one that is too long for the model, gets an empty line and is reported.
    """
    from normlens.alignment.aligner import Aligner
    from normlens.alignment.formats import read_alignments
    from normlens.alignment.streams import check_same_run, finished_lines, read_parallel, record_path
    from normlens.lens import Lens

    if resume and out is None:
        raise InputError("Resuming needs the file to go on with: give --out with --resume.")
    if reverse_links is not None and symmetrize is None:
        raise InputError("Links from a file are symmetrized with the model's: say how with --symmetrize.")

    first_pairs = _first_pairs(source, target)  # what is wrong with the text is said before a model is loaded

    def lens(name: str) -> Lens:
        loaded = open_lens(name)
        if device is not None:
            loaded.model.to(device)
        return loaded

    aligner = Aligner(
        lens(model),
        None if reverse_model is None else lens(reverse_model),
        setting=setting,
        measure=measure,
        layer=_layers(layer),
        head=head,
        symmetrize=symmetrize,
        extract=extract,
        threshold=threshold,
        raw=raw,
        batch_tokens=batch_tokens,
        source_prefix=source_prefix,
        reverse_source_prefix=reverse_source_prefix,
        source_language=source_language,
        target_language=target_language,
    )
    others = None
    if reverse_links is not None:
        read = read_alignments(reverse_links, one_based=reverse_links_one_based, swap=reverse_links_swap)
        others = [line.possible for line in read.lines]

    style = {"one_based": one_based, "talp": talp, "scores": scores, "json": as_json}
    skip = 0
    resumed = resume and out is not None and out.exists()
    if resumed and out is not None:
        aligner.layers = check_same_run(out, {**aligner.record(), "format": style})
        skip = finished_lines(out)
    elif first_pairs:
        aligner.choose_layers(first_pairs)
    for name, agreement in aligner.agreements.items():
        print(f"{name}:\n{agreement.table(setting)}", file=sys.stderr)

    def keep_record() -> None:
        if out is not None:
            record = {**aligner.record(), "format": style, "source": source.name, "target": target.name}
            record_path(out).write_text(json.dumps(record, indent=1), encoding="utf-8")

    if not resumed:
        keep_record()  # before the first line, so that a run can be resumed wherever it stops
    problems: Counter[str] = Counter()
    total = _count(source)
    with _opened(out, skip) as file, progress_bar("aligning") as progress:
        pairs = read_parallel(source, target, skip=skip)
        links = aligner.align(pairs, reverse_links=None if others is None else others[skip:])
        for number, pair in enumerate(links, start=skip + 1):
            file.write(_line(pair, one_based, talp, scores, as_json) + "\n")
            if pair.problem:
                problems[pair.problem] += 1
                print(f"normlens: line {number} has no links: {pair.problem}", file=sys.stderr)
            if total is not None:
                progress(number, total)
    if not resumed:
        keep_record()  # a pipe's layers are known only now
    if problems:
        print(f"normlens: {sum(problems.values())} pairs were left without links", file=sys.stderr)
    print(aligner.signature(), file=sys.stderr)


def _layers(text: str) -> str | list[int]:
    if text in ("auto", "best"):
        return text
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise InputError(f"A layer is auto, best, or numbers from 1 parted by commas: got {text!r}.") from None


def _first_pairs(source: Path, target: Path) -> list[tuple[str, str]]:
    """The text on which layers are chosen: the beginning of the input, where it can be read twice."""
    from itertools import islice

    from normlens.alignment.aligner import WINDOW
    from normlens.alignment.streams import read_parallel

    for path in (source, target):
        if not path.exists():
            raise InputError(f"Sentences are read from files that exist: {path} does not.")
    if not (source.is_file() and target.is_file()):
        return []
    return list(islice(read_parallel(source, target), WINDOW))


def _line(pair: AlignedPair, one_based: bool, talp: bool, scores: bool, as_json: bool) -> str:
    from normlens.alignment.formats import format_line
    from normlens.alignment.links import Annotation

    if as_json:
        return json.dumps(pair.to_dict(), ensure_ascii=False)
    annotation = Annotation(pair.certain, pair.links)
    return format_line(annotation, one_based=one_based, talp=talp, scores=pair.scores if scores else None)


def _count(source: Path) -> int | None:
    from normlens.alignment.words import read_lines

    return sum(1 for _ in read_lines(source)) if source.is_file() else None


@contextmanager
def _opened(out: Path | None, skip: int) -> Iterator[TextIO]:
    if out is None:
        yield sys.stdout
        sys.stdout.flush()
        return
    with out.open("a" if skip else "w", encoding="utf-8", newline="\n") as file:
        yield file
