"""The folder of a corpus run: the results, read back, and what in the folder may be replaced or removed.

    OUT/statistics.parquet …        the tables of a finished run
    OUT/tokens/part-*.parquet       its rows per token, where they were asked for
    OUT/manifest.json               settings, counts and the checksum of each file; written last
    OUT/unfinished/run.json         the settings and the ranges of an unfinished run
    OUT/unfinished/records-*.arrow  its records
    OUT/unfinished/*.shard          its shards: safetensors, compressed by zstd

Only files that a manifest or a `run.json` of ours speaks for are ever removed.
"""

from __future__ import annotations

import io
import re
import shutil
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd

from normlens.errors import InputError
from normlens.io.checksums import file_digest, read_checked_json, read_json, write_checked_json
from normlens.io.remote import AnyPath, arrow, first_line, is_remote, path_of
from normlens.io.writing import (
    atomic_write,
    check_place,
    is_draft,
    is_there,
    real,
    remove_drafts,
    writable_folder,
)
from normlens.types import Json, JsonMapping

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MANIFEST = "manifest.json"
TOKEN_ROWS = "tokens"  # a folder
TABLES = ("statistics", "histograms", "correlations", "relative", "categories", "pair_sample", "token_sample")
FORMAT = 4  # of the manifest

_RECORD = "run.json"
_PART = re.compile(r"part-\d{12}-\d{12}\.parquet")
_OURS = re.compile(r"[0-9a-f]{16}-\d{12}-\d{12}\.shard|records-[0-9a-f]{16}\.arrow|records\.arrow\.tmp")
_START_AGAIN = "choose another --out, or start again with --fresh"

#: Fields of a manifest that are read later.
_FIELDS: Mapping[str, type | tuple[type, ...]] = {
    "fingerprint": str, "files": dict, "counts": dict, "max_proof_error": (int, float),
}  # fmt: skip


