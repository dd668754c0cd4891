"""The report can be read in light and in dark: every colour is a variable, and text stands out from the page."""

from __future__ import annotations

import re
from importlib import resources

import pytest

CSS = resources.files("normlens.experiments").joinpath("data", "report.css").read_text(encoding="utf-8")
SCHEMES = re.findall(r":root \{(.*?)\}", CSS, re.S)


def luminance(colour: str) -> float:
    digits = colour.lstrip("#")
    digits = "".join(2 * digit for digit in digits) if len(digits) == 3 else digits
    linear = [
        c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in (b / 255 for b in bytes.fromhex(digits))
    ]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


@pytest.mark.parametrize("scheme", [0, 1], ids=["light", "dark"])
def test_text_stands_out_from_the_page(scheme: int) -> None:
    colours = dict(re.findall(r"--([a-z]+): (#[0-9a-f]+)", SCHEMES[scheme]))
    page = luminance(colours["page"])
    for name in ("ink", "soft", "quiet", "holds", "weaker", "fails"):
        low, high = sorted([page, luminance(colours[name])])
        assert (high + 0.05) / (low + 0.05) >= 4.5, name


def test_no_colour_is_written_outside_the_two_schemes() -> None:
    assert len(SCHEMES) == 2 and "@media screen and (prefers-color-scheme: dark)" in CSS
    outside = re.sub(r":root \{.*?\}", "", CSS, flags=re.S).replace("figure img { background: #fff;", "")
    assert re.findall(r"#[0-9a-f]{3,6}\b", outside) == []
