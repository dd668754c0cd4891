"""One unit of work: sequences through the model, into a tally. The same code in every engine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from normlens.corpus.batches import Item, batched
from normlens.corpus.plan import Plan
from normlens.corpus.tally import Tally
from normlens.corpus.tokens import TokenRows
from normlens.settings import Precision, Settings

if TYPE_CHECKING:
    from normlens.lens import Lens


@dataclass(frozen=True)
class Unit:
    """Consecutive sequences of the corpus: what is computed, retried and counted as a whole."""

    index: int
    items: tuple[Item, ...]


@dataclass(frozen=True)
class Done:
    """A unit's tally as arrays, and its rows per token where they were asked for."""

    index: int
    sequences: int
    state: dict[str, np.ndarray]
    tokens: dict[str, np.ndarray] | None


class Worker:
    """A model and a plan, ready for units."""

    def __init__(
        self, lens: Lens, plan: Plan, *, batch_size: int, per_token: bool = False, precision: Precision = "float32"
    ) -> None:
        self.lens, self.plan = lens, plan
        self.batch_size, self.per_token = batch_size, per_token
        self.settings = Settings.of(
            lens.anatomy, measures=plan.requested, mixing=plan.mixing, layers=plan.layers, precision=precision
        )

    def work(self, unit: Unit) -> Done:
        """Run a unit's sequences, batch by batch."""
        tally = Tally(self.plan)
        rows = TokenRows(self.plan) if self.per_token else None
        self.count(tally, unit.items, rows)
        return Done(unit.index, len(unit.items), tally.state(), None if rows is None else rows.columns())

    def count(self, tally: Tally, items: Sequence[Item], rows: TokenRows | None = None) -> None:
        """Run sequences into a tally."""
        device = next(self.lens.model.parameters()).device
        for batch in batched(items, self.batch_size):
            opened = tally.open(batch)
            self.lens.run(batch.inputs(device), self.settings, lambda site, block, result: opened.site(result))  # noqa: B023
            opened.close()
            if rows is not None:
                rows.add(batch, opened)
