"""`normlens align`: word alignments from translation models."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from normlens.cli import line_output
from normlens.cli.line_output import (
    Languages,
    Models,
    Output,
    about_run,
    check_sentences,
    count_lines,
    layers_option,
    new_run,
    opened,
    resumed_run,
)
from normlens.cli.options import JsonOption
from normlens.cli.terminal import print_json, progress_bar, say, show
from normlens.errors import InputError
from normlens.options import AnySymmetrization, Combination, Extraction, Setting
from normlens.types import Json

if TYPE_CHECKING:
    from normlens.alignment.aligner import AlignedPair, Aligner
    from normlens.alignment.links import Annotation
    from normlens.alignment.links import Links as PairLinks


AFTER_INTERRUPTION = "what --out holds is kept, and the same command with --resume goes on from there"


@dataclass(frozen=True)
class Alignment:
    """Alignment"""

    setting: Annotated[Setting, typer.Option(help="Rows by the token that the decoder reads (awi) or writes.")] = "awi"
    measure: Annotated[
        str, typer.Option(help="attn_n, attn_w, attnres_n, attnresln_n; with --head: af_norm, alpha.")
    ] = "attn_n"
    layer: line_output.LayerOption = "auto"
    layers_from: Annotated[Path | None, typer.Option(help="Take the layers that --save-choice wrote here.")] = None
    head: Annotated[int | None, typer.Option(help="One head, from 1, for af_norm and alpha.")] = None
    symmetrize: Annotated[
        AnySymmetrization | None, typer.Option(help="Combine two directions; product by default with two models.")
    ] = None
    combine: Annotated[
        Combination | None,
        typer.Option(help="views: layers are multiplied (default); mean: averaged (default for what needs it)."),
    ] = None
    extract: Annotated[
        Extraction | None, typer.Option(help="share by default; argmax and threshold combine layers by mean.")
    ] = None
    threshold: Annotated[float, typer.Option(help="For share and threshold: the share a link must exceed.")] = 0.5
    raw: Annotated[bool, typer.Option("--raw", help="Words are the tokenizer's, not what stands between spaces.")] = (
        False
    )

    def options(self) -> Json:
        """Return the arguments of `Aligner`."""
        return {**vars(self), "layer": layers_option(self.layer)}


@dataclass(frozen=True)
class Prompts(Languages):
    """Languages and prompts"""

    prompt: Annotated[
        str, typer.Option(help="Decoder-only models: what they read, as 'English:\\n{source}\\nFrench:\\n{target}'.")
    ] = ""
    reverse_prompt: Annotated[str, typer.Option(help="The same for the reverse model.")] = ""

    def options(self) -> Json:
        """Return the arguments of `Aligner`, with line breaks as the shell writes them."""
        prompts = {name: getattr(self, name).replace("\\n", "\n") for name in ("prompt", "reverse_prompt")}
        return {**vars(self), **prompts}


@dataclass(frozen=True)
class Links:
    """Links from elsewhere"""

    reverse_links: Annotated[
        Path | None, typer.Option(help="Links of the other direction from elsewhere, to symmetrize with.")
    ] = None
    reverse_links_swap: Annotated[
        bool, typer.Option("--reverse-links-swap", help="That file is written target-source.")
    ] = False
    reverse_links_one_based: Annotated[
        bool, typer.Option("--reverse-links-one-based", help="That file counts words from 1.")
    ] = False
    gold: Annotated[Path | None, typer.Option(help="For --page: reference links, framed and scored there.")] = None
    gold_one_based: Annotated[bool, typer.Option("--gold-one-based", help="That file counts words from 1.")] = False

    def read(self) -> list[PairLinks] | None:
        """Return the links of the other direction, a set per pair."""
        from normlens.alignment.formats import read_alignments

        if self.reverse_links is None:
            return None
        one_based, swap = self.reverse_links_one_based, self.reverse_links_swap
        return [line.possible for line in read_alignments(self.reverse_links, one_based=one_based, swap=swap).lines]

    def reference(self, number: int, count: int) -> Sequence[Annotation] | None:
        """Return the reference links of some pairs, by the number of the first, from 1."""
        from normlens.alignment.formats import read_alignments

        if self.gold is None:
            return None
        lines = read_alignments(self.gold, one_based=self.gold_one_based).lines
        last = number + count - 1
        if last > len(lines):
            raise InputError(f"{self.gold} has {len(lines)} lines, the page shows pair {last}")
        return lines[number - 1 : last]


@dataclass(frozen=True)
class LineStyle:
    """Format of links"""

    one_based: Annotated[bool, typer.Option("--one-based", help="Count words from 1.")] = False
    talp: Annotated[bool, typer.Option("--talp", help="Mark links that only one direction has as possible (p).")] = (
        False
    )
    scores: Annotated[bool, typer.Option("--scores", help="Write each link's score after it (0-0:0.9310).")] = False
    confidence: Annotated[
        bool, typer.Option("--confidence", help="Write how likely each link is right after it (0-0:0.9850).")
    ] = False
    json: Annotated[bool, typer.Option("--json", help="One JSON object per pair: words, links from 0, scores.")] = False

    def line(self, pair: AlignedPair) -> str:
        """Return the line of a pair."""
        from normlens.alignment.formats import format_line
        from normlens.alignment.links import Annotation

        if self.json:
            return json.dumps(pair.to_dict(), ensure_ascii=False)
        numbers = None
        if self.confidence:
            numbers = pair.confidences
        elif self.scores:
            numbers = pair.scores
        annotation = Annotation(pair.certain, pair.links)
        return format_line(annotation, one_based=self.one_based, talp=self.talp, scores=numbers)


@dataclass(frozen=True)
class Given:
    """Input"""

    source: Annotated[Path | None, typer.Option(help="Source sentences, one per line.")] = None
    target: Annotated[Path | None, typer.Option(help="Their translations, one per line.")] = None
    audio: Annotated[Path | None, typer.Option(help="A recording (WAV), in place of sentences.")] = None
    text: Annotated[str | None, typer.Option(help="What is said in it; by default what the model writes.")] = None
    as_json: JsonOption = False


@dataclass(frozen=True)
class AlignOutput(Output):
    """Output"""

    save_choice: Annotated[Path | None, typer.Option(help="Write the layers and what they were chosen on here.")] = None
    page_pairs: Annotated[int, typer.Option(min=1, max=200, help="The number of pairs that the page shows.")] = 1


def align(
    models: Models,
    given: Given,
    alignment: Alignment,
    prompts: Prompts,
    links: Links,
    style: LineStyle,
    output: AlignOutput,
) -> None:
    """Align the words of sentence pairs: one line of links per pair, `source-target`, counted from 0.

    A pair with an empty side, or one that is too long for the model, gets an empty line and is reported. With --audio:
    one line per word of a recording, with its start and end in seconds.
    """
    source, target = given.source, given.target
    if given.audio is not None:
        if source is not None or target is not None:
            raise InputError(
                "--audio aligns a recording with its words, got --source or --target as well; leave them out"
            )
        _align_speech(models, given, alignment.measure)
        return
    if source is None or target is None:
        raise InputError("--source and --target are missing; give both, or --audio")
    if output.save_choice is not None and not (source.is_file() and target.is_file()):
        raise InputError("a choice is saved before a line is written, so it needs files that can be read twice")
    if links.reverse_links is not None and alignment.symmetrize is None:
        raise InputError("--symmetrize is missing; links from a file are symmetrized with the model's")
    check_sentences(source, target)
    files = (source, target, links.reverse_links, links.gold, alignment.layers_from)
    read_here = [path for path in files if path is not None] + models.files()
    output.check(read_here, [] if output.save_choice is None else [output.save_choice])
    if output.page is None and (links.gold is not None or output.page_line != 1 or output.page_pairs != 1):
        raise InputError("--gold, --page-line and --page-pairs belong to a page; give --page with them")
    shown: list[tuple[str, str]] = []
    if output.page is not None:
        shown = _shown_pairs(source, target, output.page_line, output.page_pairs)
    reference = links.reference(output.page_line, len(shown))

    from normlens.alignment.aligner import Aligner
    from normlens.alignment.parallel_files import read_parallel

    first_pairs = _first_pairs(source, target)  # what is wrong with the text is said before a model is loaded
    lens, reverse = models.load()
    options = {**alignment.options(), **prompts.options()}
    aligner = Aligner(lens, reverse, batch_tokens=models.batch_tokens, **options)
    others = links.read()
    inputs = {"source": source, "target": target}
    if links.reverse_links is not None:
        inputs["reverse_links"] = links.reverse_links
    about = about_run(vars(style), inputs)
    run = resumed_run(aligner, output.out, about) if output.resume else None
    if run is None:
        if first_pairs and not aligner.layers:
            aligner.choose_layers(first_pairs)
        output.check(read_here)  # somebody else may have been here since
        run = new_run(aligner, output.out, about)
    elif run.is_whole():
        say(f"normlens: {output.out} is whole already")
        _write_page(aligner, output.page, shown, reference)
        return
    if output.save_choice is not None:
        aligner.choice().write(output.save_choice)
    for name, agreement in aligner.agreements.items():
        say(f"{name}:\n{agreement.table(aligner.choices.setting)}")

    problems: Counter[str] = Counter()
    total = count_lines(source)
    skip = run.lines if run is not None else 0
    with opened(run, output.out) as write, progress_bar("aligning") as progress:
        pairs = read_parallel(source, target, skip=skip)
        aligned = _in_windows(aligner, pairs, None if others is None else others[skip:])
        for number, pair in enumerate(aligned, start=skip + 1):
            write(style.line(pair))
            if pair.problem:
                problems[pair.problem] += 1
                say(f"normlens: line {number} has no links: {pair.problem}")
            if total is not None:
                progress(number, total)
        if run is not None and not run.record["layers"]:
            run.record = {**run.record, **aligner.record()}  # a pipe's layers are known only now
    if problems:
        say(f"normlens: {sum(problems.values())} pairs were left without links")
    _write_page(aligner, output.page, shown, reference)
    say(aligner.signature())


def _align_speech(models: Models, given: Given, measure: str) -> None:
    """Print the words of a recording with their times."""
    from normlens.alignment.speech import align_speech

    lens, _ = models.load()
    measure = {"attn_n": "af_norm", "attn_w": "alpha"}.get(measure, measure)
    found = align_speech(lens, given.audio, given.text, measure=measure)
    if given.as_json:
        print_json({"heads": found.heads, "measure": found.measure, "words": [vars(word) for word in found.words]})
        return
    heads = ", ".join(f"{layer}.{head}" for layer, head in found.heads)
    say(f"normlens: read from {found.measure} of heads {heads} (layer.head)")
    for word in found.words:
        show(f"{word.start:.2f}\t{word.end:.2f}\t{word.word}")


def _in_windows(
    aligner: Aligner, pairs: Iterator[tuple[str, str]], others: list[PairLinks] | None
) -> Iterator[AlignedPair]:
    """Windows begin at the same lines whether a run was interrupted or not, so that the answer is the same."""
    done = 0
    while window := list(islice(pairs, line_output.WINDOW)):
        yield from aligner.align(window, reverse_links=None if others is None else others[done : done + len(window)])
        done += len(window)


def _first_pairs(source: Path, target: Path) -> list[tuple[str, str]]:
    """The text on which layers are chosen: the beginning of the input, where it can be read twice."""
    from normlens.alignment.aligner import WINDOW
    from normlens.alignment.parallel_files import read_parallel

    if not (source.is_file() and target.is_file()):
        return []
    return list(islice(read_parallel(source, target), WINDOW))


def _shown_pairs(source: Path, target: Path, number: int, count: int) -> list[tuple[str, str]]:
    """The pairs of the page, read before a model is loaded; at the end of the input there may be fewer."""
    from normlens.alignment.parallel_files import read_parallel

    if not (source.is_file() and target.is_file()):
        raise InputError("--page needs sentences that can be read twice, got a pipe; give files")
    pairs = list(islice(read_parallel(source, target), number - 1, number - 1 + count))
    if not pairs:
        raise InputError(f"the input has no line {number} for the page")
    return pairs


def _write_page(
    aligner: Aligner, page: Path | None, pairs: Sequence[tuple[str, str]], gold: Sequence[Annotation] | None
) -> None:
    if page is None:
        return
    if len(pairs) == 1:
        path = aligner.save_html(page, *pairs[0], gold=None if gold is None else gold[0])
    else:
        path = aligner.save_pairs_html(page, pairs, gold)
    say(f"normlens: wrote {path}")
