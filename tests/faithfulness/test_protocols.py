"""Protocols against loops, and what must hold of any study."""

from __future__ import annotations

import csv
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers

from normlens import faithfulness
from normlens.cli.main import main
from normlens.errors import InputError
from normlens.faithfulness.erasure import removable
from normlens.faithfulness.items import Item
from normlens.faithfulness.methods import METHODS, Method, find_methods
from normlens.faithfulness.protocols import PROTOCOLS, ProtocolInput
from normlens.faithfulness.published_scores import beside, model_of
from normlens.faithfulness.report import page, write_report
from normlens.faithfulness.samples import Sample, read_evidence, read_texts
from normlens.faithfulness.sanity import layers_of, shuffled
from normlens.faithfulness.verdicts import verdict
from normlens.lens import Lens
from tests import tiny
from tests.attribution.models import headed
from tests.reference.faithfulness import drops

CHEAP = ["fixed", "gradient_x_input", "erasure", "random"]


def _classifier() -> Lens:
    torch.manual_seed(0)
    config = tiny.bert(id2label={0: "bad", 1: "good"}, label2id={"bad": 0, "good": 1}).config
    model = tiny.randomized(transformers.BertForSequenceClassification(config)).eval()
    return Lens(model, tiny.tokenizer("both"), name="tiny")


def _causal() -> Lens:
    return Lens(headed("llama", torch.float32), tiny.tokenizer("none"), name="tiny")


def _texts(folder: Path) -> Path:
    path = folder / "texts.tsv"
    path.write_text("the cat sat on a red tree\t1\nthe red cat\t0\nslowly the tree sat\t1\n\nsat\t0\n")
    return path


def _evidence(folder: Path, rows: list[tuple[str, str, str, str]] | None = None) -> Path:
    path = folder / "evidence.csv"
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["one_prefix_prefix", "one_prefix_word_good", "one_prefix_word_bad", "target"])
        writer.writerows(
            rows
            or [
                ("the cat sat on", "a", "tree", "cat"),
                ("the red cat", "sat", "on", "red"),
                ("the cat", "red", "red", "cat"),
                ("the cat", "red", "sat", "dog"),
                ("a tree sat", "slowly", "red", "tree"),
            ]
        )
    return path


def _items(lens: Lens) -> tuple[Item, ...]:
    return tuple(Item((2, *range(10 + i, 17 + i), 3), i % 2, None, None) for i in range(4))


def test_deletion_is_a_loop_over_sets() -> None:
    lens = _classifier()
    items = _items(lens)
    scores = {"random": METHODS["random"].scores(lens, items), "erasure": METHODS["erasure"].scores(lens, items)}
    found = PROTOCOLS["deletion"].function(ProtocolInput(lens, Sample("s", items), "mask"), scores, METHODS)
    for name, own in scores.items():
        for i, item in enumerate(items):
            places = list(removable(lens, item, "mask"))
            mask = int(lens.tokenizer.mask_token_id)
            expected = drops(lens.model, list(item.ids), item.output, own[i], places, mask)
            for column, number in expected.items():
                assert found[name][column][i] == pytest.approx(number, abs=1e-6), column


def test_the_order_that_knows_the_answer_wins() -> None:
    """The best of all orders, by looking: no method may have a larger drop for one token than it."""
    lens = _classifier()
    items = _items(lens)
    one = {"erasure": METHODS["erasure"].scores(lens, items), "random": METHODS["random"].scores(lens, items)}
    found = PROTOCOLS["deletion"].function(ProtocolInput(lens, Sample("s", items), "mask"), one, METHODS)
    assert found["erasure"]["comprehensiveness"].mean() > found["random"]["comprehensiveness"].mean()


def test_evidence_is_read_and_what_cannot_be_asked_is_counted(tmp_path: Path) -> None:
    lens = _causal()
    sample = read_evidence(lens, _evidence(tmp_path))
    assert len(sample.items) == 3 and sum(sample.refused.values()) == 2
    assert set(sample.refused) == {
        "both words begin with the same token",
        "the evidence does not stand in the text as a word",
    }
    assert sample.evidence is not None
    for item, places in zip(sample.items, sample.evidence, strict=True):
        words = lens.tokenizer.convert_ids_to_tokens(list(item.ids))
        assert {words[k] for k in places} <= {"cat", "red", "tree"} and item.position == len(item.ids) - 1
    part = read_evidence(lens, _evidence(tmp_path), skip=1, limit=2)
    assert part.items == sample.items[1:3]


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda p: p / "nothing.csv", "cannot be read"),
        (lambda p: _evidence(p, [("", "a", "b", "c")]), "has no usable row"),
        (lambda p: _texts(p), "has the columns one_prefix_prefix"),
    ],
)
def test_files_that_are_no_evidence(make: Any, sentence: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=sentence):
        read_evidence(_causal(), make(tmp_path))
    with pytest.raises(InputError, match="is no causal language model"):
        read_evidence(_classifier(), _evidence(tmp_path))


