"""Who counts what: everything once, whoever comes, goes or is slow."""

from __future__ import annotations

import random

from hypothesis import given, settings
from hypothesis import strategies as st

from normlens.corpus.running.shards import Shard, gaps
from normlens.corpus.running.territories import STEP_SECONDS, Territories


@settings(max_examples=100, deadline=None)
@given(st.integers(0, 10**6), st.integers(1, 400), st.integers(1, 9), st.floats(0.0, 0.3))
def test_everything_is_counted_once_though_workers_die(seed: int, total: int, workers: int, deadly: float) -> None:
    rng, chunk = random.Random(seed), 4
    before = [Shard(at, min(at + chunk, total)) for at in range(0, total, chunk) if rng.random() < 0.2]
    territories = Territories(gaps(before, total), chunk)
    done, counted = list(before), {}  # a worker's sequences, counted and saved
    for _ in range(10_000):
        worker = rng.randrange(workers)
        step = territories.next_step(worker)
        if step is not None:
            start, stop = step
            assert start % chunk == 0 and (stop % chunk == 0 or stop == total) and start < stop
            counted.setdefault(worker, []).append(step)
            territories.note(worker, stop - start, rng.uniform(0.01, 10.0))
        elif territories.of(worker) is not None:
            steps = counted.pop(worker)
            territories.leave(worker)
            done.append(Shard(steps[0][0], steps[-1][1]))
        elif not territories.is_left:
            break
        if rng.random() < deadly:
            steps = counted.pop(worker, [])
            kept = steps[: rng.randint(0, len(steps))]
            saved = Shard(kept[0][0], kept[-1][1]) if kept else None
            territories.lose(worker, saved)
            done += [saved] if saved is not None else []
    assert not gaps(done, total)
    assert sum(shard.size for shard in done) == total, "nothing is counted twice"


def test_shards_grow_with_workers_and_not_with_the_corpus() -> None:
    def shards(total: int, workers: int) -> int:
        """Workers of different speed, by the clock."""
        territories, clock, count = Territories([Shard(0, total)], 64), dict.fromkeys(range(workers), 0.0), 0
        while clock:
            worker = min(clock, key=lambda w: clock[w])
            step = territories.next_step(worker)
            if step is not None:
                seconds = (step[1] - step[0]) / (100 + 10 * worker)
                clock[worker] += seconds
                territories.note(worker, step[1] - step[0], seconds)
            elif territories.of(worker) is not None:
                territories.leave(worker)
                count += 1
            else:
                del clock[worker]
        return count

    small, large = shards(10**5, 16), shards(10**7, 16)
    assert small >= 16 and large <= 16 * 8, (small, large)
    assert shards(10**7, 1) == 1 and STEP_SECONDS > 1
