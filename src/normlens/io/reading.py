"""Text files, of which no more is read than was said: a path may be a device that never ends, a line as long as its file."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from normlens.io.remote import AnyPath

#: Bytes of a text that is read at once, and characters of a line where lines are read one by one.
LARGEST_TEXT, LONGEST_LINE = 1 << 27, 1 << 24
_BLOCK = 1 << 20


def read_text(path: AnyPath, largest: int = LARGEST_TEXT) -> str:
    """A UTF-8 text with its line ends as they are, without a byte order mark; any other is a `ValueError`."""
    content = bytearray()
    with path.open("rb") as stream:
        while block := stream.read(_BLOCK):  # not all at once: room for it would be made before it is there
            content += block
            if len(content) > largest:
                raise ValueError(f"it has more than {largest} bytes")
    return content.decode("utf-8-sig")


def read_lines(path: Path, longest: int = LONGEST_LINE) -> Iterator[str]:
    """Lines of a UTF-8 text, ended by a line feed alone; one that is longer, or no UTF-8, is a `ValueError`."""
    with path.open(encoding="utf-8-sig", newline="\n") as file:
        number = 0
        while line := file.readline(longest + 1):
            number += 1
            if len(line) > longest:
                raise ValueError(f"line {number} has more than {longest} characters")
            yield line
