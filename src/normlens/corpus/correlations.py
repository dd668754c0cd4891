"""Correlations: Pearson's r by layer and head, Spearman's rho over all pairs and of tokens with covariates."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from jaxtyping import Float, Int

from normlens.corpus.batches import BatchValues, SiteValues
from normlens.corpus.compiled import count_weights, usable
from normlens.corpus.options import Plan, binning_of, has_heads
from normlens.corpus.ranks import BinnedRanks, DistinctPairs, RankCorrelation, check_count
from normlens.corpus.statistics import SCHEMA, Cells, State, Statistic, Tables, by_kind, category_unions, site_rows
from normlens.errors import InputError
from normlens.measures.table import MIXING


class Products(Cells):
    """Means and centred sums of products of two quantities; merged as `Moments` are."""

    FIELDS = ("count", "x", "y", "xx", "yy", "xy")

    def __init__(self, shape: tuple[int, ...]) -> None:
        self.count = np.zeros(shape, dtype=np.int64)
        self.x, self.y = np.zeros(shape), np.zeros(shape)  # means
        self.xx, self.yy, self.xy = np.zeros(shape), np.zeros(shape), np.zeros(shape)  # sums of centred products

    @staticmethod
    def of_sums(sums: Sequence[np.ndarray]) -> dict[str, np.ndarray]:
        """Return the fields for plain sums over pairs: their count, `Σ x`, `Σ y`, `Σ x²`, `Σ y²`, `Σ x y`."""
        count, x, y, xx, yy, xy = sums
        scale = np.maximum(count, 1)
        x, y = x / scale, y / scale
        products = {"xx": xx - scale * x * x, "yy": yy - scale * y * y, "xy": xy - scale * x * y}
        return {"count": count.astype(np.int64), "x": x, "y": y, **products}

    def add(self, state: State, at: Any = ...) -> None:
        """Take in other data in the cells `at`."""
        count, new = state["count"], state["count"] > 0
        total = self.count[at] + count
        share = np.divide(count, total, out=np.zeros(total.shape), where=total > 0)
        dx = np.where(new, state["x"] - self.x[at], 0.0)
        dy = np.where(new, state["y"] - self.y[at], 0.0)
        both = self.count[at] * share
        self.xx[at] += np.where(new, state["xx"] + dx * dx * both, 0.0)
        self.yy[at] += np.where(new, state["yy"] + dy * dy * both, 0.0)
        self.xy[at] += np.where(new, state["xy"] + dx * dy * both, 0.0)
        self.x[at] += dx * share
        self.y[at] += dy * share
        self.count[at] = total

    def pearson(self) -> Float[np.ndarray, "*shape"]:
        """Return Pearson's r; NaN for fewer than two pairs, or where a side is constant."""
        scale = np.sqrt(np.maximum(self.xx, 0.0) * np.maximum(self.yy, 0.0))
        known = (self.count > 1) & (scale > 0)
        r = np.divide(self.xy, scale, out=np.full(scale.shape, np.nan), where=known)
        return np.asarray(np.clip(r, -1.0, 1.0))


class _Pair:
    """Two quantities of a site over the pairs that both have; the one with more axes is `x`."""

    def __init__(self, site: SiteValues, x: str, y: str) -> None:
        if site.values[x].ndim < site.values[y].ndim:
            x, y = y, x
        self.site, self.x, self.y = site, x, y
        self.by_pair = site.values[x].ndim == 4
        self.keep = site.keep if self.by_pair else None
        self.y_value = site.values[y]
        if self.by_pair and self.y_value.ndim == 3:
            self.y_value = self.y_value[:, :, None]
        shape = np.broadcast_shapes(site.values[x].shape, self.y_value.shape)
        self.x_value = np.broadcast_to(site.values[x], shape)

    @property
    def one_y_per_key(self) -> bool:
        return self.by_pair and self.y_value.shape[2] == 1

    def category(self) -> Int[np.ndarray, ...]:
        """The category of each `y`, in its shape."""
        category = self.site.side(self.x).category.astype(np.int64)
        category = category[:, None, None] if self.by_pair else category[:, None]
        return np.broadcast_to(category, self.y_value.shape)

    def products(self) -> list[np.ndarray]:
        """Count and sums of x, y, x², y², x y over the queries, per (batch, head, position)."""
        if self.one_y_per_key:  # sums over the queries are known already
            sums, y = self.site.sums(self.x), self.y_value[:, :, 0].astype(np.float64)
            count, x, xx, y = np.broadcast_arrays(sums.count, sums.total, sums.square, y)
            return [count.astype(np.float64), x, count * y, xx, count * y**2, x * y]
        x, y = self.x_value.astype(np.float64), np.broadcast_to(self.y_value, self.x_value.shape).astype(np.float64)
        if not self.by_pair:
            x, y = x[:, :, None], y[:, :, None]
        kept = np.ones(x.shape[2:]) if self.keep is None else self.keep.astype(np.float64)
        return [(part * kept).sum(2) for part in (np.ones_like(x), x, y, x * x, y * y, x * y)]


