"""Saved runs that are damaged, or made to do damage."""

from __future__ import annotations

import json
import shutil
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr

import normlens
from normlens.errors import InputError
from normlens.io.checksums import SEAL, read_checked_json, write_checked_json, write_checksums
from normlens.results.analysis import Analysis


@pytest.fixture
def run(tmp_path: Path) -> Path:
    labels = np.array(list("abc"), dtype=object)
    coords: dict[str, Any] = {"layer": [1, 2], "query": np.arange(3), "key": np.arange(3)}
    coords |= {"query_token": ("query", labels), "key_token": ("key", labels)}
    data = {
        "attn_w": (("layer", "query", "key"), np.zeros((2, 3, 3), dtype=np.float32)),
        "proof": (("layer",), np.zeros(2)),
    }
    analysis = Analysis({"encoder": xr.Dataset(data, coords=coords)}, {"model": {"name": "x", "family": "y"}})
    return analysis.save(tmp_path / "run.zarr")


def described(path: Path, **changes: Any) -> None:
    node = json.loads(path.read_text())
    for name, value in changes.items():
        if name == "chunk_shape":
            node["chunk_grid"]["configuration"]["chunk_shape"] = value
        else:
            node[name] = value
    path.write_text(json.dumps(node))


ARRAY = "encoder/attn_w/zarr.json"
DAMAGE: dict[str, tuple[Callable[[Path], object], str]] = {
    "a chunk is missing": (lambda run: (run / "encoder/attn_w/c/0/0/0").unlink(), "chunks, and 0 are there"),
    "all chunks are missing": (lambda run: shutil.rmtree(run / "encoder/attn_w/c"), "chunks, and 0 are there"),
    "a chunk is cut": (lambda run: (run / "encoder/attn_w/c/0/0/0").write_bytes(b"("), "cannot be read"),
    "a chunk is another": (lambda run: (run / "encoder/attn_w/c/0/0/0").write_bytes(b"x" * 500), "cannot be read"),
    "a million million numbers": (lambda run: described(run / ARRAY, shape=[10**6, 10**3, 10**3]), "chunks, and 1 are"),
    "one large chunk": (lambda run: described(run / ARRAY, shape=[10**12, 3, 3], chunk_shape=[10**12, 3, 3]), "at most"),
    "a negative shape": (lambda run: described(run / ARRAY, shape=[-1, 3, 3]), "describes no array of numbers"),
    "a shape of text": (lambda run: described(run / ARRAY, shape="abc"), "describes no array of numbers"),
    "other numbers": (lambda run: described(run / ARRAY, data_type="object"), "describes no array of numbers"),
    "a codec of its own": (lambda run: described(run / ARRAY, codecs=[{"name": "numcodecs.pickle"}]), "its codec is"),
    "an empty list": (lambda run: (run / "zarr.json").write_text("[]"), "must hold a JSON object"),
    "an empty list below": (lambda run: (run / ARRAY).write_text("[]"), "must hold a JSON object"),
    "no JSON": (lambda run: (run / ARRAY).write_text("{"), "is not a readable JSON file"),
    "long numbers": (lambda run: (run / ARRAY).write_text('{"shape": ' + "9" * 5000 + "}"), "readable JSON file"),
    "deep lists": (lambda run: (run / ARRAY).write_text("[" * 100_000), "is not a readable JSON file"),
    "no record": (lambda run: described(run / "zarr.json", attributes={}), "has format None, this version reads 2"),
    "a record of another kind": (lambda run: described(run / "zarr.json", attributes={"normlens": "[]"}), "lacks its sites"),
    "a record without sites": (
        lambda run: described(run / "zarr.json", attributes={"normlens": '{"format": 2}'}), "tokens \\('tokens'\\)",
    ),
    "a stranger's file": (lambda run: (run / "encoder/attn_w/c/9").write_text("x"), "chunks, and 2 are there"),
}  # fmt: skip


@pytest.mark.parametrize("how", DAMAGE)
def test_damaged_runs_are_sentences_in_little_time_and_memory(run: Path, how: str) -> None:
    damage, sealed = DAMAGE[how]
    damage(run)
    tracemalloc.start()
    start = time.process_time()
    with pytest.raises(InputError, match=r"was changed or damaged|is missing|does not belong to"):
        normlens.open(run)
    write_checksums(run)  # and where somebody made the list of files fit the damage
    with pytest.raises(InputError, match=sealed):
        normlens.open(run)
    assert time.process_time() - start < 5 and tracemalloc.get_traced_memory()[1] < 50 << 20
    tracemalloc.stop()


@pytest.mark.parametrize("change", ["a digest", "a name", "not a list", "no list", "no JSON"])
def test_the_list_of_files_is_checked_itself(run: Path, change: str) -> None:
    path = run / SEAL
    content = json.loads(path.read_text())
    files = content["files"]
    if change == "a digest":
        files["zarr.json"] = "0" * 64
        path.write_text(json.dumps(content))
    elif change == "a name":
        listed = read_checked_json(path, "a list")
        write_checked_json(path, {"files": {**listed["files"], "more": "0" * 64}})
    elif change == "not a list":
        write_checked_json(path, {"files": 3})
    elif change == "no list":
        path.unlink()
    else:
        path.write_text("]")
    with pytest.raises(InputError):
        normlens.open(run)


def test_arrays_come_back_in_the_order_in_which_they_were_written(tmp_path: Path) -> None:
    """Zarr lists the arrays of a group in any order, and tables and pages follow it."""
    lens = normlens.load()
    analysis, explanation = lens.analyze("the man went"), lens.explain("the man went", direction=[1.0] * 384)
    opened = normlens.open(analysis.save(tmp_path / "run.zarr"))
    assert isinstance(opened, Analysis)
    assert [*opened.sites["encoder"].data_vars] == [*analysis.sites["encoder"].data_vars]
    pages = {normlens.open(explanation.save(tmp_path / f"{n}.zarr")).to_frame().to_csv() for n in range(2)}
    assert pages == {explanation.to_frame().to_csv()}
