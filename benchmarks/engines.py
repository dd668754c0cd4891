"""One corpus through every engine, undisturbed and killed in mid-run: the largest difference between the answers.

    python -m benchmarks.engines CORPUS --model MODEL --limit 192

The first run is the yardstick. Counts must be equal; of everything else the largest relative difference is printed.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import pandas as pd
from rich.console import Console
from rich.table import Table

#: What each run does differently, and whether it is killed after its first shard and started again.
RUNS: dict[str, tuple[tuple[str, ...], bool]] = {
    "local": ((), False),
    "local, batch size 3": (("--batch-size", "3"), False),
    "local, killed and resumed": ((), True),
    "pool of 2 processes": (("--workers", "2"), False),
    "pool of 2, killed and resumed": (("--workers", "2"), True),
    "ray, 2 actors": (("--engine", "ray", "--workers", "2"), False),
    "ray, killed and resumed": (("--engine", "ray", "--workers", "2"), True),
}
#: Columns that a table's rows are told apart by; whatever is not a number is one too.
KEYS = {"layer", "head", "position", "offset", "token_id"}


def run(command: list[str], out: Path, kill: bool) -> bool:
    """Run to the end; returns whether it was killed on the way."""
    killed = False
    if kill:
        first = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True)
        while first.poll() is None and not list(out.rglob("*.shard")):
            time.sleep(0.05)
        killed = first.poll() is None
        if killed:
            os.killpg(first.pid, signal.SIGKILL)
            first.wait()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return killed


def difference(first: Path, second: Path) -> tuple[bool, float]:
    """Whether all keys and whole numbers are equal, and the largest relative difference of the other numbers."""
    equal, worst = True, 0.0
    for path in sorted(first.glob("*.parquet")):
        a, b = pd.read_parquet(path), pd.read_parquet(second / path.name)
        if a.shape != b.shape:
            return False, float("inf")
        for name in a.columns:
            if a[name].dtype.kind == "f" and name not in KEYS:
                x, y = a[name].to_numpy(), b[name].to_numpy()
                equal = equal and bool((np.isnan(x) == np.isnan(y)).all())
                both = ~(np.isnan(x) | np.isnan(y)) & (x != y)
                if both.any():
                    worst = max(worst, float((abs(x - y)[both] / np.maximum(abs(x), abs(y))[both]).max()))
            else:
                equal = equal and a[name].equals(b[name])
    return equal, worst


def main() -> None:
    """Run them all and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("corpus")
    parser.add_argument("--model", required=True)
    parser.add_argument("--limit", default="192")
    arguments = parser.parse_args()
    table = Table("run", "killed", "counts equal", "largest relative difference", "sequences/s")
    with tempfile.TemporaryDirectory() as folder:
        first: Path | None = None
        for number, (name, (options, kill)) in enumerate(RUNS.items()):
            out = Path(folder) / str(number)
            command = [
                sys.executable, "-m", "normlens.cli.main", "corpus", arguments.corpus, "--model", arguments.model,
                "--pairs", "--limit", arguments.limit, "--out", str(out), *options,
            ]  # fmt: skip
            killed = run(command, out, kill)
            speed = pd.read_json(out / "manifest.json", typ="series")["sequences_per_second"]
            first = out if first is None else first
            equal, worst = difference(first, out)
            table.add_row(name, "yes" if killed else "", "yes" if equal else "NO", f"{worst:.1e}", f"{speed:.1f}")
            Console().print(f"{name}: done")
    Console().print(table)


if __name__ == "__main__":
    main()
