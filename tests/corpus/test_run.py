"""Whole runs: workers do not show, a run that stops goes on, mistakes are one sentence."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from normlens.corpus import batches, run
from normlens.corpus.result import CorpusResult
from normlens.errors import InputError
from normlens.io.writing import atomic_write
from normlens.lens import Lens

from .conftest import RANKS, paragraphs, same, tiny_bert, tiny_roberta, tiny_tokenizer


@pytest.mark.parametrize("options", [{"workers": 2}, {"range_seconds": 1e9}, {"threads": 2}])
def test_workers_and_ranges_do_not_show(lens, reference: CorpusResult, tmp_path: Path, options) -> None:
    source = reference.folder.parent / "corpus.txt"
    other = lens.corpus(source, tmp_path / "out", pairs=True, covariates={"rank": RANKS}, per_token=True, **options)
    same(reference, other)
    pd.testing.assert_frame_equal(reference.tokens, other.tokens, rtol=1e-9)


def test_a_batch_size_shows_in_the_last_digits_only(lens, reference: CorpusResult, tmp_path: Path) -> None:
    source = reference.folder.parent / "corpus.txt"
    other = lens.corpus(source, tmp_path / "out", pairs=True, covariates={"rank": RANKS}, batch_size=1)
    for name in ("alpha", "f_norm", "mixing_attnresln_n"):
        np.testing.assert_allclose(other.grid(name), reference.grid(name), rtol=1e-6)
    assert other.manifest["fingerprint"] != reference.manifest["fingerprint"]


class StoppedError(Exception):
    pass


def test_a_stopped_run_resumes_to_the_same_answer(lens, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(batches, "CHUNK_SIZE", 4)
    source = tmp_path / "corpus.txt"
    source.write_text("\n".join(paragraphs(30, seed=2)))
    options = {"covariates": {"rank": RANKS}, "mask": 0.12, "per_token": True}
    whole = lens.corpus(source, tmp_path / "whole", **options)

    def stop(step) -> None:
        if step.sequences >= 12:
            raise StoppedError

    with pytest.raises(StoppedError):
        lens.corpus(source, tmp_path / "out", range_seconds=0.0, progress=stop, **options)
    assert not (tmp_path / "out" / "manifest.json").exists()
    with pytest.raises(InputError, match="holds an unfinished run"):
        lens.corpus(source, tmp_path / "out", **{**options, "mask": 0.0})
    seen = []
    resumed = lens.corpus(source, tmp_path / "out", progress=seen.append, **options)
    assert seen[0].sequences == 16 and seen[0].fresh == 4  # the first twelve were not run again
    same(resumed, whole)
    pd.testing.assert_frame_equal(resumed.tokens, whole.tokens)
    again = lens.corpus(source, tmp_path / "out", **options)
    assert again.manifest["finished"] == resumed.manifest["finished"]  # a finished run is read, not repeated
    source.write_text("something else .\n" * 3)
    with pytest.raises(InputError, match="holds a finished run"):
        lens.corpus(source, tmp_path / "out", **options)


def _stopped(lens: Lens, source: Path, out: Path, **options) -> None:
    def stop(step) -> None:
        if step.sequences >= 8:
            raise StoppedError

    with pytest.raises(StoppedError):
        lens.corpus(source, out, range_seconds=0.0, progress=stop, **options)


def _is_short(word: str) -> bool:
    return len(word) < 3


def _is_long(word: str) -> bool:
    return len(word) > 4


def test_whatever_decides_a_number_decides_whether_a_run_goes_on(lens, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(batches, "CHUNK_SIZE", 4)
    source, out = tmp_path / "corpus.txt", tmp_path / "out"
    source.write_text("\n".join(paragraphs(16, seed=2)))
    _stopped(lens, source, out, categories={"mine": _is_short})
    others = {
        "another function": (lens, {"mine": _is_long}),
        "another vocabulary": (Lens(tiny_bert(), tiny_tokenizer(upside_down=True), name="tiny"), {"mine": _is_short}),
        "another configuration": (Lens(tiny_bert(), tiny_tokenizer(), name="tiny"), {"mine": _is_short}),
    }
    others["another configuration"][0].model.config.layer_norm_eps = 1e-3
    for what, (other, rules) in others.items():
        with pytest.raises(InputError, match="holds an unfinished run with other"):
            other.corpus(source, out, categories=rules)
            pytest.fail(what)
    moved = source.rename(tmp_path / "moved.txt")
    same_rule = lambda word: len(word) < 3  # noqa: E731  # another object that does the same
    found = lens.corpus(moved, out, categories={"mine": same_rule})
    same(found, lens.corpus(moved, tmp_path / "whole", categories={"mine": _is_short}))


def test_a_full_disk_leaves_the_last_good_shard(lens, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(batches, "CHUNK_SIZE", 4)
    source = tmp_path / "corpus.txt"
    source.write_text("\n".join(paragraphs(20, seed=4)))
    whole = lens.corpus(source, tmp_path / "whole")
    write, saved = run.write_shard, []

    def full(path: Path, *content: object) -> None:
        if len(saved) == 2:
            with atomic_write(path) as stream:
                stream.write(b"half")
                raise OSError(28, "No space left on device")
        write(path, *content)
        saved.append(path)

    monkeypatch.setattr(run, "write_shard", full)
    with pytest.raises(InputError, match="No space left on device"):
        lens.corpus(source, tmp_path / "out", range_seconds=0.0)
    unfinished = tmp_path / "out" / "unfinished"
    assert {path for path in unfinished.iterdir() if path.suffix == ".shard"} == set(saved)
    assert sorted(path.suffix for path in unfinished.iterdir()) == [".arrow", ".json", ".shard", ".shard"]
    monkeypatch.setattr(run, "write_shard", write)
    same(lens.corpus(source, tmp_path / "out"), whole)
    assert not unfinished.exists()


@pytest.mark.parametrize("damage", [b"", b"nonsense", None])
def test_a_damaged_shard_is_counted_again(lens, tmp_path: Path, monkeypatch, damage: bytes | None) -> None:
    monkeypatch.setattr(batches, "CHUNK_SIZE", 4)
    source = tmp_path / "corpus.txt"
    source.write_text("\n".join(paragraphs(20, seed=4)))
    whole = lens.corpus(source, tmp_path / "whole")

    def stop(step) -> None:
        if step.sequences >= 12:
            raise StoppedError

    with pytest.raises(StoppedError):
        lens.corpus(source, tmp_path / "out", range_seconds=0.0, progress=stop)
    shard = sorted((tmp_path / "out" / "unfinished").glob("*.shard"))[1]
    content = bytearray(shard.read_bytes())
    content[len(content) // 2] ^= 1
    shard.write_bytes(content if damage is None else damage)
    same(lens.corpus(source, tmp_path / "out"), whole)


def test_bad_records_stop_or_are_counted_with_their_place(lens, tmp_path: Path) -> None:
    source = tmp_path / "corpus.jsonl"
    good = [json.dumps({"text": text}) for text in paragraphs(4)]
    source.write_bytes("\n".join([good[0], "{broken", good[1], '{"text": 3}', good[2]]).encode() + b"\n\xff\xfe\n")
    with pytest.raises(InputError, match=r"corpus\.jsonl:2 is unreadable: not JSON"):
        lens.corpus(source, tmp_path / "stop")
    found = lens.corpus(source, tmp_path / "skip", on_error="skip")
    counts = found.manifest["counts"]
    assert counts["sequences"] == 3 and counts["unreadable"] == 3
    assert [Path(flaw["place"]).name for flaw in counts["listed"]] == [f"corpus.jsonl:{n}" for n in (2, 4, 6)]


def test_masking_makes_a_category_of_its_own(lens, text_file: Path, tmp_path: Path) -> None:
    found = lens.corpus(text_file, tmp_path / "out", mask=0.12, seed=5)
    categories = found.categories.set_index("category")
    assert categories.loc["mask", "tokens"] == found.manifest["counts"]["sequences"]  # short texts: one each
    assert not found.grid("mixing_attnresln_n", "mask").empty


def test_a_roberta_is_given_what_it_takes(tmp_path: Path) -> None:
    source = tmp_path / "corpus.txt"
    source.write_text("\n".join(["the river was old and " * 10, *paragraphs(4)]))
    roberta = Lens(tiny_roberta(20), tiny_tokenizer(), name="tiny-roberta")
    found = roberta.corpus(source, tmp_path / "out", per_token=True)
    assert found.manifest["corpus"]["max_length"] == 18  # 20 positions less the padding id and those before it
    assert found.tokens["position"].max() == 17
    with pytest.raises(InputError, match="max_length is 20, the model takes 18"):
        roberta.corpus(source, tmp_path / "other", max_length=20)


def test_mistakes_are_one_sentence(lens, text_file: Path, tmp_path: Path) -> None:
    def run(**options):
        return lens.corpus(options.pop("source", text_file), tmp_path / "out", **options)

    for options, message in (
        ({"source": tmp_path / "none.txt"}, "no .*none.txt"),
        ({"measures": ["beta"]}, "must be one of"),
        ({"correlate": [("alpha", "mixing_attn_w")]}, "no positions in common"),
        ({"max_length": 1000}, "max_length is 1000, the model takes 64"),
        ({"mask": 1.5}, "mask must be at least 0"),
        ({"engine": "spark"}, "local, pool or ray"),
        ({"workers": 0}, "workers must be from 1"),
        ({"batch_size": 0}, "batch_size must be at least 1"),
        ({"on_error": "ignore"}, "stop or skip"),
        ({"skip": "("}, "regular expression"),
        ({"categories": {"odd": "("}}, "NAME=REGEX"),
        ({"covariates": {"rank": np.zeros(3)}}, "the vocabulary has 20 tokens"),
        ({"address": "auto"}, "belong to a Ray cluster"),
    ):
        shutil.rmtree(tmp_path / "out", ignore_errors=True)
        with pytest.raises(InputError, match=message):
            run(**options)
