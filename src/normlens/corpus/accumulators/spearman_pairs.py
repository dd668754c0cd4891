"""Spearman's rho from the pairs themselves: distinct pairs counted in memory, or all pairs kept on disk.

In memory, pairs of float32 bit patterns are counted as they are. When more than `capacity` distinct pairs have been seen,
the last bit of both patterns is dropped, again and again until they fit. A larger set never has fewer distinct pairs than
its parts, so the number of dropped bits at the end does not depend on how or in which order the data came.

On disk, nothing is dropped. Pairs are distributed by `x` into files that each fit into memory, and ranked file by file;
then the same by `y`. Disk use grows with the data (8 bytes per pair, then 12); memory does not.
"""

from __future__ import annotations

import math
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
from jaxtyping import Bool, Float, Int

from normlens.corpus.accumulators.histogram import BinNumbers
from normlens.corpus.accumulators.spearman import CONSTANT, RankCorrelation, check_count, rho_of_pairs
from normlens.errors import InputError

_COMPACT = 1 << 18  # pairs that wait before they are sorted in

PAIRS_IN_MEMORY = 4_000_000  # at a time, while pairs on disk are ranked
_PAIR = np.dtype([("x", np.float32), ("y", np.float32)])
_RANKED = np.dtype([("rank", np.int64), ("y", np.float32)])
_TOP_BITS = 16  # pairs are distributed by the leading bits of a number


class DistinctPairSpearman:
    """Spearman's rho within each of up to 256 groups, exact up to `capacity` distinct pairs and bounded beyond.

    >>> ranks = DistinctPairSpearman()
    >>> ranks.update(np.array([1.0, 2.0, 3.0]), np.array([9.0, 8.0, 1.0]), np.array([0, 0, 1]))
    >>> ranks.result([0, 1]).rho, ranks.result([0, 1]).bound
    (-1.0, 0.0)
    """

    _COLUMNS = ("x", "y", "group", "count")

    def __init__(self, capacity: int = 1 << 20) -> None:
        self.capacity = capacity
        self.dropped = 0  # trailing bits of both sides
        kinds = (np.int32, np.int32, np.uint8, np.int64)
        self._pairs: tuple[np.ndarray, ...] = tuple(np.zeros(0, dtype=kind) for kind in kinds)
        self._waiting: list[tuple[np.ndarray, ...]] = []

    def update(
        self, x: Float[np.ndarray, " pair"], y: Float[np.ndarray, " pair"], group: Int[np.ndarray, " pair"]
    ) -> None:
        """Count pairs, taken as float32."""
        keys = (_rising(x) >> self.dropped, _rising(y) >> self.dropped, group.astype(np.uint8))
        self._waiting.append((*keys, np.ones(len(x), dtype=np.int64)))
        if sum(len(part[0]) for part in self._waiting) > _COMPACT:
            self._compact()

    def merge(self, other: DistinctPairSpearman) -> None:
        """Add another part of the data."""
        if self.capacity != other.capacity:
            raise InputError("pair counts merge only with the same capacity")
        self.load(other.state())

    def result(self, groups: Sequence[int]) -> RankCorrelation:
        """Rho over the union of the groups; fewer than two pairs, or a constant side, is an error."""
        self._compact()
        x, y, group, count = self._pairs
        inside = np.isin(group, list(groups))
        return rho_of_pairs(x[inside], y[inside], count[inside], exact=self.dropped == 0)

    def state(self) -> dict[str, np.ndarray]:
        """Everything, as arrays."""
        self._compact()
        return {**dict(zip(self._COLUMNS, self._pairs, strict=True)), "dropped": np.array(self.dropped)}

    def load(self, state: Mapping[str, np.ndarray]) -> None:
        """Take in a saved state."""
        self._compact()
        dropped = int(state["dropped"])
        self._drop(dropped - self.dropped)
        extra = self.dropped - dropped
        self._waiting.append((state["x"] >> extra, state["y"] >> extra, state["group"], state["count"]))
        self._compact()

    def _compact(self) -> None:
        if not self._waiting:
            return
        columns = zip(self._pairs, *self._waiting, strict=True)
        self._pairs = _distinct(*(np.concatenate(column) for column in columns))
        self._waiting = []
        while len(self._pairs[0]) > self.capacity:
            self._drop(1)

    def _drop(self, bits: int) -> None:
        if bits > 0:
            x, y, group, count = self._pairs
            self._pairs = _distinct(x >> bits, y >> bits, group, count)
            self.dropped += bits


