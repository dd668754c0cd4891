"""From a tally to tidy tables: one row per site, layer, head, category and statistic."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pandas as pd

from normlens.corpus.categories import SPECIAL
from normlens.corpus.histogram import quantile_of_counts
from normlens.corpus.moments import Moments, Summary
from normlens.corpus.plan import has_heads
from normlens.corpus.ranks import Rho
from normlens.corpus.tally import KINDS, SiteTally, Tally
from normlens.errors import InputError

#: Unions of categories that the papers report: every token, and every token that is not special.
ALL, NORMAL = "all", "normal"
QUANTILES = (0.01, 0.05, 0.25, 0.5, 0.75, 0.95, 0.99)


def tables_of(tally: Tally, tokens: Sequence[str]) -> dict[str, pd.DataFrame]:
    """Every table of a tally by the name of its file; `tokens` are the vocabulary's strings by id."""
    if not tally.sequences:
        raise InputError("statistics need at least one sequence: the corpus had none that could be read")
    return {
        "statistics": _statistics(tally),
        "histograms": _histograms(tally),
        "correlations": _correlations(tally),
        "relative": _relative(tally),
        "categories": _categories(tally),
        "pair_sample": _sample(tally, tally.pairs.state(), tokens),
        "token_sample": _sample(tally, tally.points.state(), tokens),
    }


def unions(names: Sequence[str]) -> dict[str, list[int]]:
    """Each category, and the unions, as lists of category codes."""
    every = {name: [code] for code, name in enumerate(names)}
    normal = [code for code, name in enumerate(names) if name not in SPECIAL]
    return {**every, NORMAL: normal, ALL: list(range(len(names)))}


def pooled(moments: Moments, codes: Sequence[int]) -> Moments:
    """Moments over a union of categories, per head."""
    out = Moments(moments.count.shape[1:])
    for code in codes:
        out.add(moments.count[code], moments.mean[code], moments.square[code], moments.low[code], moments.high[code])
    return out


def _statistics(tally: Tally) -> pd.DataFrame:
    rows: list[tuple[Any, ...]] = []
    names = tally.plan.categories
    everywhere: dict[tuple[str, str, str], Moments] = {}
    for (kind, layer), site in _ordered(tally):
        for quantity, moments in site.tokens.items():
            for category, codes in unions(names).items():
                union = pooled(moments, codes)
                for head in range(len(union.count)):
                    if not union.count[head]:
                        continue
                    where = (kind, layer, _head(quantity, head), quantity, category, "values")
                    summary = union.result((head,))
                    rows += _summary_rows(where, summary)
                    rows += _quantile_rows(where, site, quantity, codes, head, summary)
                whole = everywhere.setdefault((kind, quantity, category), Moments((1,)))
                for head in range(len(union.count)):
                    whole.add(*(array[head : head + 1] for array in union.state().values()))
        for quantity, moments in site.sequences.items():
            for code, category in enumerate(names):
                for head in range(moments.count.shape[1]):
                    if moments.count[code, head] and tally.with_category[code]:
                        where = (kind, layer, _head(quantity, head), quantity, category, "sequences")
                        rows += _summary_rows(where, moments.result((code, head)))
    for (kind, quantity, category), moments in everywhere.items():
        if moments.count[0]:
            rows += _summary_rows((kind, None, None, quantity, category, "values"), moments.result((0,)))
    columns = ["site", "layer", "head", "quantity", "category", "over", "statistic", "value", "low", "high"]
    return _typed(pd.DataFrame(rows, columns=columns))


def _summary_rows(where: tuple[Any, ...], summary: Summary) -> list[tuple[Any, ...]]:
    exact = {
        "count": float(summary.count), "mean": summary.mean, "variance": summary.variance, "sd": summary.sd,
        "cv": summary.cv, "min": summary.low, "max": summary.high,
    }  # fmt: skip
    return [(*where, name, value, value, value) for name, value in exact.items()]


def _quantile_rows(
    where: tuple[Any, ...], site: SiteTally, quantity: str, codes: Sequence[int], head: int, summary: Summary
) -> list[tuple[Any, ...]]:
    histogram = site.histograms.get(quantity)
    if histogram is None:
        return []
    heads = site.tokens[quantity].count.shape[1]
    counts = histogram.counts[[code * heads + head for code in codes]].sum(axis=0)
    found = [quantile_of_counts(counts, histogram.grid.edges, q, summary.low, summary.high) for q in QUANTILES]
    return [
        (*where, f"q{100 * q:02.0f}", item.value, item.low, item.high) for q, item in zip(QUANTILES, found, strict=True)
    ]


