"""`make faults`: fifty moments at which something dies, fills up or is done twice, and what becomes of the tables.

python -m tests.faults --no-ray
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path

import torch

from .moments import Bench, Outcome

_POOL = {"workers": 2}
_RAY = {"engine": "ray", "workers": 2}


def moments(bench: Bench, with_ray: bool) -> list[Callable[[], Outcome]]:
    """Fifty of them."""
    planned: list[Callable[[], Outcome]] = []
    planned += [lambda: bench.driver_killed("local")] * 12
    planned += [lambda n=n: bench.killed_while_writing(n) for n in (1, 2, 3, 4, 6, 9, 14, 20, 26, 30)]
    planned += [lambda n=n: bench.disk_full(n) for n in (1, 2, 3, 5)]
    planned += [bench.two_at_once] * 3
    planned += [lambda: bench.worker_killed("pool", **_POOL)] * 8
    planned += [lambda: bench.driver_killed("pool", **_POOL)] * 6
    if with_ray:
        planned += [lambda: bench.worker_killed("ray", **_RAY)] * 4
        planned += [lambda: bench.driver_killed("ray", **_RAY)] * 3
    return planned


def main() -> int:
    """Go through all moments; print a line for each, and what was counted."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--no-ray", action="store_true")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    os.environ["PYTHONPATH"] = os.pathsep.join(str(Path(path).resolve()) for path in ("src", "."))  # Ray's workers too
    begin, by_fault, bad = time.monotonic(), defaultdict[str, list[Outcome]](list), 0
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(Path(folder), seed=arguments.seed)
        for moment in moments(bench, not arguments.no_ray):
            found = moment()
            wrong = found.difference > 1e-9 or found.orphans > 5 or found.note not in ("", "had ended")
            bad += wrong
            by_fault[found.fault].append(found)
            print(
                f"{'WRONG ' if wrong else ''}{found.fault}, {found.at}: {found.shards} shards, largest difference "
                f"{found.difference:.1e}, processes gone after {found.orphans:.2f} s {found.note}",
                flush=True,
            )
    print()
    for fault, all_found in by_fault.items():
        disturbed = sum(found.note != "had ended" for found in all_found)
        print(
            f"{fault}: {len(all_found)} moments ({disturbed} in mid-run), largest difference "
            f"{max(found.difference for found in all_found):.1e}, longest survival of a process "
            f"{max(found.orphans for found in all_found):.2f} s"
        )
    count = sum(map(len, by_fault.values()))
    print(f"{count} moments, {bad} wrong; {time.monotonic() - begin:.0f} s")
    return 1 if bad else 0


if __name__ == "__main__":
    raise SystemExit(main())
