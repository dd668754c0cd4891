"""Record the cases, or compare them with what was recorded.

    python -m tests.golden.record write FOLDER [--real] [--only TEXT]    full arrays, to compare bits on one machine
    python -m tests.golden.record compare FOLDER [--real] [--only TEXT]  list what differs, and by how much
    python -m tests.golden.record digest FOLDER                          the digests that the tests compare with

A digest of an array is its shape, its sum of squares and its product with seeded numbers: enough to notice any change of
more than rounding, and small enough to keep beside the code.
"""

from __future__ import annotations

import argparse
import gzip
import json
import sys
import zlib
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import torch

from tests.golden.cases import CASES, REAL_CASES, Case

DIGESTS = Path(__file__).with_name("digests.json.gz")
Digest = list[float | list[int]]


def results_of(case: Case) -> dict[str, np.ndarray]:
    """All results of a case by name."""
    return dict(case())


def digest(name: str, array: np.ndarray) -> Digest:
    """Shape, root of the sum of squares, and product with numbers that are seeded by the name."""
    numbers = np.nan_to_num(array.astype(np.float64).ravel(), nan=7.0, posinf=11.0, neginf=-11.0)
    drawn = np.random.default_rng(zlib.crc32(name.encode())).standard_normal(numbers.size)
    return [list(array.shape), *(float(f"{number:.9g}") for number in (np.linalg.norm(numbers), numbers @ drawn))]


def digest_difference(one: Digest, other: Digest) -> float:
    """The largest difference of two digests, relative to the size of the array."""
    if one[0] != other[0]:
        return float("inf")
    size = max(abs(float(one[1])), 1e-12)  # type: ignore[arg-type]
    return max(abs(float(a) - float(b)) for a, b in zip(one[1:], other[1:], strict=True)) / size  # type: ignore[arg-type]


def _chosen(options: argparse.Namespace) -> Mapping[str, Case]:
    cases = REAL_CASES if options.real else CASES
    return {name: case for name, case in cases.items() if options.only in name}


def write(folder: Path, cases: Mapping[str, Case]) -> None:
    """Write the full arrays of each case."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, case in cases.items():
        np.savez_compressed(folder / f"{name}.npz", **{key.replace("/", "|"): v for key, v in results_of(case).items()})
        print(name, flush=True)


def compare(folder: Path, cases: Mapping[str, Case]) -> int:
    """Print every difference; the number of cases that differ by more than 1e-6."""
    wrong = exact = close = 0
    for name, case in cases.items():
        path = folder / f"{name}.npz"
        if not path.exists():
            print(f"{name}: was not recorded")
            continue
        then = recorded(path)
        now = results_of(case)
        problems = [f"missing {key}" for key in sorted(set(then) - set(now))[:5]]
        problems += [f"new {key}" for key in sorted(set(now) - set(then))[:5]]
        worst, at, same = 0.0, "", True
        for key in set(then) & set(now):
            if then[key].shape != now[key].shape:
                problems.append(f"shape of {key}: {then[key].shape} became {now[key].shape}")
                continue
            if np.array_equal(then[key], now[key], equal_nan=True):
                continue
            same = False
            size = np.abs(np.nan_to_num(then[key])).max()
            gap = float(np.abs(np.nan_to_num(then[key]) - np.nan_to_num(now[key])).max() / max(size, 1e-12))
            if gap > worst:
                worst, at = gap, key
        if problems or worst > 1e-6:
            wrong += 1
            print(f"{name}: {'; '.join(problems)} largest difference {worst:.1e} in {at}", flush=True)
        elif same:
            exact += 1
        else:
            close += 1
            print(f"{name}: within {worst:.1e} ({at})", flush=True)
    print(f"{exact} cases equal to the bit, {close} within 1e-6, {wrong} different")
    return wrong


def write_digests(folder: Path) -> None:
    """Write the digests of what was recorded in a folder."""
    digests = {}
    for path in sorted(folder.glob("*.npz")):
        if path.stem in CASES:
            results = recorded(path)
            digests[path.stem] = {key: digest(key, array) for key, array in results.items()}
    text = json.dumps(digests, separators=(",", ":"))
    DIGESTS.write_bytes(gzip.compress(text.encode(), mtime=0))


def recorded(path: Path) -> dict[str, np.ndarray]:
    """The arrays of one recorded case."""
    with np.load(path) as arrays:
        return {key.replace("|", "/"): arrays[key] for key in arrays.files}


def read_digests() -> dict[str, dict[str, Digest]]:
    """The recorded digests by case and name."""
    return json.loads(gzip.decompress(DIGESTS.read_bytes()))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["write", "compare", "digest"])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--real", action="store_true")
    parser.add_argument("--only", default="")
    options = parser.parse_args()
    torch.set_num_threads(1)
    cases = _chosen(options)
    if options.what == "write":
        write(options.folder, cases)
    elif options.what == "compare":
        sys.exit(1 if compare(options.folder, cases) else 0)
    else:
        write_digests(options.folder)


if __name__ == "__main__":
    main()
