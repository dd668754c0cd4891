"""Exact rank correlations of any number of pairs: a second pass that writes the pairs to disk and ranks them there.

Pairs are sorted into buckets by `x`, each small enough for memory, and ranked bucket by bucket; then the same by `y`.
Disk use grows with the corpus (8 bytes per pair, then 12); memory does not.
"""

from __future__ import annotations

import math
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np
from jaxtyping import Bool, Float, Int
from torch import Tensor

from normlens.corpus.grid import Bins
from normlens.corpus.pairs import ordered
from normlens.corpus.plan import Plan
from normlens.corpus.ranks import Rho
from normlens.corpus.tally import Tally
from normlens.errors import InputError

BUCKET = 4_000_000  # pairs in memory at a time
_PAIR = np.dtype([("x", np.float32), ("y", np.float32)])
_RANKED = np.dtype([("rank", np.int64), ("y", np.float32)])
_TOP_BITS = 16  # buckets are cut by the leading bits of a number


class Spill:
    """Pairs on disk, a file per group; takes the place of the counting accumulators in an exact pass."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)

    def update(
        self,
        x: Tensor | np.ndarray,
        y: Tensor | np.ndarray,
        group: Tensor | np.ndarray,
        keep: Bool[Tensor, "query key"] | None = None,
        bins: Bins | None = None,
    ) -> None:
        """Write pairs; `y` and `group` broadcast to the shape of `x`."""
        shape = np.asarray(x).shape
        wide = [np.broadcast_to(np.asarray(side), shape) for side in (x, y, group)]
        if keep is not None:
            wide = [side[..., keep.numpy()] for side in wide]
        x_flat, y_flat, codes = (side.reshape(-1) for side in wide)
        for code in np.unique(codes):
            inside = codes == code
            pairs = np.empty(int(inside.sum()), dtype=_PAIR)
            pairs["x"], pairs["y"] = x_flat[inside], y_flat[inside]
            with (self.folder / f"{code}.pairs").open("ab") as stream:
                stream.write(pairs.tobytes())

    def result(self, groups: Sequence[int]) -> Rho:
        """Rho over the union of the groups, exact."""
        files = [path for group in groups if (path := self.folder / f"{group}.pairs").exists()]
        return exact_rho(files, self.folder / "sorting")


class SpillTally(Tally):
    """A tally that keeps the pairs of chosen correlations, and counts nothing else of them."""

    def __init__(self, plan: Plan, folder: Path) -> None:
        super().__init__(plan)
        self.folder = folder
        self.spills: dict[tuple[str, str, str], Spill] = {}

    def rank_counts(self, kind: str, x: str, y: str) -> Spill:  # type: ignore[override]
        """Where the pairs of two quantities go."""
        return self._spill(kind, x, y)

    def pair_counts(self, kind: str, quantity: str, covariate: str) -> Spill:  # type: ignore[override]
        """Where the pairs of a token's quantity and its covariate go."""
        return self._spill(kind, quantity, covariate)

    def _spill(self, kind: str, x: str, y: str) -> Spill:
        return self.spills.setdefault((kind, x, y), Spill(self.folder / f"{kind}-{x}-{y}"))


def exact_rho(files: Sequence[Path], folder: Path, bucket: int = BUCKET) -> Rho:
    """Spearman's rho of all pairs in the files, with ties given their mean rank."""
    total = sum(path.stat().st_size for path in files) // _PAIR.itemsize
    if total < 2:
        raise InputError(f"a correlation needs at least two pairs, this one has {total}: give it more data")
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder) as place:
        by_x = _sorted_into(_read(files, _PAIR), "x", Path(place) / "x", _PAIR, total, bucket, _read(files, _PAIR))
        ranked = Path(place) / "ranked"
        x_square = math.fsum(_rank_x(by_x, ranked, total))
        again = _read([ranked], _RANKED)
        by_y = _sorted_into(_read([ranked], _RANKED), "y", Path(place) / "y", _RANKED, total, bucket, again)
        sums = list(_rank_y(by_y, total))
    y_square, product = (math.fsum(part) for part in zip(*sums, strict=True))
    if not x_square or not y_square:
        raise InputError("a rank correlation needs two quantities that vary; one of these is constant")
    return Rho(float(np.clip(product / math.sqrt(x_square * y_square), -1.0, 1.0)), 0.0, total)


def _read(files: Sequence[Path], dtype: np.dtype, step: int = 1 << 20) -> Iterator[np.ndarray]:
    for path in files:
        with path.open("rb") as stream:
            while content := stream.read(step * dtype.itemsize):
                yield np.frombuffer(content, dtype=dtype)


def _top(values: Float[np.ndarray, " pair"]) -> Int[np.ndarray, " pair"]:
    return (ordered(values).astype(np.int64) >> (32 - _TOP_BITS)) + (1 << (_TOP_BITS - 1))


def _sorted_into(
    rows: Iterable[np.ndarray],
    name: str,
    folder: Path,
    dtype: np.dtype,
    total: int,
    bucket: int,
    first: Iterable[np.ndarray],
) -> list[Path]:
    """Distribute rows into files whose values do not overlap, in rising order; `first` is read for the counts."""
    counts = np.zeros(1 << _TOP_BITS, dtype=np.int64)
    for block in first:
        counts += np.bincount(_top(block[name]), minlength=len(counts))
    target = (np.cumsum(counts) - counts) // bucket  # which file each leading pattern goes to
    folder.mkdir()
    for block in rows:
        owner = target[_top(block[name])]
        for file in np.unique(owner):
            with (folder / f"{file:08d}").open("ab") as stream:
                stream.write(block[owner == file].astype(dtype, copy=False).tobytes())
    return sorted(folder.iterdir())


def _ranks(values: Float[np.ndarray, " pair"], before: int, total: int) -> Int[np.ndarray, " pair"]:
    """Twice the centred mean rank of each value, a whole number."""
    _, index, counts = np.unique(values, return_inverse=True, return_counts=True)
    ends = np.cumsum(counts)
    return (2 * before + 2 * ends - counts + 1 - (total + 1))[index]


def _rank_x(files: Sequence[Path], out: Path, total: int) -> Iterator[float]:
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
    before = 0
    for path in files:
        block = np.fromfile(path, dtype=_RANKED)
        path.unlink()
        ranks = _ranks(block["y"], before, total).astype(np.float64)
        before += len(block)
        yield float((ranks**2).sum()), float((ranks * block["rank"]).sum())
