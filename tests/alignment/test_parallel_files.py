from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import normlens
from normlens.alignment import parallel_files
from normlens.alignment.parallel_files import UnfinishedRun, read_sentences
from normlens.errors import InputError


def test_only_line_feeds_part_lines(tmp_path: Path) -> None:
    path = tmp_path / "text"
    path.write_bytes("a\u2028b c\x0b\r\n\nd\x85e".encode())
    assert read_sentences(path) == [["a\u2028b", "c\x0b"], [], ["d\x85e"]]
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(InputError, match="UTF-8"):
        read_sentences(path)


def test_what_needs_no_model_needs_no_torch() -> None:
    names = ("extraction", "formats", "layer_choice", "links", "parallel_files", "scoring", "symmetrize")
    code = (
        f"import sys; {'; '.join(f'import normlens.alignment.{name}' for name in names)}; print('torch' in sys.modules)"
    )
    folder = Path(normlens.__file__).parent.parent
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env={"PYTHONPATH": str(folder)})
    assert done.stdout.strip() == "False", done.stderr


def test_a_run_that_cannot_write_its_record_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise the same command, run again when there is room, would be refused because of what it left itself."""

    def full(path: Path, content: object) -> None:
        raise InputError("no space left")

    monkeypatch.setattr(parallel_files, "write_checked_json", full)
    with pytest.raises(InputError, match="no space left"), UnfinishedRun(tmp_path / "links", {}).growing():
        pass
    assert not list(tmp_path.iterdir())
