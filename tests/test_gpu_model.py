"""The estimate of what a GPU takes, and what happens where there is none: see `benchmarks.gpu`."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from benchmarks import gpu


def counted(length: int) -> gpu.Counted:
    """A product, a pass over pairs, something constant."""
    work = [(2 * length * 64, 8 * length + 64, True), (0, 4 * length**2, False), (0, 512, False)]
    return {"work": work, "waits": 2, "copied": 4 * length**2}


def test_a_long_sequence_follows_from_three_short_ones() -> None:
    found = gpu.at_length([(n, counted(n)) for n in gpu.SHORT], 4096)
    np.testing.assert_allclose(found["work"], counted(4096)["work"])
    assert found["copied"] == pytest.approx(4 * 4096**2) and found["waits"] == 2


def test_lengths_that_launch_otherwise_say_nothing_of_a_longer_one() -> None:
    three = [(n, counted(n)) for n in gpu.SHORT]
    three[1][1]["work"].append((0, 1, False))
    with pytest.raises(RuntimeError, match="launch alike"):
        gpu.at_length(three, 4096)


def test_what_bounds_a_layer() -> None:
    """Launches, bytes, operations, or the way to the host: the longest of them, and each wait."""
    card = gpu.Card("a card", full=1e12, half=1e13, bytes=1e12, host_bytes=1e10, reached=1.0, streamed=1.0)
    nothing = {"work": [(0, 0, False)] * 100, "waits": 0, "copied": 0}
    assert gpu.seconds(nothing, card) == pytest.approx(100 * card.launch)
    assert gpu.seconds(nothing | {"waits": 3}, card) == pytest.approx(100 * card.launch + 3 * card.wait)
    assert gpu.seconds(nothing | {"copied": 10**9}, card) == pytest.approx(0.1)
    assert gpu.seconds({"work": [(10**10, 10**9, False)], "waits": 0, "copied": 0}, card) == pytest.approx(1e-2)
    assert gpu.seconds({"work": [(10**10, 10**9, True)], "waits": 0, "copied": 0}, card) == pytest.approx(1e-3)


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")
def test_without_a_gpu_it_says_so(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", ["benchmarks.gpu"])
    assert gpu.main() == 2
    said = capsys.readouterr().err.strip()
    assert "sees none" in said and "--estimate" in said and said.count("\n") == 0
