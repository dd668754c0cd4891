"""Every family of the table, checked again: what was exact must be exact, and the page must say what is."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import pytest
import torch
import transformers

from normlens.families.beyond_text import IMAGES, SOUNDS
from normlens.families.survey import Report, survey
from normlens.families.table import as_markdown, as_row
from normlens.families.tiny import families

PAGE = Path(__file__).parents[2] / "docs" / "families.md"
REGENERATE = "run `normlens families --markdown > docs/families.md` and look at the difference"


@cache
def rows() -> dict[str, str]:
    """The page's line for each family."""
    lines = PAGE.read_text(encoding="utf-8").splitlines()
    return {line.split("`")[1]: line for line in lines if line.startswith("| `")}


def status(row: str) -> str:
    return "exact" if row.count(" | ") > 1 and re.search(r"\| < \de-\d+ \|$", row) else "refused"


@pytest.fixture(autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()


@pytest.mark.parametrize("family", families())
def test_family(family: str) -> None:
    report = survey(family)
    assert family in rows(), f"{family} is not on the page: {REGENERATE}"
    expected = status(rows()[family])
    assert report.status == expected, f"{family} was {expected} and is {report.status}: {report.reason or REGENERATE}"
    if report.status == "exact":
        assert report.proof is not None and report.proof < 1e-4
        assert without_error(as_row(report)) == without_error(rows()[family]), REGENERATE


def without_error(row: str) -> str:
    return row.rpartition(" | ")[0]


def test_page_lists_every_family() -> None:
    assert set(rows()) == set(families()), REGENERATE


def test_page_counts_what_it_lists() -> None:
    found = [status(row) for row in rows().values()]
    text = PAGE.read_text(encoding="utf-8")
    assert f"**{found.count('exact')} of {len(found)} families are exact.**" in text, REGENERATE
    assert f"transformers {transformers.__version__} " in text, REGENERATE


def test_page_lists_images_and_sounds() -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert all(f"`{family}`" in text for family in (*IMAGES, *SOUNDS)), REGENERATE


def test_goal() -> None:
    assert [status(row) for row in rows().values()].count("exact") >= 200


def test_page_is_what_the_reports_make_of_it() -> None:
    exact = Report("a", "causal-lm", "exact", "", 3e-8, 0.0, {"decoder": 2}, "pre", "4", "2", "gate")
    refused = Report("b", "causal-lm", "refused", "it has | none", None, None, {}, "", "", "", "")
    page = as_markdown([exact, refused])
    assert "| `a` | 2 decoder | pre | 4 | 2 | gate | < 1e-07 |" in page
    assert "| `b` | it has \\| none |" in page
    assert "**1 of 2 families are exact.**" in page
