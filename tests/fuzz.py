"""An hour of the adversary: `python -m tests.fuzz`. Exit code 1 where an answer was wrong or not one of ours."""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter

import torch
import transformers

from tests.adversary.coincidences import judge, judge_adapter
from tests.adversary.draw import draw


def main() -> int:
    """Draw until the time is over, then say how many draws there were and what became of them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=int(time.time()), help="the first draw's; each has the next one")
    options = parser.parse_args()
    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    counts: Counter[str] = Counter()
    reasons: Counter[str] = Counter()
    bad: list[object] = []
    began, seed = time.monotonic(), options.seed
    while time.monotonic() - began < 60 * options.minutes:
        for verdict in draw(seed):
            counts[verdict.status] += 1
            if verdict.status == "refused":
                reasons[verdict.what[:80]] += 1
            if verdict.bad:
                bad.append(verdict)
                print(verdict, flush=True)
        for judged in (judge, judge_adapter):
            found = judged(seed)
            status = (
                found if found in ("equal", "refused") else "not to be had" if found.startswith("not to") else "wrong"
            )
            counts[status] += 1
            if status == "wrong":
                bad.append(found)
                print(found, flush=True)
        seed += 1
    print(f"{seed - options.seed} draws from seed {options.seed} on, {sum(counts.values())} answers: {dict(counts)}")
    for reason, count in reasons.most_common(12):
        print(f"  {count:5d} {reason}")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
