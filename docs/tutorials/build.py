"""Tutorials are written here as plain Python, one file each in sources/, and become notebooks with their output.

    python docs/tutorials/build.py [NAME…]

A cell begins with `# %%` (code) or `# %% [markdown]`. The tests run every source, and compare its cells with the notebook's.
"""

from __future__ import annotations

import argparse
import json
import os
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
SOURCES = HERE / "sources"


def cells(source: str) -> list[tuple[str, str]]:
    """The cells of a source: `code` or `markdown`, and their text."""
    found: list[tuple[str, str]] = []
    for part in source.split("# %%")[1:]:
        head, _, body = part.partition("\n")
        if "[markdown]" in head:
            lines = [
                line[2:] if line.startswith("# ") else line.removeprefix("#") for line in body.strip().splitlines()
            ]
            found.append(("markdown", "\n".join(lines)))
        else:
            found.append(("code", body.strip()))
    return found


def notebook(source: str) -> Any:
    """The notebook of a source, not yet run."""
    import nbformat

    made = nbformat.v4.new_notebook(
        metadata={"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}}
    )
    for number, (kind, text) in enumerate(cells(source), 1):
        new = nbformat.v4.new_code_cell if kind == "code" else nbformat.v4.new_markdown_cell
        made.cells.append(new(text, id=f"cell-{number}"))
    return made


def run(made: Any, folder: Path) -> Any:
    """The notebook with what it puts out; an error in a cell is an error here."""
    from nbclient import NotebookClient

    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    return NotebookClient(
        made, timeout=1800, kernel_name="python3", resources={"metadata": {"path": str(folder)}}
    ).execute()


def tidy(made: Any) -> Any:
    """Without what differs from run to run, progress bars, and notes of libraries on standard error."""
    for cell in made.cells:
        cell.get("metadata", {}).pop("execution", None)
        if cell.cell_type == "code":
            cell.outputs = [output for output in cell.outputs if not _passing(output)]
    for name in ("language_info", "widgets"):
        made.metadata.pop(name, None)
    return made


def _passing(output: Any) -> bool:
    """Notes of libraries, and bars that only mean something while they move."""
    return output.get("name") == "stderr" or "application/vnd.jupyter.widget-view+json" in output.get("data", {})


def main() -> None:
    """Build the tutorials that are named, or all."""
    import nbformat

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*")
    for path in sorted(SOURCES.glob("*.py")):
        names = parser.parse_args().names
        if names and path.stem not in names:
            continue
        made = tidy(run(notebook(path.read_text(encoding="utf-8")), HERE))
        (HERE / f"{path.stem}.ipynb").write_text(
            json.dumps(nbformat.from_dict(made), indent=1, ensure_ascii=False) + "\n"
        )
        print(f"wrote {path.stem}.ipynb")


if __name__ == "__main__":
    main()
