"""The widget where it is used: executed in a Jupyter kernel and in marimo, and drawn from what they would send."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from normlens.viewer.display import View, in_notebook, show
from tests.viewer.synthetic import SENTENCE, analysis, dataset

ROOT = Path(__file__).parents[2]
PATHS = f"import sys; sys.path[:0] = [{str(ROOT / 'src')!r}, {str(ROOT)!r}]"

#: Stands in for the notebook's side of an anywidget: a model with traits, and an element to draw into.
HOST = """async ([esm, traits]) => {
    const module = await import(URL.createObjectURL(new Blob([esm], { type: "text/javascript" })));
    const listeners = {};
    window.traits = traits;
    window.model = {
        get: name => window.traits[name],
        set: (name, value) => { window.traits[name] = value; },
        save_changes: () => { window.saved = { ...window.traits }; },
        on: (name, callback) => { listeners[name] = callback; },
        off: name => { delete listeners[name]; },
    };
    window.change = (name, value) => { window.traits[name] = value; listeners[`change:${name}`](); };
    const el = document.createElement("div");
    document.body.append(el);
    window.close_ = module.default.render({ model: window.model, el });
}"""


@pytest.fixture(scope="module")
def executed() -> dict[str, Any]:
    """The widget's state after a real kernel ran `analysis.show()`."""
    nbclient = pytest.importorskip("nbclient", reason="nbclient executes notebooks: pip install nbclient ipykernel")
    import nbformat

    book = nbformat.v4.new_notebook()
    book.cells = [
        nbformat.v4.new_code_cell(
            f"{PATHS}\nfrom tests.viewer.synthetic import analysis\nview = analysis().show()\nview"
        ),
        nbformat.v4.new_code_cell("view.widget.view = 'view=flow&query=3'\nprint(view)"),
    ]
    nbclient.NotebookClient(book, timeout=120, kernel_name="python3", store_widget_state=True).execute()
    (output,) = book.cells[0].outputs
    model = output.data["application/vnd.jupyter.widget-view+json"]["model_id"]
    widgets = book.metadata.widgets["application/vnd.jupyter.widget-state+json"]["state"]
    assert "<normlens View" in book.cells[1].outputs[0].text
    state: dict[str, Any] = widgets[model]["state"]
    return state


def test_a_kernel_sends_the_document_and_follows_the_view(executed) -> None:
    document = json.loads(executed["document"])
    assert document["sites"][0]["query"]["tokens"] == SENTENCE and document["provenance"]["model"] == "synthetic"
    assert executed["view"] == "view=flow&query=3"
    assert executed["_esm"].rstrip().endswith("};") and "render" in executed["_esm"]


@pytest.mark.browser
def test_the_widget_draws_what_the_kernel_sent(executed, chromium) -> None:
    page = chromium.new_page()
    seen: list[str] = []
    page.on("console", lambda message: seen.append(message.text))
    page.on("pageerror", lambda error: seen.append(str(error)))
    page.on("request", lambda request: request.url.startswith("blob:") or seen.append(request.url))
    page.evaluate(HOST, [executed["_esm"], {"document": executed["document"], "view": executed["view"]}])
    maps = dataset(SENTENCE)["attnresln_n"].values
    maps = maps / maps.sum(axis=-1, keepdims=True)
    product = maps[2] @ maps[1] @ maps[0]
    for text in page.locator(".input-share").all():
        share = float(text.text_content().removesuffix(" %")) / 100
        assert share == pytest.approx(product[3, int(text.get_attribute("data-index"))], abs=6e-4)
    # The reader's choice reaches Python, Python's choice reaches the reader, and the notebook keeps its own keys.
    page.get_by_role("button", name="Mixing").click()
    page.wait_for_function("window.saved && window.saved.view.includes('view=mixing')")
    page.evaluate("window.change('view', 'view=compare&draw=matrix&layer=1')")
    page.wait_for_selector(".compare rect.cell")
    page.evaluate("document.activeElement.blur()")
    page.keyboard.press("2")
    page.wait_for_timeout(100)
    assert page.locator(".compare").count() == 1
    page.evaluate("window.close_()")
    page.close()
    assert seen == []


def test_marimo_runs_and_shows_the_widget(tmp_path) -> None:
    pytest.importorskip("marimo", reason="marimo executes its own notebooks: pip install marimo")
    book = tmp_path / "book.py"
    book.write_text(
        "import marimo\n\napp = marimo.App()\n\n\n@app.cell\ndef _():\n"
        f"    {PATHS}\n    from tests.viewer.synthetic import analysis\n\n    analysis().show()\n    return\n\n\n"
        'if __name__ == "__main__":\n    app.run()\n'
    )
    page = tmp_path / "book.html"
    command = [sys.executable, "-m", "marimo", "export", "html", str(book), "-o", str(page), "--no-include-code"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=180, check=False)
    assert done.returncode == 0, done.stderr
    text = page.read_text(encoding="utf-8")
    assert "marimo-anywidget" in text and "normlens-view" in text and "Traceback" not in text


def test_outside_a_notebook_the_page_opens_in_the_browser(monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[str] = []
    monkeypatch.setattr("webbrowser.open", opened.append)
    assert not in_notebook()
    view = analysis().show(view="view=flow")
    assert isinstance(view, View) and len(opened) == 1
    address, _, state = opened[0].removeprefix("file://").partition("#")
    assert state == "view=flow"
    page = Path(address)
    assert page.stat().st_mode & 0o077 == 0
    assert "normlens-data" in page.read_text(encoding="utf-8")
    assert str(page) in repr(view)
    assert page.parent.stat().st_mode & 0o077 == 0
    shutil.rmtree(page.parent)


def test_without_anywidget_a_notebook_gets_the_page_in_a_sealed_frame(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("normlens.viewer.display.in_notebook", lambda: True)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    from normlens.viewer.page_data import analysis_page

    bundle = show(analysis_page(analysis()))._repr_mimebundle_()
    assert bundle["text/html"].startswith('<iframe sandbox="allow-scripts allow-downloads"')
    assert "<script" not in bundle["text/html"] and "&lt;script" in bundle["text/html"]


def test_the_page_bundle_is_what_the_sources_build() -> None:
    """Node is needed only here: people get the built file."""
    front = ROOT / "src/normlens/viewer/front"
    if shutil.which("node") is None or not (front / "node_modules").is_dir():
        pytest.skip("no Node, or front/node_modules not installed (npm ci): the bundle is not rebuilt")
    done = subprocess.run(["node", "build.mjs", "--check"], cwd=front, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_the_bundles_name_no_address_but_the_svg_namespace() -> None:
    import re

    from normlens.viewer.page import bundle

    for name in ("page.js", "widget.js"):
        addresses = set(re.findall(r"(?:https?|wss?)://[^\s\"'`]+", bundle(name)))
        assert {address.split("/")[2] for address in addresses} <= {"www.w3.org"}
