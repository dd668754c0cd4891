"""Every table of both experiments, for 20 sequences, against loops that know nothing of normlens."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path

import numpy as np
import pytest
import scipy.stats

from normlens.corpus.batches import Item
from normlens.corpus.categories import Categories
from normlens.corpus.run import Corpus, Log
from normlens.corpus.sequences import Recipe
from normlens.experiments import kobayashi2020_bert, kobayashi2021
from normlens.experiments.outcome import Outcome
from normlens.experiments.setup import MASKED, Setup
from normlens.lens import load
from tests.reference.papers import SlowBert, tables_2020, tables_2021

MODEL = Path(os.environ.get("NORMLENS_REAL_MODELS", "../models")) / "minilm"


def sequences(setup: Setup, mask: float = 0.0) -> list[tuple[list[int], list[int], list[str]]]:
    """The sequences themselves are the engine's (their masks are random); what they are is said here anew."""
    tokenizer = setup.lens.tokenizer
    corpus = Corpus(setup.sources, Recipe(True, setup.max_length, mask, setup.seed), skip=setup.skip, limit=setup.limit)
    items: list[Item] = list(corpus.items(tokenizer, Categories.of(tokenizer), Log()))
    kinds = {"[CLS]": "cls", "[SEP]": "sep", "[MASK]": "mask", ",": "comma_period", ".": "comma_period"}
    return [
        (item.ids.tolist(), item.types.tolist(), [kinds.get(t, "other") for t in tokenizer.convert_ids_to_tokens(item.ids)])
        for item in items
    ]  # fmt: skip


def close(measured: float, slow: float, tolerance: float = 2e-5) -> bool:
    return abs(measured - slow) <= tolerance * max(1.0, abs(slow))


def check_2020(setup: Setup, outcome: Outcome) -> None:
    items = sequences(setup)
    assert len(items) == 20
    slow = tables_2020(SlowBert(setup.lens.model), items)
    for name, places in (("table-1", slow["f"]), ("table-4", slow["x"])):
        table = outcome.table(name)
        by_cv = sorted(places, key=lambda place: places[place]["cv"])
        for row, place in (("largest_cv", by_cv[-1]), ("smallest_cv", by_cv[0])):
            assert all(close(table.value(row, s), value) for s, value in places[place].items())
            layer = place[0] if isinstance(place, tuple) else place
            assert table.value(row, "layer") == layer
        for s in ("mean", "sd", "cv"):
            assert close(table.value("average", s), float(np.mean([own[s] for own in places.values()])))
    for category, rho in slow["rho"].items():
        number = outcome.table("table-2").at(category, "rho")
        assert number is not None and abs(number.measured - rho) <= number.bound + 1e-4
        assert outcome.table("table-2").value(category, "pairs") == slow["pairs"][category]
        taken = outcome.table("shares")
        assert close(taken.value(category, "weight"), slow["shares"][category, "weight"])
        assert close(taken.value(category, "contribution"), slow["shares"][category, "norm"])
    for definition, ranks in setup.ranks.items():
        kept = [(ranks[token], weight, norm) for token, weight, norm in slow["tokens"] if np.isfinite(ranks[token])]
        rank, weight, norm = zip(*kept, strict=True)
        table = outcome.table("section-4-3")
        assert abs(table.value("alpha", definition) - scipy.stats.spearmanr(rank, weight)[0]) < 1e-4
        assert abs(table.value("f_norm", definition) - scipy.stats.spearmanr(rank, norm)[0]) < 1e-4


def check_2021(setup: Setup, outcome: Outcome) -> None:
    bert = SlowBert(setup.lens.model)
    masked = tables_2021(bert, sequences(setup, MASKED))
    for method, row in masked["mixing"].items():
        assert all(close(outcome.table("mixing").value(method, s), 100 * value) for s, value in row.items())
    for (category, layer), mean in masked["by_layer"].items():
        if category in ("mask", "cls", "sep"):
            assert close(outcome.table("figure-03").value(category, str(layer)), 100 * mean)
    plain = tables_2021(bert, sequences(setup))
    ranks = setup.ranks["code"]
    for method in masked["mixing"]:
        for column, left_out in (("all", ()), ("normal", ("cls", "sep"))):
            pairs = [(ranks[t], own[method]) for t, category, own in plain["tokens"] if category not in left_out]
            rho = scipy.stats.spearmanr(*zip(*pairs, strict=True))[0]
            assert abs(outcome.table("table-3").value(method, column) - rho) < 2e-4
    rates = bert.expansion()
    for layer, rate in enumerate(rates, 1):
        assert close(outcome.table("expansion").value(f"layer {layer}", "code"), rate)
    assert close(outcome.table("expansion").value("mean", "code"), float(np.mean(rates)))


def test_2020_tables(setup_2020: Setup, outcome_2020: Outcome) -> None:
    check_2020(setup_2020, outcome_2020)


def test_2021_tables(setup_2021: Setup, outcome_2021: Outcome) -> None:
    check_2021(setup_2021, outcome_2021)


def test_singular_values(setup_2020: Setup, outcome_2020: Outcome) -> None:
    slow, table = SlowBert(setup_2020.lens.model), outcome_2020.table("figure-09")
    every = [slow.singular_values(layer, head) for layer in range(2) for head in range(2)]
    assert close(table.value("all", "ratio"), min(float(values[0] / values[-1]) for values in every))


def test_the_authors_matrix_is_not_the_papers(outcome_2021: Outcome) -> None:
    """The variants must be told apart: with a bias on the output they give different rates."""
    table = outcome_2021.table("expansion")
    assert table.value("mean", "code") != table.value("mean", "paper")


@pytest.mark.real
def test_minilm(tmp_path: Path) -> None:
    """The same on a real model and the sample corpus; sequences are cut short, since the loops are slow."""
    if not MODEL.is_dir():
        pytest.skip(f"needs the real model at {MODEL} (NORMLENS_REAL_MODELS)")
    setup = Setup(load(MODEL), tmp_path / "a", limit=20, max_length=24)
    check_2020(setup, kobayashi2020_bert.run(setup))
    setup = dataclasses.replace(setup, out=tmp_path / "b")
    check_2021(setup, kobayashi2021.run(setup))
