"""Prompts with named parts: sources in a template, and the messages of a chat.

Which characters a part takes is known from how the prompt was put together, never by searching for its text.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from normlens.errors import InputError
from normlens.io.remote import first_line
from normlens.types import JsonMapping

#: What belongs to no named part: the template's own text, and what a model writes after the prompt.
REST, ANSWER = "rest", "answer"

Message = JsonMapping
#: The characters from `start` to `stop` of a prompt, with the name of their part.
Stretch = tuple[int, int, str]


@dataclass(frozen=True)
class Prompt:
    """A text and the stretches of characters that its parts take.

    `complete` says that special tokens are part of the text, as in the text of a chat template.
    """

    text: str
    sources: tuple[Stretch, ...] = ()
    messages: tuple[Stretch, ...] = ()
    complete: bool = False

    def parts_of_tokens(
        self, stretches: Sequence[Stretch], offsets: Sequence[tuple[int, int]], special: Sequence[int]
    ) -> list[str]:
        """Return the part of each token, from its characters.

        Args:
            stretches: The characters of each part.
            offsets: The characters of each token. A tokenizer may leave blanks out of them, so that a token of blanks
                has none; it stands where they begin.
            special: 1 for tokens that the tokenizer put around the text.
        """
        parts = []
        for (start, stop), added in zip(offsets, special, strict=True):
            name, most = REST, 0
            for begin, end, part in stretches:
                if added and start == stop:
                    continue
                if start == stop:
                    shared = int(begin <= start <= end)
                else:
                    shared = min(stop, end) - max(start, begin)
                if 2 * shared >= stop - start and shared > most:
                    name, most = part, shared
            parts.append(name)
        return parts


@dataclass
class _Writer:
    """A text that grows, with the stretches of its sources."""

    text: str = ""
    stretches: list[Stretch] = field(default_factory=list)

    def add(self, text: str, name: str | None = None) -> None:
        if name is not None:
            self.stretches.append((len(self.text), len(self.text) + len(text), name))
        self.text += text


def place_sources(template: str, sources: Mapping[str, str]) -> Prompt:
    """Put sources in the places of a template that name them: `{doc 1}`.

    >>> place_sources("{doc 1} Question: why?", {"doc 1": "Because."})
    Prompt(text='Because. Question: why?', sources=((0, 8, 'doc 1'),), messages=(), complete=False)
    """
    writer = _written(template, sources)
    missing = [name for name in sources if name not in {part for *_, part in writer.stretches}]
    if missing:
        raise InputError(
            f"the text has no place for the source {missing[0]!r}; write {{{missing[0]}}} where it belongs"
        )
    return Prompt(writer.text, tuple(writer.stretches))


def _written(template: str, sources: Mapping[str, str]) -> _Writer:
    if not isinstance(sources, Mapping):
        raise InputError(f"sources must map names to texts, got {type(sources).__name__}")
    for name, text in sources.items():
        if not isinstance(name, str) or not isinstance(text, str):
            raise InputError(f"sources must map names to texts, got {name!r}: {type(text).__name__}")
        if not text.strip():
            raise InputError(f"source {name!r} is empty; leave it out")
        if name in (REST, ANSWER):
            raise InputError(f"a source cannot be called {name!r}, the name of tokens that belong to no source")
    writer = _Writer()
    if not sources:
        writer.add(template)
        return writer
    names = "|".join(re.escape(name) for name in sources)
    place = 0
    for match in re.finditer(rf"\{{({names})\}}", template):
        writer.add(template[place : match.start()])
        writer.add(sources[match[1]], match[1])
        place = match.end()
    writer.add(template[place:])
    return writer


def render_chat(
    tokenizer: Any, messages: Sequence[Message], sources: Mapping[str, str], tools: Sequence[Any] | None = None
) -> Prompt:
    """Return the text of a chat by the tokenizer's template, with the stretches of its messages.

    The template is rendered twice: with the messages, and with marks in their places. Where the second text with its marks
    replaced is not the first, the template changes what messages say, and their stretches are not known.

    Args:
        tokenizer: A tokenizer with a chat template.
        messages: Mappings with `role` and `content`; contents may name sources (`{doc 1}`).
        sources: Texts by name.
        tools: Functions or schemas for the template.
    """
    if tokenizer is None:
        raise InputError("this lens has no tokenizer; pass Lens(model, tokenizer)")
    if not messages:
        raise InputError("a chat has no message")
    if not getattr(tokenizer, "chat_template", None):
        raise InputError("this tokenizer has no chat template; pass the prompt as a text")
    contents = [_written(_content(message), sources) for message in messages]
    placed = {part for content in contents for *_, part in content.stretches}
    for name in sources:
        if name not in placed:
            raise InputError(f"no message has a place for the source {name!r}; write {{{name}}} where it belongs")
    said = hashlib.sha256(repr(messages).encode(errors="replace")).hexdigest()  # no message can hold its own digest
    marks = [f"\ue000{said}:{number}\ue001" for number in range(len(messages))]
    real = _rendered(tokenizer, messages, [content.text for content in contents], tools)
    marked = _rendered(tokenizer, messages, marks, tools)
    return _chat_prompt(real, re.split(f"\ue000{said}:(\\d+)\ue001", marked), messages, contents)


def _content(message: Message) -> str:
    content = message.get("content") if isinstance(message, Mapping) else None
    if not isinstance(content, str) or not isinstance(message.get("role"), str):
        raise InputError(f"a message must have a role and a content, both strings, got {str(message)[:80]!r}")
    return content


def _rendered(tokenizer: Any, messages: Sequence[Message], contents: Sequence[str], tools: Any) -> str:
    chat = [{**message, "content": content} for message, content in zip(messages, contents, strict=True)]
    answers = chat[-1]["role"] != "assistant"
    try:
        text = tokenizer.apply_chat_template(chat, tools=tools, tokenize=False, add_generation_prompt=answers)
    except Exception as error:  # a template raises what its author wrote
        raise InputError(f"the chat template refuses these messages: {first_line(error)}") from error
    return str(text)


def _chat_prompt(real: str, pieces: Sequence[str], messages: Sequence[Message], contents: Sequence[_Writer]) -> Prompt:
    """The rendered text with the stretches of its messages; `pieces` are the template's own text and message numbers."""
    text = pieces[0]
    stretches: list[Stretch] = []
    sources: list[Stretch] = []
    for number, following in zip(pieces[1::2], pieces[2::2], strict=True):
        content = contents[int(number)]
        written = content.text
        if not real.startswith(written + following, len(text)):
            written = written.strip()  # some templates take contents without the blanks around them
        cut = content.text.find(written)
        start = len(text)
        stretches.append((start, start + len(written), f"{int(number) + 1} {messages[int(number)]['role']}"))
        for begin, end, name in content.stretches:
            sources.append((start + max(0, begin - cut), start + min(len(written), end - cut), name))
        text += written + following
    if text != real:
        raise InputError(
            "the chat template changes what messages say, so it is not known which tokens are theirs; render the chat "
            "yourself and pass it as a text"
        )
    return Prompt(real, tuple(sources), tuple(stretches), complete=True)
