"""Imports point one way, importing does nothing else, and the mathematics runs without transformers."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

SOURCE = Path(__file__).parent.parent / "src" / "normlens"
#: The flow of the design, in order: a module may import from its own room and from those before it.
ORDER = [
    ("errors", "references"),
    ("decompose",),
    ("measures",),
    ("proof",),
    ("anatomy",),
    ("prepared",),
    ("capture",),
    ("settings", "streaming", "encoding", "provenance", "weights", "loading"),
    ("memory",),
    ("analysis", "observe", "collect"),
    ("lens",),
    ("summary", "corpus", "alignment", "attribution", "plots", "viewer", "families"),
    ("opening",),
    ("experiments",),
    ("cli",),
]
RANK = {name: rank for rank, names in enumerate(ORDER) for name in names}


def imports(path: Path, top_level_only: bool) -> set[str]:
    """The normlens modules that a file imports, without those for type checkers."""
    tree = ast.parse(path.read_text())
    found: set[str] = set()

    def visit(node: ast.AST) -> None:
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test):
            return
        if top_level_only and isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            return
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            assert node.level == 0, f"{path}: imports are absolute"
            found.update(f"{node.module}.{alias.name}" for alias in node.names)
        for child in ast.iter_child_nodes(node):
            visit(child)

    visit(tree)
    return found


def room(module: str) -> str | None:
    parts = module.split(".")
    return parts[1] if parts[0] == "normlens" and len(parts) > 1 else None


FILES = sorted(path for path in SOURCE.rglob("*.py") if path != SOURCE / "__init__.py")


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_imports_point_one_way(path: Path) -> None:
    own = path.relative_to(SOURCE).parts[0].removesuffix(".py")
    assert own in RANK, f"{own} has no place in the flow: add it to ORDER where the design puts it"
    for module in imports(path, top_level_only=True):
        other = room(module)
        if other is not None and other != own:
            assert other in RANK and RANK[other] <= RANK[own], f"{path.name} imports {module}, which comes later"


def test_decompose_imports_torch_and_nothing_of_ours() -> None:
    for path in (SOURCE / "decompose").glob("*.py"):
        for module in imports(path, top_level_only=False):
            assert room(module) in (None, "decompose"), f"{path.name} imports {module}"
            assert not module.startswith(("transformers", "xarray", "pandas")), f"{path.name} imports {module}"


def python(code: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env={"PYTHONPATH": str(SOURCE.parent)}
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_mathematics_runs_without_transformers() -> None:
    python("import sys; sys.modules['transformers'] = None; import normlens.measures, normlens.proof")


def test_importing_normlens_is_lazy() -> None:
    code = "import sys, normlens; print([m for m in ('torch', 'transformers', 'xarray') if m in sys.modules])"
    assert python(code).strip() == "[]"
