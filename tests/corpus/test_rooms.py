"""The rooms of `corpus`: imports point one way, and accumulators need numpy alone."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

CORPUS = Path(__file__).parents[2] / "src" / "normlens" / "corpus"
#: What each room may import of the others.
MAY_IMPORT = {
    "reading": {"reading"},
    "accumulators": {"accumulators"},
    "counting": {"reading", "accumulators", "counting"},
    "running": {"reading", "accumulators", "counting", "running"},
}


def imported(path: Path) -> set[str]:
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.update(f"{node.module}.{alias.name}" for alias in node.names)
    return found


def test_the_package_itself_is_a_docstring() -> None:
    (only,) = ast.parse((CORPUS / "__init__.py").read_text()).body
    assert isinstance(only, ast.Expr)
    assert {path.name for path in CORPUS.iterdir() if path.name != "__pycache__"} == {"__init__.py", *MAY_IMPORT}


@pytest.mark.parametrize("room", MAY_IMPORT)
def test_imports_point_one_way(room: str) -> None:
    for path in (CORPUS / room).glob("*.py"):
        for module in imported(path):
            if module.startswith("normlens.corpus."):
                assert module.split(".")[2] in MAY_IMPORT[room], f"{path.name} imports {module}"


@pytest.mark.parametrize("room", ["accumulators", "reading"])
def test_no_torch(room: str) -> None:
    for path in (CORPUS / room).glob("*.py"):
        for module in imported(path):
            assert module.split(".")[0] not in ("torch", "transformers"), f"{path.name} imports {module}"
