"""Readers, sequences and categories."""

from __future__ import annotations

import gzip
import io
import json
import lzma
import os
import pickle
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from normlens.corpus.batches import batched
from normlens.corpus.categories import Categories
from normlens.corpus.clark import load_plain_pickle
from normlens.corpus.frequency import count_ranks, read_ranks
from normlens.corpus.run import Corpus, Log, spool, tags_of
from normlens.corpus.sequences import Recipe, build
from normlens.corpus.sources import Columns, Flaw, Record, format_of, read
from normlens.errors import InputError

from .conftest import tiny_tokenizer

TEXTS = ["the river runs", "a stone bridge , built", "old town ."]


def texts(path: Path, columns: Columns | None = None, given: str | None = None) -> list[str]:
    return [record.text for record in read(path, columns or Columns(), given) if isinstance(record, Record)]


def write(path: Path, content: bytes) -> Path:
    match path.suffix:
        case ".gz":
            path.write_bytes(gzip.compress(content))
        case ".xz":
            path.write_bytes(lzma.compress(content))
        case ".zst":
            path.write_bytes(pa.compress(content, codec="zstd", asbytes=True))
        case _:
            path.write_bytes(content)
    return path


@pytest.mark.parametrize("suffix", ["", ".gz", ".xz", ".zst"])
def test_every_text_format_plain_and_compressed(tmp_path: Path, suffix: str) -> None:
    plain = "\n\n".join(TEXTS).encode()
    lines = "\n".join(json.dumps({"text": text, "n": 1}) for text in TEXTS).encode()
    table = ("id,text\r\n" + "\r\n".join(f'{n},"{text}"' for n, text in enumerate(TEXTS)) + "\r\n").encode()
    tabs = "\n".join(f"{text}\t1" for text in TEXTS).encode()
    assert texts(write(tmp_path / f"a.txt{suffix}", plain)) == TEXTS
    assert texts(write(tmp_path / f"a.jsonl{suffix}", lines)) == TEXTS
    assert texts(write(tmp_path / f"a.csv{suffix}", table)) == TEXTS
    assert texts(write(tmp_path / f"a.tsv{suffix}", tabs), Columns(text="0")) == TEXTS
    assert texts(write(tmp_path / f"b{suffix}", lines), given="jsonl") == TEXTS


def test_parquet_and_datasets(tmp_path: Path) -> None:
    pq.write_table(pa.table({"sentence": TEXTS, "label": [0, 1, 0]}), tmp_path / "a.parquet")
    assert texts(tmp_path / "a.parquet") == TEXTS
    datasets = pytest.importorskip("datasets")
    datasets.Dataset.from_dict({"text": TEXTS}).save_to_disk(tmp_path / "set")
    assert texts(tmp_path / "set") == TEXTS
    split = datasets.DatasetDict({"train": datasets.Dataset.from_dict({"text": TEXTS})})
    split.save_to_disk(tmp_path / "splits")
    assert next(record.place for record in read(tmp_path / "splits", Columns())).endswith("splits/train:1")
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match="save_to_disk"):
        texts(tmp_path / "empty")


def test_flaws_have_places(tmp_path: Path) -> None:
    def flaws(path: Path, columns: Columns | None = None) -> list[str]:
        found = [item for item in read(path, columns or Columns()) if isinstance(item, Flaw)]
        return [f"{Path(flaw.place).name} {flaw.reason}" for flaw in found]

    assert flaws(write(tmp_path / "a.txt", b"good\n\xff\xfe\nfine\n")) == ["a.txt:2 not UTF-8 at byte 0 of the line"]
    broken = write(tmp_path / "b.txt.gz", b"".join(os.urandom(40).hex().encode() + b"\n" for _ in range(3000)))
    broken.write_bytes(broken.read_bytes()[:-2000])
    assert len(flaws(broken)) == 1 and "breaks off" in flaws(broken)[0]
    assert "not a JSON object" in flaws(write(tmp_path / "c.jsonl", b'[1]\n{"text": "ok"}\n'))[0]
    assert flaws(write(tmp_path / "d.csv", b"text,n\nfine,1\nshort\n")) == ["d.csv:3 1 columns where the table has 2"]
    assert "not a Parquet file" in flaws(write(tmp_path / "e.parquet", b"PAR1 nonsense"))[0]
    with pytest.raises(InputError, match="text column"):
        texts(write(tmp_path / "f.csv", b"body,n\nfine,1\n"))
    with pytest.raises(InputError, match="'nope'"):
        texts(write(tmp_path / "g.jsonl", b'{"text": "ok"}\n'), Columns(text="nope"))


