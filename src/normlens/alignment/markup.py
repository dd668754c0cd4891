"""Inline markup to marked text and back: HTML, XML as in XLIFF, and Markdown's emphasis, code and links.

Reading takes the markup off and keeps it as marks; writing puts it around the pieces in the other text, whose own
characters are escaped where they would be read as markup. What was well-formed stays so: pieces are a tree. Lines are
parsed by `html.parser`, expat and markdown-it.

* HTML: tags must close in the order in which they opened; `<br>`, `<img …>` and the other void elements stand alone.
* XML: every tag closes or closes itself (`<x id="1"/>`).
* Markdown: CommonMark with strikethrough. Emphasis that Markdown cannot express at its new place is written as the HTML
  tag of that name.

Comments, processing instructions and declarations are marks without words.
"""

from __future__ import annotations

import html
import re
import unicodedata
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from html.parser import HTMLParser
from itertools import islice
from typing import TYPE_CHECKING, get_args
from xml.parsers import expat

from markdown_it import MarkdownIt

from normlens.alignment.marked_text import Mark, MarkedText, Piece, ProjectedText
from normlens.errors import InputError
from normlens.inputs.words import shortened
from normlens.options import Markup

if TYPE_CHECKING:
    from markdown_it.token import Token

MARKUPS: tuple[Markup, ...] = get_args(Markup)

#: Tags at which a word ends even if no blank stands there.
BREAKS = frozenset(
    ["br", "hr", "p", "div", "li", "td", "th", "tr", "dt", "dd", "h1", "h2", "h3", "h4", "h5", "h6", "blockquote"]
)
VOID = frozenset(
    ["area", "base", "br", "col", "embed", "hr", "img", "input", "link", "meta", "param", "source", "track", "wbr"]
)


def read_markup(line: str, markup: Markup) -> MarkedText:
    """Take the markup off a line; a line that is not well-formed is an error.

    >>> read_markup("a <b>red</b> car", "html").marks[0]
    Mark(start=2, end=5, name='b', opening='<b>', closing='</b>', parent=None, extra={})
    """
    readers: dict[Markup, Callable[[str], MarkedText]] = {
        "html": _read_html,
        "xml": read_xml,
        "markdown": _read_markdown,
    }
    if markup not in readers:
        raise InputError(f"markup must be one of {', '.join(MARKUPS)}, got {markup!r}")
    return readers[markup](line)


def write_markup(projected: ProjectedText, markup: Markup, codes: frozenset[str] = frozenset()) -> str:
    """Return the other text with its marks; an element that found no words is written empty, in Markdown not at all.

    The result is parsed once more: without its markup it must be the text, to the character.

    Args:
        projected: The text with its pieces.
        markup: The kind of markup.
        codes: XML elements whose content is code, not text (see `read_xml`).

    Raises:
        InputError: The format cannot hold this text (a control character in XML, say).
    """
    if markup == "markdown":
        return _write_markdown(projected)
    written = _write(projected, _escape_tags)
    try:
        read = read_xml(written, codes) if markup == "xml" else read_markup(written, markup)
        if read.text == projected.text:
            return written
        reason = "a parser reads another text"
    except (InputError, UnicodeEncodeError) as error:
        reason = str(error)
    raise _cannot_hold(projected.text, markup, reason)


def _cannot_hold(text: str, markup: Markup, reason: str) -> InputError:
    controls = sorted({f"U+{ord(c):04X}" for c in text if unicodedata.category(c) == "Cc" and c not in "\t\n\r"})
    found = f"; it contains {', '.join(controls)}" if controls else ""
    return InputError(
        f"{markup} cannot hold the text {shortened(text)} with these marks: {reason}{found}; remove the characters, or use "
        "another format"
    )


