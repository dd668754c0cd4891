"""Tokens as people read them: byte-level pieces decoded, invisible characters named, pieces joined to words."""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence

#: The pieces' markers of a beginning word: SentencePiece's lower block, the byte-level alphabet's space and newline.
_WORD_START = ("▁", "Ġ", "Ċ", "ĉ")

#: Zero-width joiner and variation selectors make one picture of several emoji: they stay.
_KEPT_FORMAT = {"\u200d", "\ufe0e", "\ufe0f"}


def _byte_alphabet() -> dict[str, int]:
    """The character that byte-level tokenizers (GPT-2, Llama 3, Qwen) write for each byte, as character to byte."""
    visible = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    hidden = [byte for byte in range(256) if byte not in visible]
    return {chr(byte): byte for byte in visible} | {chr(256 + order): byte for order, byte in enumerate(hidden)}


_BYTES = _byte_alphabet()


def is_special(token: str) -> bool:
    """Does the token stand for no text: `[CLS]`, `</s>`, `<|endoftext|>`?"""
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


def readable(tokens: Sequence[str]) -> list[str]:
    """Each token as text: markers of the tokenizer removed, bytes decoded, nothing invisible left.

    A piece of a character that several tokens share is shown as its bytes; the page shows the raw token on hover.

    >>> readable(["The", "Ġcaf", "Ã©", "Ċ"]), readable(["▁Bon", "jour", "##ing", "a\\u202eb"])
    (['The', 'caf', 'é', '␊'], ['Bon', 'jour', 'ing', 'a⟨202E⟩b'])
    """
    byte_level = is_byte_level(tokens)
    return [_readable(token, byte_level) for token in tokens]


def _readable(token: str, byte_level: bool) -> str:
    if is_special(token):
        # SentencePiece writes a byte that no piece covers as <0xE2>.
        return _visible(token)
    if byte_level:
        data = bytes(_BYTES[character] for character in token)
        try:
            text = data.decode()
        except UnicodeDecodeError:
            return "⟨" + " ".join(f"{byte:02X}" for byte in data) + "⟩"
        text = text[1:] if len(text) > 1 and text[0] == " " else text
    else:
        text = token.removeprefix("##") if len(token) > 2 else token
        text = text.replace("▁", " ").removesuffix("</w>")
        text = text[1:] if len(text) > 1 and text[0] == " " else text
    return _visible(text) or "∅"


def _visible(text: str) -> str:
    return "".join(_named(character) for character in text)


def _named(character: str) -> str:
    """The character itself, or a visible stand-in for one that would hide, break the line or turn its direction."""
    code = ord(character)
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


def word_ids(tokens: Sequence[str]) -> list[int | None]:
    """The word that each token belongs to, by the tokenizer's own markers; `None` for a special token.

    >>> word_ids(["[CLS]", "gal", "##lon", "of", "[SEP]"]), word_ids(["▁Bon", "jour", ".", "</s>"])
    ([None, 0, 0, 1, None], [0, 0, 0, None])
    """
    pieces = [token for token in tokens if not is_special(token)]
    by_start = any(token.startswith(_WORD_START) for token in pieces)
    ids: list[int | None] = []
    word, previous = -1, None
    for token in tokens:
        if is_special(token):
            ids.append(None)
        else:
            begins = token.startswith(_WORD_START) if by_start else not token.startswith("##")
            if begins or previous is None:
                word += 1
            ids.append(word)
        previous = ids[-1]
    return ids
