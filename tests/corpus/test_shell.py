"""The command, the pictures, and a decoder."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers
from typer.testing import CliRunner

from normlens.cli.main import build
from normlens.corpus.api import corpus_statistics
from normlens.errors import InputError
from normlens.lens import Lens

from .conftest import WORDS, paragraphs, tiny_bert, tiny_tokenizer


@pytest.fixture(scope="module")
def model_folder(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    tiny_bert().save_pretrained(folder)
    tiny_tokenizer().save_pretrained(folder)
    return folder


def test_the_command_counts_prints_and_is_read_back(model_folder: Path, text_file: Path, tmp_path: Path) -> None:
    arguments = [
        "corpus", str(text_file), "--model", str(model_folder), "--out", str(tmp_path / "out"), "--pairs",
        "--frequency", "corpus", "--category", "article=the|a", "--limit", "10",
    ]  # fmt: skip
    done = CliRunner().invoke(build(), arguments, catch_exceptions=False)
    assert done.exit_code == 0, done.output
    assert "10 sequences" in done.output and "frequency_rank" in done.output and "article" in done.output
    again = CliRunner().invoke(build(), [*arguments, "--json"], catch_exceptions=False)
    document = json.loads(again.stdout)
    assert document["counts"]["sequences"] == 10 and document["corpus"]["pairs"] is True
    from_pipe = CliRunner().invoke(
        build(),
        ["corpus", "-", "--model", str(model_folder), "--out", str(tmp_path / "pipe"), "--json"],
        input="\n".join(paragraphs(5)).encode(),
        catch_exceptions=False,
    )
    assert json.loads(from_pipe.stdout)["counts"]["sequences"] == 5
    with pytest.raises(InputError, match="NAME=REGEX"):
        CliRunner().invoke(build(), [*arguments, "--category", "odd"], catch_exceptions=False)


def test_every_picture_says_what_it_shows(lens: Lens, text_file: Path, tmp_path: Path) -> None:
    ranks = np.arange(len(lens.tokenizer), dtype=float)
    result = corpus_statistics(lens, text_file, tmp_path / "out", covariates={"rank": ranks})
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
        line = figure._supxlabel.get_text()
        assert "tiny" in line and "corpus.txt" in line and "40 sequences" in line
        axes = figure.axes[0]
        assert axes.get_xlabel() and axes.get_ylabel()
    lines = figures[1].axes[0].get_lines()
    shares = np.sum([line.get_ydata() for line in lines], axis=0)
    np.testing.assert_allclose(shares, 1.0, rtol=1e-5)  # the categories' shares of the weight add up
    with pytest.raises(InputError, match="none of"):
        result.plot_scatter("nonsense", "alpha")


def test_in_a_decoder_later_keys_are_no_pairs(tmp_path: Path) -> None:
    torch.manual_seed(0)
    config = transformers.GPT2Config(
        vocab_size=5 + len(WORDS), n_embd=16, n_layer=2, n_head=2, n_positions=64, initializer_range=0.5
    )
    lens = Lens(transformers.GPT2Model(config).eval(), tiny_tokenizer(), name="tiny-gpt2")
    source = tmp_path / "corpus.txt"
    texts = paragraphs(6)
    source.write_text("\n".join(texts))
    result = corpus_statistics(lens, source, tmp_path / "out", mixing=["attn_w"])
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