def test_format_by_name() -> None:
    assert format_of(Path("a.jsonl.zst")) == "jsonl" and format_of(Path("a.tsv")) == "tsv"
    assert format_of(Path("README")) == "text"
    with pytest.raises(InputError, match="one of text, jsonl"):
        format_of(Path("a.txt"), "word")


def test_standard_input_is_kept(tmp_path: Path) -> None:
    path = spool(tmp_path / "stdin.txt", io.BytesIO("\n".join(TEXTS).encode()))
    assert texts(path) == TEXTS


# ---- the pickle of Clark et al. ----------------------------------------------------------------------------------


@pytest.mark.parametrize("protocol", [0, 1, 2, 3, 4, 5])
def test_plain_pickles_load(tmp_path: Path, protocol: int) -> None:
    data = [
        {"tokens": ["[CLS]", "the", "[SEP]", "river", "[SEP]"], "attns": np.arange(6, dtype=np.float16).reshape(2, 3)},
        {"tokens": ["[CLS]", "a", "[SEP]"], "n": np.float32(2.5), "k": 7},
    ]
    content = pickle.dumps(data, protocol=protocol)
    loaded = load_plain_pickle(io.BytesIO(content), "test")
    assert loaded[0]["tokens"] == data[0]["tokens"]
    np.testing.assert_array_equal(loaded[0]["attns"], data[0]["attns"])
    assert loaded[1]["n"] == 2.5 and loaded[1]["k"] == 7
    path = tmp_path / "unlabeled_attn.pkl"
    path.write_bytes(content)
    tokenizer = tiny_tokenizer()
    items = list(build(read(path, Columns()), tokenizer, Categories.of(tokenizer), Recipe(pairs=True)))
    assert tokenizer.convert_ids_to_tokens(items[0].ids.tolist()) == data[0]["tokens"]
    assert items[0].types.tolist() == [0, 0, 0, 1, 1]


class _Evil:
    def __init__(self, *call: object) -> None:
        self.call = call

    def __reduce__(self):
        return self.call[0], self.call[1:]


def _object_array() -> np.ndarray:
    return np.array([{"a": 1}], dtype=object)


@pytest.mark.parametrize(
    "content",
    [
        _Evil(os.system, "touch owned"),
        _Evil(eval, "1 + 1"),
        _Evil(getattr, "x", "upper"),
        _Evil(np.load, "x.npy"),
        {"tokens": [_Evil(print, "owned")]},
        _object_array(),
        np.zeros(2, dtype=[("a", np.int8), ("b", np.float32)]),
        Path("x"),
    ],
)
def test_hostile_pickles_are_refused_and_not_run(tmp_path: Path, monkeypatch, content) -> None:
    monkeypatch.chdir(tmp_path)
    for protocol in (0, 2, 5):
        with pytest.raises(InputError, match="plain data and numpy arrays"):
            load_plain_pickle(io.BytesIO(pickle.dumps([content], protocol=protocol)), "test")
    assert not (tmp_path / "owned").exists()
    for garbage in (b"", b"\x80\x05garbage", pickle.dumps([1, 2])[:-1]):
        with pytest.raises(InputError):
            load_plain_pickle(io.BytesIO(garbage), "test")


# ---- sequences ---------------------------------------------------------------------------------------------------


def _build(records, **options):
    tokenizer = tiny_tokenizer()
    return tokenizer, list(build(records, tokenizer, Categories.of(tokenizer), Recipe(**options)))


def test_pairs_are_consecutive_and_a_leftover_is_counted() -> None:
    records = [Record(f"f:{n}", text) for n, text in enumerate([*TEXTS * 30, "water"])]  # more than one chunk
    tokenizer, made = _build(records, pairs=True)
    items = [item for item in made if not isinstance(item, Flaw)]
    assert [item.index for item in items] == list(range(45))
    assert tokenizer.decode(items[1].ids) == "[CLS] old town . [SEP] the river [UNK] [SEP]"
    assert made[-1] == Flaw("f:90", "the last paragraph of its source has no partner", harmless=True)
    _, cut = _build(records, pairs=True, max_length=6)
    assert {item.length for item in cut if not isinstance(item, Flaw)} == {6}


