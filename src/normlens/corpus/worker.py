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
from normlens.corpus.rounding import FEWEST_POSITIONS, rows_stand_alone, steady
from normlens.corpus.tally import Tally
from normlens.corpus.tokens import TokenRows
from normlens.decompose import kernels
from normlens.decompose.attend import WHOLE_NUMBERS
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

    A sequence's numbers must depend on nothing but itself. Sequences of one length go through the model together where
    that changes no bit of them (`rounding`; the first batch is run both ways to see it), else one by one; statistics are
    taken over the batch at once. `together` asks for whole batches in any case, and then numbers may depend on the batch
    in their last digits.
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
        self._joins: bool | None = True if together else None  # None: not tried yet
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
        with steady(inputs["input_ids"].numel()):
            self.lens.run(inputs, self.settings, lambda site, block, result: handle(result))

    def count(self, tally: Tally, items: Sequence[Item], rows: TokenRows | None = None) -> None:
        """Run sequences into a tally."""
        for batch in batched(items, self.batch_size):
            opened = tally.open(batch)
            with kernels.whatever_the_size():
                self._through_the_model(batch, opened.site)
            opened.close()
            if rows is not None:
                rows.add(batch, opened)

    def _through_the_model(self, batch: Batch, handle: Callable[[SiteResult], None]) -> None:
        device = next(self.lens.model.parameters()).device
        if len(batch.items) == 1 or (self._joins and self._may_join(batch)):
            self._run(batch.inputs(device), handle)
            return
        alone: list[list[SiteResult]] = []
        for item in batch.items:
            alone.append([])
            self._run(Batch([item]).inputs(device), alone[-1].append)
        apart = [joined(results) for results in zip(*alone, strict=True)]
        if self._joins is None and self._may_join(batch):
            at_once: list[SiteResult] = []
            if rows_stand_alone(self.lens.model):
                self._run(batch.inputs(device), at_once.append)
            self._joins = bool(at_once) and all(map(_same_bits, at_once, apart))
        for result in apart:
            handle(result)

    def _may_join(self, batch: Batch) -> bool:
        """Not where a product has few rows, nor where attention would be cut into other blocks than for one sequence."""
        length = batch.items[0].length
        heads = max(site.heads for site in self.settings.sites)
        fits = len(batch.items) * heads * length * length <= WHOLE_NUMBERS
        return self.together or (length >= FEWEST_POSITIONS and fits)


def _same_bits(one: SiteResult, other: SiteResult) -> bool:
    groups = ((one.values, other.values), (one.mixing, other.mixing), (one.residual, other.residual))
    return all(torch.equal(a[name], b[name]) for a, b in groups for name in a)


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
