from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import normlens
from normlens.alignment.parallel_files import read_sentences
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
