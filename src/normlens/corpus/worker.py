"""One unit of work: sequences through the model, into a tally. The same code in every engine."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from normlens.corpus.batches import Batch, Item, batched
from normlens.corpus.plan import Plan
from normlens.corpus.tally import Tally
from normlens.corpus.tokens import TokenRows
from normlens.observe import SiteResult
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
    """A model and a plan, ready for units.

    Each sequence goes through the model alone, so that its numbers depend on nothing but itself: a matrix product of
    more rows may round differently. Statistics are then taken over the batch at once. With `together` the whole batch
    goes through the model at once, which a GPU needs to be fast; numbers then depend on the batch in their last digits.
    """

    def __init__(
        self,
        lens: Lens,
        plan: Plan,
        *,
        batch_size: int,
        per_token: bool = False,
        precision: Precision = "float32",
        together: bool = False,
    ) -> None:
        self.lens, self.plan = lens, plan
        self.batch_size, self.per_token, self.together = batch_size, per_token, together
        self.settings = Settings.of(
            lens.anatomy, measures=plan.requested, mixing=plan.mixing, layers=plan.layers, precision=precision
        )

    def work(self, unit: Unit) -> Done:
        """Run a unit's sequences, batch by batch."""
        tally = Tally(self.plan)
        rows = TokenRows(self.plan) if self.per_token else None
        self.count(tally, unit.items, rows)
        return Done(unit.index, len(unit.items), tally.state(), None if rows is None else rows.columns())

    def _run(self, inputs: dict[str, Tensor], handle: Callable[[SiteResult], None]) -> None:
        self.lens.run(inputs, self.settings, lambda site, block, result: handle(result))

    def count(self, tally: Tally, items: Sequence[Item], rows: TokenRows | None = None) -> None:
        """Run sequences into a tally."""
        device = next(self.lens.model.parameters()).device
        for batch in batched(items, self.batch_size):
            opened = tally.open(batch)
            if self.together or len(batch.items) == 1:
                self._run(batch.inputs(device), opened.site)
            else:
                alone: list[list[SiteResult]] = []
                for item in batch.items:
                    alone.append([])
                    self._run(Batch([item]).inputs(device), alone[-1].append)
                for results in zip(*alone, strict=True):
                    opened.site(joined(results))
            opened.close()
            if rows is not None:
                rows.add(batch, opened)


def joined(results: Sequence[SiteResult]) -> SiteResult:
    """One site's results of several sequences of one length, as one batch."""

    def together(parts: Sequence[dict[str, Tensor]]) -> dict[str, Tensor]:
        return {name: torch.cat([part[name] for part in parts]) for name in parts[0]}

    return SiteResult(
        results[0].kind,
        results[0].layer,
        together([result.values for result in results]),
        together([result.mixing for result in results]),
        together([result.residual for result in results]),
        torch.cat([result.query_mask for result in results]),
        torch.cat([result.key_mask for result in results]),
        torch.cat([result.proof for result in results]),
    )
