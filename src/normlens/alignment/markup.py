"""Inline markup to marked text and back: HTML, XML as in XLIFF, and Markdown's emphasis, code and links.

Reading takes the markup off and keeps it as marks; writing puts it around the pieces in the other text, whose own
characters are escaped where they would be read as markup. What was well-formed stays so: pieces are a tree.

* HTML: tags must close in the order in which they opened; `<br>`, `<img …>` and the other void elements stand alone.
* XML: the same, but every tag closes or closes itself (`<x id="1"/>`), and a bare `<` or `&` is an error.
* Markdown: `*`, `_`, `~~`, code, links and images, with CommonMark's rule for what opens and closes; a delimiter without
  a partner is text. Emphasis that Markdown cannot express at its new place is written as the HTML tag of that name.

Comments, processing instructions and declarations are marks without words.
"""

from __future__ import annotations

import html
import re
import unicodedata
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal, get_args

from normlens.alignment.marked_text import Mark, MarkedText, Piece, ProjectedText
from normlens.alignment.rendered import html_text, markdown_text, xml_text
from normlens.errors import InputError
from normlens.inputs.words import shortened
from normlens.options import Markup

MARKUPS: tuple[Markup, ...] = get_args(Markup)

_TAG = re.compile(
    r"""<(?:
        (?P<other>!--.*?--|!\[CDATA\[.*?\]\]|\?.*?\?|![A-Za-z][^<>]*)
        |(?P<end>/)(?P<closing>[A-Za-z_][\w:.-]*)\s*
        |(?P<opening>[A-Za-z_][\w:.-]*)(?:\s+[^\s<>"'=/]+(?:\s*=\s*(?:"[^"]*"|'[^']*'|[^\s"'=<>`]+))?)*\s*(?P<self>/?)
    )>""",
    re.VERBOSE | re.DOTALL,
)
#: Tags at which a word ends even if no blank stands there.
_BREAKS = frozenset(
    ["br", "hr", "p", "div", "li", "td", "th", "tr", "dt", "dd", "h1", "h2", "h3", "h4", "h5", "h6", "blockquote"]
)
_VOID = frozenset(
    ["area", "base", "br", "col", "embed", "hr", "img", "input", "link", "meta", "param", "source", "track", "wbr"]
)


def read_markup(line: str, markup: Markup) -> MarkedText:
    """Take the markup off a line; a line that is not well-formed is an error that says where.

    >>> read_markup("a <b>red</b> car", "html").marks[0]
    Mark(start=2, end=5, name='b', opening='<b>', closing='</b>', parent=None, extra={})
    """
    if markup == "markdown":
        return _read_markdown(line)
    if markup in ("html", "xml"):
        return _read_tags(line, strict=markup == "xml")
    raise InputError(f"Markup is one of {', '.join(MARKUPS)}: {markup!r} is none of them.")


def write_markup(projected: ProjectedText, markup: Markup) -> str:
    """The other text with its marks; an element that found no words is written empty, in Markdown not at all.

    The result is parsed once more: without its markup it must be the text, to the character.

    Raises:
        InputError: The format cannot hold this text (a control character in XML, say).
    """
    if markup == "markdown":
        return _write_markdown(projected)
    written = _write(projected, _escape_tags)
    try:
        same = (xml_text(written) if markup == "xml" else html_text(written)) == projected.text
        reason = "a parser reads another text"
    except ValueError as error:
        same, reason = False, str(error)
    if not same:
        raise _cannot_hold(projected.text, markup, reason)
    return written


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

    def end_word(self) -> None:
        self.breaks.add(self.length)

    def start(self, name: str, opening: str) -> None:
        self.add_point(name, opening)
        self.open.append(len(self.marks) - 1)

    def add_point(self, name: str, opening: str) -> None:
        parent = self.open[-1] if self.open else None
        self.marks.append(Mark(self.length, self.length, name, opening, "", parent))

    def finish(self, closing: str) -> None:
        place = self.open.pop()
        self.marks[place] = replace(self.marks[place], end=self.length, closing=closing)

    def result(self) -> MarkedText:
        return MarkedText("".join(self.text), tuple(self.marks), frozenset(self.breaks))


# ---- tags ---------------------------------------------------------------------------------------------------------


