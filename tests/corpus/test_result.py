"""What a run leaves: files, tables and pictures."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import normlens
from normlens.corpus.result import CorpusResult
from normlens.errors import InputError
from normlens.lens import Lens
from normlens.plots.figure import provenance_of

from .conftest import RANKS, TABLES, same


def test_files_are_deterministic_and_plain(lens, reference: CorpusResult, tmp_path: Path) -> None:
    source = reference.folder.parent / "corpus.txt"
    other = lens.corpus(source, tmp_path / "out", pairs=True, covariates={"rank": RANKS}, per_token=True)
    names = sorted(str(path.relative_to(other.folder)) for path in other.folder.rglob("*") if path.is_file())
    assert names == sorted(
        [*(f"{name}.parquet" for name in TABLES), "manifest.json", "tokens/part-000000000000-000000000020.parquet"]
    )
    for name in names:
        if name.endswith(".parquet"):
            assert (other.folder / name).read_bytes() == (reference.folder / name).read_bytes(), name
    polars, duckdb = pytest.importorskip("polars"), pytest.importorskip("duckdb")
    rows = len(reference.statistics)
    assert polars.read_parquet(other.folder / "statistics.parquet").height == rows
    assert duckdb.sql(f"select count(*) from '{other.folder}/statistics.parquet'").fetchall() == [(rows,)]
    manifest = json.loads((other.folder / "manifest.json").read_text())
    assert manifest["inputs"][0]["records_sha256"] and manifest["model"]["content"] and manifest["versions"]["torch"]
    assert 0 < manifest["max_proof_error"] < 1e-5


def test_a_result_says_what_it_is_in_one_line(reference: CorpusResult) -> None:
    said = repr(reference)
    assert "tiny" in said and "corpus.txt" in said and "20 sequences" in said and str(reference.folder) in said
    assert "\n" not in said and len(said) < 300


def test_open_gives_the_run_back(reference: CorpusResult) -> None:
    found = normlens.open(reference.folder)
    assert isinstance(found, CorpusResult)
    same(found, reference)
    with pytest.raises(InputError, match="no mean of nonsense"):
        found.grid("nonsense")


def test_every_picture_says_what_it_shows(lens: Lens, text_file: Path, tmp_path: Path) -> None:
    ranks = np.arange(len(lens.tokenizer), dtype=float)
    result = lens.corpus(text_file, tmp_path / "out", covariates={"rank": ranks})
    figures = [
        result.plot_heatmap("f_norm", "sep"),
        result.plot_layers("alpha", over="sequences"),
        result.plot_scatter(),
        result.plot_scatter("rank", "f_norm"),
        result.plot_relative(),
        result.plot_histogram("f_norm"),
    ]
    for number, figure in enumerate(figures):
        figure.savefig(tmp_path / f"{number}.png")
        line = provenance_of(figure)
        assert "tiny" in line and "corpus.txt" in line and "40 sequences" in line
        axes = figure.axes[0]
        assert axes.get_xlabel() and axes.get_ylabel()
    lines = figures[1].axes[0].get_lines()
    shares = np.sum([line.get_ydata() for line in lines], axis=0)
    np.testing.assert_allclose(shares, 1.0, rtol=1e-5)  # the categories' shares of the weight add up
    with pytest.raises(InputError, match="is not in the sample"):
        result.plot_scatter("nonsense", "alpha")
