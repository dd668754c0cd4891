"""Tutorials run as they are written, and their notebooks are made from what is written."""

from __future__ import annotations

import importlib.util
import json
import os
from pathlib import Path

import matplotlib
import pytest

TUTORIALS = Path(__file__).parents[2] / "docs" / "tutorials"
spec = importlib.util.spec_from_file_location("normlens_tutorials", TUTORIALS / "build.py")
assert spec is not None and spec.loader is not None
build = importlib.util.module_from_spec(spec)
spec.loader.exec_module(build)

NAMES = sorted(path.stem for path in build.SOURCES.glob("*.py"))
#: These need pretrained models, or start Ray; `make test-real` runs them.
LONG = {"alignment_and_aer", "attention_sink", "corpus_on_ray"}


def source(name: str) -> list[tuple[str, str]]:
    return list(build.cells((build.SOURCES / f"{name}.py").read_text(encoding="utf-8")))


@pytest.mark.parametrize("name", NAMES)
def test_the_notebook_has_the_cells_of_its_source_and_no_error(name: str) -> None:
    notebook = json.loads((TUTORIALS / f"{name}.ipynb").read_text(encoding="utf-8"))
    cells = [(cell["cell_type"], "".join(cell["source"])) for cell in notebook["cells"]]
    assert cells == source(name), f"run python docs/tutorials/build.py {name}"
    outputs = [output for cell in notebook["cells"] for output in cell.get("outputs", ())]
    assert outputs and all(output["output_type"] != "error" for output in outputs)
    assert "assert " in "".join(text for kind, text in cells if kind == "code")  # what it claims, it checks


@pytest.mark.parametrize("name", [pytest.param(n, marks=[pytest.mark.real] if n in LONG else []) for n in NAMES])
def test_it_runs(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if name in ("alignment_and_aer", "attention_sink") and "NORMLENS_REAL_MODELS" not in os.environ:
        pytest.skip("needs real models in NORMLENS_REAL_MODELS")
    monkeypatch.chdir(tmp_path)
    matplotlib.use("agg")
    space: dict[str, object] = {"__name__": "tutorial"}
    for kind, text in source(name):
        if kind == "code":
            exec(compile(text, f"{name}.py", "exec"), space)
