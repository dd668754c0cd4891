"""A short campaign against every command and format; `make fuzz` runs a long one."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from .campaign import Campaign, Target
from .targets import TARGETS

ROOT = Path(__file__).parents[2]
#: Names of targets begin like one of these; together they are all.
GROUPS = [
    "corpus-corpus.t",
    "corpus-corpus.j,corpus-corpus.c,corpus-corpus.p",
    "corpus-d,corpus-r,corpus-f,corpus-u",
    "model,view",
    "align,aer,compare",
    "project",
    "reproduce",
    "faithful,methods,families",
]


@pytest.mark.parametrize("group", GROUPS)
def test_damaged_files_end_in_sentences(group: str) -> None:
    command = [sys.executable, "-m", "tests.hostile", "--cases", "5", "--seed", "0", "--only", group]
    environment = {**os.environ, "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert (
        "tracebacks 0, signals 0, files lost 0, wrong results 0, hangs 0, memory 0, manners 0, litter 0" in done.stdout
    )


def test_every_target_is_in_one_group() -> None:
    for target in TARGETS:
        assert sum(target.name.startswith(tuple(group.split(","))) for group in GROUPS) == 1, target.name


def _behave_badly(how: str) -> Target:
    """A command that does, on damaged files only, what none of ours may do."""

    def prepare(copy: Path) -> None:
        from normlens.cli.commands import info

        def bad() -> None:
            if (copy / "file").read_bytes() == b"whole":
                return
            if how == "tracebacks":
                raise KeyError("unforeseen")
            if how == "signals":
                os.kill(os.getpid(), 11)
            if how == "files lost":
                (copy / "bystander.txt").unlink()
            if how == "memory":
                held = bytearray(3 << 29)
                held[::4096] = b"x" * len(held[::4096])
            if how == "litter":
                (copy / ".page.html.0123abcd.draft").write_text("half")
            if how == "wrong results":
                (copy / "result").write_text("wrong")

        info.info = bad  # type: ignore[assignment]

    def make(folder: Path) -> None:
        (folder / "file").write_text("whole")
        (folder / "result").write_text("right")

    return Target(how, make, lambda folder: ["info"], ("file",), ("result",), prepare, ("result",))


@pytest.mark.parametrize("how", ["tracebacks", "signals", "files lost", "memory", "wrong results", "litter"])
def test_the_campaign_sees_what_it_looks_for(how: str, tmp_path: Path) -> None:
    campaign = Campaign(tmp_path)
    campaign.attack(_behave_badly(how), cases=4)
    assert {fault.split(":")[0] for fault in campaign.tally.faults} == {how}
    assert f"{how} {len(campaign.tally.faults)}" in campaign.tally.report()