class _Building:
    """Text and marks as they are read, with the elements that are open."""

    def __init__(self) -> None:
        self.text: list[str] = []
        self.length = 0
        self.marks: list[Mark] = []
        self.open: list[int] = []
        self.breaks: set[int] = set()

    def add_text(self, text: str) -> None:
        self.text.append(text)
        self.length += len(text)

    def start(self, name: str, opening: str) -> None:
        self.add_point(name, opening)
        self.open.append(len(self.marks) - 1)

    def add_point(self, name: str, opening: str) -> None:
        parent = self.open[-1] if self.open else None
        self.marks.append(Mark(self.length, self.length, name, opening, "", parent))

    def finish(self, closing: str) -> None:
        place = self.open.pop()
        self.marks[place] = replace(self.marks[place], end=self.length, closing=closing)

    @property
    def innermost(self) -> Mark | None:
        """The element that is open and began last."""
        return self.marks[self.open[-1]] if self.open else None

    def result(self) -> MarkedText:
        return MarkedText("".join(self.text), tuple(self.marks), frozenset(self.breaks))


# ---- HTML and XML -------------------------------------------------------------------------------------------------


class _HtmlReader(HTMLParser):
    """Collects the text and the tags of an HTML fragment."""

    def __init__(self, line: str) -> None:
        super().__init__(convert_charrefs=True)
        self.found = _Building()
        self._line = line
        self.feed(line)
        self.close()

    def handle_data(self, data: str) -> None:
        self.found.add_text(data)

    def handle_starttag(self, tag: str, attrs: object) -> None:
        self._end_word(tag)
        if tag in VOID:
            self.found.add_point(tag, self.get_starttag_text() or "")
        else:
            self.found.start(tag, self.get_starttag_text() or "")

    def handle_startendtag(self, tag: str, attrs: object) -> None:
        self._end_word(tag)
        self.found.add_point(tag, self.get_starttag_text() or "")

    def handle_endtag(self, tag: str) -> None:
        self._end_word(tag)
        row, column = self.getpos()
        start = sum(len(text) + 1 for text in self._line.split("\n")[: row - 1]) + column
        closing = self._line[start : self._line.find(">", start) + 1]
        inner = self.found.innermost
        if inner is None or inner.name != tag:
            open_now = "nothing is open" if inner is None else f"{inner.opening} is open"
            raise InputError(f"{closing} comes while {open_now}; close elements in the order in which they opened")
        self.found.finish(closing)

    def handle_comment(self, data: str) -> None:
        self.found.add_point("comment", f"<!--{data}-->")

    def handle_decl(self, decl: str) -> None:
        self.found.add_point("comment", f"<!{decl}>")

    def unknown_decl(self, data: str) -> None:
        self.found.add_point("comment", f"<![{data}]>")

    def handle_pi(self, data: str) -> None:
        self.found.add_point("comment", f"<?{data}>")

    def _end_word(self, tag: str) -> None:
        if tag in BREAKS:
            self.found.breaks.add(self.found.length)


def _read_html(line: str) -> MarkedText:
    found = _HtmlReader(line).found
    if found.innermost is not None:
        raise InputError(f"{found.innermost.opening} is not closed; is the line cut in the middle of it?")
    return found.result()


