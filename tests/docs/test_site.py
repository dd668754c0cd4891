"""The site: every page has its place, what is generated is fresh, and it builds without a warning or a connection."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"


def module(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"normlens_{path.parent.name.strip('.')}_{path.stem}", path)
    assert spec is not None and spec.loader is not None
    found = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(found)
    return found


def listed(nav: list) -> list[str]:
    """The pages of a navigation, in its order."""
    pages: list[str] = []
    for entry in nav:
        for inside in entry.values() if isinstance(entry, dict) else [entry]:
            pages += [inside] if isinstance(inside, str) else listed(inside)
    return pages


def test_every_page_has_one_place_in_the_navigation() -> None:
    hooks = module(DOCS / "site" / "hooks.py")
    pages = hooks.written_pages()
    shown = listed(hooks.navigation(pages, ["analyze"]))
    assert sorted(set(pages) - set(shown)) == ["commands.md"]  # a page for each command is made instead
    assert len(shown) == len(set(shown))
    made = {page for page in shown if page.startswith("commands/")} | set(hooks.FROM_ROOT)
    assert set(shown) - set(pages) <= made


def test_a_page_that_nobody_named_and_one_that_is_missing_break_nothing() -> None:
    hooks = module(DOCS / "site" / "hooks.py")
    pages = [page for page in hooks.written_pages() if page != "corpus.md"]
    shown = listed(hooks.navigation([*pages, "something_new.md"], []))
    assert "something_new.md" in shown and "corpus.md" not in shown


def test_every_command_has_its_page() -> None:
    hooks = module(DOCS / "site" / "hooks.py")
    made = hooks.command_pages(hooks.written_pages())
    from normlens.cli.main import COMMANDS

    for name in COMMANDS:
        assert f"Usage: normlens {name}" in made[f"commands/{name}.md"] and f"({name}.md)" in made["commands/index.md"]


def test_the_page_of_every_number_is_fresh_and_has_every_number() -> None:
    builder = module(DOCS / "build_reproduction.py")
    kept = json.loads(builder.KEPT.read_text(encoding="utf-8"))
    page = builder.page(kept)
    assert page == builder.PAGE.read_text(encoding="utf-8"), "run python docs/build_reproduction.py"
    from normlens.experiments.published import document

    assert {(block["experiment"], block["table"]) for block in document()["blocks"]} == set(builder.SECTIONS)
    for block in document()["blocks"]:
        for values in block["rows"].values():
            for value in values:
                assert value is None or builder._number(value, block["decimals"]) in page
    assert all(path not in json.dumps(kept) for path in ("/home", "/tmp", str(ROOT)))


class Resources(HTMLParser):
    """What a browser would fetch to show a page."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        if tag in ("script", "img", "iframe", "source") and given.get("src"):
            self.found.append(str(given["src"]))
        if tag == "link" and given.get("rel") in ("stylesheet", "icon", "preload", "preconnect"):
            self.found.append(str(given["href"]))


def test_it_builds_without_a_warning_and_fetches_nothing(tmp_path: Path) -> None:
    pytest.importorskip("material", reason="the site is made by MkDocs Material: make setup")
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path / "site")],
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1", "PYTHONPATH": str(ROOT / "src")},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    site = tmp_path / "site"
    pages = [page for page in site.rglob("*.html") if page.parent.name != "gallery" or page.name == "index.html"]
    assert len(pages) > 30
    for page in pages:
        reader = Resources()
        reader.feed(page.read_text(encoding="utf-8"))
        outside = [source for source in reader.found if re.match(r"(https?:)?//", source)]
        assert outside == [], page
    index = (site / "search" / "search_index.js").read_text(encoding="utf-8")
    assert "mixing_ratio" in index and "normlens reproduce" in index  # the reference and the commands can be searched