@dataclass(frozen=True)
class CorpusResult:
    """A finished corpus run; its tables are pandas frames, and nothing here holds a model."""

    folder: AnyPath
    manifest: JsonMapping

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
        return self.table("statistics")

    @cached_property
    def correlations(self) -> pd.DataFrame:
        """Rank and linear correlations with their bounds."""
        return self.table("correlations")

    @cached_property
    def histograms(self) -> pd.DataFrame:
        """Counts per bin."""
        return self.table("histograms")

    @cached_property
    def relative(self) -> pd.DataFrame:
        """Means by relative position."""
        return self.table("relative")

    @cached_property
    def categories(self) -> pd.DataFrame:
        """Tokens and sequences per category."""
        return self.table("categories")

    @cached_property
    def pair_sample(self) -> pd.DataFrame:
        """A uniform sample of (query, key, head, layer) pairs."""
        return self.table("pair_sample")

    @cached_property
    def token_sample(self) -> pd.DataFrame:
        """A uniform sample of tokens, each averaged over layers and heads."""
        return self.table("token_sample")

    @property
    def tokens(self) -> pd.DataFrame:
        """One row per token and layer, where the run was made with per_token; it may be large."""
        parts = sorted(name for name in self.manifest["files"] if name.startswith(f"{TOKEN_ROWS}/"))
        if not parts:
            raise InputError(f"{self.folder} has no rows per token; run with --per-token")
        return pd.concat([self.table(name.removesuffix(".parquet")) for name in parts], ignore_index=True)

    @property
    def max_proof_error(self) -> float:
        """The largest proof error over the whole corpus."""
        return float(self.manifest["max_proof_error"])

    def table(self, name: str) -> pd.DataFrame:
        """Read a table, which must be as the run wrote it."""
        path, listed = self.folder / f"{name}.parquet", self.manifest["files"]
        if path.name not in listed and f"{name}.parquet" not in listed:
            raise InputError(f"{self.folder / MANIFEST} lists no table {name}; run it again")
        if file_digest(path) != listed[f"{name}.parquet"]:
            raise InputError(f"{path} was changed or damaged; run it again")
        broken = arrow("a table of a corpus").ArrowException
        try:
            return pd.read_parquet(io.BytesIO(path.read_bytes()))
        except (OSError, ValueError, broken) as error:
            raise InputError(f"{path} is no Parquet file ({first_line(error)})") from error

    def grid(
        self,
        quantity: str,
        category: str = "all",
        statistic: str = "mean",
        over: str = "values",
        site: str | None = None,
    ) -> pd.DataFrame:
        """Return one statistic as a table: layers down, heads across (one column for a quantity without heads).

        Args:
            quantity: The quantity.
            category: The category of tokens, or the unions `normal` and `all`.
            statistic: The statistic.
            over: `values`, or `sequences` for figures per sequence.
            site: The kind of site; by default the first.
        """
        rows = self.statistics
        wanted = {
            "quantity": quantity, "category": category, "statistic": statistic, "over": over,
            "site": site or rows["site"].iloc[0],
        }  # fmt: skip
        chosen = _matching(rows[rows["layer"].notna()], wanted)
        if chosen.empty:
            known = [f"{name}: {', '.join(sorted(rows[name].unique()))}" for name in wanted]
            raise InputError(
                f"the run has no {statistic} of {quantity} for {category} over {over}; it has {'; '.join(known)}"
            )
        return chosen.fillna({"head": 0}).pivot(index="layer", columns="head", values="value").sort_index()

    def rho(self, x: str, y: str, category: str = "all", site: str | None = None) -> pd.Series:
        """Return a rank correlation with its bound and count.

        Args:
            x: The first quantity.
            y: The second quantity, or a covariate.
            category: The category of tokens, or the unions `normal` and `all`.
            site: The kind of site; by default the first.
        """
        rows = self.correlations
        wanted = {
            "x": x, "y": y, "category": category, "method": "spearman", "site": site or rows["site"].iloc[0]
        }  # fmt: skip
        chosen = _matching(rows, wanted)
        if chosen.empty:
            raise InputError(
                f"the run has no rank correlation of {x} and {y} for {category}; run it again with correlate=[…]"
            )
        return chosen.iloc[0]

    def plot_heatmap(self, quantity: str, category: str = "all", **options: Any) -> Figure:
        """Layers by heads, as in Figure 4 of the 2020 paper; `options` as in `normlens.plots.corpus.heatmap`."""
        from normlens.plots.corpus import heatmap

        return heatmap(self, quantity, category, **options)

    def plot_layers(self, quantity: str, **options: Any) -> Figure:
        """A quantity by layer, one line per category, as in Figure 3 of both papers; see `by_layer`."""
        from normlens.plots.corpus import by_layer

        return by_layer(self, quantity, **options)

    def plot_scatter(self, x: str = "f_norm", y: str = "alpha", **options: Any) -> Figure:
        """The sampled pairs, coloured by category, as in Figure 5 of the 2020 paper; see `scatter`."""
        from normlens.plots.corpus import scatter

        return scatter(self, x, y, **options)

    def plot_relative(self, quantity: str = "alpha", **options: Any) -> Figure:
        """The mean by relative position, one line per layer; see `relative`."""
        from normlens.plots.corpus import relative

        return relative(self, quantity, **options)

    def plot_histogram(self, quantity: str, **options: Any) -> Figure:
        """The distribution of a quantity, one line per category; see `histogram`."""
        from normlens.plots.corpus import histogram

        return histogram(self, quantity, **options)


def _matching(rows: pd.DataFrame, wanted: Mapping[str, str]) -> pd.DataFrame:
    for name, value in wanted.items():
        rows = rows[rows[name] == value]
    return rows


def write_parquet(path: AnyPath, table: pd.DataFrame) -> None:
    """Write a Parquet file that depends on its content alone."""
    with atomic_write(path) as stream:
        table.to_parquet(stream, index=False, engine="pyarrow")


def is_corpus(path: str | AnyPath) -> bool:
    """Return True if a folder holds a finished corpus run."""
    return (path_of(path) / MANIFEST).exists()