def read_xml(line: str, codes: frozenset[str] = frozenset()) -> MarkedText:
    """Read an XML fragment: the events of expat with their places, from which the text of each tag is taken.

    Args:
        line: The fragment.
        codes: Elements whose content is code, not text; each is one mark without words.
    """
    try:
        data = f"<line>{line}</line>".encode()
    except UnicodeEncodeError as error:
        raise InputError("the line has half of a surrogate pair; read it as UTF-8") from error
    events: list[tuple[int, str, str]] = []
    parser = expat.ParserCreate(encoding="utf-8")
    parser.StartElementHandler = lambda name, attributes: events.append((parser.CurrentByteIndex, "start", name))
    parser.EndElementHandler = lambda name: events.append((parser.CurrentByteIndex, "end", name))
    parser.CharacterDataHandler = lambda text: events.append((parser.CurrentByteIndex, "text", text))
    parser.CommentHandler = lambda text: events.append((parser.CurrentByteIndex, "point", "comment"))
    parser.ProcessingInstructionHandler = lambda *_: events.append((parser.CurrentByteIndex, "point", "comment"))
    parser.StartCdataSectionHandler = lambda: events.append((parser.CurrentByteIndex, "other", ""))
    parser.EndCdataSectionHandler = lambda: events.append((parser.CurrentByteIndex, "other", ""))
    try:
        parser.Parse(data, True)
    except expat.ExpatError as error:
        column = error.offset + 1
        if error.lineno == 1:
            column -= len("<line>")
        raise InputError(
            f"the line is not well-formed XML: {expat.ErrorString(error.code)}, column {column}; close every element, and "
            "write a bare < as &lt; and a bare & as &amp;"
        ) from error
    found = _Building()
    inner = events[1:-1]  # without the element around the line
    inside_code: list[tuple[str, int, bool]] = []
    for number, (place, kind, content) in enumerate(inner):
        after = next((later for later, *_ in islice(events, number + 2, None) if later > place), len(data))
        raw = data[place:after].decode()
        if kind == "start" and (inside_code or content.rpartition(":")[2] in codes):
            inside_code.append((content, place, raw.endswith("/>")))
        elif inside_code:
            if kind == "end":
                name, start, closes_itself = inside_code.pop()
                end = place if closes_itself else after
                if not inside_code:
                    found.add_point(name, data[start:end].decode())
        elif kind == "text":
            found.add_text(content)
        elif kind == "point":
            found.add_point(content, raw)
        elif kind == "start":
            found.start(content, raw)
        elif kind == "end":
            element = found.innermost
            assert element is not None, "expat has seen its start"
            found.finish("" if element.opening.endswith("/>") else raw)
    return found.result()


def _escape_tags(text: str, inside: Sequence[str]) -> str:
    return html.escape(text, quote=False).replace("\r", "&#13;")  # parsers read a bare one as a line feed


# ---- writing ------------------------------------------------------------------------------------------------------


def _write(projected: ProjectedText, escape: Callable[[str, Sequence[str]], str]) -> str:
    return "".join(_parts(projected.text, projected.pieces, 0, len(projected.text), escape, ()))


def _parts(
    text: str,
    pieces: Sequence[Piece],
    start: int,
    end: int,
    escape: Callable[[str, Sequence[str]], str],
    inside: tuple[str, ...],
) -> Iterator[str]:
    place = start
    for piece in pieces:
        yield escape(text[place : piece.start], inside)
        yield piece.mark.opening
        yield from _parts(text, piece.children, piece.start, piece.end, escape, (*inside, piece.mark.name))
        yield piece.mark.closing
        place = piece.end
    yield escape(text[place:end], inside)


# ---- Markdown -----------------------------------------------------------------------------------------------------

_MARKDOWN = MarkdownIt("commonmark").enable("strikethrough")
vars(_MARKDOWN)["normalizeLink"] = lambda url: url  # addresses stay as they were written
_BLOCK = re.compile(r"\s{0,3}(?:(?:#{1,6}|[-+*]|\d{1,9}[.)]|>)\s+)+(?:\[[ xX]\]\s+)?")
#: The box of a task list, which CommonMark reads as text.
_CHECKBOX = re.compile(r"^(\s{0,3}(?:[-+*]|\d{1,9}[.)])\s+)\[[ xX]\]\s+")
_TAG_NAME = re.compile(r"<(/?)([A-Za-z][\w-]*)")
_NAMES = {"em": "em", "strong": "strong", "s": "del", "link": "link"}
_HTML_OF = {"em": ("<em>", "</em>"), "strong": ("<strong>", "</strong>"), "del": ("<del>", "</del>"),
            "code": ("<code>", "</code>")}  # fmt: skip


