"""The command answers at once: what runs no model never imports a model library."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from normlens.anatomy.loading import default_model
from normlens.cli.main import COMMANDS
from tests.cli.test_shell import embedded

SOURCE = Path(__file__).parent.parent.parent / "src"

#: Runs the command in a new interpreter and reports what it imported and how long the processor worked for it.
PROBE = """
import json, sys, time
from normlens.cli.main import main
report, sys.argv = sys.argv[1], ["normlens", *sys.argv[2:]]
try:
    main()
except SystemExit as stop:
    code = stop.code
heavy = ("torch", "transformers", "xarray", "pandas", "matplotlib", "scipy", "numba", "pyarrow", "zarr")
found = {"code": code, "seconds": time.process_time(), "heavy": [name for name in heavy if name in sys.modules]}
open(report, "w").write(json.dumps(found))
"""

#: Seconds of processor time; the goal is 0.4, and importing torch alone takes several times that.
BUDGET = 0.8


def probe(folder: Path, *arguments: str) -> dict[str, object]:
    report = folder / "report.json"
    done = subprocess.run(
        [sys.executable, "-c", PROBE, str(report), *arguments],
        env={**os.environ, "PYTHONPATH": str(SOURCE)},
        capture_output=True,
        text=True,
    )
    assert report.exists(), done.stderr
    found: dict[str, object] = json.loads(report.read_text())
    return {**found, "out": done.stdout, "err": done.stderr}


@pytest.mark.parametrize("arguments", [("--help",), ("--version",), *((name, "--help") for name in COMMANDS)])
def test_help_and_version_import_no_model_library(arguments: tuple[str, ...], tmp_path: Path) -> None:
    found = probe(tmp_path, *arguments)
    assert found["code"] == 0 and found["heavy"] == [] and found["err"] == ""
    assert "normlens" in str(found["out"])


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("--nope",), "no such option: --nope; see `normlens --help`"),
        (("analyse",), "no such command 'analyse'. Did you mean 'analyze'? See `normlens --help`"),
        (("analyze",), "give a text, --image or --audio"),
        (("aer", "links", "--gold", "gold", "--worst", "many"), "invalid value for '--worst'"),
        (("corpus", "wiki.txt"), "missing option '--out'; see `normlens corpus --help`"),
        (("aer", "links", "--gold", "gold", "--source", "text"), "--source and --target belong together"),
        (("view", "text", "--span", "one"), "a span must be START:STOP"),
        (("analyze", "text", "--out", "/proc/nowhere"), "/proc/nowhere/analysis.zarr cannot be written"),
        (("reproduce", "nothing"), "an experiment must be one of"),
        (
            ("align", "--model", "m", "--source", "s", "--target", "t", "--resume"),
            "--resume needs the file to go on with",
        ),
        (("align", "--model", "m", "--source", "s", "--target", "t"), "s does not exist"),
    ],
)
def test_a_usage_error_is_one_sentence_and_imports_no_model_library(
    arguments: tuple[str, ...], sentence: str, tmp_path: Path
) -> None:
    found = probe(tmp_path, *arguments)
    error = str(found["err"])
    assert found["code"] == 2 and sentence in error and found["out"] == ""
    assert error.startswith("normlens: ") and len(error.splitlines()) == 1
    assert found["heavy"] == []


def test_aer_runs_without_torch(tmp_path: Path) -> None:
    (tmp_path / "gold").write_text("1-1 2p2\n\n")
    (tmp_path / "links").write_text("0-0\n\n")
    (tmp_path / "text").write_text("a b\nc\n")
    sides = ("--source", str(tmp_path / "text"), "--target", str(tmp_path / "text"))
    arguments = ("aer", str(tmp_path / "links"), "--gold", str(tmp_path / "gold"), "--gold-one-based", *sides)
    found = probe(tmp_path, *arguments, "--json")
    assert found["code"] == 0, found["err"]
    assert json.loads(str(found["out"]))["aer"] == 0
    assert found["heavy"] == []


@pytest.mark.parametrize("argument", ["--help", "--version"])
def test_help_and_version_stay_within_their_processor_time(argument: str, tmp_path: Path) -> None:
    best = min(float(str(probe(tmp_path, argument)["seconds"])) for _ in range(3))
    assert best < BUDGET, f"normlens {argument} took {best:.2f} s of processor time"


@embedded
def test_an_analysis_takes_little_more_than_the_model_alone(tmp_path: Path) -> None:
    """Drawing, saving and compiled loops are for those who ask for them; loading the model is most of the wait."""
    bare = (
        "import torch, transformers\n"
        f"tokenizer = transformers.AutoTokenizer.from_pretrained({default_model()!r})\n"
        f"model = transformers.AutoModel.from_pretrained({default_model()!r})\n"
        "with torch.no_grad():\n"
        "    model(**tokenizer('The cat sat.', return_tensors='pt'))\n"
    )
    runs = [seconds("-m", "normlens.cli.main", "analyze", "The cat sat.") for _ in range(2)]
    assert min(runs) < 1.3 * min(seconds("-c", bare) for _ in range(2))
    found = probe(tmp_path, "analyze", "The cat sat.")
    assert found["code"] == 0, found["err"]
    assert not {"matplotlib", "zarr", "numba"} & set(found["heavy"])  # type: ignore[call-overload]


def seconds(*arguments: str) -> float:
    """The processor time of a whole interpreter, from its start to its end."""
    process = subprocess.Popen(
        [sys.executable, *arguments],
        env={**os.environ, "PYTHONPATH": str(SOURCE), "OMP_NUM_THREADS": "1"},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    _, status, usage = os.wait4(process.pid, 0)
    assert status == 0
    return usage.ru_utime + usage.ru_stime


def test_a_bare_command_shows_its_help_and_fails(tmp_path: Path) -> None:
    found = probe(tmp_path)
    assert found["code"] == 2 and all(name in str(found["out"]) for name in COMMANDS)
