"""No more of a text is read than was said, whatever the path stands for."""

from __future__ import annotations

from pathlib import Path

import pytest

from normlens.alignment.formats import read_alignments
from normlens.alignment.layer_choice import SavedChoice
from normlens.alignment.parallel_files import read_lines as read_sentences
from normlens.corpus.sequences import read_ranks
from normlens.errors import InputError
from normlens.faithfulness.samples import read_lines as read_texts
from normlens.faithfulness.samples import read_rows
from normlens.io import reading
from normlens.io.checksums import read_json
from normlens.io.reading import read_lines, read_text


def test_a_text_is_read_with_its_line_ends_up_to_its_bound(tmp_path: Path) -> None:
    path = tmp_path / "text"
    path.write_bytes("é\r\nb\n".encode())
    assert read_text(path, 6) == "é\r\nb\n" and list(read_lines(path, 3)) == ["é\r\n", "b\n"]
    with pytest.raises(ValueError, match="more than 5 bytes"):
        read_text(path, 5)
    with pytest.raises(ValueError, match="line 1 has more than 2 characters"):
        list(read_lines(path, 2))
    path.write_bytes(b"a\n\xff")
    lines = read_lines(path)
    with pytest.raises(ValueError, match="utf-8"):
        list(lines)
    with pytest.raises(ValueError, match="utf-8"):
        read_text(path)


@pytest.mark.parametrize(
    "read",
    [
        lambda path: list(read_sentences(path)), read_alignments, SavedChoice.read, read_texts, read_rows,
        lambda path: read_ranks(path, 10), lambda path: read_json(path, "a record"),
    ],
    ids=["sentences", "alignments", "choice", "texts", "rows", "ranks", "record"],
)  # fmt: skip
def test_a_device_without_end_ends_in_a_sentence(read, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading.read_text, "__defaults__", (1 << 16,))  # as any bound, and quicker
    monkeypatch.setattr(reading.read_lines, "__defaults__", (1 << 16,))
    monkeypatch.setattr("normlens.io.checksums._LARGEST_RECORD", 1 << 16)
    with pytest.raises(InputError, match="/dev/zero"):
        read(Path("/dev/zero"))
