"""Shards: the statistics of consecutive sequences as a file whose name says which ones. They are all the progress there is.

A shard is done or not done. It is written whole under a name such as `000000000000-000000000512.shard`, with a digest of
its content; a file that is damaged, or that belongs to another run, is not done, and its sequences are counted again.
Where two shards hold the same sequences the longer one counts, so a shard may grow: the new one is written, then the old
one is removed. The results of a run are the merge of its shards in the order of the corpus.
"""

from __future__ import annotations

import hashlib
import io
import re
import zipfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from normlens.corpus.counting.plan import Plan
from normlens.corpus.counting.statistics import CorpusStatistics
from normlens.corpus.reading.survey import Parallel
from normlens.errors import InputError
from normlens.io.remote import AnyPath
from normlens.io.writing import write_bytes

#: So many neighbouring shards are made one at once.
FAN_IN = 8

_NAME = re.compile(r"(\d{12})-(\d{12})\.shard")
_MAGIC = b"normlens shard 1\n"
_DIGEST_SIZE = 32


@dataclass(frozen=True, order=True)
class Shard:
    """The sequences `start` to `stop` of the corpus, the latter not included."""

    start: int
    stop: int

    @property
    def name(self) -> str:
        """The name of its file."""
        return f"{self.start:012d}-{self.stop:012d}.shard"

    @property
    def size(self) -> int:
        """How many sequences it holds."""
        return self.stop - self.start

    @classmethod
    def of(cls, name: str) -> Shard | None:
        """The shard of a file's name, if it is one."""
        found = _NAME.fullmatch(name)
        shard = cls(int(found[1]), int(found[2])) if found else None
        return shard if shard is not None and shard.size > 0 else None

    @classmethod
    def spanning(cls, shards: Sequence[Shard]) -> Shard:
        """Neighbouring shards as one."""
        return cls(shards[0].start, shards[-1].stop)


@dataclass(frozen=True)
class ShardFolder:
    """The shards of one run; `fingerprint` says which run."""

    folder: AnyPath
    fingerprint: str

    def write(self, shard: Shard, statistics: CorpusStatistics) -> None:
        """Write a shard whole."""
        if statistics.size != shard.size:
            raise InputError(f"a shard holds what its name says: {shard.name} would hold {statistics.size}")
        state = {f"tally/{name}": array for name, array in statistics.state().items()}
        payload = pack({"fingerprint": np.frombuffer(self.fingerprint.encode(), dtype=np.uint8), **state})
        write_bytes(self.folder / shard.name, _MAGIC + hashlib.sha256(payload).digest() + payload)

    def read(self, shard: Shard) -> dict[str, np.ndarray]:
        """The state of the statistics that a shard holds; one that cannot be trusted is an error."""
        path = self.folder / shard.name
        try:
            content = path.read_bytes()
            head, payload = content[: len(_MAGIC) + _DIGEST_SIZE], memoryview(content)[len(_MAGIC) + _DIGEST_SIZE :]
            if head != _MAGIC + hashlib.sha256(payload).digest():
                raise ValueError("its content does not fit its digest")
            arrays = unpack(payload)
            if arrays["fingerprint"].tobytes() != self.fingerprint.encode():
                raise ValueError("it belongs to another run")
            state = {name.removeprefix("tally/"): array for name, array in arrays.items() if name.startswith("tally/")}
            held = int(state["sequences"]) + int(state["empty"])
            if held != shard.size:
                raise ValueError(f"it holds {held} sequences, not those of its name")
        except (OSError, ValueError, KeyError, TypeError, OverflowError, MemoryError, zipfile.BadZipFile) as error:
            raise InputError(f"a shard must be whole: {path} is not ({error or type(error).__name__})") from error
        return state

    def merged(self, shards: Iterable[Shard], plan: Plan) -> CorpusStatistics:
        """The statistics of several shards together, taken in the order of the corpus."""
        statistics = CorpusStatistics(plan)
        for shard in sorted(shards):
            statistics.load(self.read(shard))
        return statistics

    def merge(self, shards: Sequence[Shard], plan: Plan) -> Shard:
        """Make one shard of neighbours; the parts stay until somebody removes them."""
        whole = Shard.spanning(shards)
        self.write(whole, self.merged(shards, plan))
        return whole

    def found(self, parallel: Parallel = map) -> list[Shard]:
        """What is done, in the order of the corpus; files that do not count are removed. `parallel` looks at them."""
        done, named = list[Shard](), self._named()
        for shard, whole in zip(named, list(parallel(self._is_whole, named)), strict=True):
            if (done and shard.start < done[-1].stop) or not whole:
                self.remove([shard])
            else:
                done.append(shard)
        return done

    def longest(self, within: Shard) -> Shard | None:
        """The most of a shard that is done from its start on, where whoever counted it got no further."""
        for shard in self._named():
            if shard.start == within.start and shard.stop <= within.stop and self._is_whole(shard):
                return shard
        return None

    def remove(self, shards: Iterable[Shard]) -> None:
        """Remove the files of shards that others hold now."""
        for shard in shards:
            (self.folder / shard.name).unlink(missing_ok=True)

    def _named(self) -> list[Shard]:
        """Shards by their names, of those with the same start the longest first."""
        shards = [Shard.of(path.name) for path in self.folder.glob("*.shard")]
        return sorted((shard for shard in shards if shard is not None), key=lambda shard: (shard.start, -shard.stop))

    def _is_whole(self, shard: Shard) -> bool:
        try:
            self.read(shard)
        except InputError:
            return False
        return True


def neighbours(shards: Iterable[Shard]) -> Iterator[list[Shard]]:
    """Shards in runs without a gap."""
    run: list[Shard] = []
    for shard in sorted(shards):
        if run and run[-1].stop != shard.start:
            yield run
            run = []
        run.append(shard)
    if run:
        yield run


def gaps(shards: Iterable[Shard], total: int) -> list[Shard]:
    """What of a corpus of `total` sequences no shard holds."""
    found, at = list[Shard](), 0
    for shard in sorted(shards):
        if at < shard.start:
            found.append(Shard(at, shard.start))
        at = shard.stop
    return [*found, Shard(at, total)] if at < total else found


def merge_round(shards: Iterable[Shard]) -> list[list[Shard]]:
    """One level of the tree in which shards without a gap become one: groups of at most `FAN_IN` neighbours."""
    runs = [run[at : at + FAN_IN] for run in neighbours(shards) for at in range(0, len(run), FAN_IN)]
    return [run for run in runs if len(run) > 1]


def pack(arrays: Mapping[str, np.ndarray]) -> bytes:
    """Arrays as one block of bytes, without pickle."""
    buffer = io.BytesIO()
    np.savez(buffer, allow_pickle=False, **{name.replace("/", "|"): array for name, array in arrays.items()})
    return buffer.getvalue()


def unpack(content: bytes | memoryview) -> dict[str, np.ndarray]:
    """What `pack` made."""
    with np.load(io.BytesIO(content), allow_pickle=False) as arrays:
        return {name.replace("|", "/"): arrays[name] for name in arrays.files}
