"""The pickle of Clark et al. 2019, and pickles that mean harm."""

from __future__ import annotations

import io
import os
import pickle
from pathlib import Path

import numpy as np
import pytest

from normlens.corpus.reading.plain_pickle import load_plain_pickle
from normlens.corpus.reading.records import Columns, read
from normlens.corpus.reading.sequences import SequenceBuilder
from normlens.corpus.reading.token_attributes import Categories
from normlens.errors import InputError

from ..conftest import tiny_tokenizer


@pytest.mark.parametrize("protocol", [0, 1, 2, 3, 4, 5])
def test_plain_pickles_load(tmp_path: Path, protocol: int) -> None:
    data = [
        {"tokens": ["[CLS]", "the", "[SEP]", "river", "[SEP]"], "attns": np.arange(6, dtype=np.float16).reshape(2, 3)},
        {"tokens": ["[CLS]", "a", "[SEP]"], "n": np.float32(2.5), "k": 7},
    ]
    content = pickle.dumps(data, protocol=protocol)
    loaded = load_plain_pickle(lambda: io.BytesIO(content), "test")
    assert loaded[0]["tokens"] == data[0]["tokens"]
    np.testing.assert_array_equal(loaded[0]["attns"], data[0]["attns"])
    assert loaded[1]["n"] == 2.5 and loaded[1]["k"] == 7
    path = tmp_path / "unlabeled_attn.pkl"
    path.write_bytes(content)
    tokenizer = tiny_tokenizer()
    sequences = list(SequenceBuilder(tokenizer, Categories.of(tokenizer), pairs=True).build(read(path, Columns())))
    assert tokenizer.convert_ids_to_tokens(sequences[0].ids.tolist()) == data[0]["tokens"]
    assert sequences[0].segments.tolist() == [0, 0, 0, 1, 1]


def load(content: bytes) -> object:
    return load_plain_pickle(lambda: io.BytesIO(content), "test")


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
            load(pickle.dumps([content], protocol=protocol))
    assert not (tmp_path / "owned").exists()
    for garbage in (b"", b"\x80\x05garbage", pickle.dumps([1, 2])[:-1]):
        with pytest.raises(InputError):
            load(garbage)


def _numpy(name: str, *arguments: object) -> bytes:
    """A pickle that calls something of numpy's with arguments of its own choice."""
    module, _, function = name.rpartition(".")
    head = b"\x80\x02c" + module.encode() + b"\n" + function.encode() + b"\n"
    return head + pickle.dumps(tuple(arguments), protocol=2)[2:-1] + b"R."


KIND = (b"\x80\x02cnumpy\ndtype\n", b"R.")


@pytest.mark.parametrize(
    "content",
    [
        _numpy("numpy.ndarray", (4,), "f8", b"x" * 32, 0, (1 << 40,)),  # strides that leave the buffer
        _numpy("numpy.ndarray", (1 << 40,)),
        _numpy("numpy.dtype", "O"),
        _numpy("numpy.dtype", "V8"),
        _numpy("numpy.dtype", "U1000000"),
        _numpy("numpy.dtype", [("a", "O")]),
        _numpy("_codecs.encode", "x", "zip"),
        _numpy("numpy.core.numeric._frombuffer", b"x" * 8, "f8", (1,), "C"),
        b"\x80\x02cnumpy\nndarray\n}b.",  # BUILD on what a name stands for
        b"\x80\x02cnumpy\ndtype\nN}U\x01xK\x01s\x86b.",
        b"\x80\x02K\x01r\xff\xff\xff\x7f.",  # a memo of two thousand million entries
        b"\x80\x02]" + b"(" * 100_000,
    ],
)
def test_crafted_pickles_reach_nothing_of_numpy(content: bytes) -> None:
    with pytest.raises(InputError, match="plain data and numpy arrays"):
        load(content)


@pytest.mark.parametrize("change", ["shape", "bytes", "kind", "fortran"])
def test_an_array_is_as_large_as_its_bytes(change: str) -> None:
    array = np.asfortranarray(np.arange(6.0).reshape(2, 3)) if change == "fortran" else np.arange(6.0).reshape(2, 3)
    content = pickle.dumps(array, protocol=2)
    if change == "fortran":
        np.testing.assert_array_equal(np.asarray(load(content)), array)
        return
    old, new = {"shape": (b"K\x02K\x03\x86", b"K\x02K\x04\x86"), "bytes": (b"@", b"@@"), "kind": (b"f8", b"f4")}[change]
    assert content.count(old) >= 1
    with pytest.raises(InputError, match=r"has not .* bytes|plain data"):
        load(content.replace(old, new, 1))


def test_strings_cannot_be_multiplied() -> None:
    # One string of a megabyte, encoded again and again: each call would make another megabyte of ten bytes of pickle.
    head = b"\x80\x02]c_codecs\nencode\nq\x00X\x00\x00\x10\x00" + b"a" * (1 << 20) + b"q\x0100"
    call = b"h\x00h\x01X\x06\x00\x00\x00latin1\x86Ra"
    with pytest.raises(InputError, match="makes more of its strings than it has"):
        load(head + call * 50 + b".")
