"""From corpus statistics to tidy tables: one row per site, layer, head, category and statistic."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pandas as pd

from normlens.anatomy.kinds import KINDS
from normlens.corpus.accumulators.moments import Moments, Summary
from normlens.corpus.accumulators.spearman_binned import BinnedSpearman
from normlens.corpus.accumulators.spearman_pairs import DistinctPairSpearman
from normlens.corpus.counting.plan import has_heads
from normlens.corpus.counting.statistics import CorpusStatistics, SiteStatistics
from normlens.corpus.reading.token_attributes import SPECIAL
from normlens.errors import InputError

#: Unions of categories that the papers report: every token, and every token that is not special.
ALL, NORMAL = "all", "normal"
QUANTILES = (0.01, 0.05, 0.25, 0.5, 0.75, 0.95, 0.99)


def refuse_nothing(sequences: int) -> None:
    """A corpus without a sequence has no statistics."""
    if not sequences:
        raise InputError(
            "statistics need at least one sequence: the corpus has none that can be read; check the source"
        )


def tables_of(statistics: CorpusStatistics, tokens: Sequence[str]) -> dict[str, pd.DataFrame]:
    """Every table by the name of its file; `tokens` are the vocabulary's strings by id."""
    refuse_nothing(statistics.sequences)
    return {
        "statistics": _statistics(statistics),
        "histograms": _histograms(statistics),
        "correlations": _correlations(statistics),
        "relative": _relative(statistics),
        "categories": _categories(statistics),
        "pair_sample": _sample(statistics, statistics.pair_sample.state(), tokens),
        "token_sample": _sample(statistics, statistics.token_sample.state(), tokens),
    }


def category_unions(names: Sequence[str]) -> dict[str, list[int]]:
    """Each category, and the unions, as lists of category codes."""
    every = {name: [code] for code, name in enumerate(names)}
    normal = [code for code, name in enumerate(names) if name not in SPECIAL]
    return {**every, NORMAL: normal, ALL: list(range(len(names)))}


def _statistics(statistics: CorpusStatistics) -> pd.DataFrame:
    rows: list[tuple[Any, ...]] = []
    names = statistics.plan.categories
    everywhere: dict[tuple[str, str, str], Moments] = {}
    for (kind, layer), site in _ordered(statistics):
        for quantity, moments in site.values.items():
            for category, codes in category_unions(names).items():
                union = moments.pooled(codes)
                for head in range(len(union.count)):
                    if not union.count[head]:
                        continue
                    where = (kind, layer, _head(quantity, head), quantity, category, "values")
                    summary = union.result((head,))
                    rows += _summary_rows(where, summary)
                    rows += _quantile_rows(where, site, quantity, codes, head, summary)
                whole = everywhere.setdefault((kind, quantity, category), Moments(()))
                whole.merge(union.pooled(range(len(union.count))))
        for quantity, moments in site.sequences.items():
            for code, category in enumerate(names):
                for head in range(moments.count.shape[1]):
                    if moments.count[code, head] and statistics.sequences_with[code]:
                        where = (kind, layer, _head(quantity, head), quantity, category, "sequences")
                        rows += _summary_rows(where, moments.result((code, head)))
    for (kind, quantity, category), moments in everywhere.items():
        if moments.count[()]:
            rows += _summary_rows((kind, None, None, quantity, category, "values"), moments.result(()))
    columns = ["site", "layer", "head", "quantity", "category", "over", "statistic", "value", "low", "high"]
    return _typed(pd.DataFrame(rows, columns=columns))


def _summary_rows(where: tuple[Any, ...], summary: Summary) -> list[tuple[Any, ...]]:
    exact = {
        "count": float(summary.count), "mean": summary.mean, "variance": summary.variance, "sd": summary.sd,
        "cv": summary.cv, "min": summary.low, "max": summary.high,
    }  # fmt: skip
    return [(*where, name, value, value, value) for name, value in exact.items()]


def _quantile_rows(
    where: tuple[Any, ...], site: SiteStatistics, quantity: str, codes: Sequence[int], head: int, summary: Summary
) -> list[tuple[Any, ...]]:
    histogram = site.histograms.get(quantity)
    if histogram is None:
        return []
    heads = site.values[quantity].count.shape[1]
    distribution = histogram.result([code * heads + head for code in codes])
    found = [distribution.quantile(q, low=summary.low, high=summary.high) for q in QUANTILES]
    return [
        (*where, f"q{100 * q:02.0f}", item.value, item.low, item.high) for q, item in zip(QUANTILES, found, strict=True)
    ]


