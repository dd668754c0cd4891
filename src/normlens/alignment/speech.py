"""Word times in a recording, from the cross-attention of a speech recognition model.

The rows of a decoder's cross-attention say which frames a token was read from. Heads are chosen by the criterion of
`layer_choice` on the recording itself: those whose frames agree with another head's in the other reading of the rows, and
agree more so than in the first reading. The maps of the chosen heads are averaged, and dynamic time warping finds the
monotone path through them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from jaxtyping import Float, Int

from normlens.alignment.layer_choice import Agreement
from normlens.errors import InputError
from normlens.inputs.tokens import Tokens, is_special, readable_tokens

if TYPE_CHECKING:
    from normlens.lens import Lens

#: Frames that are one place for the choice of heads: 0.1 s of a model with frames of 0.02 s.
_FRAMES_TOGETHER = 5
#: Frames of the median filter, as OpenAI's code has it.
_MEDIAN = 7


@dataclass(frozen=True)
class WordTime:
    """A word and its time in the recording, in seconds."""

    word: str
    start: float
    end: float


@dataclass(frozen=True)
class SpeechAlignment:
    """The words of a recording with their times, and the heads (layer, head; from 1) that they were read from."""

    words: tuple[WordTime, ...]
    heads: tuple[tuple[int, int], ...]
    measure: str


def align_speech(
    lens: Lens,
    audio: Any,
    text: str | None = None,
    *,
    sampling_rate: int | None = None,
    measure: str = "af_norm",
    heads: Sequence[tuple[int, int]] | None = None,
) -> SpeechAlignment:
    """Find the time of each word of a recording.

    Args:
        lens: A speech recognition model with its processor (Whisper and its kin).
        audio: A path of a WAV file, or samples.
        text: What is said; by default what the model itself writes.
        sampling_rate: Of samples; a file says so itself.
        measure: `af_norm`, or `alpha` for attention weights.
        heads: Layers and heads, from 1; by default they are chosen.

    Returns:
        The words and their times.

    Raises:
        InputError: The model has no cross-attention to sound, or the recording is too long for it.
    """
    if measure not in ("af_norm", "alpha"):
        raise InputError(f"measure must be af_norm or alpha, got {measure!r}")
    row = lens.media(None, [], audio, sampling_rate)
    first = next(lens.model.parameters())
    written = _written(lens, row.inputs, text)
    read = written[:-1]
    inputs = {name: value.to(first.device) for name, value in row.inputs.items()}
    floating = {name: value.to(first.dtype) if value.is_floating_point() else value for name, value in inputs.items()}
    floating["decoder_input_ids"] = torch.tensor([read], device=first.device)
    analysis = lens.analyze_inputs(floating, measures=[measure])[0]
    if "cross" not in analysis.sites or "key_start" not in analysis.sites["cross"].coords:
        raise InputError(f"{lens.family!r} has no cross-attention to frames of sound with known times")
    cross = analysis.sites["cross"]
    starts = cross["key_start"].values
    inside = int((starts < row.notes["audio"]["seconds"]).sum())
    maps = cross[measure].values[..., :inside].astype(np.float64)  # layer head query frame
    layers = [int(layer) for layer in cross["layer"].values]
    tokens = lens.encoder.label(list(written))
    texts = [place for place, string in enumerate(tokens.strings) if place > 0 and not is_special(string)]
    if not texts:
        raise InputError("there is no word to align: the text is empty")
    places = range(1, len(written))  # what stands before and after the words takes the silence there
    rows = {"awi": [min(place, len(read) - 1) for place in texts], "awo": [place - 1 for place in texts]}
    chosen = list(heads) if heads is not None else choose_heads(maps, rows["awi"], rows["awo"], layers)
    selected = np.stack(
        [maps[layers.index(layer), head - 1][[place - 1 for place in places]] for layer, head in chosen]
    )
    frames = _monotone_frames(_smoothed(selected))
    step = float(starts[1] - starts[0]) if len(starts) > 1 else 0.0
    times = [0.0, *(float(starts[frame]) for frame in frames), float(starts[inside - 1]) + step]  # by place
    words = _words(tokens, texts, times)
    return SpeechAlignment(words, tuple((int(layer), int(head)) for layer, head in chosen), measure)


def _written(lens: Lens, inputs: Any, text: str | None) -> list[int]:
    """The decoder's start token, what is said, and the token that ends it."""
    if not lens.traced.two_sided:
        raise InputError(f"{lens.family!r} has no decoder that attends to sound; pass a model such as Whisper")
    if text is not None:
        shifted, labels, _ = lens.encoder.target(text, truncate=False, pretokenized=False)
        return [shifted.ids[0], *labels]
    from normlens.attribution.jobs import Reading, written_tokens
    from normlens.attribution.questions import Resolver

    resolver = Resolver(lens.model, lens.tokenizer)
    ids = written_tokens(resolver, Reading(generate=True), inputs, lens.encoder.padding, 0)
    start = resolver.start_token()
    ids = ids if ids[:1] == [start] else [start, *ids]
    end = getattr(lens.model.config, "eos_token_id", None)
    return ids if ids[-1] == end else [*ids, int(end) if isinstance(end, int) else 0]


