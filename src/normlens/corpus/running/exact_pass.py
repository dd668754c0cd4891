"""A second pass over the corpus, which computes flagged rank correlations exactly."""

from __future__ import annotations

import dataclasses
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

import pandas as pd

from normlens.corpus.accumulators.spearman_pairs import DiskSpearman
from normlens.corpus.counting.plan import Plan
from normlens.corpus.counting.statistics import CorpusStatistics
from normlens.corpus.counting.worker import Worker, WorkerSettings
from normlens.corpus.reading.reader import Chunk
from normlens.corpus.running.tables import category_unions
from normlens.errors import InputError
from normlens.io.remote import AnyPath
from normlens.measures.table import MIXING

if TYPE_CHECKING:
    from normlens.lens import Lens


class PairsOnDisk(CorpusStatistics):
    """Statistics whose rank correlations keep their pairs on disk."""

    def __init__(self, plan: Plan, folder: Path) -> None:
        super().__init__(plan)
        self._folder = folder
        self.on_disk: dict[tuple[str, str, str], DiskSpearman] = {}  # kind, x, y

    def rank_correlation(self, kind: str, x: str, y: str) -> DiskSpearman:
        """Two quantities over all pairs, layers and heads of a kind of site."""
        return self._kept(kind, x, y)

    def covariate_correlation(self, kind: str, quantity: str, covariate: str) -> DiskSpearman:
        """A token's quantity, averaged over layers and heads, and its covariate."""
        return self._kept(kind, quantity, covariate)

    def _kept(self, kind: str, x: str, y: str) -> DiskSpearman:
        return self.on_disk.setdefault((kind, x, y), DiskSpearman(self._folder / f"{kind}-{x}-{y}"))


def recompute_flagged(
    correlations: pd.DataFrame, lens: Lens, settings: WorkerSettings, chunks: Iterable[Chunk], out: AnyPath
) -> pd.DataFrame:
    """The table of correlations with every flagged rho replaced by the exact one; pairs are kept below `out` meanwhile.

    Where that is remote, they are kept in the temporary folder of this machine.
    """
    flagged = correlations[correlations["flagged"].astype(bool)]
    if flagged.empty:
        return correlations
    plan = _plan_for(flagged, settings.plan)
    with tempfile.TemporaryDirectory(dir=out if isinstance(out, Path) else None, prefix="exact-") as folder:
        pairs = PairsOnDisk(plan, Path(folder))
        worker = Worker(lens, dataclasses.replace(settings, plan=plan))
        for chunk in chunks:
            worker.count(pairs, chunk.sequences)
        exact = correlations.copy()
        codes = category_unions(plan.categories)
        for index, row in flagged.iterrows():
            try:
                rho = pairs.on_disk[row["site"], row["x"], row["y"]].result(codes[row["category"]])
            except InputError:  # seen exactly, one side is constant: there is no correlation to report
                exact = exact.drop(index=index)
                continue
            exact.loc[index, ["value", "bound", "flagged"]] = [rho.rho, rho.bound, False]
    return exact.reset_index(drop=True)


def _plan_for(flagged: pd.DataFrame, plan: Plan) -> Plan:
    """A plan for the flagged correlations and nothing else."""
    rows = flagged.to_dict("records")
    names = {name for row in rows for name in (row["x"], row["y"])}
    return dataclasses.replace(
        plan,
        measures=tuple(name for name in plan.measures if name in names | {"alpha", "f_norm"}),
        mixing=tuple(name for name in plan.mixing if MIXING + name in names),
        histograms=(),
        relative=(),
        correlate=tuple({(row["x"], row["y"]): None for row in rows if row["over"] == "pairs"}),
        sample=1,
        covariates={name: values for name, values in plan.covariates.items() if name in names},
        per_token=False,
    )