def _read_markdown(line: str) -> MarkedText:
    found = _Building()
    block = _BLOCK.match(line)
    if block is not None:
        found.add_point("block", block[0])
        line = line[block.end() :]
    links: list[Token] = []
    for token in _MARKDOWN.parseInline(line)[0].children or ():
        kind, _, side = token.type.rpartition("_")
        if token.type == "code_inline":
            found.start("code", token.markup)
            found.add_text(token.content)
            found.finish(token.markup)
        elif token.type == "image":
            found.add_point("image", f"![{token.content}{_destination(token, 'src')}")
        elif token.type == "html_inline":
            _take_tag(found, token.content)
        elif side == "open":
            opening = token.markup
            if kind == "link":
                links.append(token)
                opening = "["
            found.start(_NAMES[kind], opening)
        elif side == "close":
            _drop_tags(found)
            found.finish(_destination(links.pop(), "href") if kind == "link" else token.markup)
        elif token.type in ("softbreak", "hardbreak"):
            found.add_text("\n")
        else:
            found.add_text(token.content)
    _drop_tags(found)
    return found.result()


def _take_tag(found: _Building, tag: str) -> None:
    """An HTML tag in Markdown: the end of the element that is open, the start of one, or a point."""
    named = _TAG_NAME.match(tag)
    inner = found.innermost
    if named is None or tag.endswith("/>") or named[2].lower() in VOID:
        found.add_point("tag", tag)
    elif not named[1]:
        found.start(named[2].lower(), tag)
    elif inner is not None and inner.opening.startswith("<") and inner.name == named[2].lower():
        found.finish(tag)
    else:
        found.add_point("tag", tag)


def _drop_tags(found: _Building) -> None:
    """HTML elements that are still open where what is around them ends stand for themselves."""
    while found.innermost is not None and found.innermost.opening.startswith("<"):
        place = found.open.pop()
        mark = found.marks[place]
        found.marks[place] = replace(mark, name="tag", end=mark.start)
        for number in range(place + 1, len(found.marks)):
            if found.marks[number].parent == place:
                found.marks[number] = replace(found.marks[number], parent=mark.parent)


def _destination(token: Token, name: str) -> str:
    """The end of a link or image, with its address and title."""
    address, title = str(token.attrGet(name) or ""), token.attrGet("title")
    address = re.sub(r"&(?=#?\w+;)", "&amp;", address)
    if re.search(r"[\s\\<>\x00-\x1f]", address) or not address or not _balanced(address):
        address = "<" + re.sub(r"([\\<>])", r"\\\1", address) + ">"
    if title is None:
        return f"]({address})"
    escaped = re.sub(r'([\\"])', r"\\\1", str(title))
    return f']({address} "{escaped}")'


def _balanced(address: str) -> bool:
    depth = 0
    for character in address:
        depth += (character == "(") - (character == ")")
        if depth < 0:
            return False
    return depth == 0


def _markdown_text(line: str) -> str:
    """The text of a line of Markdown; a block that is more than one line of text (a rule, say) raises `ValueError`."""
    tokens = [token for token in _MARKDOWN.parse(line) if token.nesting == 0]
    if not tokens:
        return ""
    if len(tokens) > 1 or tokens[0].type not in ("inline", "html_block"):
        raise ValueError(f"it is read as {', '.join(sorted({token.type for token in tokens}))}")
    if tokens[0].type == "html_block":  # nothing in it is Markdown
        return "".join(_HtmlReader(tokens[0].content).found.text)
    text = []
    for token in tokens[0].children or ():
        if token.type in ("text", "text_special", "code_inline"):
            text.append(token.content)
        elif token.type in ("softbreak", "hardbreak"):
            text.append("\n")
    return "".join(text)


def _escape_markdown(text: str, inside: Sequence[str]) -> str:
    if "code" in inside:
        return text
    text = re.sub(r"([\\`*_\[\]<~]|&(?=#?\w+;)|!(?=\[|$))", r"\\\1", text)
    return re.sub(r"[\n\r]", _as_entity, text)


