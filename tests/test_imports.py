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
    ("errors", "options", "statistics", "types"),
    ("io", "provenance"),
    ("decompose",),
    ("anatomy",),
    ("inputs",),
    ("measures",),
    ("results",),
    ("lens",),
    ("corpus", "alignment", "attribution", "plots", "viewer", "families"),
    ("experiments",),
    ("faithfulness",),
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


#: Methods that draw, save or open results import what they need inside the function, though it comes later in the flow.
LATE = {
    "results": {"viewer", "plots", "corpus"},
    "lens.py": {"corpus", "attribution"},
    "corpus": {"plots"},
    "alignment": {"viewer", "plots"},
}


def test_no_module_imports_itself_by_a_detour() -> None:
    """Cycles hide between modules of one room, where the order of rooms does not look."""
    names = {".".join(("normlens", *path.relative_to(SOURCE).with_suffix("").parts)): path for path in FILES}
    names = {name.removesuffix(".__init__"): path for name, path in names.items()}
    graph = {
        name: {
            found for module in imports(path, top_level_only=True) if (found := _known(module, names)) and found != name
        }
        for name, path in names.items()
    }
    done: set[str] = set()

    def visit(name: str, way: tuple[str, ...]) -> None:
        assert name not in way, " imports ".join((*way[way.index(name) :], name))
        if name not in done:
            for other in graph[name]:
                visit(other, (*way, name))
            done.add(name)

    for name in graph:
        visit(name, ())


def _known(module: str, names: dict[str, Path]) -> str | None:
    """The module behind an imported name, which may be something inside of it."""
    return module if module in names else (parent if (parent := module.rpartition(".")[0]) in names else None)


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_late_imports_are_those_that_are_listed(path: Path) -> None:
    first = path.relative_to(SOURCE).parts[0]
    own = first.removesuffix(".py")
    for module in imports(path, top_level_only=False) - imports(path, top_level_only=True):
        other = room(module)
        if other is not None and other in RANK and other != own and RANK[other] > RANK[own]:
            assert other in LATE.get(first, set()), f"{path.name} imports {module} late, and the list does not say so"


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
    python("import sys; sys.modules['transformers'] = None; import normlens.measures.table, normlens.measures.proof")


def test_importing_normlens_is_lazy() -> None:
    code = "import sys, normlens; print([m for m in ('torch', 'transformers', 'xarray') if m in sys.modules])"
    assert python(code).strip() == "[]"
