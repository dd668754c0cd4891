"""What a project promises around its code: pins, workflows, links, changelog."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

from tests.docs.test_site import module

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


def name_of(requirement: str) -> str:
    found = re.match(r"[A-Za-z0-9._-]+", requirement)
    assert found is not None
    return found[0].lower().replace("_", "-")


def test_what_the_tests_depend_on_is_pinned_within_its_range() -> None:
    version = pytest.importorskip("packaging.requirements")
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pins = {name_of(line): line.split("==")[1] for line in lines if "==" in line and not line.startswith("#")}
    groups = [PROJECT["project"]["dependencies"], *PROJECT["project"]["optional-dependencies"].values()]
    groups += [group for name, group in PROJECT["dependency-groups"].items() if name != "fuzz"]
    for requirement in (requirement for group in groups for requirement in group):
        wanted = version.Requirement(requirement)
        assert name_of(requirement) in pins, f"constraints.txt does not pin {requirement}"
        assert wanted.specifier.contains(pins[name_of(requirement)]), requirement


def test_the_demo_installs_no_tool() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    recipe = makefile.split("$(SHOWN): ")[1].split("\n\n")[0]
    assert "--editable ." in recipe and "--group" not in recipe and "EXTRAS" not in recipe


@pytest.mark.parametrize("path", sorted((ROOT / ".github").rglob("*.yml")), ids=lambda path: path.name)
def test_workflows_and_forms_can_be_read(path: Path) -> None:
    yaml = pytest.importorskip("yaml")
    found = yaml.safe_load(path.read_text(encoding="utf-8"))
    if path.parent.name == "workflows":
        assert found["permissions"] and found["jobs"]
        targets = re.findall(r"^(?:\.PHONY: )?([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.M)
        for target in re.findall(r"run: make ([a-z-]+)", path.read_text(encoding="utf-8")):
            assert target in targets
    elif path.parent.name == "ISSUE_TEMPLATE" and path.name != "config.yml":
        assert found["name"] and found["body"]


def test_only_the_step_that_publishes_may_publish() -> None:
    yaml = pytest.importorskip("yaml")
    jobs = yaml.safe_load((ROOT / ".github" / "workflows" / "release.yml").read_text(encoding="utf-8"))["jobs"]
    trusted = [name for name, job in jobs.items() if job.get("permissions", {}).get("id-token") == "write"]
    assert trusted == ["publish"]


def test_a_family_that_changed_is_named() -> None:
    tool = module(ROOT / ".github" / "families_changed.py")
    page = (ROOT / "docs" / "families.md").read_text(encoding="utf-8")
    assert tool.changes(page, page) == "no family changed"
    exact, refused = "| `bert` | 2 encoder", "| `blt` | refused"
    assert exact in page and refused in page
    line = next(line for line in page.splitlines() if line.startswith(exact))
    moved = page.replace(line + "\n", "").replace(refused, f"| `bert` | refused | a reason |\n{refused}", 1)
    assert tool.changes(page, moved) == "- **bert**: exact → refused: refused | a reason"
    more = page.replace(line, line + "\n" + line.replace("bert", "brand_new"))
    assert tool.changes(page, more) == "- **brand_new** is new: exact"


def test_one_version_everywhere() -> None:
    version = PROJECT["project"]["version"]
    assert f"version: {version}" in (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    assert re.search(rf"^## {re.escape(version)}\b", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), re.M)


@pytest.mark.parametrize("name", ["README.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md"])
def test_links_of_the_root_lead_somewhere(name: str) -> None:
    text = (ROOT / name).read_text(encoding="utf-8")
    links = [link for link in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", text) if not link.startswith("http")]
    assert [link for link in links if not (ROOT / link).exists()] == []


def test_files_that_the_documentation_names_exist() -> None:
    """A page that sends its reader to a file that has moved is worse than none."""
    ours = [
        str(path.relative_to(ROOT))
        for room in ("src", "tests", "benchmarks", "examples", "docs")
        for path in (ROOT / room).rglob("*.py")
    ]
    pages = [*(ROOT / "docs").rglob("*.md"), *ROOT.glob("*.md")]
    assert len(pages) > 30
    lost = []
    for page in pages:
        for name in re.findall(r"`([a-z_0-9/]+\.py)`", page.read_text(encoding="utf-8")):
            # `modeling_….py` are files of transformers.
            if not name.startswith("modeling_") and not any(path == name or path.endswith(f"/{name}") for path in ours):
                lost.append((page.name, name))
    assert not lost