def test_texts_ask_each_head_for_its_own_answer(tmp_path: Path) -> None:
    path = _texts(tmp_path)
    classified = read_texts(_classifier(), path)
    assert {(item.output, item.against) for item in classified.items} <= {(0, 1), (1, 0)}
    assert classified.refused == {"fewer than three tokens": 1}
    assert read_texts(_classifier(), path, longest=5).refused["more than 5 tokens"] >= 1
    assert all(item.position == len(item.ids) - 1 for item in read_texts(_causal(), path).items)
    masked = Lens(headed("bert", torch.float32), tiny.tokenizer("both"))
    for item in read_texts(masked, path).items:
        assert item.ids[item.position or 0] == masked.tokenizer.mask_token_id


@pytest.mark.parametrize("protocol", ["evidence", "agreement", "sanity"])
def test_a_perfect_and_a_constant_method(protocol: str, tmp_path: Path) -> None:
    lens = _causal()
    sample = read_evidence(lens, _evidence(tmp_path))
    known = dict(zip(sample.items, sample.evidence or (), strict=True))

    def perfect(lens: Lens, items: Any) -> Any:
        bare = [Item(item.ids, item.output, item.against, item.position) for item in items]
        return [np.array([float(k in known[i]) for k in range(len(i.ids))]) for i in bare]

    own = [Method("perfect", "perfect", "", "", "", "", perfect), *find_methods(["random", "erasure"])]
    found = faithfulness.study(lens, [sample], methods=own, protocols=[protocol])
    if protocol == "evidence":
        assert found.at("perfect", "evidence").mean == 1.0
    if protocol == "agreement":
        assert found.at("erasure", "agreement_erasure").mean == pytest.approx(1.0)
    if protocol == "sanity":
        assert found.at("perfect", "padding").mean == found.at("random", "double").mean == 0.0
        assert found.at("erasure", "padding").mean < 1e-4 > found.at("erasure", "batch").mean
        assert found.at("random", "randomized").mean == pytest.approx(1.0)  # it never looked at the weights


def test_shuffling_goes_from_the_last_layer_to_the_first_and_leaves_the_model_alone() -> None:
    lens = _causal()
    before = [p.clone() for p in lens.model.parameters()]
    stages = list(shuffled(lens)())
    changed = []
    for stage in stages:
        pairs = zip(layers_of(lens.model), layers_of(stage.model), strict=True)
        changed.append(
            [any(not torch.equal(a, b) for a, b in zip(x.parameters(), y.parameters(), strict=True)) for x, y in pairs]
        )
        for a, b in zip(lens.model.parameters(), stage.model.parameters(), strict=True):
            torch.testing.assert_close(a.flatten().sort().values, b.flatten().sort().values)
    assert changed == [[False, False, True], [False, True, True], [True, True, True]]
    assert all(torch.equal(a, b) for a, b in zip(before, lens.model.parameters(), strict=True))


def test_a_study_goes_on_where_it_stopped_and_explains_itself(tmp_path: Path) -> None:
    lens = _causal()
    sample = read_evidence(lens, _evidence(tmp_path))
    one = faithfulness.study(lens, [sample], methods=CHEAP, folder=tmp_path / "out")
    kept = {path: path.read_bytes() for path in (tmp_path / "out" / "scores").iterdir()}
    assert len(kept) == len(CHEAP)
    broken = next(iter(kept))
    broken.write_bytes(b"half")
    two = faithfulness.study(lens, [sample], methods=CHEAP, folder=tmp_path / "out")
    assert two.to_frame().equals(one.to_frame()) and broken.read_bytes() == kept[broken]
    assert set(one.costs) == set(CHEAP) and set(two.costs) == {broken.name.rsplit("-", 1)[0]}
    assert one.signature == two.signature
    for part in ("model:tiny@", "evidence(3)", "ties:", "removal:delete", "95% of 2000"):
        assert part in one.signature
    json.dumps(one.to_dict())
    report = write_report(one, tmp_path / "out").read_text(encoding="utf-8")
    assert one.signature.split("|")[0] in report and "http://" not in report.replace("http://www.w3.org", "")
    assert any("explain's default" in sentence for sentence in verdict(one))