class DiskSpearman:
    """Spearman's rho within groups, exact for any number of pairs: they are kept on disk, a file per group."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)

    def update(
        self,
        x: Float[np.ndarray, "*shape"],
        y: Float[np.ndarray, "*#shape"],
        group: Int[np.ndarray, "*#shape"],
        keep: Bool[np.ndarray, "*#shape"] | None = None,
        bins: BinNumbers | None = None,
    ) -> None:
        """Write pairs; `y` and `group` broadcast to the shape of `x`, and `keep` selects pairs; `bins` do not matter."""
        kept = ... if keep is None else np.broadcast_to(keep, x.shape)
        x_flat, y_flat, groups = (np.broadcast_to(side, x.shape)[kept].reshape(-1) for side in (x, y, group))
        for code in np.unique(groups):
            inside = groups == code
            pairs = np.empty(int(inside.sum()), dtype=_PAIR)
            pairs["x"], pairs["y"] = x_flat[inside], y_flat[inside]
            with self._file(code).open("ab") as stream:
                stream.write(pairs.tobytes())

    def merge(self, other: DiskSpearman) -> None:
        """Add the pairs of another part of the data."""
        for path in sorted(other.folder.glob("*.pairs")):
            with path.open("rb") as source, (self.folder / path.name).open("ab") as target:
                shutil.copyfileobj(source, target)

    def result(self, groups: Sequence[int], in_memory: int = PAIRS_IN_MEMORY) -> RankCorrelation:
        """Rho over the union of the groups, exact; fewer than two pairs, or a constant side, is an error."""
        files = [path for group in groups if (path := self._file(group)).exists()]
        total = sum(path.stat().st_size for path in files) // _PAIR.itemsize
        check_count(total)
        with tempfile.TemporaryDirectory(dir=self.folder) as folder:
            place, ranked = Path(folder), Path(folder) / "ranked"
            x_square = math.fsum(_rank_x(_distributed(files, "x", _PAIR, place / "x", in_memory), ranked, total))
            sums = list(_rank_y(_distributed([ranked], "y", _RANKED, place / "y", in_memory), total))
        y_square, product = (math.fsum(part) for part in zip(*sums, strict=True))
        if not x_square or not y_square:
            raise InputError(CONSTANT)
        return RankCorrelation(float(np.clip(product / math.sqrt(x_square * y_square), -1.0, 1.0)), 0.0, total)

    def _file(self, group: int) -> Path:
        return self.folder / f"{group}.pairs"


def _rising(values: Float[np.ndarray, " value"]) -> Int[np.ndarray, " value"]:
    """Integers in the order of the float32 numbers."""
    bits = (values.astype(np.float32) + np.float32(0.0)).view(np.int32)
    return np.where(bits >= 0, bits, bits ^ np.int32(0x7FFFFFFF))


def _distinct(
    x: Int[np.ndarray, " pair"],
    y: Int[np.ndarray, " pair"],
    group: Int[np.ndarray, " pair"],
    count: Int[np.ndarray, " pair"],
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    order = np.lexsort((y, x, group))
    x, y, group, count = x[order], y[order], group[order], count[order]
    if not len(x):
        return x, y, group, count
    new = np.ones(len(x), dtype=bool)
    new[1:] = (x[1:] != x[:-1]) | (y[1:] != y[:-1]) | (group[1:] != group[:-1])
    starts = np.flatnonzero(new)
    return x[starts], y[starts], group[starts], np.add.reduceat(count, starts)


def _read(files: Sequence[Path], dtype: np.dtype, step: int = 1 << 20) -> Iterator[np.ndarray]:
    for path in files:
        with path.open("rb") as stream:
            while content := stream.read(step * dtype.itemsize):
                yield np.frombuffer(content, dtype=dtype)


def _top(values: Float[np.ndarray, " pair"]) -> Int[np.ndarray, " pair"]:
    return (_rising(values).astype(np.int64) >> (32 - _TOP_BITS)) + (1 << (_TOP_BITS - 1))


def _distributed(files: Sequence[Path], by: str, dtype: np.dtype, folder: Path, in_memory: int) -> list[Path]:
    """The rows of the files in new files of about `in_memory` rows whose values do not overlap, in rising order."""
    counts = np.zeros(1 << _TOP_BITS, dtype=np.int64)
    for block in _read(files, dtype):
        counts += np.bincount(_top(block[by]), minlength=len(counts))
    target = (np.cumsum(counts) - counts) // in_memory  # which file each leading pattern goes to
    folder.mkdir()
    for block in _read(files, dtype):
        owner = target[_top(block[by])]
        for file in np.unique(owner):
            with (folder / f"{file:08d}").open("ab") as stream:
                stream.write(block[owner == file].tobytes())
    return sorted(folder.iterdir())


def _ranks(values: Float[np.ndarray, " pair"], before: int, total: int) -> Int[np.ndarray, " pair"]:
    """Twice the centred mean rank of each value, a whole number."""
    _, index, counts = np.unique(values, return_inverse=True, return_counts=True)
    ends = np.cumsum(counts)
    return (2 * before + 2 * ends - counts + 1 - (total + 1))[index]


def _rank_x(files: Sequence[Path], out: Path, total: int) -> Iterator[float]:
    """Write each pair with the rank of its x; gives sums of squared ranks."""
    before = 0
    with out.open("wb") as stream:
        for path in files:
            block = np.fromfile(path, dtype=_PAIR)
            path.unlink()
            ranked = np.empty(len(block), dtype=_RANKED)
            ranked["rank"], ranked["y"] = _ranks(block["x"], before, total), block["y"]
            before += len(block)
            stream.write(ranked.tobytes())
            yield float((ranked["rank"].astype(np.float64) ** 2).sum())


def _rank_y(files: Sequence[Path], total: int) -> Iterator[tuple[float, float]]:
    """Sums of squared ranks of y, and of products of both ranks."""
    before = 0
    for path in files:
        block = np.fromfile(path, dtype=_RANKED)
        path.unlink()
        ranks = _ranks(block["y"], before, total).astype(np.float64)
        before += len(block)
        yield float((ranks**2).sum()), float((ranks * block["rank"]).sum())