def _read_tags(line: str, *, strict: bool) -> MarkedText:
    found, place = _Building(), 0
    for match in _TAG.finditer(line):
        found.add_text(_plain_text(line[place : match.start()], strict, place))
        place = match.end()
        _take_tag(found, match, strict)
    found.add_text(_plain_text(line[place:], strict, place))
    if found.open:
        mark = found.marks[found.open[-1]]
        raise InputError(f"Every element is closed: {mark.opening} is not. Is the line cut in the middle of it?")
    return found.result()


def _take_tag(found: _Building, match: re.Match[str], strict: bool) -> None:
    whole = match[0]
    if not strict and (match["opening"] or match["closing"] or "").lower() in _BREAKS:
        found.end_word()
    if strict and whole.startswith("<![CDATA["):
        found.add_text(whole.removeprefix("<![CDATA[").removesuffix("]]>"))
    elif match["other"]:
        found.add_point("comment", whole)
    elif match["end"]:
        inner = found.marks[found.open[-1]] if found.open else None
        name = match["closing"] if strict else match["closing"].lower()
        if inner is None or inner.name != name:
            open_now = f"{inner.opening} is open" if inner else "nothing is open"
            raise InputError(f"Elements close in the order in which they opened: {whole} comes while {open_now}.")
        found.finish(whole)
    else:
        name = match["opening"] if strict else match["opening"].lower()
        if match["self"] or (not strict and name in _VOID):
            found.add_point(name, whole)
        else:
            found.start(name, whole)


def _plain_text(text: str, strict: bool, place: int) -> str:
    if strict and (bad := re.search(r"<|&(?!(?:[A-Za-z]\w*|#\d+|#x[0-9A-Fa-f]+);)", text)):
        raise InputError(
            f"In XML a bare {bad[0]} is written &{'lt' if bad[0] == '<' else 'amp'};: column {place + bad.start() + 1} "
            "has one."
        )
    return html.unescape(text)


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

_BLOCK = re.compile(r"\s{0,3}(?:#{1,6}|[-+*]|\d{1,9}[.)]|>)\s+")
_CODE = re.compile(r"(?<!`)(`+)(?!`)(.+?)(?<!`)\1(?!`)")
_LINK = re.compile(r"\]\((?:[^()\\\s]|\\.|\([^()\s]*\))*(?:\s+(?:\"[^\"]*\"|'[^']*'))?\)")
_RUN = re.compile(r"\*{1,3}|_{1,3}|~~")
_ESCAPED = re.compile(r"\\([!-/:-@\[-`{-~])")
_ENTITY = re.compile(r"&(?:#\d{1,7}|#[xX][0-9a-fA-F]{1,6}|[A-Za-z]\w*);")
_NAMES = {1: "em", 2: "strong", 3: "em-strong"}
_HTML_OF = {"em": ("<em>", "</em>"), "strong": ("<strong>", "</strong>"), "del": ("<del>", "</del>"),
            "em-strong": ("<em><strong>", "</strong></em>"), "code": ("<code>", "</code>")}  # fmt: skip


@dataclass(frozen=True)
class _Token:
    """A part of a Markdown line: text, or a delimiter that may open or close."""

    kind: Literal["text", "run", "open-link", "close-link", "code", "image", "tag"]
    text: str
    opens: bool = False
    closes: bool = False


def _read_markdown(line: str) -> MarkedText:
    tokens = _split_runs(list(_markdown_tokens(line)))
    partners = _partners(tokens)
    found = _Building()
    if (block := _BLOCK.match(line)) and tokens and tokens[0].text == block[0]:
        found.add_point("block", block[0])
        tokens[0] = replace(tokens[0], text="")
    for number, token in enumerate(tokens):
        if token.kind == "code":
            ticks = token.text[: len(token.text) - len(token.text.lstrip("`"))]
            content = token.text[len(ticks) : -len(ticks)]
            pad = " " if content[0] == content[-1] == " " and content.strip() else ""
            found.start("code", ticks + pad)
            found.add_text(content[1:-1] if pad else content)
            found.finish(pad + ticks)
        elif number in partners and partners[number] > number:
            found.start(_name_of(token), token.text)
        elif number in partners:
            found.finish(token.text)
        elif token.kind in ("image", "tag"):
            found.add_point(token.kind, token.text)
        else:
            found.add_text(token.text)
    return found.result()


def _name_of(token: _Token) -> str:
    if token.kind == "open-link":
        return "link"
    if token.kind == "tag":
        return _roles(token)[0].removeprefix("<")
    return "del" if token.text == "~~" else _NAMES[len(token.text)]


