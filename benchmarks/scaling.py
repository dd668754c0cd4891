"""What a corpus run costs on a cluster that is not there: a model of the cost, and a simulation that checks it.

    python -m benchmarks.scaling --sequences 1e9 --workers 64

The simulation is of discrete events: workers that count steps, save shards through a store of limited bandwidth, take over
half of the largest rest, die and come back; one driver that hears one message after the other. It runs the scheduler of the
product itself (`normlens.corpus.running.territories`). The measured constants stand in `Machine`, each with the
command that gives it; those of a GPU are an assumption, and are options.
"""

from __future__ import annotations

import argparse
import heapq
import math
import random
from dataclasses import dataclass, fields

from normlens.corpus.running.shards import FAN_IN, Shard
from normlens.corpus.running.territories import STEP_SECONDS, Territories

CHUNK = 64


@dataclass(frozen=True)
class Machine:
    """What was measured, and what is assumed, of workers, driver and store."""

    workers: int = 64
    rate: float = 1000.0  # sequences per second and worker: an assumption for a GPU, a BERT-base and 128 tokens
    load_seconds: float = 30.0  # until a worker is ready: the model comes from the object store (assumption)
    message_seconds: float = 0.0015  # of the driver, per message (assumption; see `benchmarks.engines --accounts ray`)
    start_seconds: float = 6.0  # of the driver, before and after (same)
    shard_bytes: float = 100e6  # one set of statistics of 12 layers: twice what 6 layers take (same)
    message_bytes: float = 400.0  # same
    table_bytes: float = 5e6  # the tables, which the driver reads once for their digests (same)
    table_seconds: float = 8.0  # of the worker that makes them (same: half of it with 6 layers)
    save_every: float = 30.0
    write_bandwidth: float = 200e6  # bytes per second and worker, to the store (assumption)
    merge_seconds: float = 0.5  # per shard that is read and added (assumption: 200 MB/s)
    survey_rate: float = 100e6  # bytes per second and process, read, checked and counted (`--survey`)
    bytes_per_sequence: float = 600.0  # of text
    spread: float = 0.1  # of the workers' speeds
    deaths_per_hour: float = 0.0  # per worker

    def with_options(self, options: dict[str, float]) -> Machine:
        """Some of it changed."""
        values = {field.name: options.get(field.name) for field in fields(self)}
        known = {name: type(getattr(self, name))(value) for name, value in values.items() if value is not None}
        return Machine(**{**{field.name: getattr(self, field.name) for field in fields(self)}, **known})


@dataclass(frozen=True)
class Bill:
    """What a run costs."""

    seconds: float
    driver_seconds: float
    driver_bytes: float
    store_bytes: float  # written by all workers
    shards: float
    retries: float = 0.0

    def lines(self) -> list[str]:
        """For people."""
        return [
            f"hours: {self.seconds / 3600:.2f}",
            f"driver: {self.driver_seconds:.0f} s of processor time, {100 * self.driver_seconds / self.seconds:.1f} % of "
            f"one processor; {self.driver_bytes / 1e6:.0f} MB received",
            f"store: {self.store_bytes / 1e12:.2f} TB written, {self.store_bytes / self.seconds / 1e6:.0f} MB/s on average",
            f"shards finished: {self.shards:.0f}; retries: {self.retries:.0f}",
        ]


def estimate(machine: Machine, sequences: float) -> Bill:
    """The model of the cost, in closed form."""
    saving = machine.shard_bytes / machine.write_bandwidth
    counting = sequences / (machine.workers * machine.rate) * (1 + saving / machine.save_every)
    survey = sequences * machine.bytes_per_sequence / (machine.workers * machine.survey_rate)
    # Each worker begins with a share; then about one take-over per halving of what is left, down to a few steps.
    rounds = max(0.0, math.log2(max(2.0, counting / (2 * STEP_SECONDS))) * machine.spread)
    shards = machine.workers * (1 + rounds)
    levels = max(1, math.ceil(math.log(max(shards, 2), FAN_IN)))
    merging = levels * FAN_IN * machine.merge_seconds + machine.table_seconds
    ending = machine.load_seconds + STEP_SECONDS + saving + merging
    messages = machine.workers * counting / STEP_SECONDS + 3 * shards
    return Bill(
        seconds=survey + counting + ending + machine.start_seconds,
        driver_seconds=machine.start_seconds + messages * machine.message_seconds,
        driver_bytes=messages * machine.message_bytes + machine.table_bytes,
        store_bytes=machine.shard_bytes * (machine.workers * counting / machine.save_every + 1.2 * shards),
        shards=shards,
    )


