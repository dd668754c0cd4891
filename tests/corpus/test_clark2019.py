"""The data of Clark et al. 2019: a pickle that is converted without executing anything in it."""

from __future__ import annotations

import json
import os
import pickle
from pathlib import Path

import numpy as np
import pytest
from examples.convert_clark2019 import convert

from normlens.corpus.run import all_sequences
from normlens.errors import InputError
from normlens.lens import Lens

TOKENS = ["[CLS]", "the", "river", "[SEP]", "a", "stone", "[SEP]"]


def test_tokens_are_taken_as_they_are(lens: Lens, tmp_path: Path) -> None:
    source, target = tmp_path / "unlabeled_attn.pkl", tmp_path / "clark2019.jsonl"
    source.write_bytes(pickle.dumps([{"tokens": TOKENS, "attns": np.zeros((2, 3), dtype=np.float16)}] * 3, 2))
    assert convert(source, target) == 3
    sequences = list(all_sequences(lens, target, pairs=True))
    assert len(sequences) == 3, "they are pairs already"
    assert lens.tokenizer.convert_ids_to_tokens(sequences[0].ids) == TOKENS
    assert sequences[0].segments.tolist() == [0, 0, 0, 0, 1, 1, 1]
    assert lens.corpus(target, tmp_path / "out").manifest["counts"]["tokens"] == 21


class Harmful:
    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.mkdir, (str(self.path),)


def test_nothing_in_the_file_is_called(tmp_path: Path) -> None:
    source = tmp_path / "unlabeled_attn.pkl"
    source.write_bytes(pickle.dumps([{"tokens": TOKENS, "attns": Harmful(tmp_path / "harm")}]))
    assert convert(source, tmp_path / "out.jsonl") == 1
    assert not (tmp_path / "harm").exists()
    assert json.loads((tmp_path / "out.jsonl").read_text()) == {"model_tokens": TOKENS}
    source.write_bytes(pickle.dumps({"tokens": TOKENS}))
    with pytest.raises(SystemExit, match="not the file of Clark"):
        convert(source, tmp_path / "out.jsonl")


def test_a_pickle_is_not_a_source(lens: Lens, tmp_path: Path) -> None:
    (tmp_path / "corpus.pkl").write_bytes(pickle.dumps([]))
    with pytest.raises(InputError, match="is a pickle, which could execute code"):
        lens.corpus(tmp_path / "corpus.pkl", tmp_path / "out")
