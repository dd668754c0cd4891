"""One row per token and layer, for those who want the numbers behind the statistics."""

from __future__ import annotations

import numpy as np

from normlens.corpus.batches import Batch
from normlens.corpus.plan import Plan
from normlens.corpus.tally import KINDS, BatchTally


class TokenRows:
    """Collects the rows of one unit: a token's quantities per layer, averaged over heads (and queries)."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self._parts: list[dict[str, np.ndarray]] = []

    def add(self, batch: Batch, opened: BatchTally) -> None:
        """Take in a batch that has been run."""
        count, length = batch.ids.shape
        shape = (count, length)
        for kind, layers in opened.layers.items():
            for step, layer in enumerate(layers):
                quantities = {n: rows[step] for (k, n), rows in opened.per_token.items() if k == kind}
                columns = {
                    "sequence": np.array([[item.index] for item in batch.items], dtype=np.int64),
                    "position": np.arange(length, dtype=np.int32)[None],
                    "kind": np.array([[KINDS.index(kind)]], dtype=np.int8),
                    "layer": np.array([[layer]], dtype=np.int16),
                    "token_id": batch.ids,
                    "category": batch.category,
                    **{name: values[batch.ids] for name, values in self.plan.covariates.items()},
                    **quantities,
                }
                self._parts.append({n: np.broadcast_to(column, shape).reshape(-1) for n, column in columns.items()})

    def columns(self) -> dict[str, np.ndarray]:
        """All rows, in the order of the corpus: sequence, layer, position."""
        joined = {name: np.concatenate([part[name] for part in self._parts]) for name in self._parts[0]}
        order = np.lexsort((joined["position"], joined["layer"], joined["kind"], joined["sequence"]))
        return {name: column[order] for name, column in joined.items()}