def _pairs(plan: Plan, site: SiteValues) -> Iterator[_Pair]:
    for x, y in plan.correlate:
        if x in site.values and y in site.values:
            yield _Pair(site, x, y)


class LinearCorrelations(Statistic[Products]):
    """Pearson's r of two quantities per layer, category and head."""

    def new(self, *key: str) -> Products:
        """Return empty sums for a kind of site and two quantities."""
        kind, x, y = key
        return Products(max(self.plan.cells(kind, x), self.plan.cells(kind, y)))

    def update(self, site: SiteValues) -> None:
        """Take in the pairs of a site."""
        row = self.plan.layers_of(site.kind).index(site.layer)
        for pair in _pairs(self.plan, site):
            groups = site.side(pair.x).groups
            sums = [groups.by_category(part, site.categories) for part in pair.products()]
            heads = sums[1].shape[1]
            self.part(site.kind, pair.x, pair.y).add(Products.of_sums(sums), (row, slice(None), slice(heads)))

    def tables(self, vocabulary: Sequence[str]) -> Tables:
        """Return rows of `correlations`."""
        frames = []
        for (kind, x, y), products in by_kind(self.parts):
            for category, codes in category_unions(self.plan.categories).items():
                union = products.pooled(1, codes)
                r = union.pearson()
                layer, head = np.nonzero(~np.isnan(r))
                columns = {
                    "x": x, "y": y, "category": category, "over": "pairs", "method": "pearson",
                    "value": r[layer, head], "bound": 0.0, "count": union.count[layer, head], "flagged": False,
                }  # fmt: skip
                rows = site_rows(self.plan, kind, x if has_heads(x) else y, (layer, head), columns)
                frames.append(rows.drop(columns="quantity"))
        return {"correlations": frames}


def _rho_rows(
    plan: Plan, over: str, parts: Mapping[tuple[str, ...], Any], rho_of: Callable[[Any, Sequence[int]], RankCorrelation]
) -> pd.DataFrame:
    """Rows of `correlations` for every category; one without two different pairs has no row."""
    rows = []
    for (kind, x, y), part in by_kind(parts):
        for category, codes in category_unions(plan.categories).items():
            try:
                rho = rho_of(part, codes)
            except InputError:
                continue
            found = (rho.rho, rho.bound, rho.count, rho.flagged)
            rows.append((kind, None, None, x, y, category, over, "spearman", *found))
    schema = SCHEMA["correlations"]
    return pd.DataFrame(rows, columns=list(schema)).astype(schema)


class RankCorrelations(Statistic[BinnedRanks]):
    """Spearman's rho of two quantities over all pairs, layers and heads of a kind of site."""

    def new(self, *key: str) -> BinnedRanks:
        """Return empty tables for a kind of site and two quantities."""
        return BinnedRanks(binning_of(key[1]), binning_of(key[2]), len(self.plan.categories))

    def update(self, site: SiteValues) -> None:
        """Count the pairs of a site."""
        for pair in _pairs(self.plan, site):
            ranks, x = self.part(site.kind, pair.x, pair.y), site.values[pair.x]
            same_heads = pair.y_value.shape[1] == x.shape[1]
            if pair.one_y_per_key and same_heads and pair.keep is None and usable(x):
                count_weights(ranks, x, pair.y_value[:, :, 0], pair.category()[:, :, 0])
                continue
            bins = site.bins(pair.x) if pair.x_value.shape == x.shape else None
            ranks.update(pair.x_value, pair.y_value, pair.category(), pair.keep, bins)

    def tables(self, vocabulary: Sequence[str]) -> Tables:
        """Return rows of `correlations`."""
        return {"correlations": [_rho_rows(self.plan, "pairs", self.parts, BinnedRanks.result)]}


class CovariateCorrelations(Statistic[DistinctPairs]):
    """Spearman's rho of a token's quantity, averaged over layers and heads, and its covariate."""

    def new(self, *key: str) -> DistinctPairs:
        """Return an empty table of pairs for a kind of site, a quantity and a covariate."""
        return DistinctPairs()

    def finish(self, batch: BatchValues) -> None:
        """Take in the tokens of a batch."""
        for kind, quantity, covariate, x, y, group in covariate_pairs(self.plan, batch):
            self.part(kind, quantity, covariate).update(x, y, group)

    def tables(self, vocabulary: Sequence[str]) -> Tables:
        """Return rows of `correlations`."""
        return {"correlations": [_rho_rows(self.plan, "tokens", self.parts, DistinctPairs.result)]}


def covariate_pairs(
    plan: Plan, batch: BatchValues
) -> Iterator[tuple[str, str, str, np.ndarray, np.ndarray, np.ndarray]]:
    """Yield kind, quantity, covariate, and for each token the quantity, the covariate and the category."""
    for axis in batch.axes():
        means = axis.means() if plan.covariates else {}
        for covariate, values in plan.covariates.items():
            of_token = values[axis.side.ids]
            known = np.isfinite(of_token)
            for quantity, mean in means.items():
                yield axis.kind, quantity, covariate, mean[known], of_token[known], axis.side.category[known]