def choose_heads(
    maps: Float[np.ndarray, "layer head query frame"], awi: Sequence[int], awo: Sequence[int], layers: Sequence[int]
) -> list[tuple[int, int]]:
    """The heads whose frames agree with another head's in the other reading (see `layer_choice`).

    Args:
        maps: The cross-attention of each head.
        awi: The row of each token that is read with the token that the decoder takes in.
        awo: The row that is read with the token that it puts out.
        layers: The numbers of the layers.
    """
    count = maps.shape[1]
    by_head = maps.reshape(-1, *maps.shape[2:])
    places = -(-by_head.shape[-1] // _FRAMES_TOGETHER)
    padded = np.pad(by_head, [(0, 0), (0, 0), (0, places * _FRAMES_TOGETHER - by_head.shape[-1])])
    coarse = padded.reshape(*padded.shape[:2], places, _FRAMES_TOGETHER).sum(-1)
    coarse = (coarse - coarse.mean(1, keepdims=True)).clip(0)  # a frame that every token looks at says nothing
    coarse = np.pad(coarse, [(0, 0), (0, 0), (0, 1)])  # no column for no frame
    numbers = tuple(range(len(by_head)))
    agreement = Agreement.of(numbers, coarse[:, list(awi)], coarse[:, list(awo)])
    return [(layers[number // count], number % count + 1) for number in agreement.auto("awo")]


def _smoothed(maps: Float[np.ndarray, "head row frame"]) -> Float[np.ndarray, "row frame"]:
    """The mean over heads of each row's shares beyond those of an average row, after a median filter over time."""
    totals = maps.sum(axis=-1, keepdims=True)
    shares = np.divide(maps, totals, out=np.zeros_like(maps), where=totals > 0)
    shares -= shares.mean(axis=1, keepdims=True)
    padded = np.pad(shares, [(0, 0), (0, 0), (_MEDIAN // 2, _MEDIAN // 2)], mode="edge")
    windows = np.lib.stride_tricks.sliding_window_view(padded, _MEDIAN, axis=-1)
    return np.asarray(np.median(windows, axis=-1).mean(axis=0))


def _monotone_frames(gains: Float[np.ndarray, "row frame"]) -> Int[np.ndarray, " row"]:
    """The first frame of each row on the path from the first to the last cell that gains most and never turns back."""
    rows, frames = gains.shape
    best = np.full((rows, frames), -np.inf)
    came_down = np.zeros((rows, frames), dtype=bool)  # from the row before
    best[0] = np.cumsum(gains[0])
    for row in range(1, rows):
        for frame in range(frames):
            before = [best[row - 1, frame], best[row - 1, frame - 1] if frame else -np.inf]
            stay = best[row, frame - 1] if frame else -np.inf
            came_down[row, frame] = max(before) >= stay
            best[row, frame] = gains[row, frame] + max(*before, stay)
    first = np.zeros(rows, dtype=int)
    row, frame = rows - 1, frames - 1
    while row > 0:
        if not came_down[row, frame]:
            frame -= 1
            continue
        first[row] = frame
        diagonal = best[row - 1, frame - 1] if frame else -np.inf
        if diagonal >= best[row - 1, frame]:
            frame -= 1
        row -= 1
    return first


def _words(tokens: Tokens, texts: Sequence[int], times: Sequence[float]) -> tuple[WordTime, ...]:
    """Words from their tokens: each begins with its first token and ends where the next one begins."""
    strings = readable_tokens([tokens.strings[place] for place in texts])
    begins = [
        number
        for number, place in enumerate(texts)
        if number == 0 or tokens.words[place] != tokens.words[texts[number - 1]]
    ]
    found = []
    for begin, end in pairwise([*begins, len(texts)]):
        found.append(WordTime("".join(strings[begin:end]), times[texts[begin]], times[texts[end - 1] + 1]))
    return tuple(found)
