"""Documents with translations: XLIFF 1.2 and 2.x, TMX, and HTML pages.

The segments of a document are read with their places. Projected translations are put there; every other byte stays as it
was. XML is parsed by expat, HTML by `html.parser`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path
from typing import get_args
from xml.parsers import expat

from normlens.alignment.marked_text import MarkedText, ProjectedText
from normlens.alignment.markup import BREAKS, VOID, read_markup, read_xml, write_markup
from normlens.errors import InputError
from normlens.io.reading import LARGEST_TEXT
from normlens.options import DocumentFormat, Markup

DOCUMENT_FORMATS: tuple[DocumentFormat, ...] = get_args(DocumentFormat)
#: Elements whose content is code of the original format, not text.
_CODES = frozenset(["bpt", "ept", "it", "ph", "ut", "x", "bx", "ex"])
#: The elements of XLIFF that hold a source and its target.
_UNITS = frozenset(["trans-unit", "segment"])
#: Elements of a page that end a segment; what the last ones hold is no text.
_BLOCKS = (BREAKS - {"br"}) | frozenset(
    ["html", "head", "body", "title", "main", "section", "article", "header", "footer", "nav", "aside", "figure", "pre",
     "figcaption", "table", "thead", "tbody", "tfoot", "caption", "ul", "ol", "dl", "form", "fieldset", "details", "summary",
     "select", "option", "optgroup", "button", "label", "legend", "textarea"]
)  # fmt: skip
#: The encoding that a document declares: in its XML declaration, or in a `meta` element.
_ENCODING = re.compile(
    rb"""^(?:\xef\xbb\xbf)?\s*<\?xml[^>]*?\bencoding\s*=\s*["']([^"']*)|<meta\b[^>]*?\bcharset\s*=\s*["']?\s*([\w.:-]+)""",
    re.IGNORECASE,
)
_SILENT = frozenset(["script", "style", "pre", "template"])


@dataclass
class Segment:
    """One segment: the places of its source and target in the document, in bytes.

    `before` and `after` are written around a translation that has no element of its own yet.
    """

    source: tuple[int, int]
    target: tuple[int, int] | None = None
    before: bytes = b""
    after: bytes = b""


@dataclass(frozen=True)
class Document:
    """A document as it was read."""

    path: Path
    form: DocumentFormat
    content: bytes
    segments: list[Segment] = field(default_factory=list)

    @property
    def markup(self) -> Markup:
        """The markup inside of segments."""
        return "html" if self.form == "html-document" else "xml"

    def source(self, segment: Segment) -> MarkedText:
        """Return the source of a segment without its markup; content that is code of another format is no text."""
        return self._marked(self._text(segment.source))

    def target(self, segment: Segment) -> str | None:
        """Return the text of the translation that the document holds; None where it is empty."""
        if segment.target is None:
            return None
        text = self._marked(self._text(segment.target)).text
        return text if text.strip() else None

    def _text(self, place: tuple[int, int]) -> str:
        return self.content[slice(*place)].decode()

    def _marked(self, text: str) -> MarkedText:
        return read_xml(text, _CODES) if self.markup == "xml" else read_markup(text, "html")

    def written(self, projected: ProjectedText) -> str:
        """Return a translation with its marks as the document holds it."""
        return write_markup(projected, self.markup, _CODES)

    def with_targets(self, translations: Sequence[str | None]) -> bytes:
        """Return the document with these translations; None leaves a segment as it is."""
        parts, place = [], 0
        for segment, translation in zip(self.segments, translations, strict=True):
            if translation is None:
                continue
            start, stop = segment.target or segment.source
            parts += [self.content[place:start], segment.before, translation.encode(), segment.after]
            place = stop
        content = b"".join([*parts, self.content[place:]])
        if self.markup == "xml":
            _parse(content, self.path, expat.ParserCreate(encoding="utf-8"))
        return content


def read_document(path: Path, form: DocumentFormat, target_language: str | None = None) -> Document:
    """Read the segments of a document.

    Args:
        path: The document, in UTF-8.
        form: Its format.
        target_language: The language of translations that a TMX file does not hold yet.

    Returns:
        The document; its segments are in the order of the file.
    """
    with path.open("rb") as stream:
        content = stream.read(LARGEST_TEXT + 1)
    if len(content) > LARGEST_TEXT:
        raise InputError(f"{path} has more than {LARGEST_TEXT} bytes; split the document")
    try:
        text = content.decode("utf-8")
    except UnicodeDecodeError as error:
        raise InputError(f"{path} is not encoded in UTF-8 ({error}); convert it first") from error
    for declared in _ENCODING.finditer(content):
        name = (declared[1] or declared[2]).decode(errors="replace")
        if name.lower() not in ("utf-8", "utf8"):
            raise InputError(f"{path} declares the encoding {name}; convert it to UTF-8 first")
    if target_language is not None and not re.fullmatch(r"[A-Za-z0-9_-]+", target_language):
        raise InputError(f"the target language must be a code such as fr or pt-BR, got {target_language!r}")
    found = document_format(text[:4000])
    if found is not None and found != form:
        raise InputError(f"{path} looks like {found}, got --format {form}")
    if form == "html-document":
        segments = _PageReader(text).segments
    else:
        segments = _UnitReader(content, path, target_language).segments
    if not segments:
        raise InputError(f"{path} has no segment of {form}; is it the right --format?")
    return Document(path, form, content, segments)


def document_format(start: str) -> DocumentFormat | None:
    """Return the format of a document that begins like this; None where it is none.

    >>> document_format('<?xml version="1.0"?><xliff version="1.2">'), document_format("a <b>red</b> car")
    ('xliff', None)
    """
    declares = start.lstrip("\ufeff \t\r\n").startswith("<?xml")
    head = re.sub(r"<!--.*?-->|<\?.*?\?>", "", start, flags=re.DOTALL).lstrip("\ufeff \t\r\n").lower()
    if head.startswith(("<!doctype html", "<html")):
        return "html-document"
    if declares or head.startswith(("<xliff", "<tmx", "<!doctype tmx")):
        return "tmx" if re.match(r"(<!doctype tmx|<(\w+:)?tmx)", head) else "xliff"
    return None


def _parse(content: bytes, path: Path, parser: expat.XMLParserType) -> None:
    try:
        parser.Parse(content, True)
    except expat.ExpatError as error:
        raise InputError(
            f"{path} is not well-formed XML: {expat.ErrorString(error.code)}, line {error.lineno}, column {error.offset}"
        ) from error


class _UnitReader:
    """Collects the segments of an XLIFF or TMX file."""

    def __init__(self, content: bytes, path: Path, target_language: str | None) -> None:
        self.segments: list[Segment] = []
        self._content, self._path, self._language = content, path, target_language
        # Local name, place of the tag, whether it may be translated, and its prefix.
        self._open: list[tuple[str, int, bool, str]] = []
        self._units: list[dict[str, tuple[int, int]]] = []  # of the element that holds them: places by name
        self._texts: list[tuple[str, tuple[int, int]]] = []  # languages and places of the TMX unit that is open
        self._source_languages = ["*all*"]  # of a TMX file, then of the unit that is open
        self._text_language = ""
        self._parser = expat.ParserCreate(encoding="utf-8")
        self._parser.StartElementHandler = self._start
        self._parser.EndElementHandler = self._end
        _parse(content, path, self._parser)

    def _start(self, name: str, attributes: dict[str, str]) -> None:
        local = name.rpartition(":")[2]
        inherited = not self._open or self._open[-1][2]
        allowed = {"yes": True, "no": False}.get(attributes.get("translate", ""), inherited)
        self._open.append((local, self._parser.CurrentByteIndex, allowed, name.rpartition(":")[0]))
        if local in _UNITS:
            self._units.append({})
        elif local == "tu":
            self._texts = []
            self._source_languages = [self._source_languages[0], attributes.get("srclang", self._source_languages[0])]
        elif local == "tuv":
            self._text_language = attributes.get("xml:lang") or attributes.get("lang") or ""
        elif local == "header":
            self._source_languages = [attributes.get("srclang", "*all*")]

    def _end(self, name: str) -> None:
        local, start, allowed, _ = self._open.pop()
        parent = self._open[-1][0] if self._open else ""
        stop = self._parser.CurrentByteIndex
        prefix = name.rpartition(":")[0]
        if local in ("source", "seg-source", "target") and parent in _UNITS and prefix == self._open[-1][3]:
            self._units[-1][local] = (start, stop)
        elif local == "seg" and parent == "tuv":
            self._texts.append((self._text_language, (start, stop)))
        elif local in _UNITS:
            places = self._units.pop()
            if allowed and "source" in places:
                self._add(places, prefix)
        elif local == "tu" and allowed and self._texts:
            self._add_tmx(stop, prefix)

    def _add(self, places: dict[str, tuple[int, int]], prefix: str) -> None:
        source, target = places["source"], places.get("target")
        if self._closes_itself(source[0]):
            return  # nothing to translate
        tag = f"{prefix}:target" if prefix else "target"
        if target is not None:
            self._add_segment(source, target, tag)
            return
        end = self._after_element(places.get("seg-source", source))  # a target stands after both
        self.segments.append(Segment(self._inside(source), (end, end), f"<{tag}>".encode(), f"</{tag}>".encode()))

    def _add_segment(self, source: tuple[int, int], target: tuple[int, int], tag: str) -> None:
        """Add a segment whose target has an element; one that closes itself is opened."""
        if not self._closes_itself(target[0]):
            self.segments.append(Segment(self._inside(source), self._inside(target)))
            return
        whole = (target[0], self._after_tag(target[0]))
        opening = self._content[slice(*whole)].removesuffix(b"/>").rstrip() + b">"
        self.segments.append(Segment(self._inside(source), whole, opening, f"</{tag}>".encode()))

    def _add_tmx(self, end: int, prefix: str) -> None:
        """Add a unit: its source is in the source language, its target in the language that was asked for."""
        language, texts = self._source_languages[-1], self._texts
        if language.lower() == "*all*":
            own = [text for text in texts if self._language is None or not _same_language(text[0], self._language)]
        else:
            own = [text for text in texts if _same_language(text[0], language)]
        if not own or self._closes_itself(own[0][1][0]):
            return  # a unit without a source stays as it is
        source = own[0][1]
        others = [text for text in texts if text is not own[0]]
        if self._language is not None:
            others = [text for text in others if _same_language(text[0], self._language)]
        if len(others) > 1:
            languages = ", ".join(language for language, _ in others)
            raise InputError(f"{self._path} has units in {languages}; choose one with --target-language")
        mark = f"{prefix}:" if prefix else ""
        if others:
            self._add_segment(source, others[0][1], f"{mark}seg")
            return
        if self._language is None:
            raise InputError(f"{self._path} has units without a translation; name its language with --target-language")
        opening = f'<{mark}tuv xml:lang="{self._language}"><{mark}seg>'.encode()
        self.segments.append(Segment(self._inside(source), (end, end), opening, f"</{mark}seg></{mark}tuv>".encode()))

    def _closes_itself(self, start: int) -> bool:
        return self._content[start : self._after_tag(start)].endswith(b"/>")

    def _after_element(self, place: tuple[int, int]) -> int:
        """The end of an element, from the places of its two tags."""
        if self._closes_itself(place[0]):
            return self._after_tag(place[0])
        return self._content.index(b">", place[1]) + 1

    def _inside(self, place: tuple[int, int]) -> tuple[int, int]:
        """The content of an element, from the place of its start tag and that of its end tag."""
        return self._after_tag(place[0]), place[1]

    def _after_tag(self, start: int) -> int:
        quoted = re.compile(rb"""<(?:[^"'>]|"[^"]*"|'[^']*')*>""")
        tag = quoted.match(self._content, start)
        if tag is None:  # expat has read a tag that an entity holds
            raise InputError(f"{self._path} has elements inside of entities, which is not supported; expand them first")
        return tag.end()


def _same_language(one: str, other: str) -> bool:
    """Return True if two language codes agree, as far as both say: `en` and `en-GB` do."""
    first, second = one.lower().replace("_", "-"), other.lower().replace("_", "-")
    return first == second or first.startswith(f"{second}-") or second.startswith(f"{first}-")


class _PageReader(HTMLParser):
    """Collects the stretches of text between the block elements of a page."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.segments: list[Segment] = []
        self._text = text
        self._lines = [0]
        for line in text.split("\n"):
            self._lines.append(self._lines[-1] + len(line) + 1)
        self._begin = len(text) - len(text.lstrip("\ufeff"))
        self._has_text = False
        self._silent = 0
        self._encoded = (0, 0)  # characters whose length in bytes is known, and that length
        self._kept: list[str] = []  # elements that are not translated, as they are open
        for code in ("<?php", "<?=", "<%"):
            if code in text:
                raise InputError(f"the page holds code ({code}), which is not HTML; project it after the code has run")
        if text.rfind("<!--") > text.rfind("-->") or re.search(r"<!doctype[^>]*\[", text, re.IGNORECASE):
            raise InputError("the page has an open comment or a document type with declarations; correct it first")
        self.feed(text)
        self.close()
        self._cut(len(text), len(text))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        kept = dict(attrs).get("translate") == "no" or tag in self._kept[-1:]
        if tag in _BLOCKS or tag in _SILENT or (kept and tag not in VOID):
            self._cut(self._place(), self._place() + len(self.get_starttag_text() or ""))
        if kept and tag not in VOID:
            self._kept.append(tag)
        self._silent += tag in _SILENT

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag in _BLOCKS:
            self._cut(self._place(), self._place() + len(self.get_starttag_text() or ""))

    def handle_endtag(self, tag: str) -> None:
        self._silent -= tag in _SILENT and self._silent > 0
        kept = tag in self._kept[-1:]
        if tag in _BLOCKS or tag in _SILENT or kept:
            self._cut(self._place(), self._text.find(">", self._place()) + 1)
        if kept:
            self._kept.pop()

    def handle_decl(self, decl: str) -> None:
        self._cut(self._place(), self._text.find(">", self._place()) + 1)

    def handle_data(self, data: str) -> None:
        shown = not self._silent and not self._kept
        self._has_text = self._has_text or (shown and bool(data.strip("\ufeff \t\r\n\xa0")))

    def _place(self) -> int:
        row, column = self.getpos()
        return self._lines[row - 1] + column

    def _cut(self, end: int, begin: int) -> None:
        """End the stretch before a tag of a block, and begin the next one after it."""
        if self._has_text:
            stretch = self._text[self._begin : end]
            start = self._begin + len(stretch) - len(stretch.lstrip())
            stop = start + len(stretch.strip())
            self.segments.append(Segment((self._bytes_before(start), self._bytes_before(stop))))
        self._begin, self._has_text = begin, False

    def _bytes_before(self, place: int) -> int:
        """The length in bytes of the text before a place; places come in order."""
        characters, length = self._encoded
        length += len(self._text[characters:place].encode())
        self._encoded = (place, length)
        return length