# ---- the exact second pass ---------------------------------------------------------------------------------------------


def plan_for_flagged(flagged: pd.DataFrame, plan: Plan) -> Plan:
    """Return a plan for the flagged correlations and nothing else."""
    names = {*flagged["x"], *flagged["y"]}
    over_pairs = flagged[flagged["over"] == "pairs"]
    return replace(
        plan,
        measures=tuple(name for name in plan.measures if name in names | {"alpha", "f_norm"}),
        mixing=tuple(name for name in plan.mixing if MIXING + name in names),
        histograms=(),
        relative=(),
        correlate=tuple(dict.fromkeys(zip(over_pairs["x"], over_pairs["y"], strict=True))),
        sample=1,
        covariates={name: values for name, values in plan.covariates.items() if name in names},
        per_token=False,
    )


class PairFiles:
    """Every pair of the correlations of a plan, written to Parquet files for an exact ranking on disk."""

    def __init__(self, plan: Plan, folder: Path, name: str) -> None:
        self.plan, self.folder, self.name = plan, folder, name
        self._writers: dict[Path, Any] = {}

    def update(self, site: SiteValues) -> None:
        """Write the pairs of a site."""
        for pair in _pairs(self.plan, site):
            shape = pair.x_value.shape
            kept = np.ones(shape, dtype=bool) if pair.keep is None else np.broadcast_to(pair.keep, shape)
            sides = (pair.x_value, pair.y_value, pair.category())
            self._write((site.kind, pair.x, pair.y), *(np.broadcast_to(side, shape)[kept] for side in sides))

    def finish(self, batch: BatchValues) -> None:
        """Write the tokens of a batch with their covariates."""
        for kind, quantity, covariate, x, y, group in covariate_pairs(self.plan, batch):
            self._write((kind, quantity, covariate), x, y, group)

    def close(self) -> None:
        """End all files."""
        for writer in self._writers.values():
            writer.close()

    def _write(self, key: tuple[str, ...], x: np.ndarray, y: np.ndarray, group: np.ndarray) -> None:
        import pyarrow as pa
        import pyarrow.parquet as pq

        columns = {"x": x.astype(np.float32), "y": y.astype(np.float32), "category": group.astype(np.uint8)}
        table = pa.table(columns)
        path = pair_folder(self.folder, *key) / f"{self.name}.parquet"
        if path not in self._writers:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._writers[path] = pq.ParquetWriter(path, table.schema, use_dictionary=False, compression="none")
        self._writers[path].write_table(table)


def pair_folder(folder: Path, kind: str, x: str, y: str) -> Path:
    """Return the folder of the pairs of a correlation."""
    return folder / f"{kind}-{x}-{y}"


def exact_rho(folder: Path, codes: Sequence[int]) -> RankCorrelation:
    """Return Spearman's rho of the pairs of some categories, ranked on disk by duckdb.

    Args:
        folder: Parquet files with the columns x, y and category.
        codes: The codes of the categories.
    """
    import duckdb

    # Ranks are centred, so that sums of products of a billion of them keep their digits.
    query = """
        WITH pairs AS (SELECT x, y FROM read_parquet($files) WHERE list_contains($codes, category)),
        ranked AS (
            SELECT rank() OVER (ORDER BY x) + (count(*) OVER (PARTITION BY x) - 1) / 2.0
                   - (count(*) OVER () + 1) / 2.0 AS rx,
                   rank() OVER (ORDER BY y) + (count(*) OVER (PARTITION BY y) - 1) / 2.0
                   - (count(*) OVER () + 1) / 2.0 AS ry
            FROM pairs)
        SELECT count(*), coalesce(sum(rx * rx), 0), coalesce(sum(ry * ry), 0), coalesce(sum(rx * ry), 0) FROM ranked
    """
    with duckdb.connect(config={"temp_directory": str(folder / "ranking")}) as connection:
        values = {"files": str(folder / "*.parquet"), "codes": [int(code) for code in codes]}
        count, xx, yy, xy = connection.execute(query, values).fetchone() or (0, 0.0, 0.0, 0.0)
    check_count(int(count))
    if not xx or not yy:
        raise InputError("a rank correlation needs two quantities that vary, one is constant")
    return RankCorrelation(float(np.clip(xy / np.sqrt(xx * yy), -1.0, 1.0)), 0.0, int(count))


def replace_flagged(correlations: pd.DataFrame, plan: Plan, folder: Path) -> pd.DataFrame:
    """Return the table with every flagged rho replaced by the exact one; a constant side has no row."""
    exact, codes = correlations.copy(), category_unions(plan.categories)
    for index, row in correlations[correlations["flagged"].astype(bool)].iterrows():
        try:
            rho = exact_rho(pair_folder(folder, row["site"], row["x"], row["y"]), codes[row["category"]])
        except InputError:
            exact = exact.drop(index=index)
            continue
        exact.loc[index, ["value", "bound", "flagged"]] = [rho.rho, rho.bound, False]
    return exact.reset_index(drop=True)
