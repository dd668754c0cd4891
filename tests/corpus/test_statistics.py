"""What is counted: against slow loops, however the work is split, compiled or not, in a decoder."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
import transformers
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from scipy import stats

from normlens.corpus import compiled as compiled_loop
from normlens.corpus.batches import batched
from normlens.corpus.options import Plan
from normlens.corpus.reading import Record
from normlens.corpus.result import CorpusResult
from normlens.corpus.run import all_sequences, count_batch, request_for, with_sites
from normlens.corpus.sequences import Categories, SequenceBuilder, TokenSequence
from normlens.corpus.statistics import Statistics
from normlens.lens import Lens
from normlens.measures.table import BLOCK_MAPS

from ..reference.corpus_statistics import slow_values
from .conftest import RANKS, TABLES, WORDS, paragraphs, same, tiny_tokenizer


def test_numbers_agree_with_slow_loops(lens, reference: CorpusResult) -> None:
    items = list(all_sequences(lens, reference.folder.parent / "corpus.txt", pairs=True))
    categories = Categories.of(lens.tokenizer)
    assert len(items) == 20 == reference.manifest["counts"]["sequences"]
    slow = slow_values(lens, items, BLOCK_MAPS)
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


def counted(lens: Lens, plan: Plan, sequences: list[TokenSequence]) -> Statistics:
    """Count sequences one by one: what shares a pass may differ in the last digits."""
    statistics = Statistics(plan)
    for batch in batched(sequences, 1):
        count_batch(lens, batch, plan, request_for(lens, plan), [statistics])
    return statistics


@settings(max_examples=5, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_any_partition_and_order_gives_the_same_tables(lens, data) -> None:
    count = data.draw(st.integers(2, 12))
    texts = paragraphs(count, seed=data.draw(st.integers(0, 1000)))
    texts.append(texts[0])  # a sequence may occur twice
    categories = Categories.of(lens.tokenizer)
    builder = SequenceBuilder(lens.tokenizer, categories, mask=0.3, seed=3)
    made = list(builder.build([Record(str(n), text) for n, text in enumerate(texts)]))
    plan = Plan.of(categories.names, {"sample": 50}, covariates={"rank": RANKS})
    plan = with_sites(plan, lens)
    order = data.draw(st.permutations(range(len(made))))
    cuts = sorted(data.draw(st.lists(st.integers(0, len(made)), max_size=4)))
    merged = Statistics(plan)
    for start, stop in zip([0, *cuts], [*cuts, len(made)], strict=True):
        merged.merge(counted(lens, plan, [made[n] for n in order[start:stop]]).state())
    vocabulary = [str(n) for n in range(20)]
    expected, found = counted(lens, plan, made).tables(vocabulary), merged.tables(vocabulary)
    assert set(expected) == set(TABLES)
    for name in TABLES:
        pd.testing.assert_frame_equal(found[name], expected[name], rtol=1e-9, atol=1e-12)


def test_median_and_mad_agree_with_numpy(reference: CorpusResult) -> None:
    sample = reference.pair_sample.drop_duplicates(["layer", "head", "key", "token_id", "f_norm"])
    tokens = reference.tokens
    rows = reference.statistics.set_index(["layer", "head", "quantity", "category", "over", "statistic"]).sort_index()
    compared = 0
    for (layer, head, category), part in sample.groupby(["layer", "head", "category"]):
        norms = part["f_norm"].to_numpy(dtype=float)
        if len(norms) != (tokens[tokens["layer"] == layer]["category"] == category).sum():
            continue  # equal tokens at equal places have equal norms, which the sample cannot tell apart
        median = np.median(norms)
        for statistic, true in (("median", median), ("mad", np.median(np.abs(norms - median)))):
            row = rows.loc[(layer, head, "f_norm", category, "values", statistic)]
            assert row["low"] - 1e-9 <= true <= row["high"] + 1e-9
            assert row["value"] == pytest.approx(true, abs=0.01 * median)
            compared += 1
    assert compared > 4


def test_means_by_offset_agree_with_loops(lens, reference: CorpusResult) -> None:
    sums: dict[tuple[int, int, int], list[float]] = {}
    for item in all_sequences(lens, reference.folder.parent / "corpus.txt", pairs=True):
        inputs = {name: torch.tensor([values]) for name, values in item.inputs.items()}
        alpha = lens.analyze_inputs(inputs, measures=["alpha"])[0]["alpha"].values
        for layer, head, query, key in np.ndindex(alpha.shape):
            sums.setdefault((layer + 1, head + 1, key - query), []).append(float(alpha[layer, head, query, key]))
    rows = reference.relative[reference.relative["quantity"] == "alpha"]
    assert len(rows) == len(sums)
    for row in rows.itertuples():
        numbers = sums[row.layer, row.head, row.offset]
        assert row.count == len(numbers) and row.mean == pytest.approx(np.mean(numbers), rel=1e-5)


@pytest.mark.parametrize("compiled", [True, False])
def test_the_compiled_loop_counts_the_same(
    lens, reference: CorpusResult, tmp_path: Path, monkeypatch, compiled
) -> None:
    pytest.importorskip("numba")
    monkeypatch.setattr(compiled_loop, "WORTH_COMPILING", 0 if compiled else 10**12)
    source = reference.folder.parent / "corpus.txt"
    other = lens.corpus(source, tmp_path / "out", pairs=True, covariates={"rank": RANKS})
    same(reference, other)


@pytest.mark.parametrize("compiled", [True, False])
def test_every_correlation_that_is_asked_for_is_there(
    lens, text_file: Path, tmp_path: Path, monkeypatch, compiled
) -> None:
    """The compiled loop counts one correlation; others of the same weights must not be taken for counted."""
    monkeypatch.setattr(compiled_loop, "WORTH_COMPILING", 0 if compiled else 10**12)
    pairs = [("alpha", "f_norm"), ("alpha", "x_norm"), ("alpha", "attn_w"), ("attn_w", "f_norm"), ("x_norm", "f_norm")]
    found = lens.corpus(
        text_file,
        tmp_path / "out",
        measures=["alpha", "f_norm", "x_norm", "attn_w"],
        correlate=pairs,
        sample=10**6,
    )
    sample = found.pair_sample  # larger than the corpus: every pair
    rows = found.correlations
    for x, y in pairs[:4]:
        true = stats.spearmanr(sample[x], sample[y]).statistic
        rho = found.rho(x, y)
        assert rho["count"] == len(sample)
        assert abs(rho["value"] - true) <= rho["bound"] + 1e-9
        if y == "x_norm":  # after a normalization it is constant but for rounding
            continue
        of_head = sample[(sample["layer"] == 2) & (sample["head"] == 1)].astype({x: float, y: float})
        chosen = rows[(rows["method"] == "pearson") & (rows["layer"] == 2) & (rows["head"] == 1)]
        (value,) = chosen[(chosen["x"] == x) & (chosen["y"] == y) & (chosen["category"] == "all")]["value"]
        assert value == pytest.approx(stats.pearsonr(of_head[x], of_head[y]).statistic, abs=1e-5)
    assert found.rho("x_norm", "f_norm")["count"] == 2 * 2 * found.manifest["counts"]["tokens"]


def test_in_a_decoder_later_keys_are_no_pairs(tmp_path: Path) -> None:
    torch.manual_seed(0)
    config = transformers.GPT2Config(
        vocab_size=5 + len(WORDS), n_embd=16, n_layer=2, n_head=2, n_positions=64, initializer_range=0.5
    )
    lens = Lens(transformers.GPT2Model(config).eval(), tiny_tokenizer(), name="tiny-gpt2")
    source = tmp_path / "corpus.txt"
    texts = paragraphs(6)
    source.write_text("\n".join(texts))
    result = lens.corpus(source, tmp_path / "out", mixing=["attn_w"])
    alphas: list[np.ndarray] = []
    for text in texts:
        ids = torch.tensor([lens.tokenizer(text)["input_ids"]])
        inputs = {"input_ids": ids, "token_type_ids": torch.zeros_like(ids)}  # as this tokenizer makes them
        alpha = lens.analyze_inputs(inputs, measures=["alpha"])[0]["alpha"].values[1, 0]
        alphas.append(alpha[np.tril_indices(len(alpha))])
    values = np.concatenate(alphas)
    rows = result.statistics
    rows = rows[(rows["quantity"] == "alpha") & (rows["layer"] == 2) & (rows["head"] == 1) & (rows["over"] == "values")]
    found = rows[rows["category"] == "all"].set_index("statistic")["value"]
    assert found["count"] == len(values)
    assert found["mean"] == pytest.approx(values.mean(), rel=1e-5)
    assert found["min"] == pytest.approx(values.min(), rel=1e-5) and found["max"] == pytest.approx(1.0, rel=1e-5)
    assert (result.pair_sample["key"] <= result.pair_sample["query"]).all()
    assert (result.relative["offset"] <= 0).all()
