"""Ways to damage a file: blind ones for any bytes, and ones that keep a JSON document or a text readable and wrong."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable
from typing import Any

Mutation = Callable[[bytes, random.Random], bytes]

#: What a field may be replaced by: every wrong type, numbers that are too large, and texts that are none.
STRANGERS: list[Any] = [
    None, True, -1, 0, 10**12, 2**63, 1.5, float("nan"), float("inf"), "", "x", "\ud800", "[/x]", "../../etc/passwd",
    [], {}, [[]], ["x", 1], {"x": None}, [10**12] * 3,
]  # fmt: skip


def truncated(content: bytes, rng: random.Random) -> bytes:
    return content[: rng.randrange(len(content) + 1)]


def bits_flipped(content: bytes, rng: random.Random) -> bytes:
    changed = bytearray(content)
    for _ in range(rng.choice([1, 1, 1, 4, 64])):
        if changed:
            changed[rng.randrange(len(changed))] ^= 1 << rng.randrange(8)
    return bytes(changed)


def overwritten(content: bytes, rng: random.Random) -> bytes:
    changed = bytearray(content)
    start = rng.randrange(len(changed) + 1)
    piece = rng.choice([b"\x00" * 16, b"\xff" * 16, rng.randbytes(32), b"9" * 5000, b"\n" * 8, b'"', b"[" * 5000])
    changed[start : start + len(piece)] = piece
    return bytes(changed)


def inserted(content: bytes, rng: random.Random) -> bytes:
    at = rng.randrange(len(content) + 1)
    return (
        content[:at]
        + rng.choice([b"\x00", b"\xff\xfe", b"\r", b"\x1b[31m", b'"', b"{", b"\xed\xa0\x80"])
        + content[at:]
    )


def emptied(content: bytes, rng: random.Random) -> bytes:
    return b""


def garbage(content: bytes, rng: random.Random) -> bytes:
    return rng.randbytes(rng.choice([1, 100, 5000]))


def repeated(content: bytes, rng: random.Random) -> bytes:
    return content * rng.choice([2, 3])


def other_encoding(content: bytes, rng: random.Random) -> bytes:
    text = content.decode("utf-8", errors="replace")
    return text.encode(rng.choice(["utf-16", "utf-32", "latin-1", "cp1252", "utf-8-sig"]), errors="replace")


def huge_number(content: bytes, rng: random.Random) -> bytes:
    """One of its numbers becomes very large, very long or negative."""
    numbers = list(re.finditer(rb"\d+", content[:200_000]))
    if not numbers:
        return content
    found = rng.choice(numbers)
    new = rng.choice([b"1000000000000", b"9" * 5000, b"-1", b"1e999", b"0", b"18446744073709551616"])
    return content[: found.start()] + new + content[found.end() :]


def lines_shuffled(content: bytes, rng: random.Random) -> bytes:
    lines = content.splitlines(keepends=True)
    rng.shuffle(lines)
    return b"".join(lines[: rng.randrange(len(lines) + 1)])


def field_replaced(content: bytes, rng: random.Random) -> bytes:
    """A JSON document, or one line of JSON lines, with one value replaced, removed or added."""
    lines = content.splitlines()
    whole = _parsed(content)
    if whole is not None:
        return _written(_changed(whole, rng))
    for number in rng.sample(range(len(lines)), min(5, len(lines))):
        document = _parsed(lines[number])
        if document is not None:
            lines[number] = _written(_changed(document, rng))
            return b"\n".join(lines) + b"\n"
    return bits_flipped(content, rng)


def _parsed(content: bytes) -> Any:
    try:
        return json.loads(content)
    except (ValueError, RecursionError):
        return None


def _written(document: Any) -> bytes:
    return json.dumps(document).encode()


def _changed(document: Any, rng: random.Random) -> Any:
    places: list[tuple[Any, Any]] = []
    stack = [document]
    while stack:
        node = stack.pop()
        items = node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ()
        for key, value in items:
            places.append((node, key))
            stack.append(value)
    if not places:
        return rng.choice(STRANGERS)
    node, key = rng.choice(places)
    what = rng.random()
    if what < 0.15:
        del node[key]
    elif what < 0.25 and isinstance(node, dict):
        node[rng.choice(["", "x", "\ud800", "[/x]"])] = rng.choice(STRANGERS)
    else:
        node[key] = rng.choice(STRANGERS)
    return document


BLIND: list[Mutation] = [truncated, bits_flipped, bits_flipped, overwritten, inserted, emptied, garbage, repeated]
TEXT: list[Mutation] = [*BLIND, other_encoding, huge_number, huge_number, lines_shuffled]
JSON: list[Mutation] = [*TEXT, *[field_replaced] * 8]


def mutations_for(name: str, content: bytes) -> list[Mutation]:
    """What may be done to a file of this name and content."""
    if re.search(r"json(l)?$", name):
        return JSON
    return TEXT if b"\x00" not in content[:1000] else BLIND
