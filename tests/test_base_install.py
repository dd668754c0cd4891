"""What the base install does without: pyarrow, which corpora alone need."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.cli.test_shell import embedded

ROOT = Path(__file__).parent.parent
#: Only a new interpreter can tell what needs a package.
SCRIPT = """
import sys
sys.modules["pyarrow"] = None
import normlens
from normlens.errors import InputError

folder, text = sys.argv[1:]
lens = normlens.load()
lens.analyze("a small text").save(folder + "/run.zarr")
assert normlens.open(folder + "/run.zarr").provenance
for source in (text, "s3://bucket/text.txt"):
    try:
        lens.corpus(source, folder + "/out")
    except InputError as error:
        print(error)
"""


@embedded
def test_without_pyarrow_a_corpus_names_the_extra_and_the_rest_works(tmp_path: Path) -> None:
    text = tmp_path / "text.txt"
    text.write_text("a line\n")
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(tmp_path), str(text)],
        env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
        capture_output=True,
        text=True,
    )
    assert done.stdout.count("pip install 'normlens[corpus]'") == 2, done.stderr
