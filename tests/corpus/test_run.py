"""Whole runs: the numbers against slow loops, and against themselves however the work was split."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from scipy import stats

import normlens
from normlens.corpus import run as running
from normlens.corpus.api import corpus_statistics
from normlens.corpus.categories import Categories
from normlens.corpus.grid import Grid, Scale
from normlens.corpus.plan import Plan
from normlens.corpus.result import CorpusResult
from normlens.corpus.sequences import Recipe
from normlens.corpus.tables import tables_of
from normlens.corpus.tally import Tally
from normlens.corpus.worker import Worker
from normlens.errors import InputError
from normlens.measures import MAPS

from ..reference.corpus_statistics import slow_values
from .conftest import paragraphs

TABLES = ("statistics", "histograms", "correlations", "relative", "categories", "pair_sample", "token_sample")
RANKS = np.arange(20, dtype=float) % 7


def same(first: CorpusResult, second: CorpusResult) -> None:
    for name in TABLES:
        pd.testing.assert_frame_equal(getattr(first, name), getattr(second, name), rtol=1e-9, atol=1e-12)


@pytest.fixture(scope="module")
def reference(lens, tmp_path_factory) -> CorpusResult:
    folder = tmp_path_factory.mktemp("reference")
    source = folder / "corpus.txt"
    source.write_text("\n".join(paragraphs(40)))
    return corpus_statistics(lens, source, folder / "out", pairs=True, covariates={"rank": RANKS}, per_token=True)


def _items(lens, path: Path, recipe: Recipe):
    corpus = running.Corpus((path,), recipe)
    categories = Categories.of(lens.tokenizer)
    return list(corpus.items(lens.tokenizer, categories, running.Log())), categories


def test_numbers_agree_with_slow_loops(lens, reference: CorpusResult) -> None:
    items, categories = _items(lens, reference.folder.parent / "corpus.txt", Recipe(pairs=True))
    assert len(items) == 20 == reference.manifest["counts"]["sequences"]
    slow = slow_values(lens, items, MAPS)
    keys = ["quantity", "layer", "head", "category", "over"]
    table = reference.statistics.pivot(index=keys, columns="statistic", values="value").sort_index()
    checks = {"count": len, "mean": np.mean, "sd": np.std, "min": np.min, "max": np.max, "variance": np.var}
    for over in ("values", "sequences"):
        for (quantity, layer, head, category), numbers in slow[over].items():
            if category >= len(categories.names) or not slow["values"].get((quantity, layer, head, category)):
                continue
            row = table.loc[(quantity, layer, pd.NA if head is None else head, categories.names[category], over)]
            for statistic, function in checks.items():
                # Where all values are equal, their spread is the rounding of float32.
                least = 1e-6 if statistic == "sd" else 1e-9
                assert row[statistic] == pytest.approx(function(numbers), rel=2e-5, abs=least), (quantity, statistic)
    for category, numbers in slow["pairs"].items():
        alpha, norm = np.array(numbers, dtype=np.float32).T
        found = reference.rho("alpha", "f_norm", categories.names[category])
        assert found["count"] == len(alpha)
        assert abs(found["value"] - stats.spearmanr(alpha, norm).statistic) <= found["bound"] + 1e-4
    tokens = pd.DataFrame(slow["tokens"])
    for quantity in ("alpha", "f_norm", "mixing_attnresln_n"):
        for category, chosen in (("all", tokens), ("normal", tokens[tokens["category"] >= 4])):
            found = reference.rho(quantity, "rank", category)
            true = stats.spearmanr(chosen[quantity], RANKS[chosen["id"]]).statistic
            assert found["bound"] == 0.0 and found["value"] == pytest.approx(true, abs=2e-3)


def test_pearson_pools_to_the_whole(lens, reference: CorpusResult) -> None:
    sample = reference.pair_sample  # small corpus: the sample holds every pair
    rows = reference.correlations
    for (layer, head), part in sample.groupby(["layer", "head"]):
        chosen = rows[(rows["method"] == "pearson") & (rows["layer"] == layer) & (rows["head"] == head)]
        found = chosen[chosen["category"] == "all"].iloc[0]
        if found["count"] == len(part):
            expected = stats.pearsonr(part["alpha"].astype(float), part["f_norm"].astype(float)).statistic
            assert found["value"] == pytest.approx(expected, abs=1e-5)


def test_samples_hold_what_was_measured(lens, reference: CorpusResult) -> None:
    pairs, tokens = reference.pair_sample, reference.token_sample
    count = reference.rho("alpha", "f_norm", "all")["count"]
    assert len(pairs) == min(20_000, count)
    assert not pairs.duplicated().any() or len(pairs) < count
    np.testing.assert_allclose(pairs["af_norm"], pairs["alpha"] * pairs["f_norm"], rtol=1e-6)
    assert len(tokens) == reference.manifest["counts"]["tokens"]
    assert set(pairs["category"]) <= set(reference.categories["category"])
    cls = pairs[pairs["token"] == "[CLS]"]
    assert (cls["category"] == "cls").all() and (cls["key"] == 0).all() and len(cls)


def test_rows_per_token_average_to_the_tables(reference: CorpusResult) -> None:
    rows = reference.tokens
    assert len(rows) == 2 * reference.manifest["counts"]["tokens"]  # two layers
    for layer in (1, 2):
        chosen = rows[(rows["layer"] == layer) & (rows["category"] == "sep")]
        assert reference.grid("f_norm", "sep").loc[layer].mean() == pytest.approx(chosen["f_norm"].mean(), rel=1e-9)
        found = reference.grid("mixing_attn_n", "sep").loc[layer].item()
        assert found == pytest.approx(chosen["mixing_attn_n"].mean(), rel=1e-9)


@settings(max_examples=5, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_any_partition_and_order_gives_the_same_tables(lens, data) -> None:
    count = data.draw(st.integers(2, 12))
    texts = paragraphs(count, seed=data.draw(st.integers(0, 1000)))
    texts.append(texts[0])  # a sequence may occur twice
    categories = Categories.of(lens.tokenizer)
    recipe = Recipe(mask=0.3, seed=3)
    from normlens.corpus.sequences import build
    from normlens.corpus.sources import Record

    made = list(build([Record(str(n), text) for n, text in enumerate(texts)], lens.tokenizer, categories, recipe))
    plan = Plan.of(categories.names, covariates={"rank": RANKS}, sample=50)
    whole = Tally(plan)
    Worker(lens, plan, batch_size=4).count(whole, made)
    order = data.draw(st.permutations(range(len(made))))
    cuts = sorted(data.draw(st.lists(st.integers(0, len(made)), max_size=4)))
    merged = Tally(plan)
    for start, stop in zip([0, *cuts], [*cuts, len(made)], strict=True):
        part = Tally(plan)
        Worker(lens, plan, batch_size=data.draw(st.integers(1, 5))).count(part, [made[n] for n in order[start:stop]])
        merged.merge(part)
    vocabulary = [str(n) for n in range(20)]
    expected, found = tables_of(whole, vocabulary), tables_of(merged, vocabulary)
    for name in TABLES:
        pd.testing.assert_frame_equal(found[name], expected[name], rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("independent", [True, False])
def test_sequences_share_a_pass_only_where_no_bit_changes(lens, monkeypatch, independent: bool) -> None:
    from normlens.corpus import worker as working
    from normlens.corpus.batches import Item

    rng = np.random.default_rng(0)
    made = [
        Item(n, str(n), rng.integers(5, 20, length), None, rng.integers(0, 3, length).astype(np.uint8))
        for n, length in enumerate([24] * 6 + [40] * 3 + [5] * 3)
    ]
    plan = Plan.of(Categories.of(lens.tokenizer).names)
    passes: list[int] = []
    count_passes = Worker._run

    def counted(self, inputs, handle) -> None:
        passes.append(len(inputs["input_ids"]))
        count_passes(self, inputs, handle)

    monkeypatch.setattr(Worker, "_run", counted)
    if not independent:
        monkeypatch.setattr(working, "rows_stand_alone", lambda model: False)
    tallies = {}
    for size in (1, 3):
        tallies[size] = Tally(plan)
        Worker(lens, plan, batch_size=size).count(tallies[size], made)
        if size == 1:
            assert passes == [1] * 12
            passes.clear()
    # Five positions are too few to join. The first batch of 24 is run both ways, and decides about the others.
    assert passes == [1] * 3 + ([1, 1, 1, 3, 3, 3] if independent else [1] * 9)
    first, second = tallies[1].state(), tallies[3].state()
    for name, array in first.items():
        if name != "proof":
            np.testing.assert_allclose(second[name], array, 1e-12, 1e-15, err_msg=name)


def test_a_machine_that_rounds_by_neighbours_is_noticed() -> None:
    import torch

    from normlens.corpus.rounding import rows_stand_alone

    class Neighbours(torch.nn.Linear):
        def forward(self, given: torch.Tensor) -> torch.Tensor:
            return super().forward(given) * (1 + 1e-6 * (len(given) % 2))

    assert rows_stand_alone(torch.nn.Sequential(torch.nn.ReLU()))
    assert not rows_stand_alone(torch.nn.Sequential(Neighbours(8, 8)))


def test_few_positions_are_computed_on_one_thread() -> None:
    import torch

    from normlens.corpus.rounding import FEWEST_POSITIONS, steady

    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        with steady(FEWEST_POSITIONS - 1):
            assert torch.get_num_threads() == 1
        with steady(FEWEST_POSITIONS):
            assert torch.get_num_threads() == 2
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("options", [{"batch_size": 1}, {"batch_size": 64}, {"workers": 2}])
def test_batch_size_and_workers_do_not_show(lens, reference: CorpusResult, tmp_path: Path, options) -> None:
    source = reference.folder.parent / "corpus.txt"
    other = corpus_statistics(
        lens, source, tmp_path / "out", pairs=True, covariates={"rank": RANKS}, per_token=True, **options
    )
    same(reference, other)
    pd.testing.assert_frame_equal(reference.tokens, other.tokens, rtol=1e-9)


@pytest.mark.parametrize("compiled", [True, False])
def test_the_compiled_loop_counts_the_same(
    lens, reference: CorpusResult, tmp_path: Path, monkeypatch, compiled
) -> None:
    pytest.importorskip("numba")
    from normlens.corpus import kernels

    monkeypatch.setattr(kernels, "WORTH_COMPILING", 0 if compiled else 10**12)
    source = reference.folder.parent / "corpus.txt"
    other = corpus_statistics(lens, source, tmp_path / "out", pairs=True, covariates={"rank": RANKS})
    same(reference, other)


def test_files_are_deterministic_and_plain(lens, reference: CorpusResult, tmp_path: Path) -> None:
    source = reference.folder.parent / "corpus.txt"
    other = corpus_statistics(lens, source, tmp_path / "out", pairs=True, covariates={"rank": RANKS}, per_token=True)
    names = sorted(str(path.relative_to(other.folder)) for path in other.folder.rglob("*") if path.is_file())
    assert names == sorted([*(f"{name}.parquet" for name in TABLES), "manifest.json", "tokens/part-00000000.parquet"])
    for name in names:
        if name.endswith(".parquet"):
            assert (other.folder / name).read_bytes() == (reference.folder / name).read_bytes(), name
    polars, duckdb = pytest.importorskip("polars"), pytest.importorskip("duckdb")
    rows = len(reference.statistics)
    assert polars.read_parquet(other.folder / "statistics.parquet").height == rows
    assert duckdb.sql(f"select count(*) from '{other.folder}/statistics.parquet'").fetchall() == [(rows,)]
    manifest = json.loads((other.folder / "manifest.json").read_text())
    assert manifest["inputs"][0]["sha256"] and manifest["model"]["content"] and manifest["versions"]["torch"]
    assert 0 < manifest["worst_proof"] < 1e-5


def test_open_gives_the_run_back(reference: CorpusResult) -> None:
    found = normlens.open(reference.folder)
    assert isinstance(found, CorpusResult)
    same(found, reference)
    with pytest.raises(InputError, match="no mean of nonsense"):
        found.grid("nonsense")


class StoppedError(Exception):
    pass


def test_a_stopped_run_resumes_to_the_same_answer(lens, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(running, "UNIT", 4)
    source = tmp_path / "corpus.txt"
    source.write_text("\n".join(paragraphs(30, seed=2)))
    options = {"covariates": {"rank": RANKS}, "mask": 0.12, "per_token": True}
    whole = corpus_statistics(lens, source, tmp_path / "whole", **options)

    def stop(step) -> None:
        if step.sequences >= 12:
            raise StoppedError

    with pytest.raises(StoppedError):
        corpus_statistics(lens, source, tmp_path / "out", save_every=0.0, progress=stop, **options)
    assert not (tmp_path / "out" / "manifest.json").exists()
    with pytest.raises(InputError, match="holds an unfinished one"):
        corpus_statistics(lens, source, tmp_path / "out", **{**options, "mask": 0.0})
    seen = []
    resumed = corpus_statistics(lens, source, tmp_path / "out", progress=seen.append, **options)
    assert seen[0].sequences == 16 and seen[0].fresh == 4  # the first twelve were not run again
    same(resumed, whole)
    pd.testing.assert_frame_equal(resumed.tokens, whole.tokens)
    again = corpus_statistics(lens, source, tmp_path / "out", **options)
    assert again.manifest["finished"] == resumed.manifest["finished"]  # a finished run is read, not repeated
    source.write_text("something else .\n" * 3)
    with pytest.raises(InputError, match="holds a finished one"):
        corpus_statistics(lens, source, tmp_path / "out", **options)


def test_a_full_disk_leaves_the_last_good_checkpoint(lens, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(running, "UNIT", 4)
    source = tmp_path / "corpus.txt"
    source.write_text("\n".join(paragraphs(20, seed=4)))
    whole = corpus_statistics(lens, source, tmp_path / "whole")
    from normlens.corpus import checkpoint

    write, saved = checkpoint._write, []

    def full(stream, content) -> None:
        if len(saved) == 2:
            stream.write(content[: len(content) // 2])
            raise OSError(28, "No space left on device")
        saved.append(content)
        write(stream, content)

    monkeypatch.setattr(checkpoint, "_write", full)
    with pytest.raises(InputError, match="No space left on device"):
        corpus_statistics(lens, source, tmp_path / "out", save_every=0.0)
    assert (tmp_path / "out" / "checkpoint.npz").read_bytes() == saved[-1]
    assert not list((tmp_path / "out").glob("*.draft"))
    monkeypatch.setattr(checkpoint, "_write", write)
    same(corpus_statistics(lens, source, tmp_path / "out"), whole)


def test_flagged_correlations_are_settled_exactly(lens, text_file: Path, tmp_path: Path, monkeypatch) -> None:
    from normlens.corpus import pairs, plan, ranks

    coarse = Scale(Grid(((-4, 4, 0),)), Grid(((-4, 4, 0),)))
    monkeypatch.setattr(plan, "NORMS", coarse)
    monkeypatch.setattr(plan, "WEIGHTS", coarse)
    monkeypatch.setattr(pairs.PairCounts.__init__, "__defaults__", (8,))
    options = {"covariates": {"rank": RANKS}, "sample": 10**6, "per_token": True}
    rough = corpus_statistics(lens, text_file, tmp_path / "rough", **options)
    assert rough.manifest["flagged"] and rough.correlations["flagged"].any()
    exact = corpus_statistics(lens, text_file, tmp_path / "exact", exact=True, **options)
    assert not exact.manifest["flagged"]
    everything = exact.pair_sample  # larger than the corpus
    for category in ("sep", "comma_period", "other"):
        chosen = everything[everything["category"] == category]
        found, before = exact.rho("alpha", "f_norm", category), rough.rho("alpha", "f_norm", category)
        assert found["value"] == pytest.approx(stats.spearmanr(chosen["alpha"], chosen["f_norm"]).statistic, abs=1e-9)
        assert found["count"] == len(chosen) and abs(found["value"] - before["value"]) <= before["bound"]
    points = exact.token_sample
    for quantity in ("f_norm", "mixing_attnres_n"):
        true = stats.spearmanr(points[quantity].astype(np.float32), points["rank"]).statistic
        assert exact.rho(quantity, "rank", "all")["value"] == pytest.approx(true, abs=1e-9)
    assert not list((tmp_path / "exact").glob("exact-*")) and ranks.TOLERANCE == 1e-3


def test_bad_records_stop_or_are_counted_with_their_place(lens, tmp_path: Path) -> None:
    source = tmp_path / "corpus.jsonl"
    good = [json.dumps({"text": text}) for text in paragraphs(4)]
    source.write_bytes("\n".join([good[0], "{broken", good[1], '{"text": 3}', good[2]]).encode() + b"\n\xff\xfe\n")
    with pytest.raises(InputError, match=r"corpus\.jsonl:2: not JSON"):
        corpus_statistics(lens, source, tmp_path / "stop")
    found = corpus_statistics(lens, source, tmp_path / "skip", on_error="skip")
    counts = found.manifest["counts"]
    assert counts["sequences"] == 3 and counts["unreadable"] == 3
    assert [Path(flaw["place"]).name for flaw in counts["listed"]] == [f"corpus.jsonl:{n}" for n in (2, 4, 6)]


def test_masking_makes_a_category_of_its_own(lens, text_file: Path, tmp_path: Path) -> None:
    found = corpus_statistics(lens, text_file, tmp_path / "out", mask=0.12, seed=5)
    categories = found.categories.set_index("category")
    assert categories.loc["mask", "tokens"] == found.manifest["counts"]["sequences"]  # short texts: one each
    assert not found.grid("mixing_attnresln_n", "mask").empty


def test_mistakes_are_one_sentence(lens, text_file: Path, tmp_path: Path) -> None:
    def run(**options):
        return corpus_statistics(lens, options.pop("source", text_file), tmp_path / "out", **options)

    for options, message in (
        ({"source": tmp_path / "none.txt"}, "no .*none.txt"),
        ({"measures": ["beta"]}, "must be one of"),
        ({"correlate": [("alpha", "mixing_attn_w")]}, "share none"),
        ({"max_length": 1000}, "more than 64"),
        ({"mask": 1.5}, "masked share"),
        ({"engine": "spark"}, "local or ray"),
        ({"workers": 0}, "at least one worker"),
        ({"batch_size": 0}, "at least one sequence"),
        ({"on_error": "ignore"}, "stop or skip"),
        ({"skip": "("}, "regular expression"),
        ({"categories": {"odd": "("}}, "regular expression"),
        ({"covariates": {"rank": np.zeros(3)}}, "one number per token id"),
        ({"address": "auto"}, "belongs to a Ray cluster"),
    ):
        shutil.rmtree(tmp_path / "out", ignore_errors=True)
        with pytest.raises(InputError, match=message):
            run(**options)
