"""One tester for every accumulator: any split, in any order, through saved states or not, gives the same result."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np


def assert_merges(
    make: Callable[[], Any],
    feed: Callable[[Any, Any], None],
    chunks: Sequence[Any],
    result: Callable[[Any], Any],
    seed: int = 0,
) -> None:
    """`feed(accumulator, chunk)` over any partition of the chunks, merged in any shape of tree, gives `result`."""
    whole = make()
    for chunk in chunks:
        feed(whole, chunk)
    expected = result(whole)
    rng = np.random.default_rng(seed)
    for _ in range(3):
        parts = []
        for bucket in np.array_split(rng.permutation(len(chunks)), rng.integers(1, len(chunks) + 1)):
            part = make()
            for index in bucket:
                feed(part, chunks[index])
            parts.append(part)
        parts.append(make())  # an empty part changes nothing
        while len(parts) > 1:
            left = parts.pop(int(rng.integers(len(parts))))
            right = parts.pop(int(rng.integers(len(parts))))
            if rng.random() < 0.5:
                left.merge(right)
            else:
                left.load({name: np.array(array) for name, array in right.state().items()})
            parts.append(left)
        _close(result(parts[0]), expected)


def _close(found: Any, expected: Any) -> None:
    if isinstance(expected, dict):
        assert found.keys() == expected.keys()
        for key in expected:
            _close(found[key], expected[key])
    else:
        np.testing.assert_allclose(
            np.asarray(found, dtype=float), np.asarray(expected, dtype=float), rtol=1e-9, atol=1e-12
        )
