"""Every family of the table, checked again: what was exact must be exact, and the page must say what is."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from functools import cache
from pathlib import Path

import psutil
import pytest
import torch
import transformers

from normlens.errors import NormlensError
from normlens.families import checks as surveying
from normlens.families.checks import FamilyReport, check_family, check_media_family
from normlens.families.table import IMAGES, SOUNDS, as_markdown, as_row, check_families, sites_text
from normlens.families.tiny import families

PAGE = Path(__file__).parents[2] / "docs" / "families.md"
MEDIA_PAGE = PAGE.with_name("families_media.md")
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


@pytest.mark.parametrize("family", ["vit", "clip", "llava", "whisper", "detr", "llava_next", "wav2vec2", "convnext"])
def test_types_that_see_or_hear(family: str) -> None:
    """A few of them; `normlens families --media` checks all."""
    report = check_media_family(family)
    assert report.status == ("no attention" if family == "convnext" else "exact"), report.reason
    assert report.explained == "complete", report.explained_reason
    line = next(line for line in MEDIA_PAGE.read_text().splitlines() if f"`{family}`" in line)
    if report.status == "exact":
        assert f"| exact | {report.explained} |" in line and sites_text(report) in line


@pytest.mark.parametrize("family", families())
def test_family(family: str) -> None:
    report = check_family(family)
    assert family in rows(), f"{family} is not on the page: {REGENERATE}"
    expected = status(rows()[family])
    assert report.status == expected, f"{family} was {expected} and is {report.status}: {report.reason or REGENERATE}"
    if report.status == "exact":
        assert report.proof is not None and report.proof < 1e-4
        assert without_error(as_row(report)) == without_error(rows()[family]), REGENERATE
    assert f" | {report.explained} | " in rows()[family], f"{report.explained_reason or 'explained'}: {REGENERATE}"
    if report.explained == "complete":
        assert report.explained_gap is not None and report.explained_gap < 1e-5


def without_error(row: str) -> str:
    return row.rpartition(" | ")[0]


def test_page_lists_every_family() -> None:
    assert set(rows()) == set(families()), REGENERATE


def test_page_counts_what_it_lists() -> None:
    found = [status(row) for row in rows().values()]
    text = PAGE.read_text(encoding="utf-8")
    assert f"**{found.count('exact')} of {len(found)} families are exact.**" in text, REGENERATE
    complete = sum(" | complete | " in row for row in rows().values())
    assert f"**{complete} of {len(found)} families are explained.**" in text, REGENERATE
    assert f"transformers {transformers.__version__} " in text, REGENERATE


def test_page_lists_images_and_sounds() -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert all(f"`{family}`" in text for family in (*IMAGES, *SOUNDS)), REGENERATE


def test_goal() -> None:
    assert [status(row) for row in rows().values()].count("exact") >= 205
    assert sum(" | complete | " in row for row in rows().values()) >= 215


def test_page_is_what_the_reports_make_of_it() -> None:
    exact = FamilyReport(
        "a", "causal-lm", "exact", "", 3e-8, 0.0, 1e-7, {"decoder": 2}, "pre", "4", "2", "gate", "complete", "", 1e-7
    )
    nothing = (None, None, None, {}, "", "", "", "")
    refused = FamilyReport("b", "causal-lm", "refused", "it has | none", *nothing, "refused", "no | rule")
    page = as_markdown([exact, refused])
    assert "| `a` | 2 decoder | pre | 4 | 2 | complete | gate | < 1e-07 |" in page
    assert "| `b` | refused | it has \\| none |" in page
    assert "- `b`: no \\| rule" in page
    assert "**1 of 2 families are exact.**" in page and "**1 of 2 families are explained.**" in page
    assert "Of the exact ones, 1 show their attentions" in page


def test_alpha_is_compared_with_what_the_model_shows(monkeypatch: pytest.MonkeyPatch) -> None:
    assert check_family("bert").alpha is not None
    shown = surveying.shown_attentions
    monkeypatch.setattr(
        surveying, "shown_attentions", lambda *args: {k: [t.roll(1, 1) for t in v] for k, v in shown(*args).items()}
    )
    report = check_family("bert")
    assert report.status == "refused" and "from the attention weights that the model returns" in report.reason


def test_progress_is_reported() -> None:
    steps: list[tuple[int, int]] = []
    reports = check_families(["bert", "gpt2"], workers=1, progress=lambda done, total: steps.append((done, total)))
    assert [report.family for report in reports] == ["bert", "gpt2"] and steps == [(1, 2), (2, 2)]


def test_a_worker_that_dies_ends_the_survey_with_a_sentence() -> None:
    """And a driver that dies takes its workers along."""
    with pytest.raises(NormlensError, match=r"one of 2 processes was killed.*fewer --workers"):
        kill_during_survey(lambda worker: os.kill(worker.pid, signal.SIGKILL))
    driver = subprocess.Popen(
        [sys.executable, "-c", "from normlens.families.table import check_families; check_families(workers=2)"],
        env={**os.environ, "PYTHONPATH": str(PAGE.parents[1] / "src")},
        stderr=subprocess.DEVNULL,
    )
    children = wait_for(lambda: psutil.Process(driver.pid).children(recursive=True), at_least=3)  # and a tracker
    driver.kill()
    driver.wait()
    _, alive = psutil.wait_procs(children, timeout=60)
    assert not alive


def kill_during_survey(kill: Callable[[psutil.Process], None]) -> None:
    def strike() -> None:
        kill(wait_for(lambda: psutil.Process().children(recursive=True), at_least=3)[-1])

    thread = threading.Thread(target=strike)
    thread.start()
    try:
        check_families(workers=2)
    finally:
        thread.join()


def wait_for(found: Callable[[], list[psutil.Process]], at_least: int) -> list[psutil.Process]:
    while len(processes := found()) < at_least:
        time.sleep(0.05)
    return processes