def _histograms(statistics: CorpusStatistics) -> pd.DataFrame:
    parts = []
    for (kind, layer), site in _ordered(statistics):
        for quantity, histogram in site.histograms.items():
            heads = site.values[quantity].count.shape[1]
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
                        "category": np.array(statistics.plan.categories, dtype=object)[row // heads],
                        "low": histogram.bins.edges[bin_],
                        "high": histogram.bins.edges[bin_ + 1],
                        "count": histogram.counts[row, bin_],
                    }
                )
            )
    return _joined(parts, ["site", "layer", "head", "quantity", "category", "low", "high", "count"])


def _correlations(statistics: CorpusStatistics) -> pd.DataFrame:
    rows: list[tuple[Any, ...]] = []
    names = statistics.plan.categories
    for over, by_place in (("pairs", statistics.ranks), ("tokens", statistics.covariate_ranks)):
        for (kind, x, y), ranks in by_place.items():
            for category, codes in category_unions(names).items():
                rows += _rho_rows((kind, None, None, x, y, category, over), ranks, codes)
    for (kind, layer), site in _ordered(statistics):
        for pair, pearson in site.pearson.items():
            x, y = pair.split(",")
            for category, codes in category_unions(names).items():
                union = pearson.pooled(codes)
                for head in range(len(union.count)):
                    if union.count[head] > 1 and union.xx[head] > 0 and union.yy[head] > 0:
                        where = (kind, layer, _head(x, head) or _head(y, head), x, y, category, "pairs")
                        rows.append((*where, "pearson", union.result((head,)), 0.0, int(union.count[head]), False))
    columns = [
        "site", "layer", "head", "x", "y", "category", "over", "method", "value", "bound", "count", "flagged"
    ]  # fmt: skip
    return _typed(pd.DataFrame(rows, columns=columns))


def _rho_rows(
    where: tuple[Any, ...], ranks: BinnedSpearman | DistinctPairSpearman, codes: Sequence[int]
) -> list[tuple[Any, ...]]:
    try:
        rho = ranks.result(codes)
    except InputError:  # a category without two different pairs has no correlation, so it has no row
        return []
    return [(*where, "spearman", rho.rho, rho.bound, rho.count, rho.flagged)]


def _relative(statistics: CorpusStatistics) -> pd.DataFrame:
    parts = []
    for (kind, layer), site in _ordered(statistics):
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
    return _joined(parts, ["site", "layer", "head", "quantity", "offset", "mean", "count"])


def _categories(statistics: CorpusStatistics) -> pd.DataFrame:
    return pd.DataFrame(
        {
            "category": list(statistics.plan.categories),
            "tokens": statistics.tokens,
            "sequences": statistics.sequences_with,
        }
    )


def _sample(statistics: CorpusStatistics, columns: dict[str, np.ndarray], tokens: Sequence[str]) -> pd.DataFrame:
    if not columns:
        return pd.DataFrame()
    return with_names(
        pd.DataFrame({n: c for n, c in columns.items() if n != "priority"}), statistics.plan.categories, tokens
    )


def with_names(frame: pd.DataFrame, categories: Sequence[str], tokens: Sequence[str]) -> pd.DataFrame:
    """Codes replaced by the names that they stand for."""
    frame = frame.rename(columns={"kind": "site"})
    frame["site"] = np.array(KINDS, dtype=object)[frame["site"].to_numpy()]
    frame["category"] = np.array(categories, dtype=object)[frame["category"].to_numpy()]
    ids = frame["token_id"].to_numpy()
    frame.insert(list(frame.columns).index("token_id"), "token", np.array([tokens[i] for i in ids], dtype=object))
    return frame


def _ordered(statistics: CorpusStatistics) -> Iterator[tuple[tuple[str, int], SiteStatistics]]:
    for key in sorted(statistics.sites, key=lambda key: (KINDS.index(key[0]), key[1])):
        yield key, statistics.sites[key]


def _head(quantity: str, head: int) -> int | None:
    return head + 1 if has_heads(quantity) else None


def _joined(parts: list[pd.DataFrame], columns: list[str]) -> pd.DataFrame:
    return _typed(pd.concat(parts, ignore_index=True) if parts else pd.DataFrame(columns=columns))


def _typed(frame: pd.DataFrame) -> pd.DataFrame:
    for name in ("layer", "head"):
        frame[name] = frame[name].astype("Int16")
    return frame