def _markdown_tokens(line: str) -> Iterator[_Token]:
    place, text = 0, ""
    if block := _BLOCK.match(line):
        yield _Token("text", block[0])
        place = block.end()
    while place < len(line):
        token, end = _token_at(line, place)
        if token is None:
            escaped = _ESCAPED.match(line, place)
            entity = _ENTITY.match(line, place)
            if entity is not None:
                text += html.unescape(entity[0])
                place = entity.end()
            else:
                text += escaped[1] if escaped else line[place]
                place = escaped.end() if escaped else place + 1
            continue
        if text:
            yield _Token("text", text)
            text = ""
        yield token
        place = end
    if text:
        yield _Token("text", text)


def _token_at(line: str, place: int) -> tuple[_Token | None, int]:
    if code := _CODE.match(line, place):
        return _Token("code", code[0]), code.end()
    if line.startswith("![", place):
        link = re.compile(r"!\[[^\[\]]*").match(line, place)
        if link and (rest := _LINK.match(line, link.end())):
            return _Token("image", line[place : rest.end()]), rest.end()
    if line[place] == "[":
        return _Token("open-link", "["), place + 1
    if link := _LINK.match(line, place):
        return _Token("close-link", link[0]), link.end()
    if tag := _TAG.match(line, place):
        return _Token("tag", tag[0]), tag.end()
    if run := _RUN.match(line, place):
        before, after = line[place - 1 : place], line[run.end() : run.end() + 1]
        left = not _is_blank(after) and (not _is_punctuation(after) or _is_blank(before) or _is_punctuation(before))
        right = not _is_blank(before) and (not _is_punctuation(before) or _is_blank(after) or _is_punctuation(after))
        if run[0][0] == "_":  # no emphasis inside of a word by underscores
            left, right = (
                left and (not right or _is_punctuation(before)),
                right and (not left or _is_punctuation(after)),
            )
        return _Token("run", run[0], left, right), run.end()
    return None, place


def _split_runs(tokens: Sequence[_Token]) -> list[_Token]:
    """Cut a run of three into one and two where it opens or closes two emphases that do not end together."""
    found: list[_Token] = []
    waiting: list[int] = []
    for token in tokens:
        last = found[waiting[-1]] if waiting else None
        if token.kind != "run" or token.text == "~~":
            found.append(token)
        elif token.closes and last is not None and last.text[0] == token.text[0]:
            if len(last.text) == 3 and len(token.text) < 3:
                outer = replace(last, text=last.text[len(token.text) :])
                found[waiting[-1] : waiting[-1] + 1] = [outer, replace(last, text=token.text)]
                found.append(token)  # the outer one waits on, at the place where both stood
            elif len(token.text) == 3 and len(last.text) < 3:
                found += [replace(token, text=last.text), replace(token, text=token.text[len(last.text) :])]
                del waiting[-2:]
            else:
                found.append(token)
                waiting.pop()
        else:
            found.append(token)
            if token.opens:
                waiting.append(len(found) - 1)
    return found


def _partners(tokens: Sequence[_Token]) -> dict[int, int]:
    """Pairs of delimiters, by their numbers and each way; one without a partner is text, or a lone tag."""
    partners: dict[int, int] = {}
    waiting: list[tuple[int, str]] = []
    for number, token in enumerate(tokens):
        opens, closes = _roles(token)
        opener = next((i for i, name in reversed(waiting) if name == closes), None) if closes else None
        if opener is not None and opener + 1 < number:
            partners[opener], partners[number] = number, opener
            waiting = [(i, name) for i, name in waiting if i < opener]
        elif opens:
            waiting.append((number, opens))
    return partners


def _roles(token: _Token) -> tuple[str, str]:
    """The marks that a token can open and close; empty for nothing."""
    if token.kind == "run":
        return token.text if token.opens else "", token.text if token.closes else ""
    if token.kind == "tag" and (tag := _TAG.fullmatch(token.text)):
        name = (tag["opening"] or "").lower()
        lone = not name or tag["self"] or name in _VOID
        return "" if lone else f"<{name}", f"<{tag['closing'].lower()}" if tag["closing"] else ""
    return ("[" if token.kind == "open-link" else ""), ("[" if token.kind == "close-link" else "")


def _is_blank(character: str) -> bool:
    return not character or character.isspace()


def _is_punctuation(character: str) -> bool:
    return bool(character) and unicodedata.category(character)[0] in "PS"


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
            if markdown_text(written) != projected.text:
                reason = "a parser reads another text"
            elif pieces is not kept.pieces or _shape(kept) == _shape_of_text(written):
                return written
        except ValueError as error:
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