def test_published_numbers_stand_beside_their_own_model_and_data_alone(tmp_path: Path) -> None:
    lens = _classifier()
    sample = read_texts(lens, _texts(tmp_path))
    found = faithfulness.study(lens, [sample], methods=["decompx"], protocols=["deletion"])
    assert beside(found, "decompx", "aopc_top") == ()
    assert model_of("bert-base-uncased-SST-2") == "bert-base-sst2"
    whole = Sample("dev", (sample.items * 872)[:872])
    record = {**found.record, "model": {"name": "x/bert-base-uncased-SST-2", "class": "BertForSequenceClassification"}}
    theirs = faithfulness.Study(record, found.methods, found.protocols, (whole,), found.numbers)
    assert [known.value for known in beside(theirs, "decompx", "aopc_top")] == [0.627]
    (without_bias,) = beside(theirs, "fixed_zero", "aopc_top")
    assert str(without_bias) == "0.635*" and "without bias" in (without_bias.differs or "")
    assert beside(theirs, "random", "aopc_top") == ()
    assert "published 0.627" in page(theirs, b"")


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"methods": ["nothing"]}, "a method must be one of"),
        ({"methods": ["random", "random"]}, "a method is named twice"),
        ({"protocols": ["nothing"]}, "protocol must be one of evidence, deletion, agreement, sanity"),
        ({"protocols": ["evidence"]}, "names no evidence"),
        ({"how": "burn"}, "removal must be one of"),
    ],
)
def test_wrong_questions_get_a_sentence(given: Any, sentence: str, tmp_path: Path) -> None:
    lens = _classifier()
    sample = read_texts(lens, _texts(tmp_path))
    with pytest.raises(InputError, match=sentence):
        faithfulness.study(lens, [sample], **{"methods": ["random"], "protocols": ["agreement"]} | given)
    with pytest.raises(InputError, match="no file of evidence or of texts"):
        faithfulness.study(lens, [])


def test_an_item_of_one_token_says_nothing_and_stops_nothing() -> None:
    lens = _causal()
    items = tuple(Item(ids=ids, output=3, position=len(ids) - 1) for ids in ((7, 8, 9), (7,)))
    found = faithfulness.study(lens, [Sample("some", items)], methods=["random"], protocols=["deletion"])
    frame = found.to_frame()
    assert set(frame["items"]) == {1}, "the item of one token has no number"


# ---- the shell -------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    lens = _causal()
    lens.model.save_pretrained(folder)  # type: ignore[operator]
    lens.tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture
def shell(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Any:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")

    def run(*arguments: object) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["normlens", *map(str, arguments)])
        with pytest.raises(SystemExit) as stopped:
            main()
        out, err = capsys.readouterr()
        return int(stopped.value.code or 0), out, err

    return run


def test_the_command_prints_a_table_a_verdict_and_a_signature(saved: Path, shell: Any, tmp_path: Path) -> None:
    path = _evidence(tmp_path)
    options = ["--model", saved, "--evidence", path, "--method", "fixed", "--method", "random"]
    code, out, err = shell("faithful", *options)
    assert code == 0, err
    assert "evidence, MRR" in out and "2 refused" not in out.split("\n")[0] and "wrote faithful/report.html" in out
    assert "1 refused: both words begin with the same token" in out
    for name in ("report.html", "results.json", "table.csv", "methods.png", "methods.svg"):
        assert (tmp_path / "faithful" / name).stat().st_size > 100
    code, out, err = shell("faithful", *options, "--json")
    assert code == 0 and json.loads(out)["experiment"] == "faithful"


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ([], "give one of --evidence, --texts and --image"),
        (["--evidence", "e.csv", "--texts", "t.txt"], "give one of --evidence, --texts and --image"),
        (["--evidence", "e.csv", "--method", "x"], "a method must be one of"),
        (["--evidence", "e.csv", "--protocol", "x"], "protocol must be one of"),
        (["--evidence", "e.csv", "--removal", "x"], "is not one of 'delete', 'mask', 'zero'"),
    ],
)
def test_the_command_refuses_before_it_loads(options: list[str], sentence: str, shell: Any) -> None:
    code, _, err = shell("faithful", *options)
    assert code == 2 and sentence in err


def test_the_command_does_not_write_over_what_is_not_its_own(saved: Path, shell: Any, tmp_path: Path) -> None:
    (tmp_path / "faithful").mkdir()
    (tmp_path / "faithful" / "report.html").write_text("mine")
    code, _, err = shell("faithful", "--model", saved, "--evidence", _evidence(tmp_path))
    assert code == 2 and "--overwrite" in err
    assert (tmp_path / "faithful" / "report.html").read_text() == "mine"


def test_methods_are_listed(shell: Any) -> None:
    code, out, _ = shell("methods")
    assert code == 0 and all(name in out for name in METHODS)
    code, out, _ = shell("methods", "--json")
    listed = json.loads(out)
    assert [row["name"] for row in listed] == list(METHODS)
    assert all(row["equation"] and row["cost"] and row["blind"] for row in listed)
