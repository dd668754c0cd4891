"""What tests read from an open page: its numbers, files and colours."""

from __future__ import annotations

import base64
import csv
import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image


def shares(values: np.ndarray) -> np.ndarray:
    return values / values.sum(axis=-1, keepdims=True)


def percent(text: str) -> float:
    return float(text.removesuffix(" %")) / 100


def lightness(colour: str) -> float:
    """CIELAB L* of a hex colour (d3's white point), written here again so that the page is not its own witness."""
    linear = [
        ((c / 255 + 0.055) / 1.055) ** 2.4 if c / 255 > 0.04045 else c / 255 / 12.92 for c in bytes.fromhex(colour[1:])
    ]
    y = 0.2225045 * linear[0] + 0.7168786 * linear[1] + 0.0606169 * linear[2]
    return 116 * (y ** (1 / 3) if y > 0.008856452 else y / 0.128418549 + 4 / 29) - 16


def download(page: Any, kind: str) -> bytes:
    with page.expect_download() as waiting:
        page.locator(f"[data-export={kind}]").click()
    return waiting.value.path().read_bytes()


def rows_of(page: Any) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(download(page, "csv").decode())))


def listed(page: Any, part: str) -> list[list[str]]:
    return [row.inner_text().split("\n") for row in page.locator(f"[data-part={part}] tbody tr").all()]


def pixels(element: Any) -> np.ndarray:
    image = Image.open(io.BytesIO(base64.b64decode(element.get_attribute("href").split(",")[1])))
    return np.asarray(image.convert("RGB"))


def lightness_of(image: np.ndarray) -> np.ndarray:
    return np.array([[lightness("#" + bytes(cell).hex()) for cell in row] for row in image])


def greyness(colour: str) -> int:
    red, green, blue = bytes.fromhex(colour[1:])
    return max(red, green, blue) - min(red, green, blue)


def barriers(chromium: Any, path: Path, view: str = "", theme: str = "dark") -> list[Any]:
    """What the accessibility checker axe finds wrong with a page."""
    axe = Path(pytest.importorskip("axe_playwright_python").__file__).parent / "axe.min.js"
    # The checker is a script of ours, not the page's.
    context = chromium.new_context(bypass_csp=True, color_scheme=theme)
    page = context.new_page()
    page.goto(f"{path.as_uri()}#{view}")
    page.wait_for_selector(".view > *")
    page.add_script_tag(path=axe)
    found = page.evaluate("async () => (await axe.run()).violations.map(v => [v.id, v.nodes.map(n => n.html)])")
    context.close()
    return list(found)
