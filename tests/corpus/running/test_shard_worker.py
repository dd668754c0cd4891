"""A worker that is cut off from its driver takes nothing away that another one may count on."""

from __future__ import annotations

from pathlib import Path

from normlens.corpus.counting.plan import Plan
from normlens.corpus.counting.worker import WorkerSettings
from normlens.corpus.reading.corpus import Corpus
from normlens.corpus.running.run import open_reader
from normlens.corpus.running.shard_worker import Assignment, Count, Finish, ShardWorker
from normlens.corpus.running.shards import Shard, ShardFolder


def test_a_shard_that_has_grown_goes_when_the_driver_speaks_again(lens, text_file: Path, tmp_path: Path) -> None:
    reader = open_reader(lens, Corpus((text_file,)))
    shards = ShardFolder(tmp_path / "unfinished", "this run")
    settings = WorkerSettings(Plan.of(reader.categories.names))
    assignment = Assignment(reader, settings, shards, tmp_path, tmp_path / "tokens", save_every=0.0, chunk=4)
    worker = ShardWorker(lens, assignment)

    def found() -> set[str]:
        return {path.name for path in shards.folder.iterdir()}

    assert worker.do(Count(0, 12), lambda count: None).shard is None
    assert found() == {Shard(0, stop).name for stop in (4, 8, 12)}, "a driver may have found any of them by now"
    worker.do(Count(12, 16), lambda count: None)
    assert found() == {Shard(0, stop).name for stop in (12, 16)}
    assert worker.do(Finish(), lambda count: None).shard == Shard(0, 16)
    assert found() == {Shard(0, 16).name}