def open_corpus(path: str | AnyPath) -> CorpusResult:
    """Open the finished corpus run in a folder."""
    folder = path_of(path)
    if not is_corpus(folder):
        raise InputError(f"{folder} has no {MANIFEST}; has the run ended?")
    manifest = read_checked_json(folder / MANIFEST, "the manifest of a corpus run")
    if manifest.get("format") != FORMAT:
        raise InputError(f"{folder} has format {manifest.get('format')!r}, this version reads {FORMAT}; run it again")
    for name, kind in _FIELDS.items():
        if not isinstance(manifest.get(name), kind):
            raise InputError(f"{folder / MANIFEST} has no {name}; run it again")
    return CorpusResult(folder, manifest)


@dataclass(frozen=True)
class RunFolder:
    """The output folder of a run."""

    out: AnyPath

    @property
    def unfinished(self) -> AnyPath:
        """The folder of an unfinished run."""
        return self.out / "unfinished"

    @property
    def token_rows(self) -> AnyPath:
        """The folder of rows per token."""
        return self.out / TOKEN_ROWS

    @property
    def _outputs(self) -> list[AnyPath]:
        tables = [self.out / f"{name}.parquet" for name in TABLES]
        return [*tables, self.out / MANIFEST, self.token_rows, self.unfinished]

    def check(self, inputs: Iterable[AnyPath], *, overwrite: bool) -> None:
        """Raise an error for a folder that cannot be written, or where writing would cost somebody a file."""
        try:
            self._check_inputs(inputs)
            if not overwrite and not self._has_manifest and not self._has_record:
                self._check_others()
            if is_remote(self.out) or is_there(Path(str(self.out))):
                writable_folder(self.out)
            else:
                check_place(Path(str(self.out)))  # it is made when the run begins
        except OSError as error:
            reason = error.strerror or error
            raise InputError(f"the output folder {self.out} cannot be reached ({reason})") from error

    def _check_inputs(self, inputs: Iterable[AnyPath]) -> None:
        """No output may be a file that is read, nor lie in a folder that is read."""
        for path in inputs:
            if _lies_in(self.out, path) and path.is_dir():
                raise InputError(f"the output folder {self.out} lies in the input {path}; choose another --out")
            if any(_lies_in(path, output) for output in self._outputs):
                raise InputError(f"the input {path} would be overwritten; choose another --out")

    def _check_others(self) -> None:
        """A file with the name of an output that is not of a run stays as it is."""
        for output in self._outputs:
            if (output.exists() or _is_link(output)) and not _is_leftover(output):
                raise InputError(
                    f"{output} exists and is not of a run that this folder holds; choose another --out, or pass "
                    "--overwrite to replace it"
                )

    @property
    def _has_record(self) -> bool:
        return (self.unfinished / _RECORD).is_file()

    @property
    def _has_manifest(self) -> bool:
        """Whether there is a manifest of a run, damaged or not."""
        try:
            return "fingerprint" in read_json(self.out / MANIFEST, "a manifest")
        except InputError:
            return False

    def make_unfinished(self) -> AnyPath:
        """Make the folder of an unfinished run, without the drafts of a killed one."""
        writable_folder(self.unfinished)
        remove_drafts(self.unfinished)
        return self.unfinished

    def is_finished(self, fingerprint: str, records: AnyPath) -> bool:
        """Return True if the folder holds this run, finished; another finished run is an error."""
        if not self._has_manifest:
            return False
        if open_corpus(self.out).manifest["fingerprint"] != fingerprint:
            self.drop(records)
            raise InputError(f"{self.out} holds a finished run with other inputs, model or settings; {_START_AGAIN}")
        return True

    def begin(self, fingerprint: str, identity: JsonMapping, records: AnyPath) -> Json:
        """Take up this run, new or unfinished, and return its record; another unfinished run is an error."""
        if not self._has_record:
            record = {
                "format": FORMAT, "fingerprint": fingerprint, "seconds": 0.0, "records": records.name, **identity
            }  # fmt: skip
            self.note(record)
            return record
        try:
            record = read_checked_json(self.unfinished / _RECORD, "the record of an unfinished run")
        except InputError as error:
            self.drop(records)
            raise InputError(f"{error}; {_START_AGAIN}") from error
        if record.get("format") != FORMAT or record.get("fingerprint") != fingerprint:
            self.drop(records)
            raise InputError(f"{self.out} holds an unfinished run with other inputs, model or settings; {_START_AGAIN}")
        for folder in (self.out, self.unfinished, self.token_rows):
            remove_drafts(folder)
        return record

    def note(self, record: JsonMapping) -> None:
        """Write the record of an unfinished run."""
        write_checked_json(self.unfinished / _RECORD, record)

    def drop(self, records: AnyPath) -> None:
        """Remove the records of a run that did not begin, unless they are those of the run that is there."""
        own = {}
        if self._has_record:
            own = read_json(self.unfinished / _RECORD, "the record of an unfinished run")
        if own.get("records") != records.name:
            records.unlink(missing_ok=True)

    def clear(self, *, keep: AnyPath, overwrite: bool) -> None:
        """Remove the run that the folder holds, and nothing else; `keep` are the records of the next one."""
        if self._has_manifest:
            self._clear_finished(overwrite)
        if self._has_record:
            # An unfinished run began where nothing had these names, so whatever has them now is its own.
            for name in TABLES:
                (self.out / f"{name}.parquet").unlink(missing_ok=True)
            self._remove_parts(path.name for path in self.token_rows.glob("*.parquet"))
        self._remove_unfinished(keep)

    def _clear_finished(self, overwrite: bool) -> None:
        try:
            listed = open_corpus(self.out).manifest["files"]
        except InputError as error:
            if not overwrite:
                raise InputError(
                    f"{error}; only files that a manifest lists are removed: remove the old results yourself, choose "
                    "another --out, or pass --overwrite as well"
                ) from error
            listed = {}
        for name in TABLES:
            if f"{name}.parquet" in listed:
                (self.out / f"{name}.parquet").unlink(missing_ok=True)
        self._remove_parts(name.removeprefix(f"{TOKEN_ROWS}/") for name in listed)
        (self.out / MANIFEST).unlink(missing_ok=True)

    def finish(self, manifest: JsonMapping) -> None:
        """Write the manifest: from now on the run is finished."""
        write_checked_json(self.out / MANIFEST, manifest)

    def end(self) -> None:
        """Remove what an unfinished run needed."""
        self._remove_unfinished(None)

    def remove_if_empty(self) -> None:
        """Remove the folder of an unfinished run that did not begin."""
        _remove_if_empty(self.unfinished)

    def _remove_unfinished(self, keep: AnyPath | None) -> None:
        if not self.unfinished.is_dir() or _is_link(self.unfinished):
            return
        remove_drafts(self.unfinished)
        paths: list[AnyPath] = [*self.unfinished.iterdir()]
        for path in paths:
            if keep is not None and path.name == keep.name:
                continue
            if _OURS.fullmatch(path.name):
                path.unlink(missing_ok=True)
            elif isinstance(path, Path) and re.fullmatch(r"exact-\w+", path.name) and path.is_dir():
                shutil.rmtree(path, ignore_errors=True)
        (self.unfinished / _RECORD).unlink(missing_ok=True)  # last, so that what is left stays ours to the end
        _remove_if_empty(self.unfinished)

    def _remove_parts(self, names: Iterable[str]) -> None:
        if _is_link(self.token_rows):
            return
        for name in list(names):
            if _PART.fullmatch(name):
                (self.token_rows / name).unlink(missing_ok=True)
        _remove_if_empty(self.token_rows)


def _lies_in(path: AnyPath, folder: AnyPath) -> bool:
    """Whether a path is another one, or something in it."""
    if isinstance(path, Path) and isinstance(folder, Path):
        return real(path).is_relative_to(real(folder))
    return f"{path}/".startswith(f"{folder}/")


def _is_link(path: AnyPath) -> bool:
    return isinstance(path, Path) and path.is_symlink()


def _is_leftover(folder: AnyPath) -> bool:
    """Whether a folder holds nothing but what a run leaves that was killed before it had written its record."""
    if not folder.is_dir() or _is_link(folder):
        return False
    return all(is_draft(path) or _OURS.fullmatch(path.name) for path in folder.iterdir())


def _remove_if_empty(folder: AnyPath) -> None:
    if isinstance(folder, Path) and folder.is_dir() and not any(folder.iterdir()):  # an object store has no empty ones
        folder.rmdir()
