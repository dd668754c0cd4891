"""`normlens explain`: what it prints, with and without colours, what it writes, and how it refuses."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers

import normlens
from normlens.cli.main import main
from normlens.lens import Lens
from tests import tiny
from tests.attribution.models import headed


def _saved(model: Any, tokenizer: Any, folder: Path) -> Path:
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def causal(tmp_path_factory: pytest.TempPathFactory) -> Path:
    model = headed("llama", torch.float32)
    model.generation_config.max_new_tokens = 3
    return _saved(model, tiny.tokenizer("none"), tmp_path_factory.mktemp("causal"))


@pytest.fixture(scope="module")
def masked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return _saved(headed("bert", torch.float32), tiny.tokenizer("both"), tmp_path_factory.mktemp("masked"))


@pytest.fixture(scope="module")
def labelled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    config = tiny.bert(id2label={0: "bad", 1: "fine", 2: "good"}, label2id={"bad": 0, "fine": 1, "good": 2}).config
    torch.manual_seed(0)
    model = tiny.randomized(transformers.BertForSequenceClassification(config)).eval()
    return _saved(model, tiny.tokenizer("both"), tmp_path_factory.mktemp("labelled"))


@pytest.fixture
def shell(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Any:
    """Run the command in this process: exit code, standard output, standard error."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")

    def run(*arguments: object) -> tuple[int, str, str]:
        capsys.readouterr()  # a fixture that saves a model draws a bar
        monkeypatch.setattr(sys, "argv", ["normlens", "explain", *map(str, arguments)])
        with pytest.raises(SystemExit) as stopped:
            main()
        out, err = capsys.readouterr()
        return int(stopped.value.code or 0), out, err

    return run


def test_the_number_the_terms_and_the_proof_are_printed(causal: Path, shell: Any) -> None:
    code, out, err = shell("the cat sat on", "--model", causal, "--output", "red", "--against", "tree")
    assert code == 0, err
    found = normlens.load(causal).explain("the cat sat on", output="red", against="tree")
    assert f"The logit of 'red' less that of 'tree' at 'on' (position 3): {found.value:+.3f}; probability" in out
    strongest = int(np.abs(found["tokens"].values).argmax())
    token, value = found["tokens"]["key_token"].values[strongest], found["tokens"].values[strongest]
    assert f"{token}({value:+.2f})" in out  # beside the token, since a pipe has no colours
    assert f"{value:+.3f}" in out and "misses the number by at most" in out
    assert f"tokens {float(found['tokens'].sum()):+.3f}, biases {float(found['biases'].sum()):+.3f}" in out
    assert "\x1b" not in out + err


