"""The diff of docs/adding_a_measure.md adds a measure by touching one file."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]

CODE = """
import torch
from normlens.families.tiny import tiny_inputs, tiny_model
from normlens.lens import Lens

for family in ("bert", "llama", "t5"):
    model = tiny_model(family)
    (analysis,) = Lens(model).analyze_inputs(tiny_inputs(model, padded=False), measures=["attn_max", "alpha"])
    for kind in analysis.sites:
        site = analysis.site(kind)
        assert (site["attn_max"] == site["alpha"].max("head")).all(), (family, kind)
        if kind != "cross":
            assert ((0 <= site.mixing_ratio("attn_max")) & (site.mixing_ratio("attn_max") <= 1)).all()
"""


def test_the_diff_is_all_that_a_measure_needs(tmp_path: Path) -> None:
    page = (ROOT / "docs" / "adding_a_measure.md").read_text(encoding="utf-8")
    (diff,) = re.findall(r"```diff\n(.*?)```", page, flags=re.DOTALL)
    assert set(re.findall(r"^\+\+\+ b/(\S+)", diff, flags=re.MULTILINE)) == {"src/normlens/measures/table.py"}
    shutil.copytree(ROOT / "src", tmp_path / "src", ignore=shutil.ignore_patterns("__pycache__", "front"))
    subprocess.run(["git", "apply", "-"], input=diff, text=True, cwd=tmp_path, check=True)
    environment = {**os.environ, "PYTHONPATH": str(tmp_path / "src")}
    done = subprocess.run([sys.executable, "-c", CODE], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
