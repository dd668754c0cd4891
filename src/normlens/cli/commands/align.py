"""`normlens align`: word alignments from translation models."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from normlens.cli import line_output
from normlens.cli.line_output import (
    about_run,
    check_output,
    check_sentences,
    count_lines,
    layers_option,
    new_run,
    opened,
    resumed_run,
)
from normlens.cli.options import OverwriteOption, model_files, open_lens
from normlens.cli.terminal import progress_bar, say
from normlens.errors import InputError
from normlens.options import AnySymmetrization, Combination, Extraction, Setting

if TYPE_CHECKING:
    from normlens.alignment.aligner import AlignedPair, Aligner
    from normlens.alignment.links import Annotation, Links


AFTER_INTERRUPTION = "what --out holds is kept, and the same command with --resume goes on from there"


def align(
    model: line_output.ModelOption,
    source: Annotated[Path, typer.Option(help="Source sentences, one per line.")],
    target: Annotated[Path, typer.Option(help="Their translations, one per line.")],
    reverse_model: line_output.ReverseModelOption = None,
    reverse_links: Annotated[
        Path | None, typer.Option(help="Links of the other direction from elsewhere, to symmetrize with.")
    ] = None,
    reverse_links_swap: Annotated[
        bool, typer.Option("--reverse-links-swap", help="That file is written target-source.")
    ] = False,
    reverse_links_one_based: Annotated[
        bool, typer.Option("--reverse-links-one-based", help="That file counts words from 1.")
    ] = False,
    setting: Annotated[Setting, typer.Option(help="Rows by the token that the decoder reads (awi) or writes.")] = "awi",
    measure: Annotated[
        str, typer.Option(help="attn_n, attn_w, attnres_n, attnresln_n; with --head: af_norm, alpha.")
    ] = ("attn_n"),
    layer: line_output.LayerOption = "auto",
    layers_from: Annotated[Path | None, typer.Option(help="Take the layers that --save-choice wrote here.")] = None,
    save_choice: Annotated[
        Path | None, typer.Option(help="Write the layers and what they were chosen on here.")
    ] = None,
    head: Annotated[int | None, typer.Option(help="One head, from 1, for af_norm and alpha.")] = None,
    symmetrize: Annotated[
        AnySymmetrization | None, typer.Option(help="Combine two directions; product by default with two models.")
    ] = None,
    combine: Annotated[
        Combination | None,
        typer.Option(help="views: layers are multiplied (default); mean: averaged (default for what needs it)."),
    ] = None,
    extract: Annotated[
        Extraction | None, typer.Option(help="share by default; argmax and threshold combine layers by mean.")
    ] = None,
    threshold: Annotated[float, typer.Option(help="For share and threshold: the share a link must exceed.")] = 0.5,
    raw: Annotated[
        bool, typer.Option("--raw", help="Words are the tokenizer's, not what stands between spaces.")
    ] = False,
    source_prefix: line_output.SourcePrefixOption = "",
    reverse_source_prefix: line_output.SameForReverseOption = "",
    source_language: line_output.LanguageOption = None,
    target_language: line_output.LanguageOption = None,
    prompt: Annotated[
        str, typer.Option(help="Decoder-only models: what they read, as 'English:\\n{source}\\nFrench:\\n{target}'.")
    ] = "",
    reverse_prompt: line_output.SameForReverseOption = "",
    one_based: Annotated[bool, typer.Option("--one-based", help="Count words from 1.")] = False,
    talp: Annotated[
        bool, typer.Option("--talp", help="Mark links that only one direction has as possible (p).")
    ] = False,
    scores: Annotated[bool, typer.Option("--scores", help="Write each link's score after it (0-0:0.9310).")] = False,
    confidence: Annotated[
        bool, typer.Option("--confidence", help="Write how likely each link is right after it (0-0:0.9850).")
    ] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="One JSON object per pair: words, links from 0, scores.")
    ] = False,
    page: Annotated[Path | None, typer.Option(help="Write the viewer's page of one pair here, too.")] = None,
    page_line: Annotated[int, typer.Option(min=1, help="Which pair the page shows, from 1.")] = 1,
    out: line_output.OutOption = None,
    resume: line_output.ResumeOption = False,
    gold: Annotated[Path | None, typer.Option(help="For --page: reference links, framed and scored there.")] = None,
    gold_one_based: Annotated[bool, typer.Option("--gold-one-based", help="That file counts words from 1.")] = False,
    overwrite: OverwriteOption = False,
    batch_tokens: line_output.BatchTokensOption = 4096,
    device: line_output.DeviceOption = None,
) -> None:
    """Align the words of sentence pairs: one line of links per pair, `source-target`, counted from 0.

    A pair with an empty side, or one that is too long for the model, gets an empty line and is reported.
    """
    if resume and out is None:
        raise InputError("resuming needs the file to go on with: give --out with --resume")
    if save_choice is not None and not (source.is_file() and target.is_file()):
        raise InputError("a choice is saved before a line is written, so it needs files that can be read twice")
    if reverse_links is not None and symmetrize is None:
        raise InputError("links from a file are symmetrized with the model's: say how with --symmetrize")
    check_sentences(source, target)
    read_here = [path for path in (source, target, reverse_links, gold, layers_from) if path is not None]
    read_here += model_files(model, reverse_model)
    beside = [path for path in (page, save_choice) if path is not None]
    check_output(out, read_here, resume, overwrite, beside)
    if page is None and (gold is not None or page_line != 1):
        raise InputError("reference links and the number of a pair belong to a page: give --page with them")
    shown = None if page is None else _shown_pair(source, target, page_line)
    reference = None if gold is None else _reference(gold, gold_one_based, page_line)

    from normlens.alignment.aligner import Aligner
    from normlens.alignment.formats import read_alignments
    from normlens.alignment.parallel_files import read_parallel

    first_pairs = _first_pairs(source, target)  # what is wrong with the text is said before a model is loaded

    aligner = Aligner(
        open_lens(model, device=device),
        None if reverse_model is None else open_lens(reverse_model, device=device),
        setting=setting,
        measure=measure,
        layer=layers_option(layer),  # type: ignore[arg-type]
        head=head,
        symmetrize=symmetrize,
        combine=combine,
        extract=extract,
        layers_from=layers_from,
        threshold=threshold,
        raw=raw,
        batch_tokens=batch_tokens,
        source_prefix=source_prefix,
        reverse_source_prefix=reverse_source_prefix,
        source_language=source_language,
        target_language=target_language,
        prompt=prompt.replace("\\n", "\n"),
        reverse_prompt=reverse_prompt.replace("\\n", "\n"),
    )
    others = None
    if reverse_links is not None:
        read = read_alignments(reverse_links, one_based=reverse_links_one_based, swap=reverse_links_swap)
        others = [line.possible for line in read.lines]

    style = {"one_based": one_based, "talp": talp, "scores": scores, "confidence": confidence, "json": as_json}
    inputs = {"source": source, "target": target} | ({} if reverse_links is None else {"reverse_links": reverse_links})
    about = about_run(style, inputs)
    run = resumed_run(aligner, out, about) if resume else None
    if run is None:
        if first_pairs and not aligner.layers:
            aligner.choose_layers(first_pairs)
        check_output(out, read_here, resume, overwrite)  # somebody else may have been here since
        run = new_run(aligner, out, about)
    elif run.is_whole():
        say(f"normlens: {out} is whole already")
        _write_page(aligner, page, shown, reference)
        return
    if save_choice is not None:
        aligner.choice().write(save_choice)
    for name, agreement in aligner.agreements.items():
        say(f"{name}:\n{agreement.table(aligner.choices.setting)}")

    shown_scores: Literal["", "scores", "confidences"] = "confidences" if confidence else "scores" if scores else ""
    problems: Counter[str] = Counter()
    total = count_lines(source)
    skip = run.lines if run is not None else 0
    with opened(run, out) as write, progress_bar("aligning") as progress:
        pairs = read_parallel(source, target, skip=skip)
        links = _in_windows(aligner, pairs, None if others is None else others[skip:])
        for number, pair in enumerate(links, start=skip + 1):
            write(_line(pair, one_based, talp, shown_scores, as_json))
            if pair.problem:
                problems[pair.problem] += 1
                say(f"normlens: line {number} has no links: {pair.problem}")
            if total is not None:
                progress(number, total)
        if run is not None and not run.record["layers"]:
            run.record = {**run.record, **aligner.record()}  # a pipe's layers are known only now
    if problems:
        say(f"normlens: {sum(problems.values())} pairs were left without links")
    _write_page(aligner, page, shown, reference)
    say(aligner.signature())


def _in_windows(
    aligner: Aligner, pairs: Iterator[tuple[str, str]], others: list[Links] | None
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


def _shown_pair(source: Path, target: Path, number: int) -> tuple[str, str]:
    """The pair of the page, read before a model is loaded."""
    from normlens.alignment.parallel_files import read_parallel

    if not (source.is_file() and target.is_file()):
        raise InputError("a page needs sentences that can be read twice: give files, not pipes, with --page")
    found = next(islice(read_parallel(source, target), number - 1, None), None)
    if found is None:
        raise InputError(f"a page shows a pair of the input: it has no line {number}")
    return found


def _reference(gold: Path, one_based: bool, number: int) -> Annotation:
    from normlens.alignment.formats import read_alignments

    lines = read_alignments(gold, one_based=one_based).lines
    if number > len(lines):
        raise InputError(f"a reference has a line for the pair that is shown: {gold} has {len(lines)}, not {number}")
    return lines[number - 1]


def _write_page(aligner: Aligner, page: Path | None, pair: tuple[str, str] | None, gold: Annotation | None) -> None:
    if page is not None and pair is not None:
        say(f"normlens: wrote {aligner.save_html(page, *pair, gold=gold)}")


def _line(
    pair: AlignedPair, one_based: bool, talp: bool, scores: Literal["", "scores", "confidences"], as_json: bool
) -> str:
    from normlens.alignment.formats import format_line
    from normlens.alignment.links import Annotation

    if as_json:
        return json.dumps(pair.to_dict(), ensure_ascii=False)
    annotation = Annotation(pair.certain, pair.links)
    return format_line(annotation, one_based=one_based, talp=talp, scores=getattr(pair, scores) if scores else None)