def _histograms(tally: Tally) -> pd.DataFrame:
    parts = []
    for (kind, layer), site in _ordered(tally):
        for quantity, histogram in site.histograms.items():
            heads = site.tokens[quantity].count.shape[1]
            row, bin_ = np.nonzero(histogram.counts)
            parts.append(
                pd.DataFrame(
                    {
                        "site": kind,
                        "layer": layer,
                        "head": pd.array(
                            (row % heads + 1) if has_heads(quantity) else [None] * len(row), dtype="Int16"
                        ),
                        "quantity": quantity,
                        "category": np.array(tally.plan.categories, dtype=object)[row // heads],
                        "low": histogram.grid.edges[bin_],
                        "high": histogram.grid.edges[bin_ + 1],
                        "count": histogram.counts[row, bin_],
                    }
                )
            )
    columns = ["site", "layer", "head", "quantity", "category", "low", "high", "count"]
    return _typed(pd.concat(parts, ignore_index=True) if parts else pd.DataFrame(columns=columns))


def _correlations(tally: Tally) -> pd.DataFrame:
    rows: list[tuple[Any, ...]] = []
    names = tally.plan.categories
    for (kind, x, y), ranks in tally.ranks.items():
        for category, codes in unions(names).items():
            rows += _rho_rows((kind, None, None, x, y, category, "pairs"), lambda r=ranks, c=codes: r.result(c))
    for (kind, x, y), pairs in tally.covariates.items():
        for category, codes in unions(names).items():
            rows += _rho_rows((kind, None, None, x, y, category, "tokens"), lambda p=pairs, c=codes: p.result(c))
    for (kind, layer), site in _ordered(tally):
        for pair, pearson in site.pearson.items():
            x, y = pair.split(",")
            for category, codes in unions(names).items():
                for head in range(pearson.count.shape[1]):
                    union = pearson.pooled([(code, head) for code in codes])
                    if union.count[0] > 1 and union.xx[0] > 0 and union.yy[0] > 0:
                        where = (kind, layer, _head(x, head) or _head(y, head), x, y, category, "pairs")
                        rows.append((*where, "pearson", union.result((0,)), 0.0, int(union.count[0]), False))
    columns = [
        "site", "layer", "head", "x", "y", "category", "over", "method", "value", "bound", "count", "flagged"
    ]  # fmt: skip
    return _typed(pd.DataFrame(rows, columns=columns))


def _rho_rows(where: tuple[Any, ...], result: Any) -> list[tuple[Any, ...]]:
    try:
        rho: Rho = result()
    except InputError:  # a category without two different pairs has no correlation, hence no row
        return []
    return [(*where, "spearman", rho.rho, rho.bound, rho.count, rho.flagged)]


def _relative(tally: Tally) -> pd.DataFrame:
    parts = []
    for (kind, layer), site in _ordered(tally):
        for quantity, means in site.relative.items():
            offsets = np.arange(-means.reach, means.reach + 1)
            seen = means.count > 0
            for head in range(len(means.total)):
                parts.append(
                    pd.DataFrame(
                        {
                            "site": kind,
                            "layer": layer,
                            "head": pd.array([_head(quantity, head)] * int(seen.sum()), dtype="Int16"),
                            "quantity": quantity,
                            "offset": offsets[seen].astype(np.int32),
                            "mean": means.result(head)[seen],
                            "count": means.count[seen],
                        }
                    )
                )
    columns = ["site", "layer", "head", "quantity", "offset", "mean", "count"]
    return _typed(pd.concat(parts, ignore_index=True) if parts else pd.DataFrame(columns=columns))


def _categories(tally: Tally) -> pd.DataFrame:
    return pd.DataFrame(
        {
            "category": list(tally.plan.categories),
            "tokens": tally.positions,
            "sequences": tally.with_category,
        }
    )


def _sample(tally: Tally, columns: dict[str, np.ndarray], tokens: Sequence[str]) -> pd.DataFrame:
    if not columns:
        return pd.DataFrame()
    return named(pd.DataFrame({n: c for n, c in columns.items() if n != "priority"}), tally.plan.categories, tokens)


def named(frame: pd.DataFrame, categories: Sequence[str], tokens: Sequence[str]) -> pd.DataFrame:
    """Codes replaced by the names that they stand for."""
    frame = frame.rename(columns={"kind": "site"})
    frame["site"] = np.array(KINDS, dtype=object)[frame["site"].to_numpy()]
    frame["category"] = np.array(categories, dtype=object)[frame["category"].to_numpy()]
    ids = frame["token_id"].to_numpy()
    frame.insert(list(frame.columns).index("token_id"), "token", np.array([tokens[i] for i in ids], dtype=object))
    return frame


def _ordered(tally: Tally) -> Iterator[tuple[tuple[str, int], SiteTally]]:
    for key in sorted(tally.sites, key=lambda key: (KINDS.index(key[0]), key[1])):
        yield key, tally.sites[key]


def _head(quantity: str, head: int) -> int | None:
    return head + 1 if has_heads(quantity) else None


def _typed(frame: pd.DataFrame) -> pd.DataFrame:
    for name in ("layer", "head"):
        frame[name] = frame[name].astype("Int16")
    return frame
