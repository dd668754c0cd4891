"""Which families differ between two pages of `normlens families --markdown`: python families_changed.py OLD NEW."""

from __future__ import annotations

import re
import sys
from pathlib import Path


def families(page: str) -> dict[str, str]:
    """Each family with the section that it stands in and, where it is refused, the reason."""
    found: dict[str, str] = {}
    section = ""
    for line in page.splitlines():
        if line.startswith("## "):
            section = line[3:].strip().lower()
        row = re.match(r"\| `?([\w-]+)`? \|(.*)\|", line)
        if row and section and row[1] not in ("family", "model_type") and not set(row[1]) <= {"-"}:
            found[row[1]] = section if section == "exact" else f"{section}: {row[2].strip()}"
    return found


def changes(old: str, new: str) -> str:
    """The differences as Markdown."""
    before, after = families(old), families(new)
    lines = [f"- **{name}** is new: {after[name]}" for name in sorted(after.keys() - before.keys())]
    lines += [f"- **{name}** is gone" for name in sorted(before.keys() - after.keys())]
    for name in sorted(before.keys() & after.keys()):
        if before[name] != after[name]:
            lines.append(f"- **{name}**: {before[name]} → {after[name]}")
    return "\n".join(lines) or "no family changed"


if __name__ == "__main__":
    print(changes(Path(sys.argv[1]).read_text(), Path(sys.argv[2]).read_text()))
