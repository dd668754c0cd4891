"""A real browser for the page: every page a test opens must stay silent and ask for nothing but itself."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import xarray as xr

from normlens.viewer.page import save_html
from normlens.viewer.page_data import page_data
from tests.viewer.synthetic import RECORD, SENTENCE, SOURCE, TARGET, dataset

FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--no-first-run",
]


@pytest.fixture(scope="session")
def chromium() -> Iterator[Any]:
    path = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if path is None:
        pytest.skip("no Chromium on this machine: the page is not tested in a browser")
    api = pytest.importorskip("playwright.sync_api", reason="playwright drives the browser: pip install playwright")
    with api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=FLAGS)
        yield browser
        browser.close()


@pytest.fixture
def opened(chromium: Any, tmp_path: Path) -> Iterator[Callable[..., Any]]:
    """Open a page of these data: `opened(document, "view=flow", width=400, theme="dark")` gives the loaded page."""
    seen: list[str] = []
    contexts = []

    def open_(
        document: dict[str, Any], view: str = "", width: int = 1400, height: int = 900, theme: str = "light"
    ) -> Any:
        path = save_html(document, tmp_path / f"page{len(contexts)}.html")
        context = chromium.new_context(viewport={"width": width, "height": height}, color_scheme=theme)
        contexts.append(context)
        page = context.new_page()
        page.on("console", lambda message: seen.append(f"console: {message.text}"))
        page.on("pageerror", lambda error: seen.append(f"error: {error}"))
        page.on("dialog", lambda dialog: (seen.append("dialog opened"), dialog.dismiss()))

        def request(event: Any) -> None:
            if not event.url.startswith((path.as_uri(), "data:", "blob:")):
                seen.append(f"request: {event.url}")

        page.on("request", request)
        page.goto(f"{path.as_uri()}#{view}")
        page.wait_for_selector(".view > *")
        return page

    yield open_
    for context in contexts:
        context.close()
    assert seen == []


@pytest.fixture(scope="module")
def data() -> xr.Dataset:
    return dataset(SENTENCE)


@pytest.fixture(scope="module")
def document(data: xr.Dataset) -> dict[str, Any]:
    return page_data({"encoder": data}, title="The man went to the store.", provenance=RECORD)


@pytest.fixture(scope="module")
def sites() -> dict[str, xr.Dataset]:
    return {
        "encoder": dataset(SOURCE),
        "decoder": dataset(TARGET, causal=True, seed=1),
        "cross": dataset(TARGET, SOURCE, seed=2),
    }
