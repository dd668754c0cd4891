"""One corpus through every engine: what differs, and what a driver has to do.

    python -m benchmarks.engines CORPUS --model MODEL --limit 192
    python -m benchmarks.engines --accounts pool

The first compares answers, undisturbed and killed in mid-run, with those of one process: counts must be equal; of
everything else the largest relative difference is printed. The second takes the accounts of runs over 600 and 1,200
sequences in ranges of two: what a range costs the driver, and how many workers it could keep busy. Processor time is
compared, not the clock.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
from rich.console import Console
from rich.table import Table

from benchmarks.corpus import bert

#: Seconds of work in a range, and the number of workers that one driver must be able to keep busy.
RANGE_SECONDS, WORKERS = 30.0, 500
SIZES = (600, 1200)
RANGE = 2

#: What each run does differently, and whether it is killed after its first shard and started again.
RUNS: dict[str, tuple[tuple[str, ...], bool]] = {
    "local": ((), False),
    "local, killed and resumed": ((), True),
    "pool of 2 processes": (("--workers", "2"), False),
    "pool of 2, killed and resumed": (("--workers", "2"), True),
    "ray, 2 tasks at a time": (("--engine", "ray", "--workers", "2"), False),
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


@dataclass(frozen=True)
class Costs:
    """The accounts of two runs, the second over twice as many sequences."""

    small: dict[str, float]
    large: dict[str, float]

    @property
    def per_range(self) -> float:
        """The driver's processor time for one more range, in seconds."""
        more = {name: self.large[name] - self.small[name] for name in ("driver_seconds", "ranges")}
        return more["driver_seconds"] / more["ranges"]

    @property
    def busy_workers(self) -> float:
        """The number of workers at which one processor of the driver is busy all the time."""
        return RANGE_SECONDS / max(self.per_range, 1e-6)


def costs(engine: str, sizes: tuple[int, int] = SIZES, workers: int = 2) -> Costs:
    """Count made-up texts with a small model; `engine` is `pool` or `ray`."""
    import normlens
    from normlens.corpus import batches

    words = normlens.load().tokenizer
    lens = normlens.Lens(bert(layers=2, width=64, heads=2).model, words, name="small")
    rng = np.random.default_rng(0)
    known = [word for word in words.get_vocab() if word.isalpha() and word.isascii()]
    found, usual = [], batches.CHUNK_SIZE
    batches.CHUNK_SIZE = RANGE
    try:
        with tempfile.TemporaryDirectory() as folder:
            for size in sizes:
                source = Path(folder) / f"{size}.txt"
                source.write_text("\n".join(" ".join(rng.choice(known, size=30)) for _ in range(size)))
                result = lens.corpus(
                    source, Path(folder) / str(size), engine=engine, workers=workers, threads=1, range_seconds=0.0
                )
                found.append(result.manifest["engine"])
    finally:
        batches.CHUNK_SIZE = usual
    return Costs(*found)


def main() -> None:
    """Run them all and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("corpus", nargs="?")
    parser.add_argument("--model")
    parser.add_argument("--limit", default="192")
    parser.add_argument("--accounts", choices=["pool", "ray"])
    parser.add_argument("--sizes", type=int, nargs=2, default=SIZES)
    arguments = parser.parse_args()
    if arguments.accounts:
        _print_costs(arguments.accounts, costs(arguments.accounts, tuple(arguments.sizes)))
        return
    if not arguments.corpus or not arguments.model:
        parser.error("name a corpus and a --model, or --accounts")
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


def _print_costs(engine: str, found: Costs) -> None:
    table = Table("account", *(f"run {number}" for number in (1, 2)), title=engine)
    for name in found.small:
        table.add_row(name, *(str(account[name]) for account in (found.small, found.large)))
    Console().print(table)
    Console().print(
        f"driver: {1000 * found.per_range:.1f} ms per range; with ranges of {RANGE_SECONDS:.0f} s it keeps "
        f"{found.busy_workers:,.0f} workers busy (target {WORKERS})"
    )


if __name__ == "__main__":
    main()
