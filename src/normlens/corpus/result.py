"""The results of a corpus run: a folder of tables and a manifest, read back."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd

from normlens.errors import InputError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MANIFEST = "manifest.json"


@dataclass(frozen=True)
class CorpusResult:
    """A finished corpus run; its tables are plain pandas frames, and nothing here holds a model."""

    folder: Path
    manifest: Mapping[str, Any]

    @cached_property
    def statistics(self) -> pd.DataFrame:
        """One row per site, layer, head, quantity, category and statistic, over all values or over sequences."""
        return self._read("statistics")

    @cached_property
    def correlations(self) -> pd.DataFrame:
        """Rank and linear correlations with their bounds."""
        return self._read("correlations")

    @cached_property
    def histograms(self) -> pd.DataFrame:
        """Counts per bin."""
        return self._read("histograms")

    @cached_property
    def relative(self) -> pd.DataFrame:
        """Means by relative position."""
        return self._read("relative")

    @cached_property
    def categories(self) -> pd.DataFrame:
        """Tokens and sequences per category."""
        return self._read("categories")

    @cached_property
    def pair_sample(self) -> pd.DataFrame:
        """A uniform sample of (query, key, head, layer) pairs."""
        return self._read("pair_sample")

    @cached_property
    def token_sample(self) -> pd.DataFrame:
        """A uniform sample of tokens, each averaged over layers and heads."""
        return self._read("token_sample")

    @property
    def tokens(self) -> pd.DataFrame:
        """One row per token and layer, where the run was made with per_token; it may be large."""
        if not (self.folder / "tokens").is_dir():
            raise InputError(f"rows per token are kept on request: {self.folder} has none; run with --per-token")
        return pd.read_parquet(self.folder / "tokens")

    @property
    def worst_proof(self) -> float:
        """The largest proof error over the whole corpus."""
        return float(self.manifest["worst_proof"])

    def grid(
        self,
        quantity: str,
        category: str = "all",
        statistic: str = "mean",
        over: str = "values",
        site: str | None = None,
    ) -> pd.DataFrame:
        """One statistic as a table: layers down, heads across (one column for a quantity without heads)."""
        rows = self.statistics
        site = site or rows["site"].iloc[0]
        chosen = rows[
            (rows["quantity"] == quantity)
            & (rows["category"] == category)
            & (rows["statistic"] == statistic)
            & (rows["over"] == over)
            & (rows["site"] == site)
            & rows["layer"].notna()
        ]
        if chosen.empty:
            known = {
                name: sorted(rows[name].unique()) for name in ("quantity", "category", "statistic", "over", "site")
            }
            raise InputError(
                f"the run has no {statistic} of {quantity} for {category} over {over}: it has "
                + "; ".join(f"{name}: {', '.join(values)}" for name, values in known.items())
            )
        return chosen.fillna({"head": 0}).pivot(index="layer", columns="head", values="value").sort_index()

    def rho(self, x: str, y: str, category: str = "all", site: str | None = None) -> pd.Series:
        """A rank correlation with its bound and count."""
        rows = self.correlations
        site = site or rows["site"].iloc[0]
        chosen = rows[
            (rows["x"] == x)
            & (rows["y"] == y)
            & (rows["category"] == category)
            & (rows["method"] == "spearman")
            & (rows["site"] == site)
        ]
        if chosen.empty:
            raise InputError(f"the run has no rank correlation of {x} and {y} for {category}: was it asked for?")
        return chosen.iloc[0]

    def plot_heatmap(self, quantity: str, category: str = "all", **options: Any) -> Figure:
        """Layers by heads, as in Figure 4 of the 2020 paper."""
        from normlens.plots.corpus import heatmap

        return heatmap(self, quantity, category, **options)

    def plot_layers(self, quantity: str, **options: Any) -> Figure:
        """A quantity by layer, one line per category, as in Figure 3 of both papers."""
        from normlens.plots.corpus import by_layer

        return by_layer(self, quantity, **options)

    def plot_scatter(self, x: str = "f_norm", y: str = "alpha", **options: Any) -> Figure:
        """The sampled pairs, coloured by category, as in Figure 5 of the 2020 paper."""
        from normlens.plots.corpus import scatter

        return scatter(self, x, y, **options)

    def plot_relative(self, quantity: str = "alpha", **options: Any) -> Figure:
        """The mean by relative position, one line per layer."""
        from normlens.plots.corpus import relative

        return relative(self, quantity, **options)

    def plot_histogram(self, quantity: str, **options: Any) -> Figure:
        """The distribution of a quantity, one line per category."""
        from normlens.plots.corpus import histogram

        return histogram(self, quantity, **options)

    def _read(self, name: str) -> pd.DataFrame:
        return pd.read_parquet(self.folder / f"{name}.parquet")


def is_corpus(path: str | Path) -> bool:
    """Whether a folder holds a finished corpus run."""
    return (Path(path) / MANIFEST).exists()


def open_corpus(path: str | Path) -> CorpusResult:
    """The finished corpus run in a folder."""
    folder = Path(path)
    if not is_corpus(folder):
        raise InputError(f"a corpus result is a folder with a {MANIFEST}: {folder} has none; has the run ended?")
    return CorpusResult(folder, json.loads((folder / MANIFEST).read_text()))
