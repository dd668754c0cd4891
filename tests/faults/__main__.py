"""`make faults`: fifty moments at which something dies, fills up or is done twice, and what becomes of the tables.

    python -m tests.faults --no-ray
    python -m tests.faults --only ray --pairs 2000

After the fifty, a cluster of three nodes loses one, gains one, and loses its driver (`cluster.py`).
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

from . import cluster
from .moments import Bench, Outcome, adopt_orphans

_POOL = {"workers": 2}
_RAY = {"engine": "ray", "workers": 2}


def moments(bench: Bench, only: str, pairs: int) -> list[Callable[[], Outcome]]:
    """Fifty of them, and the cluster."""
    local: list[Callable[[], Outcome]] = [lambda: bench.driver_killed("local")] * 12
    local += [lambda n=n: bench.killed_while_writing(n) for n in (1, 2, 3, 4, 6, 9, 14, 20, 26, 30)]
    local += [lambda n=n: bench.disk_full(n) for n in (1, 2, 3, 5)]
    local += [bench.two_at_once] * 3
    pool: list[Callable[[], Outcome]] = [lambda: bench.worker_killed("pool", **_POOL)] * 8
    pool += [lambda: bench.driver_killed("pool", **_POOL)] * 6
    ray: list[Callable[[], Outcome]] = [lambda: bench.worker_killed("ray", **_RAY)] * 4
    ray += [lambda: bench.driver_killed("ray", **_RAY)] * 3
    planned = {"local": local, "pool": pool, "ray": ray}
    nodes = [lambda: cluster.disturbed(bench.folder, pairs)] if pairs else []
    if only == "cluster":
        return nodes
    if only in planned:
        return planned[only] + (nodes if only == "ray" else [])
    return [*local, *pool, *([*ray, *nodes] if only == "all" else [])]


def main() -> int:
    """Go through all moments; print a line for each, and what was counted."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--no-ray", action="store_const", dest="only", const="no-ray")
    parser.add_argument("--only", choices=["all", "local", "pool", "ray", "cluster"])
    parser.add_argument("--pairs", type=int, default=2000, help="of the cluster's corpus; 0: no cluster")
    parser.set_defaults(only="all")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    adopt_orphans()
    os.environ["PYTHONPATH"] = os.pathsep.join(str(Path(path).resolve()) for path in ("src", "."))  # Ray's workers too
    os.environ.update({"RAY_worker_niceness": "0"})  # or a busy machine leaves them no time at all
    begin, by_fault, bad = time.monotonic(), defaultdict[str, list[Outcome]](list), 0
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(Path(folder), seed=arguments.seed)
        for moment in moments(bench, arguments.only, arguments.pairs):
            found = moment()
            # What a dead driver leaves of a local Ray is Ray's to clean up, which it does after a minute or two.
            slow = found.orphans > (240 if found.fault.startswith("ray") else 5)
            wrong = found.difference > 1e-9 or slow or found.note not in ("", "had ended")
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
