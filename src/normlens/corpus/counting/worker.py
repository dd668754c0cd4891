"""Sequences of the corpus in, statistics out. The same code in every engine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from normlens.corpus.counting.batches import batched
from normlens.corpus.counting.counter import BatchCounter, Rows, sorted_rows
from normlens.corpus.counting.passes import ForwardPasses
from normlens.corpus.counting.plan import Plan
from normlens.corpus.counting.statistics import CorpusStatistics
from normlens.corpus.reading.sequences import TokenSequence
from normlens.measures.request import Request

if TYPE_CHECKING:
    from normlens.lens import Lens


@dataclass(frozen=True)
class WorkerSettings:
    """What a worker needs besides the model; it travels to other processes."""

    plan: Plan
    batch_size: int | None = None  # None: what suits the device
    batched: bool = False  # see `ForwardPasses`


class Worker:
    """A model and a plan, ready for chunks."""

    def __init__(self, lens: Lens, settings: WorkerSettings) -> None:
        plan = self.plan = settings.plan
        self.device = next(lens.model.parameters()).device
        self._batch_size = settings.batch_size or batch_size_for(self.device)
        request = Request.of(
            lens.anatomy,
            measures=plan.requested,
            mixing=plan.mixing,
            layers=plan.layers,
            precision=plan.precision,
        )
        self._passes = ForwardPasses(lens, request, batched=settings.batched)

    def count(self, statistics: CorpusStatistics, sequences: Sequence[TokenSequence]) -> Rows | None:
        """Run sequences, batch by batch, into statistics; returns a row per token and layer where the plan asks for it."""
        rows = list[Rows]()
        for batch in batched(sequences, self._batch_size):
            counter = BatchCounter(statistics, batch)
            self._passes.run(batch, counter.update)
            counter.finish()
            if self.plan.per_token:
                rows += counter.token_rows()
        return sorted_rows(rows) if rows else None


def batch_size_for(device: torch.device) -> int:
    """Sequences counted at once where nobody said: few on a CPU, whose cache they should fit, more elsewhere."""
    return 8 if device.type == "cpu" else 64
