from __future__ import annotations

import json

import pytest

from normlens.alignment.labels import read_conll, read_labelled_json, write_conll, write_labelled_json
from normlens.alignment.marked_text import MarkedText
from normlens.alignment.projection import project_marks
from normlens.errors import InputError
from normlens.inputs.words import spaced_spans, word_spans

COLUMNS = """# sent 1
Anna NNP B-PER
Smith NNP I-PER
lives VB O
in IN O
New NNP B-LOC
York NNP I-LOC

Bob\tI-PER
Berlin\tB-LOC
Paris\tB-LOC
"""


def test_columns_become_spans_and_columns_again() -> None:
    first, second = read_conll(COLUMNS.splitlines())
    assert first.text == "Anna Smith lives in New York"
    assert [(first.text[m.start : m.end], m.name) for m in first.marks] == [("Anna Smith", "PER"), ("New York", "LOC")]
    assert [(second.text[m.start : m.end], m.name) for m in second.marks] == [
        ("Bob", "PER"), ("Berlin", "LOC"), ("Paris", "LOC"),
    ]  # fmt: skip
    target = "à New York vit Anna Smith"
    links = {(0, 4): 1.0, (1, 5): 1.0, (2, 3): 1.0, (3, 0): 1.0, (4, 1): 1.0, (5, 2): 1.0}
    found = project_marks(first, spaced_spans(first.text), target, spaced_spans(target), links)
    tags = [line.split("\t")[1] for line in write_conll(found, spaced_spans(target)).splitlines()]
    assert tags == ["O", "B-LOC", "I-LOC", "O", "B-PER", "I-PER"]
    for text in ("Anna", "Anna PER", "Anna X-PER"):
        with pytest.raises(InputError, match=r"word and a tag|has the tag"):
            list(read_conll([text]))


def test_json_spans_come_back_with_scores() -> None:
    record = {"text": "Anna sings", "spans": [{"start": 0, "end": 4, "label": "PER", "id": 7}], "target": "Elle chante"}
    marked, target = read_labelled_json(json.dumps(record))
    assert isinstance(marked, MarkedText) and target == "Elle chante"
    found = project_marks(marked, word_spans(marked.text), target, word_spans(target), {(0, 0): 0.8, (1, 1): 0.9})
    written = json.loads(write_labelled_json(found, marked.text))
    assert written["spans"] == [
        {"label": "PER", "id": 7, "start": 0, "end": 4, "score": 1.0, "source_start": 0, "source_end": 4}
    ]
    lost = project_marks(marked, word_spans(marked.text), target, word_spans(target), {(1, 1): 0.9})
    written = json.loads(write_labelled_json(lost, marked.text))
    assert written["spans"] == [] and written["unplaced"][0]["label"] == "PER"


def test_nesting_by_extent_and_crossing_spans_apart() -> None:
    spans = [{"start": 4, "end": 8, "label": "b"}, {"start": 0, "end": 8, "label": "a"}]
    marked, _ = read_labelled_json(json.dumps({"text": "one two three", "spans": spans}))
    assert isinstance(marked, MarkedText) and [m.parent for m in marked.marks] == [None, 0]
    spans.append({"start": 2, "end": 6, "label": "c"})
    texts, _ = read_labelled_json(json.dumps({"text": "one two three", "spans": spans}))
    assert isinstance(texts, list) and [text.marks[0].name for text in texts] == ["b", "a", "c"]


@pytest.mark.parametrize(
    "line",
    [
        "x", "[]", "{}", '{"text": 1}', '{"text": "ab", "spans": 1}', '{"text": "ab", "spans": [1]}',
        '{"text": "ab", "spans": [{"start": 0, "end": 9}]}', '{"text": "ab", "spans": [{"start": true, "end": 1}]}',
        '{"text": "ab", "target": 1}',
    ],
)  # fmt: skip
def test_what_is_no_labelled_text_is_refused(line: str) -> None:
    with pytest.raises(InputError):
        read_labelled_json(line)
