"""Whole runs: batch size and workers do not show, a run that stops goes on, mistakes are one sentence."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from normlens.corpus.counting.plan import Plan
from normlens.corpus.reading.corpus import Corpus
from normlens.corpus.running import run as running
from normlens.corpus.running import shards
from normlens.corpus.running.result import CorpusResult
from normlens.errors import InputError
from normlens.io.writing import atomic_write
from normlens.lens import Lens

from ..conftest import RANKS, paragraphs, same, tiny_roberta, tiny_tokenizer


@pytest.mark.parametrize("options", [{"batch_size": 1}, {"batch_size": 64}, {"workers": 2}])
def test_batch_size_and_workers_do_not_show(lens, reference: CorpusResult, tmp_path: Path, options) -> None:
    source = reference.folder.parent / "corpus.txt"
    other = lens.corpus(source, tmp_path / "out", pairs=True, covariates={"rank": RANKS}, per_token=True, **options)
    same(reference, other)
    pd.testing.assert_frame_equal(reference.tokens, other.tokens, rtol=1e-9)


class StoppedError(Exception):
    pass


def test_a_stopped_run_resumes_to_the_same_answer(lens, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(running, "CHUNK_SIZE", 4)
    source = tmp_path / "corpus.txt"
    source.write_text("\n".join(paragraphs(30, seed=2)))
    options = {"covariates": {"rank": RANKS}, "mask": 0.12, "per_token": True}
    whole = lens.corpus(source, tmp_path / "whole", **options)

    def stop(step) -> None:
        if step.sequences >= 12:
            raise StoppedError

    with pytest.raises(StoppedError):
        lens.corpus(source, tmp_path / "out", save_every=0.0, progress=stop, **options)
    assert not (tmp_path / "out" / "manifest.json").exists()
    with pytest.raises(InputError, match="holds an unfinished one"):
        lens.corpus(source, tmp_path / "out", **{**options, "mask": 0.0})
    seen = []
    resumed = lens.corpus(source, tmp_path / "out", progress=seen.append, **options)
    assert seen[0].sequences == 16 and seen[0].fresh == 4  # the first twelve were not run again
    same(resumed, whole)
    pd.testing.assert_frame_equal(resumed.tokens, whole.tokens)
    again = lens.corpus(source, tmp_path / "out", **options)
    assert again.manifest["finished"] == resumed.manifest["finished"]  # a finished run is read, not repeated
    source.write_text("something else .\n" * 3)
    with pytest.raises(InputError, match="holds a finished one"):
        lens.corpus(source, tmp_path / "out", **options)


def test_a_full_disk_leaves_the_last_good_shard(lens, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(running, "CHUNK_SIZE", 4)
    source = tmp_path / "corpus.txt"
    source.write_text("\n".join(paragraphs(20, seed=4)))
    whole = lens.corpus(source, tmp_path / "whole")
    write, saved = shards.write_bytes, []

    def full(path: Path, content: bytes) -> None:
        if len(saved) == 2:
            with atomic_write(path) as stream:
                stream.write(content[: len(content) // 2])
                raise OSError(28, "No space left on device")
        saved.append(content)
        write(path, content)

    monkeypatch.setattr(shards, "write_bytes", full)
    with pytest.raises(InputError, match="No space left on device"):
        lens.corpus(source, tmp_path / "out", save_every=0.0)
    unfinished = tmp_path / "out" / "unfinished"
    assert (unfinished / "000000000000-000000000008.shard").read_bytes() == saved[-1]
    assert sorted(path.suffix for path in unfinished.iterdir()) == [".json", ".shard"]
    monkeypatch.setattr(shards, "write_bytes", write)
    same(lens.corpus(source, tmp_path / "out"), whole)
    assert not unfinished.exists()


def test_bad_records_stop_or_are_counted_with_their_place(lens, tmp_path: Path) -> None:
    source = tmp_path / "corpus.jsonl"
    good = [json.dumps({"text": text}) for text in paragraphs(4)]
    source.write_bytes("\n".join([good[0], "{broken", good[1], '{"text": 3}', good[2]]).encode() + b"\n\xff\xfe\n")
    with pytest.raises(InputError, match=r"corpus\.jsonl:2: not JSON"):
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


def test_the_three_objects_say_the_same_as_the_keywords(lens, reference: CorpusResult, tmp_path: Path) -> None:
    source = reference.folder.parent / "corpus.txt"
    reader = running.open_reader(lens, Corpus((source,), pairs=True))
    plan = Plan.of(reader.categories.names, covariates=reader.covariates({"rank": RANKS}), per_token=True)
    with running.claimed_folder(tmp_path / "out", [source], overwrite=False) as folder:
        found = running.run_corpus(lens, reader, plan, folder, running.RunOptions(batch_size=3))
    same(reference, found)
    assert found.manifest["fingerprint"] == reference.manifest["fingerprint"]


def test_a_roberta_is_given_what_it_takes(tmp_path: Path) -> None:
    source = tmp_path / "corpus.txt"
    source.write_text("\n".join(["the river was old and " * 10, *paragraphs(4)]))
    roberta = Lens(tiny_roberta(20), tiny_tokenizer(), name="tiny-roberta")
    found = roberta.corpus(source, tmp_path / "out", per_token=True)
    assert found.manifest["corpus"]["max_length"] == 18  # 20 positions less the padding id and those before it
    assert found.tokens["position"].max() == 17
    with pytest.raises(InputError, match="20 is more than 18"):
        roberta.corpus(source, tmp_path / "other", max_length=20)


def test_mistakes_are_one_sentence(lens, text_file: Path, tmp_path: Path) -> None:
    def run(**options):
        return lens.corpus(options.pop("source", text_file), tmp_path / "out", **options)

    for options, message in (
        ({"source": tmp_path / "none.txt"}, "no .*none.txt"),
        ({"measures": ["beta"]}, "must be one of"),
        ({"correlate": [("alpha", "mixing_attn_w")]}, "share none"),
        ({"max_length": 1000}, "more than 64"),
        ({"mask": 1.5}, "masked share"),
        ({"engine": "spark"}, "local or ray"),
        ({"workers": 0}, "at least one worker"),
        ({"batch_size": 0}, "at least one sequence"),
        ({"on_error": "ignore"}, "stop or skip"),
        ({"skip": "("}, "regular expression"),
        ({"categories": {"odd": "("}}, "regular expression"),
        ({"covariates": {"rank": np.zeros(3)}}, "one number per token id"),
        ({"address": "auto"}, "belongs to a Ray cluster"),
    ):
        shutil.rmtree(tmp_path / "out", ignore_errors=True)
        with pytest.raises(InputError, match=message):
            run(**options)