def test_a_terminal_gets_colours_and_no_numbers_in_the_text(
    causal: Path, shell: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLORTERM", "truecolor")
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")
    code, out, err = shell("the cat sat on", "--model", causal, "--output", "red")
    assert code == 0, err
    assert "\x1b[38" in out or "48;2;" in out
    line = next(line for line in out.splitlines() if "cat" in line)
    assert "(+" not in line and "(-" not in line


def test_colours_are_white_at_zero_and_apart_by_sign() -> None:
    from normlens.results.tables import _style_of_share

    zero, gave, took = (_style_of_share(share).partition("#")[2] for share in (0.0, 1.0, -1.0))
    assert int(zero, 16) > 0xF0F0F0
    assert int(gave[4:], 16) > int(gave[:2], 16) and int(took[:2], 16) > int(took[4:], 16)  # blue gave, orange took


def test_a_label_by_its_name_or_its_number(labelled: Path, shell: Any) -> None:
    outputs = [shell("the cat sat", "--model", labelled, "--output", which)[1] for which in ("good", "2")]
    assert "The logit of 'good'" in outputs[0] and outputs[0] == outputs[1]


def test_words_are_sums_of_tokens(causal: Path, shell: Any) -> None:
    code, out, err = shell("cats sat slowly on", "--model", causal, "--output", "red", "--words", "--json")
    assert code == 0, err
    site = json.loads(out)["sites"]["decoder"]
    assert sum(site["values"]["words"]["values"]) == pytest.approx(sum(site["values"]["tokens"]["values"]))
    assert len(site["words"]) == len(site["values"]["words"]["values"]) <= len(site["tokens"])


def test_json_adds_up(causal: Path, shell: Any) -> None:
    code, out, err = shell("the cat sat on", "--model", causal, "--output", "red", "--json")
    assert code == 0, err
    found = json.loads(out)
    values = found["sites"]["decoder"]["values"]
    total = sum(values["tokens"]["values"]) + float(np.sum(values["biases"]["values"]))
    assert total == pytest.approx(found["value"], abs=1e-4)
    assert 0 <= found["probability"] <= 1 and found["proof"]["gap"] < 1e-5
    assert values["heads"]["axes"] == ["layer", "head"] and values["heads"]["layer"][0] == 1
    assert "edges" not in values  # kept where they are asked for


def test_what_the_model_writes_is_explained_step_by_step(causal: Path, shell: Any) -> None:
    code, out, err = shell("the cat sat", "--model", causal, "--generate", "--json")
    assert code == 0, err
    found = json.loads(out)
    assert found["sites"]["decoder"]["values"]["tokens"]["axes"] == ["step", "key"]
    code, out, err = shell("the cat sat", "--model", causal, "--generate")
    assert code == 0, err
    assert f"{sum(found['value']):+.3f}" in out and "largest contributions" in out


def test_the_result_is_written_whole_and_never_over_another(causal: Path, shell: Any, tmp_path: Path) -> None:
    folder = tmp_path / "e.zarr"
    arguments = ("the cat sat", "--model", causal, "--output", "red", "--out", folder)
    code, out, err = shell(*arguments)
    assert code == 0 and f"wrote {folder}" in out, err
    kept = normlens.open(folder)
    found = Lens(transformers.AutoModelForCausalLM.from_pretrained(causal), tiny.tokenizer("none"))
    np.testing.assert_allclose(kept["tokens"], found.explain("the cat sat", output="red")["tokens"], atol=1e-6)
    code, _, err = shell(*arguments)
    assert code == 2 and "--overwrite" in err
    assert shell(*arguments, "--overwrite")[0] == 0
    other = tmp_path / "mine"
    other.mkdir()
    (other / "file").write_text("kept")
    code, _, err = shell("the cat", "--model", causal, "--out", other, "--overwrite")
    assert code == 2 and (other / "file").read_text() == "kept"


@pytest.mark.parametrize(
    ("which", "arguments", "sentence"),
    [
        ("causal", ("the cat", "--attention", "both"), "'both' is not one of 'fixed', 'integrated'"),
        ("causal", ("the cat", "--position", "9"), "0 to 1"),
        ("causal", ("the cat", "--part", "norms"), "parts must be a list of tokens"),
        ("causal", ("the cat", "--target", "Katze"), "encoder-decoder"),
        ("masked", ("the cat", "--output", "red"), "the text has no mask"),
        ("masked", ("the [MASK]", "--output", "red tree"), "one token"),
        ("masked", ("the [MASK]", "--generate"), "cannot generate text"),
        ("labelled", ("the cat", "--output", "great"), "one of the labels bad, fine, good"),
        ("labelled", ("the cat", "--output", "7"), "one of the labels bad, fine, good"),
        ("labelled", ("the cat", "--position", "1"), "one output for the whole input"),
    ],
)
def test_a_mistake_is_one_sentence_and_exit_code_2(
    which: str, arguments: tuple[str, ...], sentence: str, shell: Any, request: pytest.FixtureRequest
) -> None:
    code, out, err = shell(*arguments, "--model", request.getfixturevalue(which))
    assert code == 2 and out == "" and sentence in err, err
    assert err.startswith("normlens: ") and len(err.strip().splitlines()) == 1


def test_a_saved_explanation_is_shown_by_view(causal: Path, shell: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    assert shell("the cat sat on", "--model", causal, "--output", "red", "--out", "why.zarr")[0] == 0
    for arguments, code in ((["--out", "page.html", "--json"], 0), (["--out", "other.html", "--span", "0:2"], 2)):
        monkeypatch.setattr(sys, "argv", ["normlens", "view", "why.zarr", *arguments])
        with pytest.raises(SystemExit) as stopped:
            main()
        assert int(stopped.value.code or 0) == code
    assert "normlens" in Path("page.html").read_text(encoding="utf-8")[:4096] and not Path("other.html").exists()
