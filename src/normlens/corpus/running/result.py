"""The results of a corpus run: a folder of tables and a manifest, read back."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd

from normlens.errors import InputError
from normlens.io.checksums import file_digest, read_checked_json
from normlens.io.remote import AnyPath, RemotePath, arrow, first_line, path_of

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MANIFEST = "manifest.json"
TOKEN_ROWS = "tokens"  # a folder
TABLES = ("statistics", "histograms", "correlations", "relative", "categories", "pair_sample", "token_sample")
FORMAT = 3  # of the manifest


@dataclass(frozen=True)
class CorpusResult:
    """A finished corpus run; its tables are plain pandas frames, and nothing here holds a model."""

    folder: AnyPath
    manifest: Mapping[str, Any]

    def __repr__(self) -> str:
        counts, model = self.manifest["counts"], self.manifest["model"]["name"]
        sources = ", ".join(Path(entry["path"]).name for entry in self.manifest["inputs"])
        return (
            f"CorpusResult({str(self.folder)!r}: {model} on {sources}, {counts['sequences']:,} sequences, "
            f"{counts['tokens']:,} tokens; worst proof error {self.max_proof_error:.1e})"
        )

    @cached_property
    def statistics(self) -> pd.DataFrame:
        """One row per site, layer, head, quantity, category and statistic, over all values or over sequences."""
        return self._read("statistics.parquet")

    @cached_property
    def correlations(self) -> pd.DataFrame:
        """Rank and linear correlations with their bounds."""
        return self._read("correlations.parquet")

    @cached_property
    def histograms(self) -> pd.DataFrame:
        """Counts per bin."""
        return self._read("histograms.parquet")

    @cached_property
    def relative(self) -> pd.DataFrame:
        """Means by relative position."""
        return self._read("relative.parquet")

    @cached_property
    def categories(self) -> pd.DataFrame:
        """Tokens and sequences per category."""
        return self._read("categories.parquet")

    @cached_property
    def pair_sample(self) -> pd.DataFrame:
        """A uniform sample of (query, key, head, layer) pairs."""
        return self._read("pair_sample.parquet")

    @cached_property
    def token_sample(self) -> pd.DataFrame:
        """A uniform sample of tokens, each averaged over layers and heads."""
        return self._read("token_sample.parquet")

    @property
    def tokens(self) -> pd.DataFrame:
        """One row per token and layer, where the run was made with per_token; it may be large."""
        parts = sorted(name for name in self.manifest["files"] if name.startswith(f"{TOKEN_ROWS}/"))
        if not parts:
            raise InputError(f"rows per token are kept on request: {self.folder} has none; run with --per-token")
        return pd.concat([self._read(name) for name in parts], ignore_index=True)

    @property
    def max_proof_error(self) -> float:
        """The largest proof error over the whole corpus."""
        return float(self.manifest["max_proof_error"])

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
            raise InputError(
                f"the run has no rank correlation of {x} and {y} for {category}: run it again with correlate=[…]"
            )
        return chosen.iloc[0]

    def plot_heatmap(
        self,
        quantity: str,
        category: str = "all",
        *,
        statistic: str = "mean",
        over: str = "values",
        site: str | None = None,
        limits: tuple[float, float] | None = None,
    ) -> Figure:
        """Layers by heads, as in Figure 4 of the 2020 paper."""
        from normlens.plots.corpus import heatmap

        return heatmap(self, quantity, category, statistic=statistic, over=over, site=site, limits=limits)

    def plot_layers(
        self,
        quantity: str,
        *,
        categories: Sequence[str] | None = None,
        over: str = "values",
        site: str | None = None,
    ) -> Figure:
        """A quantity by layer, one line per category, as in Figure 3 of both papers."""
        from normlens.plots.corpus import by_layer

        return by_layer(self, quantity, categories=categories, over=over, site=site)

    def plot_scatter(
        self, x: str = "f_norm", y: str = "alpha", *, points: int = 5000, table: str | None = None
    ) -> Figure:
        """The sampled pairs, coloured by category, as in Figure 5 of the 2020 paper."""
        from normlens.plots.corpus import scatter

        return scatter(self, x, y, points=points, table=table)

    def plot_relative(self, quantity: str = "alpha", *, site: str | None = None, reach: int = 16) -> Figure:
        """The mean by relative position, one line per layer."""
        from normlens.plots.corpus import relative

        return relative(self, quantity, site=site, reach=reach)

    def plot_histogram(self, quantity: str, *, layer: int | None = None, site: str | None = None) -> Figure:
        """The distribution of a quantity, one line per category."""
        from normlens.plots.corpus import histogram

        return histogram(self, quantity, layer=layer, site=site)

    def _read(self, name: str) -> pd.DataFrame:
        """A table of the run, which must be as the run wrote it."""
        path = self.folder / name
        if name not in self.manifest["files"]:
            raise InputError(f"a run lists its tables: {self.folder / MANIFEST} has no {name}; run it again")
        if file_digest(path) != self.manifest["files"][name]:
            raise InputError(f"a table must be as the run wrote it: {path} was changed or damaged; run it again")
        return read_table(path)


def read_table(path: AnyPath) -> pd.DataFrame:
    """A table from its file."""
    broken = arrow("a table of a corpus").ArrowException
    try:
        return pd.read_parquet(io.BytesIO(path.read_bytes()) if isinstance(path, RemotePath) else path)
    except (OSError, ValueError, broken) as error:
        raise InputError(f"a table must be a Parquet file: {path} is not ({first_line(error)})") from error


def is_corpus(path: str | AnyPath) -> bool:
    """Whether a folder holds a finished corpus run."""
    return (path_of(path) / MANIFEST).exists()


def open_corpus(path: str | AnyPath) -> CorpusResult:
    """The finished corpus run in a folder."""
    folder = path_of(path)
    if not is_corpus(folder):
        raise InputError(f"a corpus result is a folder with a {MANIFEST}: {folder} has none; has the run ended?")
    manifest = read_checked_json(folder / MANIFEST, "the manifest of a corpus run")
    if manifest.get("format") != FORMAT:
        raise InputError(
            f"a corpus result has format {FORMAT}: {folder} has {manifest.get('format')!r}; run it again with this version"
        )
    for name, kind in _MANIFEST_FIELDS.items():
        if not isinstance(manifest.get(name), kind):
            raise InputError(
                f"the manifest of a corpus run tells its {name}: {folder / MANIFEST} does not; run it again"
            )
    return CorpusResult(folder, manifest)


#: What is read from a manifest later.
_MANIFEST_FIELDS: Mapping[str, type | tuple[type, ...]] = {
    "fingerprint": str, "files": dict, "counts": dict, "max_proof_error": (int, float),
}  # fmt: skip