def test_masking_follows_the_rule_and_the_content() -> None:
    words = ["the", "river", "stone", "bridge", "was", "built", "by", "old", "town", "and", "of", "water"]
    records = [Record(str(n), " ".join(words[:n] * 3)) for n in range(1, 12)]
    tokenizer, plain = _build(records)
    _, made = _build(records, mask=0.12, seed=1)
    for before, after in zip(plain, made, strict=True):
        masked = after.ids == tokenizer.mask_token_id
        count = before.length - 2
        assert masked.sum() == max(1, int(0.12 * count))
        assert not masked[[0, -1]].any()
        np.testing.assert_array_equal(after.ids[~masked], before.ids[~masked])
        assert (after.category[masked] == 2).all()
    _, reversed_ = _build(records[::-1], mask=0.12, seed=1)
    for first, second in zip(made, reversed_[::-1], strict=True):
        np.testing.assert_array_equal(first.ids, second.ids)
    _, other = _build(records, mask=0.12, seed=2)
    assert any((a.ids != b.ids).any() for a, b in zip(made, other, strict=True))


def test_batches_hold_one_length_and_everything() -> None:
    _, made = _build([Record(str(n), " ".join(["water"] * (1 + n % 4))) for n in range(20)])
    batches = list(batched(made, 3))
    assert all(len({item.length for item in batch.items}) == 1 and len(batch.items) <= 3 for batch in batches)
    assert sorted(item.index for batch in batches for item in batch.items) == list(range(20))
    assert [batch.items[0].length for batch in batches] == sorted(batch.items[0].length for batch in batches)


# ---- categories --------------------------------------------------------------------------------------------------


def test_the_papers_categories() -> None:
    tokenizer, (item,) = _build([Record("x", "the river , [MASK] .", "a [UNK]")])
    names = Categories.of(tokenizer).names
    assert [names[code] for code in item.category] == (
        ["cls", "other", "other", "comma_period", "mask", "comma_period", "sep", "other", "other", "sep"]
    )


def test_rules_functions_and_tags(tmp_path: Path) -> None:
    tokenizer = tiny_tokenizer()
    kinds = Categories.of(tokenizer, {"article": "the|a", "long": lambda word: len(word) > 4})
    assert kinds.names == ("cls", "sep", "mask", "special", "article", "long", "other")
    ids = tokenizer("the river stone , a")["input_ids"]
    found = [kinds.names[code] for code in kinds.codes(ids, tokenizer.convert_ids_to_tokens(ids))]
    assert found == ["cls", "article", "long", "long", "other", "article", "sep"]
    path = tmp_path / "tagged.jsonl"
    rows = [{"words": ["the", "river", "."], "pos": ["DET", "NOUN", "PUNCT"]}, {"words": ["old"], "pos": ["ADJ", "X"]}]
    path.write_text("\n".join(map(json.dumps, rows)))
    corpus = Corpus((path,), columns=Columns("words", tags="pos"), on_error="skip")
    tagged = Categories.of(tokenizer, tags=tags_of(corpus))
    log = Log()
    (item,) = corpus.items(tokenizer, tagged, log)
    assert [tagged.names[code] for code in item.category] == ["cls", "DET", "NOUN", "PUNCT", "sep"]
    assert log.flaws == 1 and "tags need one word each" in log.listed[0]["reason"]
    with pytest.raises(InputError, match="must differ"):
        Categories.of(tokenizer, {"cls": "x"})


def test_frequency_ranks(tmp_path: Path) -> None:
    path = tmp_path / "ranks.txt"
    path.write_text("1 90 5\n2 50 7\n2 50 6\n")
    assert read_ranks(path, 9).tolist() == [3, 3, 3, 3, 3, 1, 2, 2, 3]
    path.write_text("1 90 500\n")
    with pytest.raises(InputError, match="vocabulary has 9"):
        read_ranks(path, 9)
    tokenizer, made = _build([Record("x", "water water the")])
    ranks = count_ranks(made, len(tokenizer))
    water, the = tokenizer.convert_tokens_to_ids(["water", "the"])
    assert ranks[water] == 1 and ranks[the] in (2, 3, 4) and ranks[tokenizer.mask_token_id] == 5
