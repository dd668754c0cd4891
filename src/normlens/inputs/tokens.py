"""Tokens as people read them, and the words that they make up."""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from normlens.inputs.places import Place

#: What tokenizers put before a word or a continuation, and what people do not read.
_WORD_START = ("▁", "Ġ")
_CONTINUATION = "##"

#: A line break and a tab, as the byte-level alphabet writes them, begin a word too.
_BREAKS = ("Ċ", "ĉ")

#: The signs of control characters that every text has; fonts have them, unlike the control pictures of Unicode.
SIGNS = {"\n": "↵", "\r": "←", "\t": "⇥"}

#: Zero-width joiner and variation selectors make one picture of several emoji: they stay.
_KEPT_FORMAT = {"\u200d", "\ufe0e", "\ufe0f"}


def _byte_alphabet() -> dict[str, int]:
    """The character that byte-level tokenizers (GPT-2, Llama 3, Qwen) write for each byte, as character to byte."""
    visible = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    hidden = [byte for byte in range(256) if byte not in visible]
    return {chr(byte): byte for byte in visible} | {chr(256 + order): byte for order, byte in enumerate(hidden)}


_BYTES = _byte_alphabet()


@dataclass(frozen=True)
class Tokens:
    """The tokens of one side: ids, strings, and which word each belongs to (numbered along the sequence)."""

    ids: tuple[int, ...]
    strings: tuple[str, ...]
    words: tuple[int, ...]
    places: tuple[Place, ...] = ()  # of positions among which some are no text

    def word_strings(self) -> tuple[str, ...]:
        """Each word as people would write it."""
        parts: dict[int, list[str]] = {}
        for word, string in zip(self.words, self.strings, strict=True):
            parts.setdefault(word, []).append(readable(string))
        return tuple("".join(part) for part in parts.values())


def readable(token: str) -> str:
    """A token without the marks by which its tokenizer shows word boundaries."""
    for mark in _WORD_START:
        token = token.removeprefix(mark)
    return token.removeprefix(_CONTINUATION) if len(token) > len(_CONTINUATION) else token


def is_special(token: str) -> bool:
    """Does the token look like one that stands for no text: `[CLS]`, `</s>`, `<|endoftext|>`?"""
    return len(token) > 2 and ((token[0] == "[" and token[-1] == "]") or (token[0] == "<" and token[-1] == ">"))


def is_byte_level(tokens: Sequence[str]) -> bool:
    """Are the tokens written in the byte-level alphabet?

    Only such a sequence both stays within the alphabet and carries one of its stand-ins (`Ġ` for a space) or bytes
    that join to valid UTF-8; plain ASCII reads the same either way.

    >>> is_byte_level(["The", "Ġcaf", "Ã©"]), is_byte_level(["the", "café"])
    (True, False)
    """
    text = "".join(token for token in tokens if not is_special(token))
    if not text or any(character not in _BYTES for character in text):
        return False
    if any(ord(character) >= 256 for character in text):
        return True
    try:
        return bytes(_BYTES[character] for character in text).decode() != text
    except UnicodeDecodeError:
        return False


def readable_tokens(tokens: Sequence[str]) -> list[str]:
    """The tokens of one text as people read them: marks removed, bytes decoded, nothing invisible left.

    A piece of a character that several tokens share is shown as its bytes.

    >>> readable_tokens(["The", "Ġcaf", "Ã©", "Ċ"]), readable_tokens(["▁Bon", "jour", "##ing", "a\\u202eb"])
    (['The', 'caf', 'é', '↵'], ['Bon', 'jour', 'ing', 'a⟨202E⟩b'])
    """
    byte_level = is_byte_level(tokens)
    return [_decoded(token, byte_level) for token in tokens]


def sentence(tokens: Sequence[str]) -> str:
    """Tokens as a sentence again, special tokens left out.

    >>> sentence(["[CLS]", "the", "gal", "##lon", "[SEP]"]), sentence(["▁Bon", "jour", ".", "</s>"])
    ('the gallon', 'Bonjour.')
    """
    words: dict[int, str] = {}
    places = words_by_marks(tokens, {token for token in tokens if is_special(token)})
    for token, text, word in zip(tokens, readable_tokens(tokens), places, strict=True):
        if not is_special(token):
            words[word] = words.get(word, "") + text
    return " ".join(words.values())


def words_by_marks(strings: Sequence[str], special: set[str]) -> tuple[int, ...]:
    """Words from the tokenizer's own marks: `▁` or `Ġ` begins one, `##` goes on, a special token stands alone."""
    marked = any(string.startswith(_WORD_START + _BREAKS) for string in strings)
    continued = any(string.startswith(_CONTINUATION) for string in strings)
    words: list[int] = []
    for i, string in enumerate(strings):
        alone = i == 0 or string in special or strings[i - 1] in special
        begins = (
            string.startswith(_WORD_START + _BREAKS) if marked else not (continued and string.startswith(_CONTINUATION))
        )
        words.append(len(set(words)) if alone or begins else words[-1])
    return tuple(words)


def _decoded(token: str, byte_level: bool) -> str:
    if is_special(token):
        # SentencePiece writes a byte that no piece covers as <0xE2>.
        return _visible(token)
    if byte_level:
        data = bytes(_BYTES[character] for character in token)
        try:
            text = data.decode()
        except UnicodeDecodeError:
            return "⟨" + " ".join(f"{byte:02X}" for byte in data) + "⟩"
    else:
        text = token.removeprefix(_CONTINUATION) if len(token) > len(_CONTINUATION) else token
        text = text.replace("▁", " ").removesuffix("</w>")
    text = text[1:] if len(text) > 1 and text[0] == " " else text
    return _visible(text) or "∅"


def _visible(text: str) -> str:
    return "".join(_named(character) for character in text)


def _named(character: str) -> str:
    """The character itself, or a visible stand-in for one that would hide, break the line or turn its direction."""
    code = ord(character)
    if character in SIGNS:
        return SIGNS[character]
    if code < 0x20:
        return chr(0x2400 + code)
    if character == " ":
        return "␣"
    if code == 0x7F:
        return "␡"
    if character in _KEPT_FORMAT:
        return character
    if unicodedata.category(character) in {"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"}:
        return f"⟨{code:04X}⟩"
    return character


def decoder_input(labels: Sequence[int], start: int | None) -> tuple[int, ...]:
    """The decoder's input for these labels: the start token, then the labels without their last one.

    A model without a start token of its own (mBART) starts with the label that ends the sentence.

    >>> decoder_input([7, 8, 2], 0), decoder_input([7, 8, 2], None)
    ((0, 7, 8), (2, 7, 8))
    """
    return (labels[-1] if start is None else start, *labels[:-1])
