"""What MkDocs asks while it builds the site: the navigation, a page for each command, and the files of the root."""

from __future__ import annotations

import importlib.util
import re
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

DOCS = Path(__file__).parent.parent
ROOT = DOCS.parent

#: The order of the site. A page that does not exist is left out; one that nobody named stands under "Topics".
NAV: dict[str, list[str]] = {
    "Home": ["index.md"],
    "Start": ["getting_started.md", "concepts.md"],
    "Tutorials": [
        "tutorials/bert_and_sep.ipynb",
        "tutorials/attention_sink.ipynb",
        "tutorials/why_did_it_say_that.ipynb",
        "tutorials/what_did_it_see.ipynb",
        "tutorials/what_did_it_hear.ipynb",
        "tutorials/alignment_and_aer.ipynb",
        "tutorials/corpus_on_ray.ipynb",
    ],
    "How to": [
        "howto/own_model.md",
        "viewer.md",
        "explain.md",
        "faithfulness.md",
        "alignment.md",
        "projection.md",
        "corpus.md",
        "cluster.md",
        "howto/llms.md",
        "howto/images_and_sound.md",
        "howto/figures.md",
        "howto/gpus.md",
        "howto/other_tools.md",
    ],
    "Papers": ["reproduce.md", "reproduction.md", "agreement.md"],
    "Gallery": ["gallery/README.md"],
    "Reference": [
        "reference/index.md",
        "reference/lens.md",
        "reference/results.md",
        "reference/plots.md",
        "reference/alignment.md",
        "families.md",
        "families_media.md",
    ],
    "Project": [
        "design.md",
        "design_notes.md",
        "reliability.md",
        "performance.md",
        "performance_gpu.md",
        "performance_notes.md",
        "adding_a_family.md",
        "adding_a_measure.md",
        "public_api.md",
        "releasing.md",
        "contributing.md",
        "changelog.md",
        "security.md",
    ],
}  # fmt: skip

#: Files of the repository's root that the site shows too.
FROM_ROOT = {"contributing.md": "CONTRIBUTING.md", "changelog.md": "CHANGELOG.md", "security.md": "SECURITY.md"}

#: The page that tells more about a command.
TOPICS = {
    "analyze": "getting_started.md",
    "explain": "explain.md",
    "corpus": "corpus.md",
    "align": "alignment.md",
    "aer": "alignment.md",
    "project": "projection.md",
    "faithful": "faithfulness.md",
    "methods": "faithfulness.md",
    "reproduce": "reproduce.md",
    "compare": "reproduce.md",
    "view": "viewer.md",
    "families": "families.md",
    "info": "howto/own_model.md",
}


def build_commands() -> ModuleType:
    """The module that writes docs/commands.md; its page and these cannot disagree."""
    name = "normlens_build_commands"
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(name, DOCS / "build_commands.py")
        assert spec is not None and spec.loader is not None
        sys.modules[name] = module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    return sys.modules[name]


def written_pages() -> list[str]:
    """Every page that lies in docs/, by its path."""
    found = [path for pattern in ("*.md", "*.ipynb") for path in DOCS.rglob(pattern)]
    return sorted(path.relative_to(DOCS).as_posix() for path in found if ".ipynb_checkpoints" not in path.parts)


def navigation(pages: list[str], commands: list[str]) -> list[dict[str, Any]]:
    """The pages that there are, in the order of the site."""
    there = {*pages, *FROM_ROOT}
    named = {page for group in NAV.values() for page in group} | {"commands.md"}
    nav: list[dict[str, Any]] = []
    for title, group in NAV.items():
        shown = [page for page in group if page in there]
        nav.append({title: shown[0] if title in ("Home", "Gallery") else shown})
        if title == "How to" and (others := [page for page in pages if page not in named]):
            nav.append({"Topics": others})
        if title == "Gallery":
            nav.append({"Commands": ["commands/index.md", *(f"commands/{name}.md" for name in commands)]})
    return nav


def command_pages(pages: list[str]) -> dict[str, str]:
    """A page for each command, and their list."""
    tool = build_commands()
    written = {}
    rows = []
    for name, says in tool.summaries().items():
        topic = TOPICS.get(name)
        more = f"\nMore: [{_title(topic)}](../{topic})\n" if topic in pages else ""
        written[f"commands/{name}.md"] = f"# normlens {name}\n{more}\n```text\n{tool.help_of([name])}\n```\n"
        rows.append(f"| [`{name}`]({name}.md) | {says} |")
    rows = ["| command | what it does |", "|---|---|", *rows]
    written["commands/index.md"] = "# Commands\n\n" + "\n".join(rows) + f"\n\n```text\n{tool.help_of([])}\n```\n"
    return written


def root_page(name: str) -> str:
    """A file of the repository's root, with its links as the site has them."""
    text = (ROOT / FROM_ROOT[name]).read_text(encoding="utf-8")
    for page, file in FROM_ROOT.items():
        text = text.replace(f"]({file})", f"]({page})")
    return re.sub(r"\]\(docs/", "](", text)


def _title(page: str | None) -> str:
    first = (DOCS / str(page)).read_text(encoding="utf-8").lstrip().splitlines()[0]
    return first.lstrip("# ")


def on_config(config: Any) -> Any:
    """MkDocs: the navigation."""
    config.nav = navigation(written_pages(), list(build_commands().summaries()))
    return config


def on_files(files: Any, config: Any) -> Any:
    """MkDocs: pages that are made, not written."""
    from mkdocs.structure.files import File

    made = command_pages(written_pages()) | {name: root_page(name) for name in FROM_ROOT}
    for name, text in made.items():
        files.append(File.generated(config, name, content=text))
    return files


#: The offline plugin's script for searching from a disk lies on another server; ours lies beside the pages.
_THEIRS, _OURS = "https://unpkg.com/iframe-worker/shim", "search_offline.js"


def on_post_page(output: str, page: Any, config: Any) -> str:
    """MkDocs: nothing is fetched."""
    return output.replace(_THEIRS, "../" * page.file.dest_uri.count("/") + _OURS)


def on_post_template(output_content: str, template_name: str, config: Any) -> str:
    """MkDocs: nor by the page for addresses that lead nowhere."""
    return output_content.replace(_THEIRS, _OURS)
