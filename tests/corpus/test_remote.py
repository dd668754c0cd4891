"""An object store as source and as output: a real S3 server, on this machine."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pandas as pd
import pytest

import normlens
from normlens.corpus import batches
from normlens.errors import InputError
from normlens.io.remote import path_of
from normlens.io.writing import atomic_write

from .conftest import RANKS, paragraphs, same


@pytest.fixture(scope="module")
def bucket() -> Iterator[str]:
    """The address of an empty bucket."""
    server_of = pytest.importorskip("moto.server")
    import logging

    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = server_of.ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    settings = {
        "AWS_ENDPOINT_URL": f"http://{host}:{port}", "AWS_ACCESS_KEY_ID": "x", "AWS_SECRET_ACCESS_KEY": "y",
        "AWS_DEFAULT_REGION": "us-east-1", "AWS_EC2_METADATA_DISABLED": "true",
    }  # fmt: skip
    before = {name: os.environ.get(name) for name in settings}
    os.environ.update(settings)
    pytest.importorskip("s3fs").S3FileSystem().mkdir("corpora")
    yield "s3://corpora"
    server.stop()
    for name, value in before.items():
        os.environ.pop(name) if value is None else os.environ.update({name: value})


class StoppedError(Exception):
    pass


def test_from_s3_to_s3_and_stopped_on_the_way(lens, bucket: str, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(batches, "CHUNK_SIZE", 4)
    parts = [paragraphs(15, seed=1), paragraphs(12, seed=2)]
    for number, texts in enumerate(parts):
        (tmp_path / f"{number}.txt").write_text("\n".join(texts))
        path_of(f"{bucket}/wiki/{number}.txt").write_bytes("\n".join(texts).encode())
    options = {"pairs": True, "per_token": True, "covariates": {"rank": RANKS}}
    local = lens.corpus([tmp_path / "0.txt", tmp_path / "1.txt"], tmp_path / "out", **options)

    def stop(step) -> None:
        if step.sequences >= 8:
            raise StoppedError

    with pytest.raises(StoppedError):
        lens.corpus(f"{bucket}/wiki", f"{bucket}/out", range_seconds=0.0, progress=stop, **options)
    unfinished = path_of(f"{bucket}/out/unfinished")
    assert len(list(unfinished.glob("*.shard"))) == 2
    steps: list[int] = []
    found = lens.corpus(f"{bucket}/wiki", f"{bucket}/out", progress=lambda s: steps.append(s.sequences), **options)
    assert steps[0] == 12, "the first eight were not counted again"
    same(local, found)
    pd.testing.assert_frame_equal(local.tokens, found.tokens, rtol=1e-9)
    assert not unfinished.exists()
    assert [entry["path"] for entry in found.manifest["inputs"]] == [f"{bucket}/wiki/{n}.txt" for n in (0, 1)]
    assert [entry["records_sha256"] for entry in found.manifest["inputs"]] == [
        e["records_sha256"] for e in local.manifest["inputs"]
    ]
    same(local, normlens.open(f"{bucket}/out"))
    with pytest.raises(InputError, match="holds a finished run"):
        lens.corpus(f"{bucket}/wiki/0.txt", f"{bucket}/out", **options)
    fresh = lens.corpus(f"{bucket}/wiki/0.txt", f"{bucket}/out", fresh=True, **options)
    assert fresh.manifest["counts"]["sequences"] == 7


def test_mistakes_are_one_sentence(lens, bucket: str, text_file: Path, tmp_path: Path) -> None:
    for source, out, message in (
        (f"{bucket}/none.txt", tmp_path / "out", "there is no 's3://corpora/none.txt'"),
        (text_file, "s3://nowhere/out", "cannot be written"),
        (text_file, "odd://bucket/out", "odd:// addresses need fsspec"),
        (f"{bucket}/x/statistics.parquet", f"{bucket}/x", "would be overwritten"),
    ):
        with pytest.raises(InputError, match=message):
            lens.corpus(source, out)


def test_a_remote_file_is_there_whole_or_not_at_all(bucket: str) -> None:
    target = path_of(f"{bucket}/whole.bin")
    with pytest.raises(StoppedError), atomic_write(target) as stream:
        stream.write(b"half")
        raise StoppedError
    assert not target.exists()
    with atomic_write(target) as stream:
        stream.write(b"all")
    assert target.read_bytes() == b"all" and target.stat().st_size == 3
