"""Times of words: the path through the maps, the choice of heads, and the way from a recording to words."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import transformers as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from normlens import Lens
from normlens.alignment.speech import _monotone_frames, align_speech, choose_heads
from normlens.errors import InputError
from tests.modalities import models


def all_paths(rows: int, frames: int) -> list[list[int]]:
    """Every non-decreasing list of first frames of rows that begins at 0."""
    paths = [[0]]
    for _ in range(rows - 1):
        paths = [[*path, first] for path in paths for first in range(path[-1], frames)]
    return paths


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 4), st.integers(1, 6), st.integers(0, 10_000))
def test_the_path_gains_as_much_as_any(rows: int, frames: int, seed: int) -> None:
    """Dynamic time warping against all monotone paths; a cell is left to the right, down, or both."""
    gains = np.random.default_rng(seed).standard_normal((rows, frames))

    def best_of(first: list[int]) -> float:
        total = 0.0
        for row in range(rows):
            end = frames - 1 if row == rows - 1 else first[row + 1]
            whole = gains[row, first[row] : end + 1].sum()
            # The last frame may be shared with the next row, or left to it.
            shared = gains[row, first[row] : end].sum() if row < rows - 1 and end > first[row] else -np.inf
            total += max(whole, shared)
        return total

    found = _monotone_frames(gains).tolist()
    assert found[0] == 0 and found == sorted(found)
    assert best_of(found) == pytest.approx(max(best_of(path) for path in all_paths(rows, frames)))


def test_heads_that_follow_the_sound_are_chosen() -> None:
    """Two heads on the diagonal of what is put out, one on that of what is taken in, the rest noise."""
    generator = np.random.default_rng(0)
    tokens, frames = 12, 120
    maps = generator.random((2, 3, tokens, frames)) * 0.5
    for place in range(tokens):
        maps[0, 1, place, 10 * place : 10 * place + 10] += 3  # puts out the token that sounds there
        maps[1, 0, place, 10 * place : 10 * place + 10] += 3
        maps[1, 2, place, max(0, 10 * place - 10) : 10 * place] += 3  # took that token in
    awo, awi = list(range(tokens - 1)), list(range(1, tokens))
    chosen = choose_heads(maps, awi, awo, [1, 2])
    assert {(1, 2), (2, 1)} <= set(chosen) and (2, 3) not in chosen


def test_words_of_a_recording() -> None:
    extractor = tf.WhisperFeatureExtractor(feature_size=6, hop_length=160, chunk_length=1, n_fft=400)
    extractor.nb_max_frames, extractor.n_samples = 18, 18 * 160
    lens = Lens(models.whisper(dtype=torch.float32), extractor)
    sound = np.random.default_rng(0).standard_normal(2_000).astype(np.float32)
    for measure in ("af_norm", "alpha"):
        found = align_speech(lens, sound, sampling_rate=16_000, measure=measure)
        assert found.measure == measure and found.heads
        assert all(word.start <= word.end <= 2_000 / 16_000 + 0.02 for word in found.words)
        starts = [word.start for word in found.words]
        assert starts == sorted(starts)
    with pytest.raises(InputError, match="cut it"):
        align_speech(lens, np.zeros(18 * 160 + 1), sampling_rate=16_000)
    with pytest.raises(InputError, match="no decoder that attends to sound"):
        align_speech(Lens(models.ctc(dtype=torch.float32), tf.Wav2Vec2FeatureExtractor()), sound, sampling_rate=16_000)