def _as_entity(match: re.Match[str]) -> str:
    """A character as Markdown reads it where it would drop or interpret the character itself."""
    return "".join(f"&#{ord(character)};" for character in match[0])


#: What begins a block at the start of a line: a list, a heading, a quotation, a rule.
_BLOCK_START = re.compile(r"([-+>#=]|\d{1,9}(?=[.)]))")


def _escape_start(line: str) -> str:
    """The line with no block begun by its text, and with the blanks at its ends kept."""
    line = re.sub(r"^\s+|\s+$", _as_entity, line)
    begins = _BLOCK_START.match(line)
    if begins is None:
        return line
    escaped = f"\\{begins[0]}" if not begins[0].isdigit() else f"{begins[0]}\\"
    return escaped + line[begins.end() :]


def _write_markdown(projected: ProjectedText) -> str:
    kept = replace(projected, pieces=tuple(map(_fenced(projected.text), _without_lost(projected.pieces))))
    reason = ""
    for pieces in (kept.pieces, tuple(map(_as_html, kept.pieces))):
        written = _whole_line(replace(kept, pieces=pieces))
        try:
            if _markdown_text(_CHECKBOX.sub(r"\1", written)) != projected.text:
                reason = "a parser reads another text"
            elif pieces is not kept.pieces or _shape(kept) == _shape_of_text(written):
                return written
        except (ValueError, InputError) as error:
            reason = str(error)
    raise _cannot_hold(projected.text, "markdown", reason)


def _whole_line(projected: ProjectedText) -> str:
    """The written line: what begins a block (a heading, an item of a list) stands in front, and nothing else begins one."""
    blocks = [piece for piece in projected.pieces if piece.mark.name == "block"]
    others = tuple(piece for piece in projected.pieces if piece.mark.name != "block")
    line = _write(replace(projected, pieces=others), _escape_markdown)
    if not others or others[0].start > 0 or not others[0].mark.opening:  # the line begins with text
        line = _escape_start(line)
    else:
        line = re.sub(r"\s+$", _as_entity, line)
    return "".join(piece.mark.opening for piece in blocks[:1]) + line


def _fenced(text: str) -> Callable[[Piece], Piece]:
    """Give code as many backticks as its text needs."""

    def fence(piece: Piece) -> Piece:
        children = tuple(map(fence, piece.children))
        if piece.mark.name != "code":
            return replace(piece, children=children)
        content = text[piece.start : piece.end]
        own = piece.mark.opening.strip()
        runs = {len(run) for run in re.findall("`+", content)}
        ticks = own if len(own) not in runs else "`" * (max(runs) + 1)
        edges = content[:1] + content[-1:]
        pad = " " if "`" in edges or (edges == "  " and content.strip()) else ""
        return replace(piece, mark=replace(piece.mark, opening=ticks + pad, closing=pad + ticks))

    return fence


def _without_lost(pieces: Sequence[Piece]) -> tuple[Piece, ...]:
    return tuple(
        replace(piece, children=_without_lost(piece.children))
        for piece in pieces
        if piece.start < piece.end or piece.mark.start == piece.mark.end
    )


def _as_html(piece: Piece) -> Piece:
    opening, closing = _HTML_OF.get(piece.mark.name, (piece.mark.opening, piece.mark.closing))
    mark = replace(piece.mark, opening=opening, closing=closing)
    return replace(piece, mark=mark, children=tuple(map(_as_html, piece.children)))


def _shape(projected: ProjectedText) -> tuple[str, list[tuple[str, int, int]]]:
    pieces = [(p.mark.name, p.start, p.end) for p in projected.walk()]
    return projected.text, sorted(pieces)


def _shape_of_text(written: str) -> tuple[str, list[tuple[str, int, int]]]:
    read = _read_markdown(written)
    return read.text, sorted((mark.name, mark.start, mark.end) for mark in read.marks)
