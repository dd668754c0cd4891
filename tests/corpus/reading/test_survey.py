"""However a corpus is cut: the same records, pairs, places, checksums."""

from __future__ import annotations

import gzip
import hashlib
import json
from pathlib import Path

import pandas as pd
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from normlens.corpus.reading import survey
from normlens.corpus.reading.corpus import Corpus
from normlens.corpus.reading.reader import CorpusReader
from normlens.corpus.reading.records import Columns, Record, UnusedRecord, read
from normlens.corpus.reading.survey import survey_of
from normlens.errors import InputError

from ..conftest import paragraphs, tiny_tokenizer

LINES = st.lists(
    st.sampled_from([b"", b"the river", b" ", b"a", b"\xff", b"old town and water", b"skip me"]), max_size=12
)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    files=st.lists(st.tuples(LINES, st.sampled_from([b"\n", b"\r\n"]), st.booleans()), min_size=1, max_size=3),
    piece=st.integers(1, 40),
    pairs=st.booleans(),
    start=st.integers(0, 8),
)
def test_cutting_changes_nothing(tmp_path: Path, monkeypatch, files, piece: int, pairs: bool, start: int) -> None:
    monkeypatch.setattr(survey, "PIECE_BYTES", piece)
    paths = []
    for number, (lines, end, last) in enumerate(files):
        paths.append(tmp_path / f"{number}.txt")
        paths[-1].write_bytes(end.join(lines) + (end if last else b""))
    corpus = Corpus(tuple(paths), pairs=pairs, on_error="skip", skip="skip", limit=None)
    found = survey_of(corpus)
    every = [[r for r in read(path, Columns()) if not (isinstance(r, Record) and "skip" in r.text)] for path in paths]
    texts = [[r for r in records if isinstance(r, Record)] for records in every]
    assert sum(count.records for count in found.counts) == sum(map(len, texts))
    pair_up = [list(zip(t[::2], t[1::2], strict=False)) if pairs else [(r, None) for r in t] for t in texts]
    expected = [one for source in pair_up for one in source]
    assert found.sequences == len(expected)
    log, bad = found.log(), [r for records in every for r in records if isinstance(r, UnusedRecord)]
    assert log.errors == len(bad) and log.harmless == (sum(len(t) % 2 for t in texts) if pairs else 0)
    assert [flaw["place"] for flaw in log.listed[: len(bad)]] == [r.place for r in bad]
    reader = CorpusReader(corpus, tiny_tokenizer())
    start = min(start, len(expected))
    made = [s for chunk in reader.chunks(start, len(expected), 3) for s in chunk.sequences]
    assert [s.index for s in made] == list(range(start, len(expected)))
    assert [s.place for s in made] == [first.place for first, _ in expected[start:]]
    for sequence, (first, second) in zip(made, expected[start:], strict=True):
        encoded = reader.tokenizer(first.text, None if second is None else second.text)
        assert sequence.ids.tolist() == encoded["input_ids"]
    for entry, path in zip(found.identity(), paths, strict=True):
        content = path.read_bytes()
        assert entry["bytes"] == len(content)
        if "sha256" in entry:
            assert entry["sha256"] == hashlib.sha256(content).hexdigest()


def _write(path: Path, texts: list[str]) -> Path:
    rows = pd.DataFrame({"text": texts})
    match path.suffixes:
        case [".parquet"]:
            rows.to_parquet(path, row_group_size=3)
        case [".jsonl"]:
            path.write_text("\n".join(json.dumps({"text": text}) for text in texts))
        case [".csv"]:
            rows.to_csv(path, index=False)
        case [".txt", ".gz"]:
            path.write_bytes(gzip.compress("\n".join(texts).encode()))
        case []:
            import datasets

            datasets.Dataset.from_pandas(rows).save_to_disk(path)
    return path


@pytest.mark.parametrize("name", ["c.parquet", "c.jsonl", "c.csv", "c.txt.gz", "dataset"])
def test_every_format_is_read_from_any_sequence_on(tmp_path: Path, monkeypatch, name: str) -> None:
    monkeypatch.setattr(survey, "PIECE_BYTES", 50)
    monkeypatch.setattr(survey, "_PIECE_ROWS", 4)
    path = _write(tmp_path / name, paragraphs(11))
    reader = CorpusReader(Corpus((path,), pairs=True), tiny_tokenizer())
    assert reader.survey.sequences == 5
    assert len(reader.survey.pieces) == (1 if name in ("c.csv", "c.txt.gz") else len(reader.survey.pieces))
    whole = [(s.index, s.place, s.ids.tolist()) for s in reader.sequences()]
    for start in range(5):
        part = [s for chunk in reader.chunks(start, 5, 2) for s in chunk.sequences]
        assert [(s.index, s.place, s.ids.tolist()) for s in part] == whole[start:]
    if name == "c.parquet":
        assert len(reader.survey.pieces) == 4
        assert sum(count.size for count in reader.survey.counts) == path.stat().st_size


def test_a_corpus_that_changes_while_it_is_counted_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "corpus.txt"
    path.write_text("the river\nold town\n")
    reader = CorpusReader(Corpus((path,)), tiny_tokenizer())
    assert reader.survey.sequences == 2
    path.write_text("the river\nnew town\n")
    with pytest.raises(InputError, match="must not change while it is counted"):
        list(reader.sequences())
    path.write_text("the river\n")
    with pytest.raises(InputError, match="must not change while it is counted"):
        list(reader.sequences())


def test_a_bad_record_is_named_by_its_line_in_whatever_piece(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(survey, "PIECE_BYTES", 16)
    path = tmp_path / "corpus.jsonl"
    path.write_text('{"text": "the river"}\n' * 5 + "{broken\n" + '{"text": "the river"}\n')
    with pytest.raises(InputError, match=r"corpus\.jsonl:6: not JSON"):
        survey_of(Corpus((path,)))


def test_functions_as_rules_travel_as_what_they_say(tmp_path: Path) -> None:
    import pickle

    path = tmp_path / "corpus.txt"
    path.write_text("the river\n")
    rules = {"long": lambda token: len(token) > 3}
    reader = CorpusReader(Corpus((path,), categories=rules), tiny_tokenizer())
    other = pickle.loads(pickle.dumps(reader.portable()))
    for one, same in zip(reader.sequences(), other.sequences(), strict=True):
        assert one.category.tolist() == same.category.tolist()
