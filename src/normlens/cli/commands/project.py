"""`normlens project`: markup and labels carried from a text into its translation."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from normlens.cli import line_output
from normlens.cli.line_output import (
    Languages,
    Models,
    Output,
    about_run,
    check_sentences,
    layers_option,
    new_run,
    opened,
    resumed_run,
)
from normlens.cli.terminal import progress_bar, say
from normlens.errors import InputError
from normlens.options import MarkedFormat, Markup, Pieces, WordRule

if TYPE_CHECKING:
    from normlens.alignment.aligner import Aligner
    from normlens.alignment.documents import Document
    from normlens.alignment.marked_text import MarkedText, ProjectedText
    from normlens.alignment.translating import Translator


#: Formats that hold whole documents instead of a sentence per line.
DOCUMENTS = ("xliff", "tmx", "html-document")
AFTER_INTERRUPTION = "what --out holds is kept, and the same command with --resume goes on from there"


def project(
    models: Models,
    source: Annotated[Path, typer.Option(help="Marked-up or labelled source sentences.")],
    form: Annotated[
        MarkedFormat, typer.Option("--format", help="The format of the source: a sentence per line, or a document.")
    ],
    languages: Languages,
    output: Output,
    target: Annotated[
        Path | None, typer.Option(help="Their translations as plain text, one per line (json may hold its own).")
    ] = None,
    translate: Annotated[bool, typer.Option("--translate", help="Let the model translate.")] = False,
    pieces: Annotated[
        Pieces, typer.Option(help="one: an element stays in one piece; many: it is repeated where its words part.")
    ] = "one",
    words: Annotated[
        WordRule | None, typer.Option(help="text: words of running text; spaces: words stand between spaces.")
    ] = None,
    layer: line_output.LayerOption = "auto",
    layers_from: Annotated[Path | None, typer.Option(help="Take the layers that `align --save-choice` wrote.")] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="One JSON object per sentence: text, spans with scores, what had no place.")
    ] = False,
) -> None:
    """Carry inline markup, labels and markers from sentences into their translations, in the format they came in.

    Well-formed markup stays well-formed. What has no place in a translation is reported with its line, and so is a
    line that is not well-formed: its translation is then written without marks.
    """
    if translate and target is not None:
        raise InputError("--target and --translate exclude each other; leave out one")
    holds_targets = form in ("json", "xliff", "tmx")
    if target is None and not translate and not holds_targets:
        raise InputError("a translation is missing; give it with --target, or let the model --translate")
    given = [path for path in (source, target) if path is not None]
    check_sentences(*given)
    _check_format(source, form)
    read_here = [*given, *([] if layers_from is None else [layers_from]), *models.files()]
    output.check(read_here)
    if output.page is None and output.page_line != 1:
        raise InputError("--page-line belongs to a page; give --page with it")
    if form in DOCUMENTS and (output.out is None or output.resume or as_json or output.page is not None):
        raise InputError(f"--format {form} writes one document; give --out, and leave out --resume, --json and --page")

    from normlens.alignment.aligner import Aligner
    from normlens.alignment.pair_encoding import PairFormat
    from normlens.alignment.translating import Translator
    from normlens.alignment.word_maps import PAIRS_TO_CHOOSE_ON

    items = _Items(source, target, form, languages.target_language)
    first = list(
        islice(items.read(), PAIRS_TO_CHOOSE_ON)
    )  # what is wrong with the text is said before a model is loaded
    shown = None if output.page is None else _shown_item(items, given, output.page_line)
    lens, reverse = models.load()
    aligner = Aligner(
        lens,
        reverse,
        layer=layers_option(layer),
        layers_from=layers_from,
        batch_tokens=models.batch_tokens,
        **vars(languages),
    )
    translator = None
    if translate:
        form_of_pairs = PairFormat(False, languages.source_prefix, languages.source_language, languages.target_language)
        translator = Translator(lens, form_of_pairs)
    rule: WordRule = words or ("spaces" if form == "conll" else "text")
    if items.document is not None:
        _write_document(items, output, aligner, translator, rule, pieces, [*given, *models.files()])
        return
    settings = {"format": form, "pieces": pieces, "words": rule, "json": as_json, "translate": translate}
    about = about_run(settings, {path.name: path for path in given})
    run = resumed_run(aligner, output.out, about) if output.resume else None
    if run is None:
        # A model's own translations are made window by window, so only the first window's can be chosen on.
        if not aligner.layers:
            _choose(aligner, first[: line_output.WINDOW] if translate else first, translator, rule)
        output.check(read_here)  # somebody else may have been here since
        run = new_run(aligner, output.out, about)
    elif run.is_whole():
        say(f"normlens: {output.out} is whole already")
        _write_page(aligner, output.page, shown, translator, rule, pieces)
        return

    skip = run.lines if run is not None else 0
    lost = marks = 0
    with opened(run, output.out) as write, progress_bar("projecting") as progress:
        for number, item, found in _projected(items, skip, aligner, translator, rule, pieces):
            try:
                line = _line(item, found, form, as_json, rule)
            except InputError as error:
                raise InputError(f"sentence {number}: {error}") from error
            write(line)
            marks += len(item.marks)
            lost += len(found.unplaced)
            if found.problem:
                say(f"normlens: sentence {number} is written without marks: {found.problem}")
            elif found.unplaced:
                say(f"normlens: sentence {number}: no place for {_named(found.unplaced, item)}")
            if items.total is not None:
                progress(number, items.total)
    if lost:
        say(f"normlens: {lost} of {marks} marks had no place")
    _write_page(aligner, output.page, shown, translator, rule, pieces)
    say(f"{aligner.signature().replace('align|', 'project|', 1)}|pieces:{pieces}|format:{form}")


@dataclass(frozen=True)
class _Item:
    """One sentence as it was read: its text and marks, its translation if there is one, or what is wrong with it.

    Crossing spans cannot be placed together: then each is a text of its own.
    """

    texts: tuple[MarkedText, ...]
    target: str | None
    problem: str | None = None

    @property
    def source(self) -> str:
        return self.texts[0].text

    @property
    def marks(self) -> list[Any]:
        return [mark for text in self.texts for mark in text.marks]


class _Items:
    """The sentences of the input files, in any of the formats."""

    def __init__(
        self, source: Path, target: Path | None, form: MarkedFormat, target_language: str | None = None
    ) -> None:
        self.source, self.target, self.form = source, target, form
        self.document: Document | None = None
        if form == "xliff" or form == "tmx" or form == "html-document":
            from normlens.alignment.documents import read_document

            self.document = read_document(source, form, target_language)
        self.total = sum(1 for _ in self._sources()) if source.is_file() else None
        if target is not None and target.is_file() and self.total is not None:
            from normlens.alignment.parallel_files import read_lines

            lines = sum(1 for _ in read_lines(target))
            if lines != self.total:
                raise InputError(f"{source} has {self.total} sentences, {target} has {lines} lines")

    def _sources(self) -> Iterator[Any]:
        from normlens.alignment.labels import read_conll
        from normlens.alignment.parallel_files import read_lines

        if self.document is not None:
            return iter(self.document.segments)
        return read_conll(read_lines(self.source)) if self.form == "conll" else read_lines(self.source)

    def read(self, skip: int = 0) -> Iterator[_Item]:
        """The sentences from one on."""
        from normlens.alignment.parallel_files import read_lines

        targets = read_lines(self.target) if self.target is not None else None
        for number, found in enumerate(self._sources(), start=1):
            target = next(targets, None) if targets is not None else None
            if self.target is not None and target is None:
                raise InputError(f"{self.target} ends before line {number}")
            if number > skip:
                yield self._item(found, target, number)

    def _item(self, found: Any, target: str | None, number: int) -> _Item:
        from normlens.alignment.labels import read_labelled_json
        from normlens.alignment.marked_text import MarkedText
        from normlens.alignment.markup import read_markup

        if self.form == "conll":
            return _Item((found,), target)
        if self.document is not None:
            try:
                own = self.document.target(found) if target is None else target
                return _Item((self.document.source(found),), own)
            except InputError as error:
                return _Item((MarkedText(""),), target or "", str(error))
        if self.form == "json":
            try:
                texts, own = read_labelled_json(found)
            except InputError as error:
                raise InputError(f"{self.source}, line {number}: {error}") from error
            return _Item(tuple(texts) if isinstance(texts, list) else (texts,), own if target is None else target)
        try:
            return _Item((read_markup(found, cast(Markup, self.form)),), target)
        except InputError as error:
            return _Item((MarkedText(found),), target, str(error))


def _check_format(source: Path, form: MarkedFormat) -> None:
    """Refuse a document that would be read as one sentence per line."""
    if form in DOCUMENTS or not source.is_file():
        return
    from normlens.alignment.documents import document_format

    with source.open("rb") as stream:
        found = document_format(stream.read(4000).decode("utf-8", errors="replace"))
    if found is not None and form in ("html", "xml", "markdown"):
        raise InputError(f"{source} is a document, and --format {form} reads a sentence per line; use --format {found}")


def _write_document(
    items: _Items,
    output: Output,
    aligner: Aligner,
    translator: Translator | None,
    rule: WordRule,
    pieces: Pieces,
    inputs: list[Path],
) -> None:
    """Put the projected translations of all segments into a copy of the document."""
    from normlens.io.writing import write_bytes

    document = items.document
    assert document is not None and output.out is not None
    translations: list[str | None] = []
    lost = 0
    with progress_bar("projecting") as progress:
        for number, item, found in _projected(items, 0, aligner, translator, rule, pieces):
            progress(number, len(document.segments))
            if found.problem is not None:
                say(f"normlens: segment {number} is left as it is: {found.problem}")
                translations.append(None)
                continue
            if found.unplaced:
                lost += len(found.unplaced)
                say(f"normlens: segment {number}: no place for {_named(found.unplaced, item)}")
            try:
                translations.append(document.written(found))
            except InputError as error:
                raise InputError(f"segment {number}: {error}") from error
    if lost:
        say(f"normlens: {lost} marks had no place")
    content = document.with_targets(translations)
    output.check(inputs)  # somebody else may have been here since
    write_bytes(output.out, content)
    say(f"normlens: wrote {output.out}, {sum(t is not None for t in translations)} of {len(translations)} segments")


def _projected(
    items: _Items, skip: int, aligner: Aligner, translator: Translator | None, rule: WordRule, pieces: Pieces
) -> Iterator[tuple[int, _Item, ProjectedText]]:
    """Every sentence from `skip` on with its marks placed, window by window."""
    from normlens.alignment.marked_text import ProjectedText

    stream, number = items.read(skip), skip
    while window := list(islice(stream, line_output.WINDOW)):
        window = _translated(window, translator, number)
        pairs = [(text, item.target or "") for item in window if item.problem is None for text in item.texts]
        found = aligner.project(pairs, words=rule, pieces=pieces)
        for item in window:
            number += 1
            if item.problem is not None:
                yield number, item, ProjectedText(item.target or "", (), (), item.problem)
                continue
            parts = [next(found) for _ in item.texts]
            whole = [piece for part in parts for piece in part.pieces]
            unplaced = tuple(mark for part in parts for mark in part.unplaced)
            yield number, item, replace(parts[0], pieces=tuple(whole), unplaced=unplaced)


def _translated(window: Sequence[_Item], translator: Translator | None, done: int) -> list[_Item]:
    missing = [item for item in window if item.target is None]
    if not missing:
        return list(window)
    if translator is None:
        number = done + 1 + next(i for i, item in enumerate(window) if item.target is None)
        raise InputError(f"sentence {number} has no translation; give --target, or let the model --translate")
    made = iter(translator([item.texts[0].readable for item in missing]))
    return [replace(item, target=next(made)) if item.target is None else item for item in window]


def _shown_item(items: _Items, given: Sequence[Path], number: int) -> _Item:
    """The sentence of the page, read before a model is loaded."""
    if not all(path.is_file() for path in given):
        raise InputError("--page needs sentences that can be read twice, got a pipe; give files")
    found = next(items.read(number - 1), None)
    if found is None:
        raise InputError(f"the input has no sentence {number} for the page")
    if found.problem is not None:
        raise InputError(f"sentence {number} has no marks to show ({found.problem})")
    return found


def _write_page(
    aligner: Aligner,
    page: Path | None,
    item: _Item | None,
    translator: Translator | None,
    rule: WordRule,
    pieces: Pieces,
) -> None:
    if page is None or item is None:
        return
    (item,) = _translated([item], translator, 0)
    path = aligner.save_html(page, item.texts, item.target or "", words=rule, pieces=pieces)
    say(f"normlens: wrote {path}")


def _choose(aligner: Aligner, first: Sequence[_Item], translator: Translator | None, rule: WordRule) -> None:
    """Settle the layers on the beginning of the text."""
    from normlens.alignment.aligner import WORD_RULES, spaced

    spans_of = WORD_RULES[rule]
    usable = [item for item in _translated(first, translator, 0) if item.problem is None]

    def pair(item: _Item) -> tuple[str, str]:
        marked, target = item.texts[0], item.target or ""
        return spaced(marked.text, marked.words(spans_of)), spaced(target, spans_of(target))

    if usable:
        aligner.choose_layers([pair(item) for item in usable])


def _line(item: _Item, found: ProjectedText, form: MarkedFormat, as_json: bool, rule: WordRule) -> str:
    from normlens.alignment.aligner import WORD_RULES
    from normlens.alignment.labels import write_conll, write_labelled_json
    from normlens.alignment.markup import write_markup

    if form == "json":
        return write_labelled_json(found, item.source)
    if as_json:
        return json.dumps(found.to_dict(), ensure_ascii=False)
    if form == "conll":
        return write_conll(found, WORD_RULES[rule](found.text))
    return write_markup(found, cast(Markup, form))


def _named(marks: Sequence[Any], item: _Item) -> str:
    from normlens.alignment.marked_text import shown

    return ", ".join(f"{mark.opening or mark.name} {shown(item.source, (mark.start, mark.end))}" for mark in marks)
