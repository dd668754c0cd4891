"""The published numbers: whole, sourced, and shown for their own model and data only."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from normlens.experiments.encoder_study import EncoderStudy, paper_ranks
from normlens.experiments.kobayashi2020_bert import findings_of
from normlens.experiments.outcome import Number, Table
from normlens.experiments.published import PublishedNumbers, data_key, document, model_key, published_text
from normlens.lens import Lens
from tests.corpus.conftest import WORDS


def test_every_block_is_whole() -> None:
    for block in document()["blocks"]:
        assert block["source"] in document()["sources"] and block["source"] in document()["short"]
        assert block["model"] in document()["models"] and block["data"] in document()["data"]
        assert all(len(values) == len(block["columns"]) for values in block["rows"].values())


def test_expansion_rates_have_a_row_per_layer_and_their_mean() -> None:
    for block in document()["blocks"]:
        layers = [values[0] for row, values in block["rows"].items() if row.startswith("layer ")]
        if block["table"] == "expansion" and layers:
            assert len(layers) == document()["models"][block["model"]]["layers"]
            assert np.mean(layers) == pytest.approx(block["rows"]["mean"][0], abs=1e-3)


def test_weights_with_residual_are_half_of_weights() -> None:
    """ATTNRES-W is half of ATTN-W by definition, so a slip of the pen shows."""
    for block in document()["blocks"]:
        if block["table"] == "mixing":
            plain, half = (np.array(block["rows"][name]) for name in ("attn_w", "attnres_w"))
            assert np.abs(plain / 2 - half).max() <= 10.0 ** -block["decimals"]


def test_paper_and_authors_run_are_both_there() -> None:
    published = PublishedNumbers("kobayashi2021", "bert-base", "clark2019")
    assert [(p.value, p.short) for p in published("mixing", "attn_w", "mean")] == [
        (97.1, "paper"),
        (96.41, "authors' run"),
    ]
    assert published("mixing", "attn_w", "median") == ()
    assert published_text("kobayashi2020-bert", "rho_alpha_f", "sep", "rho") == "−0.69"


def test_other_data_leaves_only_what_needs_no_data() -> None:
    published = PublishedNumbers("kobayashi2021", "bert-base", None)
    assert published("mixing", "attn_w", "mean") == () and published("expansion", "mean", "rate")[0].value == 0.877
    assert not PublishedNumbers("kobayashi2021", None, "clark2019")._found


def test_a_model_is_known_by_name_and_shape() -> None:
    assert model_key("bert-base-uncased", (12, 12, 768)) == "bert-base"
    assert model_key("google/bert_uncased_L-2_H-128_A-2", (2, 2, 128)) == "bert-tiny"
    assert model_key("bert-base-uncased", (6, 12, 384)) is None
    assert model_key("bert-base-ner", (12, 12, 768)) is None


def test_text_is_not_the_papers_data(tiny_lens: Lens, tiny_text: Path, tmp_path: Path) -> None:
    assert data_key(EncoderStudy(tiny_lens, tmp_path, (tiny_text,)), 992) is None
    converted = tmp_path / "clark2019.jsonl"
    converted.write_text('{"model_tokens": ["[CLS]", "[SEP]"]}\n')
    study = EncoderStudy(tiny_lens, tmp_path, (converted,))
    assert data_key(study, 992) == "clark2019" and data_key(study, 991) is None


def test_ranks_in_the_papers_words(tiny_lens: Lens) -> None:
    tokenizer = tiny_lens.tokenizer
    plain = np.arange(1.0, len(tokenizer) + 1)[::-1].copy()
    ranks = dict(zip(tokenizer.convert_ids_to_tokens(range(len(plain))), paper_ranks(plain, tokenizer), strict=True))
    assert [ranks[token] for token in (",", ".", "[SEP]", "[CLS]")] == [1, 2, 3, 4]
    assert np.isnan([ranks[token] for token in ("a", "[PAD]", "[MASK]")]).all(), "single characters and special tokens"
    rest = [word for word in WORDS if len(word) > 1]
    assert [ranks[word] for word in rest[::-1]] == list(range(5, 5 + len(rest)))


def _table(name: str, values: dict[str, dict[str, float]]) -> Table:
    numbers = tuple(Number(row, column, value) for row, own in values.items() for column, value in own.items())
    columns = {column: column for own in values.values() for column in own}
    return Table(name, name, name, numbers, {row: row for row in values}, columns)


@pytest.mark.parametrize(("rho", "holds"), [(-0.69, True), (-0.5, True), (-0.49, False), (0.2, False)])
def test_a_claim_can_fail(study_2020: EncoderStudy, rho: float, holds: bool) -> None:
    tables = {
        "table-1": _table("table-1", {"average": {"cv": 0.22}}),
        "table-4": _table("table-4", {"average": {"cv": 0.12}}),
        "figure-09": _table("figure-09", {"all": {"ratio": 1.7}}),
        "shares": _table("shares", {"sep": {"weight": 0.5, "contribution": 0.6}}),
        "table-2": _table("table-2", {"sep": {"rho": rho}, "other": {"rho": -0.06}}),
        "section-4-3": _table("section-4-3", {"alpha": {"code": -0.08}, "f_norm": {"code": 0.75}}),
    }
    findings = findings_of(study_2020, tables)
    found = {finding.name: finding.holds for finding in findings if finding.holds is not None}
    assert found == {
        "dispersion": True, "singular_values": False, "takes_less_sep": False, "rho_sep": holds, "rho_other": True,
        "rank_norm": True, "rank_weight": True,
    }  # fmt: skip
    verdicts = {finding.name: finding.verdict for finding in findings}
    assert verdicts["singular_values"] == "weaker" and verdicts["takes_less_sep"] == "fails"
    assert verdicts["rho_sep"] == ("holds" if holds else "weaker" if rho < 0 else "fails")
