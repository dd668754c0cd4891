"""Reading ahead changes neither items nor errors, and leaves no thread."""

from __future__ import annotations

import threading

import pytest

from normlens.corpus.running.prefetch import prefetched


@pytest.mark.parametrize("ahead", [0, 1, 3])
def test_the_same_items_and_errors(ahead: int) -> None:
    def broken():
        yield from range(5)
        raise ValueError("the sixth")

    found = []
    with pytest.raises(ValueError, match="the sixth"):
        for item in prefetched(broken(), ahead):
            found.append(item)
    assert found == list(range(5))


def test_who_stops_early_leaves_no_thread_and_reads_little_ahead() -> None:
    made: list[int] = []
    items = prefetched((made.append(n) or n for n in range(1000)), 2)
    assert [next(items), next(items)] == [0, 1]
    items.close()
    assert len(made) <= 6 and not [t for t in threading.enumerate() if t.name == "normlens-read-ahead"]
