"""Shards: what is done, what is not, and what becomes of many."""

from __future__ import annotations

from pathlib import Path

import pytest

from normlens.corpus.counting.plan import Plan
from normlens.corpus.counting.statistics import CorpusStatistics
from normlens.corpus.running.shards import FAN_IN, Shard, ShardFolder, gaps, merge_round, neighbours
from normlens.errors import InputError

PLAN = Plan(("other",), measures=(), mixing=())


def counted(count: int) -> CorpusStatistics:
    statistics = CorpusStatistics(PLAN)
    statistics.sequences = count
    statistics.tokens[0] = 10 * count
    return statistics


@pytest.fixture
def shards(tmp_path: Path) -> ShardFolder:
    return ShardFolder(tmp_path, "this run")


def write(shards: ShardFolder, *bounds: tuple[int, int]) -> None:
    for start, stop in bounds:
        shards.write(Shard(start, stop), counted(stop - start))


def test_the_longest_of_overlapping_shards_counts(shards: ShardFolder) -> None:
    write(shards, (0, 4), (0, 8), (8, 12), (4, 12), (20, 24))
    assert shards.found() == [Shard(0, 8), Shard(8, 12), Shard(20, 24)]
    assert len(list(shards.folder.iterdir())) == 3, "what does not count is removed"
    assert [len(run) for run in neighbours(shards.found())] == [2, 1]
    assert shards.longest(Shard(20, 30)) == Shard(20, 24) and shards.longest(Shard(21, 30)) is None
    merged = shards.merged(shards.found(), PLAN)
    assert merged.sequences == 16 and merged.tokens[0] == 160


def test_what_cannot_be_trusted_is_not_done(shards: ShardFolder) -> None:
    write(shards, (0, 4), (4, 8), (8, 12))
    ShardFolder(shards.folder, "another run").write(Shard(12, 16), counted(4))
    (shards.folder / Shard(0, 4).name).write_bytes(b"")
    (shards.folder / Shard(4, 8).name).rename(shards.folder / Shard(4, 7).name)
    (shards.folder / "0-4.shard").write_text("somebody's")
    assert shards.found() == [Shard(8, 12)]
    assert (shards.folder / "0-4.shard").exists()
    with pytest.raises(InputError, match="a shard holds what its name says"):
        shards.write(Shard(0, 3), counted(4))


def test_a_tree_of_merges_leaves_one(shards: ShardFolder) -> None:
    done = {Shard(4 * n, 4 * n + 4) for n in range(100)}
    write(shards, *((piece.start, piece.stop) for piece in done))
    levels = 0
    while groups := merge_round(done):
        levels += 1
        for group in groups:
            assert 1 < len(group) <= FAN_IN and len(list(neighbours(group))) == 1
            done = done - set(group) | {shards.merge(group, PLAN)}
            shards.remove(group)
    assert levels == 3 and shards.found() == [Shard(0, 400)] == sorted(done)
    assert shards.merged(done, PLAN).tokens[0] == 4000


def test_what_is_not_done_is_a_gap() -> None:
    assert gaps([Shard(4, 8), Shard(12, 16)], 20) == [Shard(0, 4), Shard(8, 12), Shard(16, 20)]
    assert gaps([], 3) == [Shard(0, 3)] and gaps([Shard(0, 3)], 3) == [] and gaps([], 0) == []
    assert merge_round([Shard(0, 4), Shard(8, 12)]) == [], "shards with a gap between them stay apart"


def test_a_record_without_a_token_has_a_number_too(shards: ShardFolder) -> None:
    statistics = counted(3)
    statistics.note_empty(1, ["corpus.txt:7"])
    shards.write(Shard(0, 4), statistics)
    again = shards.merged([Shard(0, 4)], PLAN)
    assert again.size == 4 and again.empty == 1 and again.empty_places == ["corpus.txt:7"]
