"""Who counts which part of the corpus: nobody waits for anybody, and each worker has few parts, all in one piece.

A worker has a *territory*, consecutive sequences that it counts from front to back into one growing shard. It is told to
go on in *steps* of a few seconds. Who has none left takes the back half of the largest rest, as long as that is worth a
shard of its own. So a run leaves a few shards per worker, however long it is, and what the driver hears grows with time
and workers, not with the corpus. What a dead worker had not saved is given to others.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from normlens.corpus.running.shards import Shard

#: Seconds that a step should take: often enough to show progress and to let others take over, rarely enough to cost nothing.
STEP_SECONDS = 5.0
_FEWEST_STEPS = 2  # that a rest must be worth, to be divided


@dataclass
class Territory:
    """Consecutive sequences of one worker."""

    start: int  # where its shard begins
    at: int  # the worker was told to count so far
    stop: int

    @property
    def rest(self) -> int:
        """Sequences that nobody was told to count yet."""
        return self.stop - self.at


class Territories:
    """The part of a corpus that is not counted yet, divided among workers."""

    def __init__(self, gaps: Iterable[Shard], chunk: int) -> None:
        """`gaps` are what is to be counted; parts begin at multiples of `chunk`, as what is counted at once does."""
        self._free = [Territory(gap.start, gap.start, gap.stop) for gap in gaps]
        self._chunk = chunk
        self._of: dict[int, Territory] = {}
        self._rate: dict[int, float] = {}  # sequences per second

    def of(self, worker: int) -> Territory | None:
        """What a worker has, counted or not."""
        return self._of.get(worker)

    @property
    def is_left(self) -> bool:
        """Whether anything is free, or anybody's."""
        return bool(self._free or self._of)

    def next_step(self, worker: int) -> tuple[int, int] | None:
        """What the worker should count next; None where its territory is done, or it has none and none can be had."""
        territory = self._of.get(worker) or self._take(worker)
        if territory is None or not territory.rest:
            return None
        begin = territory.at
        end = begin + self._step(worker)
        territory.at = min(territory.stop, end - end % self._chunk)
        return begin, territory.at

    def note(self, worker: int, sequences: int, seconds: float) -> None:
        """How long a step took, for the length of the next one; it grows by doubling."""
        before = self._rate.get(worker, self._chunk / STEP_SECONDS)
        self._rate[worker] = min(sequences / max(seconds, 1e-6), 2 * before)

    def leave(self, worker: int) -> None:
        """The worker's territory is done and saved."""
        del self._of[worker]

    def lose(self, worker: int, saved: Shard | None) -> None:
        """The worker is dead: what it had not saved is free."""
        territory = self._of.pop(worker, None)
        self._rate.pop(worker, None)
        if territory is not None:
            start = territory.start if saved is None else saved.stop
            if start < territory.stop:
                self._free.append(Territory(start, start, territory.stop))

    def _step(self, worker: int) -> int:
        """Sequences that take the worker about `STEP_SECONDS`, in whole chunks."""
        chunks = int(self._rate.get(worker, 0.0) * STEP_SECONDS / self._chunk)
        return max(1, chunks) * self._chunk

    def _take(self, worker: int) -> Territory | None:
        if self._free:
            taken = max(self._free, key=lambda territory: (territory.rest, -territory.start))
            self._free.remove(taken)
            self._of[worker] = taken
            return taken
        if not self._of:
            return None
        owner, largest = max(self._of.items(), key=lambda item: (item[1].rest, -item[1].start))
        if largest.rest < _FEWEST_STEPS * self._step(owner):
            return None
        middle = largest.at + largest.rest // 2
        middle += -middle % self._chunk
        if middle >= largest.stop:
            return None
        self._of[worker] = Territory(middle, middle, largest.stop)
        largest.stop = middle
        return self._of[worker]