def simulate(machine: Machine, sequences: int, seed: int = 0) -> Bill:
    """One run, event by event, with the product's own scheduler."""
    rng = random.Random(seed)
    speeds = [machine.rate * rng.uniform(1 - machine.spread, 1 + machine.spread) for _ in range(machine.workers)]
    territories = Territories([Shard(0, sequences)], CHUNK)
    survey = sequences * machine.bytes_per_sequence / (machine.workers * machine.survey_rate)
    begin = machine.start_seconds / 2 + survey
    events = [(begin + machine.load_seconds * rng.uniform(1.0, 1.5), worker) for worker in range(machine.workers)]
    heapq.heapify(events)
    saved_at = dict.fromkeys(range(machine.workers), 0.0)
    saved_to = dict[int, int]()  # how much of its territory a worker has saved
    driver_free = driver = store = 0.0
    messages = shards = retries = 0
    now = end = 0.0
    saving = machine.shard_bytes / machine.write_bandwidth
    while events:
        now, worker = heapq.heappop(events)
        messages += 1
        now = driver_free = max(now, driver_free) + machine.message_seconds  # one message after the other
        driver += machine.message_seconds
        step = territories.next_step(worker)
        territory = territories.of(worker)
        if step is None and territory is None:
            continue  # idle: nothing is worth dividing any more
        if step is None:
            territories.leave(worker)
            saved_to.pop(worker, None)
            store, shards, end = store + machine.shard_bytes, shards + 1, now + saving
            heapq.heappush(events, (now + saving, worker))
            continue
        seconds = (step[1] - step[0]) / speeds[worker]
        if rng.random() < machine.deaths_per_hour * seconds / 3600:
            start = territory.start if territory is not None else 0
            kept = saved_to.pop(worker, start)
            territories.lose(worker, Shard(start, kept) if kept > start else None)
            shards += kept > start
            retries += 1
            heapq.heappush(events, (now + rng.uniform(0, seconds) + machine.load_seconds, worker))
            continue
        if now + seconds - saved_at[worker] >= machine.save_every:
            seconds, store = seconds + saving, store + machine.shard_bytes
            saved_at[worker], saved_to[worker] = now + seconds, step[1]
        territories.note(worker, step[1] - step[0], seconds)
        heapq.heappush(events, (now + seconds, worker))
    end = max(end, now)
    left = shards
    while left > FAN_IN:  # a tree of merges, in parallel
        groups = math.ceil(left / FAN_IN)
        end += math.ceil(groups / machine.workers) * min(left, FAN_IN) * machine.merge_seconds + saving
        store, messages, left = store + groups * machine.shard_bytes, messages + groups, groups
    end += left * machine.merge_seconds + machine.table_seconds
    return Bill(
        seconds=end + machine.start_seconds / 2,
        driver_seconds=machine.start_seconds + driver,
        driver_bytes=messages * machine.message_bytes + machine.table_bytes,
        store_bytes=store,
        shards=shards,
        retries=retries,
    )


def first_bottleneck(machine: Machine, store_bandwidth: float = 10e9) -> dict[str, float]:
    """At how many workers of this speed something else than they sets the pace."""
    each = machine.shard_bytes / machine.save_every
    return {
        "the driver hears no more": STEP_SECONDS / machine.message_seconds,
        f"a store that takes {store_bandwidth / 1e9:g} GB/s is full": store_bandwidth / each,
    }


def survey_speed(megabytes: int = 32) -> float:
    """Bytes per second that one process surveys."""
    import tempfile
    import time
    from pathlib import Path

    from normlens.corpus.reading.corpus import Corpus
    from normlens.corpus.reading.survey import survey_of

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "corpus.txt"
        line = "the river was built by an old town of stone and water in the north . " * 8 + "\n"
        path.write_text(line * (megabytes * 1_000_000 // len(line)))
        start = time.process_time()
        survey_of(Corpus((path,)))
        return path.stat().st_size / (time.process_time() - start)


def main() -> None:
    """Print what the model and the simulation say."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sequences", type=float, default=1e9)
    parser.add_argument("--survey", action="store_true", help="measure how fast a process surveys")
    for field in fields(Machine):
        parser.add_argument(f"--{field.name.replace('_', '-')}", type=float, default=None)
    arguments = parser.parse_args()
    if arguments.survey:
        print(f"survey: {survey_speed() / 1e6:.0f} MB per second of one process")
        return
    machine = Machine().with_options(vars(arguments))
    model, simulated = estimate(machine, arguments.sequences), simulate(machine, int(arguments.sequences))
    for name, bill in (("model", model), ("simulation", simulated)):
        print(f"{name}:\n  " + "\n  ".join(bill.lines()))
    print(f"simulation / model: {simulated.seconds / model.seconds:.3f} (hours)")
    for what, count in first_bottleneck(machine).items():
        print(f"{what} at {count:,.0f} workers")


if __name__ == "__main__":
    main()
