"""One tester for every accumulator: any split, in any order, through saved states or not, gives the same result."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from normlens.corpus.bins import Binning, Bins

#: Few bins keep these tests quick; the method does not depend on how many there are.
SMALL_BINS = Binning(fine=Bins(((-8, -2, 3), (-2, 4, 6))), coarse=Bins(((-8, -2, 0), (-2, 4, 2))))


def assert_any_split_agrees(
    make: Callable[[], Any], chunks: Sequence[tuple[Any, ...]], result: Callable[[Any], Any], seed: int = 0
) -> None:
    """`update(*chunk)` over any partition of the chunks, merged in any shape of tree, gives `result`."""
    whole = _updated(make(), chunks)
    expected = result(whole)
    rng = np.random.default_rng(seed)
    for _ in range(3):
        buckets = np.array_split(rng.permutation(len(chunks)), rng.integers(1, len(chunks) + 1))
        parts = [_updated(make(), [chunks[index] for index in bucket]) for bucket in buckets]
        parts.append(make())  # an empty part changes nothing
        while len(parts) > 1:
            left = parts.pop(int(rng.integers(len(parts))))
            right = parts.pop(int(rng.integers(len(parts))))
            left.merge({name: np.array(array) for name, array in right.state().items()})
            parts.append(left)
        _close(result(parts[0]), expected)


def _updated(accumulator: Any, chunks: Sequence[tuple[Any, ...]]) -> Any:
    for chunk in chunks:
        accumulator.update(*chunk)
    return accumulator


def _close(found: Any, expected: Any) -> None:
    if isinstance(expected, dict):
        assert found.keys() == expected.keys()
        for key in expected:
            _close(found[key], expected[key])
    else:
        np.testing.assert_allclose(
            np.asarray(found, dtype=float), np.asarray(expected, dtype=float), rtol=1e-9, atol=1e-12
        )
